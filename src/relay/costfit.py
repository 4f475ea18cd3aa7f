"""The sums behind `relay.costmodel`: nonnegative least squares of times over shapes, and whether they still hold.

The row of a run of n items padded to width w is (1, n, n*w, n*w*w) = its time, divided by its predicted time, so that
it is the relative error that becomes small. Only the sums of the rows' products are kept, and fade by 1/128 with every
later run: recursive least squares with exponential forgetting (Ljung, "System Identification", 1999, chapter 11).

The normal equations are solved by coordinate descent cut off at 0 (Franc, Hlavac and Navara, "Sequential
coordinate-wise algorithm for the non-negative least squares problem", 2005). A solve goes on from the last solution, so
it is cheap, and in directions of which the sums hold nothing, as when all runs had one shape, that stays as it is.

All in plain Python: for four unknowns that is faster than NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log

Line = tuple[float, float, float, float]
"""Nanoseconds: base, per item, per unit, per square."""

Sums = tuple[float, ...]
"""See `fold`."""

NOTHING: Sums = (0.0,) * 14

Run = tuple[int, int, float, float]
"""Items, width, time and predicted time in nanoseconds."""

MEMORY = 128
_FADE = 1 - 1 / MEMORY

CLIP = 3.0
"""One run counts as at most this many times its predicted time."""

_LOG_CLIP = log(CLIP)

SLACK, _ALARM = 0.2, 3.0
"""The cumulative sum, in logs: what it forgives in each run, and where it rings. Twice the time rings after 7 runs, and
no three runs of any length do."""

TINY_NS = 1e-3
"""No prediction is taken for less than this where a time is divided by it."""


def predicted(line: tuple[float, ...], items: int, width: int) -> float:
    """What a line says of a shape, to divide by."""
    return max(TINY_NS, line[0] + items * (line[1] + width * (line[2] + width * line[3])))


def fold(sums: Sums, runs: Iterable[Run], own: bool = False) -> Sums:
    """Add runs to the normal equations and fade what was there before.

    Args:
        sums: The products of (1, n, n*w, n*w*w) with each other, the upper triangle by rows; then those with the time.
        runs: The newest first.
        own: Weigh by each run's own time, not by the predicted one, and cut nothing: the prediction is not to be
            trusted.
    """
    a00 = a01 = a02 = a03 = a11 = a12 = a13 = a22 = a23 = a33 = b0 = b1 = b2 = b3 = 0.0
    weight = 1.0
    for items, width, time, mean in runs:
        if own:
            mean = time
        elif time > CLIP * mean:
            time = CLIP * mean
        x0 = 1.0 / mean
        x1 = x0 * items
        x2 = x1 * width
        x3 = x2 * width
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
    a = (a00, a01, a02, a03, a11, a12, a13, a22, a23, a33, b0, b1, b2, b3)
    return tuple([new + weight * old for new, old in zip(a, sums, strict=True)])


def scaled(sums: Sums, by: float, weight: float) -> Sums:
    """The sums of the same runs, had each taken `by` times as long; they count `weight` as much."""
    products, times = weight / by**2, weight / by
    return tuple([value * (products if at < 10 else times) for at, value in enumerate(sums)])


def median(values: list[float]) -> float:
    """The middle one, the upper one of two. Sorts the list."""
    values.sort()
    return values[len(values) // 2]


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
        slack = noise if noise > SLACK else SLACK
        runs = 0
        if self._ups or step > slack:
            self._up = up = self._up + step - slack
            self._ups += 1
            if up <= 0:
                self._up, self._ups = 0.0, 0
            elif up > _ALARM and up > 8 * noise:
                runs = self._ups
        if self._downs or step < -slack:
            self._down = down = self._down - step - slack
            self._downs += 1
            if down <= 0:
                self._down, self._downs = 0.0, 0
            elif down > _ALARM and down > 8 * noise:
                runs = self._downs
        if runs:
            self._up = self._down = 0.0
            self._ups = self._downs = 0
        return runs
