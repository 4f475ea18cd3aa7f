"""Deadlines: what timers promise, on both sides, and that the two sides cannot be told apart."""

from __future__ import annotations

import random
from importlib.machinery import EXTENSION_SUFFIXES

import pytest
from conftest import Core
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from relay._pure import timers as pure

MIN, MAX = -(2**63), 2**63 - 1


def test_comes_from_its_side(core: Core) -> None:
    timers = core.timers.Timers(1)
    assert type(timers).__module__ == core.timers.__name__ == f"{core.package}.timers"
    suffixes = {"pure": (".py",), "native": tuple(EXTENSION_SUFFIXES)}[core.side]
    assert str(core.timers.__file__).endswith(suffixes)


def test_due_in_order_of_time_then_of_arming(core: Core) -> None:
    timers = core.watch(core.timers.Timers(8))
    for slot, when_ns in [(0, 30), (1, 10), (2, 20), (3, 10), (4, 40)]:
        timers.arm(slot, when_ns)
    assert (len(timers), timers.capacity, timers.next_ns()) == (5, 8, 10)
    assert timers.due(9) == []
    assert timers.due(10) == [1, 3]
    assert timers.next_ns() == 20
    assert timers.due(35) == [2, 0]
    assert timers.due(MAX) == [4]
    assert (len(timers), timers.next_ns(), timers.due(MAX)) == (0, None, [])


def test_arming_again_moves_the_timer(core: Core) -> None:
    timers = core.watch(core.timers.Timers(3))
    for slot in range(3):
        timers.arm(slot, 5)
    timers.arm(0, 5)  # the same time, but now the latest armed
    timers.arm(1, 7)
    assert len(timers) == 3
    assert timers.due(6) == [2, 0]
    timers.arm(1, 3)
    assert timers.next_ns() == 3
    assert timers.due(3) == [1]


def test_a_disarmed_timer_is_gone(core: Core) -> None:
    timers = core.watch(core.timers.Timers(2))
    timers.arm(0, 1)
    timers.arm(1, 2)
    assert timers.disarm(0) is True
    assert timers.disarm(0) is False
    assert (len(timers), timers.next_ns()) == (1, 2)
    assert [timers.disarm(slot) for slot in (-1, 2, 2**22, 2**32, MIN, MAX)] == [False] * 6
    assert timers.due(5) == [1]


def test_times_use_all_64_bits(core: Core) -> None:
    timers = core.watch(core.timers.Timers(3))
    for slot, when_ns in enumerate([MAX, MIN, 0]):
        timers.arm(slot, when_ns)
    assert timers.next_ns() == MIN
    assert timers.due(MIN) == [1]
    assert timers.due(MAX - 1) == [2]
    assert timers.next_ns() == MAX
    assert timers.due(MAX) == [0]


def test_all_slots_at_once(core: Core, rng: random.Random) -> None:
    timers = core.watch(core.timers.Timers(1000))
    when: dict[int, int] = {}
    for _ in range(5000):  # a full table can always be armed again
        slot = rng.randrange(1000)
        when.pop(slot, None)
        when[slot] = rng.randrange(100)
        timers.arm(slot, when[slot])
        if rng.random() < 0.1:
            slot = rng.randrange(1000)
            assert timers.disarm(slot) is (when.pop(slot, None) is not None)
    timers.check()
    arming = list(when)
    for now_ns in range(0, 101, 5):
        due = [slot for slot in arming if when[slot] <= now_ns]
        assert timers.due(now_ns) == sorted(due, key=lambda slot: when[slot])
        arming = [slot for slot in arming if when[slot] > now_ns]
        timers.check()
    assert len(timers) == 0


