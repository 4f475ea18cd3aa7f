"""Permits: taking, giving back and standing in line; what is refused, and how; threads, forks, and no garbage."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import pytest
from conftest import Core
from permits_cases import ARGUMENTS
from permits_kit import NO_PLACE, Waiter, join, pool

from relay.errors import Closed, Overloaded, StaleToken, TooLarge

Make = Callable[..., Any]


@pytest.fixture
def make(core: Core) -> Make:
    return lambda *arguments, **keywords: pool(core, *arguments, **keywords)


def test_comes_from_its_side(core: Core) -> None:
    permits = core.permits.Permits(1)
    token = permits.try_acquire()
    assert type(permits).__module__ == f"{core.package}.permits"
    assert type(token) is core.permits.Token and type(token).__module__.startswith(core.package)
    suffixes = {"pure": (".py",), "native": tuple(EXTENSION_SUFFIXES)}[core.side]
    assert str(core.permits.__file__).endswith(suffixes)


def test_take_and_give(make: Make) -> None:
    permits = make(2)
    first, second = permits.try_acquire(), permits.try_acquire(0, 1, "a")
    assert permits.try_acquire() is None
    assert (permits.held, permits.free, len(permits), permits.capacity, permits.granted) == (2, 0, 2, 2, 2)
    assert (permits.max_capacity, permits.max_waiting, permits.waiting, permits.epoch) == (2, 10_000, 0, 0)
    assert first.held and permits.holds(first) and permits.state_of(first) == first.state == "busy"
    assert [(token.priority, token.cost, token.tenant, token.epoch) for token in (first, second)] == [
        (1, 1, None, 0), (0, 1, "a", 0),
    ]  # fmt: skip
    assert repr(first) == "<Token priority=1 busy>"
    first.release()
    assert not first.held and first.state == "released" and repr(first) == "<Token priority=1 released>"
    permits.release(second)
    with permits.try_acquire("Batch", 2) as token:
        assert (token.priority, token.cost) == (2, 2) and token.handle > second.handle, "a slot's handles grow"
        assert (permits.held, len(permits)) == (2, 1)
    assert not token.held and (permits.held, permits.free, permits.ended) == (0, 2, 3)


def test_any_use_of_a_stale_token_is_refused(make: Make) -> None:
    permits = make(1)
    old = permits.try_acquire()
    old.release()
    new = permits.try_acquire()
    waiter = join(permits)
    uses: dict[str, list[Callable[[], object]]] = {
        "release": [old.release, lambda: permits.release(old), lambda: old.__exit__(None, None, None)],
        "beat for": [old.heartbeat, lambda: permits.beat(old)],
        "use": [old.__enter__],
    }
    for verb, calls in uses.items():
        for call in calls:
            with pytest.raises(StaleToken) as caught:
                call()
            assert str(caught.value) == (
                f"cannot {verb} this token: its lease has ended (released before, or taken back); acquire a new one"
            )
    assert not permits.revoke(old) and not old.held and not permits.holds(old)
    assert new.held and new.handle != old.handle and waiter.token is None
    new.release()
    with pytest.raises(StaleToken):
        new.release()
    assert waiter.token.held


def test_a_released_token_opens_no_block(make: Make) -> None:
    permits = make(1)
    token = permits.try_acquire(0)
    token.release()
    with pytest.raises(StaleToken, match="cannot use this token"), token:
        raise AssertionError("the block ran without a permit")
    assert permits.held == 0


def test_tokens_of_another_pool_are_refused(make: Make) -> None:
    ours, theirs = make(1), make(1)
    token, other = ours.try_acquire(), theirs.try_acquire()
    assert token.handle == other.handle, "a handle alone does not tell pools apart"
    for method in (ours.release, ours.beat, ours.revoke, ours.adopt):
        with pytest.raises(
            ValueError, match=r"^this token belongs to another pool; call token.release\(\), which know"
        ):
            method(other)
    assert token.held and other.held and not ours.holds(other) and ours.state_of(other) == "released"
    for value in (None, 1, token.handle, object()):
        for method in (ours.release, ours.beat, ours.revoke, ours.adopt, ours.holds, ours.state_of):
            with pytest.raises(TypeError, match=f"^token must be a Token, got {type(value).__name__}$"):
                method(value)


def test_what_can_never_be_given_is_refused_at_once(make: Make) -> None:
    permits = make(5, ((0, 2),), 10, 8, caps={"a": 2, "none": 0}, cap=3)

    def join_(priority: int, cost: int, tenant: str | None = None) -> Any:
        return permits.acquire_or_join(priority, 0, Waiter(), cost, tenant)

    for door in (permits.try_acquire, join_):
        for facts in ((1, 4), (0, 6), (0, 6, "a")):
            with pytest.raises(TooLarge, match="could ever give to priority") as caught:
                door(*facts)
            assert isinstance(caught.value, ValueError)
        with pytest.raises(Overloaded) as late:
            door(1, 3, "a")
        assert late.value.reason == "tenant_cap" and str(late.value) == (
            "cost 3 is more than the 2 units that tenant 'a' may hold; ask for less, or raise its cap"
        )
        with pytest.raises(Overloaded, match="the 0 units that tenant 'none' may hold"):
            door(1, 1, "none")
        with pytest.raises(Overloaded, match="the 3 units that tenant 'z' may hold"):
            door(0, 4, "z")
    with pytest.raises(TooLarge) as caught:
        permits.try_acquire(1, 4)
    assert str(caught.value) == (
        "cost 4 is more than the 3 units that this pool could ever give to priority 1; "
        "ask for less, or raise its capacity"
    )
    permits.resize(8)
    assert permits.try_acquire(1, 4).held and permits.waiting == 0
    assert permits.by_tenant() == {}, "who was refused leaves no trace"
    assert (permits.refused_closed, permits.refused_large, permits.refused_cap) == (0, 7, 6), "but is counted"


def test_nobody_slips_in(make: Make) -> None:
    permits = make(1)
    token = permits.try_acquire()
    waiter = join(permits, name="first")
    token.release()
    assert permits.try_acquire(0) is None, "the token was the waiter's before release returned"
    assert waiter.token.held and permits.held == 1 and permits.told == ["first"]
    late = join(permits, name="late")
    assert permits.leave(waiter) is waiter.token, "who leaves too late has a token to see to"
    waiter.token.release()
    assert late.token.held and permits.leave(late) is late.token and permits.told == ["first", "late"]


def test_leave_and_abandon(make: Make) -> None:
    permits = make(1)
    token = permits.try_acquire()
    first, second, third = join(permits), join(permits), join(permits)
    assert permits.waiting == 3 and first.index >= 0
    assert permits.leave(first) is None and first.index == -1 and permits.waiting == 2
    assert permits.leave(first) is None and permits.waiting == 2
    assert permits.abandon(second) is None and permits.waiting == 1 and permits.abandoned == 1
    token.release()
    assert first.token is None and second.token is None and third.token.held
    fourth = join(permits)
    permits.abandon(third)
    assert not third.token.held and fourth.token.held, "a token granted meanwhile goes on"
    permits.abandon(third)
    assert fourth.token.held and permits.held == 1


def test_a_full_line(make: Make) -> None:
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
    held = nobody.acquire_or_join(1, None, Waiter())
    assert held is not None and join(nobody).index == NO_PLACE


def test_seal_and_shut(make: Make) -> None:
    permits = make(1)
    token = permits.try_acquire()
    served, others = join(permits, 0), [join(permits, key, name=key) for key in (2, 1)]
    permits.seal()
    for call in (permits.try_acquire, lambda: permits.acquire_or_join(1, 0, Waiter())):
        with pytest.raises(Closed, match=r"^the pool is closed; no more tokens are given out$"):
            call()
    token.release()
    assert permits.closed and served.token.held and permits.waiting == 2, "those who wait are still served"
    permits.shut()
    assert sorted(permits.told[1:]) == [1, 2] and permits.waiting == 0
    assert all(waiter.index == -1 and waiter.token is None and permits.leave(waiter) is None for waiter in others)
    assert (permits.refused_closed, permits.refused_large, permits.refused_cap) == (2, 0, 0)
    permits.shut()
    assert len(permits.told) == 3 and served.token.held, "tokens already held stay valid"
    served.token.release()
    assert permits.held == 0


def test_both_sides_refuse_alike() -> None:
    pure, native = Core("pure").permits, Core("native").permits
    for arguments in ARGUMENTS:
        answers = []
        for side in (pure, native):
            try:
                side.Permits(*arguments).check()
                answers.append((None, ""))
            except Exception as error:
                answers.append((type(error), str(error)))  # type: ignore[arg-type]
        assert answers[0] == answers[1], arguments


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
    assert abs(after - before) <= 100, "what other threads, and the loop itself, hold may come and go"
    token = take(0)
    assert not gc.is_tracked(token)
    token.release()
    permits.check()


def test_handing_over_allocates_nothing_that_stays() -> None:
    permits = Core("native").permits.Permits(2, ((0, 1),), 8, weights={"a": 2}, caps={"b": 2})
    waiters = [Waiter() for _ in range(4)]
    join_, leave = permits.acquire_or_join, permits.leave

    def turn() -> None:
        token = permits.try_acquire(1)
        for waiter, tenant in zip(waiters, ("a", "b", "a", None), strict=True):
            join_(1, None, waiter, 1, tenant)
        permits.lift(waiters[2], 0)
        leave(waiters[3])
        token.release()
        for waiter in waiters[:3]:
            waiter.token.release()
            waiter.token = None

    turn()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(20_000):
        turn()
    assert abs(sys.getallocatedblocks() - before) <= 50, "free lists may come and go, one block a turn may not"
    permits.check()


def test_a_token_made_by_no_pool_crashes_nothing() -> None:
    permits = Core("native").permits
    empty = permits.Token.__new__(permits.Token)
    assert not empty.held and "released" in repr(empty)
    with pytest.raises(StaleToken):
        empty.release()
    del empty
    bare = permits.Permits.__new__(permits.Permits)
    assert bare.held == bare.free == len(bare) == 0


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
