"""The units of a pool: how many there are, which are kept for whom, and whether a request fits.

Owns the counters of a pool's permits: the capacity, the floor of each group of tiers, and what each tenant holds. The
invariant: `held` is the sum over the groups, and over the tenants. It knows nothing of who waits.
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_PRIORITY = 255
TIERS = (0, 1, 2)
"""The tiers that have a name of their own."""

FITS, SHORT, CAPPED = 0, 1, 2
"""A request may be granted now; too little is free for it; its tenant holds as much as it may."""


class Tenant:
    """What one tenant holds and how many of its requests wait; it lives as long as either is not 0. One of the name
    None counts requests without a tenant, and lives always."""

    __slots__ = ("cap", "held", "name", "waiting")

    def __init__(self, name: str | None, cap: int) -> None:
        self.name = name
        self.cap = cap
        self.held = 0
        self.waiting = 0


class Budget:
    """Counts units.

    Args:
        capacity: Units in all.
        floors: ``(tier, count)``, sorted by tier: units kept for requests of that tier. A priority that is neither
            named here nor one of 0, 1 and 2 belongs to the nearest of these below it; those without a floor of their
            own form group 0.
        caps: The most units a tenant may hold.
        cap: The same for tenants that `caps` does not name; -1 for no limit.
    """

    __slots__ = (
        "_base", "_base_floors", "_cap", "_caps", "capacity", "floor", "group", "held", "held_by", "nobody", "tenants",
        "unfilled", "unfilled_total",
    )  # fmt: skip

    def __init__(self, capacity: int, floors: list[tuple[int, int]], caps: Mapping[str | None, int], cap: int) -> None:
        self.group = [0] * (MAX_PRIORITY + 1)
        named = {tier for tier, _ in floors}
        for index, (tier, _) in enumerate(floors, start=1):
            above = [other for other in {*TIERS, *named} if other > tier]
            for priority in range(tier, min(above, default=MAX_PRIORITY + 1)):
                self.group[priority] = index
        self._base = capacity
        self._base_floors = [0] + [count for _, count in floors]
        self._caps = dict(caps)
        self._cap = cap
        self.nobody = Tenant(None, -1)
        self.tenants: dict[str | None, Tenant] = {None: self.nobody}
        self.held = 0
        self.held_by = [0] * len(self._base_floors)
        self.resize(capacity)

    @property
    def free(self) -> int:
        """Units free now, kept ones included; negative after a cut while more are held."""
        return self.capacity - self.held

    def resize(self, capacity: int) -> None:
        """Change the capacity. Floors are as at first, or in proportion where the pool is smaller than it was then.

        Shares of units are rounded by largest remainder, their sum half up; of equal remainders the more urgent tier
        gets the unit.
        """
        self.capacity = capacity
        base, floors = self._base, self._base_floors
        self.floor = list(floors)
        if capacity < base:
            self.floor = [count * capacity // base for count in floors]
            spare = (2 * sum(floors) * capacity + base) // (2 * base) - sum(self.floor)
            by_remainder = sorted(range(len(floors)), key=lambda group: (-(floors[group] * capacity % base), group))
            for group in by_remainder[:spare]:
                self.floor[group] += 1
        self.unfilled = [max(0, floor - held) for floor, held in zip(self.floor, self.held_by, strict=True)]
        self.unfilled_total = sum(self.unfilled)

    def most(self, level: int) -> int:
        """Units that one request of a tier could get if nothing else were held."""
        return self.capacity - sum(self.floor) + self.floor[self.group[level]]

    def cap_of(self, name: str | None) -> int:
        """The most units a tenant may hold, or -1 for no limit. Requests without a tenant have none."""
        return -1 if name is None else self._caps.get(name, self._cap)

    def fits(self, level: int, tenant: Tenant, cost: int) -> int:
        """Whether a request may be granted now: `FITS`, `CAPPED`, or `SHORT`.

        A floor that is not filled is open to its own group, and closed to others.
        """
        if 0 <= tenant.cap < tenant.held + cost:
            return CAPPED
        own = self.unfilled[self.group[level]]
        if cost <= self.free and (cost <= own or cost <= self.free - (self.unfilled_total - own)):
            return FITS
        return SHORT

    def spares(self, level: int, cost: int, other: int) -> bool:
        """True if granting `cost` to one tier leaves as much as before for another: it comes out of a floor of its
        own."""
        group = self.group[level]
        return group != self.group[other] and cost <= self.unfilled[group]

    def tenant(self, name: str | None) -> Tenant:
        """The counters of a tenant, made if need be; `settle` or `count` throws them away."""
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = Tenant(name, self.cap_of(name))
        return tenant

    def settle(self, tenant: Tenant) -> None:
        """Forget a tenant that neither holds nor waits."""
        if not tenant.held and not tenant.waiting and tenant is not self.nobody:
            del self.tenants[tenant.name]

    def count(self, level: int, tenant: Tenant, units: int) -> None:
        """Units are held from now on, or fewer than before where `units` is negative."""
        group = self.group[level]
        self.held += units
        self.held_by[group] += units
        tenant.held += units
        unfilled = max(0, self.floor[group] - self.held_by[group])
        self.unfilled_total += unfilled - self.unfilled[group]
        self.unfilled[group] = unfilled
        self.settle(tenant)

    def check(self) -> bool:
        """True if all counters agree."""
        unfilled = [max(0, floor - held) for floor, held in zip(self.floor, self.held_by, strict=True)]
        return (
            unfilled == self.unfilled
            and sum(unfilled) == self.unfilled_total
            and sum(self.held_by) == self.held == sum(tenant.held for tenant in self.tenants.values())
            and sum(self.floor) <= self.capacity
            and all(tenant.held or tenant.waiting or tenant is self.nobody for tenant in self.tenants.values())
        )
