"""A deadline for receiving a request: who trickles headers or a body in is cut off.

Owned by the event loop. The invariant: a connection is timed exactly while a request (or the first byte of one) is
awaited from its client; never while it waits for us, nor between two requests, where uvicorn's own keep-alive limit
rules.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from relay.server.schema import ApiError

_HEAD = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: application/json\r\n"


def receipt_protocol(limit_s: float) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol with a deadline.

    Args:
        limit_s: Seconds from the connection, or from a later request's first byte, to the request's last byte.
    """
    body = ApiError(408, f"the request was not received within {limit_s:g} s", code="timeout").body
    late = _HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body)

    class Punctual(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        cycle: Any
        transport: asyncio.Transport
        loop: asyncio.AbstractEventLoop
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._arm()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._receiving():
                self._arm()
            else:
                self._disarm()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def _receiving(self) -> bool:
            return self.cycle is None or self.cycle.more_body or self.cycle.response_complete

        def _arm(self) -> None:
            if self._timer is None and not self.transport.is_closing():
                self._timer = self.loop.call_later(limit_s, self._late)

        def _disarm(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _late(self) -> None:
            self._timer = None
            if self.transport.is_closing():
                return
            if self.cycle is not None and not self.cycle.response_complete and not self.cycle.response_started:
                self.transport.write(late)
            self.transport.close()

    return Punctual
