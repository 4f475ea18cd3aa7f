"""Starlette and FastAPI: work that ends with its request, relay's errors as answers, health, and closing.

Owned by the event loop. The invariant: no task outlives the call that started it, and no result is lost on the way out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

from relay import Relay, RelayError, RequestCancelled, TokenPool

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

T = TypeVar("T")


async def until_disconnect(request: Request, awaitable: Awaitable[T]) -> T:
    """Await a coroutine, future or ticket, and cancel it when the client leaves; a handler alone is not told of that.

    A body that has not been read is read before it starts, and kept for ``request.body()``.

    Raises:
        RequestCancelled: The client has left, and the awaitable has ended.
        Exception: Whatever the awaitable ends with.
    """
    from starlette.requests import ClientDisconnect

    handler: Any = asyncio.current_task()
    over = False

    async def listen() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        if not over:
            left.reschedule(0)

    try:
        async with asyncio.timeout(None) as left:  # strikes when the client leaves
            with suppress(RuntimeError):  # the body has been streamed
                await request.body()
            listener = asyncio.create_task(listen())
            try:
                return await awaitable
            finally:
                over, cancels = True, handler.cancelling()
                while not listener.done() and listener.cancel():
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait((listener,))
                if handler.cancelling() > cancels:  # felt at the next await: there may be a result in hand, as a token
                    handler.uncancel()
                    handler.cancel()
    except BaseException as error:
        # A coroutine may not have started; a ticket goes on when only who awaits it is cancelled.
        getattr(awaitable, "close" if asyncio.iscoroutine(awaitable) else "cancel", bool)()
        if left.expired() or isinstance(error, ClientDisconnect):
            raise RequestCancelled("the client left before its answer was there; its request was cancelled") from None
        raise


def install(
    app: Starlette,
    relays: Iterable[Relay[Any, Any]] = (),
    pools: Iterable[TokenPool] = (),
    *,
    healthz: str = "/healthz",
    readyz: str = "/readyz",
    unready_when_full: bool = False,
) -> None:
    """Have an app answer relay's errors, say whether it is alive and ready, and close relays and pools at its end.

    A full queue leaves it ready by default: else all replicas would be taken away at once, just when they are needed.
    """
    try:
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError as error:
        raise ImportError("install() needs starlette: pip install 'relay-inference[serve]'") from error
    if app.middleware_stack is not None:
        raise RuntimeError("install() came after the app had started; call it where the app is made")
    relays, pools, inner = tuple(relays), tuple(pools), app.router.lifespan_context

    async def failed(request: Request, error: Any) -> JSONResponse:
        if error.http_status == 500:
            logging.getLogger("relay.asgi").error("%s failed", request.url.path, exc_info=error)
        message = str(error).encode("utf-8", "replace").decode()  # there may be a lone surrogate in it
        body = {"error": {"message": message, "type": type(error).__name__, "reason": error.reason}}
        wait = None if error.retry_after is None else {"retry-after": str(ceil(min(max(1, error.retry_after), 86400)))}
        return JSONResponse(body, error.http_status, wait)

    async def live(_: Request) -> JSONResponse:
        bad = {relay.name: "unhealthy" for relay in relays if not relay.healthy}
        return JSONResponse({"status": "unhealthy" if bad else "ok", "why": bad}, 503 if bad else 200)

    async def ready(_: Request) -> JSONResponse:
        bad = {relay.name: "not ready" for relay in relays if not relay.ready}
        bad |= {pool.name: "closed" for pool in pools if pool.closed}
        if unready_when_full:
            bad |= {now.name: "full" for now in (r.snapshot() for r in relays) if now.admitted >= now.capacity}
            bad |= {pool.name: "full" for pool in pools if pool.waiting >= pool.max_waiting and not pool.free}
        return JSONResponse({"status": "not ready" if bad else "ok", "why": bad}, 503 if bad else 200)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:  # in reverse, and all of it even if a part raises
            for pool in reversed(pools):
                stack.callback(pool.close)
            for relay in reversed(relays):
                stack.push_async_callback(relay.aclose)
            yield await stack.enter_async_context(inner(app))

    app.router.lifespan_context = lifespan
    app.exception_handlers.setdefault(RelayError, failed)
    app.router.routes[:0] = [Route(healthz, live), Route(readyz, ready)]
