"""Whose turn it is in a pool: overdue waiters, shares of tenants, and how long a newcomer would wait."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Core
from permits_kit import Waiter, allowance, join, pool, release_next, serve

Make = Callable[..., Any]


@pytest.fixture
def make(core: Core) -> Make:
    return lambda *arguments, **keywords: pool(core, *arguments, **keywords)


@pytest.mark.parametrize("every", [2, 8])
def test_one_grant_in_so_many_is_for_the_oldest_overdue(make: Make, every: int) -> None:
    permits = make(1, (), 2_000, 0, allowance(urgent=10**9, ordinary=50, bulk=100), every)
    token = permits.try_acquire()
    for number in range(200):
        join(permits, priority=0, name=("urgent", number))
    join(permits, priority=2, name="bulk")
    join(permits, priority=1, name="ordinary")
    token = release_next(permits, token, 3 * every)
    assert [name for name in permits.told if isinstance(name, str)] == [], "nobody is overdue yet"
    permits.clock.now_ns += 60
    told = len(permits.told)
    token = release_next(permits, token, 2 * every)
    late = permits.told[told:]
    assert late.index("ordinary") <= every and "bulk" not in late
    permits.clock.now_ns += 60
    told = len(permits.told)
    token = release_next(permits, token, every)
    assert "bulk" in permits.told[told:]


def test_the_oldest_of_the_overdue_comes_first_whatever_its_tier(make: Make) -> None:
    permits = make(1, (), 20, 0, allowance(urgent=100, ordinary=100, bulk=100), 1)
    token = permits.try_acquire()
    for priority, tenant in ((2, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "b"), (0, "a")):
        permits.clock.now_ns += 10
        join(permits, priority=priority, tenant=tenant, name=permits.clock.now_ns)
    permits.clock.now_ns += 85  # four of them are overdue
    first = release_next(permits, token, 1)
    assert permits.told == [permits.joined[0].name]
    order = [permits.joined[number].name for number in (1, 2, 3, 5, 4)]
    assert serve(permits, first) == order, "and the rest by tier"


def test_a_lone_overdue_waiter_waits_for_eight_grants_at_most(make: Make) -> None:
    for ahead in range(20):
        permits = make(1, (), 2_000, 0, allowance(urgent=10**9, bulk=100), 8)
        token = permits.try_acquire()
        for _ in range(60):
            join(permits, priority=0)
        join(permits, priority=2, name="lone")
        token = release_next(permits, token, ahead)
        permits.clock.now_ns += 100
        told = len(permits.told)
        release_next(permits, token, 30)
        assert permits.told[told:].index("lone") < 8


def test_a_flood_of_overdue_bulk_does_not_delay_urgent_work(make: Make) -> None:
    permits = make(1, (), 2_000, 0, allowance(urgent=10**9, bulk=100), 8)
    token = permits.try_acquire()
    for _ in range(500):
        join(permits, priority=2, name="bulk")
    permits.clock.now_ns += 10**6
    for _ in range(80):
        join(permits, priority=0, name="urgent")
    release_next(permits, token, 80)
    assert permits.told.count("bulk") == 10
    gaps = [len(list(group)) for name, group in itertools.groupby(permits.told) if name == "bulk"]
    assert max(gaps) == 1, "never two of them in a row"
    permits = make(1, (), 10, 0, allowance(bulk=0), 0)
    token = permits.try_acquire()
    for priority in (2, 1, 0):
        join(permits, priority=priority, name=priority)
    assert serve(permits, token) == [0, 1, 2], "with 0 there is no such turn"


def test_an_overdue_turn_is_saved_up_for_who_lacks_enough(make: Make) -> None:
    permits = make(3, (), 100, 0, allowance(urgent=10**9, bulk=10), 2)
    tokens = [permits.try_acquire(0) for _ in range(3)]
    large = join(permits, priority=2, cost=2, name="large")
    urgent = [join(permits, priority=0) for _ in range(4)]
    permits.clock.now_ns += 10
    tokens.pop().release()
    assert urgent[0].token.held, "not its turn yet"
    tokens.pop().release()
    assert urgent[1].token is None and permits.free == 1, "its turn: nothing is granted that would leave less for it"
    tokens.pop().release()
    assert large.token.held and urgent[1].token is None
    urgent[0].token.release()
    assert urgent[1].token.held


@pytest.mark.parametrize("every", [8, 0])
def test_b3_one_of_low_priority_under_lasting_overload(make: Make, every: int) -> None:
    hold_ns, allowance_ns = 1_000_000, 100_000_000
    permits = make(1, (), 2_000, 0, allowance(urgent=10**10, bulk=allowance_ns), every)
    token = permits.try_acquire()
    low, start_ns = join(permits, priority=2), permits.clock.now_ns
    for number in range(6, 1_200):  # 1.2 arrive while one is served
        join(permits, priority=0)
        if number % 6:
            permits.clock.now_ns += hold_ns
            token = release_next(permits, token, 1)
            permits.joined = [one for one in permits.joined if one.index >= 0 or one.token.held]
            if low.token is not None:
                break
    waited_ns = permits.clock.now_ns - start_ns
    assert waited_ns <= allowance_ns + 8 * hold_ns if every else low.token is None
    assert permits.waiting > 15


class Crowd:
    """Tenants that always have requests waiting, all of one tier, and what each has been granted, in units."""

    def __init__(self, permits: Any, rng: random.Random, waiting: dict[str | None, int], most: int = 3) -> None:
        self.permits, self.rng, self.waiting, self.most = permits, rng, waiting, most
        self.line: dict[str | None, list[Waiter]] = {tenant: [] for tenant in waiting}
        self.held: list[Any] = []
        self.units: Counter[str | None] = Counter()

    def fill(self) -> None:
        for tenant, count in self.waiting.items():
            while len(self.line[tenant]) < count:
                waiter = Waiter()
                cost = self.rng.randint(1, self.most)
                token = self.permits.acquire_or_join(1, None, waiter, cost, tenant)
                self.line[tenant].append(waiter)
                assert token is None or token is waiter.token

    def run(self, units: int) -> Counter[str | None]:
        """Until so many units more have been granted; what was granted meanwhile."""
        before = Counter(self.units)
        while sum(self.units.values()) - sum(before.values()) < units:
            self.fill()
            for tenant, line in self.line.items():
                for waiter in [waiter for waiter in line if waiter.token is not None]:
                    line.remove(waiter)
                    self.held.append(waiter.token)
                    self.units[tenant] += waiter.token.cost
            self.permits.clock.now_ns += 1_000
            self.held.pop(self.rng.randrange(len(self.held))).release()
        return self.units - before


@pytest.mark.parametrize("flooding", ["a", "b", "c"])
def test_shares_are_as_the_weights_whoever_floods(make: Make, rng: random.Random, flooding: str) -> None:
    permits = make(8, (), 1_000, weights={"a": 1, "b": 2, "c": 4})
    crowd = Crowd(permits, rng, {"a": 12, "b": 12, "c": 12, flooding: 120})
    units = crowd.run(7_000)
    for tenant, weight in (("a", 1), ("b", 2), ("c", 4)):
        assert units[tenant] / units.total() == pytest.approx(weight / 7, rel=0.03), units


def test_shares_are_of_units_not_of_grants(make: Make) -> None:
    permits = make(6, weights={})
    token = permits.try_acquire(1, 6)
    for _ in range(36):
        join(permits, tenant="small", name=1)
        join(permits, tenant="large", cost=3, name=3)
    token.release()
    while permits.granted < 41:
        next(one for one in permits.joined if one.token is not None and one.token.held).token.release()
    assert abs(permits.told[:40].count(1) - 3 * permits.told[:40].count(3)) <= 3


def test_an_idle_tenant_saves_nothing_up(make: Make, rng: random.Random) -> None:
    permits = make(4, (), 1_000, weights={None: 2}, weight=1.0)
    crowd = Crowd(permits, rng, {None: 9, "a": 9}, most=1)
    units = crowd.run(300)
    assert units[None] == pytest.approx(200, abs=6)
    crowd.waiting["late"] = 9
    crowd.line["late"] = []
    units = crowd.run(80)
    assert units[None] == pytest.approx(40, abs=6)
    assert units["late"] == pytest.approx(20, abs=6), "its share, and no more"


def test_shares_hold_when_virtual_time_starts_over(make: Make, rng: random.Random) -> None:
    share = 2.0**-10
    permits = make(2**14, (), 100, weights={"a": share, "b": share * 2, "c": share * 4})
    token = permits.try_acquire(1, 2**14, "a")
    for tenant in "abc":
        join(permits, tenant=tenant, cost=2**14)
    granted: Counter[str] = Counter()
    for _ in range(7_000):  # of 2**44 / 7 on average, and it starts over at 2**53
        token = release_next(permits, token, 1)
        granted[token.tenant] += 1
        permits.joined = [waiter for waiter in permits.joined if waiter.index >= 0 or waiter.token.held]
        join(permits, tenant=token.tenant, cost=2**14)
    for tenant, weight in (("a", 1), ("b", 2), ("c", 4)):
        assert granted[tenant] == pytest.approx(1_000 * weight, abs=3)


def test_shares_are_inside_a_tier(make: Make) -> None:
    permits = make(1, weights={"a": 1, "b": 1})
    token = permits.try_acquire(1, 1, "a")
    for priority, tenant in ((2, "b"), (1, "a"), (1, "b"), (0, "a"), (0, "a"), (1, "b")):
        join(permits, priority=priority, tenant=tenant, name=(priority, tenant))
    assert serve(permits, token) == [(0, "a"), (0, "a"), (1, "b"), (1, "a"), (1, "b"), (2, "b")]
    assert permits.by_tenant() == {}


def test_who_is_at_its_cap_keeps_its_place_in_virtual_time(make: Make) -> None:
    permits = make(3, weights={}, caps={"a": 1})
    tokens = [permits.try_acquire(1, 1, "a"), *(permits.try_acquire(1, 1, tenant) for tenant in "bb")]
    join(permits, tenant="a", name="a")
    for number in range(6):
        join(permits, tenant="b", name=f"b{number}")
    for _ in range(4):
        tokens[1] = release_one(permits, tokens[1])
    assert permits.told == ["b0", "b1", "b2", "b3"], "nobody waits for who is at its cap"
    tokens[0].release()
    assert permits.told[4:] == ["a"]
    join(permits, tenant="a", name="again")
    permits.joined[0].token.release()
    assert permits.told[5:] == ["again"], "it had waited, not idled: it is still behind"


def release_one(permits: Any, token: Any) -> Any:
    told = len(permits.told)
    token.release()
    (name,) = permits.told[told:]
    (waiter,) = [waiter for waiter in permits.joined if waiter.name == name]
    return waiter.token


def test_debts_of_the_idle_are_forgotten_when_there_are_too_many(make: Make) -> None:
    permits = make(1, (), 2, weights={})
    for _ in range(3):
        permits.try_acquire(1, 1, "debtor").release()
    token = permits.try_acquire(1, 1, "other")
    join(permits, tenant="debtor", name="debtor")
    join(permits, tenant="new", name="new")
    assert serve(permits, token) == ["new", "debtor"]
    for number in range(4):  # as many as there are places, and one for each unit, and one more
        permits.try_acquire(1, 1, f"other {number}").release()
    token = permits.try_acquire(1, 1, "holder")
    join(permits, tenant="debtor", name="debtor")
    join(permits, tenant="new", name="new")
    assert serve(permits, token) == ["debtor", "new"]


def test_prediction(make: Make) -> None:
    permits = make(2)
    tokens = [permits.try_acquire(), permits.try_acquire()]
    assert permits.predict_ns() == -1, "nothing has come back while anybody waited"
    tokens.pop().release()
    tokens.append(permits.try_acquire())
    assert permits.predict_ns() == -1
    for _ in range(8):
        join(permits, priority=2)
    for _ in range(3):
        permits.clock.now_ns += 1_000_000
        permits.tokens()[0].release()
    per_unit = permits.predict_ns("batch") / 6  # 5 are ahead of it
    assert per_unit == pytest.approx(1_000_000, rel=0.01)
    assert permits.predict_ns(2, 4) == pytest.approx(9 * per_unit, rel=0.01)
    assert permits.predict_ns(1) == pytest.approx(per_unit, rel=0.01), "nobody of its tier or above waits"
    for _ in range(5):
        permits.clock.now_ns += 3_000_000
        permits.tokens()[0].release()
    assert permits.waiting == 0 and 1_000_000 < permits.predict_ns() < 3_000_000
    permits.tokens()[0].release()
    assert permits.predict_ns() == 0 < permits.predict_ns(1, 2)
