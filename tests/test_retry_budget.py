"""The budget that retries are taken from, on clocks that tests move."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any

import pytest
from fork_kit import held_elsewhere, in_child
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import NS
from relay.retry_budget import RetryBudget
from relay.testing import FakeClock


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

    def child() -> None:
        assert budget.balance == 0 and not budget.withdraw()

    with held_elsewhere(budget._lock):
        in_child(child)
    assert budget.balance == 5
