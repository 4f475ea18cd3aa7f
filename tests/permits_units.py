"""The counting half of the model of a pool: who holds what, and what fits. It keeps no counter that it can count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from permits_kit import Clock


@dataclass(eq=False)
class Lease:
    """What a token stands for. `look_ns` is when it is looked at next, `looks` orders those of one time."""

    level: int
    priority: int
    cost: int
    tenant: str | None
    epoch: int
    heartbeat_ns: int
    since_ns: int
    beat_ns: int = field(init=False)
    look_ns: int | None = None
    looks: int = 0
    state: str = "busy"

    def __post_init__(self) -> None:
        self.beat_ns = self.since_ns


@dataclass(eq=False)
class Request:
    """One who waits, or tries."""

    name: object
    level: int
    key: int
    seq: int
    arrival_ns: int
    cost: int
    tenant: str | None
    heartbeat_ns: int
    dead: bool
    tries: bool = False
    priority: int = field(init=False)
    lease: Lease | None = None

    def __post_init__(self) -> None:
        self.priority = self.level


class Units:
    """What is held and who waits, in plain lists; arguments as for `Permits`."""

    def __init__(
        self,
        clock: Clock,
        capacity: int,
        floors: Sequence[tuple[int, int]] = (),
        max_waiting: int = 10_000,
        max_capacity: int = 0,
        allowance_ns: Sequence[int] = (),
        overdue_every: int = 0,
        weights: Mapping[str | None, float] | None = None,
        weight: float = 1.0,
        caps: Mapping[str, int] | None = None,
        cap: int = -1,
        heartbeat_ns: int = 0,
        grace_ns: int = 10**9,
    ) -> None:
        self.clock = clock
        self.base = self.capacity = capacity
        self.base_floors = dict(sorted(floors))
        self.max_waiting, self.max_capacity = max_waiting, max_capacity or capacity
        self.allowance_ns = allowance_ns or [0] * 256
        self.every, self.weights, self.weight = overdue_every, weights, weight
        self.caps, self.cap = caps or {}, cap
        self.heartbeat_ns, self.grace_ns = heartbeat_ns, grace_ns
        self.closed = False
        self.start_over()

    def start_over(self) -> None:
        self.leases: list[Lease] = []
        self.line: list[Request] = []

    @property
    def held(self) -> int:
        return sum(lease.cost for lease in self.leases)

    @property
    def free(self) -> int:
        return max(0, self.capacity - self.held)

    @property
    def waiting(self) -> int:
        return len(self.line)

    def cap_of(self, tenant: str | None) -> int:
        return -1 if tenant is None else self.caps.get(tenant, self.cap)

    def floors(self) -> dict[int, int]:
        """The floors as at first, or in proportion to a smaller capacity, by largest remainder."""
        share = min(Fraction(1), Fraction(self.capacity, self.base))
        exact = {tier: count * share for tier, count in self.base_floors.items()}
        whole = {tier: int(count) for tier, count in exact.items()}
        left = int(sum(exact.values()) + Fraction(1, 2)) - sum(whole.values())
        for tier in sorted(exact, key=lambda tier: (whole[tier] - exact[tier], tier))[:left]:
            whole[tier] += 1
        return whole

    def group(self, level: int) -> int | None:
        """The tier whose floor a priority may use."""
        tier = max(tier for tier in {0, 1, 2, *self.base_floors} if tier <= level)
        return tier if tier in self.base_floors else None

    def unfilled(self) -> dict[int | None, int]:
        """For each tier with a floor, how much is kept for it that is not held."""
        left: dict[int | None, int] = {None: 0, **self.floors()}
        for lease in self.leases:
            left[self.group(lease.level)] -= lease.cost
        return {group: max(0, units) for group, units in left.items()}

    def most(self, level: int) -> int:
        floors = self.floors()
        return self.capacity - sum(units for tier, units in floors.items() if tier != self.group(level))

    def fits(self, request: Request) -> str:
        cap = self.cap_of(request.tenant)
        if cap >= 0 and request.cost > cap - sum(lease.cost for lease in self.leases if lease.tenant == request.tenant):
            return "capped"
        kept = self.unfilled()
        own = kept.pop(self.group(request.level))
        free = self.capacity - self.held
        if request.cost <= free and (request.cost <= own or request.cost <= free - sum(kept.values())):
            return "fits"
        return "short"

    def by_tier(self) -> dict[int, tuple[int, int, int]]:
        floors = self.floors()
        tiers = {*floors, *(lease.level for lease in self.leases), *(request.level for request in self.line)}
        return {
            tier: (
                sum(lease.cost for lease in self.leases if lease.level == tier),
                sum(request.level == tier for request in self.line),
                floors.get(tier, 0),
            )
            for tier in tiers
        }

    def by_tenant(self) -> dict[str, tuple[int, int, int]]:
        names = {lease.tenant for lease in self.leases} | {request.tenant for request in self.line}
        return {
            name: (
                sum(lease.cost for lease in self.leases if lease.tenant == name),
                sum(request.tenant == name for request in self.line),
                self.cap_of(name),
            )
            for name in names
            if name is not None
        }
