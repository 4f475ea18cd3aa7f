"""TokenPool: the numbers that it tells of itself, on a fake clock."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Make, Run, turns

from relay.errors import AcquireTimeout, Overloaded

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]


def rank(waits: list[float], share: float) -> float:
    return sorted(waits)[math.ceil(share * len(waits)) - 1]


@pytest.mark.parametrize("at_once", [0, 300])
def test_waiting_times(make: Make, clock: Any, run: Run, rng: random.Random, at_once: int) -> None:
    """Mean and quantiles of all tokens, those had at once included."""
    pool = make(1)
    waits = [0.0] * (at_once + 1)

    async def work(length: float) -> None:
        since = clock.now_ns()
        async with pool.lease():
            waits.append((clock.now_ns() - since) / 1e9)
            clock.advance(length)

    async def main() -> None:
        for _ in range(at_once):
            pool.acquire().release()
        token = pool.acquire()
        tasks = []
        for _ in range(400):
            tasks.append(asyncio.create_task(work(rng.lognormvariate(-6, 2))))
            await turns(1)
            clock.advance(rng.lognormvariate(-9, 2))
        token.release()
        await asyncio.gather(*tasks)

    run(main())
    state = pool.snapshot()
    assert state.granted == len(waits) == at_once + 401
    assert state.mean_wait == pytest.approx(sum(waits) / len(waits), rel=1e-6)
    for name, share in (("p50_wait", 0.5), ("p95_wait", 0.95), ("p99_wait", 0.99)):
        assert getattr(state, name) == pytest.approx(rank(waits, share), rel=0.04), name


def test_no_waits_yet(make: Make) -> None:
    state = make(1).snapshot()
    assert (state.mean_wait, state.p50_wait, state.p99_wait, state.qps, state.granted) == (0.0,) * 4 + (0,)
    assert state.refused_by == {} and state.tiers == {} and state.tenants == {}


def test_qps(make: Make, clock: Any) -> None:
    pool = make(1)
    for _ in range(300):  # 25 a second, looked at ten times a second
        for _ in range(5):
            clock.advance(0.04)
            pool.acquire().release()
        state = pool.snapshot()
    assert state.qps == pytest.approx(25, rel=0.04)
    for _ in range(200):  # 5 a second: forgotten after about ten seconds
        clock.advance(0.2)
        pool.acquire().release()
        state = pool.snapshot()
    assert state.qps == pytest.approx(5, rel=0.04)
    clock.advance(1e6)
    assert pool.snapshot().qps == pytest.approx(0, abs=1e-4)


def test_what_a_snapshot_counts(lab: Lab, make: Make, clock: Any, run: Run) -> None:
    pool = make(5, max_capacity=6, reserved={0: 1}, tenant_caps={"acme": 3}, max_waiting=4, name="gpu")

    async def main() -> None:
        tokens = [pool.acquire(1, cost=2, tenant="acme"), pool.acquire(2), pool.acquire("realtime", tenant="bolt")]
        line = [
            asyncio.create_task(pool.acquire_async(2, cost=3, tenant="acme")),
            asyncio.create_task(pool.acquire_async(1, cost=2, timeout=3)),
            asyncio.create_task(pool.acquire_async(0, cost=4, tenant="bolt")),
            asyncio.create_task(pool.acquire_async(7, cost=4, timeout=2)),
        ]
        await turns(1)
        with pytest.raises(Overloaded):
            await pool.acquire_async(1, cost=2)
        state = pool.snapshot()
        counted = (state.name, state.backend, state.capacity, state.max_capacity, state.held, state.free, state.tokens)
        assert counted == ("gpu", lab.backend, 5, 6, 4, 1, 3)
        assert (state.waiting, state.granted, state.epoch, state.revoked, state.leaked) == (4, 3, 0, 0, 0)
        assert (state.refused, dict(state.refused_by)) == (1, {"queue_full": 1})
        tiers = {level: (t.held, t.waiting, t.reserved) for level, t in state.tiers.items()}
        assert tiers == {0: (1, 1, 1), 1: (2, 1, 0), 2: (1, 1, 0), 7: (0, 1, 0)}
        tenants = {name: (t.held, t.waiting, t.cap) for name, t in state.tenants.items()}
        assert tenants == {"acme": (2, 1, 3), "bolt": (1, 1, None)}
        for part in (state, state.tiers[0], state.tenants["acme"]):
            with pytest.raises(FrozenInstanceError):
                part.held = 0
        clock.advance(2)
        with pytest.raises(AcquireTimeout):
            await line[3]
        line[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await line[2]
        with pytest.raises(AcquireTimeout):
            pool.acquire(2, cost=2, timeout=0)
        later = pool.snapshot()
        assert (later.timed_out, later.cancelled, later.waiting, later.granted) == (2, 1, 2, 3)
        assert (state.timed_out, state.waiting) == (0, 4), "a snapshot does not move"
        assert pool.advance() == pool.snapshot().epoch == 1
        pool.resize(6)
        assert (pool.snapshot().capacity, pool.snapshot().free) == (6, 0), "one in line had what came"
        for token in (*tokens, await line[1]):
            token.release()
        (await line[0]).release()
        assert pool.snapshot().granted == 5

    run(main())
