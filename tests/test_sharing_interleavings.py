"""A follower joins in the very moment of completion: every schedule of those who submit the same thing, with the end of
its run, cancels, deadlines, displacement, and an `invalidate`.

On both sides the schedules are searched, with a step before each use of what is shared; see `sharing_stage`. In all of
them each ticket ends exactly once, with an answer that it may have; no answer is lost or had by two; no key has two
runs under way at once; queue and answers are recounted, and nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from both import package
from schedule_search import search
from sharing_stage import DEADLINE_S, KEY, Scenario, SharingStage, playing

sides = pytest.mark.parametrize("side", ["pure", "native"])
LONG = pytest.mark.long
caches = pytest.mark.parametrize("cache_bytes", [0, 1 << 20], ids=["merging", "cache"])
some_caches = pytest.mark.parametrize(
    ("cache_bytes", "all_orders"),
    [(1 << 20, False), pytest.param(0, True, marks=LONG), pytest.param(1 << 20, True, marks=LONG)],
    ids=["cache", "merging-all-orders", "cache-all-orders"],
)
ways = pytest.mark.parametrize("short", [False, True], ids=["long", "short"])

LATE = "DeadlineExceeded"
CANCELLED = "RequestCancelled"


def every_schedule(
    side: str, scenario: Scenario, size: int, then: Callable[[SharingStage], None], bound: int = 2,
    all_orders: bool = False, **options: object
) -> set[object]:  # fmt: skip
    """Search a scenario, with at most so many preemptions. Returns all that came of it."""
    outcomes: set[object] = set()
    found = search(playing(scenario, package(side), then, outcomes, **options), size, bound, all_orders=all_orders)
    print(f"{found.runs} schedules to their end, {found.joined} into known states, {len(outcomes)} outcomes")
    assert found.runs > 3
    return outcomes


def all_counted(stage: SharingStage) -> None:
    """Everybody was a hit, a miss, or a join, and each miss was run."""
    told = stage.relay.snapshot().sharing
    assert told.hits + told.misses + told.joins == len(stage.asked), told
    assert told.misses == len(stage.epochs), f"{told}, and {len(stage.epochs)} runs"


def all_answered(stage: SharingStage) -> None:
    all_counted(stage)
    assert all(isinstance(ending, list) for ending in stage.endings.values()), stage.endings


def run_once(stage: SharingStage) -> None:
    """Who came while it was queued, ran, or was kept, has the answer of the one run."""
    all_answered(stage)
    if stage.desk.results is not None:
        assert len(stage.epochs) == 1, "it was run twice"


# With the end of the run.


@sides
@caches
@ways
def test_a_submitter_v_the_end(side: str, cache_bytes: int, short: bool) -> None:
    def scenario(stage: SharingStage) -> None:
        stage.submit("L")
        stage.actor("S", lambda: stage.submit("S", short=short))
        stage.actor("lane", stage.lane)

    for bound in (3, 99):  # the latter without those that only differ in the order of what is independent
        every_schedule(side, scenario, 2, run_once, bound, bound < 9, cache_bytes=cache_bytes)


@sides
@some_caches
def test_two_submitters_v_the_end(side: str, cache_bytes: int, all_orders: bool) -> None:
    def scenario(stage: SharingStage) -> None:
        stage.submit("L")
        stage.actor("S", lambda: stage.submit("S"))
        stage.actor("T", lambda: stage.submit("T"))
        stage.actor("lane", stage.lane)

    every_schedule(side, scenario, 3, run_once, all_orders=all_orders, cache_bytes=cache_bytes)


@sides
@some_caches
@ways
def test_two_at_once_and_the_end(side: str, cache_bytes: int, all_orders: bool, short: bool) -> None:
    """Nobody was there before: one of them leads, and the lane takes him as soon as he has a place."""

    def scenario(stage: SharingStage) -> None:
        stage.actor("S", lambda: stage.submit("S", short=short))
        stage.actor("T", lambda: stage.submit("T"))
        stage.actor("lane", stage.lane)

    every_schedule(side, scenario, 3, all_answered, all_orders=all_orders, cache_bytes=cache_bytes)


@sides
@some_caches
def test_an_answer_is_changed_by_the_first_who_has_it(side: str, cache_bytes: int, all_orders: bool) -> None:
    def scenario(stage: SharingStage) -> None:
        for name in ("L", "F"):
            stage.submit(name)
        stage.actor("reader", lambda: stage.spoil("L"))
        stage.actor("S", lambda: stage.submit("S"))
        stage.actor("lane", stage.lane)

    every_schedule(side, scenario, 3, run_once, all_orders=all_orders, cache_bytes=cache_bytes)


# With a cancel, a deadline, a displacement.


@sides
@some_caches
def test_a_submitter_v_a_cancel_of_the_leader_v_the_end(side: str, cache_bytes: int, all_orders: bool) -> None:
    def scenario(stage: SharingStage) -> None:
        stage.mixed = True  # one that nobody wants is not joined
        leader = stage.submit("L")
        stage.actor("S", lambda: stage.submit("S"))
        stage.actor("C", leader.cancel)
        stage.actor("lane", stage.lane)

    def then(stage: SharingStage) -> None:
        assert isinstance(stage.endings["S"], list) and stage.endings["L"] in ([KEY, 1], CANCELLED)

    assert len(every_schedule(side, scenario, 3, then, all_orders=all_orders, cache_bytes=cache_bytes)) > 1


@sides
@some_caches
def test_a_submitter_v_the_last_cancels(side: str, cache_bytes: int, all_orders: bool) -> None:
    def scenario(stage: SharingStage) -> None:
        stage.mixed = True
        leader, follower = stage.submit("L"), stage.submit("F")
        stage.actor("S", lambda: stage.submit("S"))
        stage.actor("C", leader.cancel)
        stage.actor("D", follower.cancel)

    def then(stage: SharingStage) -> None:
        assert isinstance(stage.endings["S"], list)
        assert stage.endings["L"] == stage.endings["F"] == CANCELLED and len(stage.epochs) == 1

    every_schedule(side, scenario, 3, then, all_orders=all_orders, cache_bytes=cache_bytes)


@sides
@some_caches
def test_who_joins_cancels_at_once(side: str, cache_bytes: int, all_orders: bool) -> None:
    def scenario(stage: SharingStage) -> None:
        stage.mixed = True
        follower = (stage.submit("L"), stage.submit("F"))[1]
        stage.actor("S", lambda: stage.submit("S").cancel())
        stage.actor("D", follower.cancel)
        stage.actor("lane", stage.lane)

    def then(stage: SharingStage) -> None:
        all_counted(stage)
        assert stage.endings["L"] == [KEY, 1]
        assert all(stage.endings[name] == CANCELLED or isinstance(stage.endings[name], list) for name in "FS")

    every_schedule(side, scenario, 3, then, all_orders=all_orders, cache_bytes=cache_bytes)


@sides
@some_caches
@pytest.mark.parametrize(
    ("leaders", "followers"), [(DEADLINE_S, None), (None, DEADLINE_S), (DEADLINE_S, DEADLINE_S)],
    ids=["leader", "follower", "both"],
)  # fmt: skip
def test_a_submitter_v_an_expiry_v_the_end(
    side: str, cache_bytes: int, all_orders: bool, leaders: float | None, followers: float | None
) -> None:
    def scenario(stage: SharingStage) -> None:
        stage.mixed = True
        stage.submit("L", deadline=leaders)
        stage.actor("S", lambda: stage.submit("S", deadline=followers))
        stage.actor("X", stage.expire)
        stage.actor("lane", stage.lane)

    def then(stage: SharingStage) -> None:
        for name, limit in (("L", leaders), ("S", followers)):
            assert isinstance(stage.endings[name], list) or (limit is not None and stage.endings[name] == LATE)

    every_schedule(side, scenario, 3, then, all_orders=all_orders, cache_bytes=cache_bytes)


@sides
@some_caches
def test_a_submitter_v_a_more_urgent_one_in_a_full_queue(side: str, cache_bytes: int, all_orders: bool) -> None:
    """Who is displaced has had no followers; who joins in that very moment is let in again, or is told."""

    def scenario(stage: SharingStage) -> None:
        stage.mixed = True
        stage.submit("L", priority=2)
        stage.actor("S", lambda: stage.submit("S"))
        stage.actor("U", lambda: stage.submit("U", item="other", priority=0))
        stage.actor("lane", stage.lane)

    def then(stage: SharingStage) -> None:
        for name in "LSU":
            assert isinstance(stage.endings[name], list) or stage.endings[name] in ("Overloaded", "refused"), name

    every_schedule(side, scenario, 3, then, all_orders=all_orders, cache_bytes=cache_bytes, max_queue=1)


# With an invalidate.


@sides
@some_caches
def test_a_submitter_v_an_invalidate_v_the_end(side: str, cache_bytes: int, all_orders: bool) -> None:
    """Who comes after it has nothing of what was asked before; and what was asked before is not kept."""

    def scenario(stage: SharingStage) -> None:
        stage.mixed = True
        stage.submit("L")
        over: list[bool] = []
        after: list[bool] = []

        def submit() -> None:
            after.append(bool(over))
            stage.submit("S")

        def invalidate() -> None:
            stage.relay.invalidate()
            over.append(True)

        stage.after = after
        stage.actor("S", submit)
        stage.actor("I", invalidate)
        stage.actor("lane", stage.lane)

    def then(stage: SharingStage) -> None:
        all_answered(stage)
        if stage.after[0]:
            assert stage.endings["L"] != stage.endings["S"], "an answer of the time before"
        assert stage.desk.epoch == 1
        late = stage.submit("late")
        stage.lane()
        assert stage.epochs[late._value[1]] == 1, "what is from before it is kept"

    outcomes = every_schedule(side, scenario, 3, then, all_orders=all_orders, cache_bytes=cache_bytes)
    assert len(outcomes) > 1


@sides
@pytest.mark.long
def test_a_submitter_v_everything(side: str) -> None:
    def scenario(stage: SharingStage) -> None:
        stage.mixed = True
        leader = stage.submit("L", deadline=DEADLINE_S)
        stage.submit("F")
        stage.actor("S", lambda: stage.submit("S", deadline=DEADLINE_S))
        stage.actor("C", leader.cancel)
        stage.actor("I", stage.relay.invalidate)
        stage.actor("X", stage.expire)
        stage.actor("lane", stage.lane)

    def then(stage: SharingStage) -> None:
        assert isinstance(stage.endings["F"], list)

    every_schedule(side, scenario, 5, then, cache_bytes=1 << 20)
