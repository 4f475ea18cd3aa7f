"""Retry: delays, the budget, and the two drivers, on clocks that tests move."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import math
import os
import random
import signal
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import MONOTONIC, NS
from relay.errors import AcquireTimeout, Closed, Overloaded, RelayError, TooLarge
from relay.retry import RETRYABLE, Retry, run_with_retry, run_with_retry_async
from relay.retry_budget import RetryBudget
from relay.testing import FakeClock

pytest_plugins = ["both"]

Loops = Callable[[], asyncio.AbstractEventLoop]
JITTER = ["full", "equal", "none"]
PLAIN = Retry(jitter="none")


class QuickClock(FakeClock):
    """Whoever waits on it moves it on, so that nobody waits.

    Attributes:
        waits: The seconds of every wait.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self.waits: list[float] = []

    def park(self, gate: threading.Lock, until_ns: int | None) -> bool:
        assert gate.locked() and until_ns is not None
        self._pass(until_ns - self.now_ns())
        return False

    async def sleep_async(self, seconds: float) -> None:
        self._pass(round(seconds * NS))

    def _pass(self, wait_ns: int) -> None:
        self.waits.append(wait_ns / NS)
        self._now_ns += wait_ns


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


# Delays


@pytest.mark.parametrize("jitter", JITTER)
@pytest.mark.parametrize("factor", [1, 1.0, 1.0000001, 2, 2.0, 1e300])
@pytest.mark.parametrize("attempt", [0, 1, 10, 1023, 1024, 1025, 10**6, 10**18, 10**400])
def test_f1_delays_are_finite_and_at_most_the_cap(attempt: int, factor: float, jitter: Any) -> None:
    for base in (0, 5e-324, 0.05, 7.0, 1.7e308):
        for cap in (0, 5e-324, 1, 1.7e308):
            delay = Retry(base=base, factor=factor, cap=cap, jitter=jitter).delay(attempt)
            assert type(delay) is float and math.isfinite(delay) and 0 <= delay <= cap


numbers = st.floats(0, allow_infinity=False, allow_nan=False)


@given(
    base=numbers, cap=numbers, factor=st.floats(1, allow_infinity=False), jitter=st.sampled_from(JITTER),
    attempt=st.integers(0, 10**7), seed=st.integers(0, 99),
)  # fmt: skip
def test_f1_any_settings(base: float, cap: float, factor: float, jitter: Any, attempt: int, seed: int) -> None:
    retry = Retry(base=base, factor=factor, cap=cap, jitter=jitter)
    longest = dataclasses.replace(retry, jitter="none").delay(attempt)
    delay = retry.delay(attempt, random.Random(seed))
    assert {"full": 0, "equal": longest / 2, "none": longest}[jitter] <= delay <= longest <= cap
    assert longest <= dataclasses.replace(retry, jitter="none").delay(attempt + 1)


