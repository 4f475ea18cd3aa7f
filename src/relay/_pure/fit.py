"""The sums behind a `CostModel`: nonnegative least squares of times over shapes, and whether they still hold.

The row of a run of n items padded to width w is (1, n, n*w, n*w*w) = its time, divided by its predicted time, so that
it is the relative error that becomes small. Only the sums of the rows' products are kept, and fade by 1/128 with every
later run: recursive least squares with exponential forgetting (Ljung, "System Identification", 1999, chapter 11).

The normal equations are solved by coordinate descent cut off at 0 (Franc, Hlavac and Navara, "Sequential
coordinate-wise algorithm for the non-negative least squares problem", 2005). A solve goes on from the last solution, so
it is cheap, and in directions of which the sums hold nothing, as when all runs had one shape, that stays as it is.

The native part is compiled from this file, with the types of `_core/fit.pxd`. So it is written for both: arrays of a
fixed size, loops instead of generators, and imports of other parts that are relative.
"""

from __future__ import annotations

from math import log

__all__ = [
    "MEMORY",
    "NOTHING",
    "Runs",
    "Shapes",
    "Shift",
    "explains",
    "fold",
    "median",
    "predicted",
    "reweighed",
    "scaled",
    "solve",
]

Line = tuple[float, float, float, float]
"""Nanoseconds: base, per item, per unit, per square."""

Sums = tuple[float, ...]
"""See `fold`."""

NOTHING: Sums = (0.0,) * 14

MEMORY = 128
_FADE = 1 - 1 / MEMORY

_CLIP = 3.0
"""One run counts as at most this many times its predicted time."""

_LOG_CLIP = log(_CLIP)

_SLACK, _ALARM = 0.2, 3.0
"""The cumulative sum, in logs: what it forgives in each run, and where it rings. Twice the time rings after 7 runs, and
no three runs of any length do."""

_TINY_NS = 1e-3
"""No prediction is taken for less than this where a time is divided by it."""


class Runs:
    """The last `MEMORY` runs, in a ring.

    Attributes:
        count: How many they are.
        items, widths: Their shapes.
        times, means: How long they ran, and what was predicted, in nanoseconds.
        ratios: Real by predicted time.
    """

    __slots__ = ("_next", "count", "items", "means", "ratios", "times", "widths")

    def __init__(self) -> None:
        self.count = 0
        self._next = 0
        self.items = [0] * 128
        self.widths = [0] * 128
        self.times = [0.0] * 128
        self.means = [0.0] * 128
        self.ratios = [0.0] * 128

    def add(self, items: int, width: int, time: float, mean: float) -> None:
        """Add one; it takes the place of the oldest."""
        at = self._next
        self._next = (at + 1) & 127
        if self.count < 128:
            self.count += 1
        self.items[at] = items
        self.widths[at] = width
        self.times[at] = time
        self.means[at] = mean
        self.ratios[at] = time / mean

    def place(self, age: int) -> int:
        """Where one stands in the arrays, by the number of those that came after it."""
        return (self._next - 1 - age) & 127


class Shapes:
    """How far the shapes of all runs lie apart.

    Attributes:
        items_vary, widths_vary: By two times at least.
    """

    __slots__ = ("_few", "_many", "_narrow", "_wide", "items_vary", "widths_vary")

    def __init__(self) -> None:
        self.items_vary = self.widths_vary = False
        self._few = self._many = self._narrow = self._wide = 0  # the fewest items and so on; 0 before there are any

    def look(self, runs: Runs, count: int) -> None:
        """Note the shapes of the newest runs."""
        if self.items_vary and self.widths_vary:
            return
        for age in range(count):
            at = runs.place(age)
            items, width = runs.items[at], runs.widths[at]
            if not self._few:
                self._few, self._narrow = items, width
            self._few, self._many = min(self._few, items), max(self._many, items)
            self._narrow, self._wide = min(self._narrow, width), max(self._wide, width)
        self.items_vary, self.widths_vary = self._many >= 2 * self._few, self._wide >= 2 * self._narrow


