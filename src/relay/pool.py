"""TokenPool: permits to use compute, handed out by priority to threads and coroutines.

A pool may be used from any thread and any number of event loops; nothing is bound to a loop at construction. The core
(`permits`) decides who owns what; this module parks those who wait and wakes those who are given a token. A released
token belongs to the next waiter before `release` returns; a waiter that has given up meanwhile hands it on.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from relay._backend import backend, timers
from relay._backend import permits as core
from relay.clock import MONOTONIC, Alarm, Clock, limit_ns, release_once
from relay.errors import AcquireTimeout, Closed, Overloaded, StaleToken
from relay.policy import INTERACTIVE, DynamicPriority, Priority, tier
from relay.stats import PoolSnapshot
from relay.ticket import warn_if_on_loop

T = TypeVar("T")
Token = core.Token


class _Waiter:
    """One who waits: a thread behind a lock, or a coroutine behind a future.

    Attributes:
        index: Its place in the line, or -1: written by the core.
        token: What it was given: written by the core.
    """

    __slots__ = ("closed", "future", "gate", "index", "loop", "priority", "token")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.index = -1
        self.token: Token | None = None
        self.closed = False
        self.loop = loop
        if loop is None:
            self.gate = threading.Lock()
            self.gate.acquire()
        else:
            self.future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        """Raises RuntimeError if its loop is closed."""
        if self.loop is None:
            release_once(self.gate)  # a clock may have opened it at the same moment
        elif asyncio._get_running_loop() is self.loop:
            self._finish()
        else:
            self.loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class TokenPool(core.Permits):
    """A pool of tokens: at most `capacity` of them are held at once, and who is most urgent gets the next.

    It limits concurrency within this process, not requests per minute.

    Args:
        capacity: Tokens in all.
        policy: Orders those who wait.
        reserved: Tokens kept for a tier, as ``{relay.REALTIME: 1}``. An unnamed tier belongs to the nearest named one
            at or below it.
        max_waiting: How many may wait at once.
        name: For threads, error texts and snapshots.
        clock: What waiting times are read from; for tests.

    Raises:
        ValueError: A size is out of range, or more is reserved than there is.
    """

    def __init__(
        self,
        capacity: int,
        *,
        policy: DynamicPriority | None = None,
        reserved: Mapping[int, int] | None = None,
        max_waiting: int = 10_000,
        name: str = "pool",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            capacity, tuple((tier(level), count) for level, count in (reserved or {}).items()), max_waiting
        )
        self.name = name
        self._clock = clock or MONOTONIC
        self._key = (policy or DynamicPriority()).key
        self._timers = timers.Timers(max(max_waiting, 1))
        self._timed: dict[int, _Waiter] = {}
        self._timer_lock = threading.RLock()  # a coroutine that is finalised leaves the line, whatever runs then
        self._alarm = Alarm(self._clock, f"{name}-alarm", self._next_alarm_ns, self._time_out)
        self._executor: ThreadPoolExecutor | None = None
        self._lock_counts = threading.Lock()
        self._timed_out = 0
        self._refused = 0

    def acquire(self, priority: Priority = INTERACTIVE, *, timeout: float | None = None) -> Token:
        """Take a token, waiting for one.

        Args:
            priority: A name or 0 (most urgent) to 255.
            timeout: Seconds to wait at most; 0 tries once, None waits without limit.

        Returns:
            The token; release it, or use it in a ``with``.

        Raises:
            AcquireTimeout: None became free in time.
            Overloaded: Too many wait already.
            Closed: The pool is closed, or was while waiting.
            ValueError: `timeout` or `priority` is out of range.
        """
        limit = limit_ns(timeout, "timeout")
        level = tier(priority)
        token = self._try_first(level, limit)
        if token is not None:
            return token
        waiter = _Waiter(None)
        try:
            token = self._join(level, waiter)
            if token is None:
                warn_if_on_loop(f"waiting for a token of {self.name!r}", "use acquire_async()")
                self._clock.park(waiter.gate, None if limit is None else self._clock.now_ns() + limit)
                token = self.leave(waiter)
        except BaseException:
            self._abandon(waiter)
            raise
        return token if token is not None else self._empty_handed(waiter, timeout)

    async def acquire_async(self, priority: Priority = INTERACTIVE, *, timeout: float | None = None) -> Token:
        """As `acquire`, for coroutines. A cancelled wait loses no token."""
        limit = limit_ns(timeout, "timeout")
        level = tier(priority)
        token = self._try_first(level, limit)
        if token is not None:
            return token
        waiter = _Waiter(asyncio.get_running_loop())
        place = -1
        try:
            token = self._join(level, waiter)
            if token is None:
                if limit is not None:
                    place = self._arm(waiter, self._clock.now_ns() + limit)
                await waiter.future
                token = self.leave(waiter)
        except BaseException:
            self._abandon(waiter)
            raise
        finally:
            if place >= 0:
                self._disarm(waiter, place)
        return token if token is not None else self._empty_handed(waiter, timeout)

    def lease(self, priority: Priority = INTERACTIVE, *, timeout: float | None = None) -> Lease:
        """A context manager that holds a token: ``with pool.lease(0) as token`` or ``async with``. Arguments as for
        `acquire`."""
        return Lease(self, priority, timeout)

    def run(
        self, function: Callable[..., T], *args: Any, priority: Priority = INTERACTIVE, timeout: float | None = None
    ) -> T:
        """Call ``function(*args)`` on this thread while holding a token. Raises as `acquire`, and as `function`."""
        with self.acquire(priority, timeout=timeout):
            return function(*args)

    async def run_async(
        self, function: Callable[..., Any], *args: Any, priority: Priority = INTERACTIVE, timeout: float | None = None
    ) -> Any:
        """Run `function` while holding a token: a coroutine function as a task on this loop, any other on the pool's
        own threads.

        The token comes back when the work ends: if the caller is cancelled the work goes on, and so does its lease.

        Returns:
            What the function returned.
        """
        loop = asyncio.get_running_loop()
        token = await self.acquire_async(priority, timeout=timeout)
        try:
            if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
                work: asyncio.Future[Any] = loop.create_task(_hold(token, function, args))
                work.add_done_callback(partial(_release_unstarted, token))
            else:
                work = loop.run_in_executor(self._threads(), _call_holding, token, function, args)
        except BaseException:
            token.release()
            raise
        work.add_done_callback(_retrieve)
        return await asyncio.shield(work)

    def snapshot(self) -> PoolSnapshot:
        """Counters and gauges of this moment."""
        return PoolSnapshot(
            name=self.name,
            backend=backend,
            capacity=self.capacity,
            held=self.held,
            free=self.free,
            waiting=self.waiting,
            granted=self.granted,
            timed_out=self._timed_out,
            refused=self._refused,
        )

    def close(self) -> None:
        """Give out no more tokens; all who wait get `Closed`. Tokens that are held stay valid until they are
        released."""
        for waiter in self.shut():
            waiter.closed = True
            with contextlib.suppress(RuntimeError):
                waiter.wake()
        self._alarm.stop()
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TokenPool {self.name!r} {backend} {self.held} of {self.capacity} held, {self.waiting} waiting>"

    def _try_first(self, level: int, limit: int | None) -> Token | None:
        token = self.try_acquire(level)
        if token is None and limit == 0:
            self._count_timeout()
            raise AcquireTimeout(
                f"no token of {self.name!r} is free for priority {level}, and timeout=0 does not wait for one"
            )
        return token

    def _join(self, level: int, waiter: _Waiter) -> Token | None:
        token = self.acquire_or_join(level, self._key(level, self._clock.now_ns()), waiter)
        if waiter.index == core.NO_PLACE:
            with self._lock_counts:
                self._refused += 1
            raise Overloaded(
                f"{self.max_waiting} callers already wait for a token of {self.name!r}, which is max_waiting; "
                "retry later or raise it",
                reason="queue_full",
            )
        return token

    def _deliver(self, waiter: _Waiter) -> bool:
        try:
            waiter.wake()
        except RuntimeError:
            return False  # its loop closed without cancelling it: it will never take the token, so the next one gets it
        return True

    def _abandon(self, waiter: _Waiter) -> None:
        """Leave the line for good; a token given meanwhile goes on to the next."""
        token = self.leave(waiter)
        if token is not None:
            with contextlib.suppress(StaleToken):  # who found its loop closed has handed it on
                token.release()

    def _empty_handed(self, waiter: _Waiter, timeout: float | None) -> Token:
        if waiter.closed:
            raise Closed(f"the pool {self.name!r} was closed while waiting for a token; make a new one")
        self._count_timeout()
        raise AcquireTimeout(
            f"no token of {self.name!r} became free within timeout={timeout} s; "
            "wait longer, ask at a more urgent priority, or raise its capacity"
        )

    def _count_timeout(self) -> None:
        with self._lock_counts:
            self._timed_out += 1

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock_counts:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.capacity, thread_name_prefix=f"{self.name}-worker")
            return self._executor

    def _arm(self, waiter: _Waiter, when_ns: int) -> int:
        """Set the timer of the waiter's place. Returns the place, or -1 if it has been woken already."""
        with self._timer_lock:
            place = waiter.index
            if place < 0:
                return -1
            # If it is woken now and another comes to the same place, that one's timer comes later and stays.
            self._timed[place] = waiter
            self._timers.arm(place, when_ns)
        self._alarm.arm(when_ns)
        return place

    def _disarm(self, waiter: _Waiter, place: int) -> None:
        with self._timer_lock:
            if self._timed.get(place) is waiter:
                del self._timed[place]
                self._timers.disarm(place)

    def _next_alarm_ns(self) -> int | None:
        with self._timer_lock:
            return self._timers.next_ns()

    def _time_out(self, now_ns: int) -> None:
        with self._timer_lock:
            late = [self._timed.pop(place) for place in self._timers.due(now_ns)]
        for waiter in late:
            with contextlib.suppress(RuntimeError):
                waiter.wake()


