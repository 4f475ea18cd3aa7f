"""How long a free lane waits for more: the bound set by the user, and the one learned from its own callers.

In a closed loop the callers that have just been answered come straight back. A lane that takes at once what it finds
splits them into groups that take turns, and pays the fixed cost of a run for each. So for a while after each answer the
arrivals are noted: how many of those answered there were, how many came, and how soon. Two things tell a closed loop
from arrivals that do not depend on answers:

- Its callers are as many at the end of each run, members and ready ones together. With independent arrivals this number
  varies as widely as such counts do: its variance is about its mean.
- They come faster after an answer than they do otherwise.

Where both hold, the lane waits for as long as gives the most members for its time, fixed cost and wait together: with
as many callers as there are, that is the shortest time for each of them as well. Where only the second holds, and more
strongly, it waits while that is a gain for those who are here and those to come: `rest` more within `w` cost `w` for
all of them, and spare `rest` of them the fixed cost of the run they would have to wait for.

Used by one lane only; it reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relay.ticket import Ticket

MOST_NS = 4_000_000
"""The longest time that is ever waited of the lane's own accord."""

LEAST_NS = 100_000
"""Where a run's fixed cost is below this, a thread's wake-up costs too much of it for any wait."""

_PARTS = tuple(part / 32 for part in (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32))
_WEIGHT = 0.25
_SLOW_WEIGHT = 1 / 16
_ENOUGH = 3
_MANY = 12
_LONGEST = 1.25  # of the fixed cost: to wait for longer than that never pays
_BACK = 0.5
_CLUSTERED = 2.0
_CLUSTERED_AND_STEADY = 1.25
_STEADY = 0.4  # variance of the number of callers, as a share of its mean
_SPARED = 0.9  # of the fixed cost, which is known as an upper bound only
_WORTH = 1.02  # so much more for the lane's time makes a wait worth it
_NEARLY = 0.95


