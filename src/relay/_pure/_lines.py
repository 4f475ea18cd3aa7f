"""Those who wait for a pool's units, and whose turn it is.

Waiters stand in lines: one for each tier, tenant (where tenants have caps or shares) and cost, so that whoever stands
behind the head of a line could not be served where the head cannot. Owns the lines and nothing else. The invariant:
order is total, by (key, sequence), and a key is never rewritten but by `lift`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relay._pure._budget import CAPPED, FITS, MAX_PRIORITY, Budget, Tenant

TIME_BITS = 55
STEP_BITS = 6
# In steps of 64 ns, 55 bits last 73 years; what falls into one step keeps its order of arrival.

CHARGE = 1 << 20
"""What one unit costs a tenant of weight 1, in virtual time."""
LEAST_WEIGHT, MOST_WEIGHT = 2.0**-10, 2.0**20
_REBASE = 1 << 53


class Place:
    """One waiter's place."""

    __slots__ = (
        "arrival_ns", "cost", "heartbeat_ns", "key", "level", "line", "owner", "priority", "seq", "tenant", "waiter",
    )  # fmt: skip

    def __init__(
        self, waiter: Any, priority: int, key: int, arrival_ns: int, cost: int, tenant: Tenant, heartbeat_ns: int,
        owner: int,
    ) -> None:  # fmt: skip
        self.waiter = waiter
        self.priority = priority  # asked for
        self.level = priority  # stands in: more urgent while lifted
        self.key = key
        self.arrival_ns = arrival_ns
        self.cost = cost
        self.tenant = tenant
        self.heartbeat_ns = heartbeat_ns
        self.owner = owner
        self.seq = -1
        self.line: Line | None = None


class Line:
    """Waiters of one tier, tenant and cost, most urgent first."""

    __slots__ = ("cost", "level", "order", "tenant", "waiters")

    def __init__(self, level: int, tenant: Tenant | None, cost: int) -> None:
        self.level = level
        self.tenant = tenant
        self.cost = cost
        self.waiters: list[tuple[int, int, Place]] = []
        self.order: tuple[int, int] = (0, 0)

    @property
    def head(self) -> Place:
        """Who is next in this line."""
        return self.waiters[0][2]


class Shares:
    """Virtual time of each tenant in each tier: start-time fair queueing.

    A grant moves its tenant on by cost / weight; who is furthest behind is next. A tenant that comes back from idling
    starts where the others are, so nothing is saved up. Source: Goyal, Vin and Cheng, "Start-time fair queueing",
    SIGCOMM 1996.

    Args:
        weights: Each tenant's share; None stands for requests without a tenant.
        weight: The share of tenants that `weights` does not name.
        limit: How many tenants to remember, all tiers together. When there are more, the debts of idle ones are
            forgotten.
    """

    __slots__ = ("_accounts", "_active", "_clock", "_limit", "_weight", "_weights")

    def __init__(self, weights: Mapping[str | None, float], weight: float, limit: int) -> None:
        self._weights = dict(weights)
        self._weight = weight
        self._limit = limit
        self._accounts: dict[tuple[int, str | None], int] = {}
        self._active: dict[tuple[int, str | None], int] = {}
        self._clock = [0] * (MAX_PRIORITY + 1)

    def time(self, level: int, name: str | None) -> int:
        """The virtual time, in a tier, of a tenant that waits there."""
        return self._accounts[level, name]

    def join(self, level: int, name: str | None) -> None:
        """One more request of a tenant waits."""
        account = (level, name)
        if account not in self._active:
            self._open(account)
        self._active[account] = self._active.get(account, 0) + 1

    def leave(self, level: int, name: str | None) -> None:
        """One request of a tenant waits no more."""
        account = (level, name)
        self._active[account] -= 1
        if not self._active[account]:
            del self._active[account]
            self._forget(account)

    def charge(self, level: int, name: str | None, cost: int) -> bool:
        """A grant. True if all times of the tier have been moved back, by as much as the tier's own time."""
        account = (level, name)
        if account not in self._active:
            self._open(account)
        start = self._accounts[account]
        self._clock[level] = max(self._clock[level], start)
        self._accounts[account] = start + max(1, round(cost * CHARGE / self._weights.get(name, self._weight)))
        if account not in self._active:
            self._forget(account)
        if start < _REBASE:
            return False
        by = self._clock[level]
        self._clock[level] = 0
        for other in self._accounts:
            if other[0] == level:
                self._accounts[other] = max(0, self._accounts[other] - by)
        return True

    def _open(self, account: tuple[int, str | None]) -> None:
        if account not in self._accounts and len(self._accounts) >= self._limit:
            self._accounts = {key: time for key, time in self._accounts.items() if key in self._active}
        now = self._clock[account[0]]
        self._accounts[account] = max(self._accounts.get(account, now), now)

    def _forget(self, account: tuple[int, str | None]) -> None:
        if self._accounts[account] <= self._clock[account[0]]:
            del self._accounts[account]


