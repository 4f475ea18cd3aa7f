"""Every schedule of three actors around one pool with at most two preemptions, over both sides of the core.

On the pure side the schedules are searched; each order of core calls and steps between them that occurs there is
replayed natively, and what comes of it must be the same. A native call is not divisible, so a third or so of the orders
can be followed only in part: what must hold is looked at all the same. The scenarios say what that is.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator

import pytest
from both import package
from pool_forks import Really, in_place, of_coroutines, of_threads
from pool_scenarios import (
    ALL,
    grant_v_cancel,
    grant_v_cancel_async,
    grant_v_close,
    grant_v_close_async,
    grant_v_timeout,
    grant_v_timeout_async,
    nobody_slips_in,
    resize_v_acquire_v_release,
    resize_v_acquire_v_release_async,
    revoke_v_beat,
    revoke_v_beat_v_release,
    revoke_v_beat_v_release_async,
    ties_in_order,
    two_cancels_v_release,
    two_cancels_v_release_async,
    two_timeouts_async,
)  # fmt: skip
from pool_stage import Scenario, playing
from schedule import Run
from schedule_actors import crew
from schedule_search import Found, replay, search

ACTORS = 3
LONG = pytest.param(2, marks=pytest.mark.long)

sides = pytest.mark.parametrize("side", ["pure", "native"])
kinds = pytest.mark.parametrize("kind", ["threads", "coroutines"])
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of revoked tokens would be thousands of warnings."""
    log = logging.getLogger("relay")
    level = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(level)


@functools.cache
def searched(scenario: Scenario, bound: int) -> Found:
    found = search(playing(scenario, package("pure")), ACTORS, bound)
    print(
        f"{scenario.__name__}, {bound} preemptions: {found.runs} schedules to their end, {found.joined} into known "
        f"states, {len(found.scripts)} orders of events"
    )
    return found


def every_schedule(side: str, scenario: Scenario, bound: int = 2) -> None:
    """Search a scenario on the pure side, or replay natively what was found there."""
    found = searched(scenario, bound)
    assert found.runs > 20 * bound
    if side == "pure":
        return
    exact = 0
    for run, outcome in replay(playing(scenario, package("native")), ACTORS, found.scripts):
        if run.exact:
            exact += 1
            expected = found.scripts[tuple(run.events)]
            assert outcome == expected, run.tell(AssertionError(f"{outcome}, but {expected} on the pure side"))
    print(f"{scenario.__name__}, {bound} preemptions: {exact} of {len(found.scripts)} orders of events replayed")
    assert exact > len(found.scripts) // 2


# First the forks, while there is little memory to copy.


@kinds
def test_fork_v_lock(kind: str) -> None:
    scenario = of_threads(in_place) if kind == "threads" else of_coroutines(in_place)
    found = search(playing(scenario, package("pure"), inside=True), ACTORS)
    print(f"{scenario.__name__}: {found.runs} schedules to a fork, {found.joined} into known states")
    assert found.runs > 100


@needs_fork
@forks
@sides
@kinds
def test_true_forks_v_lock(side: str, kind: str) -> None:
    make = of_threads if kind == "threads" else of_coroutines
    fork = Really()
    first = fork if side == "pure" else Really(wanted=False)
    found = search(playing(make(first), package("pure"), inside=True), ACTORS, 1)
    if side == "native":
        for _ in replay(playing(make(fork), package("native")), ACTORS, found.scripts):
            pass
    print(f"{kind}: {len(fork.places)} true forks")
    assert len(fork.places) > 5


@sides
@kinds
def test_grant_v_cancel(side: str, kind: str) -> None:
    every_schedule(side, grant_v_cancel if kind == "threads" else grant_v_cancel_async)


@sides
def test_grant_v_timeout(side: str) -> None:
    every_schedule(side, grant_v_timeout)


@sides
@pytest.mark.parametrize("bound", [1, LONG])
def test_grant_v_timeout_of_coroutines(side: str, bound: int) -> None:
    every_schedule(side, grant_v_timeout_async, bound)


@sides
def test_two_timeouts(side: str) -> None:
    every_schedule(side, two_timeouts_async)


@sides
@kinds
def test_grant_v_close(side: str, kind: str) -> None:
    every_schedule(side, grant_v_close if kind == "threads" else grant_v_close_async)


@sides
@kinds
def test_resize_v_acquire_v_release(side: str, kind: str) -> None:
    every_schedule(side, resize_v_acquire_v_release if kind == "threads" else resize_v_acquire_v_release_async)


@sides
@kinds
@pytest.mark.parametrize("bound", [1, LONG])
def test_revoke_v_beat_v_release(side: str, kind: str, bound: int) -> None:
    every_schedule(side, revoke_v_beat_v_release if kind == "threads" else revoke_v_beat_v_release_async, bound)


@sides
@pytest.mark.parametrize("bound", [1, LONG])
def test_revoke_v_beat(side: str, bound: int) -> None:
    every_schedule(side, revoke_v_beat, bound)


@sides
@kinds
def test_two_cancels_v_release(side: str, kind: str) -> None:
    every_schedule(side, two_cancels_v_release if kind == "threads" else two_cancels_v_release_async)


@sides
def test_ties_in_order(side: str) -> None:
    every_schedule(side, ties_in_order)


@sides
def test_nobody_slips_in(side: str) -> None:
    every_schedule(side, nobody_slips_in)


@pytest.mark.parametrize("bound", [1, LONG])
def test_natively_at_every_look_at_the_clock(bound: int) -> None:
    """The clock may be Python code, in which threads are switched: all native schedules with steps there as well."""
    for scenario in ALL:
        found = search(playing(scenario, package("native"), clock=True), ACTORS, bound, all_orders=True)
        print(f"{scenario.__name__}, natively, {bound} preemptions: {found.runs} schedules")
        assert found.runs > 20 * bound


@pytest.mark.parametrize("scenario", [grant_v_cancel, grant_v_close_async])
def test_known_states_hide_nothing(scenario: Scenario) -> None:
    """Whatever happens in some order of all steps happens in one of those that are played."""
    every = search(playing(scenario, package("pure")), ACTORS, 1, all_orders=True)
    few = searched(scenario, 1)
    assert {str(outcome) for outcome in every.scripts.values()} == {str(outcome) for outcome in few.scripts.values()}
    assert few.scripts.keys() <= every.scripts.keys() and few.runs <= every.runs


def test_a_schedule_is_its_choices() -> None:
    """The same choices make the same events."""
    play = playing(grant_v_cancel, package("pure"))
    with crew(ACTORS) as workers:
        first = Run(workers, [2, 1, 1, 0, 1])
        outcome = play(first)
        again = Run(workers, first.choices)
        assert play(again) == outcome and again.events == first.events and again.choices == first.choices
