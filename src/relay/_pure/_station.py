"""Stations: what a lane works with. Its limits of this moment, what it has learned, and whom it answers to."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from relay._pure import queue

__all__ = ["CLOSED_GROUP", "OVERHEAD_NS", "StationBase"]

CLOSED_GROUP = queue.CLOSED_STEP + 1
"""Takes the place of the queue's ``CLOSED_PARAMS`` where a relay also groups by the items themselves."""

OVERHEAD_NS = 100_000
"""What a batch costs besides its run: choosing, waking, answering. Without it, a model that takes next to no time would
seem to gain from smaller batches of less padding."""

_WEIGHT = 0.125


class StationBase:
    """One lane's.

    Args:
        desk: Where the requests come from.
        ways: How batches are treated: a `Ways`.
        most_cost: What a batch may come to, padded; 0 for any.
        step_ns: How long a batch may be predicted to run once urgent requests have come.
        look: How many requests are looked at for a batch.
        assembler: Pads input ids; None without a tokenizer.
        cost: Predicts run times; lanes of one model share it.
        health: Whether the model has succeeded lately; shared likewise.
        memory: What size ran out of memory; shared likewise.
        steering: Sets the size of batches.
        linger: When to wait for more.
        work: Makes a batch: the subclass of `RunningBase`.
        view: Makes what a model may ask about its batch: the subclass of `BatchView`.
        variable: Has the view, in the context that the model is called in.

    Attributes:
        version: Of the model.
        mean_width: The mean size of requests, recent ones counting more.
        watch: Called with the time when a run that has begun will have taken too long.
    """

    __slots__ = (
        "_costs", "_line", "_look", "_mean", "_most_cost", "_step_ns", "_variable", "_view", "_work", "assembler",
        "clock", "cost", "desk", "health", "linger", "mean_width", "memory", "name", "steering", "version", "watch",
        "ways",
    )  # fmt: skip

    def __init__(
        self,
        desk: Any,
        ways: Any,
        most_cost: int,
        step_ns: int,
        look: int,
        assembler: Any,
        cost: Any,
        health: Any,
        memory: Any,
        steering: Any,
        linger: Any,
        work: type,
        view: type,
        variable: ContextVar[Any],
    ) -> None:
        self.desk = desk
        self.name: str = desk.name
        self.clock = desk.clock
        self.ways = ways
        self.assembler = assembler
        self.cost = cost
        self.health = health
        self.memory = memory
        self.steering = steering
        self.linger = linger
        self.version = 0
        self.mean_width = 1
        self.watch: Callable[[int], object] = desk.deadlines.arm
        self._work = work
        self._view = view
        self._variable = variable
        self._mean = 0.0
        self._most_cost = most_cost
        self._step_ns = step_ns
        self._look = look
        self._line: tuple[float, ...] = ()
        self._costs: tuple[float, ...] | None = None

    def take(self, now_ns: int) -> tuple[list[int], list[Any], list[Any], int, int, int]:
        """Choose and commit the members of a batch; see `RequestQueue.take`."""
        work = self._work(self, now_ns)
        self._choose(now_ns, work)
        return work._handles, work._owners, work.late, work.run.why, work.run.width, work.run.real

    def _choose(self, now_ns: int, work: Any) -> None:
        """Choose and commit the members of a batch, for which `work` has been made."""
        if (line := self.cost.coefficients) is not self._line:
            self._line = line
            self._costs = (line[0] + OVERHEAD_NS, *line[1:]) if self.cost.learned else None
        most_cost = self._most_cost
        memory = self.memory.limit
        if memory and (not most_cost or memory < most_cost):
            most_cost = memory
        ways = self.ways
        taken = self.desk.queue.take(
            self.steering.limit,
            most_cost,
            now_ns,
            self._costs,
            self._step_ns if self.desk.urgent else 0,
            self._look,
            ways.places,
            ways.finish,
        )
        work._taken(taken)  # before anything else that may fail
        if work.size:
            if self.linger.watching:
                self.linger.taken(now_ns, [owner._arrival_ns for owner in work._owners])
            if ways.grouped and work.run.why == queue.CLOSED_PARAMS:
                work.run.why = CLOSED_GROUP

    def full(self, width: int) -> int:
        """How many members of this size a batch has at most."""
        most: int = self.steering.limit
        return max(1, min(most, self._most_cost // width)) if self._most_cost else most

    def plan(self, now_ns: int, ready: int) -> tuple[int, int] | None:
        """Whether to wait for more than is ready; see `Linger.plan`."""
        linger = self.linger
        if not linger.user_ns and not linger.learned_ns:
            return None
        oldest_ns = self.desk.queue.oldest_ready_ns() if linger.user_ns and ready else 0
        plan: tuple[int, int] | None = linger.plan(now_ns, ready, self.steering.limit, oldest_ns)
        return plan

    def ran(self, items: int, width: int, real: int, run_ns: int) -> None:
        """A model call has succeeded."""
        self.cost.observe(items, width, run_ns, real)
        mean = real / items
        self._mean += (mean - self._mean) * _WEIGHT if self._mean else mean
        self.mean_width = round(self._mean) or 1

    def ended(self, work: Any) -> None:
        """A batch has been answered: learn from it."""
        run = work.run
        if self.desk.closed:
            self.desk.deadlines.close()
        ready = self.desk.queue.queued
        self.linger.answered(run.ended_ns, work.size, ready, self.cost.predict(0, 1)[0])
        steering = self.steering
        if not steering.steady:
            steering.after_batch(run.ended_ns, work.size, work.run_ns, work.failures, ready, self.desk.counts.busy_ns)
