"""TokenPool: whose turn it is under each policy, what is refused, and the numbers it tells of itself.

All on a fake clock: who comes when, and who is served after whom, is known to the nanosecond.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import FrozenInstanceError
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pool_kit import Make, Run, turns

from relay.errors import AcquireTimeout, Overloaded, TooLarge

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]

NAN, INFINITY = float("nan"), float("inf")

Serve = Callable[..., list[Any]]


@pytest.fixture
def serve(run: Run, clock: Any) -> Serve:
    """Lets requests, each (label, options of `acquire_async`), come one after the other while all units of a pool are
    taken, then gives them back: the labels in order of service. `gap` seconds lie between two arrivals, and each holds
    its token for `hold` seconds."""

    def labels(pool: Any, requests: Iterable[tuple[Any, dict[str, Any]]], gap: float = 0.0, hold: float = 0.0) -> Any:
        served: list[Any] = []

        async def work(label: Any, options: dict[str, Any]) -> None:
            async with pool.lease(**options):
                served.append(label)
                clock.advance(hold)

        async def main() -> None:
            tokens = [pool.acquire(0) for _ in range(pool.capacity)]
            tasks = []
            for label, options in requests:
                tasks.append(asyncio.create_task(work(label, options)))
                await turns(1)
                clock.advance(gap)
            assert pool.waiting == len(tasks)
            for token in tokens:
                token.release()
            await asyncio.gather(*tasks)

        run(main())
        return served

    return labels


def tier(priority: int, count: int, label: str = "") -> list[tuple[str, dict[str, Any]]]:
    return [(label or "RIB"[priority], {"priority": priority})] * count


# Dynamic and strict.


def test_one_grant_in_eight_is_for_the_oldest_overdue(make: Make, clock: Any, serve: Serve) -> None:
    """Tier first, but for the bulk that has waited for 11 s: it is served among the urgent, though never twice in 8."""
    served = "".join(serve(make(1), [*tier(2, 3), *tier(1, 2), *tier(0, 20)], gap=4))
    assert served == "RRRRRRRBRRRRRRRBRRRRRRIBI"


def test_who_is_not_overdue_waits_for_its_tier(make: Make, serve: Serve) -> None:
    served = "".join(serve(make(1), [*tier(2, 2), *tier(1, 2), *tier(0, 20)]))
    assert served == "R" * 20 + "IIBB"


def test_allowances_are_the_users(lab: Lab, make: Make, serve: Serve) -> None:
    pool = make(1, policy=lab.DynamicPriority(allowance={0: 1e6, 2: 1.0}))
    assert "".join(serve(pool, [*tier(2, 1), *tier(1, 1), *tier(0, 9)], gap=0.5)) == "RRRRRRRBRRI"


def test_strict_priority_lets_bulk_starve(lab: Lab, make: Make, serve: Serve) -> None:
    served = "".join(serve(make(1, policy=lab.StrictPriority()), [*tier(2, 3), *tier(1, 2), *tier(0, 20)], gap=100))
    assert served == "R" * 20 + "IIBBB"


@pytest.mark.parametrize("name", ["DynamicPriority", "StrictPriority", "Weighted", "RoundRobin"])
def test_equals_are_served_as_they_came(lab: Lab, make: Make, serve: Serve, name: str) -> None:
    pool = make(1, policy=getattr(lab, name)())
    for gap in (0.0, 1e-9, 3.0):
        requests = [(i, {"priority": 3}) for i in range(50)]
        assert serve(pool, requests, gap=gap) == list(range(50))


def test_a_heavy_request_is_passed_until_its_allowance_is_over(make: Make, clock: Any, run: Run) -> None:
    pool = make(3)

    async def main() -> None:
        one, two = pool.acquire(), pool.acquire(cost=2)
        heavy = asyncio.create_task(pool.acquire_async(1, cost=3))
        await turns(1)
        two.release()
        for _ in range(5):  # lighter ones pass it
            pool.acquire(1, timeout=0, cost=2).release()
            clock.advance(0.1)
        for priority in (1, 2):  # not any more: what comes back is kept for it
            with pytest.raises(AcquireTimeout):
                pool.acquire(priority, timeout=0)
        assert pool.try_acquire(0) is not None, "the more urgent still may"
        await turns(1)
        one.release()
        (await heavy).release()

    run(main())


# Shares.


def flood(**counts: int) -> list[tuple[str, dict[str, Any]]]:
    """So many requests of each tenant, one tenant after the other."""
    return [(name, {"tenant": name}) for name, count in counts.items() for _ in range(count)]


def test_weights_share_inside_a_tier(lab: Lab, make: Make, serve: Serve) -> None:
    pool = make(1, policy=lab.Weighted({"a": 1, "b": 2, "c": 4}))
    served = serve(pool, flood(c=400, b=200, a=100))
    for end in range(7, 700, 7):
        shares = [served[:end].count(name) * 7 / end for name in "abc"]
        assert shares == pytest.approx([1, 2, 4], abs=21 / end)


def test_who_floods_lengthens_only_its_own_line(lab: Lab, make: Make, serve: Serve) -> None:
    served = serve(make(1, policy=lab.RoundRobin()), flood(flood=300, a=10, b=10))
    assert sorted(served[:30]) == ["a"] * 10 + ["b"] * 10 + ["flood"] * 10
    assert served[30:] == ["flood"] * 290


def test_turns(lab: Lab, make: Make, serve: Serve) -> None:
    served = serve(make(1, policy=lab.RoundRobin()), flood(a=3, b=2, c=4))
    assert served == ["a", "b", "c", "a", "b", "c", "a", "c", "c"]


def test_shares_are_counted_in_units(lab: Lab, make: Make, serve: Serve) -> None:
    pool = make(4, policy=lab.RoundRobin(allowance={0: 0}))  # nobody passes one whose turn it is
    requests = [("heavy", {"tenant": "heavy", "cost": 4})] * 10 + [("light", {"tenant": "light"})] * 40
    served = serve(pool, requests)
    for end in range(5, 50, 5):
        assert served[:end].count("light") == pytest.approx(4 * served[:end].count("heavy"), abs=4)


def test_requests_without_a_tenant_share_as_one(lab: Lab, make: Make, serve: Serve) -> None:
    pool = make(1, policy=lab.Weighted({None: 3}, default=1))
    served = serve(pool, [("none", {})] * 30 + flood(a=10))
    assert [served[: 4 * i].count("a") for i in range(1, 10)] == pytest.approx(list(range(1, 10)), abs=1)


def test_shares_come_after_tiers(lab: Lab, make: Make, serve: Serve) -> None:
    pool = make(1, policy=lab.Weighted({"a": 1000}))
    requests = [("a", {"tenant": "a", "priority": 2})] * 3 + [("b", {"tenant": "b", "priority": "realtime"})] * 3
    assert serve(pool, requests, gap=100) == ["b"] * 3 + ["a"] * 3


def test_an_idle_tenant_saves_nothing_up(lab: Lab, make: Make, serve: Serve) -> None:
    pool = make(1, policy=lab.RoundRobin())
    serve(pool, flood(a=100))
    assert serve(pool, flood(a=6, b=6))[:6].count("b") in (3, 4)


# A policy of the user's.


def test_a_function_of_facts(lab: Lab, make: Make, clock: Any, serve: Serve) -> None:
    told: list[Any] = []

    def heaviest_first(facts: Any) -> int:
        told.append(facts)
        return -int(facts.cost)

    pool = make(1, max_capacity=9, policy=heaviest_first)
    pool.resize(9)
    pool.acquire().release()
    assert not told, "it is asked only where somebody has to wait"
    pool.resize(3)
    costs = [1, 3, 2, 1, 3]
    requests = [(i, {"priority": i, "cost": cost, "tenant": f"t{i}"}) for i, cost in enumerate(costs)]
    assert serve(pool, requests, gap=2) == [1, 4, 2, 0, 3]
    assert told == [(i, 1000 + 2 * i, None, cost, f"t{i}") for i, cost in enumerate(costs)], "once for each"
    assert all(type(facts) is lab.Facts for facts in told)


@pytest.mark.parametrize("key", [lambda f: 0, lambda f: False, lambda f: np.int64(7), lambda f: -(2**63)])
def test_equal_keys_are_served_as_they_came(make: Make, serve: Serve, key: Any) -> None:
    served = serve(make(1, policy=key), [*tier(2, 3, "early"), *tier(0, 3, "late")], gap=1)
    assert served == ["early"] * 3 + ["late"] * 3


@pytest.mark.parametrize("end", [-1, 1])
def test_keys_may_be_any_ints_of_64_bits(make: Make, serve: Serve, rng: random.Random, end: int) -> None:
    keys = [rng.randrange(-(2**63), 2**63) for _ in range(50)] + [2**63 - 1, -(2**63)]
    pool = make(1, policy=lambda facts: end * keys[int(facts.tenant)] - (end < 0))
    assert serve(pool, [(keys[i], {"tenant": str(i)}) for i in range(52)]) == sorted(keys, reverse=end < 0)


class Broken(Exception):
    """A user's."""