def predicted(line: Line, items: int, width: int) -> float:
    """What a line says of a shape, to divide by."""
    base, per_item, per_unit, per_square = line
    mean = base + items * (per_item + width * (per_unit + width * per_square))
    return mean if mean > _TINY_NS else _TINY_NS


def reweighed(runs: Runs, count: int, line: Line) -> Runs:
    """The newest runs, as if each had been predicted by a line; where it took longer, as if that had been known."""
    anew = Runs()
    for age in range(count - 1, -1, -1):
        at = runs.place(age)
        time, mean = runs.times[at], predicted(line, runs.items[at], runs.widths[at])
        anew.add(runs.items[at], runs.widths[at], time, mean if mean > time else time)
    return anew


def fold(sums: Sums, runs: Runs, first: int, last: int, own: bool = False) -> Sums:
    """Add runs to the normal equations and fade what was there before.

    Args:
        sums: The products of (1, n, n*w, n*w*w) with each other, the upper triangle by rows; then those with the time.
        runs: Some of these,
        first, last: those of an age from `first` up to but not including `last`; 0 is the newest.
        own: Weigh by each run's own time, not by the predicted one, and cut nothing: the prediction is not to be
            trusted.
    """
    a00 = a01 = a02 = a03 = a11 = a12 = a13 = a22 = a23 = a33 = b0 = b1 = b2 = b3 = 0.0
    weight = 1.0
    for age in range(first, last):
        at = runs.place(age)
        time, mean = runs.times[at], runs.means[at]
        if own:
            mean = time
        elif time > _CLIP * mean:
            time = _CLIP * mean
        x0 = 1.0 / mean
        x1 = x0 * runs.items[at]
        x2 = x1 * runs.widths[at]
        x3 = x2 * runs.widths[at]
        y = weight * time * x0
        b0 += y * x0
        b1 += y * x1
        b2 += y * x2
        b3 += y * x3
        w = weight * x0
        a00 += w * x0
        a01 += w * x1
        a02 += w * x2
        a03 += w * x3
        w = weight * x1
        a11 += w * x1
        a12 += w * x2
        a13 += w * x3
        w = weight * x2
        a22 += w * x2
        a23 += w * x3
        a33 += weight * x3 * x3
        weight *= _FADE
    o00, o01, o02, o03, o11, o12, o13, o22, o23, o33, p0, p1, p2, p3 = sums
    return (
        a00 + weight * o00, a01 + weight * o01, a02 + weight * o02, a03 + weight * o03, a11 + weight * o11,
        a12 + weight * o12, a13 + weight * o13, a22 + weight * o22, a23 + weight * o23, a33 + weight * o33,
        b0 + weight * p0, b1 + weight * p1, b2 + weight * p2, b3 + weight * p3,
    )  # fmt: skip


def scaled(sums: Sums, by: float, weight: float) -> Sums:
    """The sums of the same runs, had each taken `by` times as long; they count `weight` as much."""
    a00, a01, a02, a03, a11, a12, a13, a22, a23, a33, b0, b1, b2, b3 = sums
    p, t = weight / (by * by), weight / by  # for the products, and for those with the time
    return (
        a00 * p, a01 * p, a02 * p, a03 * p, a11 * p, a12 * p, a13 * p, a22 * p, a23 * p, a33 * p,
        b0 * t, b1 * t, b2 * t, b3 * t,
    )  # fmt: skip


