"""Draining a pool: waiting until tokens have come back, epochs, leases that end without a beat, and reports."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from both import Lab

from relay.errors import AcquireTimeout, Closed, StaleToken, TokenRevoked

pytest_plugins = ["both"]


def test_drain_serves_who_waits_and_refuses_newcomers(lab: Lab) -> None:
    clock = lab.clock()
    with lab.TokenPool(1, clock=clock) as pool:
        token = pool.acquire()
        waiter = lab.call(pool.acquire)
        lab.in_line(pool, 1)
        drain = lab.call(pool.drain)
        lab.wait_until(lambda: pool.closed)
        with pytest.raises(Closed):
            pool.acquire()
        token.release()
        waiter.result().release()
        assert not drain.result()


def test_drain_reports_what_was_left(lab: Lab) -> None:
    clock = lab.clock()
    with lab.TokenPool(2, clock=clock, trace=True) as pool:
        token = pool.acquire(lab.BATCH, cost=2, tenant="acme")
        waiter = lab.call(pool.acquire)
        lab.in_line(pool, 1)
        drain = lab.call(pool.drain, 5)
        clock.wait_for_sleepers(2)
        clock.advance(6)
        left = drain.result()
        assert left and left.waiting == 1
        (held,) = left.held
        assert (held.priority, held.cost, held.tenant, held.state) == (lab.BATCH, 2, "acme", "busy")
        assert "test_draining.py" in held.acquired_at and "test_drain_reports" in held.acquired_at
        token.release()
        waiter.result().release()
        assert not pool.drain(0)


def test_drain_async(lab: Lab, loops: Any) -> None:
    async def main() -> None:
        pool = lab.TokenPool(1)
        token = await pool.acquire_async()
        drain = asyncio.create_task(pool.drain_async())
        await asyncio.sleep(0)
        assert await pool.drain_async(0)
        token.release()
        assert not await drain
        pool.close()

    lab.run(loops, main())


def test_drain_ends_when_the_last_waiter_gives_up(lab: Lab, loops: Any) -> None:
    async def main() -> None:
        pool = lab.TokenPool(1, max_capacity=4, reserved={lab.REALTIME: 1})
        waiter = asyncio.create_task(pool.acquire_async(lab.BATCH))
        await asyncio.sleep(0)
        drain = asyncio.create_task(pool.drain_async())
        await asyncio.sleep(0)
        waiter.cancel()
        assert not await drain
        pool.close()

    lab.run(loops, main())


def test_epoch_is_drained(lab: Lab) -> None:
    with lab.TokenPool(2, clock=lab.clock()) as pool:
        old = pool.acquire()
        assert pool.advance() == 1 == pool.epoch
        new = pool.acquire()
        assert (old.epoch, new.epoch) == (0, 1)
        drain = lab.call(pool.drain_epoch, 0)
        lab.wait_until(lambda: pool.watched)
        old.release()
        assert not drain.result()
        new.release()
        with pytest.raises(ValueError, match=r"epoch 1 of 'pool' is not over .* call advance\(\)"):
            pool.drain_epoch(1)


def test_epoch_that_does_not_end_is_revoked(lab: Lab) -> None:
    clock, told = lab.clock(), []
    with lab.TokenPool(2, clock=clock, grace=3, on_revoke=told.append) as pool:
        old = pool.acquire(lab.BATCH)
        pool.advance()
        new = pool.acquire()
        left = pool.drain_epoch(0, timeout=0)
        assert len(left.held) == 1 and left.held[0].epoch == 0
        assert [token.handle for token in told] == [old.handle]
        assert (old.state, new.state) == ("revoked", "busy")
        clock.wait_for_sleepers(1)
        clock.advance(4)
        lab.wait_until(lambda: old.state == "released")
        with pytest.raises(StaleToken):
            old.release()
        assert pool.held == 1
        new.release()


def test_epoch_async(lab: Lab, loops: Any) -> None:
    async def main() -> None:
        with lab.TokenPool(1) as pool:
            token = pool.acquire()
            pool.advance()
            drain = asyncio.create_task(pool.drain_epoch_async(0))
            await asyncio.sleep(0)
            token.release()
            assert not await drain

    lab.run(loops, main())


def test_a_silent_holder_is_revoked_then_fenced(lab: Lab) -> None:
    clock, told = lab.clock(), []
    with lab.TokenPool(1, clock=clock, heartbeat=2, grace=1, on_revoke=told.append) as pool:
        token = pool.acquire()
        clock.wait_for_sleepers(1)
        clock.advance(1.5)
        token.heartbeat()
        clock.advance(1.5)
        assert token.state == "busy" and not told
        waiter = lab.call(pool.acquire, heartbeat=float("inf"))
        lab.in_line(pool, 1)
        clock.wait_for_sleepers(1)
        clock.advance(1)
        lab.wait_until(lambda: bool(told))
        assert token.state == "revoked" and pool.held == 1
        with pytest.raises(TokenRevoked, match="release"):
            token.heartbeat()
        clock.wait_for_sleepers(2)
        clock.advance(1.5)
        after = waiter.result()
        assert token.state == "released" and after.state == "busy" and pool.snapshot().revoked == 1
        for use in (token.heartbeat, token.release, token.release):
            with pytest.raises(StaleToken):
                use()
        assert after.held and pool.held == 1
        clock.advance(1000)
        assert after.held  # asked for no heartbeat
        after.release()


def test_a_revoked_holder_confirms(lab: Lab) -> None:
    clock = lab.clock()
    with lab.TokenPool(1, clock=clock) as pool:
        token = pool.acquire(heartbeat=1)
        clock.wait_for_sleepers(1)
        clock.advance(2)
        lab.wait_until(lambda: token.state == "revoked")
        token.release()
        assert pool.free == 1


@pytest.mark.parametrize(("load", "late"), [(lambda: 0.5, 0.5), (lambda: None, 0), (lambda: 1 / 0, 0)])
def test_beats_may_be_late_by_the_load(lab: Lab, load: Any, late: float) -> None:
    clock = lab.clock()
    with lab.TokenPool(1, clock=clock, heartbeat=10, load=load) as pool:
        token = pool.acquire()
        clock.wait_for_sleepers(1)
        clock.advance(10 * (1 + late) - 0.01)
        if late:
            lab.wait_until(lambda: pool.next_lease_ns() == clock.now_ns() + 10_000_000)
        assert token.state == "busy"
        clock.wait_for_sleepers(1)
        clock.advance(0.02)
        lab.wait_until(lambda: token.state == "revoked")
        token.release()


def test_on_revoke_that_raises_stops_nothing(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    clock = lab.clock()

    def fail(token: object) -> None:
        raise RuntimeError("no")

    with lab.TokenPool(2, clock=clock, heartbeat=1, grace=1, on_revoke=fail) as pool:
        tokens = [pool.acquire(), pool.acquire()]
        clock.wait_for_sleepers(1)
        clock.advance(2)
        lab.wait_until(lambda: all(token.state == "revoked" for token in tokens))
        clock.wait_for_sleepers(1)
        clock.advance(2)
        lab.wait_until(lambda: pool.held == 0)
    assert "on_revoke of 'pool' failed" in caplog.text


def test_a_closed_pool_still_ends_leases(lab: Lab) -> None:
    clock = lab.clock()
    pool = lab.TokenPool(1, clock=clock, heartbeat=1, grace=1)
    token = pool.acquire()
    pool.close()
    clock.wait_for_sleepers(1)
    clock.advance(2)
    lab.wait_until(lambda: token.state == "revoked")
    clock.wait_for_sleepers(1)
    clock.advance(2)
    lab.wait_until(lambda: token.state == "released")


def test_a_token_thrown_away_comes_back_and_says_where_it_was_acquired(lab: Lab) -> None:
    gc.collect()  # what other tests have left is not to be told of here
    with lab.TokenPool(1, trace=True) as pool:
        token = pool.acquire()
        waiter = lab.call(pool.acquire)
        lab.in_line(pool, 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del token
            gc.collect()
            waiter.result().release()
            lab.wait_until(lambda: bool(caught))
        assert "test_draining.py" in str(caught[0].message) and caught[0].category is ResourceWarning
        assert pool.snapshot().leaked == 1


def test_a_token_of_a_dropped_task_comes_back(lab: Lab, loops: Any) -> None:
    async def main() -> None:
        with lab.TokenPool(1) as pool:

            async def holder() -> None:
                async with pool.lease():
                    await asyncio.get_running_loop().create_future()

            task = asyncio.create_task(holder())
            await asyncio.sleep(0)
            waiter = asyncio.create_task(pool.acquire_async())
            await asyncio.sleep(0)
            assert (pool.held, pool.waiting) == (1, 1)
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            del task
            gc.collect()
            (await waiter).release()
            assert pool.held == 0

    lab.run(loops, main())


def test_trace_is_off_by_default_and_the_report_says_how(lab: Lab) -> None:
    with lab.TokenPool(1) as pool:
        token = pool.acquire()
        with pytest.warns(ResourceWarning, match="make the pool with trace=True"):
            del token
            gc.collect()
            pool.snapshot()


def test_times_out_while_draining(lab: Lab) -> None:
    clock = lab.clock()
    with lab.TokenPool(1, clock=clock) as pool:
        token = pool.acquire()
        waiter = lab.call(pool.acquire, timeout=1)
        lab.in_line(pool, 1)
        clock.wait_for_sleepers(1)
        pool.seal()
        clock.advance(2)
        with pytest.raises(AcquireTimeout):
            waiter.result()
        token.release()


def test_a_dropped_pool_ends_its_thread(lab: Lab) -> None:
    pool = lab.TokenPool(1)
    token = pool.acquire()
    waiter = lab.call(pool.acquire, timeout=1e9)
    lab.in_line(pool, 1)
    token.release()
    waiter.result().release()
    name = f"{pool.name}-alarm"
    before = [thread for thread in threading.enumerate() if thread.name == name]
    del pool, token, waiter
    gc.collect()
    lab.wait_until(lambda: not any(thread.is_alive() for thread in before))


@pytest.mark.parametrize("heartbeat", [0, -1, float("nan")])
def test_a_heartbeat_is_a_time(lab: Lab, heartbeat: float) -> None:
    with pytest.raises(ValueError, match="heartbeat"):
        lab.TokenPool(1, heartbeat=heartbeat)
    with lab.TokenPool(1) as pool, pytest.raises(ValueError, match="heartbeat"):
        pool.acquire(heartbeat=heartbeat)
