"""What `acquire_async` returns: one wait for a token on an event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any

from relay._pure._token import Token

if TYPE_CHECKING:
    from relay._pure.permits import Permits


def needs_no_look(timeout: object) -> bool:
    """True for a plain time limit, or none, that would let a caller try in any case."""
    return timeout is None or (type(timeout) in (int, float) and timeout >= 0)  # type: ignore[operator]


class Acquire(Coroutine[Any, Any, Token]):
    """A coroutine that ends with a token.

    It is the waiter as well: the pool writes its place and its token. Whatever ends it, cancellation, an error thrown
    in, or being closed, a token granted meanwhile goes on to the next.
    """

    __slots__ = ("_arguments", "_future", "_permits", "_steps", "index", "loop", "place", "token", "__weakref__")

    def __init__(
        self,
        permits: Permits,
        priority: int | str = 1,
        timeout: float | None = None,
        cost: int = 1,
        tenant: str | None = None,
        heartbeat: float | None = None,
        arrival_ns: int = -1,
    ) -> None:
        self._permits = permits
        self._arguments = (priority, timeout, cost, tenant, heartbeat, arrival_ns)
        self.index = self.place = -1
        self.token: Token | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[None] | None = None
        self._steps = self._run()

    def __await__(self) -> Generator[Any, None, Token]:
        if inspect.getgeneratorstate(self._steps) == inspect.GEN_CLOSED:
            raise RuntimeError("this wait is over already; call acquire_async() for each token")
        return self._steps

    def __iter__(self) -> Generator[Any, None, Token]:
        return self._steps

    def __next__(self) -> Any:
        return self._steps.send(None)

    def send(self, value: None) -> Any:
        """Go on."""
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        """Go on with an error."""
        return self._steps.throw(*error)

    def close(self) -> None:
        """End it."""
        self._steps.close()

    def wake(self) -> bool:
        """Let it go on, from any thread. False if its loop is closed, so that it never will."""
        assert self.loop is not None
        try:
            if asyncio._get_running_loop() is self.loop:
                self._finish()
            else:
                self.loop.call_soon_threadsafe(self._finish)
        except Exception:
            if not self.loop.is_closed():
                raise  # an error of the moment: the pool tries again
            return False
        return True

    def _finish(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def _run(self) -> Generator[Any, None, Token]:
        permits = self._permits
        priority, timeout, cost, tenant, heartbeat, arrival_ns = self._arguments
        token: Token | None
        if not permits.waiting and heartbeat is None and needs_no_look(timeout):
            token = permits.try_acquire(priority, cost, tenant)
            if token is not None:
                return token
        limit_ns = -1 if timeout is None else permits._limit_ns(timeout)
        heartbeat_ns = -1 if heartbeat is None else permits._beats_ns(heartbeat)
        self.loop = asyncio.get_running_loop()
        self._future = self.loop.create_future()
        armed = False
        try:
            if limit_ns == 0:
                token = permits.try_acquire(priority, cost, tenant, heartbeat_ns)
            else:
                token = permits._join(self, priority, cost, tenant, heartbeat_ns, arrival_ns)
                if token is None:
                    if limit_ns > 0:
                        permits._arm(self, limit_ns)
                        armed = True
                    yield from self._future
                    token = permits.leave(self)
        except BaseException:
            permits.abandon(self)
            raise
        finally:
            if armed or permits.custom:
                permits._left(self)
        if token is None:
            raise permits._empty_handed(priority, timeout)
        if permits.traced:
            permits._trace(token)
        return token
