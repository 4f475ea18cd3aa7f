"""Which request is already here: what a dedup table promises, on both sides, and that the two cannot be told apart."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections import deque
from http import HTTPStatus
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import pytest
from conftest import Core
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from relay._pure import dedup as pure

MIN, MAX = -(2**63), 2**63 - 1
TOP = 2**128 - 1


def handle(slot: int, generation: int = 1) -> int:
    return generation << 22 | slot


def test_comes_from_its_side(core: Core) -> None:
    table = core.dedup.Dedup(1)
    assert type(table).__module__ == core.dedup.__name__ == f"{core.package}.dedup"
    suffixes = {"pure": (".py",), "native": tuple(EXTENSION_SUFFIXES)}[core.side]
    assert str(core.dedup.__file__).endswith(suffixes)


def test_a_leader_is_found_until_it_is_deleted(core: Core) -> None:
    table = core.watch(core.dedup.Dedup(4))
    text = "the same question"
    assert table.find(table.hash(text)) == -1
    assert table.insert(table.hash(text), handle(3, 7)) is True
    assert table.find(table.hash("".join(list(text)))) == handle(3, 7)
    assert (len(table), table.capacity) == (1, 4)
    assert (table.delete(handle(3, 7)), table.delete(handle(3, 7))) == (True, False)
    assert (table.find(table.hash(text)), len(table)) == (-1, 0)


def test_a_hash_belongs_to_the_first(core: Core) -> None:
    table = core.watch(core.dedup.Dedup(2))
    assert table.insert(5, handle(0))
    assert table.insert(5, handle(1)) is False
    assert (table.find(5), len(table), table.delete(handle(1))) == (handle(0), 1, False)


def test_another_generation_is_not_taken_for_it(core: Core) -> None:
    table = core.watch(core.dedup.Dedup(2))
    table.insert(5, handle(1, 3))
    assert (table.delete(handle(1, 2)), table.delete(handle(1, 4)), table.find(5)) == (False, False, handle(1, 3))


def test_full_refuses_and_changes_nothing(core: Core) -> None:
    table = core.watch(core.dedup.Dedup(3))
    for slot in range(3):
        assert table.insert(slot, handle(slot))
    assert table.insert(99, handle(1, 2)) is False
    assert [table.find(h) for h in (0, 1, 2, 99)] == [handle(0), handle(1), handle(2), -1]


def test_no_hash_and_no_handle_is_reserved(core: Core) -> None:
    table = core.watch(core.dedup.Dedup(4))
    hashes = [0, TOP, 2**64, 2**64 - 1]
    handles = [0, MAX & ~(2**22 - 1) | 1, 2, handle(3)]
    for h, named in zip(hashes, handles, strict=True):
        assert table.insert(h, named)
    assert [table.find(h) for h in hashes] == handles
    assert table.find(1) == table.find(2**127) == -1
    assert all(table.delete(named) for named in handles) and len(table) == 0


REFUSED: list[tuple[str, tuple[object, ...], type[Exception], str]] = [
    ("find", ("5",), TypeError, "h must be an int, got str"),
    ("find", (-1,), OverflowError, "h -1 does not fit in 128 bits without a sign"),
    ("find", (2**128,), OverflowError, f"h {2**128} does not fit in 128 bits without a sign"),
    ("find", (2**150,), OverflowError, f"h {2**150} does not fit in 128 bits without a sign"),
    ("find", (2**300,), OverflowError, f"h {2**300} does not fit in 128 bits without a sign"),
    ("insert", (5.0, 1), TypeError, "h must be an int, got float"),
    ("insert", (2**128, "1"), OverflowError, f"h {2**128} does not fit in 128 bits without a sign"),
    ("insert", (6, None), TypeError, "handle must be an int, got NoneType"),
    ("insert", (6, 2**63), OverflowError, "handle 9223372036854775808 does not fit in 64 bits"),
    ("insert", (6, MIN - 1), OverflowError, "handle -9223372036854775809 does not fit in 64 bits"),
    ("insert", (6, -1), ValueError, "handle -1 is out of range: handles are not negative"),
    ("insert", (6, handle(3)), ValueError, "handle 4194307 names slot 3: this table has slots 0 to 2"),
    ("insert", (5, handle(3)), ValueError, "handle 4194307 names slot 3: this table has slots 0 to 2"),
    ("insert", (6, handle(1, 2)), ValueError, "slot 1 has an entry, of handle 4194305: delete that first"),
    ("delete", (1.5,), TypeError, "handle must be an int, got float"),
    ("delete", (2**64,), OverflowError, "handle 18446744073709551616 does not fit in 64 bits"),
]


@pytest.mark.parametrize(("method", "arguments", "error", "text"), REFUSED)
def test_refusals(core: Core, method: str, arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    table = core.watch(core.dedup.Dedup(3))
    table.insert(5, handle(1))
    with pytest.raises(error) as caught:
        getattr(table, method)(*arguments)
    assert (type(caught.value), str(caught.value)) == (error, text)
    assert (len(table), table.find(5), table.find(6)) == (1, handle(1), -1)


@pytest.mark.parametrize(
    ("capacity", "error", "text"),
    [
        (0, ValueError, "capacity 0 is out of range: give 1 to 4194304"),
        (2**22 + 1, ValueError, "capacity 4194305 is out of range: give 1 to 4194304"),
        (2**70, OverflowError, f"capacity {2**70} does not fit in 64 bits"),
        (4.0, TypeError, "capacity must be an int, got float"),
    ],
)
def test_bad_capacity(core: Core, capacity: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        core.dedup.Dedup(capacity)
    assert str(caught.value) == text


def test_what_is_an_int_is_an_int(core: Core) -> None:
    table = core.watch(core.dedup.Dedup(2))
    assert table.insert(True, False)
    assert (table.find(1), table.find(HTTPStatus.OK), table.delete(0)) == (0, -1, True)


@pytest.mark.parametrize("capacity", [1, 2, 3, 4, 6, 7, 12, 13, 96, 97])
def test_long_runs_of_neighbours_close_up_again(core: Core, capacity: int, rng: random.Random) -> None:
    # All hashes want the last cells: searches run around the end, and deleting moves entries back over it.
    table = core.watch(core.dedup.Dedup(capacity))
    hashes = [slot << 64 | (2**32 - 1 - slot % 3) for slot in range(capacity)]
    for _ in range(5):
        order = rng.sample(range(capacity), capacity)
        for slot in order:
            assert table.insert(hashes[slot], handle(slot))
            table.check()
        for gone, slot in enumerate(rng.sample(range(capacity), capacity), 1):
            assert table.delete(handle(slot))
            table.check()
            assert len(table) == capacity - gone
            assert table.find(hashes[slot]) == -1
        assert all(table.find(h) == -1 for h in hashes)


def test_the_largest_table(core: Core) -> None:
    table = core.dedup.Dedup(2**22)
    slots = [0, 2**22 - 1, 12345]
    assert all(table.insert(slot * 7919, handle(slot)) for slot in slots)
    assert [table.find(slot * 7919) for slot in slots] == [handle(slot) for slot in slots]


def churn(table: Any, pairs: int, rng: random.Random) -> None:
    """Inserts and deletes, at a standing size of three in four; the oldest goes first."""
    capacity = table.capacity
    hashes = [rng.getrandbits(128) for _ in range(capacity)]
    order = deque(range(capacity * 3 // 4))
    free = deque(range(len(order), capacity))
    for slot in order:
        assert table.insert(hashes[slot], slot)
    for step in range(pairs):
        slot, gone = free.popleft(), order.popleft()
        table.insert(hashes[slot] ^ step, slot)
        table.delete(gone)
        order.append(slot)
        free.append(gone)
    assert (len(table), table.capacity) == (len(order), capacity)
    table.check()
    assert all(table.delete(slot) for slot in order)


def test_churn_leaves_nothing_behind(core: Core, rng: random.Random) -> None:
    table = core.watch(core.dedup.Dedup(256))
    churn(table, 200_000, rng)
    assert (len(table), table.capacity) == (0, 256)


@pytest.mark.long
@pytest.mark.parametrize("core", ["native"], indirect=True)
def test_ten_million_pairs_leave_nothing_behind(core: Core, rng: random.Random) -> None:
    table = core.watch(core.dedup.Dedup(1000))
    churn(table, 10_000_000, rng)
    assert (len(table), table.capacity) == (0, 1000)


@pytest.mark.parametrize("core", ["native"], indirect=True)
def test_native_hot_path_neither_collects_nor_allocates(core: Core) -> None:
    table = core.watch(core.dedup.Dedup(64))
    text = "x" * 300
    gc.collect()
    collections = [generation["collections"] for generation in gc.get_stats()]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(50_000):
            h = table.hash(text)
            table.insert(h, 5)
            table.delete(table.find(h))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [generation["collections"] for generation in gc.get_stats()] == collections
    assert after - before < 1000  # the loop's own last ints


@pytest.mark.parametrize("hashes", [[1, None, None, None], [2, 1, None, None], [1, 2, None]])
def test_check_finds_what_is_broken(hashes: list[int | None]) -> None:
    # The native struct cannot be reached from here; tests/native breaks that one.
    table = pure.Dedup(4)
    assert table.insert(1, handle(0)) and table.insert(2, handle(1))
    table._hashes = hashes
    with pytest.raises(AssertionError, match="this is a bug in relay"):
        table.check()


# Hashes that agree in the low 32 bits, in all of the low word, in the high word, or nearly: they meet in the table.
LOW = st.sampled_from([0, 1, 2, 5, 2**32 - 1, 2**32 - 2, 2**64 - 1, 2**33])
HASHES = st.one_of(st.builds(lambda hi, lo: hi << 64 | lo, st.integers(0, 3), LOW), st.integers(0, TOP))
ODD_HASHES = st.sampled_from([-1, 2**128, 2**149, MIN, True, 1.0, None, "1"])
HANDLES = st.builds(handle, st.integers(0, 15), st.integers(0, 2))
ODD_HANDLES = st.sampled_from([-1, MAX, MIN, MAX + 1, MIN - 1, 2**22 - 1, False, 0.5, None, b"1"])
CALLS = st.one_of(
    st.tuples(st.just("insert"), HASHES, HANDLES),
    st.tuples(st.just("insert"), st.one_of(HASHES, ODD_HASHES), st.one_of(HANDLES, ODD_HANDLES)),
    st.tuples(st.just("find"), st.one_of(HASHES, ODD_HASHES)),
    st.tuples(st.just("delete"), st.one_of(HANDLES, ODD_HANDLES)),
)


TEXT = st.one_of(st.text("aé日", max_size=3), st.binary(max_size=1))


class Twins(RuleBasedStateMachine):
    """Both sides take every step; whatever one of them answers, or refuses, the other must too."""

    @initialize(capacity=st.sampled_from([1, 2, 3, 7, 12]))
    def make(self, capacity: int) -> None:
        native = Core("native").dedup
        self.twins = [pure.Dedup(capacity), native.Dedup(capacity)]
        self.hashes: list[int] = []

    def both(self, method: str, *arguments: object, each: list[int] | None = None) -> Any:
        """Calls a method of both; `each` gives every side its own first argument, for the hashes differ."""
        answers: list[tuple[object, Any]] = []
        for i, twin in enumerate(self.twins):
            first = () if each is None else (each[i],)
            try:
                answers.append(("returned", getattr(twin, method)(*first, *arguments)))
            except Exception as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1], (method, arguments)
        assert type(answers[0][1]) is type(answers[1][1])
        return answers[0][1]

    @rule(hashes=st.lists(HASHES, min_size=1, max_size=8), slot=st.integers(0, 11))
    def insert_some(self, hashes: list[int], slot: int) -> None:
        for i, h in enumerate(hashes):
            if self.both("insert", h, handle(slot + i)) is True:
                self.hashes.append(h)

    @rule(call=CALLS)
    def call(self, call: tuple[str, *tuple[object, ...]]) -> None:
        self.both(*call)

    @rule(text=TEXT, slot=st.integers(0, 11), leave=st.booleans())
    def lead_or_follow(self, text: str | bytes, slot: int, leave: bool) -> None:
        # Each side under its own hash of the text.
        hashes = [twin.hash(text) for twin in self.twins]
        found = self.both("find", each=hashes)
        if found == -1:
            self.both("insert", handle(slot), each=hashes)
        elif leave:
            self.both("delete", found)

    @rule()
    def find_all(self) -> None:
        for h in self.hashes:
            self.both("find", h)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "twins"):
            for method in ("check", "__len__"):
                self.both(method)

    def teardown(self) -> None:
        if hasattr(self, "twins"):
            for h in self.hashes:
                self.both("delete", self.both("find", h))


def test_twins() -> None:
    run_state_machine_as_test(Twins, settings=settings(max_examples=60, stateful_step_count=50))


@pytest.mark.long
def test_twins_long() -> None:
    run_state_machine_as_test(Twins, settings=settings(max_examples=1000, stateful_step_count=50))