class Lines:
    """All lines of a pool.

    Args:
        allowance_ns: For each of the 256 priorities, how long one of its requests may be overtaken.
        overdue_every: One grant in so many goes to the oldest waiter past its allowance; 0 for none.
        shares: Who is next among the tenants of a tier, or None: the order of keys.
        by_tenant: Tenants stand in lines of their own.
    """

    def __init__(self, allowance_ns: Sequence[int], overdue_every: int, shares: Shares | None, by_tenant: bool) -> None:
        self.allowance_ns = list(allowance_ns)
        self.shares = shares
        self._every = overdue_every
        self._by_tenant = by_tenant or shares is not None
        self._lines: dict[tuple[int, str | None, int], Line] = {}
        self._heads: list[tuple[tuple[int, int], Line]] = []
        self._next_seq = 0
        self.turn = 0
        """Grants since the last one to an overdue waiter, at most `overdue_every` - 1."""
        self.units = [0] * (MAX_PRIORITY + 1)
        """Units asked for in each tier."""

    def key(self, level: int, arrival_ns: int) -> int:
        """The key of the built-in policies: the tier, then arrival + allowance."""
        return level << TIME_BITS | arrival_ns + self.allowance_ns[level] >> STEP_BITS

    def join(self, place: Place) -> None:
        """Stand in line, behind all of the same key."""
        place.seq, self._next_seq = self._next_seq, self._next_seq + 1
        self._enter(place)

    def leave(self, place: Place) -> None:
        """Leave the line, from wherever."""
        line = place.line
        assert line is not None
        del line.waiters[bisect_left(line.waiters, (place.key, place.seq))]
        place.line = None
        place.tenant.waiting -= 1
        self.units[place.level] -= place.cost
        if self.shares is not None:
            self.shares.leave(place.level, place.tenant.name)
        self._set_head(line)

    def lift(self, place: Place, level: int, key: int) -> None:
        """Move a waiter to another tier and key; among equals it stands where its arrival puts it."""
        self.leave(place)
        place.level, place.key = level, key
        self._enter(place)

    def charge(self, level: int, tenant: Tenant, cost: int) -> None:
        """A grant has been made, to someone in line or not."""
        if self.shares is None:
            return
        moved = self.shares.charge(level, tenant.name, cost)
        for line in [line for _, line in self._heads if line.level == level]:
            if moved or line.tenant is tenant:
                self._set_head(line)

    def choose(self, budget: Budget, now_ns: int) -> Place | None:
        """Whose turn it is among those who may be served now.

        A request too costly for what is free is passed by others while its allowance lasts. When that has run out and
        it is its turn, it bars the way: nothing is granted that would leave less for it. So does each that stands
        behind such a one, or the large requests of a tier with a floor would be passed by its small ones.
        """
        bars: list[Line] = []
        if self._every and self.turn == self._every - 1:
            for line in sorted(self._late(now_ns), key=lambda line: (line.head.arrival_ns, line.head.seq)):
                fit = self._fits(line, budget)
                if fit == FITS:
                    self.turn = 0
                    return line.head
                if fit != CAPPED and line.cost <= budget.most(line.level):
                    bars.append(line)
                    break
        for _, line in self._heads:
            fit = self._fits(line, budget)
            if fit == FITS and all(budget.spares(line.level, line.cost, bar.level) for bar in bars):
                self.turn = min(self.turn + 1, max(self._every - 1, 0))
                return line.head
            if fit not in (FITS, CAPPED) and self._is_late(line, now_ns) and line.cost <= budget.most(line.level):
                bars.append(line)
        return None

    def __iter__(self) -> Iterator[Line]:
        """The lines somebody stands in."""
        return (line for _, line in self._heads)

    def check(self, places: list[Place]) -> bool:
        """True if the lines hold just these places, in order."""
        found = [place for line in self for _, _, place in line.waiters]
        units = [0] * len(self.units)
        for place in places:
            units[place.level] += place.cost
        return (
            len(found) == len(places)
            and set(map(id, found)) == set(map(id, places))
            and all(place.line is line for line in self for _, _, place in line.waiters)
            and all(line.waiters == sorted(line.waiters, key=lambda entry: entry[:2]) for line in self)
            and [order for order, _ in self._heads] == sorted(self._order(line) for line in self)
            and len(self._heads) == len(self._lines)
            and units == self.units
        )

    def _enter(self, place: Place) -> None:
        name = place.tenant.name if self._by_tenant else None
        where = (place.level, name, place.cost)
        line = self._lines.get(where)
        if line is None:
            line = self._lines[where] = Line(place.level, place.tenant if self._by_tenant else None, place.cost)
        place.line = line
        place.tenant.waiting += 1
        self.units[place.level] += place.cost
        if self.shares is not None:
            self.shares.join(place.level, place.tenant.name)
        insort(line.waiters, (place.key, place.seq, place))
        self._set_head(line)

    def _set_head(self, line: Line) -> None:
        """Put a line where its head belongs, or away if nobody stands in it."""
        at = bisect_left(self._heads, line.order, key=lambda entry: entry[0])
        if at < len(self._heads) and self._heads[at][1] is line:
            del self._heads[at]
        if not line.waiters:
            name = line.tenant.name if line.tenant is not None else None
            del self._lines[line.level, name, line.cost]
            return
        line.order = self._order(line)
        insort(self._heads, (line.order, line), key=lambda entry: entry[0])

    def _order(self, line: Line) -> tuple[int, int]:
        head = line.head
        if self.shares is None:
            return head.key, head.seq
        return line.level << TIME_BITS | self.shares.time(line.level, head.tenant.name), head.seq

    def _fits(self, line: Line, budget: Budget) -> int:
        return budget.fits(line.level, line.head.tenant, line.cost)

    def _is_late(self, line: Line, now_ns: int) -> bool:
        return line.head.arrival_ns + self.allowance_ns[line.level] <= now_ns

    def _late(self, now_ns: int) -> list[Line]:
        return [line for line in self if self._is_late(line, now_ns)]
