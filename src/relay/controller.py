"""The controllers: from samples of load and latency to a limit, of a pool's tokens or of a batch's items.

A controller is a pure function of the samples it has seen: it reads no clock, starts nothing and knows no pool. Whoever
drives it (`relay.control` does for a pool) brings samples in order, from one thread at a time, and rounds and clamps
what comes back. One controller serves one pool. Three rules hold for all: what is unknown widens nothing; nor do drops;
and a bound `low` ends a shrink, but is itself no reason to widen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Self

from relay.gradient import Gradient
from relay.samples import (
    Controller,
    Sample,
    bounded,
    check_bounds,
    check_knob,
    check_whole,
    known,
    overloaded,
    pressed,
    resume,
)

__all__ = ["AIMD", "PID", "Controller", "Deadline", "Fixed", "Gradient", "Sample", "Step"]


@dataclass(eq=False, slots=True)
class Fixed:
    """Always the same limit.

    Args:
        n: The limit.

    Raises:
        ValueError: `n` is no whole number of at least 1.
    """

    n: int
    every: ClassVar[None] = None  # once told, always known; see `relay.steering`

    def __post_init__(self) -> None:
        check_whole("n", self.n, 1)

    def update(self, sample: Sample) -> float:
        """Take one more sample; see `relay.samples.Controller`."""
        return self.n


@dataclass(eq=False, slots=True)
class Deadline:
    """The cost model alone: always the largest limit.

    A batch is then closed by what it may hold at most, and by the tightest deadline among its members, which the relay
    holds against predicted run times. It looks at neither load nor latency.
    """

    every: ClassVar[None] = None

    def update(self, sample: Sample) -> float:
        """Take one more sample; see `relay.samples.Controller`."""
        return math.inf


@dataclass(eq=False, slots=True)
class Step:
    """A step up while the load is high: +10 % above 80 %, which is the rule most autoscalers begin with.

    This load is one that more tokens relieve, such as how busy the tokens are; where tokens make the load, as on a
    device that is itself the bottleneck, use `PID`. It grows whether or not the present limit is used up, for the load
    may be measured elsewhere.

    Args:
        above: The load above which the limit grows.
        by: By what share it grows, and by one at least.
        below: The load below which it shrinks; None never shrinks.
        down: By what share it shrinks, and by one at least.

    Raises:
        ValueError: A setting is out of range.
    """

    above: float = 0.8
    by: float = 0.1
    below: float | None = None
    down: float = 0.1

    def __post_init__(self) -> None:
        check_knob("above", self.above, 0, 1)
        check_knob("by", self.by, 0, open_low=True)
        if self.below is not None:
            check_knob("below", self.below, 0, self.above)
        check_knob("down", self.down, 0, 1, open_low=True)

    def update(self, sample: Sample) -> float:
        """Take one more sample; see `relay.samples.Controller`."""
        load, limit = known(sample.load), sample.limit
        if load is not None and load > self.above and not overloaded(sample):
            return limit + max(1, limit * self.by)
        if load is not None and self.below is not None and load < self.below:
            return max(1, limit - max(1, limit * self.down))
        return limit


@dataclass(eq=False, slots=True)
class AIMD:
    """Additive increase, multiplicative decrease: up a little while all is well, down fast when it is not.

    After Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance" (1989), and TCP. It
    shrinks after `patience` samples in a row that were slow or had drops, so that one slow sample decides nothing, and
    grows only while the limit is nearly used up. A sample in which nothing ended says nothing either way.

    Of a relay's batches it is told one by one, and `patience` counts batches; `published` is the rule to begin with.

    Args:
        target: Seconds that work may take; None looks at drops alone.
        add: What a good sample adds to the limit.
        times: What a good sample multiplies the limit by, before it adds.
        down: What bad samples multiply it by.
        patience: How many bad samples in a row.
        below: Grow only while the load is known and below this; None does not look at the load.
        low, high: Where shrinking and growing end; `high` None leaves it to the pool's size.
        start: The limit that a relay begins with; None is its largest batch. A pool begins with its own.

    Raises:
        ValueError: A setting is out of range.
    """

    target: float | None = None
    add: float = 1.0
    times: float = 1.0
    down: float = 0.8
    patience: int = 3
    below: float | None = None
    low: int = 1
    high: int | None = None
    start: int | None = None
    every: ClassVar[str] = "batch"
    _bad: int = field(default=0, init=False, repr=False)
    _exact: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.target is not None:
            check_knob("target", self.target, 0, open_low=True)
        check_knob("add", self.add, 0)
        check_knob("times", self.times, 1)
        check_knob("down", self.down, 0, 1, open_high=True)
        check_whole("patience", self.patience, 1)
        if self.below is not None:
            check_knob("below", self.below, 0, 1, open_low=True)
        check_bounds(self.low, self.high)
        if self.start is not None:
            check_whole("start", self.start, 1)

    @classmethod
    def published(cls, target: float) -> Self:
        """The rule published for batch sizes, for batches that may take `target` seconds: from 50 on, times 0.8 after
        three in a row that took longer, times 1.2 while the utilisation is known and under 60 %, from 10 to 200."""
        return cls(target, add=0.0, times=1.2, down=0.8, patience=3, below=0.6, low=10, high=200, start=50)

    def update(self, sample: Sample) -> float:
        """Take one more sample; see `relay.samples.Controller`."""
        limit, latency = sample.limit, known(sample.latency)
        wanted: float = limit
        if overloaded(sample) or self.target is not None and latency is not None and latency > self.target:
            self._bad += 1
            if self._bad >= self.patience:
                self._bad = 0
                self._exact = wanted = limit * self.down
        elif latency is not None:
            self._bad = 0
            load = known(sample.load)
            if pressed(sample) and (self.below is None or load is not None and load < self.below):
                self._exact = wanted = resume(self._exact, limit) * self.times + self.add
        return bounded(wanted, limit, self.low, self.high)


@dataclass(eq=False, slots=True)
class PID:
    """Holds the load of a device at a target: more tokens below it, fewer above it.

    The velocity form of the textbooks (Astrom and Hagglund, "Advanced PID Control", 2006): each sample moves the limit
    from where it is, so a limit that is clamped, or set by somebody else, winds nothing up. Proportion and derivative
    look at the measured load, not at the error. All is relative to the limit and to the target, so the same gains fit a
    limit of 4 and of 400. A target less than half a token away counts as met: whole tokens come no nearer, and it
    would swing about it for ever.

    It does not grow while the present limit is not used up, for then it is not the limit that keeps the load low.

    Args:
        target: The load to hold.
        kp: Proportion: the share of a change of load that is answered at once.
        ki: Integral: the share of the error that is made up for in each second.
        kd: Derivative, in seconds; good against a load that answers late, bad where it is noisy.
        low, high: Where shrinking and growing end; `high` None leaves it to the pool's size.

    Raises:
        ValueError: A setting is out of range.
    """

    target: float = 0.8
    kp: float = 0.2
    ki: float = 0.2
    kd: float = 0.0
    low: int = 1
    high: int | None = None
    _exact: float = field(default=0.0, init=False, repr=False)
    _loads: tuple[float, ...] = field(default=(), init=False, repr=False)  # the last two at most
    _then: float | None = field(default=None, init=False, repr=False)  # when the last of them was read

    def __post_init__(self) -> None:
        check_knob("target", self.target, 0, 1, open_low=True)
        for name in ("kp", "ki", "kd"):
            check_knob(name, getattr(self, name), 0)
        check_bounds(self.low, self.high)

    def update(self, sample: Sample) -> float:
        """Take one more sample; see `relay.samples.Controller`."""
        limit, load, then = sample.limit, known(sample.load), self._then
        self._then = sample.now if load is not None else None
        move = 0.0
        if load is None:
            self._loads = ()
        elif then is None or sample.now <= then:
            self._loads = (load,)
        else:
            move = self._move(load, sample.now - then, limit)
            self._loads = (*self._loads[-1:], load)
            if move > 0 and (overloaded(sample) or not pressed(sample)):
                move, self._loads = 0.0, ()  # what is held back now must not be taken away later
        before = self._exact if abs(self._exact - limit) < 1 else limit
        self._exact = exact = bounded(before * (1 + move), limit, self.low, self.high)
        # A part of a token moves nothing, up or down: rounding always down would make noise a reason to shrink.
        wanted = limit if abs(exact - limit) < 1 else exact if exact > limit else math.ceil(exact)
        return bounded(wanted, limit, self.low, self.high)

    def _move(self, load: float, seconds: float, limit: int) -> float:
        """By what share to move the limit, -0.5 to 0.5."""
        error = (self.target - load) / self.target
        # However long the pause since the last sample, and with any gain, no more than half of an error at once.
        move = min(self.ki * seconds, 0.5) * error if abs(error) * limit > 0.5 else 0.0
        if self._loads:
            move -= self.kp * (load - self._loads[-1]) / self.target
        if len(self._loads) == 2:
            bend = load - 2 * self._loads[1] + self._loads[0]
            move -= self.kd * bend / (self.target * seconds)
        return min(max(move, -0.5), 0.5)