def test_delays_grow_by_the_factor_up_to_the_cap() -> None:
    retry = Retry(base=0.5, factor=2, cap=3.0, jitter="none")
    assert [retry.delay(i) for i in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert Retry(base=5.0, cap=1.0, jitter="none").delay(0) == 1.0
    assert Retry(base=0.25, factor=1, jitter="none").delay(10**400) == 0.25
    assert Retry(base=0, jitter="none").delay(10**400) == 0.0


@pytest.mark.parametrize(("jitter", "least"), [("full", 0.0), ("equal", 1.0)])
def test_jitter_is_spread_evenly(jitter: Any, least: float, rng: random.Random) -> None:
    retry, drawn, bins = Retry(base=2.0, cap=10.0, jitter=jitter), 20_000, 10
    counts = [0] * bins
    for _ in range(drawn):
        delay = retry.delay(0, rng)
        counts[min(int((delay - least) / (2.0 - least) * bins), bins - 1)] += 1
    sigma = math.sqrt(drawn * (1 / bins) * (1 - 1 / bins))
    assert all(abs(count - drawn / bins) < 6 * sigma for count in counts), counts


def test_jitter_is_repeatable_only_with_a_generator_of_ones_own() -> None:
    assert Retry().delay(3, random.Random(5)) == Retry().delay(3, random.Random(5))
    # Replicas of a service seed the module's generator alike, and must not come back together.
    state = random.getstate()
    delays = set()
    for _ in range(3):
        random.seed(5)
        delays.add(Retry().delay(3))
    assert len(delays) == 3
    random.setstate(state)


def test_no_delay_before_the_first_retry() -> None:
    with pytest.raises(ValueError, match="attempt must be at least 0, got -1"):
        Retry().delay(-1)


# Settings


def test_settings() -> None:
    retry = Retry()
    assert dataclasses.astuple(retry) == (3, 0.05, 2.0, 1.0, "full", None, None)
    assert retry == Retry() and hash(retry) == hash(Retry()) and retry != PLAIN
    with pytest.raises(dataclasses.FrozenInstanceError):
        retry.cap = 2.0  # type: ignore[misc]
    assert repr(retry).startswith("Retry(max_retries=3, base=0.05, factor=2.0")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_retries": -1}, "max_retries must be a whole number of at least 0, got -1"),
        ({"max_retries": 1.0}, "max_retries must be a whole number"),
        ({"max_retries": None}, "max_retries must be a whole number"),
        ({"base": -0.1}, "base must be a finite number of at least 0, got -0.1"),
        ({"base": float("nan")}, "base must be a finite number of at least 0, got nan"),
        ({"base": "1"}, "base must be a finite number of at least 0, got '1'"),
        ({"base": 10**400}, "base must be a finite number"),
        ({"factor": 0.99}, "factor must be a finite number of at least 1, got 0.99"),
        ({"factor": float("inf")}, "factor must be a finite number"),
        ({"factor": float("nan")}, "factor must be a finite number"),
        ({"cap": -1}, "cap must be a finite number of at least 0"),
        ({"cap": float("inf")}, "cap must be a finite number"),
        ({"cap": None}, "cap must be a finite number"),
        ({"jitter": "half"}, "jitter must be one of 'full', 'equal', 'none', got 'half'"),
        ({"jitter": None}, "jitter must be one of"),
        ({"total": -1}, "total must be None or a number of seconds of at least 0, got -1"),
        ({"total": float("nan")}, "total must be None or a number of seconds of at least 0, got nan"),
        ({"budget": 0.1}, "budget must be a relay.RetryBudget or None, got 0.1"),
    ],
)
def test_bad_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Retry(**settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ratio": -0.1}, "ratio must be a finite number of at least 0, got -0.1"),
        ({"ratio": float("nan")}, "ratio must be"),
        ({"min_per_second": float("inf")}, "min_per_second must be a finite number of at least 0, got inf"),
        ({"window": 0}, "window must be a finite number of at least 0.001, got 0"),
        ({"window": "10"}, "window must be"),
    ],
)
def test_bad_budgets(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RetryBudget(**settings)


# The budget


@pytest.mark.parametrize(("ratio", "firsts", "retries"), [(0.1, 10, 1), (0.1, 9, 0), (0.29, 100, 29), (2.0, 3, 6)])
def test_a_share_of_the_first_tries(ratio: float, firsts: int, retries: int) -> None:
    budget = RetryBudget(ratio, 0, clock=FakeClock())
    assert budget.balance == 0 and not budget.withdraw()
    for _ in range(firsts):
        budget.deposit()
    assert budget.balance == retries
    assert [budget.withdraw() for _ in range(retries + 3)] == [True] * retries + [False] * 3
    assert repr(budget) == f"RetryBudget(ratio={ratio:g}, min_per_second=0, window=10): 0 left"


def test_a_few_are_let_through_however_little_there_is_to_do() -> None:
    clock = FakeClock()
    budget = RetryBudget(0, 1.5, 2.0, clock=clock)
    for _ in range(3):
        assert [budget.withdraw() for _ in range(5)] == [True] * 3 + [False] * 2
        clock.advance(2.0)


def test_budgets_without_measure() -> None:
    budget = RetryBudget(1.7e308, 1.7e308, 1.7e308, clock=FakeClock())
    budget.deposit()
    assert budget.withdraw() and budget.balance == 10**15


def test_the_window_forgets() -> None:
    clock = FakeClock(0)
    budget = RetryBudget(1.0, 0, 10.0, clock=clock)
    budget.deposit()
    clock.advance(5.0)
    budget.deposit()
    assert budget.withdraw() and budget.balance == 1
    clock.advance(5.0)  # the first try is forgotten, and the one retry still counts
    assert budget.balance == 0 and not budget.withdraw()
    clock.advance(4.9)
    budget.deposit()
    assert budget.withdraw()
    clock.advance(1e9)
    assert budget.balance == 0
    for _ in range(5):
        budget.deposit()
    assert budget.balance == 5


@given(
    ratio=st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0]),
    least=st.sampled_from([0.0, 0.1, 0.5, 2.0]),
    events=st.lists(st.tuples(st.sampled_from("dddww"), st.floats(0, 3)), max_size=80),
)
def test_the_budget_against_a_list_of_all_that_happened(
    ratio: float, least: float, events: list[tuple[str, float]]
) -> None:
    clock, window = FakeClock(0), 2.0
    budget = RetryBudget(ratio, least, window, clock=clock)
    step_ns = int(window * NS) // 10
    firsts: list[int] = []
    retries: list[int] = []
    for kind, seconds in events:
        clock.advance(seconds if seconds > 1 else seconds / 10)
        tick = clock.now_ns() // step_ns
        tried = sum(tick - 10 < then for then in firsts)
        retried = sum(tick - 10 < then for then in retries)
        if kind == "d":
            budget.deposit()
            firsts.append(tick)
        else:
            allowed = budget.withdraw()
            assert allowed == (retried + 1 <= ratio * tried + least * window + 1e-9)
            retries += [tick] * allowed
    # Never more than the share of what was there, whatever window one looks at.
    for tick in retries:
        made = sum(tick - 10 < then <= tick for then in retries)
        assert made <= ratio * sum(tick - 20 < then <= tick for then in firsts) + least * window + 1e-9


