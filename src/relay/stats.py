"""Counters and snapshots: what a relay and a pool tell about themselves.

Counters are changed once a batch or on rare paths, under a lock of their own that is never held while anything else
happens.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

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
class PoolSnapshot:
    """What a pool looked like at one moment.

    Attributes:
        name: The pool's name.
        backend: ``"native"`` or ``"pure"``.
        capacity: Tokens in all.
        held, free: Tokens held and free now.
        waiting: Callers in line now.
        granted: Tokens given out so far.
        timed_out, refused: Acquires that ended so.
    """

    name: str
    backend: str
    capacity: int
    held: int
    free: int
    waiting: int
    granted: int
    timed_out: int
    refused: int


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
