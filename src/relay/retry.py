"""Retry: when to try again, for how long, and how often.

`Retry` says when, and is only numbers; the two drivers make the tries, for threads and for coroutines. They know
nothing of what is tried, so they serve whatever raises errors that say when to come back. Everything may be used from
any thread; nothing is bound to a loop at construction.

Cancellation, Ctrl-C and all else that is no `Exception` is never retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from relay._backend import state
from relay.clock import FOREVER_NS, MONOTONIC, NS, Clock, MonotonicClock, limit_ns, release_once
from relay.errors import AcquireTimeout, Overloaded
from relay.retry_budget import RetryBudget, finite
from relay.ticket import warn_if_on_loop

T = TypeVar("T")

RETRYABLE: Final = (AcquireTimeout, Overloaded)
"""What a later try may get over: there was no room, and nothing was started."""

Retryable = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]

# Not the module's generator: services seed that one alike in all their replicas, which would then come back together.
_RANDOM = random.SystemRandom()
_JITTER = ("full", "equal", "none")


@dataclass(frozen=True, slots=True)
class Retry:
    """When a failed try is made again: after ``base * factor**n`` seconds, at most `cap`, less a random part.

    An error that carries `retry_after` is waited out first, and the delay comes on top: callers that were all told the
    same time do not come back in one moment.

    Attributes:
        max_retries: Tries after the first one, at most.
        base: Seconds before the first retry, before jitter.
        factor: By how much each delay is longer than the one before.
        cap: The longest delay in seconds; only a `retry_after` can make a wait longer.
        jitter: "full" draws each delay from 0 up to its value, "equal" from one half of it, "none" takes it as it is.
        total: Seconds for all tries and waits together; None for no bound. A retry that could only start later is not
            waited for.
        budget: Shared by callers whose retries are to be bounded together.

    Raises:
        ValueError: A value is out of range.
        TypeError: `total` is no number.
    """

    max_retries: int = 3
    base: float = 0.05
    factor: float = 2.0
    cap: float = 1.0
    jitter: Literal["full", "equal", "none"] = "full"
    total: float | None = None
    budget: RetryBudget | None = None

    def __post_init__(self) -> None:
        retries = state.whole(self.max_retries)
        if retries is None or retries < 0:
            raise ValueError(f"max_retries must be a whole number of at least 0, got {self.max_retries!r}")
        object.__setattr__(self, "max_retries", retries)
        for name, least in (("base", 0.0), ("factor", 1.0), ("cap", 0.0)):
            # As floats: powers of an int would be exact, however long that takes.
            object.__setattr__(self, name, finite(getattr(self, name), name, least))
        if self.jitter not in _JITTER:
            raise ValueError(f"jitter must be one of {', '.join(map(repr, _JITTER))}, got {self.jitter!r}")
        limit_ns(self.total, "total")
        if self.budget is not None and not isinstance(self.budget, RetryBudget):
            raise ValueError(f"budget must be a relay.RetryBudget or None, got {self.budget!r}")

    def delay(self, attempt: int, rng: random.Random | None = None) -> float:
        """Seconds to wait before retry number `attempt`, the first being 0.

        Args:
            attempt: Any number of at least 0; the delay stops growing at `cap`.
            rng: Draws the jitter; None for one that differs in every process.

        Returns:
            A finite number from 0 to `cap`.

        Raises:
            ValueError: `attempt` is negative.
        """
        if attempt < 0:
            raise ValueError(f"attempt must be at least 0, got {attempt}")
        try:
            longest = min(self.base * self.factor**attempt, self.cap)
        except OverflowError:
            longest = min(self.base, self.cap) if self.factor == 1.0 or not self.base else self.cap
        if self.jitter == "none":
            return longest
        drawn = (rng or _RANDOM).random()
        return longest * drawn if self.jitter == "full" else longest * (1.0 - drawn / 2)


def run_with_retry(
    retry: Retry,
    attempt: Callable[[float | None], T],
    clock: Clock = MONOTONIC,
    retryable: Retryable = RETRYABLE,
    *,
    timeout: float | None = None,
) -> T:
    """Call `attempt` until it succeeds, fails for good, or `retry` gives up. Waits on this thread.

    Args:
        retry: When to try again.
        attempt: Makes one try. Gets the seconds that it may take: the lesser of `timeout` and what is left of
            ``retry.total``; None for no limit.
        clock: What waits and limits are read from.
        retryable: The errors to retry after, or a function that says so of an error.
        timeout: Seconds for each try.

    Returns:
        What the first successful try returned.

    Raises:
        Exception: The last try's error. If it was given up, a note says after how many tries, and why.
        ValueError: `timeout` is negative or NaN.
    """
    tries = _Tries(retry, clock, retryable, timeout)
    while True:
        try:
            return attempt(tries.next_timeout())
        except Exception as error:
            wait_ns = tries.wait_ns(error)
            if wait_ns is None:
                raise
        # Not in the `except`, so that nothing of the failed try is kept alive or named as the context of later errors.
        if wait_ns:
            warn_if_on_loop("waiting for the next try", "use the async form")
            clock.park(_closed_gate(), clock.now_ns() + wait_ns)


async def run_with_retry_async(
    retry: Retry,
    attempt: Callable[[float | None], Awaitable[T]],
    clock: Clock = MONOTONIC,
    retryable: Retryable = RETRYABLE,
    *,
    timeout: float | None = None,
    sleep_async: Callable[[float], Awaitable[object]] | None = None,
) -> T:
    """As `run_with_retry`, for coroutines: waits on the running loop, or with `sleep_async` where it is given (it gets
    seconds). Cancelling it ends a try or a wait at once."""
    tries = _Tries(retry, clock, retryable, timeout)
    while True:
        try:
            return await attempt(tries.next_timeout())
        except Exception as error:
            wait_ns = tries.wait_ns(error)
            if wait_ns is None:
                raise
        if sleep_async is not None:
            await sleep_async(wait_ns / NS)
        elif isinstance(clock, MonotonicClock):
            await _sleep(clock, wait_ns)
        else:
            await _sleep_on(clock, wait_ns)


class _Tries:
    """One caller's tries: what both drivers decide alike."""

    __slots__ = ("_clock", "_end_ns", "_made", "_retry", "_retryable", "_start_ns", "_timeout", "_timeout_ns")

    def __init__(self, retry: Retry, clock: Clock, retryable: Retryable, timeout: float | None) -> None:
        if not isinstance(retry, Retry):
            raise TypeError(f"retry must be a relay.Retry, as relay.Retry(max_retries=3), got {retry!r}")
        limit = limit_ns(timeout, "timeout")
        total = limit_ns(retry.total, "total")
        self._retry = retry
        self._clock = clock
        self._retryable = retryable
        self._timeout = timeout
        self._timeout_ns = FOREVER_NS if limit is None else limit
        self._start_ns = clock.now_ns()
        self._end_ns = FOREVER_NS if total is None else self._start_ns + total
        self._made = 0

    def next_timeout(self) -> float | None:
        """Called before each try: the seconds it may take."""
        if self._made == 0 and self._retry.budget is not None:
            self._retry.budget.deposit()
        self._made += 1
        if self._end_ns == FOREVER_NS:
            return self._timeout
        left_ns = max(self._end_ns - self._clock.now_ns(), 0)
        return self._timeout if self._timeout_ns <= left_ns else left_ns / NS

    def wait_ns(self, error: Exception) -> int | None:
        """How long to wait after this error, or None if it is to be raised."""
        may = self._retryable
        if not (isinstance(error, may) if isinstance(may, type | tuple) else may(error)):
            return None
        retry, now_ns = self._retry, self._clock.now_ns()
        wait = retry.delay(self._made - 1) + _retry_after(error)
        wait_ns = math.ceil(min(wait * NS, FOREVER_NS))
        if self._made > retry.max_retries:
            why = f"max_retries={retry.max_retries}"
        elif now_ns + wait_ns >= self._end_ns:
            why = f"the next would be {wait:.3f} s later, past total={retry.total} s"
        elif retry.budget is not None and not retry.budget.withdraw():  # last, for it counts
            why = f"the retry budget is spent ({retry.budget!r})"
        else:
            return wait_ns
        tries = "1 try" if self._made == 1 else f"{self._made} tries"
        error.add_note(f"relay gave up after {tries} in {(now_ns - self._start_ns) / NS:.3f} s: {why}")
        return None


