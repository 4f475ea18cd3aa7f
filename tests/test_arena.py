"""The arena: leases, pins, rows of ids; a stale handle touches nothing; and the two sides cannot be told apart."""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import numpy as np
import pytest
from conftest import Core
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from relay._pure import arena as pure
from relay._pure.state import BUSY, DROPPED, IDLE, MAX_GENERATION, PINNED, QUEUED, REVOKE, handle_generation, slot_of
from relay.errors import StaleToken

STALE, FREED, DEFERRED, BUSY_DROP = 0, 1, 2, 3


def test_comes_from_its_side(core: Core) -> None:
    arena = core.arena.Arena(1)
    assert type(arena).__module__ == core.arena.__name__ == f"{core.package}.arena"
    suffixes = {"pure": (".py",), "native": tuple(EXTENSION_SUFFIXES)}[core.side]
    assert str(core.arena.__file__).endswith(suffixes)


@pytest.fixture
def make(core: Core) -> Callable[..., Any]:
    return lambda *args, **kwargs: core.watch(core.arena.Arena(*args, **kwargs))


def test_lease_and_release(make: Callable[..., Any]) -> None:
    arena = make(2)
    first, second = arena.lease(busy=True), arena.lease(busy=True)
    assert (arena.lease(), len(arena), arena.free, arena.capacity) == (-1, 2, 0, 2)
    arena.release(second)
    arena.release(first)
    again = arena.lease()
    assert slot_of(again) == slot_of(first), "the slot freed last is leased first"
    assert handle_generation(again) == handle_generation(first) + 1
    for stale in (first, second, -1, -5, 0, 2**63 - 1, 3 << 22 | 9):
        with pytest.raises(StaleToken, match=f"handle {stale} is stale"):
            arena.release(stale)
    with pytest.raises(ValueError, match="is queued and holds nothing to release"):
        arena.release(again)
    assert arena.drop(again) == FREED and len(arena) == 0


def test_facts(make: Callable[..., Any]) -> None:
    arena = make(3, 64)
    handle = arena.lease(-(2**63), 11, 3, 4, 5, 33, True)
    assert arena.facts(handle) == {
        "slot": 0, "generation": 1, "state": QUEUED, "flags": PINNED, "key": -(2**63), "arrival_ns": 11, "ready_ns": -1,
        "commit_ns": -1, "deadline_ns": -1, "cost": 3, "tenant": 4, "epoch": 5, "group": 0, "length": 0, "split": -1,
        "first_block": 0, "n_blocks": 2,
    }  # fmt: skip
    for name in COLUMNS:
        assert getattr(arena, f"set_{name}")(handle, 77) is True
    assert [value for value in arena.facts(handle).values() if value == 77] == [77] * 7
    assert (arena.handle(0), arena.handle(1), arena.live(handle), arena.queued(handle)) == (handle, -1, True, True)
    assert arena.drop(handle) == DEFERRED and not arena.queued(handle) and arena.live(handle)
    assert not arena.unpin(handle) and not arena.set_key(handle, 1)
    for read in (arena.facts, arena.ids):
        with pytest.raises(StaleToken):
            read(handle)


def test_edges_through_the_verbs(make: Callable[..., Any]) -> None:
    arena = make(1)
    handle = arena.lease()
    assert not arena.requeue(handle) and not arena.revoke(handle) and arena.hand_over(handle) == -1
    assert arena.commit(handle) and not arena.commit(handle)
    assert arena.set_commit(handle, 5) and arena.drop(handle) == BUSY_DROP
    assert arena.requeue(handle) and arena.facts(handle)["commit_ns"] == -1
    assert arena.commit(handle) and arena.revoke(handle) and not arena.revoke(handle)
    assert arena.facts(handle)["state"] == REVOKE and arena.drop(handle) == BUSY_DROP and not arena.requeue(handle)
    second = arena.hand_over(handle)
    assert second != handle and not arena.live(handle) and arena.facts(second)["state"] == BUSY
    third = arena.hand_over(second)
    assert arena.hand_over(second) == -1 and arena.revoke(third)
    arena.release(third)  # the revoked holder confirms
    with pytest.raises(StaleToken):
        arena.release(third)
    assert len(arena) == 0


