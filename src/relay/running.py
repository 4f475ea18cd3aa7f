"""One batch, from its commit to its last answer: assemble, run, split, answer.

Sans thread: a lane asks with `open` whether there is something to call the model with, calls it in its own way, says
with `returned` or `failed` what came of it, until `open` says no, and has the last answers go out with `send`. Any
thread may `time_out` or `abandon` it meanwhile: whoever takes a ticket out of the open ones settles it, and the others
come too late. A run is always closed to joiners before anybody is settled for what became of it, so that nobody enters
behind and gets what was meant for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from relay._backend import tickets
from relay.current import CurrentBatch, mixed_keywords
from relay.errors import DeadlineExceeded, NonFiniteOutput, RequestCancelled, StaleToken
from relay.isolation import Splitter
from relay.outputs import finite_rows, leave_out_grad, member_error, rows_of
from relay.overtime import Call
from relay.runs import all_of, followers, wanted
from relay.station import Station
from relay.ticket import Replies, Run, Ticket, let_go, settle


class Running:
    """A batch that a lane has taken.

    Args:
        station: What the lane works with.
        now_ns: When its members were committed.
        taken: What `RequestQueue.take` gave.

    Attributes:
        argument, keywords: What to call the model with, after `open` has said yes.
        current: What the model may ask about the batch.
        run: The times of the present call; those of the last one once all has ended.
        failures: Members whose work has failed or has run out of its time.
        run_ns: How long the longest call took that has answered anybody; 0 if none has.
    """

    __slots__ = (
        "_call", "_handles", "_open", "_owners", "_part", "_replies", "_splitter", "_station", "argument", "current",
        "failures", "keywords", "run", "run_ns",
    )  # fmt: skip

    def __init__(self, station: Station, now_ns: int, taken: tuple[list[int], list[Any], list[Any], int, int, int]):
        self._station = station
        self._handles: list[int] = taken[0]
        self._owners: list[Ticket[Any]] = taken[1]
        self.run = Run(now_ns, len(taken[0]), taken[3], taken[4], taken[5])
        self._splitter: Splitter | None = None
        self._part: Sequence[int] | None = None  # of the members; None for all of them
        self._call: Call | None = None  # under way, where its time is limited
        self._open = True
        self._replies: Replies | None = None  # to be sent last
        self.argument: Any = None
        self.failures = 0
        self.run_ns = 0

    # The lane's side.

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
            rows = rows_of(output, run.size)
            if station.ways.check_finite:
                rows = finite_rows(output, rows)
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
            self._replies = self._answer(self._handles, self._owners, rows, run, ())
        else:
            self._splitter.succeeded(rows)
            self._go_on()
        station.ran(run.size, run.width, run.real, run_ns)

    def failed(self, error: BaseException) -> None:
        """The model, or what came before it, has raised."""
        station, run = self._station, self.run
        if not self._open:
            return
        self._call_is_over()
        run.raised = True
        if self._splitter is None:
            ways = station.ways
            self._splitter = Splitter(
                run.size,
                error,
                station.health,
                memory=station.memory,
                widths=[owner.size for owner in self._owners],
                deadline_ns=self._deadline_ns,
                wanted=self._wanted,
                split=ways.isolate and ways.idempotent,
            )
        else:
            self._splitter.failed(error)
        self._go_on()

    def send(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Wake whom the last call has answered; on a loop's callback, or on a thread of its own."""
        replies, self._replies = self._replies, None
        if replies is not None:
            desk = self._station.desk
            desk.flush(replies, loop)
            desk.made_room()

    # Any thread's.

    @property
    def size(self) -> int:
        """Members of the whole batch."""
        return len(self._owners)

    def due_ns(self) -> int:
        """When the present call will have taken too long; 0 for never, and once that has been seen to."""
        call = self._call
        return call.due_ns if call is not None and not call.over else 0

    def time_out(self) -> None:
        """End those whose call takes too long, if the present one does; what it gives them later is dropped."""
        call = self._call
        if call is not None and not self._station.desk.forked:
            call.time_out()

    def abandon(self, error: BaseException) -> None:
        """End everybody who has not ended, for no call will return; `send` tells them. At any time, and again."""
        self._open = False
        self._call = None
        station, run, desk = self._station, self.run, self._station.desk
        if desk.forked:
            return
        replies, freed, failed = self._replies or Replies(), 0, 0
        for handle, owner in zip(self._handles, self._owners, strict=True):
            freed += self._close((handle,))
            for ticket in all_of(owner):
                failed += settle(ticket, None, member_error(error, 1, station.name), replies, run)
            let_go(owner)
        self.failures = min(self.failures + freed, self.size)
        if self.argument is not None and freed:
            self.argument, run.raised, run.ended_ns = None, True, station.clock.now_ns()
            desk.counts.batch(run, freed, failed, self._part is not None)
        else:
            desk.counts.add("failed", failed)
        self._replies = replies

    # Inside.

    def _assemble(self) -> None:
        station, owners, handles = self._station, self._owners, self._handles
        if self._part is not None:
            owners, handles = [owners[index] for index in self._part], [handles[index] for index in self._part]
        items = [owner._item for owner in owners]
        given = [owner._prepared for owner in owners] if station.ways.prepared else items
        shared = owners[0]._params
        keywords: dict[str, Any] = dict(shared.keywords) if shared is not None else {}  # which a model may change
        if station.ways.mixed:
            keywords = mixed_keywords(owners, keywords, station.ways.mixed)
        self.keywords = keywords
        self.current = CurrentBatch(owners, items, keywords, station.version)
        assembler = station.assembler
        self.argument = given if assembler is None else assembler.batch(handles, given, keywords)
        leave_out_grad()
        run = self.run
        run.started_ns = station.clock.now_ns()
        if limit_ns := station.ways.run_limit_ns:
            self._call = call = Call(station.desk, run, handles, owners, limit_ns)
            station.watch(call.due_ns)

    def _call_is_over(self) -> None:
        """Whatever became of it."""
        call, self._call = self._call, None
        if call is not None:
            self.failures += call.timed_out
        self.argument = None
        self.run.ended_ns = self._station.clock.now_ns()

    def _deadline_ns(self, index: int) -> int:
        """The last deadline of those who wait for a member; -1 if one of them has none. Once it has come, the run is
        closed to joiners, who might have more time."""
        last = self._last_deadline_ns(index)
        if 0 <= last <= self._station.clock.now_ns():
            self._station.desk.queue.unbind(self._handles[index])
            last = self._last_deadline_ns(index)
        return last

    def _last_deadline_ns(self, index: int) -> int:
        owner = self._owners[index]
        waiting = [ticket._deadline_ns for ticket in (owner, *followers(owner)) if not ticket._done]
        return -1 if not waiting or min(waiting) < 0 else max(waiting)

    def _wanted(self, index: int) -> bool:
        """Whether anybody waits for a member; if nobody does, nobody will."""
        owner = self._owners[index]
        if wanted(owner):
            return True
        self._station.desk.queue.unbind(self._handles[index])
        return wanted(owner)  # somebody may have joined before

    def _go_on(self) -> None:
        """Answer those whose end is known by now, and choose the next part."""
        splitter, run = self._splitter, self.run
        assert splitter is not None
        part = splitter.next(self._station.clock.now_ns())
        ended = splitter.take_ended()
        self._replies = self._answer(
            [self._handles[index] for index in ended],
            [self._owners[index] for index in ended],
            [splitter.outcomes[index] for index in ended],
            run,
            [splitter.run_sizes[index] for index in ended],
        )
        self.send()  # there is more to run
        if not part:
            self._open = False
            self._splitter = None  # whose errors hold the frames of the model
            return
        self._part = part
        sizes = [self._owners[index].size for index in part]
        after = Run(run.committed_ns, len(part), run.why, max(sizes), sum(sizes))
        after.first_ns = run.first_ns or run.started_ns
        after.started_ns = after.ended_ns = run.ended_ns
        self.run = after

    def _answer(
        self, handles: list[int], owners: list[Ticket[Any]], rows: Sequence[Any], run: Run, sizes: Sequence[int]
    ) -> Replies | None:
        """Answer members of the batch, and count the call that has just ended.

        Args:
            handles, owners: The members; there may be none.
            rows: Their rows, or the errors they end in.
            run: The call.
            sizes: How many members the call had that ended each of them, 0 for one that was not run again; empty if all
                were ended by this call.
        """
        desk = self._station.desk
        if desk.forked:
            return None
        self._close(handles)  # nobody enters a list of followers behind the loop below
        replies = Replies()
        failed = 0
        for index in tickets.answer_all(owners, rows, run, replies, desk.counts.waits):
            failed += self._answer_one(owners[index], rows[index], sizes[index] if sizes else run.size, run, replies)
        desk.counts.batch(run, len(owners), failed, self._part is not None)
        return replies

    def _answer_one(self, owner: Ticket[Any], row: Any, size: int, run: Run, replies: Replies) -> int:
        """Answer one member and those who share its run, each with an error of its own. How many failed."""
        kind = type(row)
        failed = issubclass(kind, BaseException)  # isinstance() would run a row's own __class__
        counts, name, own_size = self._station.desk.counts, self._station.name, owner.size
        noted = size if run.raised else 1  # a row that is an error is its own item's, not the batch's
        settled = 0
        for ticket in all_of(owner):
            ticket.size = own_size
            if failed:
                settled += settle(ticket, None, member_error(row, noted, name), replies, run if size else None)
            elif settle(ticket, row, None, replies, run):
                counts.waits.record(ticket, run)
        let_go(owner)
        self.failures += failed and (size > 0 or kind is not RequestCancelled)
        if kind is NonFiniteOutput:
            counts.add("non_finite", settled)
        if size:
            return settled
        counts.add("expired" if kind is DeadlineExceeded else "cancelled", settled)
        return 0

    def _close(self, handles: Sequence[int]) -> int:
        """End the leases of members, whoever else may be about to. How many there were."""
        queue = self._station.desk.queue
        try:
            queue.finish(handles)
            return len(handles)
        except StaleToken:  # somebody has abandoned the batch
            return sum(self._close((handle,)) for handle in handles) if len(handles) > 1 else 0
