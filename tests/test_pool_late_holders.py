"""Scenario A6: whoever missed its beats and lost its token to another changes nothing of the other's, ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Make, Run, turns

from relay.errors import StaleToken, TokenRevoked

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]


def lost_and_given(lab: Lab, pool: Any, clock: Any, token: Any) -> None:
    """The holder of a token misses its beats, and does not give it back when it is asked to."""
    clock.advance(2)
    lab.wait_until(lambda: token.state == "revoked")
    for _ in range(2):
        with pytest.raises(TokenRevoked, match="stop the work and release"):
            token.heartbeat()
    assert token.held and pool.held == 1, "not given on before the grace time is over"
    clock.advance(1)
    lab.wait_until(lambda: token.state == "released")


def refused_for_ever(pool: Any, old: Any, new: Any) -> None:
    """Nothing that the late holder does reaches the new one."""
    before = (new.handle, new.state, new.priority, pool.held, pool.next_lease_ns())
    assert new.handle & 2**22 - 1 == old.handle & 2**22 - 1 and new.handle >> 22 > old.handle >> 22
    for use in (old.heartbeat, old.heartbeat, old.release, old.release, old.__enter__, lambda: pool.release(old)):
        with pytest.raises(StaleToken, match="its lease has ended"):
            use()
        assert (new.handle, new.state, new.priority, pool.held, pool.next_lease_ns()) == before
        assert not old.held and old.state == "released" and not pool.revoke(old)
    pool.check()


def test_a6_a_late_holder_changes_nothing_of_the_new_one(lab: Lab, make: Make, clock: Any) -> None:
    told: list[Any] = []
    pool = make(1, heartbeat=2, on_revoke=told.append)
    old = pool.acquire()
    waiting = lab.call(pool.acquire, 2, heartbeat=100)
    lab.wait_until(lambda: pool.waiting == 1)
    lost_and_given(lab, pool, clock, old)
    new = waiting.result()
    refused_for_ever(pool, old, new)
    assert [token.handle for token in told] == [old.handle]
    new.heartbeat()
    new.release()
    # With nobody in line: the next one to come gets a newer lease of the same slot.
    older = pool.acquire()
    lost_and_given(lab, pool, clock, older)
    assert pool.held == 0
    with pool.acquire(heartbeat=100) as newest:
        refused_for_ever(pool, older, newest)
        refused_for_ever(pool, old, newest)
    assert pool.snapshot().revoked == 2


def test_a6_of_coroutines(lab: Lab, make: Make, clock: Any, run: Run) -> None:
    pool = make(1, heartbeat=2)

    async def main() -> None:
        old = await pool.acquire_async()
        waiting = asyncio.create_task(pool.acquire_async(2, heartbeat=100))
        await turns()
        lost_and_given(lab, pool, clock, old)
        new = await waiting
        refused_for_ever(pool, old, new)
        new.release()
        # One that confirms within its grace time has done what it was asked to.
        old = await pool.acquire_async()
        waiting = asyncio.create_task(pool.acquire_async(2, heartbeat=100))
        await turns()
        clock.advance(2)
        lab.wait_until(lambda: old.state == "revoked")
        old.release()
        new = await waiting
        refused_for_ever(pool, old, new)
        new.release()

    run(main())


def test_a6_a_holder_that_beats_keeps_its_token(lab: Lab, make: Make, clock: Any) -> None:
    pool = make(2, heartbeat=2)
    silent, alive = pool.acquire(), pool.acquire()
    for _ in range(5):
        clock.advance(1)
        alive.heartbeat()
    lab.wait_until(lambda: silent.state != "busy")  # revoked, or the alarm was so quick that its grace is over, too
    clock.advance(1)
    lab.wait_until(lambda: not silent.held)
    assert alive.state == "busy"
    alive.release()
