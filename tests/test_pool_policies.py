"""TokenPool: whose turn it is under each policy.

All on a fake clock: who comes when, and who is served after whom, is known to the nanosecond.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pool_kit import Make, Run, turns

from relay.errors import AcquireTimeout

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
