"""The part of a pool that waits: threads and coroutines that stand in line, their time limits, and what they are told
when it was in vain.

Any thread may call anything here. One daemon thread of the pool's, the alarm, sleeps until the earliest time limit; the
first who waits starts it. A waiter that has given up hands on what it was given meanwhile.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from relay._backend import permits as core
from relay._backend import timers
from relay.clock import MONOTONIC, NS, Alarm, Clock, limit_ns
from relay.errors import AcquireTimeout, Closed, Overloaded
from relay.inherit import inheritance
from relay.policy import Policy, Priority, as_cap, as_floors, tier
from relay.retry import Retry, run_with_retry, run_with_retry_async
from relay.ticket import warn_if_on_loop
from relay.waiter import Waiter

Token = core.Token


class Waiting(core.Permits):
    """What `TokenPool` is built on; its arguments are explained there."""

    def __init__(
        self,
        capacity: int,
        max_capacity: int | None,
        policy: Policy,
        reserved: Mapping[int, int] | None,
        tenant_caps: Mapping[str, int] | int | None,
        max_waiting: int,
        max_wait: float | None,
        heartbeat: float | None,
        grace: float,
        name: str,
        clock: Clock | None,
    ) -> None:
        super().__init__(
            capacity,
            as_floors(reserved),
            max_waiting,
            max_capacity or 0,
            policy.allowance_ns,
            policy.overdue_every,
            policy.weights,
            policy.weight,
            dict(tenant_caps) if isinstance(tenant_caps, Mapping) else {},
            as_cap(tenant_caps),
            self._beats_ns(heartbeat) if heartbeat is not None else 0,
            limit_ns(grace, "grace") or 0,
            clock.now_ns if clock is not None else None,
        )
        self.name = name
        self._wait_name = f"waiting for a token of {name!r}"
        self._policy = policy
        self._clock = clock or MONOTONIC
        self._max_wait_ns = limit_ns(max_wait, "max_wait")
        self._alarm = _alarm_of(self)
        self._inherits = False
        self._is_closed = False
        self._clear()
        self.keyed = not policy.built_in
        self.custom = self.keyed or self._max_wait_ns is not None

    def _clear(self) -> None:
        """As at first, in the child of a fork too: no lock of before is touched."""
        self._timers = timers.Timers(max(self.max_waiting, 1))
        self._timed: dict[int, Any] = {}
        self._timer_lock = threading.RLock()  # a coroutine that is finalised leaves the line, whatever runs then
        self._counting = threading.Lock()
        self._timed_out = 0
        self._refused: dict[str, int] = {}

    def note_waits(self, note: bool) -> None:
        """Whether there is another pool, so that waits are to be noted for inheritance."""
        self._inherits = note
        self.custom = note or self.keyed or self._max_wait_ns is not None

    def lift_waiter(self, waiter: Any, priority: int) -> None:
        """Let a waiter stand in another tier's line. Under a user's policy, which may not go by tiers, it stays."""
        if self._policy.built_in:
            self.lift(waiter, priority)

    def _wait(
        self,
        priority: Priority,
        timeout: float | None,
        cost: int,
        tenant: str | None,
        heartbeat: float | None,
        retry: Retry | None,
    ) -> Token:
        if retry is None:
            return self._wait_once(priority, timeout, cost, tenant, heartbeat, -1)
        attempt = partial(
            self._wait_once, priority, cost=cost, tenant=tenant, heartbeat=heartbeat, arrival_ns=self._clock.now_ns()
        )
        return run_with_retry(retry, attempt, self._clock, timeout=timeout)

    def _wait_async(
        self,
        priority: Priority,
        timeout: float | None,
        cost: int,
        tenant: str | None,
        heartbeat: float | None,
        retry: Retry,
    ) -> Coroutine[Any, Any, Token]:
        attempt = partial(
            core.Acquire, self, priority, cost=cost, tenant=tenant, heartbeat=heartbeat, arrival_ns=self._clock.now_ns()
        )
        return run_with_retry_async(retry, attempt, self._clock, timeout=timeout)

    def _wait_once(
        self,
        priority: Priority,
        timeout: float | None,
        cost: int,
        tenant: str | None,
        heartbeat: float | None,
        arrival_ns: int,
    ) -> Token:
        # Between a wake-up and the next wait the lock of the interpreter is held, which others need: few calls here.
        limit = -1 if timeout is None else self._limit_ns(timeout)
        beats_ns = -1 if heartbeat is None else self._beats_ns(heartbeat)
        if limit == 0:
            token = self.try_acquire(priority, cost, tenant, beats_ns)
            if token is None:
                raise self._empty_handed(priority, timeout)
            return token
        waiter = Waiter()
        try:
            if self.custom:
                token = self._join(waiter, priority, cost, tenant, beats_ns, arrival_ns)
            else:
                token = self.acquire_or_join(priority, None, waiter, cost, tenant, beats_ns, arrival_ns)
            if token is None:
                if waiter.index == core.NO_PLACE:
                    self._refuse(tier(priority), cost)
                warn_if_on_loop(self._wait_name, "use acquire_async()")
                self._clock.park(waiter.gate, None if limit < 0 else self._clock.now_ns() + limit)
                token = self.leave(waiter) if waiter.token is None else waiter.token
        except BaseException:
            self.abandon(waiter)
            raise
        finally:
            if self.custom:
                self._left(waiter)
        if token is None:
            raise self._empty_handed(priority, timeout)
        if self.traced:
            self._trace(token)
        return token

    def _limit_ns(self, timeout: float | None) -> int:
        limit = limit_ns(timeout, "timeout")
        return -1 if limit is None else limit

    def _beats_ns(self, heartbeat: float | None) -> int:
        if heartbeat is None:
            return -1
        limit = limit_ns(heartbeat, "heartbeat")
        if limit == 0:
            raise ValueError("heartbeat must be more than 0 seconds, or infinite for a lease that never ends by itself")
        return limit or 0

    def _join(
        self, waiter: Any, priority: Priority, cost: int, tenant: str | None, heartbeat_ns: int, arrival_ns: int
    ) -> Token | None:
        level = tier(priority)
        if self._max_wait_ns is not None:
            self._refuse_late(level, cost, self._max_wait_ns)
        key = None
        if not self._policy.built_in:
            arrived_ns = arrival_ns if arrival_ns >= 0 else self._clock.now_ns()
            key = self._policy.key(level, arrived_ns, -1, cost, tenant)
        token = self.acquire_or_join(level, key, waiter, cost, tenant, heartbeat_ns, arrival_ns)
        if token is None:
            if waiter.index == core.NO_PLACE:
                self._refuse(level, cost)
            if self._inherits:
                inheritance.joined(self, waiter, level)
        return token

    def _left(self, waiter: Any) -> None:
        if waiter.place >= 0:
            self._disarm(waiter)
        if self._inherits:
            inheritance.left(self, waiter)

    def _refuse(self, priority: int, cost: int) -> None:
        wait_ns = self.predict_ns(priority, cost)
        self._count_refused("queue_full")
        raise Overloaded(
            f"{self.max_waiting} callers already wait for a token of {self.name!r}, which is max_waiting; "
            "retry later or raise it",
            reason="queue_full",
            retry_after=wait_ns / NS if wait_ns >= 0 else None,
        )

    def _refuse_late(self, priority: int, cost: int, limit_ns: int) -> None:
        wait_ns = self.predict_ns(priority, cost)
        if wait_ns > limit_ns:
            self._count_refused("predicted_late")
            raise Overloaded(
                f"a token of {self.name!r} would be free in about {wait_ns / NS:.3g} s, and max_wait is "
                f"{limit_ns / NS:.3g} s; retry later, or ask at a more urgent priority",
                reason="predicted_late",
                retry_after=(wait_ns - limit_ns) / NS,
            )

    def _empty_handed(self, priority: Priority, timeout: float | None) -> Exception:
        if self._is_closed:
            return Closed(f"the pool {self.name!r} was closed while waiting for a token; make a new one")
        with self._counting:
            self._timed_out += 1
        if timeout == 0:
            return AcquireTimeout(
                f"no token of {self.name!r} is free for priority {tier(priority)}, and timeout=0 does not wait for one"
            )
        return AcquireTimeout(
            f"no token of {self.name!r} became free within timeout={timeout} s; "
            "wait longer, ask at a more urgent priority, or raise its capacity"
        )

    def _count_refused(self, reason: str) -> None:
        with self._counting:
            self._refused[reason] = self._refused.get(reason, 0) + 1

    def _deliver(self, waiter: Any) -> bool:
        return bool(waiter.wake())

    def _get_ready(self) -> None:
        self._alarm.start()
        self.ready = True

    def _nudge(self) -> None:
        self._alarm.poke()

    def _lease_armed(self) -> None:
        if (when_ns := self.next_lease_ns()) is not None:
            self._alarm.arm(when_ns)

    def _arm(self, waiter: Any, limit_ns: int) -> None:
        when_ns = self._clock.now_ns() + limit_ns
        with self._timer_lock:
            place = waiter.index
            if place < 0:
                return  # it has been woken already
            # If it is woken now and another comes to the same place, that one's timer comes later and stays.
            self._timed[place] = waiter
            self._timers.arm(place, when_ns)
            waiter.place = place
        self._alarm.arm(when_ns)

    def _disarm(self, waiter: Any) -> None:
        with self._timer_lock:
            place = waiter.place
            if self._timed.get(place) is waiter:
                del self._timed[place]
                self._timers.disarm(place)

    def _next_alarm_ns(self) -> int | None:
        with self._timer_lock:
            waits_ns = self._timers.next_ns()
        return min((ns for ns in (waits_ns, self.next_lease_ns()) if ns is not None), default=None)

    def _ring(self, now_ns: int) -> None:
        """The alarm: wake those whose time is over, and take back what was thrown away."""
        with self._timer_lock:
            late = [self._timed.pop(place) for place in self._timers.due(now_ns)]
        for waiter in late:
            waiter.wake()
        self.collect()


def _alarm_of(pool: Waiting) -> Alarm:
    """The alarm of a pool, which does not keep it alive: a pool that is dropped ends its thread."""
    # Once the thread runs, it keeps this reference, and so the callback; before that there is nothing to end.
    found = weakref.ref(pool, lambda _: alarm.stop())

    def next_ns() -> int | None:
        pool = found()
        return None if pool is None else pool._next_alarm_ns()

    def ring(now_ns: int) -> None:
        pool = found()
        if pool is not None:
            pool._ring(now_ns)

    alarm = Alarm(pool._clock, f"{pool.name}-alarm", next_ns, ring)
    return alarm
