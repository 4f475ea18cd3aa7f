"""How long a batch will run, learned from how long the batches before it ran.

It owns the last runs of one model and what was learned from them. It reads no clock and draws nothing at random: the
same runs teach the same. Any thread may read, for what readers look at are tuples that are replaced whole. Several
lanes may teach it; of two runs that end in the same moment it learns from one, and nobody waits.

**The mean** is a line in the shape of a batch, n items padded to width w: base + per_item * n + per_unit * n*w +
per_square * n*w*w, with no coefficient below 0, so it never falls when a batch grows. `fit` finds it every few runs,
more rarely while it predicts well. One run pulls no harder than one of three times its predicted time.

**What no run has shown.** What the present runs do not tell stays as it was learned before. At first base, items and
units have equal shares of the time, so other shapes are predicted by scaling. While the items, or the widths, of all
runs so far have never differed by two times, each solve takes a tenth off the slopes that this leaves open, and the
runs put the rest of the line right. Otherwise a model that is thought too slow for two items before the deadline would
never be given two, and never be known better.

**The upper bound** (p99) is the mean times a factor that follows the ratio of real to predicted time: the largest among
the last 128 runs, each predicted before it ran, but at most 1.5 times the second largest. So a lone run 100 times too
long changes little, and a second one among those is believed. On top there is a margin for what so few runs cannot have
shown: the factor is 2 before the first prediction has been checked, and ends 3 % over the largest.

**A sudden change** is found by a two-sided cumulative sum of the log ratio (Page, "Continuous inspection schemes",
1954) with steps as wide as the model's own noise. If one line fits the runs before it and those since (a new shape
had come), that is taken. Otherwise the model itself has changed: the whole line is scaled by the median ratio of the
runs since, and the runs before keep little weight for a while, and then none.
The native part is compiled from this file, with the types of `_core/cost.pxd`; see `fit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from .fit import MEMORY, NOTHING, Line, Runs, Shapes, Shift, explains, fold, median, predicted, reweighed, scaled, solve

__all__ = ["CostModel", "CostSnapshot"]

_ENOUGH = 4
"""Runs before anything is predicted. The first are often slow; four with weight by their own time outvote one."""

_LEAST_NS = 1000.0
"""Shorter runs count as this long: below it there is only the clock's own noise, and a fake clock shows 0."""

_KEPT_AT_A_CHANGE = 8.0
"""The runs before a change count, scaled, as many as this, and hold the shape until there are new runs enough."""

_RARELY = 24
"""At most this many runs from one solve to the next."""

_DOUBT = 0.9
"""What a solve leaves of a slope that no run has shown."""

_SHARE = 1 / MEMORY


@dataclass(frozen=True, slots=True)
class CostSnapshot:
    """What a cost model knows.

    Attributes:
        runs: Runs it has seen.
        learned: It has seen enough to predict.
        error: Mean of |real - predicted| / real over recent runs; None before there is one.
        coverage: Share of recent runs that ended within the upper bound; None before there is one.
        base: Seconds of the mean for each batch.
        per_item: Seconds of the mean for each item.
        per_unit: Seconds for each unit of padded size, items times width.
        per_square: Seconds for each unit times width.
    """

    runs: int
    learned: bool
    error: float | None
    coverage: float | None
    base: float
    per_item: float
    per_unit: float
    per_square: float


def _whole(ns: float) -> int:
    """Whole nanoseconds, rounded up, in 64 bits."""
    if ns >= 9223372036854775808.0:
        return 9223372036854775807
    whole = int(ns)
    return whole + 1 if whole < ns else whole


