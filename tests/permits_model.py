"""A model of a pool in plain lists, written from the design page and the docstrings: to be read, not to be fast."""

from __future__ import annotations

from permits_units import Lease, Request, Units

from relay.errors import Closed, Overloaded, StaleToken, TokenRevoked, TooLarge

LAST_KEY = 2**63 - 1
WORKED, FAILED, UNUSED = "worked", "failed", "unused"


class Model(Units):
    """Does what `Permits` of the same arguments must do."""

    keyed = False

    def start_over(self) -> None:
        super().start_over()
        self.to_wake: list[Request] = []
        self.told: list[object] = []
        self.times: dict[tuple[int, str | None], int] = {}
        self.tier_times = [0] * 256
        self.turn = self.seq = self.looks = 0
        self.refused_closed = self.refused_large = self.refused_cap = 0
        self.granted = self.ended = self.failed = self.abandoned = self.revoked = self.leaked = self.epoch = (
            self.held_ns
        ) = 0

    # Whose turn it is.

    def late(self, request: Request) -> bool:
        return request.arrival_ns + self.allowance_ns[request.level] <= self.clock.now_ns

    def heads(self) -> list[Request]:
        """Of those who are alike in all that decides who may be served, only the first is looked at."""
        apart = bool(self.caps) or self.cap >= 0 or self.weights is not None
        first: dict[object, Request] = {}
        for request in sorted(self.line, key=lambda request: (request.key, request.seq)):
            first.setdefault((request.level, request.tenant if apart else None, request.cost), request)
        return list(first.values())

    def order(self, request: Request) -> tuple[int, int, int]:
        if self.weights is None:
            return request.key, request.seq, 0
        return request.level, self.times[request.level, request.tenant], request.seq

    def choose(self) -> Request | None:
        bars: list[Request] = []
        if self.every and self.turn == self.every - 1:
            for request in sorted(filter(self.late, self.heads()), key=lambda one: (one.arrival_ns, one.seq)):
                fit = self.fits(request)
                if fit == "fits":
                    self.turn = 0
                    return request
                if fit == "short" and request.cost <= self.most(request.level):
                    bars.append(request)
                    break
        for request in sorted(self.heads(), key=self.order):
            fit = self.fits(request)
            if fit == "fits" and all(self.out_of_its_own_floor(request, bar) for bar in bars):
                self.turn = min(self.turn + 1, max(0, self.every - 1))
                return request
            if fit == "short" and self.late(request) and request.cost <= self.most(request.level):
                bars.append(request)
        return None

    def out_of_its_own_floor(self, request: Request, bar: Request) -> bool:
        group = self.group(request.level)
        return group != self.group(bar.level) and request.cost <= self.unfilled()[group]

    def serve(self) -> None:
        while (request := self.choose()) is not None:
            request.lease = self.give(request)
            self.line.remove(request)
            if not request.tries:
                self.to_wake.append(request)

    def wake(self) -> None:
        while self.to_wake:
            request = self.to_wake.pop(0)
            self.told.append(request.name)
            if request.dead:
                self.give_up(request)

    # Virtual time.

    def enter(self, request: Request) -> None:
        account = (request.level, request.tenant)
        if not self.stands(account):
            self.times[account] = max(self.times.get(account, 0), self.tier_times[request.level])
        self.line.append(request)

    def stands(self, account: tuple[int, str | None]) -> bool:
        return any((request.level, request.tenant) == account for request in self.line)

    def charge(self, level: int, tenant: str | None, cost: int) -> None:
        account = (level, tenant)
        start = self.times.get(account, 0)
        if not self.stands(account):
            start = max(start, self.tier_times[level])
        self.tier_times[level] = max(self.tier_times[level], start)
        share = (self.weights or {}).get(tenant, self.weight)
        self.times[account] = start + max(1, round(cost * 2**20 / share))  # whole steps, 2**20 for a unit

    # What callers do.

    def give(self, request: Request) -> Lease:
        now_ns = self.clock.now_ns
        lease = Lease(
            request.level, request.priority, request.cost, request.tenant, self.epoch, request.heartbeat_ns, now_ns
        )
        if lease.heartbeat_ns > 0:
            self.look(lease, now_ns + lease.heartbeat_ns)
        self.charge(request.level, request.tenant, request.cost)
        self.leases.append(lease)
        self.granted += 1
        return lease

    def look(self, lease: Lease, when_ns: int) -> None:
        self.looks += 1
        lease.look_ns, lease.looks = when_ns, self.looks

    def ask(
        self, name: object, priority: int, cost: int = 1, tenant: str | None = None, heartbeat_ns: int = -1,
        key: int | None = None, arrival_ns: int = -1, dead: bool = False, tries: bool = True,
    ) -> Request:  # fmt: skip
        """`try_acquire`, or `acquire_or_join`; who got no token, and does not stand in line, found no place."""
        if self.closed:
            self.refused_closed += 1
            raise Closed("")
        if cost > max(1, self.most(priority)):
            self.refused_large += 1
            raise TooLarge("")
        if 0 <= self.cap_of(tenant) < cost:
            self.refused_cap += 1
            raise Overloaded("", reason="tenant_cap")
        if not 0 <= arrival_ns < self.clock.now_ns:
            arrival_ns = self.clock.now_ns  # nobody comes later than now
        heartbeat_ns = self.heartbeat_ns if heartbeat_ns == -1 else heartbeat_ns
        if key is None:
            key = LAST_KEY if self.keyed and tries else self.key(priority, arrival_ns)
        self.seq += 1
        request = Request(name, priority, key, self.seq, arrival_ns, cost, tenant, heartbeat_ns, dead, tries=True)
        if self.fits(request) == "fits":
            if not self.line:
                request.lease = self.give(request)
                return request
            self.enter(request)
            self.serve()
            if request in self.line:
                self.line.remove(request)
        if not tries and request.lease is None and len(self.line) < self.max_waiting:
            request.tries = False
            self.enter(request)
        self.wake()
        return request

    def key(self, level: int, arrival_ns: int) -> int:
        return (level << 55) + (arrival_ns + self.allowance_ns[level]) // 64

    def leave(self, request: Request) -> None:
        if request in self.line:
            self.line.remove(request)
            self.serve()
        self.wake()

    def abandon(self, request: Request) -> None:
        self.give_up(request)
        self.wake()

    def give_up(self, request: Request) -> None:
        self.abandoned += request in self.line or request.lease is not None
        if request in self.line:
            self.line.remove(request)
            self.serve()
        elif request.lease is not None and request.lease in self.leases:
            self.end(request.lease, UNUSED)
            self.serve()

    def lift(self, request: Request, level: int, key: int | None) -> bool:
        if request not in self.line:
            return False
        if request.cost <= self.most(level):
            self.line.remove(request)
            request.level = level
            request.key = self.key(level, request.arrival_ns) if key is None else key
            self.enter(request)
            self.serve()
        self.wake()
        return True

    def release(self, lease: Lease, how: str = WORKED) -> None:
        if lease not in self.leases:
            raise StaleToken("")
        self.end(lease, how)
        self.serve()
        self.wake()

    def end(self, lease: Lease, how: str) -> None:
        """What was never used says nothing about how long work takes; what failed is counted apart."""
        self.leases.remove(lease)
        self.failed += how == FAILED
        if how == WORKED:
            self.ended += 1
            self.held_ns += self.clock.now_ns - lease.since_ns

    def throw_away(self, lease: Lease) -> None:
        if lease in self.leases:
            self.leaked += 1
            self.release(lease, UNUSED)

    def beat(self, lease: Lease) -> None:
        if lease not in self.leases:
            raise StaleToken("")
        if lease.state != "busy":
            raise TokenRevoked("")
        lease.beat_ns = self.clock.now_ns

    def revoke(self, lease: Lease) -> bool:
        if lease not in self.leases or lease.state != "busy":
            return False
        lease.state = "revoked"
        self.revoked += 1
        self.look(lease, self.clock.now_ns + self.grace_ns)
        return True

    def expire(self, stretch: float) -> tuple[list[Lease], list[Lease]]:
        now_ns = self.clock.now_ns
        due = [lease for lease in self.leases if lease.look_ns is not None and lease.look_ns <= now_ns]
        revoked, ended = [], []
        for lease in sorted(due, key=lambda lease: (lease.look_ns, lease.looks)):
            if lease.state == "revoked":
                self.end(lease, FAILED)
                ended.append(lease)
            elif (until_ns := lease.beat_ns + int(min(lease.heartbeat_ns * stretch, 2**62))) > now_ns:
                self.look(lease, until_ns)
            else:
                self.revoke(lease)
                revoked.append(lease)
        self.serve()
        self.wake()
        return revoked, ended

    def resize(self, capacity: int) -> None:
        if not 1 <= capacity <= self.max_capacity:
            raise ValueError
        self.capacity = capacity
        self.serve()
        self.wake()

    def shut(self) -> None:
        self.closed = True
        self.to_wake += self.line
        self.line = []
        self.wake()
