"""What a lane works with: its limits of this moment, what it has learned, and whom it answers to.

One for each lane; only the numbers of a snapshot are read by others. The common course is in the core's `lanes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from relay._backend import lanes
from relay.assemble import Assembler
from relay.clock import Clock
from relay.costmodel import CostModel
from relay.current import CurrentBatch, batch_variable
from relay.desk import Desk
from relay.isolation import Health, MemoryLimit
from relay.limits import Limits
from relay.linger import Linger
from relay.running import Running
from relay.steering import Steering

OVERHEAD_NS = lanes.OVERHEAD_NS


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


class Station(lanes.StationBase):
    """One lane's; see `StationBase`.

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
    """

    desk: Desk
    clock: Clock
    ways: Ways
    cost: CostModel
    steering: Steering

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
        super().__init__(
            desk,
            ways,
            limits.max_batch_tokens or 0,
            int(limits.bulk_step_s * 1e9),
            limits.look_past,
            assembler,
            cost,
            health,
            memory,
            steering,
            linger,
            Running,
            CurrentBatch,
            batch_variable,
        )

    @property
    def most(self) -> int:
        """Members of a batch at most, now."""
        return self.steering.limit
