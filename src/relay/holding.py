"""Holding: what the owner of a relay may do with it besides asking: look on, and bring it to its end."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from relay._backend import backend
from relay.clock import limit_ns
from relay.desk import Desk
from relay.dispatcher import Dispatcher
from relay.stats import RelaySnapshot
from relay.ticket import refuse_own_thread, warn_if_on_loop


class Holding:
    """The part of a `Relay` that does not depend on what it is asked.

    Attributes:
        name: For threads, logs and error texts.
    """

    name: str
    _dispatcher: Dispatcher
    _desk: Desk

    @property
    def backend(self) -> str:
        """``"native"`` or ``"pure"``: the side of the core that runs."""
        return backend

    @property
    def ready(self) -> bool:
        """True while new requests are taken."""
        return not self._desk.refusing

    @property
    def healthy(self) -> bool:
        """False once closed, or if a thread that should run has died."""
        return not self._desk.closed and self._dispatcher.alive and self._desk.healthy

    def snapshot(self) -> RelaySnapshot:
        """Counters and gauges of this moment; cheap enough to poll."""
        return self._dispatcher.snapshot()

    def invalidate(self) -> None:
        """Forget all answers that are kept, and keep none of what is under way: requests from now on share nothing with
        those before. For a model whose answers have changed."""
        self._desk.renew()

    def check(self) -> None:
        """Recount everything; for tests.

        Raises:
            AssertionError: An invariant is broken, which is a bug in relay.
        """
        self._desk.queue.check()
        if self._desk.results is not None:
            self._desk.results.check()

    def drain(self, timeout: float | None = None) -> int:
        """Take no more requests and wait until all taken ones have ended.

        Returns:
            How many are left when `timeout` seconds are over; 0 if none.
        """
        limit = limit_ns(timeout, "timeout")
        refuse_own_thread(self._desk, "Relay.drain()")
        warn_if_on_loop("Relay.drain()", "use drain_async()")
        return self._dispatcher.drain(limit)

    async def drain_async(self, timeout: float | None = None) -> int:
        """As `drain`, for coroutines."""
        return await self._dispatcher.drain_async(limit_ns(timeout, "timeout"))

    def close(self) -> None:
        """Take no more, send away all who wait or are queued (`Closed`), and wait for the running batch. May be called
        again."""
        self._dispatcher.close()
        self._dispatcher.join()

    async def aclose(self) -> None:
        """As `close`, for coroutines."""
        self._dispatcher.close()
        await asyncio.to_thread(self._dispatcher.join)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Answer what was taken, then close; after an error, close at once."""
        try:
            if kind is None:
                self.drain()
        finally:
            self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.drain_async()
        finally:
            await self.aclose()

    def __repr__(self) -> str:
        return f"<Relay {self.name!r} {backend} {len(self._desk.open)} open>"
