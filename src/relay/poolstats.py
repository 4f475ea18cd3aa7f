"""Snapshots of a pool: what it tells about itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from relay._backend import histogram
from relay.clock import NS


@dataclass(frozen=True, slots=True)
class TierSnapshot:
    """One tier of a pool.

    Attributes:
        held: Units held.
        waiting: Callers in line.
        reserved: Units kept for it now; less than configured while the pool is smaller than it was made.
    """

    held: int
    waiting: int
    reserved: int


@dataclass(frozen=True, slots=True)
class TenantSnapshot:
    """One tenant of a pool that holds or waits.

    Attributes:
        held: Units held.
        waiting: Callers in line.
        cap: The most units it may hold, None for no limit.
    """

    held: int
    waiting: int
    cap: int | None


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """What a pool looked like at one moment. Times in seconds.

    Attributes:
        name: The pool's name.
        backend: ``"native"`` or ``"pure"``.
        capacity, max_capacity: Units in all, and what they may be raised to.
        held, free: Units held and free now.
        tokens: Tokens held now.
        waiting: Callers in line now.
        granted: Tokens given out so far.
        timed_out, cancelled: Waits that ended so.
        refused: Acquires that were refused; `refused_by` says for which reasons.
        revoked: Tokens asked back so far.
        leaked: Tokens that came back only because they were thrown away.
        epoch: The present one.
        qps: Tokens given out a second, over the last ten seconds or so of snapshots.
        mean_wait, p50_wait, p95_wait, p99_wait: Waiting times of all tokens given out so far, those given at once
            included; within 3 %.
        tiers, tenants: The same by tier and by tenant, where there is something to tell.
    """

    name: str
    backend: str
    capacity: int
    max_capacity: int
    held: int
    free: int
    tokens: int
    waiting: int
    granted: int
    timed_out: int
    cancelled: int
    refused: int
    refused_by: Mapping[str, int]
    revoked: int
    leaked: int
    epoch: int
    qps: float
    mean_wait: float
    p50_wait: float
    p95_wait: float
    p99_wait: float
    tiers: Mapping[int, TierSnapshot]
    tenants: Mapping[str, TenantSnapshot]


@dataclass(frozen=True, slots=True)
class HeldToken:
    """A token that somebody holds.

    Attributes:
        priority, cost, tenant, epoch: As it was acquired.
        state: ``"busy"``, or ``"revoked"`` when it has been asked back.
        acquired_at: The place in the caller's code, where the pool was made with ``trace=True``.
    """

    priority: int
    cost: int
    tenant: str | None
    epoch: int
    state: str
    acquired_at: str | None


@dataclass(frozen=True, slots=True)
class Left:
    """What was left when a drain ended; false if nothing was.

    Attributes:
        held: The tokens that were not given back.
        waiting: How many still stood in line.
    """

    held: tuple[HeldToken, ...]
    waiting: int

    def __bool__(self) -> bool:
        return bool(self.held or self.waiting)


def quantile(waits: histogram.Histogram, at_once: int, share: float) -> float:
    """The waiting time, in seconds, that this share of all did not exceed; `at_once` of them did not wait at all."""
    rank = math.ceil(share * (at_once + waits.count))
    if rank <= at_once or not waits.count:
        return 0.0
    return waits.quantile((rank - at_once) / waits.count) / NS
