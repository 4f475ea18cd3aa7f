"""The two drivers of retries, one for threads and one for coroutines: that both do the same."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import weakref
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from retry_kit import JITTER, PLAIN, QuickClock

from relay.clock import NS
from relay.errors import AcquireTimeout, Closed, Overloaded, RelayError, TooLarge
from relay.retry import RETRYABLE, Retry, run_with_retry, run_with_retry_async
from relay.retry_budget import RetryBudget


def step(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


class Tries:
    """What a driver is given to try: ends as told, and takes its time doing so.

    Attributes:
        timeouts: What each try was given.
    """

    def __init__(self, clock: QuickClock, ends: Sequence[object], seconds: float | None = 0.0) -> None:
        self._clock = clock
        self._ends = iter(ends)
        self._seconds = seconds
        self.timeouts: list[float | None] = []

    def __call__(self, timeout: float | None) -> object:
        self.timeouts.append(timeout)
        limit = math.inf if timeout is None else timeout
        self._clock.advance(limit if self._seconds is None else min(self._seconds, limit))
        end = next(self._ends)
        if isinstance(end, BaseException):
            raise end
        return end


def by_thread(retry: Retry, tries: Tries, clock: QuickClock, *args: Any, **options: Any) -> object:
    return run_with_retry(retry, tries, clock, *args, **options)


def by_coroutine(retry: Retry, tries: Tries, clock: QuickClock, *args: Any, **options: Any) -> object:
    async def attempt(timeout: float | None) -> object:
        return tries(timeout)

    return step(run_with_retry_async(retry, attempt, clock, *args, sleep_async=clock.sleep_async, **options))


DRIVERS = [by_thread, by_coroutine]
both_drivers = pytest.mark.parametrize("drive", DRIVERS)


def full(count: int) -> list[Overloaded]:
    return [Overloaded(f"full {i}") for i in range(count)]


@both_drivers
def test_the_first_try_may_do(drive: Any) -> None:
    clock = QuickClock()
    tries = Tries(clock, ["value"])
    assert drive(PLAIN, tries, clock) == "value"
    assert clock.waits == [] and tries.timeouts == [None]


@both_drivers
def test_it_is_tried_again_after_ever_longer_waits(drive: Any) -> None:
    clock = QuickClock()
    tries = Tries(clock, [Overloaded("full"), AcquireTimeout("late"), Overloaded("full"), "value"])
    assert drive(PLAIN, tries, clock, timeout=0.5) == "value"
    assert clock.waits == [0.05, 0.1, 0.2] and tries.timeouts == [0.5] * 4


@both_drivers
@pytest.mark.parametrize("retries", [0, 1, 5])
def test_the_last_error_says_how_often_and_why(drive: Any, retries: int) -> None:
    clock = QuickClock()
    errors = full(retries + 2)
    with pytest.raises(Overloaded) as caught:
        drive(Retry(retries, 1.0, 1.0, jitter="none"), Tries(clock, errors, 0.25), clock)
    assert caught.value is errors[retries]
    tries = f"{retries + 1} tries" if retries else "1 try"
    seconds = 0.25 * (retries + 1) + retries
    assert caught.value.__notes__ == [f"relay gave up after {tries} in {seconds:.3f} s: max_retries={retries}"]
    assert caught.value.__context__ is None and caught.value.__cause__ is None
    assert not any(hasattr(error, "__notes__") for error in errors if error is not caught.value)


@both_drivers
def test_f3_retry_after_is_waited_out_even_past_the_cap(drive: Any) -> None:
    clock = QuickClock()
    errors = [Overloaded("full", retry_after=2.0), Overloaded("full", retry_after=0.125), Overloaded("full")]
    assert drive(Retry(base=0.5, cap=0.5), Tries(clock, [*errors, "value"]), clock) == "value"
    assert 2.0 <= clock.waits[0] <= 2.5 and 0.125 <= clock.waits[1] <= 0.625 and clock.waits[2] <= 0.5


@both_drivers
@pytest.mark.parametrize("retry_after", [None, -1.0, float("nan"), float("inf"), "2", "Fri, 31 Dec 1999 23:59:59 GMT"])
def test_a_retry_after_that_says_nothing(drive: Any, retry_after: Any) -> None:
    clock = QuickClock()
    assert drive(PLAIN, Tries(clock, [Overloaded("full", retry_after=retry_after), "value"]), clock) == "value"
    assert clock.waits == [0.05]


@both_drivers
def test_a_wait_that_would_end_past_the_total_is_not_begun(drive: Any) -> None:
    clock = QuickClock()
    errors = [Overloaded("full"), Overloaded("full", retry_after=2.0)]
    with pytest.raises(Overloaded) as caught:
        drive(Retry(base=1.0, factor=1, jitter="none", total=4.0), Tries(clock, errors, 0.5), clock)
    assert caught.value is errors[1] and clock.now_ns() == 2 * NS
    assert caught.value.__notes__ == [
        "relay gave up after 2 tries in 2.000 s: the next would be 3.000 s later, past total=4.0 s"
    ]


@both_drivers
def test_a_retry_after_that_never_ends_is_not_waited_for(drive: Any) -> None:
    clock = QuickClock()
    with pytest.raises(Overloaded, match="full"):
        drive(PLAIN, Tries(clock, [Overloaded("full", retry_after=1e300)]), clock)
    assert clock.waits == []


@both_drivers
def test_f2_the_tries_share_the_total(drive: Any) -> None:
    clock = QuickClock()
    retry = Retry(max_retries=10, base=0.25, factor=1, jitter="none", total=2.0)
    tries = Tries(clock, [AcquireTimeout("late")] * 11, None)
    with pytest.raises(AcquireTimeout):
        drive(retry, tries, clock, timeout=0.75)
    assert tries.timeouts == [0.75, 0.75] and clock.waits == [0.25]  # 2.0 s after the start there is no time to try
    tries = Tries(clock, [AcquireTimeout("late")] * 11, None)
    with pytest.raises(AcquireTimeout):
        drive(dataclasses.replace(retry, total=2.5), tries, clock, timeout=0.75)
    assert tries.timeouts == [0.75, 0.75, 0.5]


@given(
    total=st.floats(0, 100),
    timeout=st.none() | st.floats(0, 50),
    seconds=st.none() | st.floats(0, 30),
    base=st.floats(1e-6, 5),
    jitter=st.sampled_from(JITTER),
    after=st.lists(st.none() | st.floats(0, 20), min_size=9, max_size=9),
    drive=st.sampled_from(DRIVERS),
)
def test_the_total_is_never_exceeded(
    total: float, timeout: float | None, seconds: float | None, base: float, jitter: Any,
    after: list[float | None], drive: Any,
) -> None:  # fmt: skip
    clock = QuickClock()
    tries = Tries(clock, [Overloaded("full", retry_after=seconds) for seconds in after], seconds)
    with pytest.raises(Overloaded) as caught:
        drive(Retry(8, base, cap=5.0, jitter=jitter, total=total), tries, clock, timeout=timeout)
    least_ns = 1 if total else 0  # a nanosecond is the least that is not nothing
    assert clock.now_ns() <= max(total * NS, least_ns)
    assert 1 <= len(tries.timeouts) <= 9 and len(clock.waits) == len(tries.timeouts) - 1
    assert all(given is not None and 0 <= given <= max(total, least_ns / NS) for given in tries.timeouts)
    assert timeout is None or all(given is not None and given <= timeout for given in tries.timeouts)
    for waited, least in zip(clock.waits, after, strict=False):
        assert waited >= (least or 0) - 1e-9
    assert len(caught.value.__notes__) == 1


@both_drivers
@pytest.mark.parametrize("limit", [None, math.inf, 1e10, 4294967.296, 1e-9, 0])
def test_a9_limits(drive: Any, limit: float | None) -> None:
    clock = QuickClock()
    tries = Tries(clock, ["value"])
    assert drive(PLAIN, tries, clock, timeout=limit) == "value"
    assert tries.timeouts == [limit]
    tries = Tries(clock, ["value"])
    assert drive(Retry(total=limit), tries, clock) == "value"
    assert tries.timeouts == [limit if limit is not None and limit < 1e9 else None]


@both_drivers
@pytest.mark.parametrize("total", [0, 1e-9])
def test_a9_no_time_at_all_tries_once(drive: Any, total: float) -> None:
    clock = QuickClock()
    tries = Tries(clock, full(2), 1.0)
    with pytest.raises(Overloaded, match="full 0"):
        drive(Retry(base=0, total=total), tries, clock)
    assert tries.timeouts == [total]


@both_drivers
@pytest.mark.parametrize("timeout", [-1, -1e-9, math.nan])
def test_a9_no_limits(drive: Any, timeout: float) -> None:
    clock = QuickClock()
    tries = Tries(clock, ["value"])
    with pytest.raises(ValueError, match="timeout must be None or a number of seconds of at least 0"):
        drive(PLAIN, tries, clock, timeout=timeout)
    assert tries.timeouts == []


@both_drivers
@pytest.mark.parametrize("retry", [None, 3, {}])
def test_what_is_no_retry(drive: Any, retry: Any) -> None:
    clock = QuickClock()
    with pytest.raises(TypeError, match="retry must be a relay.Retry"):
        drive(retry, Tries(clock, ["value"]), clock)


@both_drivers
@pytest.mark.parametrize("error", [Closed("shut"), TooLarge("huge"), ValueError("bad"), StopIteration(), OSError()])
def test_f3_permanent_errors_are_not_retried(drive: Any, error: Exception) -> None:
    clock = QuickClock()
    tries = Tries(clock, [Overloaded("full"), error, "value"])
    # An ended coroutine cannot raise StopIteration: Python makes another error of it.
    expected = (type(error), RuntimeError) if isinstance(error, StopIteration) else type(error)
    with pytest.raises(expected):
        drive(PLAIN, tries, clock)
    assert len(tries.timeouts) == 2 and not hasattr(error, "__notes__")


@both_drivers
@pytest.mark.parametrize("retryable", [BaseException, (BaseException,), lambda error: True])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit(), asyncio.CancelledError()])
def test_what_ends_a_program_or_a_task_is_never_retried(drive: Any, error: BaseException, retryable: Any) -> None:
    clock = QuickClock()
    tries = Tries(clock, [OSError(), error, "value"])
    with pytest.raises(type(error)) as caught:
        drive(PLAIN, tries, clock, retryable)
    assert caught.value is error and len(tries.timeouts) == 2 and not hasattr(error, "__notes__")


class Status(Exception):
    """As a client of a model server raises it."""

    def __init__(self, code: int, retry_after: float | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.retry_after = retry_after


@both_drivers
def test_f3_other_errors_by_their_class_or_by_what_they_say(drive: Any) -> None:
    clock = QuickClock()
    assert drive(PLAIN, Tries(clock, [OSError(), "value"]), clock, OSError) == "value"
    assert drive(PLAIN, Tries(clock, [OSError(), KeyError(), 1]), clock, (OSError, KeyError)) == 1
    with pytest.raises(Overloaded):
        drive(PLAIN, Tries(clock, full(1)), clock, OSError)
    del clock.waits[:]

    def transient(error: Exception) -> bool:
        return isinstance(error, Status) and error.code in (429, 503)

    tries = Tries(clock, [Status(503), Status(429, 2.0), Status(400), "value"])
    with pytest.raises(Status, match="400"):
        drive(PLAIN, tries, clock, transient)
    assert clock.waits == [0.05, 2.1] and len(tries.timeouts) == 3


def test_what_is_retryable_by_default() -> None:
    assert RETRYABLE == (AcquireTimeout, Overloaded)
    assert all(issubclass(error, RelayError) for error in RETRYABLE)


@both_drivers
def test_the_budget_is_shared(drive: Any) -> None:
    clock = QuickClock()
    budget = RetryBudget(0.5, 0, 1e6, clock=clock)
    retry = Retry(jitter="none", budget=budget)
    outcomes = []
    for _ in range(12):
        tries = Tries(clock, full(9))
        with pytest.raises(Overloaded) as caught:
            drive(retry, tries, clock)
        outcomes.append(len(tries.timeouts) - 1)
        assert "the retry budget is spent (RetryBudget(ratio=0.5, " in caught.value.__notes__[0]
    assert outcomes == [0, 1] * 6


@both_drivers
def test_only_a_retry_that_is_made_is_taken_from_the_budget(drive: Any) -> None:
    clock = QuickClock()
    budget = RetryBudget(0, 10, 1.0, clock=clock)
    assert budget.balance == 10
    for retry in (Retry(0, budget=budget), Retry(base=1.0, jitter="none", total=0.5, budget=budget)):
        with pytest.raises(Overloaded):
            drive(retry, Tries(clock, full(9)), clock)
    with pytest.raises(Closed):
        drive(Retry(budget=budget), Tries(clock, [Closed("shut")]), clock)
    assert budget.balance == 10
    drive(Retry(base=0, budget=budget), Tries(clock, [*full(2), "value"]), clock)
    assert budget.balance == 8


@both_drivers
def test_nothing_of_a_failed_try_outlives_it(drive: Any) -> None:
    class Precious:
        pass

    kept: list[weakref.ref[Precious]] = []

    def attempt(timeout: float | None) -> str:
        if kept:
            assert kept[-1]() is None
        precious = Precious()
        kept.append(weakref.ref(precious))
        if len(kept) < 3:
            raise Overloaded("full")
        return "value"

    clock = QuickClock()
    assert drive(PLAIN, attempt, clock) == "value"
    assert len(kept) == 3
