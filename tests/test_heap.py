"""The order of waiting: what a heap promises, on both sides, and that the two sides cannot be told apart."""

from __future__ import annotations

import gc
import random
import tracemalloc
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import pytest
from conftest import Core
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from relay._pure import heap as pure

LAST_SEQ = 2**42 - 1
MIN, MAX = -(2**63), 2**63 - 1


def test_comes_from_its_side(core: Core) -> None:
    heap = core.heap.PriorityHeap(1)
    assert type(heap).__module__ == core.heap.__name__ == f"{core.package}.heap"
    suffixes = {"pure": (".py",), "native": tuple(EXTENSION_SUFFIXES)}[core.side]
    assert str(core.heap.__file__).endswith(suffixes)


def test_smallest_key_first_then_arrival(core: Core) -> None:
    heap = core.watch(core.heap.PriorityHeap(8))
    for key, slot in [(5, 0), (1, 1), (5, 2), (-3, 3), (1, 4)]:
        heap.push(key, slot)
    assert (len(heap), heap.peek(), heap.key_of(3), heap.capacity) == (5, 3, -3, 8)
    assert [heap.pop() for _ in range(6)] == [3, 1, 4, 0, 2, -1]
    assert (len(heap), heap.peek(), heap.pop_node(), heap.pop_many(3)) == (0, -1, None, [])


def test_keys_use_all_64_bits(core: Core) -> None:
    heap = core.watch(core.heap.PriorityHeap(5))
    for slot, key in enumerate([MAX, 0, MIN, MAX, -1]):
        heap.push(key, slot)
    assert [heap.key_of(slot) for slot in range(5)] == [MAX, 0, MIN, MAX, -1]
    assert heap.pop_many(9) == [2, 4, 1, 0, 3]


def test_removal_is_true_removal(core: Core, rng: random.Random) -> None:
    heap = core.watch(core.heap.PriorityHeap(500))
    keys = {slot: rng.randrange(50) for slot in range(500)}
    for slot, key in keys.items():
        heap.push(key, slot)
    gone = rng.sample(range(500), 300)
    for slot in gone:
        assert heap.remove(slot) and not heap.remove(slot) and slot not in heap
        heap.check()
    assert len(heap) == 200
    left = sorted(set(keys) - set(gone), key=lambda slot: (keys[slot], slot))
    assert heap.pop_many(500) == left


def test_lift_keeps_the_arrival(core: Core) -> None:
    heap = core.watch(core.heap.PriorityHeap(4))
    for slot in range(4):
        heap.push(10, slot)
    assert heap.lift(2, 5)
    assert heap.peek() == 2
    assert heap.lift(2, 10)  # back among its equals, where it stood
    assert not heap.lift(9, 0)
    assert heap.lift(0, 11)  # down works as well
    assert heap.pop_many(4) == [1, 2, 3, 0]


def test_reinsertion_with_the_old_sequence(core: Core) -> None:
    heap = core.watch(core.heap.PriorityHeap(4))
    for slot in range(4):
        heap.push(0, slot)
    nodes = [heap.pop_node(), heap.pop_node()]
    assert nodes == [(0, 0, 0), (0, 1, 1)]
    heap.push(0, 0)  # a new request in the slot of the first: the latest arrival
    heap.push_seq(*nodes[1])
    assert heap.pop_many(4) == [1, 2, 3, 0]


def test_an_emptied_heap_still_knows_who_came_first(core: Core) -> None:
    heap = core.watch(core.heap.PriorityHeap(2))
    heap.push(0, 1)
    node = heap.pop_node()
    heap.push(0, 0)
    heap.push_seq(*node)
    assert heap.pop_many(2) == [1, 0]


def test_equal_sequences_go_by_slot(core: Core) -> None:
    heap = core.watch(core.heap.PriorityHeap(3))
    for slot in (2, 0, 1):
        heap.push_seq(4, 9, slot)
    assert heap.pop_many(3) == [0, 1, 2]


