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
from relay._pure._ledger import NS
from relay._pure._looking import Looking
from relay._pure._token import NAMES, Token, check_priority, check_size, check_tenant, owner, stale_token
from relay._pure.state import as_int64

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


class Permits(Looking):
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

    def _join(
        self, waiter: Any, priority: int | str, cost: int, tenant: str | None, heartbeat_ns: int, arrival_ns: int
    ) -> Token | None:
        """`acquire_or_join`, or an error where it is no use to wait; overridden where `custom` is set."""
        token = self.acquire_or_join(priority, None, waiter, cost, tenant, heartbeat_ns, arrival_ns)
        if waiter.index == NO_PLACE:
            self._refuse(check_priority(priority), cost)
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
