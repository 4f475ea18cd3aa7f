"""Leases: who holds them, beats, revoking and fencing, epochs, and a new beginning in the child of a fork."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Core
from permits_kit import Waiter, join, pool

from relay.errors import StaleToken, TokenRevoked

Make = Callable[..., Any]


@pytest.fixture
def make(core: Core) -> Make:
    return lambda *arguments, **keywords: pool(core, *arguments, **keywords)


def handles(tokens: tuple[list[Any], list[Any]]) -> tuple[list[int], list[int]]:
    return [token.handle for token in tokens[0]], [token.handle for token in tokens[1]]


def test_a_lease_lasts_while_its_holder_beats(make: Make) -> None:
    permits = make(3, heartbeat_ns=100, grace_ns=50)
    start_ns = permits.clock.now_ns
    token, other, forever = (
        permits.try_acquire(),
        permits.try_acquire(1, 1, None, 1_000),
        permits.try_acquire(1, 1, "a", 0),
    )
    assert permits.next_lease_ns() == start_ns + 100 and permits.armed == 2
    permits.clock.now_ns += 99
    token.heartbeat()
    other.heartbeat()
    forever.heartbeat()
    permits.clock.now_ns += 1
    assert permits.expire() == ([], []) and permits.next_lease_ns() == start_ns + 199
    permits.clock.now_ns += 99
    revoked, fenced = permits.expire()
    assert handles((revoked, fenced)) == ([token.handle], []) and revoked[0].state == token.state == "revoked"
    assert (revoked[0].priority, revoked[0].cost, revoked[0].tenant, revoked[0].epoch) == (1, 1, None, 0)
    assert repr(token) == "<Token priority=1 revoked>" and token.held and permits.held == 3, "it has the grace time"
    for beat in (token.heartbeat, lambda: permits.beat(token)):
        with pytest.raises(TokenRevoked) as caught:
            beat()
        assert str(caught.value) == (
            "this token has been revoked: stop the work and release() it before its grace time is over"
        )
    permits.clock.now_ns += 49
    assert permits.expire() == ([], []) and permits.next_lease_ns() == start_ns + 249
    permits.clock.now_ns += 1
    del revoked
    assert handles(permits.expire()) == ([], [token.handle])
    assert not token.held and permits.held == 2 and permits.revoked == 1 and permits.leaked == 0
    permits.clock.now_ns += 10**9
    assert handles(permits.expire()) == ([other.handle], [])
    other.release()
    assert permits.next_lease_ns() is None and forever.held, "a lease without a heartbeat never ends"
    assert permits.expire() == ([], [])


def test_beats_may_be_late_under_load(make: Make) -> None:
    permits = make(2, grace_ns=0)
    start_ns = permits.clock.now_ns
    tokens = [permits.try_acquire(1, 1, None, 100), permits.try_acquire(1, 1, None, 2**62)]
    permits.clock.now_ns += 100
    assert permits.expire(1.5) == ([], []) and permits.next_lease_ns() == start_ns + 150
    permits.clock.now_ns += 50
    assert permits.expire(float("inf")) == ([], [])
    assert permits.next_lease_ns() > start_ns + 2**61, "far beyond any clock"
    assert all(token.held for token in tokens)


def test_a_revoked_token_is_confirmed_by_its_release(make: Make) -> None:
    permits = make(1)
    token = permits.try_acquire()
    waiter = join(permits)
    assert permits.revoke(token) and not permits.revoke(token) and permits.revoked == 1 == permits.armed
    assert permits.next_lease_ns() == permits.clock.now_ns + 10**9 and waiter.token is None
    with token:
        assert token.state == "revoked"
    assert token.state == "released" and waiter.token.held and not permits.revoke(token)
    permits.clock.now_ns += 10**10
    assert permits.expire() == ([], []) and waiter.token.state == "busy"


def test_a6_a_late_holder_touches_nothing_of_the_next(make: Make) -> None:
    permits = make(1, heartbeat_ns=100, grace_ns=100)
    token = permits.try_acquire()
    waiter = join(permits, name="next", heartbeat_ns=0)
    permits.clock.now_ns += 100
    permits.expire()
    permits.clock.now_ns += 100
    assert waiter.token is None, "its slot is not used again before the grace time is over"
    permits.expire()
    new = waiter.token
    assert permits.told == ["next"] and new.held and new.handle > token.handle
    for call in (token.heartbeat, token.release, token.release, token.__enter__):
        with pytest.raises(StaleToken, match="its lease has ended"):
            call()
    assert not permits.revoke(token) and not permits.holds(token) and token.state == "released"
    permits.abandon(waiter)
    again = permits.try_acquire()
    with pytest.raises(StaleToken, match="cannot release"), again:
        permits.clock.now_ns += 100
        permits.expire()
        permits.clock.now_ns += 100
        permits.expire()
    last = permits.try_acquire(1, 1, None, 0)
    del token, again
    permits.collect()
    assert last.held and last.state == "busy" and permits.leaked == 0 and permits.held == 1


def test_how_leases_end_is_counted(make: Make) -> None:
    permits = make(1, grace_ns=0)
    permits.clocked = True

    def ended(end: Callable[[Any], object]) -> tuple[int, int, int]:
        before = permits.ended, permits.failed, permits.held_ns
        end(permits.try_acquire())
        permits.collect()
        assert permits.held == 0
        return permits.ended - before[0], permits.failed - before[1], permits.held_ns - before[2]

    def work(token: Any, error: BaseException | None = None) -> None:
        with contextlib.suppress(BaseException), token:
            permits.clock.now_ns += 30
            if error is not None:
                raise error

    def fenced(token: Any) -> None:
        permits.revoke(token)
        permits.expire()

    assert ended(work) == (1, 0, 30)
    assert ended(lambda token: token.release()) == (1, 0, 0)
    assert ended(lambda token: work(token, KeyError())) == (0, 1, 0), "it says nothing about how long work takes"
    assert ended(lambda token: work(token, KeyboardInterrupt())) == (0, 0, 0), "nor that it fails"
    assert ended(fenced) == (0, 1, 0)
    assert ended(lambda token: None) == (0, 0, 0) and permits.leaked == 1, "thrown away"
    waiter = Waiter()
    assert ended(
        lambda token: permits.acquire_or_join(1, None, waiter) or token.release() or permits.abandon(waiter)
    ) == (1, 0, 0)
    assert permits.granted == 8 and permits.abandoned == 1


def test_epochs(make: Make) -> None:
    permits = make(2)
    old = permits.try_acquire()
    other = permits.try_acquire()
    waiter = join(permits)
    assert permits.epoch == 0 and (permits.advance(), permits.advance(), permits.epoch) == (1, 2, 2)
    other.release()
    assert (old.epoch, waiter.token.epoch) == (0, 2), "that of the grant, not of the arrival"
    assert sorted(view.epoch for view in permits.tokens()) == [0, 2]


def test_who_acquired_what(core: Core, make: Make) -> None:
    permits, owner = make(4), core.permits.owner
    me = owner()
    assert me == owner()  # of a thread or a task: one number as long as it runs, which one is the side's own affair
    given = []
    thread = threading.Thread(target=lambda: given.append((owner(), permits.try_acquire())))
    thread.start()
    thread.join()
    mine, (other, theirs) = permits.try_acquire(1, 2), given[0]
    assert (permits.owned(me), permits.owned(other), permits.owned(0)) == (1, 1, 0)
    views = sorted(permits.tokens(), key=lambda view: view.handle)
    assert [(view.handle, view.cost) for view in views] == sorted([(mine.handle, 2), (theirs.handle, 1)])
    del views
    assert permits.held == 3, "a view may be dropped"
    permits.adopt(theirs)
    assert (permits.owned(me), permits.owned(other)) == (2, 0)
    theirs.release()
    permits.adopt(theirs)
    assert permits.owned(me) == 1 == len(permits.tokens())


def test_the_child_of_a_fork_starts_over(make: Make) -> None:
    permits = make(4, ((0, 3),), 3, 6)
    tokens = [permits.try_acquire(0), permits.try_acquire(1, 1, "a", 50)]
    highest = max(token.handle for token in tokens)
    permits.advance()
    permits.resize(2)
    waiters = [join(permits, priority=0, name="old") for _ in range(2)]
    permits.start_over()
    permits.check()
    assert (permits.capacity, permits.held, permits.free, permits.waiting, len(permits)) == (2, 0, 2, 0, 0)
    assert permits.by_tier() == {0: (0, 0, 2)} and permits.by_tenant() == {} and permits.next_lease_ns() is None
    assert permits.granted == permits.ended == permits.leaked == permits.epoch == 0 and permits.waits.count == 0
    for token in tokens:
        assert not token.held and token.state == "released"
        with pytest.raises(StaleToken):
            token.release()
        token.__exit__(None, None, None)  # at the end of a block that the fork happened in
    assert [permits.leave(waiter) for waiter in waiters] == [None, None]
    new = permits.try_acquire(0)
    assert new.handle >> 22 > highest >> 22, "generations are above the parent's"
    del token
    tokens.clear()
    permits.collect()
    assert new.held and permits.leaked == 0 and permits.nudged == 0
    new.release()
    with pytest.raises(StaleToken):
        new.__exit__(None, None, None)
    permits.resize(6)
    assert permits.by_tier() == {0: (0, 0, 3)}


def test_the_clock_is_read_only_where_it_matters(make: Make) -> None:
    permits = make(2, ((0, 1),))
    for _ in range(3):
        with permits.try_acquire(0), permits.try_acquire(1):
            assert permits.try_acquire(1) is None
    assert permits.clock.reads == 0
    permits.try_acquire(0, 1, None, 5).release()
    assert permits.clock.reads == 1, "a lease that can end by itself begins now"
    permits.clocked = True
    token = permits.try_acquire()
    permits.clock.now_ns += 70
    token.release()
    assert permits.held_ns == 70 and permits.ended == 8