def median(values: list[float]) -> float:
    """The middle one, the upper one of two. Sorts the list."""
    values.sort()
    return values[len(values) // 2]


def _off_by(line: Line, runs: Runs, first: int, last: int) -> float:
    """How far the median of some runs is from a line: |log ratio|, 0 where there are none."""
    ratios = []
    for age in range(first, last):
        at = runs.place(age)
        ratios.append(runs.times[at] / predicted(line, runs.items[at], runs.widths[at]))
    return abs(log(median(ratios))) if ratios else 0.0


def explains(line: Line, runs: Runs, count: int, before: int, noise: float) -> bool:
    """Whether a line fits the `count` newest runs and the `before` ones before those, as far as the noise tells."""
    off = _off_by(line, runs, 0, count)
    off = max(off, _off_by(line, runs, count, min(count + before, runs.count)))
    return off <= max(_SLACK, noise)


def solve(sums: Sums, line: Line, sweeps: int) -> Line:
    """Nonnegative coefficients that fit: one factor for all of `line`, then each by itself, at most `sweeps` times."""
    a00, a01, a02, a03, a11, a12, a13, a22, a23, a33, b0, b1, b2, b3 = sums
    c0, c1, c2, c3 = line
    g0 = a00 * c0 + a01 * c1 + a02 * c2 + a03 * c3
    g1 = a01 * c0 + a11 * c1 + a12 * c2 + a13 * c3
    g2 = a02 * c0 + a12 * c1 + a22 * c2 + a23 * c3
    g3 = a03 * c0 + a13 * c1 + a23 * c2 + a33 * c3
    by = (b0 * c0 + b1 * c1 + b2 * c2 + b3 * c3) / (g0 * c0 + g1 * c1 + g2 * c2 + g3 * c3)
    c0, c1, c2, c3 = c0 * by, c1 * by, c2 * by, c3 * by
    for _ in range(sweeps):
        d0 = (b0 - a01 * c1 - a02 * c2 - a03 * c3) / a00
        d0 = d0 if d0 > 0 else 0.0
        d1 = (b1 - a01 * d0 - a12 * c2 - a13 * c3) / a11
        d1 = d1 if d1 > 0 else 0.0
        d2 = (b2 - a02 * d0 - a12 * d1 - a23 * c3) / a22
        d2 = d2 if d2 > 0 else 0.0
        d3 = (b3 - a03 * d0 - a13 * d1 - a23 * d2) / a33
        d3 = d3 if d3 > 0 else 0.0
        # Whoever has not moved by a thousandth of itself has arrived.
        near = abs(d0 - c0) <= d0 / 1000 and abs(d1 - c1) <= d1 / 1000
        near = near and abs(d2 - c2) <= d2 / 1000 and abs(d3 - c3) <= d3 / 1000
        c0, c1, c2, c3 = d0, d1, d2, d3
        if near:
            break
    return c0, c1, c2, c3


class Shift:
    """Finds a sudden change of real against predicted time: Page's cumulative sum ("Continuous inspection schemes",
    1954) of the log ratio to both sides, in steps as wide as the noise.

    Attributes:
        noise: Mean |log ratio| of recent runs.
    """

    __slots__ = ("_down", "_downs", "_up", "_ups", "noise")

    def __init__(self) -> None:
        self.noise = 0.1
        self._up = self._down = 0.0
        self._ups = self._downs = 0  # runs since that sum last was 0

    def count(self, ratio: float) -> int:
        """Take one run's ratio. Returns 0, or how many runs ago the time changed; then it begins anew."""
        step = log(ratio)
        if step > _LOG_CLIP:
            step = _LOG_CLIP
        elif step < -_LOG_CLIP:
            step = -_LOG_CLIP
        noise = self.noise
        self.noise = noise + ((step if step > 0 else -step) - noise) / 64
        slack = noise if noise > _SLACK else _SLACK
        runs = 0
        if self._ups or step > slack:
            self._up = self._up + step - slack
            self._ups += 1
            if self._up <= 0:
                self._up, self._ups = 0.0, 0
            elif self._up > _ALARM and self._up > 8 * noise:
                runs = self._ups
        if self._downs or step < -slack:
            self._down = self._down - step - slack
            self._downs += 1
            if self._down <= 0:
                self._down, self._downs = 0.0, 0
            elif self._down > _ALARM and self._down > 8 * noise:
                runs = self._downs
        if runs:
            self._up = self._down = 0.0
            self._ups = self._downs = 0
        return runs
