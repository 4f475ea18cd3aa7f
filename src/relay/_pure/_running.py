"""Batches under way: the common course of one, from its commit to its last answer. What is rarer is `relay.running`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from relay._pure import tickets
from relay._pure._runs import Run
from relay.errors import StaleToken

__all__ = ["BatchView", "RunningBase"]

PAIR_BYTES = 88  # of a tuple of two, one of them a number


class BatchView:
    """What a model may see of its batch.

    Args:
        owners: The members' tickets.
        items: Their items.
        params: The keyword arguments of the call.
        version: The version of the model.
    """

    __slots__ = ("_items", "_owners", "params", "version")

    def __init__(self, owners: Sequence[Any], items: list[Any], params: dict[str, Any], version: int) -> None:
        self._owners = owners
        self._items = items
        self.params = params
        self.version = version


class RunningBase:
    """A batch that a lane has taken; see `relay.running`.

    Args:
        station: What the lane works with.
        now_ns: When its members are committed. There are none before the station has chosen them.

    Attributes:
        late: Those who were found too late meanwhile, until they have been ended.
        argument, keywords: What to call the model with, after `open` has said yes.
        current: What the model may ask about the batch.
        run: The times of the present call; those of the last one once all has ended.
        size: Members of the whole batch.
        failures: Members whose work has failed or has run out of its time.
        run_ns: How long the longest call took that has answered anybody; 0 if none has.
    """

    __slots__ = (
        "_call", "_handles", "_open", "_owners", "_part", "_replies", "_splitter", "_station", "argument", "current",
        "failures", "keywords", "late", "run", "run_ns", "size",
    )  # fmt: skip

    def __init__(self, station: Any, now_ns: int) -> None:
        self._station = station
        self._handles: list[int] = []
        self._owners: list[Any] = []
        self.late: list[Any] = []
        self.size = 0
        self.run = Run(now_ns, 0)
        self._splitter: Any = None
        self._part: Sequence[int] | None = None  # of the members; None for all of them
        self._call: Any = None  # under way, where its time is limited
        self._open = True
        self._replies: Any = None  # to be sent last
        self.argument: Any = None
        self.keywords: dict[str, Any] = {}
        self.current: Any = None
        self.failures = 0
        self.run_ns = 0

    def _taken(self, taken: tuple[list[int], list[Any], list[Any], int, int, int]) -> None:
        """What `RequestQueue.take` gave."""
        run = self.run
        self._handles, self._owners, self.late, run.why, run.width, run.real = taken
        self.size = run.size = len(self._handles)

    def open(self) -> bool:
        """Make the next call ready. False once every member has been answered."""
        while self._open:
            try:
                self._assemble()
                return True
            except BaseException as error:
                self.failed(error)
        return False

    def returned(self, output: Any) -> None:
        """The model has returned."""
        station, run = self._station, self.run
        if not self._open:
            return  # it has been abandoned
        try:
            rows: Sequence[Any] = output
            if type(output) is not list or len(output) != run.size:
                rows = self._rows_of(output)
            if station.ways.check_finite:
                rows = self._finite(output, rows)
        except BaseException as error:
            self.failed(error)
            return
        self._call_is_over()
        run_ns = run.ended_ns - run.started_ns
        self.run_ns = max(self.run_ns, run_ns)
        if self._splitter is None:
            station.health.suspect = False
            if station.memory.limit:
                station.memory.succeeded(run.size, run.width)
            self._open = False
            self._answer(self._handles, self._owners, rows, run, ())
        else:
            self._splitter.succeeded(rows)
            self._go_on()
        station.ran(run.size, run.width, run.real, run_ns)

    def send(self, loop: Any = None) -> None:
        """Wake whom the last call has answered; on a loop's callback, or on a thread of its own."""
        replies, self._replies = self._replies, None
        if replies is not None:
            desk = self._station.desk
            desk.flush(replies, loop)
            if desk.room.waiting:
                desk.made_room()

    # What the subclass does.

    def failed(self, error: BaseException) -> None:
        raise NotImplementedError

    def _go_on(self) -> None:
        raise NotImplementedError

    def _rows_of(self, output: Any) -> Sequence[Any]:
        raise NotImplementedError

    def _finite(self, output: Any, rows: Sequence[Any]) -> Sequence[Any]:
        raise NotImplementedError

    def _keywords_of(self, owners: Sequence[Any], keywords: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def _about_to_call(self) -> None:
        raise NotImplementedError

    def _watch(self, handles: list[int], owners: list[Any], limit_ns: int) -> None:
        raise NotImplementedError

    def _answer_one(self, owner: Any, row: Any, size: int, run: Run, replies: Any) -> int:
        raise NotImplementedError

    # For the subclass.

    def _assemble(self) -> None:
        station, owners, handles = self._station, self._owners, self._handles
        if self._part is not None:
            owners, handles = [owners[index] for index in self._part], [handles[index] for index in self._part]
        ways = station.ways
        items = [owner._item for owner in owners]
        given = [owner._prepared for owner in owners] if ways.prepared else items
        shared = owners[0]._params
        keywords: dict[str, Any] = dict(shared.keywords) if shared is not None else {}  # which a model may change
        if ways.mixed:
            keywords = self._keywords_of(owners, keywords)
        self.keywords = keywords
        self.current = station._view(owners, items, keywords, station.version)
        self.argument = given if station.assembler is None else station.assembler.batch(handles, given, keywords)
        self._about_to_call()
        self.run.started_ns = station.clock.now_ns()
        if ways.run_limit_ns:
            self._watch(handles, owners, ways.run_limit_ns)

    def _call_is_over(self) -> None:
        """Whatever became of it."""
        call, self._call = self._call, None
        if call is not None:
            self.failures += call.timed_out
        self.argument = None
        self.run.ended_ns = self._station.clock.now_ns()

    def _answer(
        self, handles: list[int], owners: list[Any], rows: Sequence[Any], run: Run, sizes: Sequence[int]
    ) -> None:
        """Answer members of the batch, and count the call that has just ended. `send` wakes their waiters.

        Args:
            handles, owners: The members; there may be none.
            rows: Their rows, or the errors they end in.
            run: The call.
            sizes: How many members the call had that ended each of them, 0 for one that was not run again; empty if all
                were ended by this call.
        """
        desk = self._station.desk
        if desk.forked:
            return
        if desk.results is not None:
            rows = self._keep(owners, rows, run.ended_ns)  # before they are closed: who comes then finds them
        self._close(handles)  # nobody enters a list of followers behind the loop below
        replies = tickets.Replies()
        failed = 0
        try:
            for at in tickets.answer_all(owners, rows, run, replies, desk.counts.waits):
                failed += self._answer_one(owners[at], rows[at], sizes[at] if sizes else run.size, run, replies)
        finally:
            self._replies = replies  # whatever has come: who has ended is told
        desk.counts.batch(run, len(owners), failed, self._part is not None)

    def _keep(self, owners: list[Any], rows: Sequence[Any], now_ns: int) -> Sequence[Any]:
        """Keep the answers of those that may be shared; the rows, with those in place of which others are handed out
        from now on."""
        desk = self._station.desk
        answers: list[Any] | None = None
        for index, owner in enumerate(owners):
            who, content, row = owner._who, owner._content, rows[index]  # in this order, the reverse of letting go
            if content is None or issubclass(type(row), BaseException) or (found := desk.kept(row)) is None:
                continue
            value, nbytes = found
            nbytes += sys.getsizeof(content) + PAIR_BYTES + (0 if who is None else who.nbytes)
            pair = value, owner.size
            desk.results.put(owner._digest, content, who, pair, nbytes, owner._epoch, now_ns)
            if type(value) is type(row) and value is not row:
                if answers is None:
                    answers = list(rows)  # which may be the model's own
                answers[index] = value
        return rows if answers is None else answers

    def _close(self, handles: Sequence[int]) -> int:
        """End the leases of members, whoever else may be about to. How many there were."""
        queue = self._station.desk.queue
        try:
            queue.finish(handles)
            return len(handles)
        except StaleToken:  # somebody has abandoned the batch
            return sum(self._close((handle,)) for handle in handles) if len(handles) > 1 else 0
