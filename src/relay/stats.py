"""Counters and snapshots: what a relay tells about itself. Those of a pool are in `poolstats`.

Counters are changed once a batch or on rare paths, under a lock of their own that is never held while anything else
happens.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from relay._backend import histogram, tickets
from relay.clock import NS
from relay.poolstats import HeldToken, Left, PoolSnapshot, TenantSnapshot, TierSnapshot, quantile
from relay.ticket import CLOSED_BY

__all__ = [
    "NO_SPREAD", "Counts", "HeldToken", "Left", "Pace", "PoolSnapshot", "RelaySnapshot", "Spread", "TenantSnapshot",
    "TierSnapshot", "quantile", "spread",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spread:
    """How something was spread; quantiles are within 3 %. All 0 while there is nothing.

    Attributes:
        count: How many there were.
        mean, p50, p95, p99, max: Of all of them so far.
    """

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


NO_SPREAD = Spread()


def spread(seen: histogram.Histogram, unit: int) -> Spread:
    """What a histogram holds, in units of so much."""
    count = seen.count
    if not count:
        return NO_SPREAD
    p50, p95, p99 = seen.quantiles((0.5, 0.95, 0.99))
    return Spread(count, seen.total_ns / count / unit, p50 / unit, p95 / unit, p99 / unit, seen.max_ns / unit)


@dataclass(frozen=True, slots=True)
class SharingSnapshot:
    """What requests had of each other; hits, misses and joins together are those that could have been shared.

    Attributes:
        hits: Answered at once, from what was kept.
        misses: Lead a run of their own.
        joins: Shared another's run.
        entries: Answers kept now.
        nbytes: What they cost, in bytes.
        evictions: Answers let go for want of room.
        expired: Answers let go because their time was over.
        saved: Seconds of model calls that hits and joins would have taken: each the mean of those that were run.
    """

    hits: int = 0
    misses: int = 0
    joins: int = 0
    entries: int = 0
    nbytes: int = 0
    evictions: int = 0
    expired: int = 0
    saved: float = 0.0


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
        batches: Model calls so far, calls with a part of a batch included.
        items: Requests run so far; a merged one counts once.
        failed: Requests that ended in an error of the model or of their own item.
        failed_batches: Model calls that raised.
        splits: Model calls with a part of a batch that had failed.
        cancelled, expired, refused, merged: Requests that ended so, or shared another's run.
        displaced: Requests that had to make room for a more urgent one.
        run_timeouts: Requests that ended because their model call took too long.
        non_finite: Requests that ended because their row had NaN or infinity in it.
        undeliverable: Answers dropped because the waiter's event loop had closed.
        mean_batch_size: Items a model call.
        mean_run: Seconds a model call, recent ones counting more.
        busy: Seconds spent in model calls so far.
        prepare_time, queue_time, total_time: Of answered requests; see `Timing`.
        batch_time, run_time: Of model calls: from the choice of the members until the call, and the call.
        batch_size: Members of a model call.
        closed_by: Batches by what closed them; see `Timing`.
        padding_waste: Which share of the padded size of all batches was padding, 0 to 1.
        utilisation: Which share of the last ten seconds or so the lanes were running batches, 0 to 1.
        prediction_error: How far predicted run times were off lately, as a share of the real ones; None before there is
            one to tell of.
        limit: Members of a batch at most, now.
        lanes: How many batches may run at once.
        sharing: What requests had of each other.
        ids_hits, ids_misses: Texts whose input ids were known, or not; see `Limits.ids_cache_bytes`.
        ids_evictions: Texts whose input ids were dropped to make room.
        ids_bytes: Memory that those take which are known now.
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
    splits: int
    cancelled: int
    expired: int
    refused: int
    merged: int
    displaced: int
    run_timeouts: int
    non_finite: int
    undeliverable: int
    mean_batch_size: float
    mean_run: float
    busy: float
    prepare_time: Spread = NO_SPREAD
    queue_time: Spread = NO_SPREAD
    total_time: Spread = NO_SPREAD
    batch_time: Spread = NO_SPREAD
    run_time: Spread = NO_SPREAD
    batch_size: Spread = NO_SPREAD
    closed_by: Mapping[str, int] = field(default_factory=dict)
    padding_waste: float = 0.0
    utilisation: float = 0.0
    prediction_error: float | None = None
    limit: int = 0
    lanes: int = 1
    sharing: SharingSnapshot = SharingSnapshot()
    ids_hits: int = 0
    ids_misses: int = 0
    ids_evictions: int = 0
    ids_bytes: int = 0


class Pace:
    """Events a second, from readings of a running count; any number of readers may share it."""

    _WINDOW_NS = 10 * NS
    _STEP_NS = NS // 10

    def __init__(self, now_ns: int) -> None:
        self._readings: deque[tuple[int, int]] = deque([(now_ns, 0)])
        self._lock = threading.RLock()

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
    """The counters of one relay.

    Attributes:
        waits: Where the time of answered requests went; whoever answers them records it there.
        batches: Counts model calls.
        batch: Counts one that has ended; see `Batches.record`.
        more: Tells what is counted elsewhere, by its name in a `RelaySnapshot`.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant, for a signal's handler or a finaliser may count, too
        self._values = dict.fromkeys(
            (
                "cancelled",
                "expired",
                "refused",
                "merged",
                "displaced",
                "run_timeouts",
                "non_finite",
                "undeliverable",
                "failed",
            ),
            0,
        )
        self.waits = tickets.Waits()
        self.batches = tickets.Batches()
        self.batch = self.batches.record
        self.more: Callable[[], dict[str, int]] = dict
        self._pace: Pace | None = None

    def add(self, name: str, by: int = 1) -> None:
        """Count an event of the rare kinds; the ``failed`` here are those that failed before they were run."""
        with self._lock:
            self._values[name] += by

    @property
    def busy_ns(self) -> int:
        """Time spent in model calls so far."""
        return self.batches.busy_ns

    @property
    def mean_run_s(self) -> float:
        """Seconds a model call, recent ones counting more."""
        return self.batches.mean_run_ns / NS

    def told(self, now_ns: int, lanes: int = 1, running_ns: int = 0) -> dict[str, Any]:
        """Everything that is counted here, by its name in a `RelaySnapshot`.

        Args:
            now_ns: The time.
            lanes: How many there are.
            running_ns: For how long those have been running that run now, all together.
        """
        counted = self.batches
        with self._lock:
            told: dict[str, Any] = dict(self._values)
            pace = self._pace
            if pace is None and counted.began_ns >= 0:
                pace = self._pace = Pace(counted.began_ns)
        told.update(self.more())
        told["failed"] += counted.failed
        for name in ("batches", "items", "failed_batches", "splits"):
            told[name] = getattr(counted, name)
        busy_ns, real, padded = counted.busy_ns, counted.real, counted.padded
        run_time, batch_time, batch_size = counted.read()
        prepare_time, queue_time, total_time = self.waits.read()
        share = pace.read(now_ns, busy_ns + running_ns) / (NS * lanes) if pace is not None else 0.0
        return told | {
            "mean_run": self.mean_run_s,
            "busy": busy_ns / NS,
            "mean_batch_size": batch_size.total_ns / batch_size.count if batch_size.count else 0.0,
            "prepare_time": spread(prepare_time, NS),
            "queue_time": spread(queue_time, NS),
            "total_time": spread(total_time, NS),
            "batch_time": spread(batch_time, NS),
            "run_time": spread(run_time, NS),
            "batch_size": spread(batch_size, 1),
            "closed_by": {name: count for name, count in zip(CLOSED_BY, counted.closed_by(), strict=False) if count},
            "padding_waste": 1 - real / padded if padded else 0.0,
            "utilisation": min(max(share, 0.0), 1.0),
        }