def test_the_budget_is_never_exceeded_by_threads() -> None:
    budget = RetryBudget(0.1, 0, clock=FakeClock())
    barrier, granted = threading.Barrier(8), [0] * 8

    def hammer(mine: int) -> None:
        barrier.wait()
        for _ in range(500):
            budget.deposit()
            granted[mine] += budget.withdraw()
        barrier.wait()
        for _ in range(500):
            granted[mine] += budget.withdraw()

    threads = [threading.Thread(target=hammer, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 400


def test_a_late_reader_of_the_clock_does_not_empty_a_newer_slot() -> None:
    clock = FakeClock(0)
    budget = RetryBudget(1.0, 0, 10.0, clock=clock)
    clock.advance(11.5)
    budget.deposit()
    clock._now_ns -= 10 * NS  # as read by a thread that comes to the lock only now
    budget.deposit()
    clock._now_ns += 10 * NS
    assert budget.balance == 2


def test_a10_a_finaliser_may_use_the_budget_that_it_interrupts() -> None:
    budget = RetryBudget(1.0, 0, clock=FakeClock())

    class Last:
        pass

    last = Last()
    weakref.finalize(last, budget.deposit)
    with budget._lock:  # as when a collection starts in there
        del last
        gc.collect()
    assert budget.balance == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a11_a_forked_child_starts_with_an_empty_window() -> None:
    budget = RetryBudget(1.0, 0)
    for _ in range(5):
        budget.deposit()
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with budget._lock:
            held.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the runner's own would go on with the tests
        signal.alarm(10)
        os._exit(budget.balance + 10 * budget.withdraw())
    ended = os.waitpid(child, 0)[1]
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(ended) == 0
    assert budget.balance == 5


# Both drivers


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


# Waits


class Flaky:
    """Fails a number of times; threads or tasks may call it."""

    def __init__(self, failures: int) -> None:
        self.left = failures

    def __call__(self, timeout: float | None) -> str:
        self.left -= 1
        if self.left >= 0:
            raise Overloaded("full")
        return "value"

    async def coroutine(self, timeout: float | None) -> str:
        return self(timeout)


def waiting() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "relay-retry"]


def test_a_thread_parks_on_the_clock(lab: Any) -> None:
    clock, flaky = lab.clock(), Flaky(2)
    call = lab.call(run_with_retry, Retry(base=10.0, cap=10.0, factor=1, jitter="none"), flaky, clock)
    for left in (1, 0):
        lab.wait_until(lambda left=left: flaky.left == left)
        clock.wait_for_sleepers(1)
        clock.advance(9.0)
        assert flaky.left == left and call.thread.is_alive()
        clock.advance(1.0)
    assert call.result() == "value"


@pytest.mark.skipif(os.name != "posix", reason="sends itself a signal")
@pytest.mark.parametrize("clock", [FakeClock(), MONOTONIC])
def test_ctrl_c_ends_a_wait(clock: Any) -> None:
    parked = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def attempt(timeout: float | None) -> str:
        parked.set()
        raise Overloaded("full")

    def interrupt() -> None:
        parked.wait()
        signal.pthread_kill(main, signal.SIGINT)  # one that comes just before the wait ends the call just as well
        while not ended.wait(5):  # and one that is swallowed inside a collection does not
            signal.pthread_kill(main, signal.SIGINT)

    ended = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            try:
                run_with_retry(Retry(base=1000.0, cap=1000.0, jitter="none"), attempt, clock)
            finally:
                ended.set()
    finally:
        ended.set()
        thread.join()


def test_a_coroutine_waits_on_a_fake_clock_too(lab: Any, loops: Loops) -> None:
    clock, flaky = lab.clock(), Flaky(2)

    async def main() -> None:
        retry = Retry(base=10.0, cap=10.0, factor=1, jitter="none")
        task = asyncio.ensure_future(run_with_retry_async(retry, flaky.coroutine, clock))
        for left in (1, 0):
            while flaky.left != left:
                await asyncio.sleep(0)
            clock.wait_for_sleepers(1)
            clock.advance(9.0)
            assert flaky.left == left
            clock.advance(1.0)
        assert await task == "value"

    lab.run(loops, main())


@pytest.mark.parametrize("fake", [True, False])
def test_a_cancelled_wait_leaves_nothing(lab: Any, loops: Loops, fake: bool) -> None:
    flaky = Flaky(9)
    clock: Any = lab.clock() if fake else MONOTONIC

    async def main() -> None:
        retry = Retry(base=1000.0, cap=1000.0, jitter="none")
        task = asyncio.ensure_future(run_with_retry_async(retry, flaky.coroutine, clock))
        while flaky.left == 9:
            await asyncio.sleep(0)
        if fake:
            clock.wait_for_sleepers(1)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        lab.wait_until(lambda: not waiting())
        await asyncio.sleep(0)  # what the thread has left to the loop

    failures: list[object] = []
    lab.run(loops, main())
    assert flaky.left == 8 and failures == []


def test_a_cancelled_try_is_not_retried(lab: Any, loops: Loops) -> None:
    made = []

    async def attempt(timeout: float | None) -> None:
        made.append(timeout)
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        task = asyncio.ensure_future(run_with_retry_async(Retry(), attempt, lab.clock()))
        while not made:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    lab.run(loops, main())
    assert made == [None]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_may_close_while_a_coroutine_waits(lab: Any) -> None:
    clock, flaky = lab.clock(), Flaky(9)
    loop = asyncio.new_event_loop()
    task = loop.create_task(run_with_retry_async(Retry(base=10.0, cap=10.0), flaky.coroutine, clock))
    loop.run_until_complete(asyncio.sleep(0))
    clock.wait_for_sleepers(1)
    loop.close()
    clock.advance(10.0)
    lab.wait_until(lambda: not waiting())
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="closed"):
        task.get_coro().throw(RuntimeError("closed"))


