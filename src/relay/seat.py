"""Seats: where a lane waits for a token of a pool that several relays share.

A lane stands in the pool's line as urgently as the most urgent request that is ready for it, and is lifted when a more
urgent one comes. It chooses the members of its batch only when it has the token. `wait` belongs to the lane; any thread
may call `lift` and `leave`.
"""

from __future__ import annotations

import asyncio

from relay.clock import Clock
from relay.desk import Desk
from relay.errors import Closed
from relay.pool import Token, TokenPool
from relay.waiter import Waiter

_NEVER_REVOKED = 0


class _Sitter(Waiter):
    """One wait.

    Attributes:
        level: The priority that it waits at.
    """

    __slots__ = ("level",)

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        super().__init__(loop)
        self.level = -1


class Seat:
    """One lane's.

    Args:
        pool: Whose tokens.
        desk: Whose requests.
    """

    def __init__(self, pool: TokenPool, desk: Desk) -> None:
        self._pool = pool
        self._desk = desk
        self._clock: Clock = desk.clock
        self._waiter: _Sitter | None = None

    @property
    def level(self) -> int:
        """The priority that it waits at, or -1 while it does not wait."""
        waiter = self._waiter
        return -1 if waiter is None else waiter.level

    def wait(self) -> Token | None:
        """Block until there is a token. None if `leave` came first.

        Raises:
            Closed: The pool is closed.
            Overloaded: Too many wait for it.
        """
        waiter = _Sitter(None)
        try:
            token = self._enter(waiter)
            if token is None:
                self._clock.park(waiter.gate, None)
                token = self._outcome(waiter)
            return token
        except BaseException:
            self._pool.abandon(waiter)
            raise
        finally:
            self._out(waiter)

    async def wait_async(self) -> Token | None:
        """As `wait`, for a lane on a loop."""
        waiter = _Sitter(asyncio.get_running_loop())
        try:
            token = self._enter(waiter)
            if token is None:
                await waiter.future
                token = self._outcome(waiter)
            return token
        except BaseException:
            self._pool.abandon(waiter)
            raise
        finally:
            self._out(waiter)

    def lift(self, level: int) -> None:
        """A more urgent request has come."""
        waiter = self._waiter
        while waiter is not None and 0 <= level < waiter.level:
            waiter.level = level
            self._pool.lift_waiter(waiter, level)
            # Two who lift at once may do it in either order; whoever was the last sees the most urgent one now.
            level = self._desk.queue.head_level()

    def leave(self) -> None:
        """Have the lane go on without a token."""
        waiter = self._waiter
        if waiter is not None:
            waiter.wake()

    def forsake(self) -> None:
        """The loop of the coroutine that waits here has closed, and it will never go on."""
        waiter = self._waiter
        if waiter is not None:
            self._pool.abandon(waiter)
            self._out(waiter)

    def _enter(self, waiter: _Sitter) -> Token | None:
        level = self._desk.queue.head_level()
        if level < 0:
            waiter.wake()  # another lane has taken what there was
            return None
        waiter.level = level
        token: Token | None = self._pool._join(waiter, level, 1, None, _NEVER_REVOKED, -1)
        if token is None:
            self._waiter = waiter
            # One that came between the look and now has seen nobody to lift, and so has the end.
            self.lift(self._desk.queue.head_level())
            if self._desk.closed:
                waiter.wake()
        return token

    def _outcome(self, waiter: Waiter) -> Token | None:
        token: Token | None = waiter.token if waiter.token is not None else self._pool.leave(waiter)
        if token is None and self._pool._is_closed and not self._desk.closed:
            raise Closed(
                f"the pool {self._pool.name!r}, of which {self._desk.name!r} takes a token for each batch, is closed; "
                "make a new relay with a new pool"
            )
        return token

    def _out(self, waiter: Waiter) -> None:
        if self._waiter is waiter:
            self._waiter = None
        if self._pool.custom:
            self._pool._left(waiter)