class CostModel:
    """Predicts the run time of one model's batches; see the module's text for how.

    Attributes:
        coefficients: Base, per item, per unit, per square of the upper bound in nanoseconds; all 0 until it has
            learned. Replaced whole.
        learned: It has seen enough to predict. Until then nothing is refused and nothing narrowed.
        runs: Runs it has seen.
    """

    __slots__ = (
        "_changed", "_checked", "_covered", "_due", "_error", "_every", "_first", "_fresh", "_guessed", "_line",
        "_prior", "_recent", "_second", "_shapes", "_shift", "_sums", "_turn", "_window", "coefficients", "learned",
        "runs",
    )  # fmt: skip

    def __init__(self) -> None:
        self._turn = [True]  # whoever takes it out learns, and puts it back
        self.coefficients: Line = (0.0, 0.0, 0.0, 0.0)
        self.learned = False
        self.runs = 0
        self._line = (0.0, 0.0, 0.0, 0.0, 1.0)  # the mean, and the factor from it to the upper bound
        self._recent = Runs()
        self._first = self._second = 1.0  # the two largest ratios
        self._window = 0  # how many ratios they are the largest of
        self._sums = NOTHING  # see `fold`
        self._prior = NOTHING  # what holds the shape while there are few runs since a start or a change
        self._guessed = True  # and whether it is so
        self._changed = 0  # runs before that
        self._fresh = 0  # the newest runs that are not in the sums yet
        self._shapes = Shapes()
        self._due = self._every = 2  # runs until the next solve, and from one to the next
        self._shift = Shift()
        self._checked = 0  # predictions that have been compared with a run
        self._error = self._covered = 0.0  # means over the checked ones

    def observe(self, items: int, width: int, ns: int, real: int | None = None) -> None:
        """Learn from one run.

        Args:
            items: Items of the batch; a batch without any teaches nothing.
            width: What they were padded to.
            ns: How long it ran, to where the result was there.
            real: Their size without padding. The bound holds for the padded shape, which is all that is known while
                members are chosen, so this is not used.
        """
        if items > 0:
            try:
                self._turn.pop()  # one step, and cheaper than a lock
            except IndexError:
                return  # another run is being learned from at this moment
            try:
                self._observe(items, width, ns)
            finally:
                self._turn.append(True)

    def _observe(self, items: int, width: int, ns: int) -> None:
        width = width if width > 1 else 1
        time = float(ns) if ns > _LEAST_NS else _LEAST_NS
        self.runs += 1
        if not self.learned:
            self._recent.add(items, width, time, time)
            if self._recent.count >= _ENOUGH:
                self._begin()
            return
        base, per_item, per_unit, per_square, factor = self._line
        mean = predicted((base, per_item, per_unit, per_square), items, width)
        ratio = time / mean
        self._recent.add(items, width, time, mean)
        self._fresh += 1

        self._checked += 1
        share = 1 / self._checked
        if share < _SHARE:
            share = _SHARE
        self._error += (abs(1 - 1 / ratio) - self._error) * share
        self._covered += ((1.0 if ratio <= factor else 0.0) - self._covered) * share

        if ratio > self._second:  # a longer run is believed at once; it is forgotten at a solve
            if ratio > self._first:
                self._first, self._second = ratio, self._first
            else:
                self._second = ratio
            self._publish((base, per_item, per_unit, per_square))

        count = self._shift.count(ratio)
        if count:
            self._change(count)
            return
        self._due -= 1
        if self._due <= 0:
            self._learn()

    def mean_ns(self, items: int, width: int) -> float:
        """The mean of a batch's run time in nanoseconds; 0 until it has learned."""
        base, per_item, per_unit, per_square, _ = self._line
        return base + items * (per_item + width * (per_unit + width * per_square))

    def predict(self, items: int, width: int) -> tuple[float, float]:
        """The mean and the upper bound of a batch's run time in nanoseconds; (0, 0) until it has learned."""
        base, per_item, per_unit, per_square, factor = self._line
        mean = base + items * (per_item + width * (per_unit + width * per_square))
        return mean, mean * factor

    def finish_ns(self, items: int, width: int) -> int:
        """The upper bound of a batch's run time in whole nanoseconds of 64 bits; 0 until it has learned."""
        base, per_item, per_unit, per_square = self.coefficients
        return _whole(base + items * (per_item + width * (per_unit + width * per_square)))

    def largest(self, width: int, within_ns: int, most: int) -> int:
        """How many items of a width, of `most`, finish within a time by the upper bound; all until it has learned."""
        if not self.learned:
            return most
        base, per_item, per_unit, per_square = self.coefficients
        left, each = within_ns - base, per_item + width * (per_unit + width * per_square)
        if left < 0:
            return 0
        if left >= each * most:
            return most
        # Rounded as `finish_ns` is, so that the two never disagree about the last item.
        items = int(left / each)
        if _whole(base + (items + 1) * each) <= within_ns:
            return items + 1
        return items if _whole(base + items * each) <= within_ns else items - 1

    def snapshot(self) -> CostSnapshot:
        """What it knows now."""
        base, per_item, per_unit, per_square, _ = self._line
        base, per_item, per_unit, per_square = base / 1e9, per_item / 1e9, per_unit / 1e9, per_square / 1e9
        error, coverage = (self._error, self._covered) if self._checked else (None, None)
        return CostSnapshot(self.runs, self.learned, error, coverage, base, per_item, per_unit, per_square)

    def _begin(self) -> None:
        """The first fit, to the first runs weighed by their own times: one slow start among them hardly counts."""
        self._shapes.look(self._recent, self._recent.count)
        self._sums = sums = fold(self._sums, self._recent, 0, self._recent.count, True)
        self._take(solve(sums, (1 / sqrt(sums[0]), 1 / sqrt(sums[4]), 1 / sqrt(sums[7]), 0.0), 40))
        self.learned = True

    def _learn(self) -> None:
        """A solve whose time has come."""
        recent, fresh = self._recent, self._fresh
        # The mean ratio of the fresh runs tells whether the line is off; noise alone rarely looks like it.
        ratios = 0.0
        for age in range(fresh):
            ratios += recent.ratios[recent.place(age)]
        good = abs(ratios / fresh - 1) < 0.1 + 3 * self._shift.noise / sqrt(fresh)
        self._every = min(self._every * 2, _RARELY) if good else max(self._every // 2, 4)
        self._shapes.look(recent, fresh)
        base, per_item, per_unit, per_square, _ = self._line
        if self._guessed:  # the lines until now were guesses: weigh all anew, by what is longer
            since = self.runs - self._changed
            self._guessed = since <= _RARELY
            anew = reweighed(recent, min(since, recent.count), (base, per_item, per_unit, per_square))
            sums = self._prior if self._guessed else NOTHING
            self._sums = fold(sums, anew, 0, anew.count)
        else:
            self._sums = fold(self._sums, recent, 0, fresh)
        if not self._shapes.items_vary:
            per_item *= _DOUBT
        if not (self._shapes.items_vary and self._shapes.widths_vary):
            per_unit, per_square = per_unit * _DOUBT, per_square * _DOUBT
        self._take(solve(self._sums, (base, per_item, per_unit, per_square), 20))

    def _change(self, count: int) -> None:
        """The last `count` runs were all too long, or all too short, for what was learned before."""
        recent = self._recent
        count = min(count, recent.count)
        self._shapes.look(recent, count)
        # Some of the runs may be in the sums already; that they then count twice does no harm.
        old = fold(self._sums, recent, count, min(self._fresh, recent.count))
        base, per_item, per_unit, per_square, _ = self._line
        self._sums = fold(old, recent, 0, count, True)
        fitted = solve(self._sums, (base, per_item, per_unit, per_square), 40)
        if not explains(fitted, recent, count, _RARELY, self._shift.noise):
            ratios = []
            for age in range(count):
                ratios.append(recent.ratios[recent.place(age)])
            by = median(ratios)
            self._prior = old = scaled(old, by, _KEPT_AT_A_CHANGE / min(self.runs, MEMORY))
            self._guessed = True
            self._changed = self.runs - count
            self._sums = fold(old, recent, 0, count, True)
            fitted = solve(self._sums, (base * by, per_item * by, per_unit * by, per_square * by), 40)
        # What was too long for the old line must not raise the new one's bound.
        for age in range(count):
            at = recent.place(age)
            recent.ratios[at] = recent.times[at] / predicted(fitted, recent.items[at], recent.widths[at])
        self._every = 4
        self._take(fitted)

    def _take(self, line: Line) -> None:
        """Predict by this line from now on. While few predictions have been checked, the older half of them is
        forgotten: they were made by lines that were still far off."""
        self._window = min(max(8, self._checked // 2), self._checked, MEMORY)
        self._first = self._second = 1.0
        for age in range(self._window):
            ratio = self._recent.ratios[self._recent.place(age)]
            if ratio > self._first:
                self._first, self._second = ratio, self._first
            elif ratio > self._second:
                self._second = ratio
        self._fresh, self._due = 0, self._every
        self._publish(line)

    def _publish(self, line: Line) -> None:
        """Show a line and its upper bound to the readers."""
        longest = min(self._first, 1.5 * self._second)
        factor = (longest if longest > 1 else 1.0) * (1 + 4 / (self._window + 4))
        base, per_item, per_unit, per_square = line
        self._line = (base, per_item, per_unit, per_square, factor)
        self.coefficients = (base * factor, per_item * factor, per_unit * factor, per_square * factor)
