"""Counters and snapshots: what a relay and a pool tell about themselves.

Counters are changed once a batch or on rare paths, under a lock of their own that is never held while anything else
happens.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from relay._backend import histogram
from relay.clock import NS


@dataclass(frozen=True, slots=True)
class RelaySnapshot:
    """What a relay looked like at one moment. Times in seconds.

    Attributes:
        name: The relay's name.
        backend: ``"native"`` or ``"pure"``.
        capacity: Requests it admits at once.
        admitted: Slots taken now: queued, being tokenised, and running.
        queued: Requests ready to run now.
        waiting: Callers waiting for room now.
        open: Tickets not answered yet, merged ones included.
        batches: Model calls so far.
        items: Requests run so far; a merged one counts once.
        failed: Requests that ended in an error of the model or of their own item.
        failed_batches: Model calls that raised.
        cancelled, expired, refused, merged: Requests that ended so, or shared another's run.
        undeliverable: Answers dropped because the waiter's event loop had closed.
        mean_batch_size: Items a model call.
        mean_run: Seconds a model call, recent ones counting more.
        busy: Seconds spent in model calls so far.
    """

    name: str
    backend: str
    capacity: int
    admitted: int
    queued: int
    waiting: int
    open: int
    batches: int
    items: int
    failed: int
    failed_batches: int
    cancelled: int
    expired: int
    refused: int
    merged: int
    undeliverable: int
    mean_batch_size: float
    mean_run: float
    busy: float


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


class Pace:
    """Events a second, from readings of a running count; any number of readers may share it."""

    _WINDOW_NS = 10 * NS
    _STEP_NS = NS // 10

    def __init__(self, now_ns: int) -> None:
        self._readings: deque[tuple[int, int]] = deque([(now_ns, 0)])
        self._lock = threading.Lock()

    def read(self, now_ns: int, count: int) -> float:
        """The pace since the oldest reading of the last ten seconds, or the one before them."""
        with self._lock:
            readings = self._readings
            while len(readings) > 1 and readings[1][0] <= now_ns - self._WINDOW_NS:
                readings.popleft()
            since_ns, before = readings[0]
            if now_ns - readings[-1][0] >= self._STEP_NS:
                readings.append((now_ns, count))
        return (count - before) * NS / (now_ns - since_ns) if now_ns > since_ns else 0.0


class Counts:
    """The counters of one relay."""

    _WEIGHT = 0.1

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.values = dict.fromkeys(
            (
                "batches",
                "items",
                "failed",
                "failed_batches",
                "cancelled",
                "expired",
                "refused",
                "merged",
                "undeliverable",
            ),
            0,
        )
        self.busy_ns = 0
        self.mean_run_s = 0.0

    def add(self, name: str, by: int = 1) -> None:
        """Count an event."""
        with self._lock:
            self.values[name] += by

    def batch(self, size: int, run_ns: int, failed: int, raised: bool) -> None:
        """Count a model call."""
        with self._lock:
            values = self.values
            values["batches"] += 1
            values["items"] += size
            values["failed"] += failed
            values["failed_batches"] += raised
            self.busy_ns += run_ns
            run_s = run_ns / NS
            self.mean_run_s += (run_s - self.mean_run_s) * (self._WEIGHT if values["batches"] > 1 else 1.0)

    def read(self) -> tuple[dict[str, int], float, float]:
        """The counters, the mean run time and the busy time in seconds, all of one moment."""
        with self._lock:
            return dict(self.values), self.mean_run_s, self.busy_ns / NS
