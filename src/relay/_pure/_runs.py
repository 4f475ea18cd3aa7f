"""Runs: the calls of a model, their times, and the histograms and counters of them."""

from __future__ import annotations

import threading
from typing import Any

from relay._pure.histogram import Histogram
from relay._pure.state import as_int64

_REASONS = 8  # why a batch was closed is a number below this


class Run:
    """One call of a model, shared by the tickets of its members.

    Args:
        committed_ns: When its members were chosen.
        size: How many they are.
        why: What closed the batch: one of the numbers that `RequestQueue.take` gives.
        width: The largest size among them.
        real: The sum of their sizes; 0 if unknown.

    Attributes:
        started_ns, ended_ns: When the model was called, and when its result was there.
        first_ns: Where a batch was split, when its first call began; else 0.
        raised: The call ended in an error.
    """

    __slots__ = ("committed_ns", "ended_ns", "first_ns", "raised", "real", "size", "started_ns", "why", "width")

    def __init__(self, committed_ns: int, size: int, why: int = 0, width: int = 1, real: int = 0) -> None:
        self.committed_ns = self.started_ns = self.ended_ns = as_int64("committed_ns", committed_ns)
        self.size = as_int64("size", size)
        self.why = as_int64("why", why)
        self.width = as_int64("width", width)
        self.real = as_int64("real", real)
        self.first_ns = 0
        self.raised = False


class Waits:
    """Where the time of answered requests went, as histograms.

    Attributes:
        prepare: From their making until they were ready.
        queue: From then until they were chosen.
        total: From their making until the answer.
    """

    __slots__ = ("_lock", "prepare", "queue", "total")

    def __init__(self) -> None:
        self.prepare = Histogram()
        self.queue = Histogram()
        self.total = Histogram()
        self._lock = threading.Lock()  # several lanes may answer at once, and a histogram is no one step

    def record(self, ticket: Any, run: Run) -> None:
        """Counts one ticket that `run` has answered."""
        arrival_ns = ticket._arrival_ns
        ready_ns = max(arrival_ns, ticket._ready_ns)
        chosen_ns = max(ready_ns, run.committed_ns)
        ended_ns = max(chosen_ns, run.started_ns, run.ended_ns)
        with self._lock:
            self.prepare.record(ready_ns - arrival_ns)
            self.queue.record(chosen_ns - ready_ns)
            self.total.record(ended_ns - arrival_ns)

    def read(self) -> tuple[Histogram, Histogram, Histogram]:
        """Copies of all three, of one moment."""
        with self._lock:
            return self.prepare.copy(), self.queue.copy(), self.total.copy()


class Batches:
    """The model calls of one relay, counted. Lanes may record at once; each attribute is of its own moment.

    Attributes:
        batches: Calls.
        items: Requests that ended with them.
        failed: How many of those in an error.
        failed_batches: Calls that raised.
        splits: Calls with a part of a batch.
        busy_ns: The time of all calls.
        mean_run_ns: The mean time of a call, recent ones counting more.
        real, padded: The sum of the members' sizes, and of the padded sizes, of those calls whose sizes are known.
        began_ns: When the members of the first were chosen; -1 before it.
        run_time, batch_time, batch_size: The time of calls; from the choice of members to the call; members.
    """

    __slots__ = (
        "_closed_by", "_lock", "batch_size", "batch_time", "batches", "began_ns", "busy_ns", "failed",
        "failed_batches", "items", "mean_run_ns", "padded", "real", "run_time", "splits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.batches = self.items = self.failed = self.failed_batches = self.splits = 0
        self.busy_ns = self.real = self.padded = 0
        self.mean_run_ns = 0.0
        self.began_ns = -1
        self.run_time = Histogram()
        self.batch_time = Histogram()
        self.batch_size = Histogram()
        self._closed_by = [0] * _REASONS
        self._lock = threading.Lock()

    def record(self, run: Run, answered: int, failed: int, split: bool = False) -> None:
        """Counts a call that has ended.

        Args:
            run: Its times.
            answered: Requests that have ended with it.
            failed: How many of them in an error.
            split: It was a call with a part of a batch that had failed.
        """
        took_ns = max(run.ended_ns - run.started_ns, 0)
        with self._lock:
            if self.batches:
                self.mean_run_ns += (took_ns - self.mean_run_ns) * 0.1
            else:
                self.mean_run_ns = float(took_ns)
                self.began_ns = run.committed_ns
            self.batches += 1
            self.items += answered
            self.failed += failed
            self.failed_batches += run.raised
            if split:
                self.splits += 1
            else:
                self.batch_time.record(run.started_ns - run.committed_ns)
                if 0 <= run.why < _REASONS:
                    self._closed_by[run.why] += 1
            self.run_time.record(took_ns)
            self.batch_size.record(run.size)
            if run.real:
                self.real += run.real
                self.padded += run.size * run.width
            self.busy_ns += took_ns

    def closed_by(self) -> list[int]:
        """How many batches each reason has closed, by its number; parts of a batch are not counted again."""
        return list(self._closed_by)

    def read(self) -> tuple[Histogram, Histogram, Histogram]:
        """Copies of the three histograms, of one moment."""
        with self._lock:
            return self.run_time.copy(), self.batch_time.copy(), self.batch_size.copy()
