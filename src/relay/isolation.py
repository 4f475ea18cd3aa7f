"""Isolation: after a failing batch, which members to run next, so that only those at fault fail.

Sans thread, clock and model: whoever runs the batch asks a `Splitter` for a part, runs it, and tells it how that ended,
so that lanes of both kinds split alike. A `Splitter` belongs to one batch and one thread or task. `Health` and
`MemoryLimit` outlive the batches and may be shared by the lanes of one model: they hold ints and bools only, and the
worst that two lanes at once can do is to lose one of two observations.

    64 fail → 32 | 32 → 16 | 16 of the half that failed → … → 1 | 1

Both halves of a part are run before any of them is halved again. One bad item in n thus costs at most 2·⌈log2 n⌉ runs
more, and each innocent half has its rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from relay.errors import DeadlineExceeded, RequestCancelled
from relay.faults import lost_device, out_of_memory, splittable

_OPEN: Final[Any] = object()

GROW_AFTER: Final = 64
"""Batches that must fill a limit of memory, and fit, before it grows. Doubled each time that it has shrunk again, up to
`GROW_AFTER_MOST`: a device whose memory stays as it is should not be tried again and again."""

GROW_AFTER_MOST: Final = 4096

GROW_BY: Final = 4
"""A limit of memory grows by one part in this many."""


class Health:
    """Whether failing batches of one model are worth splitting.

    Lanes of the same model share one; lanes with models of their own have one each. Who runs batches sets `suspect` to
    False after each that succeeds; all else is the splitters'.
    """

    __slots__ = ("suspect",)

    def __init__(self) -> None:
        self.suspect = False
        """True from when the model itself was found at fault until a batch, or a part of one, has succeeded."""


class MemoryLimit:
    """The largest padded size of a batch that fits into memory, as far as running out of it has shown.

    The padded size is members times the widest. Where a batch of more than one has run out of memory, the limit is half
    of its size. After `GROW_AFTER` batches that filled the limit and fit, it grows by a quarter, and it is gone once it
    is over twice what has failed. Each new failure doubles the batches that the next growth takes.

    The limit is for companions: an item that is larger by itself is run alone.
    """

    __slots__ = ("_failed", "_filled", "_grow_after", "limit")

    def __init__(self) -> None:
        self.limit = 0
        """The padded size of a batch at most; 0 for no limit."""
        self._failed = 0
        self._filled = 0
        self._grow_after = GROW_AFTER // 2

    def failed(self, items: int, width: int) -> None:
        """A batch has run out of memory. That of one item says nothing of batches."""
        size = items * max(width, 1)
        if items < 2 or self.limit and self.limit <= size // 2:
            return  # it was known already, as to the parts of a batch that began before
        self.limit = size // 2
        self._failed = size
        self._filled = 0
        self._grow_after = min(self._grow_after * 2, GROW_AFTER_MOST)

    def succeeded(self, items: int, width: int) -> None:
        """A batch has fit."""
        limit = self.limit
        if not limit or (items + 1) * max(width, 1) <= limit:  # one member more would have been let in
            return
        self._filled += 1
        if self._filled >= self._grow_after:
            self._filled = 0
            limit += max(limit // GROW_BY, 1)
            self.limit = 0 if limit > 2 * self._failed else limit


class Splitter:
    """The parts of one failed batch.

        splitter = Splitter(len(batch), error, health)
        while part := splitter.next(now_ns()):
            try: rows = run([batch[i] for i in part])
            except BaseException as error: splitter.failed(error)
            else: splitter.succeeded(rows)

    Then `outcomes` holds, by index, each member's row or the error that it ends with; `take_ended` gives them sooner.
    Every member gets exactly one outcome, and none is run again after its part has succeeded, after it has failed
    alone, once its time is over, or when nobody wants it any more.

    A part is halved unless its error says that this cannot help (`relay.faults.splittable`); then all its members end
    with it, and after a lost device so does all that is left. If 2·⌈log2 n⌉ runs have brought no success, the fault is
    the model's: all that is left ends with the last error, and `Health` has it that nothing is split until a batch has
    succeeded. Out of memory is not counted there, and halved whatever the health is: it is about sizes, not about the
    model. Sizes that have run out of memory once in this batch are not tried again.

    It holds errors, and these hold the frames that they came through: let go of it when the batch is answered.

    Args:
        count: Members of the batch; they are known by their index.
        error: What running all of them raised.
        health: The model's.
        memory: Told of parts that run out of memory and parts that fit; the first run included.
        widths: The members' sizes; None if all are of one size.
        deadline_ns: When a member's time is over; negative for never. A list's ``__getitem__`` will do.
        wanted: False for a member that nobody waits for any more.
        split: False if the members must not be run again, or are not to be isolated.
        max_runs: Parts that are run at most; what is left then ends with the last error. None for no limit but 2n - 2.
    """

    __slots__ = (
        "_again", "_deadline_ns", "_ended", "_error", "_fruitless", "_halve", "_health", "_left", "_max_runs",
        "_memory", "_part", "_patience", "_ready", "_too_large", "_wanted", "_widths", "_worked", "outcomes",
        "run_sizes", "runs",
    )  # fmt: skip

    def __init__(
        self,
        count: int,
        error: BaseException,
        health: Health,
        *,
        memory: MemoryLimit | None = None,
        widths: Sequence[int] | None = None,
        deadline_ns: Callable[[int], int] | None = None,
        wanted: Callable[[int], bool] | None = None,
        split: bool = True,
        max_runs: int | None = None,
    ) -> None:
        self._health = health
        self._memory = memory
        self._widths = widths
        self._deadline_ns = deadline_ns
        self._wanted = wanted
        self._max_runs = max_runs
        self._patience = 2 * (count - 1).bit_length()  # 2·⌈log2 n⌉
        self._fruitless = 0  # runs of parts that have failed, until one succeeds
        self._worked = False
        self._too_large = 0
        self._ready: list[list[int]] = []  # to be run, the next one last
        self._again: list[list[int]] = []  # have failed, beside what is ready
        self._halve: list[list[int]] = []  # have failed before, the next one to be halved last
        self._ended: list[int] = []
        self._left = count
        self._error = error
        self._part = list(range(count))
        self.outcomes: list[Any] = [_OPEN] * count
        """A row or an error for each member; whole once `next` has given an empty part."""
        self.run_sizes = [count] * count
        """How many members the run had that ended a member: 1 for one that failed alone, 0 for one that was not run."""
        self.runs = 0
        """Parts run so far."""
        self.failed(error, split=split)

    def next(self, now_ns: int) -> list[int]:
        """The indices of the members to run now, in ascending order; empty when all members have their outcome.

        Those whose time is over by now end with `DeadlineExceeded`, those nobody wants with `RequestCancelled`.
        """
        if self._part:
            raise RuntimeError("the last part has no outcome yet; this is a bug in relay")
        while self._left:
            if not self._ready:
                while self._again:
                    self._halve.append(self._again.pop())
                part = self._open(self._halve.pop(), now_ns)
                half = (len(part) + 1) // 2
                self._ready = [part[half:], part[:half]]
            part = self._open(self._ready.pop(), now_ns)
            if not part:
                continue
            if len(part) > 1 and self._too_large and self._size(part) >= self._too_large:
                self._again.append(part)
                continue
            self._part = part
            if self._max_runs is not None and self.runs >= self._max_runs:
                self.abort(self._error)
                break
            self.runs += 1
            return part
        return []

    def succeeded(self, rows: Sequence[Any]) -> None:
        """The part has run: one row for each of its members. A row may be an error."""
        part = self._taken()
        if len(rows) != len(part):
            raise RuntimeError(f"{len(rows)} rows for a part of {len(part)}; this is a bug in relay")
        self._worked = True
        self._health.suspect = False
        if self._memory is not None:
            self._memory.succeeded(len(part), self._width(part))
        for index, row in zip(part, rows, strict=True):
            self._end(index, row, len(part))

    def failed(self, error: BaseException, *, split: bool = True) -> None:
        """The part has failed, with an error of whatever kind.

        Args:
            error: The error.
            split: False if its members must not be run again.
        """
        part = self._taken()
        self._error = error
        memory = out_of_memory(error)
        if memory:
            if self._memory is not None:
                self._memory.failed(len(part), self._width(part))
            size = self._size(part)
            self._too_large = min(self._too_large, size) if self._too_large else size
        elif self.runs and not self._worked:
            self._fruitless += 1
        first = not self.runs
        if not memory and lost_device(error):
            self._part = part
            self.abort(error)
        elif len(part) == 1 or not split or not splittable(error) or first and self._health.suspect and not memory:
            for index in part:
                self._end(index, error, len(part))
        else:
            self._again.append(part)
        # Where none is left each has failed alone, with its own error: that is no verdict on the model.
        if self._left and 0 < self._patience <= self._fruitless:
            self._health.suspect = True
            self.abort(error)

    def abort(self, error: BaseException) -> None:
        """End all that is left with this error: nothing is run any more."""
        part, self._part = self._part, []
        for each in (part, *self._ready, *self._again, *self._halve):
            for index in each:
                if self.outcomes[index] is _OPEN:
                    self._end(index, error, len(self.outcomes))
        self._ready, self._again, self._halve = [], [], []

    def take_ended(self) -> list[int]:
        """The members that have got their outcome since this was last asked."""
        ended, self._ended = self._ended, []
        return ended

    @property
    def left(self) -> int:
        """Members without an outcome."""
        return self._left

    def _taken(self) -> list[int]:
        part, self._part = self._part, []
        if not part:
            raise RuntimeError("no part is being run; this is a bug in relay")
        return part

    def _open(self, part: list[int], now_ns: int) -> list[int]:
        """Those of a part who still wait and have time left; the others are ended."""
        open_: list[int] = []
        for index in part:
            if self.outcomes[index] is not _OPEN:
                continue
            if self._wanted is not None and not self._wanted(index):
                self._end(index, RequestCancelled("nobody waited for it any more when its batch had failed"), 0)
            elif self._deadline_ns is not None and 0 <= self._deadline_ns(index) <= now_ns:
                late = DeadlineExceeded(
                    "its batch failed, and its deadline came before it could be run again without the others; "
                    "give it more time, or set isolate=False for the batch's own error"
                )
                late.__cause__ = self._error
                self._end(index, late, 0)
            else:
                open_.append(index)
        return open_

    def _end(self, index: int, outcome: Any, size: int) -> None:
        self.outcomes[index] = outcome
        self.run_sizes[index] = size
        self._left -= 1
        self._ended.append(index)

    def _width(self, part: list[int]) -> int:
        return 1 if self._widths is None else max(self._widths[index] for index in part)

    def _size(self, part: list[int]) -> int:
        return len(part) * max(self._width(part), 1)