def test_a_pinned_slot_outlives_its_end(make: Callable[..., Any]) -> None:
    arena = make(1, 32)
    queued = arena.lease(pinned=True)
    assert not arena.pin(queued) and not arena.commit(queued)
    assert arena.drop(queued) == DEFERRED and arena.drop(queued) == STALE, "one actor ends a lease"
    assert arena.lease() == -1 and not arena.write_ids(queued, [1]) and not arena.unpin(queued)
    busy = arena.lease(busy=True, pinned=True)
    assert arena.hand_over(busy) == -1, "a reader still holds the row"
    arena.release(busy)
    assert len(arena) == 1 and not arena.requeue(busy) and not arena.revoke(busy) and arena.hand_over(busy) == -1
    with pytest.raises(StaleToken):
        arena.release(busy)
    assert not arena.unpin(busy) and len(arena) == 0
    live = arena.lease()
    assert arena.pin(live) and arena.unpin(live) and arena.unpin(live), "an unpin of what is not pinned changes nothing"


def test_ids(make: Callable[..., Any]) -> None:
    arena = make(3, 100, 70)
    assert (arena.ids_capacity, arena.free_blocks, arena.max_length) == (128, 4, 70)
    first, second = arena.lease(ids=2**31 - 1, pinned=True), arena.lease(pinned=True)
    assert arena.free_blocks == 1, "an estimate reserves no more than a row may hold"
    assert arena.lease(ids=33) == -2 and len(arena) == 2
    assert arena.write_ids(first, list(range(40)), 7) and arena.free_blocks == 2, "what is left over is given back"
    assert arena.write_ids(second, list(range(64))) and arena.free_blocks == 0
    assert not arena.write_ids(first, list(range(65))), "no block is left for the 65th id"
    assert arena.ids(first) == list(range(40)) and arena.facts(first)["split"] == 7
    assert arena.write_ids(second, ()) and arena.ids(second) == [] and arena.free_blocks == 2
    assert arena.write_ids(first, list(range(70))) and arena.facts(first)["split"] == -1
    assert arena.ids(first) == list(range(70)) and arena.free_blocks == 1
    assert arena.unpin(first)
    with pytest.raises(ValueError, match="is not pinned"):
        arena.write_ids(first, [1])
    assert arena.drop(first) == FREED and arena.free_blocks == 4


@pytest.mark.parametrize(
    "ids",
    [[1, -2, True], (3,), array("i", [1, 2]), array("q", [-5]), np.arange(9, dtype=np.int32)[::-2], np.arange(9)[2:7]],
)
def test_ids_from_sequences_and_buffers(make: Callable[..., Any], ids: Any) -> None:
    arena = make(1, 32)
    handle = arena.lease(pinned=True)
    assert arena.write_ids(handle, ids)
    assert arena.ids(handle) == [int(value) for value in ids]


def test_generations_start_and_wrap(make: Callable[..., Any]) -> None:
    arena = make(2, generation=MAX_GENERATION)
    handle = arena.lease(busy=True)
    assert handle_generation(handle) == MAX_GENERATION
    arena.release(handle)
    assert handle_generation(arena.lease()) == 1


def test_a_stale_handle_touches_nothing(make: Callable[..., Any]) -> None:
    arena = make(1, 64)
    old = arena.lease(pinned=True)
    assert arena.write_ids(old, [1, 2, 3]) and arena.drop(old) == DEFERRED and not arena.unpin(old)
    new = arena.lease(key=9, pinned=True)
    assert arena.write_ids(new, [7] * 40, 3)
    before = arena.facts(new)
    assert not arena.write_ids(old, [1]) and not arena.pin(old) and not arena.unpin(old) and arena.drop(old) == STALE
    assert not arena.commit(old) and not arena.requeue(old) and not arena.revoke(old) and arena.hand_over(old) == -1
    assert not arena.set_key(old, 1) and not arena.set_deadline(old, 1) and not arena.live(old)
    assert arena.facts(new) == before and arena.ids(new) == [7] * 40


def test_a_million_pairs_allocate_nothing() -> None:
    arena = Core("native").arena.Arena(64)
    lease, release = arena.lease, arena.release
    collections: list[dict[str, int]] = []
    gc.collect()
    gc.callbacks.append(lambda phase, info: collections.append(info))
    try:
        release(lease(1, 2, 1, 0, 0, 0, False, True))
        before = sys.getallocatedblocks()
        for _ in range(1_000_000):
            release(lease(1, 2, 1, 0, 0, 0, False, True))
        after = sys.getallocatedblocks()
    finally:
        gc.callbacks.pop()
    assert not collections
    assert abs(after - before) <= 100, "what other threads, and the loop itself, hold may come and go"
    assert len(arena) == 0


