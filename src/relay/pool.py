"""TokenPool: permits to use compute, handed out by priority to threads and coroutines.

A pool may be used from any thread and any number of event loops; nothing is bound to a loop at construction. The core
(`permits`) decides who owns what and whose turn it is; this module parks the threads that wait, runs the clocks, and
tells what is going on. A released token belongs to the next waiter before `release` returns; a waiter that has given up
meanwhile hands it on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from relay._backend import backend
from relay._backend import permits as core
from relay.clock import NS, Clock, limit_ns
from relay.control import Control
from relay.draining import Draining
from relay.errors import Closed
from relay.fork import survivors
from relay.inherit import inheritance
from relay.lease import F, Lease, call_holding, check_work, guarded, hold, is_async
from relay.policy import INTERACTIVE, Facts, Policy, Priority, as_policy, tier
from relay.retry import Retry
from relay.samples import Controller, known
from relay.stats import Pace, PoolSnapshot, TenantSnapshot, TierSnapshot, quantile
from relay.workers import Workers

log = logging.getLogger("relay")

T = TypeVar("T")
Token = core.Token


class TokenPool(Draining):
    """A pool of tokens: at most `capacity` units are held at once, and who is most urgent gets the next.

    It limits concurrency within this process, not requests per minute. In the child of a fork it is empty.

    Args:
        capacity: Units in all; a token holds one, or as many as its `cost`.
        max_capacity: What `resize` and `control` may raise the capacity to; None for `capacity`.
        policy: Whose turn it is: `DynamicPriority` (if None), `StrictPriority`, `Weighted`, `RoundRobin`, or a function
            of `Facts` that returns an int, smaller first.
        reserved: Units kept for a tier, as ``{relay.REALTIME: 1}``. An unnamed tier belongs to the nearest named one
            at or below it. Kept in proportion while the pool is smaller than it was made.
        tenant_caps: The most units a tenant may hold: one number for each, or by name.
        max_waiting: How many may wait at once.
        max_wait: Refuse those who would wait for longer than so many seconds, by the rate at which units came back
            lately.
        heartbeat: Leases end when their holder has not beaten for so many seconds; None for never. One acquire may ask
            for another.
        grace: Seconds that a holder has to give its token back after it was revoked.
        load: Returns how busy the machine is, 0 to 1, or None if it is not known; beats may be late by 1 + that.
        on_revoke: Called with a token that has been revoked, on a thread of the pool's.
        trace: Remember where each token was acquired, for reports of what was left or leaked.
        name: For threads, error texts and snapshots.
        clock: What times are read from; for tests.

    Raises:
        ValueError: A value is out of range, or more is reserved than there is.
    """

    def __init__(
        self,
        capacity: int,
        *,
        max_capacity: int | None = None,
        policy: Policy | Callable[[Facts], int] | None = None,
        reserved: Mapping[int, int] | None = None,
        tenant_caps: Mapping[str, int] | int | None = None,
        max_waiting: int = 10_000,
        max_wait: float | None = None,
        heartbeat: float | None = None,
        grace: float = 1.0,
        load: Callable[[], float | None] | None = None,
        on_revoke: Callable[[Token], object] | None = None,
        trace: bool = False,
        name: str = "pool",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            capacity, max_capacity, as_policy(policy), reserved, tenant_caps, max_waiting, max_wait, heartbeat, grace,
            name, clock,
        )  # fmt: skip
        self._load = load
        self._on_revoke = on_revoke
        if trace:
            self._start_tracing()
        self._workers = Workers(self.max_capacity, name)
        self._control: Control | None = None
        self._begin()
        inheritance.add(self)
        survivors.add(self)

    def _begin(self) -> None:
        self._pace = Pace(self._clock.now_ns())
        self._sampled = (0, 0, 0)

    def _after_fork_in_child(self) -> None:
        self.start_over()
        self._alarm.reset()
        self._clear()
        self._begin()

    # Holding a token. `acquire`, `acquire_async`, `try_acquire` and `release` are the core's.

    def lease(
        self,
        priority: Priority = INTERACTIVE,
        *,
        timeout: float | None = None,
        cost: int = 1,
        tenant: str | None = None,
        heartbeat: float | None = None,
        retry: Retry | None = None,
    ) -> Lease:
        """A context manager that holds a token: ``with pool.lease(0) as token`` or ``async with``. Arguments as for
        `acquire`."""
        options = {"timeout": timeout, "cost": cost, "tenant": tenant, "heartbeat": heartbeat, "retry": retry}
        return Lease(self, priority, options)

    def run(
        self,
        function: Callable[..., T],
        *args: Any,
        priority: Priority = INTERACTIVE,
        timeout: float | None = None,
        cost: int = 1,
        tenant: str | None = None,
        retry: Retry | None = None,
    ) -> T:
        """Call ``function(*args)`` on this thread while holding a token. Raises as `acquire`, and as `function`."""
        check_work(function, on_loop=False)
        token = self.acquire(priority, timeout=timeout, cost=cost, tenant=tenant, heartbeat=math.inf, retry=retry)
        return call_holding(token, function, args)

    async def run_async(
        self,
        function: Callable[..., Any],
        *args: Any,
        priority: Priority = INTERACTIVE,
        timeout: float | None = None,
        cost: int = 1,
        tenant: str | None = None,
        retry: Retry | None = None,
    ) -> Any:
        """Run `function` while holding a token: a coroutine function as a task on this loop, any other on the pool's
        own threads.

        The token comes back when the work ends: if the caller is cancelled the work goes on, and so does its lease.

        Returns:
            What the function returned.
        """
        check_work(function)
        loop = asyncio.get_running_loop()
        token = await self.acquire_async(
            priority, timeout=timeout, cost=cost, tenant=tenant, heartbeat=math.inf, retry=retry
        )
        work: asyncio.Future[Any]
        try:
            if is_async(function):
                work = loop.create_task(hold(self, token, function, args))
                work.add_done_callback(partial(_release_unstarted, token))
            else:
                work = asyncio.wrap_future(self._workers.submit(call_holding, token, function, args))
        except BaseException:
            token.release()
            raise
        work.add_done_callback(_retrieve)
        return await asyncio.shield(work)

    @overload
    def guard(self, function: F, /) -> F: ...
    @overload
    def guard(
        self,
        *,
        priority: Priority = INTERACTIVE,
        timeout: float | None = None,
        cost: int = 1,
        tenant: str | None = None,
        retry: Retry | None = None,
    ) -> Callable[[F], F]: ...
    def guard(  # type: ignore[misc]  # F stands alone in the second form
        self,
        function: Any = None,
        /,
        *,
        priority: Priority = INTERACTIVE,
        timeout: float | None = None,
        cost: int = 1,
        tenant: str | None = None,
        retry: Retry | None = None,
    ) -> Any:
        """Decorate a ``def`` or ``async def`` so that each of its calls holds a token, as with `run` or `run_async`."""
        tier(priority)
        limit_ns(timeout, "timeout")
        options = {"timeout": timeout, "cost": cost, "tenant": tenant, "retry": retry}
        if function is not None:
            return guarded(self, function, priority, options)
        return lambda function: guarded(self, function, priority, options)

    # The whole.

    def resize(self, capacity: int) -> None:
        """Change the capacity, up to `max_capacity`. Tokens that are held stay valid; after a cut none is granted
        before enough has come back. Reserved units shrink in proportion."""
        if self._is_closed:
            raise Closed(f"the pool {self.name!r} is closed; make a new one")
        super().resize(capacity)

    def control(
        self, controller: Controller, load: Callable[[], float | None] | None = None, *, every: float = 1.0
    ) -> Control:
        """Let a controller set the capacity from now on, once every so many seconds. Replaces an earlier one.

        Args:
            controller: From `relay.controller`, or any object with ``update(sample) -> wanted limit``.
            load: How busy the device is, 0 to 1, or None if it is not known; an unknown load never widens anything.
            every: Seconds between its steps.

        Returns:
            The running control; ``stop()`` ends it, and so does closing the pool.
        """
        if self._control is not None:
            self._control.stop()
        self._control = Control(self, controller, load, every, self._clock).start()
        return self._control

    def close(self) -> None:
        """Give out no more tokens; all who wait get `Closed`. Tokens that are held stay valid until they are
        released."""
        self._is_closed = True
        self.shut()
        inheritance.remove(self)
        if self._control is not None:
            self._control.stop()
        if not self.next_lease_ns():
            self._alarm.stop()
        self._workers.stop()

    def snapshot(self) -> PoolSnapshot:
        """Counters and gauges of this moment. Cheap enough to be asked ten times a second."""
        self.collect()
        granted, waits = self.granted, self.waits.copy()
        at_once = granted - waits.count
        p50, p95, p99 = (quantile(waits, at_once, share) for share in (0.5, 0.95, 0.99))
        with self._counting:
            refused_by = dict(self._refused)
        own = {"closed": self.refused_closed, "too_large": self.refused_large, "tenant_cap": self.refused_cap}
        refused_by |= {reason: count for reason, count in own.items() if count}
        return PoolSnapshot(
            name=self.name,
            backend=backend,
            capacity=self.capacity,
            max_capacity=self.max_capacity,
            held=self.held,
            free=self.free,
            tokens=len(self),
            waiting=self.waiting,
            granted=granted,
            timed_out=self._timed_out,
            cancelled=self.abandoned,
            refused=sum(refused_by.values()),
            refused_by=refused_by,
            revoked=self.revoked,
            leaked=self.leaked,
            epoch=self.epoch,
            qps=self._pace.read(self._clock.now_ns(), granted),
            mean_wait=waits.total_ns / granted / NS if granted else 0.0,
            p50_wait=p50,
            p95_wait=p95,
            p99_wait=p99,
            tiers={level: TierSnapshot(*counts) for level, counts in self.by_tier().items()},
            tenants={
                name: TenantSnapshot(held, waiting, cap if cap >= 0 else None)
                for name, (held, waiting, cap) in self.by_tenant().items()
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TokenPool {self.name!r} {backend} {self.held} of {self.capacity} held, {self.waiting} waiting>"

    # Within.

    def _ring(self, now_ns: int) -> None:
        super()._ring(now_ns)
        next_ns = self.next_lease_ns()
        if next_ns is not None and next_ns <= now_ns:
            self._tell_revoked(self.expire(1.0 + self._known_load())[0])
        if self._is_closed and self.next_lease_ns() is None:
            self._alarm.stop()

    def _known_load(self) -> float:
        if self._load is None:
            return 0.0
        try:
            load = self._load()
            return 0.0 if load is None else known(float(load)) or 0.0
        except Exception:
            log.warning("relay: the load for %r cannot be read; leases go by their plain heartbeat", self.name)
            return 0.0

    def _sample(self) -> tuple[int, int, int, float | None, int, int]:
        """For `Control`: limit, in use, waiting, latency, completed and dropped, since the last call. Dropped is work
        that failed; callers who gave up waiting are no reason to let fewer in."""
        if self._is_closed:
            raise Closed(f"the pool {self.name!r} is closed; make a new one")
        self.clocked = True
        with self._counting:
            now = (self.ended, self.held_ns, self.failed)
            ended, held_ns, dropped = (new - old for new, old in zip(now, self._sampled, strict=True))
            self._sampled = now
        latency = held_ns / ended / NS if ended else None
        return self.capacity, self.held, self.waiting, latency, ended, dropped

    def _leaked(self, token: Token) -> None:
        place = self._acquired_at(token)
        where = f"acquired at {place}" if place else "make the pool with trace=True to see where it was acquired"
        text = f"a token of {self.name!r} was thrown away without being released ({where}); use it in a with"
        try:
            warnings.warn(text, ResourceWarning, stacklevel=2)
        except ResourceWarning:  # made an error; but whose call this is, is not who threw it away
            log.warning("relay: %s", text)


def _release_unstarted(token: Token, work: asyncio.Future[Any]) -> None:
    """A task that is cancelled before its first step never gets to its `with`."""
    if token.held:
        token.release()


def _retrieve(work: asyncio.Future[Any]) -> None:
    """Look at the error of work whose caller has left, so that asyncio does not log it as never retrieved."""
    if not work.cancelled():
        work.exception()