def breaks(facts: Any) -> int:
    raise Broken(f"tier {facts.priority}")


BAD_KEYS = [
    (lambda f: 1.0, TypeError, r"a policy must return an int, smaller first; <function .* returned 1\.0"),
    (lambda f: NAN, TypeError, "returned nan"),
    (lambda f: np.float64(2), TypeError, "a policy must return an int"),
    (lambda f: None, TypeError, "returned None"),
    (lambda f: "1", TypeError, "returned '1'"),
    (lambda f: 2**63, OverflowError, "key"),
    (breaks, Broken, "tier 2"),
    (lambda: 1, TypeError, "positional argument"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "kind", "text"), BAD_KEYS)
def test_a_bad_key_reaches_its_caller_and_nobody_else(
    make: Make, clock: Any, run: Run, key: Any, kind: type[Exception], text: str
) -> None:
    calls: list[int] = []

    def policy(*facts: Any) -> Any:
        calls.append(1)
        return key(*facts) if facts[0].tenant == "bad" else 0

    pool = make(1, policy=key if text.startswith("a policy must return an int, s") else policy)
    always = pool._policy._function is key

    async def main() -> None:
        token = pool.acquire()
        if not always:
            good = asyncio.create_task(pool.acquire_async(2))
            await turns(1)
        for call in (
            partial(pool.acquire, 2, tenant="bad"),
            partial(pool.acquire, 2, tenant="bad", timeout=5),
            pool.lease(2, tenant="bad").__enter__,
        ):
            with pytest.raises(kind, match=text):
                call()
        for wait in (pool.acquire_async(2, tenant="bad", timeout=5), pool.run_async(int, priority=2, tenant="bad")):
            with pytest.raises(kind, match=text):
                await wait
        assert (pool.held, pool.waiting) == (1, 0 if always else 1)
        assert always or len(calls) == 1 + 5
        token.release()
        if not always:
            (await good).release()
        pool.acquire(2, tenant="bad").release()  # nobody waits: nobody is asked

    run(main())