def test_a_wait_on_a_loop_is_never_short(lab: Any, loops: Loops) -> None:
    async def main() -> None:
        for wait in (0.0002, 0.0014, 0.003, 0.0101):
            start_ns = MONOTONIC.now_ns()
            retry = Retry(1, wait, jitter="none")
            assert await run_with_retry_async(retry, Flaky(1).coroutine) == "value"
            assert MONOTONIC.now_ns() - start_ns >= wait * NS

    for _ in range(5):
        lab.run(loops, main())


def test_a_coroutine_that_does_not_wait_lets_others_run(lab: Any, loops: Loops) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        task = asyncio.ensure_future(other())
        await run_with_retry_async(Retry(20, base=0), Flaky(20).coroutine)
        task.cancel()

    lab.run(loops, main())
    assert turns >= 19


def test_waiting_on_a_running_loop_warns() -> None:
    async def main() -> object:
        return run_with_retry(PLAIN, Flaky(2), QuickClock())

    with pytest.warns(RuntimeWarning, match="waiting for the next try blocks the running event loop") as caught:
        assert asyncio.run(main()) == "value"
    assert len(caught) == 1


# With a pool


def test_a_token_on_the_second_try(lab: Any) -> None:
    clock = lab.clock()
    pool = lab.TokenPool(1, clock=clock)
    held = pool.acquire()
    retry = Retry(base=1.0, jitter="none")
    call = lab.call(run_with_retry, retry, lambda left: pool.acquire(0, timeout=left), clock, timeout=5.0)
    clock.wait_for_sleepers(1)
    assert pool.waiting == 1
    clock.advance(5.0)
    lab.wait_until(lambda: pool.snapshot().timed_out == 1)
    clock.wait_for_sleepers(1)
    held.release()  # nobody stands in line between two tries
    assert pool.free == 1
    clock.advance(1.0)
    call.result().release()
    lab.testing.assert_idle(pool)
    pool.close()


