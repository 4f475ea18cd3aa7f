"""TokenPool: caps, reserved units, and who is refused instead of waiting."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Make, Run, turns

from relay.errors import AcquireTimeout, Overloaded, TooLarge

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]


# Caps and floors.


def test_one_cap_for_each_tenant(make: Make, run: Run) -> None:
    pool = make(4, tenant_caps=2)

    async def main() -> None:
        mine = [pool.acquire(0, tenant="acme") for _ in range(2)]
        third = asyncio.create_task(pool.acquire_async(0, tenant="acme"))
        await turns(1)
        assert pool.waiting == 1 and pool.free == 2
        others = [pool.acquire(2, timeout=0, tenant="bolt"), pool.acquire(2, timeout=0)]  # nobody waits for its turn
        state = pool.snapshot().tenants
        assert {name: (t.held, t.waiting, t.cap) for name, t in state.items()} == {"acme": (2, 1, 2), "bolt": (1, 0, 2)}
        mine.pop().release()
        for token in (*mine, *others, await third):
            token.release()
        assert pool.snapshot().tenants == {}
        anybodys = [pool.acquire(timeout=0) for _ in range(4)]  # who names no tenant has no cap
        for token in anybodys:
            token.release()

    run(main())


def test_caps_by_name(make: Make) -> None:
    pool = make(4, tenant_caps={"acme": 3, "gone": 0})
    for tenant, most in (("acme", 3), ("bolt", 4), (None, 4)):
        tokens = [pool.try_acquire(tenant=tenant) for _ in range(5)]
        assert [token is not None for token in tokens] == [True] * most + [False] * (5 - most)
        assert {name: t.cap for name, t in pool.snapshot().tenants.items()} == {
            "acme": {"acme": 3}, "bolt": {"bolt": None}, None: {}
        }[tenant]  # fmt: skip
        for token in tokens[:most]:
            token.release()
    for tenant, cost in (("acme", 4), ("gone", 1)):
        for call in (pool.acquire, pool.try_acquire):
            with pytest.raises(Overloaded, match=f"units that tenant '{tenant}' may hold") as refused:
                call(cost=cost, tenant=tenant)
            assert refused.value.reason == "tenant_cap" and refused.value.http_status == 429


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"tenant_caps": -1}, ValueError, "tenant_caps must be at least 0, got -1; None for no limit"),
        ({"tenant_caps": 1.5}, TypeError, "tenant_caps must be a number of units, or map tenants to it, got 1.5"),
        ({"tenant_caps": "acme"}, TypeError, "tenant_caps must be"),
        ({"tenant_caps": {"acme": -1}}, ValueError, "a tenant's cap must be at least 0"),
        ({"tenant_caps": {"acme": 1.5}}, TypeError, "a tenant's cap"),
        ({"reserved": 1}, TypeError, r"reserved must map tiers to units, as {relay.REALTIME: 1}, got 1"),
        ({"reserved": {0: -1}}, ValueError, "a reserved count must be at least 0"),
        ({"reserved": {0: 1.5}}, TypeError, "a reserved count"),
        ({"reserved": {"realtime": 1, 2: 4}}, ValueError, "reserved tokens come to 5, but the pool has only 4"),
        ({"max_wait": -1}, ValueError, "max_wait must be"),
        ({"max_wait": float("nan")}, ValueError, "max_wait must be"),
    ],
)
def test_bad_limits(lab: Lab, options: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        lab.TokenPool(4, **options)


def test_reserved_by_name(lab: Lab, make: Make) -> None:
    pool = make(8, reserved={"realtime": 2, lab.INTERACTIVE: 4})
    bulk = [pool.try_acquire("batch") for _ in range(3)]
    assert bulk[2] is None
    urgent = [pool.try_acquire("Realtime") for _ in range(3)]
    assert urgent[2] is None and pool.free == 4, "a floor is kept, not lent"
    tokens = [*bulk[:2], *urgent[:2], *(pool.try_acquire(1) for _ in range(4))]
    state = pool.snapshot().tiers
    assert {level: (t.held, t.reserved) for level, t in state.items()} == {0: (2, 2), 1: (4, 4), 2: (2, 0)}
    for token in tokens:
        token.release()
    pool.resize(4)
    assert {level: t.reserved for level, t in pool.snapshot().tiers.items()} == {0: 1, 1: 2}
    pool.resize(8)
    assert {level: t.reserved for level, t in pool.snapshot().tiers.items()} == {0: 2, 1: 4}


# Bounded waiting.


def paced(pool: Any, clock: Any, seconds: float, count: int) -> Any:
    """While some wait, a unit comes back every so many seconds; then the pool is full, and nobody waits."""

    async def main() -> Any:
        token = pool.acquire(0)
        line = [asyncio.create_task(pool.acquire_async(0)) for _ in range(count)]
        await turns(1)
        for wait in line:
            clock.advance(seconds)
            token.release()
            token = await wait
        return token

    return main()


def test_max_wait_refuses_who_would_wait_too_long(make: Make, clock: Any, run: Run) -> None:
    pool = make(1, max_wait=1.9)

    async def main() -> None:
        token = await paced(pool, clock, 0.5, 8)
        line = [asyncio.create_task(pool.acquire_async(1)) for _ in range(3)]  # 0.5, 1.0 and 1.5 s
        await turns(1)
        for call in (pool.acquire, pool.lease(1).__enter__):
            with pytest.raises(Overloaded, match=r"would be free in about 2 s, and max_wait is 1\.9 s") as refused:
                call()
            assert refused.value.reason == "predicted_late" and refused.value.http_status == 429
            assert refused.value.retry_after == pytest.approx(0.1, rel=1e-3)
        for wait in (pool.acquire_async(2), pool.run_async(int), pool.acquire_async(1, cost=1, timeout=50)):
            with pytest.raises(Overloaded):
                await wait
        assert pool.snapshot().refused_by == {"predicted_late": 5} and pool.snapshot().refused == 5
        assert pool.waiting == 3
        with pytest.raises(AcquireTimeout):
            await pool.acquire_async(1, timeout=0)  # who does not wait is not late
        line.append(asyncio.create_task(pool.acquire_async(0)))  # more urgent: 0.5 s
        await turns(1)
        assert pool.waiting == 4
        token.release()
        for wait in (line[3], *line[:3]):
            (await wait).release()

    run(main())


def test_nobody_is_refused_on_a_guess(make: Make, run: Run) -> None:
    pool = make(1, max_wait=0)

    async def main() -> None:
        token = pool.acquire()
        line = [asyncio.create_task(pool.acquire_async()) for _ in range(50)]
        await turns(1)
        assert pool.waiting == 50, "how fast units come back is not known yet"
        token.release()
        for wait in line:
            (await wait).release()

    run(main())


@pytest.mark.parametrize("limit", [0, 3])
def test_max_waiting_refuses_one_too_many(make: Make, clock: Any, run: Run, limit: int) -> None:
    pool = make(1, max_waiting=limit)

    async def main() -> None:
        token = pool.acquire()
        line = [asyncio.create_task(pool.acquire_async(1)) for _ in range(limit)]
        await turns(1)
        retry_after = None
        for count in (1, 2):
            with pytest.raises(Overloaded, match=f"{limit} callers already wait .* which is max_waiting") as refused:
                await pool.acquire_async(0)
            with pytest.raises(Overloaded, match="max_waiting"):
                pool.acquire(0)
            assert (refused.value.reason, refused.value.http_status) == ("queue_full", 429)
            assert refused.value.retry_after == (retry_after and pytest.approx(retry_after, rel=1e-3))
            assert pool.snapshot().refused_by == {"queue_full": 2 * count}
            if not limit:
                break
            for wait in line:
                clock.advance(0.25)
                token.release()
                token = await wait
            line = [asyncio.create_task(pool.acquire_async(1)) for _ in range(limit)]
            await turns(1)
            retry_after = 0.25  # nobody of its own tier is ahead of it
        token.release()
        for wait in line:
            (await wait).release()

    run(main())


def test_what_can_never_be_had_is_refused_at_once(make: Make, run: Run) -> None:
    pool = make(4, max_capacity=8, reserved={0: 1})
    text = "cost {} is more than the {} units that this pool could ever give to priority {}"

    async def main() -> None:
        for cost, most, priority in ((5, 4, 0), (4, 3, 1), (4, 3, 2), (9, 3, 255)):
            for call in (pool.acquire, pool.try_acquire):
                with pytest.raises(TooLarge, match=text.format(cost, most, priority)) as refused:
                    call(priority, cost=cost)
                assert isinstance(refused.value, ValueError) and refused.value.http_status == 413
            with pytest.raises(TooLarge, match=text.format(cost, most, priority)):
                await pool.acquire_async(priority, cost=cost, timeout=9)
        assert pool.waiting == 0
        pool.resize(8)
        pool.acquire(1, cost=7).release()
        for cost, kind in ((0, ValueError), (-1, ValueError), (1.0, TypeError), ("1", TypeError)):
            with pytest.raises(kind, match="cost"):
                pool.acquire(cost=cost)

    run(main())
