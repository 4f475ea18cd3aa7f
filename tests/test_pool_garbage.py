"""A pool that nobody has any more is collected, with its alarm's thread and its clock, closed or not."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from relay.errors import AcquireTimeout

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def collect() -> None:
    """Twice, for native tokens are not tracked: what a cycle keeps through one is found when the cycle is gone."""
    gc.collect()
    gc.collect()


def used(lab: Lab, how: str) -> tuple[threading.Thread, list[weakref.ref[Any]]]:
    """The alarm's thread of a pool that has been used and let go, and references to all that must be gone with it."""
    clock = lab.clock()
    pool = lab.TokenPool(1, clock=clock, heartbeat=5)
    other = lab.TokenPool(1, clock=clock)  # so that waits are noted for inheritance
    token = pool.acquire()
    waiting = lab.call(pool.acquire, timeout=1)
    clock.wait_for_sleepers(2)  # the alarm, for the lease, and who waits
    assert pool.waiting == 1
    clock.advance(1)
    with pytest.raises(AcquireTimeout):
        waiting.result()
    alarm, thread = pool._alarm, pool._alarm._thread
    assert thread.is_alive() and alarm.alive
    if how == "closed while a token is held":
        pool.close()
        assert thread.is_alive(), "the lease may still have to be ended"
    token.release()
    if how == "closed":
        pool.close()
        thread.join(30)
        assert not alarm.alive, "it ends while the pool is still there"
    return thread, [weakref.ref(each) for each in (pool, other, alarm, clock)]


@pytest.mark.parametrize("how", ["dropped", "closed", "closed while a token is held"])
def test_nothing_of_a_pool_is_left(lab: Lab, how: str) -> None:
    thread, left = used(lab, how)
    collect()
    thread.join(30)
    assert not thread.is_alive(), "it sleeps for a pool that is gone"
    collect()
    assert [found() for found in left] == [None] * len(left)


def test_a_pool_that_never_waited_is_collected(lab: Lab) -> None:
    clock = lab.clock()
    pool = lab.TokenPool(2, clock=clock, trace=True)
    with pool.lease(), pool.acquire(0):
        pass
    left = [weakref.ref(each) for each in (pool, pool._alarm, clock)]
    del pool, clock
    collect()
    assert [found() for found in left] == [None] * len(left)


def test_a_pool_that_is_dropped_while_its_alarm_rings_is_collected(lab: Lab) -> None:
    """The alarm holds its pool while it rings, which may then be the last that has it."""
    clock = lab.clock()
    pool = lab.TokenPool(1, clock=clock, heartbeat=5)
    token = pool.acquire()
    entered, dropped = threading.Event(), threading.Event()

    def load() -> float:
        entered.set()
        assert dropped.wait(30)
        return 0.0

    pool._load = load
    clock.advance(5)
    assert entered.wait(30)  # in the middle of a ring
    token.release()
    thread = pool._alarm._thread
    left = [weakref.ref(each) for each in (pool, pool._alarm, clock)]
    del pool, token, clock
    collect()
    assert left[0]() is not None
    dropped.set()
    lab.wait_until(lambda: gc.collect() >= 0 and not thread.is_alive())  # once the ring is over
    collect()
    assert [found() for found in left] == [None] * len(left)