async def _sleep(clock: MonotonicClock, wait_ns: int) -> None:
    """Never short, unlike the loops' own timers; and it lets others run even where there is nothing to wait for."""
    until_ns = clock.now_ns() + wait_ns
    await asyncio.sleep(wait_ns / NS)
    while (left_ns := until_ns - clock.now_ns()) > 0:
        await asyncio.sleep(max(left_ns / NS, 0.001))  # uvloop counts whole milliseconds and would spin on less


async def _sleep_on(clock: Clock, wait_ns: int) -> None:
    """On a clock that no loop knows, as those of tests are: a thread parks on it."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    gate = _closed_gate()

    def finish() -> None:
        if not woken.done():
            woken.set_result(None)

    def park(until_ns: int) -> None:
        clock.park(gate, until_ns)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish)

    threading.Thread(target=park, args=(clock.now_ns() + wait_ns,), name="relay-retry", daemon=True).start()
    try:
        await woken
    finally:
        release_once(gate)


def _closed_gate() -> threading.Lock:
    gate = threading.Lock()
    gate.acquire()
    return gate


def _retry_after(error: Exception) -> float:
    """Seconds that the error asks to wait; 0 if it says nothing, or nothing that a clock can count."""
    seconds = getattr(error, "retry_after", None)
    return seconds if isinstance(seconds, int | float) and 0 < seconds < math.inf else 0.0