def test_sequences_are_renumbered_before_they_run_out(core: Core, rng: random.Random) -> None:
    heap = core.watch(core.heap.PriorityHeap(40))
    keys = [rng.randrange(5) for _ in range(40)]
    slots = rng.sample(range(40), 40)
    for i, slot in enumerate(slots):
        heap.push_seq(keys[slot], LAST_SEQ, slot) if i == 20 else heap.push(keys[slot], slot)
        heap.check()
    nodes = [heap.pop_node() for _ in range(40)]
    arrivals = sorted(range(40), key=lambda i: (keys[slots[i]], i))
    assert nodes == [(keys[slots[i]], i, slots[i]) for i in arrivals]


@pytest.mark.parametrize("capacity", [1, 2, 3, 4, 5, 6, 9, 16, 17, 21])
def test_every_size_fills_and_drains(core: Core, capacity: int, rng: random.Random) -> None:
    heap = core.watch(core.heap.PriorityHeap(capacity))
    for _ in range(3):
        order = rng.sample(range(capacity), capacity)
        for key, slot in enumerate(order):
            heap.push(key, slot)
            heap.check()
        with pytest.raises(ValueError, match="the heap is full"):
            heap.push(0, 0)
        half = heap.pop_many(capacity // 2)
        heap.check()
        assert half + heap.pop_many(capacity) == order


def test_the_largest_heap(core: Core) -> None:
    heap = core.heap.PriorityHeap(2**22)
    for slot in (0, 2**22 - 1, 12345):
        heap.push(-slot, slot)
    assert heap.pop_many(3) == [2**22 - 1, 12345, 0]


OUT_OF_RANGE = "out of range: give one that pop_node returned, 0 to 4398046511103"
REFUSED: list[tuple[str, tuple[object, ...], type[Exception], str]] = [
    ("push", (0, 0), ValueError, "slot 0 is already in the heap: lift it or remove it first"),
    ("push", (0, 3), ValueError, "slot 3 is out of range: this heap has slots 0 to 2"),
    ("push", (0, -1), ValueError, "slot -1 is out of range: this heap has slots 0 to 2"),
    ("push", (0, 2**32), ValueError, "slot 4294967296 is out of range: this heap has slots 0 to 2"),
    ("push", (0, 2**63), OverflowError, "slot 9223372036854775808 does not fit in 64 bits"),
    ("push", (2**63, 1), OverflowError, "key 9223372036854775808 does not fit in 64 bits"),
    ("push", (1.0, 1), TypeError, "key must be an int, got float"),
    ("push", (0, True), ValueError, "slot 1 is already in the heap: lift it or remove it first"),
    ("push_seq", (0, -1, 2), ValueError, f"seq -1 is {OUT_OF_RANGE}"),
    ("push_seq", (0, 2**42, 2), ValueError, f"seq 4398046511104 is {OUT_OF_RANGE}"),
    ("push_seq", (0, "1", 2), TypeError, "seq must be an int, got str"),
    ("pop_many", (-1,), ValueError, "cannot pop -1 slots: give 0 or more"),
    ("remove", ("0",), TypeError, "slot must be an int, got str"),
    ("lift", (None, 0), TypeError, "slot must be an int, got NoneType"),
    ("lift", (0, b"1"), TypeError, "key must be an int, got bytes"),
    ("key_of", (2,), ValueError, "slot 2 is not in the heap: ask `slot in heap` first"),
    ("__contains__", ([],), TypeError, "slot must be an int, got list"),
]


@pytest.mark.parametrize(("method", "arguments", "error", "text"), REFUSED)
def test_refusals(core: Core, method: str, arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    heap = core.watch(core.heap.PriorityHeap(3))
    heap.push(0, 0)
    heap.push(0, 1)
    with pytest.raises(error) as caught:
        getattr(heap, method)(*arguments)
    assert (type(caught.value), str(caught.value)) == (error, text)
    assert (len(heap), heap.pop_many(3)) == (2, [0, 1])


@pytest.mark.parametrize("slot", [0, 7, -1])
def test_full(core: Core, slot: int) -> None:
    heap = core.watch(core.heap.PriorityHeap(2))
    heap.push(0, 0)
    heap.push(0, 1)
    with pytest.raises(ValueError) as caught:
        heap.push(0, slot)
    assert str(caught.value) == "the heap is full: all 2 slots are in it; pop or remove one first"


@pytest.mark.parametrize(
    ("capacity", "error", "text"),
    [
        (0, ValueError, "capacity 0 is out of range: give 1 to 4194304"),
        (-5, ValueError, "capacity -5 is out of range: give 1 to 4194304"),
        (2**22 + 1, ValueError, "capacity 4194305 is out of range: give 1 to 4194304"),
        (2**70, OverflowError, f"capacity {2**70} does not fit in 64 bits"),
        (4.0, TypeError, "capacity must be an int, got float"),
    ],
)
def test_bad_capacity(core: Core, capacity: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        core.heap.PriorityHeap(capacity)
    assert str(caught.value) == text


def test_absent_slots_are_absent(core: Core) -> None:
    heap = core.heap.PriorityHeap(2)
    for slot in (-1, 0, 5, 2**22, 2**32, MIN, MAX):
        assert slot not in heap
        assert heap.remove(slot) is False
        assert heap.lift(slot, 0) is False


def test_a_second_init_starts_afresh(core: Core) -> None:
    heap = core.watch(core.heap.PriorityHeap(2))
    heap.push(0, 1)
    heap.__init__(3)
    assert (len(heap), heap.capacity, 1 in heap) == (0, 3, False)


@pytest.mark.parametrize("core", ["native"], indirect=True)
def test_native_hot_path_neither_collects_nor_allocates(core: Core) -> None:
    heap = core.watch(core.heap.PriorityHeap(64))
    for slot in range(64):
        heap.push(slot, slot)
    gc.collect()
    collections = [generation["collections"] for generation in gc.get_stats()]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for key in range(100_000):
            heap.push(key, heap.pop())
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [generation["collections"] for generation in gc.get_stats()] == collections
    assert after - before < 1000  # the loop's own last int


INTS = [MIN, MAX, MAX + 1, MIN - 1]
KEYS = st.one_of(st.integers(-3, 3), st.sampled_from([*INTS, True, 1.0, None]))
SLOTS = st.one_of(st.integers(0, 45), st.sampled_from([*INTS, -1, 2**22, 2**31, 2**32, "1", False]))
SEQS = st.one_of(st.integers(0, 60), st.sampled_from([*INTS, -1, LAST_SEQ, LAST_SEQ + 1, 0.5]))
CALLS = st.one_of(
    st.tuples(st.just("push"), KEYS, SLOTS),
    st.tuples(st.just("push_seq"), KEYS, SEQS, SLOTS),
    st.tuples(st.just("pop_many"), st.one_of(st.integers(-1, 12), st.sampled_from([*INTS, 1.0]))),
    st.tuples(st.just("lift"), SLOTS, KEYS),
    st.tuples(st.sampled_from(["remove", "key_of", "__contains__"]), SLOTS),
)


class Twins(RuleBasedStateMachine):
    """Both sides take every step; whatever one of them answers, or refuses, the other must too."""

    @initialize(capacity=st.sampled_from([1, 2, 5, 11, 40]))
    def make(self, capacity: int) -> None:
        native = Core("native").heap
        self.twins = [pure.PriorityHeap(capacity), native.PriorityHeap(capacity)]
        self.nodes: list[tuple[int, int, int]] = []

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

    @rule(keys=st.lists(st.integers(-3, 3), min_size=1, max_size=8), slot=st.integers(0, 40))
    def push_some(self, keys: list[int], slot: int) -> None:
        for i, key in enumerate(keys):
            self.both("push", key, slot + i)

    @rule(call=CALLS)
    def call(self, call: tuple[str, *tuple[object, ...]]) -> None:
        self.both(*call)

    @rule()
    def pop(self) -> None:
        self.both("pop")

    @rule()
    def pop_node(self) -> None:
        if node := self.both("pop_node"):
            self.nodes.append(node)

    @rule()
    def put_back(self) -> None:
        while self.nodes:
            self.both("push_seq", *self.nodes.pop())

    @invariant()
    def same(self) -> None:
        if hasattr(self, "twins"):
            for method in ("check", "__len__", "peek"):
                self.both(method)

    def teardown(self) -> None:
        if hasattr(self, "twins"):
            self.both("pop_many", 100)


def test_twins() -> None:
    run_state_machine_as_test(Twins, settings=settings(max_examples=60, stateful_step_count=50))


@pytest.mark.long
def test_twins_long() -> None:
    run_state_machine_as_test(Twins, settings=settings(max_examples=1000, stateful_step_count=50))
