"""How fair a pool is, in virtual time: requests come and go in a simulation, around a real pool; scenario B3.

No thread runs and nothing sleeps: the fake clock goes from event to event. A hold is the mean time for which a token is
kept; waits are told in holds. The seeds are fixed, so that the figures, which are printed, are always the same.
"""

from __future__ import annotations

import heapq
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Make

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]

NS = 1_000_000_000
HOLD_NS = 10_000_000


class Request:
    """One request, which is its own waiter."""

    __slots__ = ("arrival_ns", "cost", "hold_ns", "index", "simulation", "tenant", "tier", "token")

    def __init__(self, tier: int, hold_ns: int, cost: int = 1, tenant: str | None = None) -> None:
        self.tier, self.hold_ns, self.cost, self.tenant = tier, hold_ns, cost, tenant
        self.token: Any = None

    def wake(self) -> bool:
        if self.token is not None:
            self.simulation.granted(self)
        return True


class Simulation:
    """Requests that come to a pool, get a token, keep it for their time, and release it.

    Attributes:
        served: The requests that got a token, with the time when they did, in order.
    """

    def __init__(self, pool: Any, clock: Any) -> None:
        self.pool, self.clock, self.over = pool, clock, False
        pool.ready = True  # nobody needs its alarm
        self.served: list[tuple[int, Request]] = []
        self.start_ns = clock.now_ns()
        self.then: Callable[[Request], None] = lambda request: None
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    @property
    def now_ns(self) -> int:
        return int(self.clock.now_ns()) - self.start_ns

    def at(self, when_ns: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (int(when_ns), self._count, event))

    def stream(self, gaps: Iterator[float], request: Callable[[], Request]) -> None:
        """Requests that come one after the other, with such gaps between them, for ever."""

        def come() -> None:
            if not self.over:
                self.come(request())
                self.at(self.now_ns + next(gaps), come)

        self.at(self.now_ns + next(gaps), come)

    def come(self, request: Request) -> None:
        request.simulation, request.arrival_ns = self, self.now_ns
        facts = (request.cost, request.tenant)
        if self.pool.acquire_or_join(request.tier, None, request, *facts) is not None:
            self.granted(request)

    def granted(self, request: Request) -> None:
        self.served.append((self.now_ns, request))
        token, request.token = request.token, None
        self.at(self.now_ns + request.hold_ns, token.release)
        self.then(request)

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        while self._events[0][0] < seconds * NS:
            when_ns, _, event = heapq.heappop(self._events)
            self.clock.advance((when_ns - self.now_ns + 0.5) / NS)
            event()

    def end(self) -> None:
        """No more come, nobody waits any more, and what is held comes back."""
        self.over = True
        self.pool.shut()
        while self._events:
            heapq.heappop(self._events)[2]()


@pytest.fixture
def simulate(make: Make, clock: Any) -> Iterator[Callable[..., Simulation]]:
    made: list[Simulation] = []

    def simulate(capacity: int, policy: Any) -> Simulation:
        made.append(Simulation(make(capacity, policy=policy, max_waiting=100_000), clock))
        return made[-1]

    yield simulate
    for one in made:
        one.end()


def poisson(rng: random.Random, mean_ns: float) -> Iterator[float]:
    while True:
        yield rng.expovariate(1 / mean_ns)


def steady(rng: random.Random, mean_ns: float) -> Iterator[float]:
    while True:
        yield mean_ns * rng.uniform(0.5, 1.5)


def fixed(rng: random.Random) -> int:
    return HOLD_NS


def exponential(rng: random.Random) -> int:
    return int(rng.expovariate(1 / HOLD_NS))


def offer(simulation: Simulation, shares: Mapping[int, float], load: float, arrivals: Any, hold: Any, rng: Any) -> None:
    """Requests of several tiers, which together would keep `load` times what there is busy."""
    for tier, share in shares.items():
        mean_ns = HOLD_NS / (load * share * simulation.pool.capacity)
        simulation.stream(arrivals(rng, mean_ns), lambda tier=tier: Request(tier, hold(rng)))  # type: ignore[misc]


def waits(simulation: Simulation, tier: int) -> list[float]:
    """The waits of a tier, in holds, sorted."""
    return sorted(
        (when_ns - request.arrival_ns) / HOLD_NS for when_ns, request in simulation.served if request.tier == tier
    )


def p99(simulation: Simulation, tier: int) -> float:
    found = waits(simulation, tier)
    return found[math.ceil(0.99 * len(found)) - 1]


MIXED = {0: 0.2, 1: 0.3, 2: 0.5}
LONE = 9


