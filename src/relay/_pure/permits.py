"""Permits: who holds which token of a pool, and who waits for one.

Any thread may call any method; every call is atomic and none waits for user code. The invariant: no waiter who may be
served waits while there is enough for it. What a release frees goes to whose turn it is inside the release itself, so
nobody slips in between the wake-up and the waking.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from relay._pure._acquire import Acquire, needs_no_look
from relay._pure._budget import MAX_PRIORITY, TIERS
from relay._pure._ledger import FAILED, FOREVER_NS, NS, UNUSED, Ledger, owner
from relay._pure._token import NAMES, Token, check_priority, check_size, check_tenant, revoked_token, stale_token
from relay._pure.state import BUSY, SLOT_BITS, as_int64

__all__ = [
    "MAX_PRIORITY",
    "NAMES",
    "NO_PLACE",
    "TIERS",
    "Acquire",
    "Permits",
    "Token",
    "check_priority",
    "owner",
    "stale_token",
]

NO_PLACE = -2
"""The index of a waiter who found too many in line."""

_SLOT = (1 << SLOT_BITS) - 1


class Permits(Ledger):
    """The core of a token pool.

    Subclasses override the hooks, whose names begin with an underscore; none is called in the middle of a change.

    Args:
        capacity: Units in all.
        floors: For each tier with reserved units ``(tier, count)``: that many are kept for requests of that tier. A
            priority that is neither named here nor one of 0, 1 and 2 belongs to the nearest of these below it.
        max_waiting: How many may wait at once.
        max_capacity: What `resize` may raise the capacity to; 0 for `capacity`.
        allowance_ns: For each of the 256 priorities, how long one of its requests may be overtaken; empty for no time.
        overdue_every: One grant in so many goes to the oldest waiter past its allowance; 0 for none.
        weights: Shares of the tenants inside a tier; None to go by key alone.
        weight: The share of tenants that `weights` does not name.
        caps: The most units a tenant may hold.
        cap: The same for tenants that `caps` does not name; -1 for no limit.
        heartbeat_ns: Leases that do not name their own end so long after their last beat; 0 for never.
        grace_ns: How long a revoked holder may take to give its token back.
        now_ns: The clock; None for the machine's monotonic one. It must not call the pool.

    Raises:
        ValueError: A size is out of range, the floors exceed the capacity, or name one tier twice.
    """

    __slots__ = ()

    def __init__(
        self,
        capacity: int,
        floors: tuple[tuple[int, int], ...] = (),
        max_waiting: int = 10_000,
        max_capacity: int = 0,
        allowance_ns: Sequence[int] = (),
        overdue_every: int = 0,
        weights: Mapping[str | None, float] | None = None,
        weight: float = 1.0,
        caps: Mapping[str, int] | None = None,
        cap: int = -1,
        heartbeat_ns: int = 0,
        grace_ns: int = NS,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(
            capacity, floors, max_waiting, max_capacity, allowance_ns, overdue_every, weights, weight, caps, cap,
            heartbeat_ns, grace_ns, now_ns,
        )  # fmt: skip

    # Taking.

    def try_acquire(
        self, priority: int | str = 1, cost: int = 1, tenant: str | None = None, heartbeat_ns: int = -1
    ) -> Token | None:
        """Take a token if one is free for this priority, else return None at once.

        Args:
            priority: 0 is the most urgent, 255 the least; or the name of a tier.
            cost: Units it holds.
            tenant: On whose account.
            heartbeat_ns: The lease ends so long after its last beat; 0 for never, -1 for the pool's own.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: An argument is out of range.
            TooLarge: The pool can never give so many units to this tier; also a ValueError.
            Overloaded: The tenant may never hold so many.
            Closed: The pool is closed.
        """
        level, cost, tenant = check_priority(priority), check_size("cost", cost, 1), check_tenant(tenant)
        heartbeat_ns = self.heartbeat_ns if heartbeat_ns == -1 else as_int64("heartbeat_ns", heartbeat_ns)
        with self._guard:
            token = self._take(level, cost, tenant, heartbeat_ns)
        if token is not None and self.traced:
            self._trace(token)
        return token

    def acquire(
        self,
        priority: int | str = 1,
        *,
        timeout: float | None = None,
        cost: int = 1,
        tenant: str | None = None,
        heartbeat: float | None = None,
        retry: Any = None,
    ) -> Token:
        """Take a token: at once if one is free, else as the hook `_wait` does."""
        if heartbeat is None and retry is None and needs_no_look(timeout):
            token = self.try_acquire(priority, cost, tenant)
            if token is not None:
                return token
        return self._wait(priority, timeout, cost, tenant, heartbeat, retry)

    def acquire_async(
        self,
        priority: int | str = 1,
        *,
        timeout: float | None = None,
        cost: int = 1,
        tenant: str | None = None,
        heartbeat: float | None = None,
        retry: Any = None,
    ) -> Coroutine[Any, Any, Token]:
        """As `acquire`, for coroutines. A cancelled wait loses no token."""
        if retry is not None:
            return self._wait_async(priority, timeout, cost, tenant, heartbeat, retry)
        return Acquire(self, priority, timeout, cost, tenant, heartbeat)

    def acquire_or_join(
        self,
        priority: int | str,
        key: int | None,
        waiter: Any,
        cost: int = 1,
        tenant: str | None = None,
        heartbeat_ns: int = -1,
        arrival_ns: int = -1,
    ) -> Token | None:
        """Take a token, or stand in line as `waiter`, in one step.

        Args:
            priority: As for `try_acquire`.
            key: The order among waiters; smaller first, equal keys in order of arrival. None for the tier, then the
                arrival + its allowance.
            waiter: Any object with the attributes ``index``, set here, and ``token``, None until one is granted.
                ``_deliver(waiter)`` of the pool is called after the grant.
            cost, tenant, heartbeat_ns: As for `try_acquire`.
            arrival_ns: When the request first came; -1 for now.

        Returns:
            The token, which ``waiter.token`` is too, or None: then ``waiter.index`` is its place while it stands in
            line, -1 from then on, and `NO_PLACE` if too many wait already.

        Raises:
            As `try_acquire`; OverflowError: `key` is no int of 64 bits.
        """
        level, cost, tenant = check_priority(priority), check_size("cost", cost, 1), check_tenant(tenant)
        if key is not None:
            key = as_int64("key", key)
        heartbeat_ns = self.heartbeat_ns if heartbeat_ns == -1 else as_int64("heartbeat_ns", heartbeat_ns)
        arrival_ns = as_int64("arrival_ns", arrival_ns)
        if not self.ready:
            self._get_ready()
        waiter.index = -1
        with self._guard:
            token = self._take(level, cost, tenant, heartbeat_ns, key, arrival_ns)
            if token is not None:
                waiter.token = token
            elif not self._idle:
                waiter.index = NO_PLACE
            else:
                self._stand(self._idle.pop(), waiter, level, key, cost, tenant, heartbeat_ns, arrival_ns)
        return token

    def leave(self, waiter: Any) -> Token | None:
        """Leave the line.

        Returns:
            None if the waiter left empty-handed, else the token it had been granted meanwhile; the caller must keep it
            or release it.
        """
        with self._guard:
            if waiter.index >= 0:
                self._step_out(waiter)
            token: Token | None = waiter.token
            return token

    def abandon(self, waiter: Any) -> None:
        """As `leave`, and a token granted meanwhile goes on to the next. Safe to call from a finaliser."""
        with self._guard:
            if self._guard.depth > 1:
                self._guard.late.append(waiter)
            else:
                self._give_up(waiter)

    def lift(self, waiter: Any, priority: int | str, key: int | None = None) -> bool:
        """Let a waiter stand in another tier's line, as the early or late comer it is; the one it asked for undoes it.

        Args:
            waiter: Who; one that has left the line is left alone.
            priority: The tier.
            key: The key to order it by; None for that of the built-in policies.

        Returns:
            False if it does not stand in line.

        Raises:
            As `acquire_or_join`.
        """
        level = check_priority(priority)
        if key is not None:
            key = as_int64("key", key)
        with self._guard:
            if waiter.index < 0:
                return False
            place = self._places[waiter.index]
            assert place is not None
            if place.cost <= self._budget.most(level):
                self._lines.lift(place, level, self._lines.key(level, place.arrival_ns) if key is None else key)
                self._serve()
            return True

    # Giving back.

    def release(self, token: Token) -> None:
        """Take `token` back and hand what it frees to those whose turn it is.

        Raises:
            StaleToken: Its lease has ended.
            TypeError: It is no token.
            ValueError: It belongs to another pool.
        """
        self._give_back(token, None)

    def exit(self, token: Token, kind: type[BaseException] | None = None) -> None:
        """As `release`, at the end of a block; in the child of a fork, tokens of the parent are let go silently.

        Args:
            token: The token.
            kind: What the block raised: an `Exception` counts as work that failed.
        """
        if token._handle >> SLOT_BITS >= self._first_generation:
            self._give_back(token, kind)

    def drop(self, handle: int) -> None:
        """Note that a token has been thrown away; if it was held, it comes back with the next call or soon. Safe to
        call from a finaliser, at any moment."""
        if self._arena.live(handle):
            self._guard.late.append(~handle)
            self._nudge()

    def collect(self) -> None:
        """Take back what was thrown away, and wake whoever is still to be woken."""
        with self._guard:
            pass

    def holds(self, token: Token) -> bool:
        """True while the lease of `token`, one of this pool's, lasts."""
        if not isinstance(token, Token):
            raise TypeError(f"token must be a Token, got {type(token).__name__}")
        return token._permits is self and self._arena.live(token._handle)

    def state_of(self, token: Token) -> str:
        """``"busy"``, ``"revoked"`` or ``"released"``."""
        if not self.holds(token):
            return "released"
        state = self._state(token._handle)
        if not self._arena.live(token._handle):
            return "released"  # meanwhile
        return "busy" if state == BUSY else "revoked"

    def adopt(self, token: Token) -> None:
        """From now on `owner()` counts as who acquired `token`."""
        self._own(token)
        with self._guard:
            if self._arena.live(token._handle):
                self._arena.key[token._handle & _SLOT] = owner()

    # Leases that end without a beat.

    def beat(self, token: Token) -> None:
        """Note that the holder of `token` is alive.

        Raises:
            TokenRevoked: The token has been asked back.
            StaleToken, TypeError, ValueError: As `release`.
        """
        self._own(token)
        now_ns = self._now_ns()
        with self._guard:
            if not self._arena.live(token._handle):
                raise stale_token("beat for")
            if self._state(token._handle) != BUSY:
                raise revoked_token()
            self._arena.ready_ns[token._handle & _SLOT] = now_ns

    def expire(self, stretch: float = 1.0) -> tuple[list[Token], list[Token]]:
        """Revoke the leases that have missed their beat, and end those whose grace time is over.

        Args:
            stretch: Beats may be late by this factor.

        Returns:
            Tokens revoked now, and tokens ended now. They are views: to drop them means nothing.
        """
        now_ns = self._now_ns()
        arena, revoked, fenced = self._arena, list[Token](), list[Token]()
        with self._guard:
            for slot in self._leases.due(now_ns):
                handle = self._handle(slot)
                if self._state(handle) != BUSY:
                    fenced.append(self._view(handle))
                    arena.arrival_ns[slot] = FAILED
                    self._end(handle)
                    continue
                due_ns = arena.ready_ns[slot] + int(min(arena.commit_ns[slot] * stretch, FOREVER_NS))
                if due_ns > now_ns:
                    self._leases.arm(slot, due_ns)
                else:
                    self._ask_back(handle, now_ns + self.grace_ns)
                    revoked.append(self._view(handle))
            self._serve()
        return revoked, fenced

    def revoke(self, token: Token) -> bool:
        """Ask a token back: its holder has the grace time to release it, and the lease ends then in any case.

        Returns:
            False if it has been asked back already, or its lease has ended.
        """
        self._own(token)
        now_ns = self._now_ns()
        with self._guard:
            if not self._arena.live(token._handle) or self._state(token._handle) != BUSY:
                return False
            self._ask_back(token._handle, now_ns + self.grace_ns)
        return True

    def next_lease_ns(self) -> int | None:
        """When `expire` is to be called next, or None."""
        with self._guard:
            return self._leases.next_ns()

    # The whole.

    def resize(self, capacity: int) -> None:
        """Change the capacity. Tokens that are held stay valid; after a cut none is granted before enough came back.
        Reserved units shrink in proportion.

        Raises:
            ValueError: `capacity` is not from 1 to max_capacity.
        """
        capacity = check_size("capacity", capacity, 1)
        if capacity > self.max_capacity:
            raise ValueError(
                f"capacity {capacity} is more than max_capacity {self.max_capacity}; "
                "make the pool with a larger max_capacity"
            )
        with self._guard:
            self._budget.resize(capacity)
            self._serve()

    def advance(self) -> int:
        """Start a new epoch; tokens granted from now on carry its number, which is returned."""
        with self._guard:
            self.epoch += 1
            return self.epoch

    def seal(self) -> None:
        """Refuse all newcomers; those who wait are still served."""
        with self._guard:
            self.closed = True

    def shut(self) -> None:
        """Refuse all newcomers and send away those who wait, with no token; tokens already held stay valid."""
        with self._guard:
            self.closed = True
            for place in [place for place in self._places if place is not None]:
                self._remove(place.waiter.index)
                self._to_wake.append(place.waiter)
                self._budget.settle(place.tenant)

    def start_over(self) -> None:
        """In the child of a fork: nobody holds a token or waits, and every handle from before is stale."""
        for place in self._places:
            if place is not None:
                place.waiter.index = -1
        generations = [word >> 8 for word in self._arena.word._words]
        self._build(self._budget.capacity, max(generations) + 1)

    # Looking.

    @property
    def capacity(self) -> int:
        """Units in all."""
        return self._budget.capacity

    @property
    def held(self) -> int:
        """Units held now."""
        return self._budget.held

    @property
    def free(self) -> int:
        """Units free now, reserved ones included; 0 while more are held than there are after a cut."""
        return max(0, self._budget.free)

    def __len__(self) -> int:
        """Tokens held now."""
        return len(self._arena)

    def tokens(self) -> list[Token]:
        """Views of all tokens held now; to drop them means nothing."""
        with self._guard:
            return [self._view(handle) for handle in self._handles()]

    def owned(self, who: int) -> int:
        """How many tokens somebody, named by `owner()`, has acquired and still holds."""
        with self._guard:
            return sum(self._arena.key[handle & _SLOT] == who for handle in self._handles())

    def most_urgent(self) -> int:
        """The most urgent tier that waits, or -1."""
        with self._guard:
            return min((line.level for line in self._lines), default=-1)

    def by_tier(self) -> dict[int, tuple[int, int, int]]:
        """For each tier with any of these: units held, requests waiting, units reserved."""
        with self._guard:
            found: dict[int, list[int]] = {}
            for tier, _ in self._floors:
                found[tier] = [0, 0, self._budget.floor[self._budget.group[tier]]]
            for handle in self._handles():
                slot = handle & _SLOT
                found.setdefault(self._arena.group[slot], [0, 0, 0])[0] += self._arena.cost[slot]
            for line in self._lines:
                found.setdefault(line.level, [0, 0, 0])[1] += len(line.waiters)
            return {level: (held, waiting, kept) for level, (held, waiting, kept) in sorted(found.items())}

    def by_tenant(self) -> dict[str, tuple[int, int, int]]:
        """For each tenant that holds or waits: units held, requests waiting, its cap or -1."""
        with self._guard:
            tenants = self._budget.tenants.items()
            return {name: (one.held, one.waiting, one.cap) for name, one in tenants if name is not None}

    def predict_ns(self, priority: int | str = 1, cost: int = 1) -> int:
        """How long a newcomer would wait, by the rate at which units came back lately, or -1 if that is not known."""
        level, cost = check_priority(priority), check_size("cost", cost, 1)
        with self._guard:
            if self._rate_units <= 0 or self._rate_ns <= 0:
                return -1
            ahead = sum(self._lines.units[: level + 1]) + cost - self._budget.free
            return int(min(max(0, ahead) / self._rate_units * self._rate_ns, FOREVER_NS))

    def check(self) -> None:
        """Recount everything.

        Raises:
            AssertionError: An invariant is broken, which is a bug in relay.
        """
        with self._guard:
            self._check()

    def _give_back(self, token: Token, kind: type[BaseException] | None) -> None:
        self._own(token)
        with self._guard:
            if not self._arena.live(token._handle):
                raise stale_token("release")
            if kind is not None:
                self._arena.arrival_ns[token._handle & _SLOT] = FAILED if issubclass(kind, Exception) else UNUSED
            if self._guard.depth > 1:
                self._guard.late.append(token._handle)
            else:
                self._end(token._handle)
                self._serve()

    def _own(self, token: Token) -> None:
        if not isinstance(token, Token):
            raise TypeError(f"token must be a Token, got {type(token).__name__}")
        if token._permits is not self:
            raise ValueError("this token belongs to another pool; call token.release(), which knows its own")

    # Hooks.

    def _wait(
        self, priority: int | str, timeout: float | None, cost: int, tenant: str | None, heartbeat: float | None,
        retry: Any,
    ) -> Token:  # fmt: skip
        """Wait for a token on this thread, or with retries."""
        raise NotImplementedError

    def _wait_async(
        self, priority: int | str, timeout: float | None, cost: int, tenant: str | None, heartbeat: float | None,
        retry: Any,
    ) -> Coroutine[Any, Any, Token]:  # fmt: skip
        """Wait for a token on a loop, with retries."""
        raise NotImplementedError

    def _limit_ns(self, timeout: float | None) -> int:
        """A time limit in ns, -1 for none; ValueError."""
        raise NotImplementedError

    def _beats_ns(self, heartbeat: float | None) -> int:
        """A heartbeat in ns, -1 for the pool's own; ValueError."""
        raise NotImplementedError

    def _join(
        self, waiter: Any, priority: int | str, cost: int, tenant: str | None, heartbeat_ns: int, arrival_ns: int
    ) -> Token | None:
        """`acquire_or_join`, or an error where it is no use to wait; overridden where `custom` is set."""
        token = self.acquire_or_join(priority, None, waiter, cost, tenant, heartbeat_ns, arrival_ns)
        if waiter.index == NO_PLACE:
            self._refuse(check_priority(priority), cost)
        return token

    def _get_ready(self) -> None:
        """Somebody may be about to wait, and `ready` is not set."""
        self.ready = True

    def _arm(self, waiter: Any, limit_ns: int) -> None:
        """Wake a waiter so many ns from now."""
        raise NotImplementedError

    def _left(self, waiter: Any) -> None:
        """A waiter has left the line; called where it was armed, or `custom` is set."""
        raise NotImplementedError

    def _refuse(self, priority: int, cost: int) -> None:
        """Raise for one who found too many in line."""
        raise NotImplementedError

    def _empty_handed(self, priority: int | str, timeout: float | None) -> Exception:
        """The error for one who has waited in vain."""
        raise NotImplementedError

    def _trace(self, token: Token) -> None:
        """A token has been granted, while `traced` is set."""

    def _nudge(self) -> None:
        """Something has been thrown away: see to it that `collect` is called soon. Called from finalisers."""
