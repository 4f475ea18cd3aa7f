"""A model of `TokenPool` in plain lists, written from the design page: to be read, not to be fast.

At most one tier has a floor, and all tenants have one cap. Nothing happens by itself: who has been woken goes on when
`resume` is called, and what time brings is done by `ring`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from relay.errors import AcquireTimeout, Closed, Overloaded, StaleToken, TokenRevoked, TooLarge

NS = 1_000_000_000


@dataclass(eq=False)
class Lease:
    """A token."""

    tier: int
    cost: int
    tenant: str | None
    epoch: int
    heartbeat_ns: int
    beat_ns: int
    look_ns: int | None  # when it is to be looked at
    state: str = "busy"


@dataclass(eq=False)
class Request:
    """An acquire that stands in line, or has stood there."""

    tier: int
    cost: int
    tenant: str | None
    heartbeat_ns: int
    arrival_ns: int
    deadline_ns: int | None
    number: int
    woken: bool = False
    lease: Lease | None = None


@dataclass
class Model:
    clock: Any
    capacity: int
    max_capacity: int
    floor_tier: int
    floor_units: int
    cap: int | None
    max_waiting: int
    heartbeat_ns: int
    grace_ns: int
    allowance_ns: list[int]
    every: int  # one grant in so many is for the oldest overdue; 0 for none
    leases: list[Lease] = field(default_factory=list)
    line: list[Request] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    epoch: int = 0
    turn: int = 0
    waited_ns: int = 0
    closed: bool = False

    def __post_init__(self) -> None:
        self.base = self.capacity

    # Counting.

    def held(self, **by: Any) -> int:
        return sum(one.cost for one in self.leases if all(getattr(one, name) == value for name, value in by.items()))

    def floor(self) -> int:
        """In proportion where the pool is smaller than it was made, rounded half up."""
        return (2 * self.floor_units * min(self.capacity, self.base) + self.base) // (2 * self.base)

    def most(self, tier: int) -> int:
        return self.capacity if tier == self.floor_tier else self.capacity - self.floor()

    def capped(self, request: Request) -> bool:
        held = self.held(tenant=request.tenant)
        return request.tenant is not None and self.cap is not None and held + request.cost > self.cap

    def kept(self) -> int:
        """What of the floor is not used."""
        return max(0, self.floor() - self.held(tier=self.floor_tier))

    def room(self, tier: int) -> int:
        free = self.capacity - self.held()
        return free if tier == self.floor_tier else free - self.kept()

    def fits(self, request: Request) -> bool:
        return not self.capped(request) and request.cost <= self.room(request.tier)

    # Whose turn it is.

    def late(self, request: Request) -> bool:
        return bool(request.arrival_ns + self.allowance_ns[request.tier] <= self.clock.now_ns())

    def bars(self, request: Request) -> bool:
        """Lacks units, and others may no longer pass it."""
        return self.late(request) and not self.capped(request) and request.cost <= self.most(request.tier)

    def choose(self) -> Request | None:
        bars: list[Request] = []
        if self.every and self.turn == self.every - 1:
            for request in sorted(filter(self.late, self.line), key=lambda one: (one.arrival_ns, one.number)):
                if self.fits(request):
                    self.turn = 0
                    return request
                if self.bars(request):
                    bars.append(request)
                    break
        for request in sorted(self.line, key=lambda one: (one.tier, one.arrival_ns, one.number)):
            if self.fits(request) and all(self.passes(request, bar) for bar in bars):
                self.turn = min(self.turn + 1, max(0, self.every - 1))
                return request
            if not self.fits(request) and self.bars(request):
                bars.append(request)
        return None

    def passes(self, request: Request, bar: Request) -> bool:
        """It takes nothing that the other could have: its units are kept for its own tier alone."""
        return request.tier == self.floor_tier != bar.tier and request.cost <= self.kept()

    def serve(self) -> None:
        while (request := self.choose()) is not None:
            self.line.remove(request)
            self.grant(request)
            request.woken = True
            self.counts["waited"] += 1
            self.waited_ns += self.clock.now_ns() - request.arrival_ns

    def grant(self, request: Request) -> None:
        now_ns = self.clock.now_ns()
        look_ns = now_ns + request.heartbeat_ns if request.heartbeat_ns else None
        facts = (request.tier, request.cost, request.tenant, self.epoch, request.heartbeat_ns)
        request.lease = Lease(*facts, now_ns, look_ns)
        self.leases.append(request.lease)
        self.counts["granted"] += 1

    # What callers do.

    def ask(self, request: Request, limit_ns: int | None) -> Request:
        """An acquire: the answer stands in line if it has no lease."""
        if self.closed:
            raise Closed
        if request.cost > max(1, self.most(request.tier)):
            raise TooLarge
        if request.tenant is not None and self.cap is not None and request.cost > self.cap:
            raise Overloaded
        if self.fits(request):
            self.line.append(request)
            if len(self.line) == 1:
                self.line.clear()
                self.grant(request)
            else:
                waited = (self.counts["waited"], self.waited_ns)
                self.serve()
                if request.lease is not None:
                    self.counts["waited"], self.waited_ns = waited  # it came and went
                    return request
                self.line.remove(request)
        if request.lease is not None:
            return request
        if limit_ns == 0:
            self.counts["timed_out"] += 1
            raise AcquireTimeout
        if len(self.line) == self.max_waiting:
            self.counts["queue_full"] += 1
            raise Overloaded
        if limit_ns is not None:
            request.deadline_ns = self.clock.now_ns() + limit_ns
        self.line.append(request)
        return request

    def resume(self, request: Request) -> Lease:
        """One that has been woken goes on."""
        if request in self.line:
            self.line.remove(request)
            self.serve()
        if request.lease is not None:
            return request.lease
        if self.closed:
            raise Closed
        self.counts["timed_out"] += 1
        raise AcquireTimeout

    def cancel(self, request: Request) -> None:
        self.counts["cancelled"] += request in self.line or request.lease is not None
        if request in self.line:
            self.line.remove(request)
        if request.lease in self.leases:
            self.leases.remove(request.lease)
        self.serve()

    def release(self, lease: Lease) -> None:
        if lease not in self.leases:
            raise StaleToken
        self.leases.remove(lease)
        self.serve()

    def beat(self, lease: Lease) -> None:
        if lease not in self.leases:
            raise StaleToken
        if lease.state == "revoked":
            raise TokenRevoked
        lease.beat_ns = self.clock.now_ns()

    def revoke(self, lease: Lease) -> bool:
        if lease not in self.leases or lease.state == "revoked":
            return False
        lease.state, lease.look_ns = "revoked", self.clock.now_ns() + self.grace_ns
        self.counts["revoked"] += 1
        return True

    def resize(self, capacity: int) -> None:
        if self.closed:
            raise Closed
        if not 1 <= capacity <= self.max_capacity:
            raise ValueError
        self.capacity = capacity
        self.serve()

    def close(self) -> None:
        self.closed = True
        for request in self.line:
            request.woken = True
        self.line.clear()

    def ring(self) -> None:
        """Wakes those whose time is over, revokes the leases that were not kept alive, and ends those revoked."""
        now_ns = self.clock.now_ns()
        for request in self.line:
            request.woken |= request.deadline_ns is not None and request.deadline_ns <= now_ns
        for lease in [one for one in self.leases if one.look_ns is not None and one.look_ns <= now_ns]:
            if lease.state == "revoked":
                self.leases.remove(lease)
            elif lease.beat_ns + lease.heartbeat_ns > now_ns:
                lease.look_ns = lease.beat_ns + lease.heartbeat_ns
            else:
                self.revoke(lease)
        self.serve()
