"""What a controller is told, and the questions that every controller asks of it.

Pure functions of their arguments; nothing here keeps state or reads a clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Protocol

_NOISE = 0.05
"""Up to this share of what ended may have been dropped without any overload: some requests fail by themselves. With a
hundredth in its place, one failure in two hundred cost a simulated device four fifths of its throughput."""

_NEAR = 0.9
"""From this share of the limit on it counts as used up: what is in use is read at one moment, and a request that costs
several tokens leaves some free."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen since the sample before.

    Attributes:
        now: Seconds on a monotonic clock.
        limit: The limit in force: tokens, or items of a batch.
        in_use: How much of it was taken at this moment.
        waiting: Callers in line at this moment.
        load: Utilisation, 0 to 1; None is unknown.
        latency: Mean seconds from grant to release of the work that completed; None if none did. Work that was dropped
            is not in it: an error that comes at once would look like a fast device.
        completed: How much work completed.
        dropped: How much work that had been granted failed: errors, and work that ran out of its time. Not callers who
            left the line: a limit that is too low makes them, and lowering it would make more.
    """

    now: float
    limit: int
    in_use: int
    waiting: int
    load: float | None
    latency: float | None
    completed: int
    dropped: int


class Controller(Protocol):
    """Decides a limit from samples. Users may write their own."""

    def update(self, sample: Sample) -> float:
        """Take one more sample.

        Returns:
            The wanted limit. It need be neither whole nor within the pool's size.
        """


def known(reading: float | None) -> float | None:
    """The reading, or None if it is unknown: None, NaN, infinite or negative."""
    return reading if reading is not None and 0 <= reading < math.inf else None


def overloaded(sample: Sample) -> bool:
    """True if more work was dropped than is always lost somewhere."""
    return sample.dropped > _NOISE * (sample.completed + sample.dropped)


def surely_overloaded(sample: Sample) -> bool:
    """As `overloaded`, but by more than chance makes of so little work: one failure among ten is no sign of anything.
    For who acts on a single sample."""
    usual = _NOISE * (sample.completed + sample.dropped)
    return sample.dropped > usual + 2 * math.sqrt(usual)


def in_demand(sample: Sample) -> bool:
    """True if half of the limit is in use. With less it is not the limit that decides anything, so it must not grow."""
    return 2 * sample.in_use >= sample.limit


def pressed(sample: Sample) -> bool:
    """True if a higher limit would be used: the present one is used up, or someone waits although much is in use."""
    return in_demand(sample) and (sample.waiting > 0 or sample.in_use >= _NEAR * sample.limit)


def whole(wanted: float) -> int:
    """A wanted limit in whole tokens, rounded down: widening takes a whole token.

    Raises:
        ValueError, OverflowError: `wanted` is NaN or infinite.
    """
    return math.floor(wanted + 1e-9)  # 0.1 * 3 * 10 is meant to be 3


def bounded(wanted: float, limit: int, low: int, high: int | None) -> float:
    """Hold a wanted limit between bounds. A present `limit` under `low` may stay there: a bound does not widen."""
    wanted = max(wanted, min(low, limit))
    return wanted if high is None else min(wanted, high)


def resume(exact: float, limit: int) -> float:
    """The present limit with the part of a token that earlier samples have earned: `exact`, unless someone else has set
    the limit since."""
    return exact if limit <= exact < limit + 1 else limit


def check_knob(
    what: str, value: object, low: float, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> None:
    """Make sure that a setting is a finite number in range.

    Args:
        what: Its name, for the error text.
        value: What was given.
        low, high: Its bounds.
        open_low, open_high: The bounds themselves are out of range.

    Raises:
        ValueError: It is not.
    """
    if isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(number := float(value)):
        if (low < number if open_low else low <= number) and (number < high if open_high else number <= high):
            return
    least = f"{'over' if open_low else 'of at least'} {low}"
    most = "" if high == math.inf else f" and {'under' if open_high else 'at most'} {high}"
    raise ValueError(f"{what} must be a number {least}{most}, got {value!r}")


def check_whole(what: str, value: object, low: int) -> None:
    """Make sure that a setting is a whole number of at least `low`.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < low:
        raise ValueError(f"{what} must be a whole number of at least {low}, got {value!r}")


def check_bounds(low: int, high: int | None) -> None:
    """Make sure that two bounds of a limit are in order.

    Raises:
        ValueError: They are not.
    """
    check_whole("low", low, 1)
    if high is not None:
        check_whole("high", high, low)
