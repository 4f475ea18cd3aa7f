"""One batch, from its commit to its last answer: assemble, run, split, answer.

Sans thread: a lane asks with `open` whether there is something to call the model with, calls it in its own way, says
with `returned` or `failed` what came of it, until `open` says no, and has the last answers go out with `send`. Any
thread may `time_out` or `abandon` it meanwhile: whoever takes a ticket out of the open ones settles it, and the others
come too late. A run is always closed to joiners before anybody is settled for what became of it, so that nobody enters
behind and gets what was meant for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

from relay._backend import lanes
from relay.current import mixed_keywords
from relay.errors import DeadlineExceeded, NonFiniteOutput, RequestCancelled
from relay.isolation import Splitter
from relay.keeping import another
from relay.outputs import finite_rows, leave_out_grad, member_error, rows_of
from relay.overtime import Call
from relay.runs import all_of, followers, wanted
from relay.ticket import Replies, Run, Ticket, let_go, settle


class Running(lanes.RunningBase):
    """A batch that a lane has taken; what every batch goes through is in `lanes`."""

    __slots__ = ()

    # The lane's side.

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

    # Any thread's.

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
        """End everybody who has not ended, those too who were found too late when it was chosen, for no call will
        return; `send` tells them. At any time, and again."""
        self._open = False
        self._call = None
        station, run, desk = self._station, self.run, self._station.desk
        if desk.forked:
            return
        replies, freed, failed = self._replies or Replies(), 0, 0
        try:
            for handle, owner in zip(self._handles, self._owners, strict=True):
                freed += self._close((handle,))
                for ticket in all_of(owner):
                    failed += settle(ticket, None, member_error(error, 1, station.name), replies, run)
                let_go(owner)
            for owner in self.late:
                for ticket in all_of(owner):
                    failed += settle(ticket, None, member_error(error, 1, station.name), replies)
        finally:
            self._replies = replies  # whatever has come: who has ended is told
        self.failures = min(self.failures + freed, self.size)
        if self.argument is not None and freed:
            self.argument, run.raised, run.ended_ns = None, True, station.clock.now_ns()
            desk.counts.batch(run, freed, failed, self._part is not None)
        else:
            desk.counts.add("failed", failed)

    # Inside.

    def _keywords_of(self, owners: Sequence[Any], keywords: dict[str, Any]) -> dict[str, Any]:
        return mixed_keywords(owners, keywords, self._station.ways.mixed)

    def _about_to_call(self) -> None:
        leave_out_grad()

    def _watch(self, handles: list[int], owners: list[Any], limit_ns: int) -> None:
        self._call = call = Call(self._station.desk, self.run, handles, owners, limit_ns)
        self._station.watch(call.due_ns)

    def _rows_of(self, output: Any) -> Sequence[Any]:
        return rows_of(output, self.run.size)

    def _finite(self, output: Any, rows: Sequence[Any]) -> Sequence[Any]:
        return finite_rows(output, rows)

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
        self._answer(
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

    def _answer_one(self, owner: Ticket[Any], row: Any, size: int, run: Run, replies: Replies) -> int:
        """Answer one member and those who share its run, each with an error of its own. How many failed."""
        kind = type(row)
        failed = issubclass(kind, BaseException)  # isinstance() would run a row's own __class__
        counts, name, own_size = self._station.desk.counts, self._station.name, owner.size
        noted = size if run.raised else 1  # a row that is an error is its own item's, not the batch's
        settled = 0
        # The owner last: he may change his row as soon as he has it, and the others' are copies of it.
        for ticket in chain(islice(all_of(owner), 1, None), (owner,)):
            ticket.size = own_size
            if failed:
                settled += settle(ticket, None, member_error(row, noted, name), replies, run if size else None)
            elif settle(ticket, row if ticket is owner else another(row), None, replies, run):
                counts.waits.record(ticket, run)
        let_go(owner)
        self.failures += failed and (size > 0 or kind is not RequestCancelled)
        if kind is NonFiniteOutput:
            counts.add("non_finite", settled)
        if size:
            return settled
        counts.add("expired" if kind is DeadlineExceeded else "cancelled", settled)
        return 0
