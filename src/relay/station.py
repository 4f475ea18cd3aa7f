"""What a lane works with: its limits of this moment, what it has learned, and whom it answers to.

One for each lane; only `run_due` and the numbers of a snapshot are read by others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relay._backend import queue
from relay.assemble import Assembler
from relay.clock import Clock
from relay.costmodel import CostModel
from relay.desk import Desk
from relay.isolation import Health, MemoryLimit
from relay.limits import Limits
from relay.linger import Linger
from relay.steering import Steering
from relay.ticket import CLOSED_GROUP

if TYPE_CHECKING:
    from relay.running import Running


OVERHEAD_NS = 100_000
"""What a batch costs besides its run: choosing, waking, answering. Without it, a model that takes next to no time would
seem to gain from smaller batches of less padding."""

_WEIGHT = 0.125


@dataclass(frozen=True, slots=True)
class Ways:
    """How a relay treats its batches.

    Attributes:
        isolate: Split a batch that has failed.
        idempotent: A failed item may be run again.
        check_finite: Rows with NaN or infinity are errors.
        mixed: Parameters that may differ within a batch.
        places: For priorities at and below a number, the most members of a batch.
        run_limit_ns: How long a model call may take; 0 without limit.
        finish: A request that could not end by its deadline is not begun.
        prepared: The model gets what has been prepared instead of the items.
        grouped: The user groups requests by more than their parameters.
    """

    isolate: bool = True
    idempotent: bool = True
    check_finite: bool = False
    mixed: tuple[str, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    run_limit_ns: int = 0
    finish: bool = False
    prepared: bool = False
    grouped: bool = False


class Station:
    """One lane's.

    Args:
        desk: Where the requests come from.
        limits: Sizes.
        ways: How batches are treated.
        assembler: Pads input ids; None without a tokenizer.
        cost: Predicts run times; lanes of one model share it.
        health: Whether the model has succeeded lately; shared likewise.
        memory: What size ran out of memory; shared likewise.
        steering: Sets the size of batches.
        linger: When to wait for more.

    Attributes:
        most: Members of a batch at most, now.
        mean_width: The mean size of requests, recent ones counting more.
    """

    def __init__(
        self,
        desk: Desk,
        limits: Limits,
        ways: Ways,
        assembler: Assembler | None,
        cost: CostModel,
        health: Health,
        memory: MemoryLimit,
        steering: Steering,
        linger: Linger,
    ) -> None:
        self.desk = desk
        self.name = desk.name
        self.clock: Clock = desk.clock
        self.ways = ways
        self.assembler = assembler
        self.cost = cost
        self.health = health
        self.memory = memory
        self.steering = steering
        self.version = 0
        self.mean_width = 1
        self._mean = 0.0
        self.watch: Callable[[int], object] = desk.deadlines.arm
        self._linger = linger
        self._take = desk.queue.take
        self._most_cost = limits.max_batch_tokens or 0
        self._step_ns = int(limits.bulk_step_s * 1e9)
        self._look = limits.look_past
        self._line: tuple[float, ...] = ()
        self._costs: tuple[float, ...] | None = None

    @property
    def most(self) -> int:
        """Members of a batch at most, now."""
        return self.steering.limit

    def take(self, now_ns: int) -> tuple[list[int], list[Any], list[Any], int, int, int]:
        """Choose and commit the members of a batch; see `RequestQueue.take`."""
        if (line := self.cost.coefficients) is not self._line:
            self._line = line
            self._costs = (line[0] + OVERHEAD_NS, *line[1:]) if self.cost.learned else None
        most_cost = self._most_cost
        memory = self.memory.limit
        if memory and (not most_cost or memory < most_cost):
            most_cost = memory
        taken = self._take(
            self.steering.limit,
            most_cost,
            now_ns,
            self._costs,
            self._step_ns if self.desk.urgent else 0,
            self._look,
            self.ways.places,
            self.ways.finish,
        )
        if taken[0]:
            self._linger.taken(now_ns, taken[1])
            if self.ways.grouped and taken[3] == queue.CLOSED_PARAMS:
                return *taken[:3], CLOSED_GROUP, *taken[4:]
        return taken

    def plan(self, now_ns: int, ready: int) -> tuple[int, int] | None:
        """Whether to wait for more than is ready; see `Linger.plan`."""
        linger = self._linger
        if not linger.user_ns and not linger.learned_ns:
            return None
        oldest_ns = self.desk.queue.oldest_ready_ns() if linger.user_ns and ready else 0
        return linger.plan(now_ns, ready, self.steering.limit, oldest_ns)

    def ran(self, items: int, width: int, real: int, run_ns: int) -> None:
        """A model call has succeeded."""
        self.cost.observe(items, width, run_ns, real)
        mean = real / items
        self._mean += (mean - self._mean) * _WEIGHT if self._mean else mean
        self.mean_width = round(self._mean) or 1

    def ended(self, work: Running) -> None:
        """A batch has been answered: learn from it."""
        run = work.run
        if self.desk.closed:
            self.desk.deadlines.close()
        requests = self.desk.queue
        ready = requests.queued
        self._linger.answered(run.ended_ns, work.size, ready, self.cost.predict(0, 1)[0])
        steering = self.steering
        if not steering.steady:
            steering.after_batch(run.ended_ns, work.size, work.run_ns, work.failures, ready, self.desk.counts.busy_ns)
