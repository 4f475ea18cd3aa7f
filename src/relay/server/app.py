"""The HTTP API: requests in, tickets out, answers back.

Owned by the event loop. The invariant: the loop never does work that grows with the size of a request (large ones are
read, submitted and encoded on threads), and whatever ends a request early (the client goes away, the server stops)
cancels its tickets.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from relay import Relay
from relay.errors import Closed, RequestCancelled
from relay.server.reply import embeddings_json
from relay.server.schema import ApiError, api_error, decode, inputs_of
from relay.ticket import Group

log = logging.getLogger("relay.server")

LARGE_BODY_BYTES = 16 << 10
LARGE_REPLY_ROWS = 16

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")


class Gone(Exception):
    """The client has gone away; there is nobody to answer."""


class Embeddings:
    """``POST /v1/embeddings``.

    Args:
        relay: Where requests go.
        model: The name the model goes by.
        dimensions: Of its vectors.
        max_body_bytes: The largest body received.
    """

    def __init__(self, relay: Relay[Any, Any], model: str, dimensions: int, max_body_bytes: int) -> None:
        self._relay = relay
        self._model = model
        self._dimensions = dimensions
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request; an ASGI application."""
        headers: Headers = scope["headers"]
        try:
            body = await self._body(headers, receive)
            await _send(send, 200, await self._answer(body, receive), headers)
        except Gone:
            pass
        except Exception as error:
            shown = api_error(error)
            if shown.status == 500:
                log.error("a request to %s failed", self._model, exc_info=error)
            await _send(send, shown.status, shown.body, headers, shown.headers)
        except asyncio.CancelledError:
            # The server stops and has waited long enough. The answer is the end of this task either way.
            shown = api_error(Closed("the server is stopping; send the request to another one", retry_after=1.0))
            await _send(send, shown.status, shown.body, headers, shown.headers)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        declared = next((int(value) for name, value in headers if name == b"content-length" and value.isdigit()), 0)
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            if max(size, declared) > self._max_body_bytes:
                # Answered before it is all here; the layer below drops the rest as it comes.
                raise ApiError(
                    413,
                    f"the body is larger than {self._max_body_bytes} bytes; send fewer or shorter texts in one request",
                    code="request_too_large",
                )
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
        return b"".join(parts)

    async def _answer(self, body: bytes, receive: Receive) -> bytes:
        if len(body) > LARGE_BODY_BYTES:
            base64, ticket = await asyncio.to_thread(self._submit, body)
        else:
            base64, ticket = self._submit(body)
        watch = asyncio.create_task(_cancel_when_gone(ticket, receive))
        try:
            vectors = await ticket
        except RequestCancelled:
            raise Gone from None
        finally:
            watch.cancel()
            if not ticket.done():
                ticket.cancel()

        def encode() -> bytes:
            return embeddings_json(vectors, model=self._model, tokens=sum(ticket.sizes), base64=base64)

        return await asyncio.to_thread(encode) if len(vectors) > LARGE_REPLY_ROWS else encode()

    def _submit(self, body: bytes) -> tuple[bool, Group[Any]]:
        request = decode(body)
        inputs = inputs_of(request, self._model, self._dimensions)
        try:
            ticket = self._relay.submit_many(inputs)
        except ValueError as error:
            if hasattr(error, "http_status"):  # TooLarge is one of ours as well
                raise
            raise ApiError(400, str(error), param="input") from error
        return request.encoding_format == "base64", cast("Group[Any]", ticket)


async def _cancel_when_gone(ticket: Group[Any], receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    ticket.cancel()


async def _send(send: Send, status: int, body: bytes, request: Headers, extra: Headers | None = None) -> None:
    headers = [_JSON, (b"content-length", b"%d" % len(body)), *(extra or ())]
    # Echoed for the client's own logs and used for nothing else: two requests may well carry the same.
    headers += [(name, value) for name, value in request if name == b"x-request-id" and len(value) <= 200]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def build_app(
    relay: Relay[Any, Any],
    *,
    model: str,
    dimensions: int,
    max_body_bytes: int = 16 << 20,
    unready_when_full: bool = False,
) -> Starlette:
    """The ASGI application that serves one relay. It closes the relay when it is shut down.

    Args:
        relay: The relay; its items are texts and lists of ids, its results vectors.
        model: The name the model goes by.
        dimensions: Of its vectors.
        max_body_bytes: The largest body received.
        unready_when_full: Whether ``/readyz`` says 503 while the queue is full. Off, because a load balancer would
            then take away every replica at once, just when they are needed.
    """
    card = {"id": model, "object": "model", "created": int(time.time()), "owned_by": "relay"}

    async def models(_: Request) -> Response:
        return _json({"object": "list", "data": [card]})

    async def one_model(request: Request) -> Response:
        name = request.path_params["name"]
        if name != model:
            raise ApiError(404, f"the model {name[:100]!r} does not exist here", param="model", code="model_not_found")
        return _json(card)

    async def healthz(_: Request) -> Response:
        return _json({"status": "ok"}) if relay.healthy else _json({"status": "unhealthy"}, 503)

    async def readyz(_: Request) -> Response:
        if not relay.ready:
            return _json({"status": "not ready"}, 503)
        if unready_when_full:
            now = relay.snapshot()
            if now.admitted >= now.capacity:
                return _json({"status": "full"}, 503)
        return _json({"status": "ok"})

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await relay.aclose()

    return Starlette(
        routes=[
            Route("/v1/embeddings", Embeddings(relay, model, dimensions, max_body_bytes), methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", one_model),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
        ],
        exception_handlers={HTTPException: _http_error, ApiError: _known_error},
        lifespan=lifespan,
    )


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path[:200]}: {error.detail}; POST /v1/embeddings is what this server is for"
    shown = ApiError(error.status_code, text, code="not_found" if error.status_code == 404 else None)
    return Response(shown.body, shown.status, dict(error.headers or {}), media_type="application/json")


async def _known_error(_: Request, error: Exception) -> Response:
    shown = api_error(error)
    return Response(shown.body, shown.status, media_type="application/json")
