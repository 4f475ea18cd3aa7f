"""Which requests make a good batch: what may still join one that is being chosen, and who is worth its padding.

Owns the facts of one batch while `RequestQueue.take` chooses it; knows sizes and limits, and nothing of slots or order.
Used by one call, so by one thread. The invariant: whatever has joined, but for the first, was within every limit.

The model of time is a line of four numbers, ``base + n * (item + width * (unit + width * square))``: how long a batch
of `n` members runs at most, each padded to `width`. What a member would cost unpadded, it costs in any batch, and all
have to be run in the end; so `fill` looks at the rest, the overhead: the base, and all padding. It chooses those who
keep the overhead for each member lowest, as one covers a set by what is cheapest for each newly covered element. (The
most real size for the time would be another measure, and fails: as the base is less of a long batch's time than of a
short one's, it pads a short request up to long ones, at any price below their own.)

Both sides do the same arithmetic in the same order, so that they choose the same members to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from relay._pure.state import as_int32, as_int64, as_range

CLOSED_IDLE = 0
"""Took what was there: nothing that was ready was kept out."""
CLOSED_SIZE = 1
"""Full: as many members, or as many of their priority, as there may be."""
CLOSED_TOKENS = 2
"""Another would have been more padding than the limit, or is worth, or would have saved next to nothing."""
CLOSED_DEADLINE = 3
"""Another would have made a member late."""
CLOSED_PARAMS = 4
"""Only others of another group were left."""
CLOSED_STEP = 5
"""Another would have kept the lane from urgent work for too long."""

BULK = 2
"""From this priority on, the least urgent of the named tiers, a batch runs no longer than one step."""
MAX_PLACES = 16
"""Limits of `places` at most."""

OWN_DEADLINE = CLOSED_DEADLINE + 8  # the newcomer would be late itself; others may still fit
FEW = 4
"""So many members are worth it in any case: what is known of the base may be wrong."""
WORTH = 64.0
"""Once the base is less than this part of what the members take by themselves, another one saves next to nothing."""
SLACK = 1.0 + 2.0**-20  # so that rounding does not decide between equals


class Filling:
    """A batch that is being chosen.

    Args:
        most: Members at most.
        most_cost: Members times the largest size at most; 0 for no limit.
        now_ns: The time.
        costs: Base, item, unit and square of the time line, in nanoseconds; None if nothing is known.
        step_ns: How long a batch with bulk in it may run; 0 for no limit.
        places: (priority, how many of this priority or less urgent may join).
        finish: Whether a request that would end late if it ran now counts as late.
        crowd: How many would run together now. Where size costs nothing that is looked at for `finish`: else one that
            is short of time keeps its batch so small that all behind it come late as well. Where sizes differ in cost
            the others may be any, and a request is late if it would be so alone.

    Attributes:
        handles, owners, late: What the call returns.
        top: The priority of the first in line; those less urgent are riders.
        group: That of the members.
        width, real: The largest of the members' sizes, and their sum.
        why: The first reason that kept a request out, or `CLOSED_IDLE`.
        blocked: Whether an overdue request has found no place.

    Raises:
        TypeError: A number is not one.
        OverflowError: An int is too large.
        ValueError: A number is out of its range, or there are too many or too few.
    """

    __slots__ = (
        "_base", "_counts", "_item", "_limit_ns", "_places", "_square", "_step_ns", "_unit", "_value", "blocked",
        "crowd", "finish", "group", "handles", "known", "late", "most", "most_cost", "now_ns", "owners", "real",
        "sized", "top", "why", "width",
    )  # fmt: skip

    def __init__(
        self,
        most: int,
        most_cost: int,
        now_ns: int,
        costs: Sequence[float] | None,
        step_ns: int,
        places: Sequence[tuple[int, int]],
        finish: bool,
        crowd: int = 1,
    ) -> None:
        self.most, self.most_cost = as_int32("most", most), as_int64("most_cost", most_cost)
        self.now_ns = as_int64("now_ns", now_ns)
        self.known = costs is not None
        self._base, self._item, self._unit, self._square = self._line(costs)
        self.sized = self._unit > 0.0 or self._square > 0.0
        self._step_ns = float(max(as_int64("step_ns", step_ns), 0))
        self._places = [(as_range("level", level, 0, 255), as_int32("most", count)) for level, count in places]
        if len(self._places) > MAX_PLACES:
            raise ValueError(f"{len(self._places)} limits of places are more than {MAX_PLACES}; give fewer")
        self._counts = [0] * len(self._places)
        self.finish = bool(finish)
        self.crowd = max(min(crowd, self.most), 1)
        self.handles: list[int] = []
        self.owners: list[Any] = []
        self.late: list[Any] = []
        self.top = self.group = self.width = self.real = self.why = 0
        self.blocked = False
        self._value = 0.0
        self._limit_ns = inf

    @property
    def may_widen(self) -> bool:
        """Whether an overdue rider may make the batch wider: there are no steps, which would bound what that costs."""
        return self._step_ns == 0.0

    @staticmethod
    def _line(costs: Sequence[float] | None) -> tuple[float, float, float, float]:
        if costs is None:
            return 0.0, 0.0, 0.0, 0.0
        line = [float(cost) for cost in costs]
        if len(line) != 4 or not all(0.0 <= cost < inf for cost in line):
            raise ValueError(f"costs must be 4 finite numbers of 0 or more, or None, got {line}")
        return line[0], line[1], line[2], line[3]

    def time(self, n: int, width: int) -> float:
        """How long a batch runs at most."""
        return self._base + n * (self._item + width * (self._unit + width * self._square))

    def own(self, size: int) -> float:
        """What a member of this size adds to a batch of its very width."""
        return self._item + size * (self._unit + size * self._square)

    def worth(self, width: int) -> int:
        """How many members of this width there may be: more of them would make everybody wait longer, and save less
        than a sixty-fourth. (On a processor they may even cost more, where they do not fit its caches.)"""
        most, own = self._base * WORTH, self.own(width)
        return self.most if most >= own * self.most else max(int(most / own) + 1, FEW)

    def left(self, deadline_ns: int) -> float:
        """How long until this deadline; it has not passed. -1: for ever."""
        return float(deadline_ns - self.now_ns) if deadline_ns >= 0 else inf

    def too_late(self, deadline_ns: int, cost: int) -> bool:
        """Whether a request is not to be started any more."""
        if deadline_ns < 0:
            return False
        if deadline_ns <= self.now_ns:
            return True
        if not (self.finish and self.known):
            return False
        return self.time(1 if self.sized else self.crowd, cost) > self.left(deadline_ns)

    def refusal(self, level: int, cost: int, left_ns: float) -> int:
        """Why a request may not join, or 0 if it may. The first is not asked.

        A deadline binds the batch that its request is in, unless the request could not keep it even alone. A rider,
        which is less urgent than the first in line, joins while the batch stays within one step; without steps it joins
        if it does not widen the batch.
        """
        n, width = len(self.handles) + 1, max(self.width, cost)
        if n > self.most:
            return CLOSED_SIZE
        if self._places:
            for (lowest, most), count in zip(self._places, self._counts, strict=True):
                if level >= lowest and count >= most:
                    return CLOSED_SIZE
        if self.most_cost and width * n > self.most_cost:
            return CLOSED_TOKENS
        if not self.known:
            return 0
        if n > self.worth(width):
            return CLOSED_TOKENS
        time = self.time(n, width)
        if time > self._limit_ns:
            return CLOSED_DEADLINE
        if time > left_ns >= self.time(1, cost):
            return OWN_DEADLINE
        if level > self.top or self.top >= BULK:
            if self._step_ns > 0.0:
                return CLOSED_STEP if time > self._step_ns else 0
            if level > self.top and self.sized and width > self.width:
                return CLOSED_STEP
        return 0

    def add(self, handle: int, owner: Any, level: int, cost: int, left_ns: float) -> None:
        """Puts a request in."""
        self.handles.append(handle)
        self.owners.append(owner)
        self.width = max(self.width, cost)
        self.real += cost
        for i, (lowest, _) in enumerate(self._places):
            if level >= lowest:
                self._counts[i] += 1
        if self.known:
            self._value += self.own(cost)
            if left_ns < self._limit_ns and self.time(1, cost) <= left_ns:
                self._limit_ns = left_ns

    def note(self, reason: int) -> None:
        """Remembers the first reason that kept a ready request out."""
        if not self.why:
            self.why = reason & 7

    def fill(self, sizes: Sequence[int]) -> list[int]:
        """Chooses among requests that may all wait.

        For each width that the batch may get, the present one first, the largest of those that are no wider join, as
        long as the padding of each is no more than the overhead for each member so far; the batch of the lowest
        overhead for each member is taken, the narrower one of equals. Among requests of one size the earlier ones come
        first.

        Args:
            sizes: Their sizes, in order.

        Returns:
            Which of them join, in order.
        """
        n, count = len(self.handles), len(sizes)
        room = self.most - n
        for (lowest, most), taken in zip(self._places, self._counts, strict=True):
            if self.top >= lowest:
                room = min(room, most - taken)
        limit_ns = self._limit_ns
        if self.top >= BULK and 0.0 < self._step_ns < limit_ns:
            limit_ns = self._step_ns
        order = sorted(range(count), key=lambda i: (sizes[i], -i))
        sums = [0.0]
        for i in order:
            sums.append(sums[-1] + self.own(sizes[i]))
        best, members, first, last = self._overhead(sums, 0, 0, self.own(self.width)), n, 0, 0
        for end in range(1, count + 1):
            width = max(sizes[order[end - 1]], self.width)
            if end < count and max(sizes[order[end]], self.width) == width:
                continue  # there are more of this width
            own = self.own(width)
            if width > self.width and self._overhead(sums, 0, 0, own) * members >= best * (n + min(room, end)):
                continue  # padding those that have joined costs too much already
            joining = self._joining(sizes, order, sums, end, width, room, limit_ns)
            overhead = self._overhead(sums, end, joining, own)
            if joining and (width == self.width or overhead * members * SLACK < best * (n + joining)):
                best, members, first, last = overhead, n + joining, end - joining, end
        return sorted(order[first:last])

    def _joining(
        self,
        sizes: Sequence[int],
        order: Sequence[int],
        sums: Sequence[float],
        end: int,
        width: int,
        room: int,
        limit_ns: float,
    ) -> int:
        """How many of the first `end` in order of size join, from the largest down, in a batch of this width."""
        n, own = len(self.handles), self.own(width)

        def pays(joined: int) -> bool:
            padding = own - self.own(sizes[order[end - 1 - joined]])
            return padding * (n + joined) <= self._overhead(sums, end, joined, own) * SLACK

        most = min(room, end)
        if self.most_cost and width > 0:
            most = min(most, self.most_cost // width - n)
        most = min(most, self.worth(width) - n)
        if most > 0 and self.time(n + most, width) > limit_ns:
            low, most = 0, most - 1
            while low < most:  # the largest number that is in time
                middle = (low + most + 1) // 2
                if self.time(n + middle, width) > limit_ns:
                    most = middle - 1
                else:
                    low = middle
        if most <= 0 or pays(most - 1):
            return max(most, 0)
        low, most = 0, most - 1
        while low < most:  # the first that does not pay; none pays after it, for each is padded more
            middle = (low + most) // 2
            if pays(middle):
                low = middle + 1
            else:
                most = middle
        return low

    def _overhead(self, sums: Sequence[float], end: int, joined: int, own: float) -> float:
        """What a batch costs beyond what its members would cost unpadded. Not less than nothing, but for rounding."""
        n = len(self.handles) + joined
        return max(self._base + n * own - (self._value + (sums[end] - sums[end - joined])), 0.0)