class Lease:
    """A token for the length of a ``with`` or ``async with`` block; see `TokenPool.lease`."""

    __slots__ = ("_entered", "_pool", "_priority", "_timeout", "_token")

    def __init__(self, pool: TokenPool, priority: Priority, timeout: float | None) -> None:
        self._pool = pool
        self._priority = priority
        self._timeout = timeout
        self._token: Token | None = None
        self._entered = False

    def __enter__(self) -> Token:
        self._enter()
        try:
            self._token = token = self._pool.acquire(self._priority, timeout=self._timeout)
        except BaseException:
            self._entered = False
            raise
        return token

    def __exit__(self, *error: object) -> None:
        token, self._token = self._token, None
        self._entered = False
        if token is not None:
            token.release()

    async def __aenter__(self) -> Token:
        self._enter()
        try:
            self._token = token = await self._pool.acquire_async(self._priority, timeout=self._timeout)
        except BaseException:
            self._entered = False
            raise
        return token

    async def __aexit__(self, *error: object) -> None:
        self.__exit__()

    def _enter(self) -> None:
        if self._entered:
            raise RuntimeError("this lease is in use; call lease() again for each block")
        self._entered = True


async def _hold(token: Token, function: Callable[..., Coroutine[Any, Any, T]], args: tuple[Any, ...]) -> T:
    with token:
        return await function(*args)


def _call_holding(token: Token, function: Callable[..., T], args: tuple[Any, ...]) -> T:
    with token:
        return function(*args)


def _release_unstarted(token: Token, work: asyncio.Future[Any]) -> None:
    """A task that is cancelled before its first step never gets to its `with`."""
    if token.held:
        token.release()


def _retrieve(work: asyncio.Future[Any]) -> None:
    """Look at the error of work whose caller has left, so that asyncio does not log it as never retrieved."""
    if not work.cancelled():
        work.exception()