# Interleaving: what other actors do in the middle of a verb, by the pure side's hook.


@pytest.fixture
def meanwhile() -> Iterator[Callable[..., None]]:
    def install(name: str, action: Callable[[], object]) -> None:
        def step(at: str) -> None:
            if at == name:
                pure.step = None
                action()

        pure.step = step

    yield install
    pure.step = None


@pytest.mark.parametrize("at", ["write", "trim", "unpin"])
def test_dropped_while_written(meanwhile: Callable[..., None], at: str) -> None:
    arena = pure.Arena(2, 96)
    handle = arena.lease(ids=64, pinned=True)
    other: list[int] = []

    def act() -> None:
        assert arena.drop(handle) == DEFERRED
        other.append(arena.lease(ids=32, pinned=True))
        assert arena.write_ids(other[0], [8] * 32)

    meanwhile(at, act)
    assert arena.write_ids(handle, [5] * 20), "who has the pin finishes its write"
    assert arena.ids(handle) == [5] * 20 and arena.live(handle)
    assert not arena.unpin(handle) and not arena.live(handle)
    assert arena.ids(other[0]) == [8] * 32
    arena.check()


@pytest.mark.parametrize(
    ("act", "committed", "state"),
    [("drop", False, IDLE), ("pin", False, QUEUED), ("commit", False, BUSY), ("set_key", True, BUSY)],
)
def test_commit_backs_off(meanwhile: Callable[..., None], act: str, committed: bool, state: int) -> None:
    arena = pure.Arena(1)
    handle = arena.lease()
    meanwhile("commit", lambda: getattr(arena, act)(handle, *([1] if act == "set_key" else [])))
    assert arena.commit(handle) is committed
    assert arena.word.load(0) & 3 == state
    arena.check()


def test_pin_and_drop_race(meanwhile: Callable[..., None]) -> None:
    arena = pure.Arena(1)
    handle = arena.lease()
    meanwhile("pin", lambda: arena.drop(handle))
    assert not arena.pin(handle) and len(arena) == 0
    handle = arena.lease()
    meanwhile("drop", lambda: arena.pin(handle))
    assert arena.drop(handle) == DEFERRED and not arena.unpin(handle)
    handle = arena.lease()
    meanwhile("drop", lambda: arena.commit(handle))
    assert arena.drop(handle) == BUSY_DROP and arena.live(handle)
    arena.release(handle)
    handle = arena.lease()
    meanwhile("drop", lambda: (arena.drop(handle), arena.lease(key=4)))
    assert arena.drop(handle) == STALE, "the slot is someone else's by now"
    assert arena.facts(arena.handle(0))["key"] == 4
    arena.check()


def test_lease_within_a_lease(meanwhile: Callable[..., None]) -> None:
    arena = pure.Arena(2, 64)
    inner: list[int] = []
    meanwhile("lease", lambda: inner.append(arena.lease(key=1, ids=32)))
    outer = arena.lease(key=2, ids=32)
    assert {slot_of(outer), slot_of(inner[0])} == {0, 1} and arena.free_blocks == 0
    assert (arena.facts(outer)["key"], arena.facts(inner[0])["key"]) == (2, 1)
    arena.check()


@pytest.mark.parametrize("field", ["_free", "length", "split", "n_blocks", "blocks"])
def test_check_finds_what_is_broken(field: str) -> None:
    arena = pure.Arena(2, 64)
    arena.lease(ids=20)
    if field == "_free":
        arena._free -= 1
    elif field == "blocks":
        arena.blocks.free -= 1
    else:
        getattr(arena, field)[0] = 50
    with pytest.raises(AssertionError, match="this is a bug in relay"):
        arena.check()


ODD: list[Any] = [1.0, None, "1", 2**31, 2**63, -(2**63) - 1, 2**31 - 1, -1, True]
IDS: list[Any] = [
    "12", b"12", [1, "2"], [2**31], [None], (1.5,), {1}, range(3), [0] * 65, np.zeros((2, 2), np.int64), np.zeros(3),
    np.array([2**31]), np.array([1, -(2**31)]), np.zeros(65, np.int32), array("q", [2**40]), np.zeros(3, np.uint32),
    None, 7,
]  # fmt: skip
COLUMNS = ["key", "ready", "commit", "deadline", "cost", "epoch", "group"]
VERBS = ["commit", "requeue", "revoke", "pin", "unpin", "drop", "release", "facts", "queued", "hand_over"]


