"""Tokens thrown away, finalisers in the middle of calls, and wake-ups that are interrupted: nothing is lost."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from conftest import Core
from permits_kit import Clock, Waiter, join, pool

pytest_plugins = ["collecting"]

Make = Callable[..., Any]


@pytest.fixture
def make(core: Core) -> Make:
    return lambda *arguments, **keywords: pool(core, *arguments, **keywords)


class Leak:
    """A cycle that the collector finds, and that does something as it goes."""

    def __init__(self, last: Callable[[], object] | None, *kept: Any) -> None:
        self.last, self.kept, self.me = last, kept, self

    def __del__(self) -> None:
        if self.last is not None:
            self.last()


def test_a_token_that_is_thrown_away_comes_back(make: Make) -> None:
    permits = make(2, heartbeat_ns=100)
    token, other = permits.try_acquire(0, 1, "a"), permits.try_acquire()
    waiter = join(permits)
    del token
    assert permits.nudged == 1, "somebody is told to collect it"
    permits.collect()
    assert permits.leaked == 1 and permits.leaks == [(0, 1, "a", 0, "released")] and waiter.token.held
    permits.revoke(other)
    del other
    assert permits.try_acquire() is None and permits.try_acquire().held, "it comes back with the next call"
    waiter.token.release()
    nudged = permits.nudged
    permits.joined.clear()
    views = permits.tokens()
    permits.resize(2)
    del views, waiter
    permits.collect()
    assert permits.nudged == nudged and permits.held == permits.by_tier().get(1, (0,))[0], "released, or only a view"


def test_what_only_the_collector_finds_comes_back(make: Make) -> None:
    permits = make(2)
    waiter = Waiter()
    permits.acquire_or_join(1, None, waiter, 2)
    late = join(permits, cost=2)
    Leak(None, waiter)
    Leak(None, late)
    permits.joined.clear()
    del waiter
    gc.collect()
    permits.collect()
    assert permits.leaked == 1 and late.token.held
    del late
    gc.collect()
    permits.collect()
    assert permits.leaked == 2 and permits.held == 0


@pytest.mark.usefixtures("collecting")
def test_a10_finalisers_in_the_middle_of_any_call(make: Make) -> None:
    permits = make(4, ((0, 1),), 8, 5, weights={}, caps={"a": 2})
    for number in range(3_000):
        token = permits.try_acquire(0, 1, "a", 50)
        if token is not None:
            Leak([token.release, None][number % 2], token)
        waiter = Waiter(number, dead=number % 5 == 0)
        tenant = [None, "a", "b"][number % 3]
        if permits.acquire_or_join(number % 3, None, waiter, 1 + number % 2, tenant) is None and waiter.index >= 0:
            permits.lift(waiter, 0)
        Leak([lambda waiter=waiter: permits.abandon(waiter), None][number // 7 % 2], waiter)  # type: ignore[misc]
        if number % 7 == 0:
            permits.abandon(waiter)
        for view in permits.tokens()[:1]:
            permits.revoke(view)
        permits.resize(4 + number % 2)
        permits.clock.now_ns += 10**8
        permits.expire()
        del token, waiter
        assert permits.by_tier() is not None and permits.by_tenant() is not None
        if number % 50 == 0:
            permits.check()
    gc.collect()
    for view in permits.tokens():
        view.release()
    permits.shut()
    gc.collect()
    permits.collect()
    assert (permits.held, permits.waiting, len(permits)) == (0, 0, 0) and permits.leaked > 100 < permits.abandoned


@pytest.mark.parametrize("last", ["release", "abandon", "nothing"])
def test_a10_a_collection_in_the_middle_of_one_call(core: Core, last: str) -> None:
    class Collecting(Clock):
        def __call__(self) -> int:
            gc.collect()
            return super().__call__()

    permits = pool(core, 1, now_ns=Collecting())
    old, new = Waiter(), Waiter()
    token = permits.acquire_or_join(1, None, old)
    handle = token.handle
    Leak({"release": token.release, "abandon": partial(permits.abandon, old), "nothing": None}[last], old)
    del old, token
    permits.acquire_or_join(1, None, new)
    permits.collect()
    assert new.token.held and new.token.handle > handle and permits.held == 1
    assert (permits.leaked, permits.abandoned) == (last == "nothing", last == "abandon")


@pytest.mark.usefixtures("collecting")
def test_what_a_finaliser_releases_is_free_when_the_call_returns(make: Make) -> None:
    permits = make(2)
    for _ in range(500):
        token = permits.try_acquire()
        Leak(token.release, token)
        del token
        other = permits.try_acquire()
        gc.collect()
        assert permits.held == 1 and permits.leaked == 0
        other.release()
        assert permits.held == 0


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("at", range(5))
def test_a7_an_interrupted_wake_up_is_made_good(core: Core, at: int, error: type[BaseException]) -> None:
    """Each hook may raise after any step; whoever was to be told is told by a later call."""

    class Pool(core.permits.Permits):  # type: ignore[name-defined, misc]
        def step(self, name: object) -> None:
            steps.append(name)
            if len(steps) == at + 1:
                raise error

        def _deliver(self, waiter: Waiter) -> bool:
            self.step(waiter.name)
            return True

        def _lease_armed(self) -> None:
            self.step("armed")

        def _freed(self) -> None:
            self.step("freed")

    steps: list[object] = []
    permits = core.watch(Pool(3, (), 10, 3, now_ns=lambda: 1_000))
    token = permits.try_acquire(1, 3)
    waiters = [Waiter(name) for name in "abcde"]
    for waiter in waiters:
        permits.acquire_or_join(1, None, waiter, 1, None, 50)
    permits.watched = True  # type: ignore[attr-defined]
    with pytest.raises(error):
        token.release()
    assert not token.held and permits.held == 3, "the release has been made all the same"
    permits.check()
    permits.collect()
    assert [steps.count(name) for name in ("armed", "freed")] == [1 + (at == 3), 1 + (at == 4)]
    assert [waiter.name for waiter in waiters if waiter.token is not None] == ["a", "b", "c"]
    waiters[0].token.release()
    waiters[1].token.release()
    assert {"d", "e"} < set(steps) and permits.waiting == 0 and permits.held == 3
    assert [steps.count(name) for name in "abcde"] == [1 + (at == number) for number in range(3)] + [1, 1]


def test_a_leak_is_reported_once_even_if_a_report_raises(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    permits = make(3)
    tokens = [permits.try_acquire() for _ in range(3)]
    reports: list[int] = []

    def report(token: Any) -> None:
        reports.append(token.handle)
        if len(reports) == 2:
            raise RuntimeError("a callback of somebody's")

    monkeypatch.setattr(type(permits), "_leaked", lambda self, token: report(token))
    expected = sorted(token.handle for token in tokens)
    tokens.clear()
    with pytest.raises(RuntimeError, match="somebody"):
        permits.collect()
    assert permits.held == 0 and permits.leaked == 3 and len(reports) == 2
    permits.collect()
    assert sorted(reports) == expected


def test_a_waiter_that_never_wakes_passes_the_token_on(make: Make) -> None:
    permits = make(1)
    token = permits.try_acquire()
    for number in range(5_000):  # more than any recursion would bear
        join(permits, number).dead = True
    alive = join(permits, 5_000, name="alive", heartbeat_ns=10)
    token.release()
    assert alive.token.held and permits.waiting == 0 and permits.told == [None] * 5_000 + ["alive"]
    assert permits.armed == 1, "that of a lease that began in the middle of the waking, too"
    assert not any(waiter.token.held for waiter in permits.joined[:-1]) and permits.abandoned == 5_000
    for _ in range(3):
        join(permits).dead = True
    alive.token.release()
    assert permits.held == 0 and permits.leaked == 0


def test_waiters_that_nobody_keeps_pass_their_tokens_on(make: Make) -> None:
    permits = make(1)
    token = permits.try_acquire()
    for number in range(5_000):
        join(permits, number)
    permits.joined.clear()
    alive = join(permits, 5_000)
    token.release()
    assert alive.token.held and permits.leaked == 5_000 == permits.nudged


def test_a_second_wake_up_that_comes_too_late_takes_nothing_back(core: Core) -> None:
    class Pool(core.permits.Permits):  # type: ignore[name-defined, misc]
        def _deliver(self, waiter: Waiter) -> bool:
            told.append(waiter.name)
            if len(told) == 1:
                self.collect()  # as another thread would: it wakes the same one
                return False  # and its loop has been closed since
            return True

    told: list[object] = []
    permits = core.watch(Pool(1))
    token, waiter = permits.try_acquire(), Waiter("one")
    permits.acquire_or_join(1, None, waiter)
    token.release()
    assert told == ["one", "one"] and waiter.token.held


def test_who_watches_is_told_what_is_freed(make: Make) -> None:
    permits = make(1)
    permits.try_acquire().release()
    assert permits.freed == 0
    permits.watched = True
    permits.try_acquire().release()
    assert permits.freed == 1
    token = permits.try_acquire()
    join(permits)
    assert permits.freed == 1
    permits.leave(permits.joined[0])
    assert permits.freed == 2, "a waiter that goes counts as well"
    token.release()
    assert permits.freed == 3


class Stubborn(Waiter):
    """Who cannot write down what it is given: its token, or the place it stands at."""

    __slots__ = ("refused", "refuses")

    def __init__(self, name: object, refuses: str) -> None:
        self.refuses, self.refused = "", 0
        super().__init__(name)
        self.refuses = refuses

    def __setattr__(self, attribute: str, value: object) -> None:
        if attribute in ("index", "token") and attribute == self.refuses:
            self.refused += 1
            raise OSError(f"no {attribute}")
        super().__setattr__(attribute, value)


def test_a_waiter_that_cannot_take_its_token_passes_it_on(make: Make) -> None:
    permits = make(2, caps={"a": 1})
    permits.watched = True
    token = permits.try_acquire(1, 2)
    stubborn = [Stubborn(number, "token") for number in range(3)]
    for waiter in stubborn[:2]:
        permits.acquire_or_join(1, 0, waiter, 1, "a")
    served = join(permits, 1, name="served", tenant="a")
    permits.acquire_or_join(1, 2, stubborn[2], 2)
    last = join(permits, 3, name="last")
    with pytest.raises(OSError, match="^no token$"):
        token.release()
    for _ in range(3):  # every call meets one of them at the most
        try:
            permits.collect()
        except OSError:
            pass
    permits.check()
    assert served.token.held and permits.by_tenant() == {"a": (1, 0, 1)} and not token.held
    assert stubborn[2].index >= 0, "there is too little for it still, and it bars the way"
    with pytest.raises(OSError, match="^no token$"):
        served.token.release()
    permits.collect()
    assert last.token.held and permits.held == 1 and permits.waiting == 0
    assert [waiter.refused for waiter in stubborn] == [1, 1, 1] and permits.abandoned == 3
    assert sorted(permits.told, key=str) == [0, 1, 2, "last", "served"], "who got none is told, and waits no longer"
    assert all(waiter.index == -1 and permits.leave(waiter) is None for waiter in stubborn)
    last.token.release()
    assert permits.held == 0 and permits.leaked == 0


def test_a_waiter_that_cannot_note_its_place_has_none(make: Make) -> None:
    class Late(Stubborn):
        """Refuses its place, and not that it has none."""

        __slots__ = ()

        def __setattr__(self, attribute: str, value: object) -> None:
            if value == -1:
                object.__setattr__(self, attribute, value)
            else:
                super().__setattr__(attribute, value)

    permits = make(2)
    token = permits.try_acquire()
    large = Late("large", "index")
    with pytest.raises(OSError, match="^no index$"):
        permits.acquire_or_join(1, None, large, 2, "a")
    assert permits.waiting == 0 and permits.by_tenant() == {} and large.index == -1
    assert permits.try_acquire().held, "and bars no way"
    token.release()
    assert permits.held == 0 and permits.told == []


def _short_of_memory(memory: Any, at: int, calls: list[Callable[[], object]], times: int) -> int:
    """Make calls, in each of which some allocations fail, from the one of that number on; how many calls failed."""
    failed = 0
    for call in calls:
        try:
            memory.set_nomemory(at, at + times)
            try:
                call()
            finally:
                memory.remove_mem_hooks()
        except MemoryError:
            failed += 1
    return failed


def _given_back(permits: Any) -> list[Callable[[], object]]:
    token = permits.try_acquire(1, 3)
    for number in range(20):
        join(permits, number, name=number, tenant=f"of {number % 7}")
    return [token.release]


def _tried(permits: Any) -> list[Callable[[], object]]:
    permits.joined.append(permits.try_acquire(1, 2))
    join(permits, 2**62, cost=3, name="large")
    return [lambda: permits.try_acquire(1, 1, "of somebody new")]


def _joined(permits: Any) -> list[Callable[[], object]]:
    token = permits.try_acquire(1, 3)
    for number in range(300):
        join(permits, number)
    return [lambda: permits.acquire_or_join(1, 0, Waiter(), 1, "of somebody new"), token.release]


def _thrown_away(permits: Any) -> list[Callable[[], object]]:
    tokens = [permits.try_acquire(1, 1, "a") for _ in range(3)]
    for number in range(20):
        join(permits, number, name=number)
    return [tokens.clear, permits.collect]


def _expired(permits: Any) -> list[Callable[[], object]]:
    permits.joined.append([permits.try_acquire(1, 1, None, 10) for _ in range(3)])
    for number in range(6):
        join(permits, number, name=number, heartbeat_ns=10)

    def pass_time() -> None:
        permits.clock.now_ns += 10**10
        permits.expire()

    return [pass_time, pass_time, pass_time]


def _shut(permits: Any) -> list[Callable[[], object]]:
    permits.joined.append(permits.try_acquire(1, 3))
    for number in range(20):
        join(permits, number, name=number)
    return [permits.shut]


def _left(permits: Any) -> list[Callable[[], object]]:
    permits.joined.append(permits.try_acquire(1, 2))
    large = join(permits, 0, cost=3)
    for number in range(5):
        join(permits, number + 1, name=number)
    return [lambda: permits.abandon(large)]


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("weights", [None, {}], ids=["in order", "in shares"])
@pytest.mark.parametrize("begin", [_given_back, _tried, _joined, _thrown_away, _expired, _shut, _left])
def test_natively_no_memory_loses_nothing(begin: Callable[[Any], Any], weights: Any, times: int) -> None:
    """Each allocation of a call fails once: the books are right, and a later call makes good what is not done."""
    memory = pytest.importorskip("_testcapi", reason="no _testcapi in this interpreter")
    core, fine, failures = Core("native"), 0, 0
    for at in range(1_000):
        permits = pool(core, 3, (), 400, 5, weights=weights, caps={"a": 3})
        permits.watched = True
        failed = _short_of_memory(memory, at, begin(permits), times)
        failures += failed
        fine = 0 if failed else fine + 1
        permits.check()
        permits.collect()
        waiters = [waiter for waiter in permits.joined if isinstance(waiter, Waiter)]
        if begin is _given_back:
            assert [waiter.name for waiter in waiters if waiter.token is not None] == [0, 1, 2]
        if begin is _expired:
            permits.clock.now_ns += 10**10
            permits.expire()
            permits.clock.now_ns += 10**10
            permits.expire()
            assert all(not token.held for token in permits.joined[0])
        permits.shut()
        for view in permits.tokens():
            view.release()
        permits.collect()
        permits.check()
        assert (permits.held, permits.waiting, len(permits)) == (0, 0, 0)
        assert all(waiter.index == -1 for waiter in waiters)
        assert {waiter.name for waiter in waiters if waiter.name is not None} <= set(permits.told), "everybody is told"
        if fine > 10 + times:
            break
    assert failures > 0 and fine > 10
