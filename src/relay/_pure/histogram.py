"""How long things took: a histogram of times, in buckets whose width grows with the time.

It owns a count for each bucket, and the exact number, sum and maximum of the times. It reads no clock. It takes no
lock; one thread at a time may call it. The invariant: every recorded time is counted in exactly one bucket, the one
that holds it, and the size never changes.

    time   below 32     one bucket for each value
           32 and more  16 buckets for each power of two, of equal width: bucket 16 * shift + (time >> shift), where
                        shift leaves 5 bits of the time

So the middle of a bucket is at most 1/32 away from any time in it. 960 buckets hold every int of 64 bits.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from math import ceil

from relay._pure.state import as_int64

_CELLS = 960
_MAX_COUNT = 2**62  # record() needs no test of its own: nobody lives to record so many one by one


def _bounds(cell: int) -> tuple[int, int]:
    """Returns the smallest and the largest time of a bucket."""
    shift = max(0, (cell >> 4) - 1)
    low = (cell - (shift << 4)) << shift
    return low, low + (1 << shift) - 1


def _share(q: float) -> float:
    """Returns `q` if it is a number from 0 to 1, else raises."""
    if not isinstance(q, (int, float)):
        raise TypeError(f"q must be a number, got {type(q).__name__}")
    if not 0 <= q <= 1:
        raise ValueError(f"q {q} is out of range: give 0 to 1, as 0.99 for the 99th percentile")
    return float(q)


class Histogram:
    """Counts times, in ns, and tells their quantiles: within 1/32 of the true ones, and exactly below 32 ns."""

    __slots__ = ("_cells", "_count", "_max_ns", "_total_ns")

    def __init__(self) -> None:
        self._cells = array("q", bytes(8 * _CELLS))
        self._count = self._total_ns = self._max_ns = 0

    def __len__(self) -> int:
        return self._count

    @property
    def count(self) -> int:
        """How many times are recorded."""
        return self._count

    @property
    def total_ns(self) -> int:
        """The exact sum of the recorded times."""
        return self._total_ns

    @property
    def max_ns(self) -> int:
        """The exact longest time recorded, or 0 if there is none."""
        return self._max_ns

    def record(self, ns: int) -> None:
        """Counts one time.

        Args:
            ns: The time; a negative one, as between clocks that disagree, counts as 0.

        Raises:
            TypeError: `ns` is not an int.
            OverflowError: `ns` does not fit in 64 bits.
        """
        if type(ns) is not int or not 0 <= ns < 2**63:
            ns = max(0, as_int64("ns", ns))
        shift = ns.bit_length() - 5 if ns >= 32 else 0
        self._cells[(shift << 4) + (ns >> shift)] += 1
        self._count += 1
        self._total_ns += ns
        if ns > self._max_ns:
            self._max_ns = ns

    def quantile(self, q: float) -> int:
        """Tells the time that a share of the recorded times does not exceed, by the nearest rank.

        Args:
            q: The share, 0 to 1; 0.99 asks for the 99th percentile.

        Returns:
            The middle of the bucket of the time whose rank is `ceil(q * count)`, at least 1, but never more than
            `max_ns`; 0 if nothing is recorded.

        Raises:
            TypeError: `q` is not an int or a float.
            ValueError: `q` is NaN or out of range.
        """
        return self.quantiles((q,))[0]

    def quantiles(self, qs: Iterable[float]) -> list[int]:
        """Tells several quantiles at once, in one pass over the buckets if they ascend.

        Args:
            qs: The shares, as for `quantile`.

        Returns:
            A time for each of them, in their order.

        Raises:
            TypeError: One of them is not an int or a float.
            ValueError: One of them is NaN or out of range.
        """
        shares = [_share(q) for q in qs]  # first of all: the iterable may be one that records
        if not self._count:
            return [0] * len(shares)
        sums = list(accumulate(self._cells))
        found = []
        for share in shares:
            rank = min(max(1, ceil(share * self._count)), self._count)
            low, upper = _bounds(bisect_left(sums, rank))
            found.append(min((low + upper + 1) // 2, self._max_ns))
        return found

    def merge(self, other: Histogram) -> None:
        """Adds what another histogram has recorded; the other stays as it is.

        Args:
            other: A histogram of the same backend.

        Raises:
            TypeError: `other` is not one.
            OverflowError: Together they hold more than 2**62 times; nothing has changed.
        """
        if not isinstance(other, Histogram):
            raise TypeError(f"other must be a Histogram, got {type(other).__name__}")
        if self._count + other._count > _MAX_COUNT:
            raise OverflowError(
                f"cannot add {other._count} times to {self._count}: "
                f"a histogram holds {_MAX_COUNT} at most; clear() it, or merge into a new one"
            )
        for cell, n in enumerate(other._cells):
            self._cells[cell] += n
        self._count += other._count
        self._total_ns += other._total_ns
        self._max_ns = max(self._max_ns, other._max_ns)

    def counts(self) -> list[tuple[int, int]]:
        """Tells what is recorded, for a cumulative histogram such as Prometheus keeps.

        Returns:
            For each bucket that is not empty, in ascending order: the largest time that belongs to it, and how many
            recorded times are not larger than that.
        """
        sums = accumulate(self._cells)
        return [(_bounds(cell)[1], n) for cell, n in enumerate(sums) if self._cells[cell]]

    def clear(self) -> None:
        """Forgets everything recorded."""
        Histogram.__init__(self)

    def copy(self) -> Histogram:
        """Returns a histogram of its own that holds the same."""
        twin = Histogram()
        twin._cells[:] = self._cells
        twin._count, twin._total_ns, twin._max_ns = self._count, self._total_ns, self._max_ns
        return twin

    def check(self) -> None:
        """Recounts everything.

        Raises:
            AssertionError: An invariant is broken; that is a bug in relay.
        """
        full = [cell for cell, n in enumerate(self._cells) if n]
        if len(self._cells) != _CELLS or min(self._cells) < 0 or sum(self._cells) != self._count:
            raise AssertionError("histogram: the buckets do not add up to the count; this is a bug in relay")
        low, upper = _bounds(full[-1]) if full else (0, 0)
        if not low <= self._max_ns <= upper:
            raise AssertionError("histogram: the maximum is not in the last bucket; this is a bug in relay")
        least, most = (sum(_bounds(cell)[side] * self._cells[cell] for cell in full) for side in (0, 1))
        if not least <= self._total_ns <= most:
            raise AssertionError("histogram: the sum does not fit the buckets; this is a bug in relay")
