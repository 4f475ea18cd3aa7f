"""RequestQueue: from admission to the end of the run; order, groups, costs, deadlines, merging, promises, parking; and
the two sides cannot be told apart."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import numpy as np
import pytest
from conftest import Core
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from relay.errors import StaleToken

FULL, NO_BLOCKS = -1, -2
STALE, FREED, DEFERRED, BUSY_DROP = 0, 1, 2, 3
NEVER = 2**63 - 1
NOTHING: Any = ([], [], [], 0, 0, 0)


def test_comes_from_its_side(core: Core) -> None:
    queue = core.queue.RequestQueue(1)
    assert type(queue).__module__ == core.queue.__name__ == f"{core.package}.queue"
    assert type(queue.arena).__module__ == f"{core.package}.arena"
    suffixes = {"pure": (".py",), "native": tuple(EXTENSION_SUFFIXES)}[core.side]
    assert str(core.queue.__file__).endswith(suffixes)


@pytest.fixture
def make(core: Core) -> Callable[..., Any]:
    return lambda *args, **kwargs: core.watch(core.queue.RequestQueue(*args, **kwargs))


def test_from_admission_to_the_end(make: Callable[..., Any], core: Core) -> None:
    queue = make(2)
    late, soon = queue.admit("late", 5, 100), queue.admit("soon", 3, 101)
    assert queue.admit("third", 0, 102) == FULL
    assert (len(queue), queue.queued, queue.free, queue.capacity) == (2, 2, 0, 2)
    assert queue.owner(late) == "late" and sorted(queue.owners()) == ["late", "soon"]
    assert queue.take(1, 0, 200) == ([soon], ["soon"], [], core.queue.CLOSED_SIZE, 1, 1)
    assert (len(queue), queue.queued, queue.free) == (2, 1, 0)
    facts = queue.arena.facts(soon)
    assert (facts["arrival_ns"], facts["commit_ns"], facts["key"]) == (101, 200, 3)
    assert queue.cancel(soon) == BUSY_DROP and queue.cancel(late) == FREED and queue.cancel(late) == STALE
    queue.finish([soon])
    with pytest.raises(StaleToken, match=f"handle {soon} is stale"):
        queue.finish([soon])
    assert len(queue) == 0 and queue.owner(soon) is None and queue.owners() == [] and queue.free == 2


def test_order_is_key_then_arrival_and_owners_are_never_compared(make: Callable[..., Any]) -> None:
    class Touchy:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("owners are not to be compared")

        __lt__ = __gt__ = __le__ = __ge__ = __ne__ = __eq__  # type: ignore[assignment]
        __hash__ = None  # type: ignore[assignment]

    queue = make(1_000)
    owners: list[Any] = [[{}, np.zeros(2), Touchy()][i % 3] for i in range(1_000)]
    handles = [queue.admit(owner, i % 2, 0) for i, owner in enumerate(owners)]
    taken, back = queue.take(1_000, 0, 0)[:2]
    assert taken == handles[::2] + handles[1::2]
    assert all(one is other for one, other in zip(back, owners[::2] + owners[1::2], strict=True))
    queue.finish(taken)


def test_pinned_until_ready(make: Callable[..., Any]) -> None:
    queue = make(4, 320, 128)
    handle = queue.admit("a", 1, 0, ids=100)
    assert queue.arena.free_blocks == 6 and queue.queued == 0 and queue.take(8, 0, 0) == NOTHING
    assert queue.write(handle, list(range(40)), 8) and queue.arena.free_blocks == 8
    assert queue.ready(handle, 77) and queue.queued == 1
    assert not queue.ready(handle, 78), "it is ready already"
    assert queue.arena.facts(handle)["ready_ns"] == 77 and queue.lengths([handle, handle]) == [40, 40]
    assert queue.arena.facts(handle)["cost"] == 40
    with pytest.raises(ValueError, match="is not pinned"):
        queue.write(handle, [1])
    assert queue.take(1, 0, 80)[0] == [handle]
    assert not queue.ready(handle, 79) and queue.queued == 0, "what runs does not go back into the line"
    empty = queue.admit("b", 1, 0, ids=0)
    assert queue.write(empty, []) and queue.arena.facts(empty)["cost"] == 1, "nothing counts for less than one"
    queue.finish([handle])
    for ended in (handle, -1, 0, 3 << 22 | 9, NEVER):
        assert not queue.write(ended, [1]) and not queue.ready(ended, 0) and queue.owner(ended) is None
        with pytest.raises(StaleToken, match="is stale"):
            queue.lengths([empty, ended])


def test_room_for_ids(make: Callable[..., Any]) -> None:
    queue = make(4, 96, 64)
    first = queue.admit("a", 0, 0, ids=999)  # an estimate: no more than a row may hold
    assert queue.admit("b", 0, 0, ids=33) == NO_BLOCKS and len(queue) == 1
    second = queue.admit("b", 0, 0, ids=32)
    assert not queue.write(second, list(range(33))), "no block is left"
    assert queue.cancel(first) == DEFERRED and not queue.ready(first, 0)
    assert queue.write(second, list(range(33))) and queue.ready(second, 0)
    assert queue.admit_all(["c", "d"], 0, 0, ids=[32, 1]) is None and len(queue) == 1


def test_dropped_while_pinned(make: Callable[..., Any]) -> None:
    queue = make(1, 64, 64)
    handle = queue.admit("a", 0, 0, 50, ids=10)
    assert queue.bind(7, handle) and queue.next_ns() == 50
    assert queue.cancel(handle) == DEFERRED and queue.cancel(handle) == STALE
    assert queue.next_ns() is None and queue.find(7) == (-1, None) and queue.due(60) == []
    assert not queue.bind(7, handle), "nobody joins what is cancelled"
    assert not queue.write(handle, [1]) and not queue.lift(handle, -5) and not queue.set_deadline(handle, 9, 9)
    assert queue.admit("b", 0, 0) == FULL and queue.owner(handle) == "a"
    assert not queue.ready(handle, 0) and queue.owner(handle) is None and len(queue) == 0
    assert queue.admit("b", 0, 0) >= 0


def test_groups_are_passed_over_and_keep_their_place(make: Callable[..., Any]) -> None:
    queue = make(8)
    handles = [queue.admit(i, 0, 0, group=group) for i, group in enumerate([1, 2, 1, 3, 2, 1])]
    assert queue.take(2, 0, 0)[1] == [0, 2]
    assert queue.take(9, 0, 0)[1] == [1, 4], "the first in line is served next"
    assert queue.take(9, 0, 0)[1] == [3] and queue.take(9, 0, 0)[1] == [5]
    queue.finish(handles)


def test_looks_past_so_many_and_no_more(make: Callable[..., Any], core: Core) -> None:
    past = core.queue.LOOK_PAST
    queue = make(past + 3)
    queue.admit("first", 0, 0, group=1)
    others = [queue.admit(i, 1, 0, group=2) for i in range(past)]
    queue.admit("behind", 2, 0, group=1)
    assert queue.take(5, 0, 0)[1] == ["first"] and queue.queued == past + 1
    assert queue.take(past, 0, 0)[0] == others and queue.take(5, 0, 0)[1] == ["behind"]


def test_a_batch_ends_before_the_first_that_does_not_fit(make: Callable[..., Any]) -> None:
    queue = make(8)
    for cost in (4, 3, 6, 1, 900):
        queue.admit(cost, 0, 0, cost=cost)
    assert queue.take(8, 12, 0)[1] == [4, 3], "three of 6 would be 18"
    assert queue.take(8, 12, 0)[1] == [6, 1]
    assert queue.take(8, 12, 0)[1] == [900], "the first always fits"
    assert queue.take(0, 0, 0) == NOTHING == queue.take(-1, 0, 0)


def test_late_ones_are_dropped_not_run(make: Callable[..., Any]) -> None:
    queue = make(4)
    kept, late = queue.admit("kept", 1, 0, 101), queue.admit("late", 0, 0, 100)
    assert queue.take(1, 0, 100)[:3] == ([kept], ["kept"], ["late"])
    assert queue.owner(late) is None and queue.next_ns() is None and len(queue) == 1


def test_timers(make: Callable[..., Any]) -> None:
    queue = make(4, 64)
    first, second = queue.admit("a", 0, 0, 50), queue.admit("b", 0, 0, 40, ids=3)
    assert queue.next_ns() == 40 and queue.due(39) == []
    assert queue.due(50) == [(second, "b"), (first, "a")] and queue.due(99) == [] and queue.next_ns() is None
    assert queue.set_deadline(first, 60, 55) and queue.next_ns() == 55 and queue.due(55) == [(first, "a")]
    assert queue.set_deadline(first, 60, 58) and queue.set_deadline(first, -1) and queue.next_ns() is None
    assert queue.set_deadline(second, NEVER, NEVER) and queue.next_ns() == NEVER
    assert queue.ready(second, 0) and queue.due(NEVER) == [(second, "b")]
    taken, _, late = queue.take(4, 0, 10**6)[:3]
    assert len(taken) == 2 and not late, "the deadline was taken away"
    assert not queue.set_deadline(first, 1, 1) and queue.next_ns() is None
    queue.finish(taken)


def test_lift(make: Callable[..., Any]) -> None:
    queue = make(4, 64)
    first, second, third = queue.admit("a", 5, 0), queue.admit("b", 3, 0), queue.admit("c", 9, 0, ids=1)
    assert queue.lift(first, 3) and not queue.lift(first, 3) and not queue.lift(first, 4)
    assert queue.lift(third, -1) and queue.ready(third, 0), "a key may be lifted before the row is ready"
    assert queue.take(4, 0, 0)[1] == ["c", "a", "b"], "it came before its new equals"
    assert not queue.lift(second, -9)
    queue.finish([first, second, third])
    assert not queue.lift(first, -9)


def test_merging(make: Callable[..., Any]) -> None:
    queue = make(2)
    digest = queue.digest("text" * 50)
    assert digest == queue.digest("text" * 50) != queue.digest(b"text" * 50) and 0 <= digest < 2**128
    leader, other = queue.admit("leader", 0, 0), queue.admit("other", 0, 0)
    assert queue.find(digest) == (-1, None) and queue.bind(digest, leader)
    assert queue.find(digest) == (leader, "leader") and not queue.bind(digest, other)
    queue.take(1, 0, 0)
    assert queue.find(digest) == (leader, "leader"), "a run can be joined"
    queue.finish([leader])
    assert queue.find(digest) == (-1, None) and not queue.unbind(leader) and not queue.bind(digest, leader)
    assert queue.bind(digest, other) and queue.unbind(other) and not queue.unbind(other)
    assert not queue.bind(digest, other), "whoever closed it may be ending it"
    assert queue.cancel(other) == FREED and queue.find(digest) == (-1, None)
    late = queue.admit("late", 0, 0)
    assert not queue.unbind(late) and not queue.bind(digest, late) and queue.find(digest) == (-1, None)
    assert queue.cancel(late) == FREED
    again = [queue.admit("again", 0, 0), queue.admit("again", 0, 0)]
    assert [queue.bind(queue.digest(str(handle)), handle) for handle in again] == [True, True], "new leases are open"


def test_all_or_none(make: Callable[..., Any]) -> None:
    queue = make(3, 96, 64)
    assert queue.admit_all([], 0, 0) == []
    assert queue.admit_all("abcd", 0, 0) is None and len(queue) == 0
    a, b = queue.admit_all("ab", 7, 3, 90, [5, 6], (1, 2), [64, 32])
    assert queue.arena.facts(a)["group"] == 1
    facts = queue.arena.facts(b)
    assert [facts[name] for name in ("key", "arrival_ns", "deadline_ns", "cost", "group")] == [7, 3, 90, 6, 2]
    assert queue.owner(a) == "a" and queue.queued == 0 and queue.arena.free_blocks == 0
    assert queue.promise() is False, "no room for the longest row"
    for handle in (a, b):
        queue.cancel(handle)
        queue.ready(handle, 0)
    bad: list[tuple[type[Exception], tuple[Any, ...]]] = [
        (TypeError, ("ab", 0, 0, -1, [1, "2"])), (OverflowError, ("ab", 0, 0, -1, [1, 2**31])),
        (TypeError, ("ab", 0, 0, -1, None, 0, [1, None])), (ValueError, ("ab", 0, 0, -1, [1])),
        (ValueError, ("ab", 0, 0, -1, None, 0, [1, 2, 3])),
        (ValueError, ("ab", 0, 0, -1, None, [1])), (TypeError, ("ab", 0, 0, -1, None, [1, "2"])),
        (ValueError, ("ab", 0, 0, -1, None, 0, None, 256)), (OverflowError, ("ab", 0, 0, -1, None, 0, None, 0, 2**63)),
    ]  # fmt: skip
    for kind, arguments in bad:
        with pytest.raises(kind):
            queue.admit_all(*arguments)
        assert len(queue) == 0, "none of them got in"


def test_promises(make: Callable[..., Any]) -> None:
    queue = make(2)
    assert queue.promise() and queue.free == 1
    first = queue.admit("a", 0, 0)
    assert queue.admit("b", 0, 0) == FULL and not queue.promise() and queue.admit_all("b", 0, 0) is None
    second = queue.admit("c", 0, 0, claim=True)
    assert second >= 0 and queue.free == 0
    queue.cancel(first)
    assert queue.promise()
    queue.forgo()
    assert queue.admit("d", 0, 0) >= 0
    queue.cancel(second)
    for call in (queue.forgo, lambda: queue.admit("e", 0, 0, claim=True)):
        with pytest.raises(ValueError, match="no place is promised"):
            call()
    assert len(queue) == 1 and queue.free == 1


def test_parking(make: Callable[..., Any]) -> None:
    woken: list[int] = []
    queue = make(8, 64, 64, woken.append)
    assert queue.park(3) and queue.park(1) and queue.unpark() == 1 and queue.park(5)
    handle = queue.admit("a", 0, 0, ids=1)
    assert not woken
    assert queue.ready(handle, 0) and woken == [3]
    queue.admit("b", 0, 0, ids=1)
    assert woken == [3], "nothing has become ready"
    queue.admit("c", 0, 0)
    assert woken == [3, 5]
    queue.admit("d", 0, 0)
    assert woken == [3, 5] and not queue.park() and queue.unpark() == -1, "all are awake"
    queue.take(8, 0, 0)
    assert queue.park()
    queue.admit_all("ef", 0, 0, ids=[1, 1])
    assert woken == [3, 5]
    queue.admit_all("gh", 0, 0)
    assert woken == [3, 5, 0] and queue.unpark() == -1


def test_a_lane_waits_for_as_many_as_it_says(make: Callable[..., Any]) -> None:
    woken: list[int] = []
    queue = make(9, 0, 0, woken.append)
    queue.admit("a", 0, 0)
    assert not queue.park(0, 1) and not queue.park(0, 0), "so many are ready"
    assert queue.park(0, 3) and queue.park(63, 2) and queue.park(7, 2)
    queue.admit("b", 0, 0)
    assert woken == [7], "the lowest of those that wait for no more than there are"
    assert queue.unpark(7) == -1 and queue.unpark(63) == 63 and queue.unpark(63) == -1, "only one may wake it"
    queue.admit("c", 0, 0)
    assert woken == [7, 0]
    assert queue.park(0, 9) and queue.park(0, 5) and queue.park(1, 4), "it waits for what it said last"
    queue.admit_all("defg", 0, 0)
    assert woken == [7, 0, 0, 1] and queue.unpark() == -1, "as many lanes as requests"
    for call in (lambda: queue.park(64), lambda: queue.park(-1), lambda: queue.unpark(-2)):
        with pytest.raises(ValueError, match="lane .* is outside"):
            call()


def test_a_finaliser_cancels_in_the_middle_of_a_call(core: Core) -> None:
    class Leak:
        def __init__(self, handle: int) -> None:
            self.handle = handle
            self.me = self

        def __del__(self) -> None:
            queue.cancel(self.handle)

    queue = core.watch(core.queue.RequestQueue(16, overdue_every=3))
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for i in range(2_000):
            handle = queue.admit(object(), i % 5, i, i + 3, 1 + i % 4, i % 2, level=i % 3, due_ns=i + 1)
            if handle >= 0 and i % 3:
                Leak(handle)
            for due, _ in queue.due(i - 20):
                queue.cancel(due)
            queue.finish(queue.take(i % 3, 0, i, (1.0, 1.0, 1.0, 0.0), 8)[0])
            queue.displace(i % 3)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()


def test_one_that_takes_over_refuses_the_handles_of_the_old_one(make: Callable[..., Any]) -> None:
    old = make(3)
    assert old.next_generation == 2
    handles = []
    for i in range(5):
        handles.append(old.admit("old", 0, i))
        old.finish(old.take(1, 0, i)[0])
    handles += [old.admit("old", 0, 9) for _ in range(3)]
    assert old.next_generation == max(handle >> 22 for handle in handles) + 1 == 7
    new = make(3, generation=old.next_generation)
    admitted = [new.admit(f"new {i}", 0, i) for i in range(3)]
    assert [handle >> 22 for handle in admitted] == [7] * 3 and new.next_generation == 8
    for handle in handles:
        assert new.owner(handle) is None and new.cancel(handle) == STALE
        assert not new.lift(handle, -1) and not new.ready(handle, 0) and not new.bind(1, handle)
        with pytest.raises(StaleToken):
            new.finish([handle])
    assert new.take(3, 0, 9)[1] == ["new 0", "new 1", "new 2"]
    new.finish(admitted)
    assert make(1, generation=2**41 - 1).next_generation == 1
    for wrong in (0, 2**41):
        with pytest.raises(ValueError, match=f"generation {wrong} is outside 1..{2**41 - 1}"):
            make(1, generation=wrong)


def test_owners_are_let_go(core: Core) -> None:
    queue = core.queue.RequestQueue(4, 64, 64)
    owner = object()
    before = sys.getrefcount(owner)
    cancelled, taken = queue.admit(owner, 1, 0), queue.admit(owner, 0, 0)
    pinned, expired = queue.admit(owner, 0, 0, ids=1), queue.admit(owner, 0, 0, 1)
    queue.cancel(cancelled)
    queue.cancel(pinned)
    queue.ready(pinned, 0)
    assert queue.take(4, 0, 5)[0] == [taken] and queue.owner(expired) is None
    queue.finish([taken])
    assert sys.getrefcount(owner) == before and len(queue) == 0


def test_churn_allocates_nothing_that_stays() -> None:
    queue = Core("native").queue.RequestQueue(64, 64 * 32, 32)
    owner, ids = object(), [1, 2, 3]
    admit, write, ready, take, finish = queue.admit, queue.write, queue.ready, queue.take, queue.finish

    def turn() -> None:
        handle = admit(owner, 5, 1, 10**9, 1, 0, 3)
        write(handle, ids)
        ready(handle, 2)
        finish(take(1, 0, 3)[0])

    turn()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(50_000):
        turn()
    assert abs(sys.getallocatedblocks() - before) <= 50, "free lists may come and go, one block a turn may not"
    queue.check()


ODD: list[Any] = [1.0, None, "1", 2**31, 2**63, -(2**63) - 1, -1, True, NEVER, 0, 2**128]


LINES = st.one_of(
    st.none(), st.sampled_from([(0.0, 0.0, 0.0, 0.0), (4.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0)]),
    st.tuples(*[st.floats(0.0, 3.0)] * 4),
)  # fmt: skip


class Twins(RuleBasedStateMachine):
    """Both sides take every step; whatever one of them answers, or refuses, the other must too."""

    @initialize(
        capacity=st.sampled_from([1, 2, 6, 40]), blocks=st.sampled_from([0, 3, 12]), every=st.sampled_from([0, 1, 3, 8])
    )
    def make(self, capacity: int, blocks: int, every: int) -> None:
        self.woken: list[list[int]] = [[], []]
        self.twins: list[Any] = []
        for side, name in enumerate(("pure", "native")):
            wake = [self.wake_first, self.wake_second][side]
            queue = Core(name).queue
            self.twins.append(queue.RequestQueue(capacity, blocks * 32, min(blocks * 32, 64), wake, 1, every))
        self.handles: list[int] = [1 << 22 | capacity, -1]
        self.rows: dict[int, list[int]] = {}
        self.serial = 0
        self.now = 100
        self.promised = 0

    def wake_first(self, lane: int) -> None:
        self.woken[0].append(lane)

    def wake_second(self, lane: int) -> None:
        self.woken[1].append(lane)

    def both(self, method: str, *arguments: object) -> Any:
        answers: list[tuple[object, Any]] = []
        for twin in self.twins:
            try:
                answers.append(("returned", getattr(twin, method)(*arguments)))
            except Exception as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1], (method, arguments)
        assert type(answers[0][1]) is type(answers[1][1])
        return answers[0][1] if answers[0][0] == "returned" else None

    def some(self, which: int) -> int:
        return self.handles[-1 - which % len(self.handles)]

    def owner(self) -> str:
        self.serial += 1
        return f"owner {self.serial}"

    def entered(self, handles: Any) -> None:
        for handle in [handles] if isinstance(handles, int) else handles or []:
            if handle >= 0:
                assert handle not in self.handles, "a handle is given once"
                self.handles.append(handle)

    @rule(
        key=st.integers(-2, 2), deadline=st.sampled_from([-1, 5, 20]), cost=st.integers(1, 4), group=st.integers(0, 1),
        ids=st.sampled_from([-1, -1, 0, 1, 32, 33, 999]), claim=st.booleans(), level=st.sampled_from([0, 1, 2, 2, 255]),
        due=st.sampled_from([-1, 0, 2, 8]),
    )  # fmt: skip
    def admit(
        self, key: int, deadline: int, cost: int, group: int, ids: int, claim: bool, level: int, due: int
    ) -> None:
        by, late = (self.now + ns if ns >= 0 else -1 for ns in (deadline, due))
        self.entered(self.both("admit", self.owner(), key, self.now, by, cost, group, ids, claim, level, late))

    @rule(sizes=st.lists(st.integers(1, 30), max_size=30), level=st.integers(0, 2), due=st.integers(-1, 9))
    def admit_many(self, sizes: list[int], level: int, due: int) -> None:
        groups = [int(size % 7 == 0) for size in sizes]
        late = self.now + due if due >= 0 else -1
        owners = [self.owner() for _ in sizes]
        self.entered(self.both("admit_all", owners, level, self.now, -1, sizes, groups, None, level, late))

    @rule(
        n=st.integers(0, 3), key=st.integers(-2, 2), ids=st.sampled_from([None, 1, 40, -1]),
        costs=st.sampled_from([None, 2, "2"]), extra=st.sampled_from([0, 0, 0, 1]),
    )  # fmt: skip
    def admit_all(self, n: int, key: int, ids: int | None, costs: Any, extra: int) -> None:
        owners = [self.owner() for _ in range(n)]
        reserve = None if ids is None else [ids] * (n + extra)
        sizes = None if costs is None else [costs] * n
        self.entered(self.both("admit_all", owners, key, self.now, self.now + 9, sizes, 1, reserve))

    @rule(which=st.integers(0, 40), n=st.sampled_from([0, 1, 31, 33, 64, 65]), split=st.sampled_from([-2, -1, 0, 2]))
    def write(self, which: int, n: int, split: int) -> None:
        handle = self.some(which)
        ids = [handle & 0xFFFF ^ i for i in range(n)]
        if self.both("write", handle, ids, split):
            self.rows[handle] = ids

    @rule(which=st.integers(0, 40), name=st.sampled_from(["cancel", "unbind", "owner", "cancel"]))
    def verb(self, which: int, name: str) -> None:
        self.both(name, self.some(which))

    @rule(which=st.integers(0, 40), later=st.integers(0, 3))
    def ready(self, which: int, later: int) -> None:
        self.both("ready", self.some(which), self.now + later)

    @rule(
        which=st.integers(0, 40),
        key=st.integers(-3, 2),
        level=st.integers(-1, 2),
        due=st.sampled_from([-1, 0, 99, 120]),
    )
    def lift(self, which: int, key: int, level: int, due: int) -> None:
        self.both("lift", self.some(which), key, level, due)

    @rule(which=st.integers(0, 40), level=st.integers(0, 3))
    def displace(self, which: int, level: int) -> None:
        if which % 2:
            self.both("share", self.some(which))
        else:
            self.both("displace", level)

    @rule(lane=st.sampled_from([0, 1, 5, 63]), at_least=st.integers(0, 4))
    def park(self, lane: int, at_least: int) -> None:
        self.both("park", lane, at_least)
        self.both("unpark", lane - 2 if lane % 2 else -1)

    @rule(which=st.integers(0, 40), name=st.sampled_from(["lift", "set_deadline"]), value=st.integers(-3, 130))
    def change(self, which: int, name: str, value: int) -> None:
        self.both(name, self.some(which), value, *([value - 5] if name == "set_deadline" and value % 2 else []))

    @rule(
        most=st.sampled_from([-1, 0, 1, 2, 3, 5, 16]), cost=st.sampled_from([0, 0, 4, 8, 90, -1]), line=LINES,
        step=st.sampled_from([0, 0, 5, 30, -1]), look=st.sampled_from([256, 256, 3, 0, -1]), finish=st.booleans(),
        places=st.sampled_from([(), (), ((1, 2),), ((2, 1), (1, 3)), ((0, 0),)]),
    )  # fmt: skip
    def take(self, most: int, cost: int, line: Any, step: int, look: int, finish: bool, places: Any) -> None:
        taken = self.both("take", most, cost, self.now, line, step, look, places, finish)
        assert len(taken[0]) == len(taken[1]) <= max(most, 0)
        shape = (len(taken[0]), 64)
        if taken[0] and self.twins[0].arena.max_length:
            buffers = [[np.full(shape, -1, np.int32), np.full(shape, -1, np.int32)] for _ in self.twins]
            for side, twin, (ids, mask) in zip(("pure", "native"), self.twins, buffers, strict=True):
                Core(side).batch.gather(twin.arena, taken[0], ids, mask)
            assert (buffers[0][0] == buffers[1][0]).all() and (buffers[0][1] == buffers[1][1]).all()
            for row, mask, handle in zip(*buffers[0], taken[0], strict=True):
                assert row[mask == 1].tolist() == self.rows.get(handle, [])

    @rule(which=st.lists(st.integers(0, 40), max_size=3))
    def finish(self, which: list[int]) -> None:
        self.both("finish", [self.some(one) for one in which])

    @rule(by=st.integers(0, 8))
    def due(self, by: int) -> None:
        self.now += by
        for handle, _ in self.both("due", self.now):
            if by % 2:
                self.both("cancel", handle)

    @rule(which=st.integers(0, 40), digest=st.integers(0, 3))
    def merge(self, which: int, digest: int) -> None:
        self.both("find", digest)
        self.both("bind", digest, self.some(which))
        self.both("find", digest)

    @rule(name=st.sampled_from(["promise", "forgo", "park", "unpark", "next_ns", "owners", "oldest_ready_ns"]))
    def plain(self, name: str) -> None:
        self.both(name)

    @rule(value=st.sampled_from(ODD), which=st.integers(0, 9), at=st.integers(0, 6))
    def refused(self, value: Any, which: int, at: int) -> None:
        arguments: list[Any] = ["owner", 0, self.now, -1, 1, 0, -1]
        if at:
            arguments[at] = value
            self.entered(self.both("admit", *arguments))
            arguments = [["owner"], 0, self.now, -1, [1], 0, [1]]
            arguments[at] = [value] if at in (4, 6) else value
            self.entered(self.both("admit_all", *arguments))
        for name in ("cancel", "owner", "unbind", "lengths", "finish"):
            self.both(name, [value] if name in ("lengths", "finish") else value)
        handle = self.some(which)
        self.both("ready", value, 1)
        self.both("ready", handle, value)
        self.both("write", value, [1])
        self.both("write", handle, [value])
        self.rows[handle] = self.twins[0].arena.ids(handle) if self.twins[0].arena.live(handle) else []
        for name in ("lift", "set_deadline", "bind"):
            self.both(name, handle, value)
            self.both(name, value, handle)
        self.both("set_deadline", handle, 1, value)
        self.both("find", value)
        arguments = [2, 0, self.now, None, 0, 256]
        arguments[at % 6] = value if value is not True else 3
        if at % 6 != 3:
            self.both("take", *arguments)
        self.both("take", 2, 0, self.now, (1.0, value, 0.0, 0.0))
        self.both("take", 2, 0, self.now, None, 0, 256, ((1, value),))
        self.both("take", 2, 0, self.now, None, 0, 256, ((value, 1),))
        for name in ("ahead", "displace", "park", "unpark", "share"):
            self.both(name, value)
        self.both("lift", handle, 0, value, 1)
        self.both("lift", handle, 0, 1, value)
        self.entered(self.both("admit", "owner", 0, self.now, -1, 1, 0, -1, False, value))
        self.entered(self.both("admit", "owner", 0, self.now, -1, 1, 0, -1, False, 1, value))
        self.both("park", 0, value)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "twins"):
            return
        self.both("check")
        for name in ("free", "queued", "capacity"):
            assert len({getattr(twin, name) for twin in self.twins}) == 1, name
        assert self.both("__len__") == sum(self.twins[0].arena.live(handle) for handle in self.handles)
        assert self.woken[0] == self.woken[1]
        for name in ("owners", "next_ns", "head_level", "oldest_ready_ns"):
            self.both(name)
        ahead = [self.both("ahead", level) for level in (0, 1, 2, 254, 255)]
        assert ahead == sorted(ahead) and ahead[-1] == self.twins[0].queued
        for handle in self.handles:
            self.both("owner", handle)
            if self.both("lengths", [handle]) is not None:
                pure, native = (twin.arena.facts(handle) for twin in self.twins)
                assert pure == native
                ids = [twin.arena.ids(handle) for twin in self.twins]
                assert ids[0] == ids[1] == self.rows.get(handle, []), "only the holder writes a row"


def test_twins() -> None:
    run_state_machine_as_test(Twins, settings=settings(max_examples=60, stateful_step_count=50))


@pytest.mark.long
def test_twins_long() -> None:
    run_state_machine_as_test(Twins, settings=settings(max_examples=1000, stateful_step_count=50))