@pytest.mark.parametrize(
    ("method", "arguments", "error", "text"),
    [
        ("arm", (3, 0), ValueError, "slot 3 is out of range: these timers have slots 0 to 2"),
        ("arm", (-1, 0), ValueError, "slot -1 is out of range: these timers have slots 0 to 2"),
        ("arm", (2**32, 0), ValueError, "slot 4294967296 is out of range: these timers have slots 0 to 2"),
        ("arm", (2**63, 0), OverflowError, "slot 9223372036854775808 does not fit in 64 bits"),
        ("arm", (0, MIN - 1), OverflowError, "when_ns -9223372036854775809 does not fit in 64 bits"),
        ("arm", (0, 0.5), TypeError, "when_ns must be an int, got float"),
        ("arm", ("0", 0.5), TypeError, "slot must be an int, got str"),
        ("disarm", (None,), TypeError, "slot must be an int, got NoneType"),
        ("due", (1e9,), TypeError, "now_ns must be an int, got float"),
        ("due", (2**63,), OverflowError, "now_ns 9223372036854775808 does not fit in 64 bits"),
    ],
)
def test_refusals(core: Core, method: str, arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    timers = core.watch(core.timers.Timers(3))
    timers.arm(0, 0)
    with pytest.raises(error) as caught:
        getattr(timers, method)(*arguments)
    assert (type(caught.value), str(caught.value)) == (error, text)
    assert timers.due(0) == [0]


@pytest.mark.parametrize(
    ("capacity", "error", "text"),
    [
        (0, ValueError, "capacity 0 is out of range: give 1 to 4194304"),
        (2**22 + 1, ValueError, "capacity 4194305 is out of range: give 1 to 4194304"),
        (2**63, OverflowError, "capacity 9223372036854775808 does not fit in 64 bits"),
        ("1", TypeError, "capacity must be an int, got str"),
    ],
)
def test_bad_capacity(core: Core, capacity: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        core.timers.Timers(capacity)
    assert str(caught.value) == text


class Twins(RuleBasedStateMachine):
    """Both sides take every step; whatever one of them answers, or refuses, the other must too."""

    TIMES = st.one_of(st.integers(-3, 12), st.sampled_from([MIN, MAX, MAX + 1, False, 2.0, None]))
    SLOTS = st.one_of(st.integers(0, 24), st.sampled_from([-1, 2**22, 2**32, MAX, 2**63, "1", True]))

    @initialize(capacity=st.sampled_from([1, 2, 6, 22]))
    def make(self, capacity: int) -> None:
        native = Core("native").timers
        self.twins = [pure.Timers(capacity), native.Timers(capacity)]

    def both(self, method: str, *arguments: object) -> None:
        answers: list[tuple[object, object]] = []
        for twin in self.twins:
            try:
                answers.append(("returned", getattr(twin, method)(*arguments)))
            except Exception as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1], (method, arguments)
        assert type(answers[0][1]) is type(answers[1][1])

    @rule(slot=SLOTS, when_ns=TIMES)
    def arm(self, slot: object, when_ns: object) -> None:
        self.both("arm", slot, when_ns)

    @rule(times=st.lists(st.integers(0, 12), min_size=1, max_size=8), slot=st.integers(0, 22))
    def arm_some(self, times: list[int], slot: int) -> None:
        for i, when_ns in enumerate(times):
            self.both("arm", slot + i, when_ns)

    @rule(slot=SLOTS)
    def disarm(self, slot: object) -> None:
        self.both("disarm", slot)

    @rule(now_ns=TIMES)
    def due(self, now_ns: object) -> None:
        self.both("due", now_ns)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "twins"):
            for method in ("check", "__len__", "next_ns"):
                self.both(method)

    def teardown(self) -> None:
        if hasattr(self, "twins"):
            self.both("due", MAX)


def test_twins() -> None:
    run_state_machine_as_test(Twins, settings=settings(max_examples=60, stateful_step_count=50))


@pytest.mark.long
def test_twins_long() -> None:
    run_state_machine_as_test(Twins, settings=settings(max_examples=1000, stateful_step_count=50))
