"""Permits: who holds a token, and who is next; floors; stale and foreign tokens; and the two sides are as one."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import pytest
from conftest import Core
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from relay.errors import Closed, StaleToken

NO_PLACE = -2


class Waiter:
    __slots__ = ("index", "name", "priority", "token")

    def __init__(self, name: object = None) -> None:
        self.index = -1
        self.priority = -1
        self.token: Any = None
        self.name = name


def test_comes_from_its_side(core: Core) -> None:
    permits = core.permits.Permits(1)
    assert type(permits).__module__ == type(permits.try_acquire()).__module__ == f"{core.package}.permits"
    suffixes = {"pure": (".py",), "native": tuple(EXTENSION_SUFFIXES)}[core.side]
    assert str(core.permits.__file__).endswith(suffixes)


@pytest.fixture
def make(core: Core) -> Callable[..., Any]:
    return lambda *args, **kwargs: core.watch(core.permits.Permits(*args, **kwargs))


def join(permits: Any, key: int = 0, priority: int = 1, name: object = None) -> Waiter:
    waiter = Waiter(name)
    assert permits.acquire_or_join(priority, key, waiter) is None
    return waiter


def test_take_and_give(make: Callable[..., Any]) -> None:
    permits = make(2)
    first, second = permits.try_acquire(), permits.try_acquire(0)
    assert permits.try_acquire() is None
    assert (permits.held, permits.free, len(permits), permits.capacity, permits.granted) == (2, 0, 2, 2, 2)
    assert first.held and permits.holds(first) and (first.priority, second.priority) == (1, 0)
    assert repr(first) == "<Token priority=1 held>"
    first.release()
    assert not first.held and repr(first) == "<Token priority=1 released>"
    permits.release(second)
    with permits.try_acquire("batch") as token:
        assert token.priority == 2 and token.handle > second.handle, "a slot's handles grow"
    assert not token.held and (permits.held, permits.free) == (0, 2)


def test_any_use_of_a_stale_token_is_refused(make: Callable[..., Any]) -> None:
    permits = make(1)
    old = permits.try_acquire()
    old.release()
    new = permits.try_acquire()
    for use in (old.release, lambda: permits.release(old), lambda: old.__exit__(None, None, None)):
        with pytest.raises(StaleToken, match="cannot release this token: its lease has ended"):
            use()
    assert new.held and not old.held and not permits.holds(old) and new.handle != old.handle
    waiter = join(permits)
    with pytest.raises(StaleToken):
        old.release()
    assert new.held and waiter.token is None
    new.release()
    with pytest.raises(StaleToken):
        new.release()
    assert waiter.token.held


def test_tokens_of_another_pool_are_refused(make: Callable[..., Any]) -> None:
    ours, theirs = make(1), make(1)
    token, other = ours.try_acquire(), theirs.try_acquire()
    assert token.handle == other.handle, "a handle alone does not tell pools apart"
    with pytest.raises(ValueError, match="belongs to another pool"):
        ours.release(other)
    assert token.held and other.held and not ours.holds(other)
    for value in (None, 1, token.handle, object()):
        for method in (ours.release, ours.holds):
            with pytest.raises(TypeError, match=f"token must be a Token, got {type(value).__name__}"):
                method(value)


def test_order_is_key_then_arrival(make: Callable[..., Any]) -> None:
    permits = make(1)
    token = permits.try_acquire()
    waiters = [join(permits, key, name=(key, i)) for i, key in enumerate([5, 3, 5, 3, -(2**63), 2**63 - 1])]
    served = []
    for _ in waiters:
        token.release()
        (given,) = [waiter for waiter in waiters if waiter.token is not None and waiter.token.held]
        token = given.token
        served.append(given.name)
        assert given.index == -1
    assert served == [(-(2**63), 4), (3, 1), (3, 3), (5, 0), (5, 2), (2**63 - 1, 5)]
    assert permits.waiting == 0 and permits.granted == 7


def test_nobody_slips_in(make: Callable[..., Any]) -> None:
    permits = make(1)
    token = permits.try_acquire()
    waiter = join(permits)
    token.release()
    assert permits.try_acquire(0) is None, "the token was the waiter's before release returned"
    assert waiter.token.held and permits.held == 1
    late = join(permits, name="late")
    assert permits.leave(waiter) is waiter.token, "who leaves too late has a token to see to"
    waiter.token.release()
    assert late.token.held and permits.leave(late) is late.token


def test_leave(make: Callable[..., Any]) -> None:
    permits = make(1)
    token = permits.try_acquire()
    first, second = join(permits), join(permits)
    assert permits.waiting == 2 and first.index >= 0
    assert permits.leave(first) is None and first.index == -1 and permits.waiting == 1
    assert permits.leave(first) is None and permits.waiting == 1
    token.release()
    assert first.token is None and second.token.held


def test_a_full_line(make: Callable[..., Any]) -> None:
    permits = make(1, (), 2)
    waiter = Waiter()
    token = permits.acquire_or_join(1, 0, waiter)
    assert token is waiter.token and waiter.index == -1, "there was one: it never stood in line"
    first, _ = join(permits), join(permits)
    third = join(permits)
    assert third.index == NO_PLACE and permits.leave(third) is None and permits.waiting == 2
    permits.leave(first)
    assert join(permits).index >= 0
    nobody = make(1, (), 0)
    nobody.try_acquire()
    assert join(nobody).index == NO_PLACE


def test_floors(make: Callable[..., Any]) -> None:
    permits = make(3, ((0, 1), (2, 1)))
    ordinary = permits.try_acquire(1)
    assert permits.try_acquire(1) is None, "what is free is reserved"
    assert permits.free == 2
    bulk = permits.try_acquire(3)  # belongs to tier 2
    assert permits.try_acquire(2) is None and permits.try_acquire(1) is None
    urgent = permits.try_acquire(0)
    assert permits.try_acquire(0) is None and permits.free == 0
    waiting_bulk, waiting = join(permits, 0, 255), join(permits, 1, 1)
    urgent.release()
    assert waiting.token is None and waiting_bulk.token is None, "the floor is refilled first"
    urgent = permits.try_acquire(0)
    waiting_urgent = join(permits, 9, 0)
    bulk.release()
    assert waiting_bulk.token.held, "the floor of tier 2 was free"
    ordinary.release()
    assert waiting.token.held
    waiting.token.release()
    assert waiting_urgent.token.held, "what is not reserved goes to anybody"
    for token in (urgent, waiting_bulk.token, waiting_urgent.token):
        token.release()
    assert permits.free == 3 and permits.waiting == 0


def test_shut(make: Callable[..., Any]) -> None:
    permits = make(1)
    token = permits.try_acquire()
    waiters = [join(permits, key) for key in (2, 1)]
    assert not permits.closed
    left = permits.shut()
    assert set(left) == set(waiters) and permits.closed and permits.waiting == 0
    assert all(waiter.index == -1 and waiter.token is None for waiter in waiters)
    assert token.held and permits.shut() == []
    for call in (lambda: permits.try_acquire(), lambda: permits.acquire_or_join(1, 0, Waiter())):
        with pytest.raises(Closed, match="the pool is closed"):
            call()
    assert permits.leave(waiters[0]) is None
    token.release()
    with pytest.raises(StaleToken):
        token.release()


ARGUMENTS: list[tuple[Any, ...]] = [
    (0,), (-1,), (2**22 + 1,), (2**63,), (1.0,), (None,), ("3",), (True,), (1, (), -1), (1, (), 2**22 + 1),
    (1, (), 1.5), (1, ((0, 2),)), (2, ((0, 1), (0, 1))), (2, (("realtime", 1), (0, 1))), (1, ((0, -1),)),
    (1, ((256, 1),)), (1, ((-1, 1),)), (1, ((0.0, 1),)), (1, ((0, 1.0),)), (1, ((0, None),)), (1, 3), (1, ((0, 0),)),
    (256, tuple((tier, 1) for tier in range(256)), 1),
]  # fmt: skip


def outcome(call: Callable[..., Any], *arguments: Any) -> tuple[object, str]:
    try:
        return ("returned", str(call(*arguments)))
    except Exception as error:
        return type(error), str(error)


def test_both_sides_refuse_alike() -> None:
    pure, native = Core("pure").permits, Core("native").permits
    for arguments in ARGUMENTS:
        answers = []
        for side in (pure, native):
            kind, text = outcome(side.Permits, *arguments)
            answers.append((kind, text if kind != "returned" else ""))
        assert answers[0] == answers[1], arguments
    for value in (-1, 256, 2**63, -(2**80), 1.0, None, "urgent", "BATCH", "", b"batch", True, [], object):
        assert outcome(pure.check_priority, value) == outcome(native.check_priority, value), value
        answers = []
        for side in (pure, native):
            permits = side.Permits(1)
            token = permits.try_acquire()
            answers.append([
                outcome(permits.try_acquire, value),
                outcome(permits.acquire_or_join, value, 0, Waiter()),
                outcome(permits.acquire_or_join, 0, value, Waiter()),
                token.held,
            ])
            permits.check()
        assert answers[0] == answers[1], value


def test_a_token_made_by_no_pool_crashes_nothing() -> None:
    permits = Core("native").permits
    empty = permits.Token.__new__(permits.Token)
    assert not empty.held and "released" in repr(empty)
    with pytest.raises(StaleToken):
        empty.release()
    bare = permits.Permits.__new__(permits.Permits)
    assert bare.try_acquire() is None and bare.free == 0


def test_a_finaliser_releases_in_the_middle_of_a_call(core: Core) -> None:
    """Whatever a call is doing, a collection may start in it and release tokens on the same thread."""

    class Leak:
        def __init__(self, token: Any) -> None:
            self.token = token
            self.me = self  # a cycle, so that only the collector finds it

        def __del__(self) -> None:
            self.token.release()

    permits = core.watch(core.permits.Permits(4, ((0, 1),), 8))
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(2_000):
            token = permits.try_acquire(0)
            if token is not None:
                Leak(token)
            waiter = Waiter()
            token = permits.acquire_or_join(1, 0, waiter)
            if permits.leave(waiter) is not None:
                Leak(waiter.token)
            del token, waiter
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert permits.held == 0 and permits.waiting == 0


def test_a_waiter_that_never_wakes_passes_the_token_on(core: Core) -> None:
    class Pool(core.permits.Permits):  # type: ignore[name-defined, misc]
        def _deliver(self, waiter: Waiter) -> bool:
            return waiter.name == "alive"

    permits = core.watch(Pool(1))
    token = permits.try_acquire()
    dead = [join(permits, i) for i in range(5_000)]  # more than any recursion would bear
    alive = join(permits, 5_000, name="alive")
    token.release()
    assert alive.token.held and permits.waiting == 0 and not any(waiter.token.held for waiter in dead)
    permits.leave(join(permits))
    dead = [join(permits) for _ in range(3)]
    alive.token.release()
    assert permits.held == 0 and all(waiter.token is not None for waiter in dead)


def test_a_million_pairs_allocate_nothing() -> None:
    permits = Core("native").permits.Permits(8, ((0, 1), (2, 1)), 100)
    take, give = permits.try_acquire, permits.release
    collections: list[str] = []
    gc.collect()
    gc.callbacks.append(lambda phase, info: collections.append(phase))
    try:
        for _ in range(1_000):
            give(take(1))
        stats, before = gc.get_stats(), sys.getallocatedblocks()
        for _ in range(1_000_000):
            give(take(1))
        after = sys.getallocatedblocks()
        assert gc.get_stats() == stats and not collections
    finally:
        gc.callbacks.pop()
    assert abs(after - before) <= 2, "the loop's own iterator and int may come and go"
    token = take(0)
    assert not gc.is_tracked(token)
    token.release()
    permits.check()


def test_threads_count_right(core: Core) -> None:
    permits = core.watch(core.permits.Permits(3))
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(2_000):
            token = permits.try_acquire()
            if token is not None:
                inside.append(1)
                most.append(len(inside))
                inside.pop()
                token.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert permits.held == 0 and max(most) <= 3


class Twins(RuleBasedStateMachine):
    """Both sides take every step; whatever one of them answers, or refuses, the other must too."""

    @initialize(
        capacity=st.integers(1, 4),
        floors=st.lists(st.tuples(st.sampled_from([0, 1, 2, 7, 255]), st.integers(0, 2)), max_size=3, unique=True),
        places=st.sampled_from([0, 1, 3, 20]),
    )
    def make(self, capacity: int, floors: list[tuple[int, int]], places: int) -> None:
        while floors and (sum(count for _, count in floors) > capacity or len(dict(floors)) < len(floors)):
            floors = floors[1:]
        self.twins = [Core(side).permits.Permits(capacity, tuple(floors), places) for side in ("pure", "native")]
        self.tokens: list[list[Any]] = [[], []]  # every token ever given, on each side
        self.waiters: list[list[Waiter]] = [[], []]
        self.serial = 0

    def both(self, calls: list[Callable[[], Any]]) -> tuple[Any, Any]:
        answers: list[tuple[object, Any]] = []
        values: list[Any] = []
        for call in calls:
            try:
                value = call()
                answers.append(("returned", getattr(value, "handle", value)))
                values.append(value)
            except Exception as error:
                answers.append((type(error), str(error)))
                values.append(None)
        assert answers[0] == answers[1]
        for side, value in enumerate(values):
            if hasattr(value, "handle") and value not in self.tokens[side]:
                self.tokens[side].append(value)
        return values[0], values[1]

    @rule(priority=st.sampled_from([0, 1, 2, 3, 7, 8, 255, "batch", 256, None, 1.0]))
    def try_acquire(self, priority: Any) -> None:
        self.both([lambda: self.twins[0].try_acquire(priority), lambda: self.twins[1].try_acquire(priority)])

    @rule(priority=st.sampled_from([0, 1, 2, 7, 255]), key=st.sampled_from([-1, 0, 0, 1, 2**62, 2**63, "1"]))
    def join(self, priority: int, key: Any) -> None:
        pair = [Waiter(self.serial), Waiter(self.serial)]
        self.serial += 1
        keys = [key if not isinstance(key, int) else key + (priority << 32) for _ in pair]
        self.both([
            lambda: self.twins[0].acquire_or_join(priority, keys[0], pair[0]),
            lambda: self.twins[1].acquire_or_join(priority, keys[1], pair[1]),
        ])
        for side, waiter in enumerate(pair):
            self.waiters[side].append(waiter)

    @rule(which=st.integers(0, 30))
    def leave(self, which: int) -> None:
        if self.waiters[0]:
            pair = [waiters[-1 - which % len(waiters)] for waiters in self.waiters]
            self.both([lambda: self.twins[0].leave(pair[0]), lambda: self.twins[1].leave(pair[1])])

    @rule(which=st.integers(0, 30), how=st.sampled_from(["token", "pool", "with"]))
    def release(self, which: int, how: str) -> None:
        if not self.tokens[0]:
            return
        pair = [tokens[-1 - which % len(tokens)] for tokens in self.tokens]  # often one whose lease has ended
        if how == "token":
            self.both([pair[0].release, pair[1].release])
        elif how == "pool":
            self.both([lambda: self.twins[0].release(pair[0]), lambda: self.twins[1].release(pair[1])])
        else:
            self.both([lambda: pair[0].__exit__(None), lambda: pair[1].__exit__(None)])

    @rule(value=st.sampled_from([None, 1, "token"]), how=st.sampled_from(["release", "holds"]))
    def refused(self, value: Any, how: str) -> None:
        self.both([lambda: getattr(self.twins[0], how)(value), lambda: getattr(self.twins[1], how)(value)])

    @rule(really=st.integers(0, 15))
    def shut(self, really: int) -> None:
        if really == 0:
            left = [[waiter.name for waiter in twin.shut()] for twin in self.twins]
            assert sorted(left[0]) == sorted(left[1])

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "twins"):
            return
        for twin in self.twins:
            twin.check()
        for name in ("held", "free", "capacity", "max_waiting", "waiting", "granted", "closed"):
            assert len({getattr(twin, name) for twin in self.twins}) == 1, name
        for side, waiters in enumerate(self.waiters):
            for waiter in waiters:
                if waiter.token is not None and waiter.token not in self.tokens[side]:
                    self.tokens[side].append(waiter.token)
        views = [
            [(w.name, w.index >= 0, w.index == NO_PLACE, w.token and w.token.handle) for w in waiters]
            for waiters in self.waiters
        ]
        assert views[0] == views[1]
        held = [[token.handle for token in tokens if token.held] for tokens in self.tokens]
        assert held[0] == held[1]
        assert len(set(held[0])) == len(held[0]) == self.twins[0].held, "a token has one owner, and none is lost"


def test_twins() -> None:
    run_state_machine_as_test(Twins, settings=settings(max_examples=60, stateful_step_count=50))


@pytest.mark.long
def test_twins_long() -> None:
    run_state_machine_as_test(Twins, settings=settings(max_examples=1000, stateful_step_count=50))


def test_a_released_token_opens_no_block(core: Core) -> None:
    permits = core.permits.Permits(1)
    token = permits.try_acquire(0)
    token.release()
    other = permits.try_acquire(0)
    with pytest.raises(StaleToken, match="cannot use this token"), token:
        raise AssertionError("the block ran without a permit")
    assert other.held and permits.held == 1
    other.release()
    permits.check()
