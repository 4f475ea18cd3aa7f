"""Whose turn it is: from a request's facts to one integer, smaller first.

A tier's settings are those of the nearest named tier at or below it. Keys are computed once, at arrival, by the
arriving thread; equal keys are served in order of arrival. What goes beyond keys (the turn of the overdue, shares,
who may pass a request too large for what is free) is done by the core, from the numbers that a policy holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import index
from typing import NamedTuple

from relay._backend import permits, state
from relay.clock import NS

REALTIME = 0
INTERACTIVE = 1
BATCH = 2

Priority = int | str

TIME_BITS = 55
# In steps of 64 ns, 55 bits last 73 years; what falls into one step keeps its order of arrival.
STEP_BITS = 6
_LONGEST_NS = 1 << 60  # 36 years: longer allowances would carry into the tier's bits
MAX_PRIORITY = permits.MAX_PRIORITY

tier = permits.check_priority
"""The number of a priority given as a number or a name; ValueError or TypeError."""


class Facts(NamedTuple):
    """What a user's policy is told about a request."""

    priority: int
    """0 (most urgent) to 255."""
    arrival: float
    """When it came, in seconds of the clock."""
    deadline: float | None
    """When it must have been started, in seconds of the clock."""
    cost: int
    """Units it takes."""
    tenant: str | None
    """Whose it is."""


class Policy:
    """What every policy has. Use one of its subclasses, or a function of `Facts` that returns an int.

    Attributes:
        allowance_ns: For each of the 256 priorities, how long one of its requests may be overtaken.
        overdue_every: One grant in so many goes to the oldest waiter past its own allowance; 0 for none.
        weights: Shares of the tenants inside a tier, None if it does not share; `weight` is that of all others.
        built_in: Keys are the tier, then arrival + allowance, or the deadline if that is earlier.
    """

    overdue_every = 0
    weights: Mapping[str | None, float] | None = None
    weight = 1.0
    built_in = True

    def __init__(self, allowance: Mapping[int, float] | None = None) -> None:
        named = dict(allowance) if allowance is not None else {REALTIME: 0.05, INTERACTIVE: 0.5, BATCH: 10.0}
        if not named:
            raise ValueError("allowance must name at least one tier, for example {relay.BATCH: 10.0}")
        for priority, seconds in named.items():
            tier(priority)
            if not 0 <= seconds < float("inf"):
                raise ValueError(f"an allowance must be a finite number of seconds of at least 0, got {seconds!r}")
        self.allowance_ns = [0] * (MAX_PRIORITY + 1)
        current = named[min(named)]
        for priority in range(MAX_PRIORITY + 1):
            current = named.get(priority, current)
            self.allowance_ns[priority] = int(min(current * NS, _LONGEST_NS))

    def key(
        self, priority: int, arrival_ns: int, deadline_ns: int = -1, cost: int = 1, tenant: str | None = None
    ) -> int:
        """The key of a request.

        Args:
            priority: 0 to 255.
            arrival_ns: When it came.
            deadline_ns: When it must have been started, or -1.
            cost: Units it takes.
            tenant: Whose it is.
        """
        due_ns = arrival_ns + self.allowance_ns[priority]
        if 0 <= deadline_ns < due_ns:
            due_ns = deadline_ns
        return priority << TIME_BITS | due_ns >> STEP_BITS


class DynamicPriority(Policy):
    """Tier first; inside a tier the smallest of arrival + allowance and deadline. In a pool, one grant in eight goes to
    the oldest waiter past its own allowance, whatever its tier, so that nothing starves.

    Args:
        allowance: For each named tier, the seconds for which one of its requests may be overtaken by later ones of its
            tier. Tiers above the first named one take its settings. A relay that chooses by size lets them be overtaken
            for longer while more are past it than would be chosen so; `Limits.look_past` 0 serves strictly in order.
    """

    overdue_every = 8


class StrictPriority(Policy):
    """Tier first, then arrival, and nothing else: a flood of urgent requests starves the others.

    Args:
        allowance: How long a request that is too large for what is free lets smaller ones pass, for each named tier.
    """

    def key(
        self, priority: int, arrival_ns: int, deadline_ns: int = -1, cost: int = 1, tenant: str | None = None
    ) -> int:
        """The key of a request: its tier, then its arrival."""
        return priority << TIME_BITS | arrival_ns >> STEP_BITS


class Weighted(StrictPriority):
    """Tier first; inside a tier the tenants share by weight, as the units they take cost. For pools.

    A tenant that has been idle starts where the others are: nothing is saved up. Source: start-time fair queueing,
    Goyal, Vin and Cheng, SIGCOMM 1996.

    Args:
        weights: Each tenant's share, from 1/1024 to 1,048,576; None stands for requests without a tenant.
        default: The share of those that `weights` does not name.
        allowance: As for `StrictPriority`.
    """

    def __init__(
        self,
        weights: Mapping[str | None, float] | None = None,
        *,
        default: float = 1.0,
        allowance: Mapping[int, float] | None = None,
    ) -> None:
        super().__init__(allowance)
        self.weights = dict(weights or {})
        self.weight = default


class RoundRobin(Weighted):
    """Tier first; inside a tier the tenants take turns: `Weighted` with equal weights. For pools."""

    def __init__(self, *, allowance: Mapping[int, float] | None = None) -> None:
        super().__init__(allowance=allowance)


class _Custom(Policy):
    """A user's function of `Facts`."""

    built_in = False

    def __init__(self, function: Callable[[Facts], int]) -> None:
        super().__init__()
        self._function = function

    def key(
        self, priority: int, arrival_ns: int, deadline_ns: int = -1, cost: int = 1, tenant: str | None = None
    ) -> int:
        """What the user's function says."""
        deadline = deadline_ns / NS if deadline_ns >= 0 else None
        key = self._function(Facts(priority, arrival_ns / NS, deadline, cost, tenant))
        try:
            return index(key)
        except TypeError:
            raise TypeError(
                f"a policy must return an int, smaller first; {self._function!r} returned {key!r}"
            ) from None


def as_policy(policy: Policy | Callable[[Facts], int] | None) -> Policy:
    """A policy from what a user gave for one.

    Raises:
        TypeError: It is none.
    """
    if policy is None:
        return DynamicPriority()
    if isinstance(policy, Policy):
        return policy
    if callable(policy) and not isinstance(policy, type):
        return _Custom(policy)
    raise TypeError(
        f"policy must be a relay policy such as DynamicPriority(), or a function of Facts that returns an int, "
        f"got {policy!r}"
    )


def as_floors(reserved: object) -> tuple[tuple[int, int], ...]:
    """Each tier with the units that are kept for it.

    Raises:
        TypeError: It is neither a mapping nor None.
        ValueError: It names a tier that is none.
    """
    if reserved is None:
        return ()
    if not isinstance(reserved, Mapping):
        raise TypeError(f"reserved must map tiers to units, as {{relay.REALTIME: 1}}, got {reserved!r}")
    return tuple((tier(level), count) for level, count in reserved.items())


def as_cap(caps: object) -> int:
    """The most units of tenants that `caps` does not name, -1 for no limit.

    Raises:
        TypeError: It is neither a number, nor a mapping, nor None.
        ValueError: It is a negative number.
    """
    if caps is None or isinstance(caps, Mapping):
        return -1
    cap = state.whole(caps)
    if cap is None:
        raise TypeError(f"tenant_caps must be a number of units, or map tenants to it, got {caps!r}")
    if cap < 0:
        raise ValueError(f"tenant_caps must be at least 0, got {cap}; None for no limit")
    return cap