@pytest.mark.parametrize(
    ("capacity", "arrivals", "hold"), [(1, steady, fixed), (4, poisson, fixed), (8, poisson, exponential)]
)
def test_overload_of_three_tiers(lab: Lab, simulate: Any, capacity: int, arrivals: Any, hold: Any) -> None:
    """60 s at 120 %. For the first half, until much of BATCH is overdue, there are lone waiters too, one at a time."""
    rng = random.Random(1)
    policy = lab.DynamicPriority({0: 0.05, 1: 0.5, 2: 10.0, LONE: 1.0})
    simulation = simulate(capacity, policy)
    offer(simulation, MIXED, 1.2, arrivals, hold, rng)

    def next_lone(request: Request) -> None:
        if request.tier == LONE and simulation.now_ns < 27 * NS:
            gap_ns = rng.uniform(0, 10 * HOLD_NS)
            simulation.at(simulation.now_ns + gap_ns, lambda: simulation.come(Request(LONE, hold(rng))))

    simulation.then = next_lone
    simulation.come(Request(0, HOLD_NS))
    next_lone(Request(LONE, 0))
    simulation.run(60)
    late = [wait - NS / HOLD_NS for wait in waits(simulation, LONE)]
    print(
        f"capacity {capacity}, {arrivals.__name__}, {hold.__name__}: p99 in holds: REALTIME {p99(simulation, 0):.2f}, "
        f"INTERACTIVE {p99(simulation, 1):.2f}; the latest of {len(late)} lone waiters: allowance + {late[-1]:.2f}; "
        f"BATCH served {len(waits(simulation, 2))}"
    )
    assert p99(simulation, 0) <= 3
    assert p99(simulation, 1) <= 5
    assert len(late) > 25 and late[-1] <= 8
    state = simulation.pool.snapshot()
    assert state.granted == len(simulation.served) and state.held == capacity


def test_a_single_token_and_random_arrivals(lab: Lab, simulate: Any) -> None:
    """Of a single token, INTERACTIVE must wait longer than that, even where nothing is kept for the overdue."""
    found = {}
    for policy in (lab.DynamicPriority(), lab.policy.StrictPriority()):
        simulation = simulate(1, policy)
        offer(simulation, MIXED, 1.2, poisson, fixed, random.Random(1))
        simulation.run(60)
        found[type(policy).__name__] = [p99(simulation, 0), p99(simulation, 1)]
        simulation.end()
    print(found)
    dynamic, strict = found["DynamicPriority"], found["StrictPriority"]
    assert dynamic[0] <= 3 and strict[1] > 5
    assert dynamic[1] <= strict[1] / (1 - 1 / 8) ** 3


@pytest.mark.parametrize("hold_ns", [10_000_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_b3_the_overdue_get_one_grant_in_eight(
    lab: Lab, simulate: Any, monkeypatch: pytest.MonkeyPatch, hold_ns: int
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "HOLD_NS", hold_ns)
    for policy, starves in ((lab.DynamicPriority(), False), (lab.policy.StrictPriority(), True)):
        simulation = simulate(1, policy)
        offer(simulation, {0: 1.0}, 1.2, steady, fixed, random.Random(1))
        simulation.run(1)
        simulation.come(Request(2, hold_ns))
        simulation.run(61)
        late = [(wait * hold_ns - 10 * NS) / hold_ns for wait in waits(simulation, 2)]
        print(f"{type(policy).__name__}: served at allowance + {late} holds")
        assert late == [] if starves else (len(late) == 1 and 0 <= late[0] <= 8)
        simulation.end()


COSTS = {"a": (1, 2, 3, 4), "b": (1, 2), "c": (1, 1, 5), None: (3,)}


@pytest.mark.parametrize(
    ("costs", "flooding"), [("alike", "c"), ("unlike", "a"), ("unlike", "b"), ("unlike", "c"), ("unlike", None)]
)
def test_shares_by_weight(lab: Lab, simulate: Any, costs: str, flooding: str | None) -> None:
    """Three tenants of weights 1, 2 and 4, of which one, or a fourth of weight 1, comes with ten times as much."""
    rng = random.Random(2)
    simulation = simulate(8, lab.policy.Weighted({"a": 1, "b": 2, "c": 4}))
    weights = {"a": 1, "b": 2, "c": 4} if flooding is not None else {"a": 1, "b": 2, "c": 4, None: 1}
    total = sum(weights.values())
    for tenant, weight in weights.items():
        sizes = COSTS["a" if costs == "alike" else tenant]
        load = 1.2 * weight / total * (10 if tenant == flooding else 1)
        mean_ns = HOLD_NS * sum(sizes) / len(sizes) / (load * simulation.pool.capacity)
        simulation.stream(
            poisson(rng, mean_ns),
            lambda tenant=tenant, sizes=sizes: Request(1, exponential(rng), rng.choice(sizes), tenant),  # type: ignore[misc]
        )
    simulation.run(16)
    units = dict.fromkeys(weights, 0)
    for when_ns, request in simulation.served:
        if when_ns > 4 * NS:
            units[request.tenant] += request.cost
    found = {tenant: units[tenant] / sum(units.values()) * total / weights[tenant] for tenant in weights}
    print(f"{costs}, {flooding} floods: shares over weights {found}")
    assert all(0.97 <= share <= 1.03 for share in found.values())


def test_an_idle_tenant_saves_nothing_up(lab: Lab, simulate: Any) -> None:
    rng = random.Random(3)
    simulation = simulate(4, lab.policy.Weighted({"a": 1, "b": 3}))
    for tenant, since in (("a", 0), ("b", 10)):
        mean_ns = HOLD_NS / (1.5 * simulation.pool.capacity)

        def begin(tenant: str = tenant, mean_ns: float = mean_ns) -> None:
            simulation.stream(poisson(rng, mean_ns), lambda: Request(1, exponential(rng), 1, tenant))

        simulation.at(since * NS, begin)
    simulation.run(20)
    shares = []
    for begin_s in (10, 11, 15):
        some = [request.tenant for when_ns, request in simulation.served if begin_s <= when_ns / NS < begin_s + 1]
        shares.append(some.count("b") / len(some))
    print(f"share of b, of weight 3 in 4, in its 1st, 2nd and 6th second: {shares}")
    assert all(0.72 <= share <= 0.78 for share in shares)