@pytest.mark.parametrize(
    "policy", ["strict", 3, object(), {"a": 1}, "RoundRobin"],
)  # fmt: skip
def test_what_is_no_policy(lab: Lab, policy: Any) -> None:
    with pytest.raises(TypeError, match=r"policy must be a relay policy such as DynamicPriority\(\), or a function"):
        lab.TokenPool(1, policy=policy)


def test_a_class_is_no_policy(lab: Lab) -> None:
    for kind in (lab.DynamicPriority, lab.Weighted, lab.Policy, int):
        with pytest.raises(TypeError, match="policy must be"):
            lab.TokenPool(1, policy=kind)


@pytest.mark.parametrize("weight", [0, -1, NAN, INFINITY, 2.0**-11, 2.0**21])
def test_bad_weights(lab: Lab, weight: float) -> None:
    for policy in (lab.Weighted({"a": weight}), lab.Weighted({None: weight}), lab.Weighted(default=weight)):
        with pytest.raises(ValueError, match=r"a weight must be from 0\.0009765625 to 1048576\.0, got"):
            lab.TokenPool(1, policy=policy)


def test_bad_names_of_tenants(lab: Lab, make: Make) -> None:
    with pytest.raises(TypeError, match="tenant must be a str or None"):
        lab.TokenPool(1, policy=lab.Weighted({1: 1}))
    with pytest.raises(TypeError, match="tenant must be a str or None"):
        lab.TokenPool(1, tenant_caps={1: 1})
    with pytest.raises(TypeError, match="tenant must be a str or None"):
        make(1).acquire(tenant=b"acme")


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
        ({"max_wait": NAN}, ValueError, "max_wait must be"),
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


# Numbers.


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