class Twins(RuleBasedStateMachine):
    """Both sides take every step; whatever one of them answers, or refuses, the other must too."""

    @initialize(capacity=st.sampled_from([1, 2, 5]), blocks=st.sampled_from([0, 3, 12]), last=st.booleans())
    def make(self, capacity: int, blocks: int, last: bool) -> None:
        arguments = (capacity, blocks * 32, min(blocks * 32, 64), MAX_GENERATION - 1 if last else 1)
        self.twins = [pure.Arena(*arguments), Core("native").arena.Arena(*arguments)]
        self.handles: list[int] = [1 << 22 | capacity, -1]  # every handle ever given, and two that never were
        self.rows: dict[int, list[int]] = {}  # by handle, what its holder last wrote

    def both(self, method: str, *arguments: object) -> Any:
        answers: list[tuple[object, Any]] = []
        for twin in self.twins:
            try:
                answers.append(("returned", getattr(twin, method)(*arguments)))
            except Exception as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1], (method, arguments)
        assert type(answers[0][1]) is type(answers[1][1])
        return answers[0][1]

    def some(self, which: int) -> int:
        return self.handles[-1 - which % len(self.handles)]  # small numbers name the youngest

    @rule(
        key=st.integers(-3, 3), ids=st.sampled_from([0, 1, 32, 33, 64, 999]), pinned=st.booleans(), busy=st.booleans()
    )
    def lease(self, key: int, ids: int, pinned: bool, busy: bool) -> None:
        handle = self.both("lease", key, 5, 2, 1, 0, ids, pinned, busy)
        if handle >= 0:
            assert handle not in self.rows, "a handle is given once"
            self.handles.append(handle)
            self.rows[handle] = []

    @rule(verb=st.sampled_from(VERBS), which=st.integers(0, 60))
    def verb(self, verb: str, which: int) -> None:
        handle = self.some(which)
        answer = self.both(verb, handle)
        if verb == "hand_over" and answer >= 0:
            self.handles.append(answer)
            self.rows[answer] = self.rows[handle]

    @rule(
        which=st.integers(0, 60),
        n=st.sampled_from([0, 1, 31, 32, 33, 64, 65]),
        split=st.sampled_from([-2, -1, 0, 1, 33]),
    )
    def write(self, which: int, n: int, split: int) -> None:
        handle = self.some(which)
        ids = [handle & 0xFFFF ^ i for i in range(n)]
        if self.both("write_ids", handle, ids, split) is True:
            self.rows[handle] = ids

    @rule(which=st.integers(0, 60), name=st.sampled_from(COLUMNS))
    def set_column(self, which: int, name: str) -> None:
        self.both(f"set_{name}", self.some(which), which)

    @rule(which=st.integers(0, 8), value=st.sampled_from(ODD), ids=st.sampled_from(IDS), at=st.integers(0, 5))
    def refused(self, which: int, value: Any, ids: Any, at: int) -> None:
        arguments: list[Any] = [0, 0, 1, 0, 0, 0]
        arguments[at] = value
        handle = self.both("lease", *arguments)
        if isinstance(handle, int) and handle >= 0:
            self.handles.append(handle)
            self.rows[handle] = []
        for verb in ("live", "pin", "release", "drop", "handle", "hand_over", "ids"):
            if value is not True:
                self.both(verb, value)
        self.both("set_key", self.some(which), value)
        self.both("set_group", self.some(which), value)
        if self.both("write_ids", self.some(which), ids) is True:
            self.rows[self.some(which)] = [int(i) for i in ids]

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "twins"):
            return
        for method in ("check", "__len__"):
            self.both(method)
        for name in ("free", "free_blocks", "capacity", "ids_capacity", "max_length"):
            assert len({getattr(twin, name) for twin in self.twins}) == 1, name
        live = [handle for handle in self.rows if self.both("live", handle)]
        assert len(live) == len(self.twins[0]), "every leased slot has one live handle"
        for handle in live:
            assert self.both("ids", handle) == self.rows[handle], "only the holder writes a row"
            facts = self.both("facts", handle)
            assert not facts["flags"] & DROPPED or facts["flags"] & PINNED


def test_twins() -> None:
    run_state_machine_as_test(Twins, settings=settings(max_examples=60, stateful_step_count=50))


@pytest.mark.long
def test_twins_long() -> None:
    run_state_machine_as_test(Twins, settings=settings(max_examples=1000, stateful_step_count=50))
