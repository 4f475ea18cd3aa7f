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

The native part is compiled from this file, with the types of `_core/linger.pxd`; see `fit`.
"""

from __future__ import annotations

__all__ = ["LEAST_NS", "MOST_NS", "Linger"]

MOST_NS = 4_000_000
"""The longest time that is ever waited of the lane's own accord."""

LEAST_NS = 100_000
"""Where a run's fixed cost is below this, a thread's wake-up costs too much of it for any wait."""

_MOST_NS, _LEAST_NS = MOST_NS, LEAST_NS

_STEPS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32)
_PARTS = [step / 32 for step in _STEPS]
"""A window is looked at in 16 parts, which end here."""

_PART_OF = [next(i for i, step in enumerate(_STEPS) if after < step) for after in range(32)]
"""For each 32nd of a window, the part that it belongs to."""

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
        watching: A window is open: `taken` has something to learn.
    """

    __slots__ = (
        "_answered", "_answered_ns", "_back", "_back_ns", "_came", "_counts", "_fixed_ns", "_items", "_left", "_mean",
        "_members", "_of", "_open", "_runs", "_seen", "_since_ns", "_span_ns", "_taken_ns", "_variance",
        "_window_ns", "before", "learned_ns", "steady", "user_ns", "watching",
    )  # fmt: skip

    def __init__(self, user_ns: int = 0) -> None:
        self.user_ns = user_ns
        self.learned_ns = 0
        self.steady = self.watching = False
        self.before = -1
        self._left = 0  # ready when the last batch had run
        self._answered = 0  # members of the last batch
        self._answered_ns = 0
        self._fixed_ns = 0.0
        self._window_ns = 0
        self._open = 0  # answers whose window is open, two at most, the older first:
        self._since_ns = [0] * 2  # when they were,
        self._of = [0] * 2  # to how many,
        self._counts = [0] * 32  # and who came in each part of each
        self._members = 0.0  # means of windows that have closed: those answered, and who had come by each part of it
        self._came = [0.0] * 16
        self._back = self._back_ns = 0.0  # of each window by itself: who came back, and by when
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
        window_ns = int(min(_LONGEST * fixed_ns, _MOST_NS)) if fixed_ns >= _LEAST_NS else 0
        self._window_ns = window_ns
        self.watching = window_ns > 0
        if not window_ns:
            self.learned_ns = self._open = 0
            return
        self._count_callers(count + self._left)
        if self._open > 1:
            self._close()
        at = self._open
        self._open = at + 1
        self._since_ns[at], self._of[at] = now_ns, count
        for part in range(16 * at, 16 * at + 16):
            self._counts[part] = 0

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
        best, coming, wait_ns = ready / fixed_ns * _WORTH if self.steady else 0.0, 0.0, 0.0
        for part in range(16):
            longer_ns = self._window_ns * _PARTS[part] - elapsed
            rest = self._answered * min(self._came[part] / self._members, 1.0) - back
            if longer_ns <= 0 or rest < 0.5:
                continue
            if self.steady:
                gain = min(ready + rest, most) / (fixed_ns + longer_ns)
            else:
                gain = rest * _SPARED * fixed_ns - (ready + rest) * longer_ns
            if gain > best:
                best, coming, wait_ns = gain, rest, longer_ns
        nearly = coming * _NEARLY
        more = int(nearly + 0.5)
        if more - nearly == 0.5:  # half way, to the even one, as `round` does
            more -= more & 1
        wanted = ready + max(1, more)
        # Nobody is there and one is to come: whoever comes first is taken at once.
        if not coming or not ready and wanted == 1:
            return None
        whole_ns = int(wait_ns)
        return min(wanted, most), now_ns + whole_ns

    def taken(self, now_ns: int, arrivals: list[int]) -> None:
        """Learn from the members of the next batch when they came.

        Args:
            now_ns: When they were chosen.
            arrivals: The times of their arrival; not looked at unless `watching`.
        """
        if not self._window_ns:
            return
        if self._taken_ns >= 0:
            self._items += (len(arrivals) - self._items) * _WEIGHT
            self._span_ns += (now_ns - self._taken_ns - self._span_ns) * _WEIGHT
        self._taken_ns = now_ns
        scale = 32 / self._window_ns
        for arrival_ns in arrivals:
            at = self._open - 1  # the last answer that is not after it
            while at >= 0 and arrival_ns <= self._since_ns[at]:
                at -= 1
            if at >= 0 and arrival_ns <= now_ns:
                after = int((arrival_ns - self._since_ns[at]) * scale)
                if after < 32:
                    self._counts[16 * at + _PART_OF[after]] += 1
        while self._open and now_ns >= self._since_ns[0] + self._window_ns:
            self._close()

    def _close(self) -> None:
        """The older window is over."""
        self._seen += 1
        self._members += (self._of[0] - self._members) * _WEIGHT
        self._note_pace()
        total = 0
        for part in range(16):
            total += self._counts[part]
            self._came[part] += (total - self._came[part]) * _WEIGHT
            self._counts[part] = self._counts[16 + part]
        self._since_ns[0], self._of[0] = self._since_ns[1], self._of[1]
        self._open -= 1
        self.steady = self._runs >= _MANY and self._variance < _STEADY * self._mean
        self.learned_ns = self._window_ns if self._seen >= _ENOUGH and self._pays() else 0

    def _note_pace(self) -> None:
        """How many came back in the older window, and by when nearly all of them. Not to be had from the mean window:
        where callers take turns in groups of different size, it is as long as the largest group takes, for as many as
        are in a middling one."""
        total = came = 0
        for part in range(16):
            total += self._counts[part]
        last = 0 if total else 15
        while last < 15 and came + self._counts[last] < _NEARLY * total:
            came += self._counts[last]
            last += 1
        self._back += (came + self._counts[last] - self._back) * _WEIGHT
        self._back_ns += (self._window_ns * _PARTS[last] - self._back_ns) * _WEIGHT

    def _count_callers(self, callers: int) -> None:
        self._runs += 1
        weight = max(_SLOW_WEIGHT, 1 / self._runs)
        off = callers - self._mean
        self._mean += off * weight
        self._variance = (1 - weight) * (self._variance + weight * off * off)

    def _pays(self) -> bool:
        """Whether most of those answered come back, faster than requests come otherwise, and soon enough if all callers
        are answered at once."""
        all_came = self._came[15]
        if all_came < _BACK * self._members:
            return False
        last = 0
        while last < 15 and self._came[last] < _NEARLY * all_came:
            last += 1
        came, last_ns = self._came[last], self._window_ns * _PARTS[last]
        usual = self._items / self._span_ns if self._span_ns > 0 else 0.0
        if not self.steady:
            return came >= _CLUSTERED * usual * last_ns
        if came < _CLUSTERED_AND_STEADY * usual * last_ns:
            return False
        return self._back > 0 and self._back_ns * self._mean / self._back <= _LONGEST * self._fixed_ns
