"""The books of a pool: its token slots, their units, their time limits, and the lines of those who wait.

One thread at a time may change them: `guard` lets it in, and wakes, when it is through, those who were given something.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relay._pure._budget import FITS, MAX_PRIORITY, Budget, Tenant
from relay._pure._guard import Guard
from relay._pure._hooks import Hooks
from relay._pure._lines import LEAST_WEIGHT, MOST_WEIGHT, Lines, Place, Shares
from relay._pure._token import FAILED, UNUSED, Token, check_priority, check_size, check_tenant, owner
from relay._pure.arena import Arena
from relay._pure.histogram import Histogram
from relay._pure.state import SLOT_BITS, as_int64
from relay._pure.timers import Timers
from relay.errors import Closed, Overloaded, TooLarge

NS = 1_000_000_000
FOREVER_NS = 1 << 62
_LAST_KEY = 2**63 - 1
_LONGEST_NS = 1 << 60  # allowances are cut to it: a longer one would carry into the tier's bits of a key
_MEMORY_NS = 5.0 * NS  # over about so long the rate of release is measured
_SLOT = (1 << SLOT_BITS) - 1


class Trier:
    """Who tries once: stands in line and leaves it within one call."""

    __slots__ = ("index", "token")

    def __init__(self) -> None:
        self.index = -1
        self.token: Token | None = None


class Ledger(Hooks):
    """What `Permits` is built on; its arguments are explained there."""

    __slots__ = (
        "_allowance_ns", "_arena", "_base", "_budget", "_cap", "_caps", "_every", "_first_generation", "_floors",
        "_guard", "_holder", "_idle", "_leases", "_lines", "_now_ns", "_places", "_rate_at_ns", "_rate_ns",
        "_rate_units", "_to_wake", "_weight", "_weights", "abandoned", "clocked", "closed", "custom", "ended", "epoch",
        "failed", "grace_ns", "granted", "heartbeat_ns", "held_ns", "keyed", "leaked", "max_capacity", "max_waiting",
        "refused_cap", "refused_closed", "refused_large", "revoked", "traced", "waiting", "waits", "watched",
    )  # fmt: skip

    def __init__(
        self,
        capacity: int,
        floors: tuple[tuple[int, int], ...],
        max_waiting: int,
        max_capacity: int,
        allowance_ns: Sequence[int],
        overdue_every: int,
        weights: Mapping[str | None, float] | None,
        weight: float,
        caps: Mapping[str, int] | None,
        cap: int,
        heartbeat_ns: int,
        grace_ns: int,
        now_ns: Callable[[], int] | None,
    ) -> None:
        capacity, self.max_waiting = check_size("capacity", capacity, 1), check_size("max_waiting", max_waiting, 0)
        self.max_capacity = check_size("max_capacity", max_capacity, 0) or capacity
        if self.max_capacity < capacity:
            raise ValueError(f"capacity {capacity} is more than max_capacity {self.max_capacity}; raise max_capacity")
        named = sorted((check_priority(tier), check_size("a reserved count", count, 0)) for tier, count in floors)
        reserved = sum(count for _, count in named)
        if reserved > capacity:
            raise ValueError(
                f"reserved tokens come to {reserved}, but the pool has only {capacity}; "
                "reserve fewer or raise the capacity"
            )
        if len(dict(named)) < len(named):
            raise ValueError("tokens are reserved twice for one priority; name each priority once")
        self._caps = {check_tenant(name): check_size("a tenant's cap", n, 0) for name, n in (caps or {}).items()}
        for share in (weight, *(weights or {}).values()):
            if not LEAST_WEIGHT <= share <= MOST_WEIGHT:
                raise ValueError(f"a weight must be from {LEAST_WEIGHT} to {MOST_WEIGHT}, got {share!r}")
        self._weights = None
        if weights is not None:
            self._weights = {check_tenant(name): float(share) for name, share in weights.items()}
        self._allowance_ns = [min(as_int64("an allowance", ns), _LONGEST_NS) for ns in allowance_ns]
        self._allowance_ns = self._allowance_ns or [0] * (MAX_PRIORITY + 1)
        if len(self._allowance_ns) != MAX_PRIORITY + 1:
            raise ValueError(f"allowance_ns must name all 256 priorities, or none, got {len(self._allowance_ns)}")
        self._floors, self._weight = named, float(weight)
        self._cap, self._every = as_int64("cap", cap), as_int64("overdue_every", overdue_every)
        self._base = capacity
        self._now_ns = now_ns or time.monotonic_ns
        self.heartbeat_ns, self.grace_ns = as_int64("heartbeat_ns", heartbeat_ns), as_int64("grace_ns", grace_ns)
        self.keyed = False  # keys come from the callers; who gives none stands last
        self.custom = True  # `_join` and `_left` are to be asked
        self.traced = self.watched = self.clocked = self.closed = False
        self._build(capacity, 1)

    def _build(self, capacity: int, generation: int) -> None:
        self.waits = Histogram()
        self._first_generation = generation
        self._arena = Arena(self.max_capacity, generation=generation)
        self._holder: list[Tenant | None] = [None] * self.max_capacity
        self._leases = Timers(self.max_capacity)
        self._budget = Budget(self._base, self._floors, self._caps, self._cap)
        self._budget.resize(capacity)
        shares = None
        if self._weights is not None:
            shares = Shares(self._weights, self._weight, self.max_waiting + self.max_capacity + 1)
        self._lines = Lines(self._allowance_ns, self._every, shares, bool(self._caps) or self._cap >= 0)
        self._places: list[Place | None] = [None] * (self.max_waiting + 1)  # the last one is for who only tries
        self._idle = list(range(self.max_waiting))
        self._to_wake: list[Any] = []
        self._rate_units = self._rate_ns = 0.0
        self._rate_at_ns = 0
        self.waiting = self.granted = self.ended = self.failed = self.abandoned = self.revoked = self.leaked = (
            self.epoch
        ) = 0
        self.refused_closed = self.refused_large = self.refused_cap = 0
        self.held_ns = 0  # by ended leases, while `clocked`
        self.ready = False  # `_get_ready` is to be called before anybody waits
        self._guard = Guard(self)

    # Taking and waiting.

    def _take(
        self, level: int, cost: int, name: str | None, heartbeat_ns: int, key: int | None = None, arrival_ns: int = -1
    ) -> Token | None:
        """A token, if one may be had at once."""
        if self.closed:
            self.refused_closed += 1
            raise Closed("the pool is closed; no more tokens are given out")
        most, cap = self._budget.most(level), self._budget.cap_of(name)
        if cost > max(most, 1):
            self.refused_large += 1
            raise TooLarge(
                f"cost {cost} is more than the {most} units that this pool could ever give to priority {level}; "
                "ask for less, or raise its capacity"
            )
        if 0 <= cap < cost:
            self.refused_cap += 1
            raise Overloaded(
                f"cost {cost} is more than the {cap} units that tenant {name!r} may hold; "
                "ask for less, or raise its cap",
                reason="tenant_cap",
            )
        tenant = self._budget.tenant(name)
        if self._budget.fits(level, tenant, cost) != FITS:
            self._budget.settle(tenant)
            return None
        if not self.waiting:
            return self._give(level, level, tenant, cost, heartbeat_ns, -1, owner())
        # One of those who wait may bar the way: stand in line for a moment, where it is decided who may pass.
        trier = Trier()
        if key is None and self.keyed:
            key = _LAST_KEY  # behind all those whose keys the caller has made
        self._stand(self.max_waiting, trier, level, key, cost, name, heartbeat_ns, arrival_ns)
        self._serve()
        if trier.index >= 0:
            self._remove(trier.index)
            self._budget.settle(tenant)
        return trier.token

    def _stand(
        self, index: int, waiter: Any, level: int, key: int | None, cost: int, name: str | None, heartbeat_ns: int,
        arrival_ns: int,
    ) -> None:  # fmt: skip
        """Put a waiter into line."""
        now_ns = self._now_ns()
        if not self.waiting:
            self._rate_at_ns = now_ns
        if not 0 <= arrival_ns < now_ns:
            arrival_ns = now_ns
        if key is None:
            key = self._lines.key(level, arrival_ns)
        place = Place(waiter, level, key, arrival_ns, cost, self._budget.tenant(name), heartbeat_ns, owner())
        try:
            waiter.index = index
        except BaseException:
            if index < self.max_waiting:
                self._idle.append(index)
            self._budget.settle(place.tenant)
            raise
        self._places[index] = place
        self.waiting += 1
        self._lines.join(place)

    def _remove(self, index: int) -> Place:
        """Take a waiter out of line; its tenant may have to be settled."""
        place = self._places[index]
        assert place is not None
        self._lines.leave(place)
        self._places[index] = None
        if index < self.max_waiting:
            self._idle.append(index)
        place.waiter.index = -1
        self.waiting -= 1
        self._guard.freed = self.watched
        return place

    def _step_out(self, waiter: Any) -> None:
        """Take a waiter that stands in line out of it; it may have barred the way."""
        self._budget.settle(self._remove(waiter.index).tenant)
        self._serve()

    def _give_up(self, waiter: Any) -> None:
        """Take a waiter out of line, or the token it has been granted from it."""
        self.abandoned += waiter.index >= 0 or waiter.token is not None
        if waiter.index >= 0:
            self._step_out(waiter)
        elif waiter.token is not None and self._arena.live(waiter.token._handle):
            self._arena.arrival_ns[waiter.token._handle & _SLOT] = UNUSED
            self._end(waiter.token._handle)
            self._serve()

    def _serve(self) -> None:
        """Grant whatever can be granted; after a waiter that cannot take its token, when the call ends."""
        if not self.waiting or self._budget.free <= 0:
            return
        now_ns = self._now_ns()
        while self.waiting and (place := self._lines.choose(self._budget, now_ns)) is not None:
            waiter = place.waiter
            # Before it leaves the line: its tenant has not been idle, and is charged from where it stands.
            token = self._give(
                place.level, place.priority, place.tenant, place.cost, place.heartbeat_ns, now_ns, place.owner
            )
            try:
                self._remove(waiter.index)
                if not isinstance(waiter, Trier):
                    self.waits.record(now_ns - place.arrival_ns)
                    self._to_wake.append(waiter)
                waiter.token = token
            except BaseException:
                # It cannot take it: the next one gets it, and it is told all the same, so as not to wait for ever.
                self._guard.unserved = True
                self.abandoned += 1
                self._arena.arrival_ns[token._handle & _SLOT] = UNUSED
                self._end(token._handle)
                raise

    # Tokens.

    def _give(
        self, level: int, priority: int, tenant: Tenant, cost: int, heartbeat_ns: int, now_ns: int, who: int
    ) -> Token:
        """Lease a slot; `level` is whose units it takes, `now_ns` is -1 where it has not been asked yet."""
        handle = self._arena.lease(key=who, cost=cost, epoch=self.epoch, busy=True)
        slot = handle & _SLOT
        self._arena.group[slot] = level
        self._holder[slot] = tenant
        if now_ns < 0 and (heartbeat_ns > 0 or self.clocked):
            now_ns = self._now_ns()
        self._arena.arrival_ns[slot] = now_ns
        if heartbeat_ns > 0:
            self._arena.ready_ns[slot], self._arena.commit_ns[slot] = now_ns, heartbeat_ns
            self._leases.arm(slot, min(now_ns + heartbeat_ns, FOREVER_NS))
            self._guard.armed = True
        self._budget.count(level, tenant, cost)
        self._lines.charge(level, tenant, cost)
        self.granted += 1
        token = Token(self, handle, priority, cost, tenant.name, self.epoch)
        token._owns = True
        return token

    def _end(self, handle: int) -> None:
        """End a lease."""
        slot = handle & _SLOT
        tenant = self._holder[slot]
        assert tenant is not None
        level, cost = self._arena.group[slot], self._arena.cost[slot]
        self._leases.disarm(slot)
        since_ns = self._arena.arrival_ns[slot]
        if since_ns == FAILED:
            self.failed += 1
        elif since_ns != UNUSED:
            self.ended += 1
            if self.clocked and since_ns >= 0:
                self.held_ns += self._now_ns() - since_ns
        self._arena.release(handle)
        self._holder[slot] = None
        self._budget.count(level, tenant, -cost)
        self._guard.freed = self.watched
        if self.waiting:
            now_ns = self._now_ns()
            passed = now_ns - self._rate_at_ns
            kept = math.exp(-passed / _MEMORY_NS)
            self._rate_at_ns = now_ns
            self._rate_units = self._rate_units * kept + cost
            self._rate_ns = self._rate_ns * kept + passed

    def _ask_back(self, handle: int, until_ns: int) -> None:
        """Revoke a lease."""
        self._arena.revoke(handle)
        self._leases.arm(handle & _SLOT, min(until_ns, FOREVER_NS))
        self._guard.armed = True
        self.revoked += 1

    def _handle(self, slot: int) -> int:
        return self._arena.word.load(slot) >> 8 << SLOT_BITS | slot

    def _handles(self) -> list[int]:
        return [self._handle(slot) for slot, holder in enumerate(self._holder) if holder is not None]

    def _view(self, handle: int) -> Token:
        """A token that says what a slot's does, and may be dropped."""
        slot, arena = handle & _SLOT, self._arena
        holder = self._holder[slot]
        name = holder.name if holder is not None else None
        return Token(self, handle, arena.group[slot], arena.cost[slot], name, arena.epoch[slot])
