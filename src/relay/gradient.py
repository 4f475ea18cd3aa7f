"""Gradient: finds the limit past which work only gets slower, from latency alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from relay.samples import (
    Sample,
    bounded,
    check_bounds,
    check_knob,
    in_demand,
    known,
    overloaded,
    pressed,
    resume,
    surely_overloaded,
    whole,
)

_ENOUGH = 10
"""How much work must have completed before its mean latency is believed."""

_SMOOTH = 0.2
"""The weight of one sample in the throughput that a probe is compared with."""

_NO_LOSS = 0.83
"""A narrower limit with this share of the throughput has cost none: there was a queue, and may be one still."""


@dataclass(eq=False, slots=True)
class Gradient:
    """Finds the limit past which work only gets slower, without being told a target.

    After `Gradient2` of Netflix's concurrency-limits ("Performance Under Load", 2018): the limit is multiplied by the
    ratio of long-term to present latency, which counts from 0.5 to 1, and its square root is added as headroom. There
    the long-term latency is a moving average, which a lasting overload pulls upwards, and the limit with it (their pull
    requests 88, 92, 134). Here it is measured where there is no queue, as in Envoy's adaptive concurrency filter: now
    and then the limit is narrowed for a few samples, again and again as long as that costs no throughput, and then goes
    back to what it was. What was granted before is left out. A quiet moment does as well as a probe; where there is
    none, probes cost a simulated device 3 % of its throughput.

    Drops count as the steepest gradient, and never as latency; so few that chance may have made them only keep it from
    growing, for on a small pool one failure is a large share of a sample. Nothing else changes the limit while less
    than half of it is in use: then it is not the limit that decides the latency.

    Args:
        tolerance: How many times as slow as without a queue work may be.
        smoothing: How much of each new limit is taken on, up to 1.
        probe: The share of the limit that each step of a probe leaves.
        probe_every: Seconds between probes; infinity probes at the start only.
        low, high: Where shrinking and growing end; `high` None leaves it to the pool's size. A probe may go below `low`
            for its moment, or a floor that is too high would make a queue look like none.

    Raises:
        ValueError: A setting is out of range.
    """

    tolerance: float = 1.25
    smoothing: float = 0.2
    probe: float = 0.5
    probe_every: float = 30.0
    low: int = 1
    high: int | None = None
    _exact: float = field(default=0.0, init=False, repr=False)
    _calm: float | None = field(default=None, init=False, repr=False)  # seconds that work takes where there is no queue
    _earlier: int = field(default=-1, init=False, repr=False)  # work of a busier moment still to end; -1: busy now
    _spent: float = field(default=0.0, init=False, repr=False)  # since then: seconds that work has taken together
    _ended: int = field(default=0, init=False, repr=False)  # and how much of it there was
    _due: float = field(default=-math.inf, init=False, repr=False)  # when the next probe may begin
    _before: float | None = field(default=None, init=False, repr=False)  # the limit to go back to, in a probe
    _narrow: int = field(default=0, init=False, repr=False)  # the limit of a probe
    _rate: float = field(default=0.0, init=False, repr=False)  # work a second, before the present step of a probe
    _began: float = field(default=0.0, init=False, repr=False)  # when the present probe did
    _until: float = field(default=0.0, init=False, repr=False)  # when a probe that has learned nothing gives up
    _then: float = field(default=math.inf, init=False, repr=False)  # when the last sample was

    def __post_init__(self) -> None:
        check_knob("tolerance", self.tolerance, 1)
        check_knob("smoothing", self.smoothing, 0, 1, open_low=True)
        check_knob("probe", self.probe, 0, 1, open_low=True, open_high=True)
        if self.probe_every != math.inf:
            check_knob("probe_every", self.probe_every, 0, open_low=True)
        check_bounds(self.low, self.high)

    @property
    def probing(self) -> bool:
        """True while the limit is narrowed to see how long work takes without a queue."""
        return self._before is not None

    def update(self, sample: Sample) -> float:
        """Take one more sample; see `relay.samples.Controller`."""
        period, self._then = sample.now - self._then, sample.now
        if surely_overloaded(sample):
            self._end_probe(sample)  # it is too much already, so there is nothing to go back to
            return self._take(0.5, 0.0, sample.limit)
        if self._before is not None:
            if sample.limit == self._narrow:
                return self._go_on(sample, period)
            self._end_probe(sample)  # somebody else has set the limit
        limit, latency = sample.limit, known(sample.latency)
        narrow = max(1, whole(bounded(limit, limit, self.low, self.high) * self.probe))
        if self._measure(sample, narrow):
            self._due = sample.now + self.probe_every
        if latency and in_demand(sample) and period > 0:
            rate = sample.in_use / latency
            self._rate = self._rate + _SMOOTH * (rate - self._rate) if self._rate else rate
            if sample.now >= self._due and narrow < limit:
                self._before, self._began = bounded(resume(self._exact, limit), limit, self.low, self.high), sample.now
                return self._step(narrow, sample, period)
            if self._calm is not None:
                gradient = min(max(self.tolerance * self._calm / latency, 0.5), 1.0)
                grows = pressed(sample) and not overloaded(sample)
                return self._take(gradient, math.sqrt(limit) if grows else 0.0, limit)
        return bounded(limit, limit, self.low, self.high)

    def _take(self, gradient: float, headroom: float, limit: int) -> float:
        exact = resume(self._exact, limit)
        wanted = exact + self.smoothing * (exact * gradient + headroom - exact)
        self._exact = bounded(wanted, limit, self.low, self.high)
        return self._exact if headroom else min(self._exact, limit)

    def _measure(self, sample: Sample, most: int) -> float | None:
        """Learn from latencies that no queue has part in: at most `most` in use, and when they were granted, too.

        Returns:
            The mean of enough of them; None while there are not enough.
        """
        latency = known(sample.latency)
        if sample.in_use > most:
            self._earlier = -1
        elif self._earlier < 0:
            self._earlier, self._spent, self._ended = sample.in_use, 0.0, 0
        elif self._earlier > 0:
            self._earlier = max(self._earlier - sample.completed - sample.dropped, 0)
        elif latency:
            self._spent += latency * sample.completed
            self._ended += sample.completed
            if self._ended >= _ENOUGH:
                mean, self._spent, self._ended = self._spent / self._ended, 0.0, 0
                # Down at once, up by halves: a lower one shows what is possible, a higher one may be chance.
                self._calm = mean if self._calm is None or mean < self._calm else (self._calm + mean) / 2
                return mean
        return None

    def _step(self, narrow: int, sample: Sample, period: float) -> float:
        self._narrow, self._earlier = narrow, -1
        # One latency until few are in use, one until these have ended, and then enough of them; twice over.
        self._until = sample.now + (4 + 2 * _ENOUGH / narrow) * max(sample.latency or 0.0, period)
        return narrow

    def _go_on(self, sample: Sample, period: float) -> float:
        mean = self._measure(sample, self._narrow)
        if mean and sample.now < self._until:
            before, self._rate = self._rate, sample.in_use / mean
            narrower = max(1, whole(self._narrow * self.probe))
            if self._rate >= _NO_LOSS * before and narrower < self._narrow:
                return self._step(narrower, sample, period)
            self._until = sample.now
        if sample.now < self._until or not in_demand(sample) or self._before is None:
            return self._narrow
        self._exact = self._before
        self._end_probe(sample)
        return self._exact

    def _end_probe(self, sample: Sample) -> None:
        if self._before is not None:
            self._before, self._earlier, self._rate = None, -1, 0.0
            # Where work is slow so are probes: they get a tenth of the time at most.
            self._due = sample.now + max(self.probe_every, 9 * (sample.now - self._began))