def test_a_pool_that_stays_busy_is_given_up(lab: Any) -> None:
    clock = lab.clock()
    pool = lab.TokenPool(1, clock=clock)
    held = pool.acquire()
    retry = Retry(base=1.0, factor=1, jitter="none", total=4.0)
    call = lab.call(run_with_retry, retry, lambda left: pool.acquire(0, timeout=left), clock, timeout=2.0)
    clock.wait_for_sleepers(1)
    clock.advance(2.0)
    lab.wait_until(lambda: pool.snapshot().timed_out == 1)
    clock.wait_for_sleepers(1)
    clock.advance(1.0)
    lab.wait_until(lambda: pool.waiting == 1)  # the second try, which gets what is left
    clock.wait_for_sleepers(1)
    clock.advance(1.0)
    with pytest.raises(AcquireTimeout, match="timeout=1.0 s") as caught:
        call.result()
    assert caught.value.__notes__[0].startswith("relay gave up after 2 tries in 4.000 s: the next would be 1.000 s")
    held.release()
    lab.testing.assert_idle(pool)
    pool.close()


def test_coroutines_retry_a_full_line(lab: Any, loops: Loops) -> None:
    clock = QuickClock()
    pool = lab.TokenPool(1, max_waiting=0)
    retry = Retry(max_retries=40, base=0.1, cap=0.1)
    order: list[int] = []

    async def one(i: int) -> None:
        token = await run_with_retry_async(
            retry, lambda left: pool.acquire_async(0, timeout=left), clock, sleep_async=sleep
        )
        with token:
            order.append(i)
            await asyncio.sleep(0)

    async def sleep(seconds: float) -> None:
        await clock.sleep_async(seconds)
        await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(one(i) for i in range(20)))

    lab.run(loops, main())
    assert sorted(order) == list(range(20)) and clock.waits
    assert pool.snapshot().refused == len(clock.waits)
    lab.testing.assert_idle(pool)
    pool.close()