class Linger:
    """One lane's habit of waiting.

    Args:
        user_ns: How long the oldest ready request may be held back for a fuller batch; 0 leaves it to what is learned.

    Attributes:
        learned_ns: How long the lane may wait now after an answer; 0 while it does not.
        steady: Whether the number of callers hardly changes.
        before: How many were ready when the model had returned, before anybody was answered; -1 if not known. Written
            by the lane before `answered`.
    """

    __slots__ = (
        "_answered", "_answered_ns", "_came", "_fixed_ns", "_items", "_left", "_looks", "_mean", "_members", "_runs",
        "_seen", "_span_ns", "_taken_ns", "_variance", "_window_ns", "before", "learned_ns", "steady", "user_ns",
    )  # fmt: skip

    def __init__(self, user_ns: int = 0) -> None:
        self.user_ns = user_ns
        self.learned_ns = 0
        self.steady = False
        self.before = -1
        self._left = 0  # ready when the last batch had run
        self._answered = 0  # members of the last batch
        self._answered_ns = 0
        self._fixed_ns = 0.0
        self._window_ns = 0
        self._looks: list[tuple[int, int, list[int]]] = []  # answers whose window is open: when, to how many, who came
        self._members = 0.0  # means of windows that have closed: those answered, and who had come by each part of it
        self._came = [0.0] * len(_PARTS)
        self._seen = 0
        self._items = self._span_ns = 0.0  # the usual pace: members of batches, and the time from one to the next
        self._taken_ns = -1
        self._runs = 0
        self._mean = self._variance = 0.0  # of the number of callers

    def answered(self, now_ns: int, count: int, ready: int, fixed_ns: float) -> None:
        """A batch has been answered.

        Args:
            now_ns: When.
            count: Its members.
            ready: Requests ready at this moment.
            fixed_ns: What a run costs however small it is, at most.
        """
        self._answered, self._answered_ns, self._fixed_ns = count, now_ns, fixed_ns
        self._left = ready if self.before < 0 else self.before
        self.before = -1
        window_ns = int(min(_LONGEST * fixed_ns, MOST_NS)) if fixed_ns >= LEAST_NS else 0
        self._window_ns = window_ns
        if not window_ns:
            self.learned_ns = 0
            self._looks.clear()
            return
        self._count_callers(count + self._left)
        if len(self._looks) > 1:
            self._close(*self._looks.pop(0)[1:])
        self._looks.append((now_ns, count, [0] * len(_PARTS)))

    def plan(self, now_ns: int, ready: int, most: int, oldest_ns: int) -> tuple[int, int] | None:
        """Whether to wait: for how many ready requests, and until when at the latest. None: take what is there.

        Args:
            now_ns: The time.
            ready: Requests ready now.
            most: Members of a batch at most.
            oldest_ns: When the oldest of them has become ready; only looked at where the user has set a time.
        """
        if ready >= most:
            return None
        if self.user_ns:
            until_ns = oldest_ns + self.user_ns
            return (most, until_ns) if ready and until_ns > now_ns else None
        if not self.learned_ns:
            return None
        elapsed = now_ns - self._answered_ns
        back = max(ready - self._left, 0)
        fixed_ns = self._fixed_ns
        best, wanted, wait_ns = ready / fixed_ns * _WORTH if self.steady else 0.0, 0, 0.0
        for part, came in zip(_PARTS, self._came, strict=True):
            longer_ns = self._window_ns * part - elapsed
            rest = self._answered * min(came / self._members, 1.0) - back
            if longer_ns <= 0 or rest < 0.5:
                continue
            if self.steady:
                gain = min(ready + rest, most) / (fixed_ns + longer_ns)
            else:
                gain = rest * _SPARED * fixed_ns - (ready + rest) * longer_ns
            if gain > best:
                best, wanted, wait_ns = gain, ready + max(1, round(rest * _NEARLY)), longer_ns
        # Nobody is there and one is to come: whoever comes first is taken at once.
        if not wanted or not ready and wanted == 1:
            return None
        return min(wanted, most), now_ns + int(wait_ns)

    def taken(self, now_ns: int, owners: Sequence[Ticket[Any]]) -> None:
        """Learn from the members of the next batch when they came."""
        if not self._window_ns:
            return
        if self._taken_ns >= 0:
            self._items += (len(owners) - self._items) * _WEIGHT
            self._span_ns += (now_ns - self._taken_ns - self._span_ns) * _WEIGHT
        self._taken_ns = now_ns
        scale, end_ns = 32 / self._window_ns, now_ns
        for since_ns, _, came in reversed(self._looks):
            for owner in owners:
                if since_ns < owner._arrival_ns <= end_ns:
                    after = int((owner._arrival_ns - since_ns) * scale)
                    if after < 32:
                        came[_PART_OF[after]] += 1
            end_ns = since_ns  # from the next answer on they come after that one
        while self._looks and now_ns >= self._looks[0][0] + self._window_ns:
            self._close(*self._looks.pop(0)[1:])

    def _close(self, answered: int, came: list[int]) -> None:
        """A window is over."""
        total = 0
        self._seen += 1
        self._members += (answered - self._members) * _WEIGHT
        means = self._came
        for index, count in enumerate(came):
            total += count
            means[index] += (total - means[index]) * _WEIGHT
        self.steady = self._runs >= _MANY and self._variance < _STEADY * self._mean
        self.learned_ns = self._window_ns if self._seen >= _ENOUGH and self._pays() else 0

    def _count_callers(self, callers: int) -> None:
        self._runs += 1
        weight = max(_SLOW_WEIGHT, 1 / self._runs)
        off = callers - self._mean
        self._mean += off * weight
        self._variance = (1 - weight) * (self._variance + weight * off * off)

    def _pays(self) -> bool:
        """Whether most of those answered come back, faster than requests come otherwise, and soon enough if all callers
        are answered at once."""
        came, members = self._came, self._members
        if came[-1] < _BACK * members:
            return False
        first = next(i for i, count in enumerate(came) if count > (1 - _NEARLY) * came[-1])
        last = next(i for i, count in enumerate(came) if count >= _NEARLY * came[-1])
        last_ns = self._window_ns * _PARTS[last]
        usual = self._items / self._span_ns if self._span_ns > 0 else 0.0
        if not self.steady:
            return came[last] >= _CLUSTERED * usual * last_ns
        if came[last] < _CLUSTERED_AND_STEADY * usual * last_ns:
            return False
        first_ns = self._window_ns * (_PARTS[first - 1] if first else 0.0)
        before = came[first - 1] if first else 0.0
        return first_ns + (last_ns - first_ns) * self._mean / (came[last] - before) <= _LONGEST * self._fixed_ns


_PART_OF = tuple(next(i for i, part in enumerate(_PARTS) if after < part * 32) for after in range(32))
"""For each 32nd of a window, the part that it belongs to."""
