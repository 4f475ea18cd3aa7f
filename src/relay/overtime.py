"""Overtime: a model call that takes longer than it may, and the end of those who wait for it.

The lane makes a `Call` for each call of the model, and lets go of it when the call has come back; the alarm's thread
ends its members meanwhile. Both may do so at once: whoever takes a ticket out of the open ones settles it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relay.clock import NS
from relay.desk import Desk
from relay.errors import RunTimeout
from relay.runs import all_of
from relay.ticket import Replies, Run, Ticket, settle


class Call:
    """A call of the model whose time is limited.

    Args:
        desk: Whose requests its members are.
        run: Its times; it has begun.
        handles, owners: The members.
        limit_ns: How long it may take.

    Attributes:
        due_ns: When it has taken too long.
        over: Its time was over, and its members have been ended.
        timed_out: How many members that were.
    """

    __slots__ = ("_desk", "_handles", "_limit_ns", "_owners", "_run", "due_ns", "over", "timed_out")

    def __init__(
        self, desk: Desk, run: Run, handles: Sequence[int], owners: Sequence[Ticket[Any]], limit_ns: int
    ) -> None:
        self._desk = desk
        self._run = run
        self._handles = handles
        self._owners = owners
        self._limit_ns = limit_ns
        self.due_ns = run.started_ns + limit_ns
        self.over = False
        self.timed_out = 0

    def time_out(self) -> None:
        """End its members if it has taken too long. On the alarm's thread."""
        now_ns = self._desk.clock.now_ns()
        if self.over or now_ns < self.due_ns:
            return  # that was a call before this one
        self.over = True
        began = self._run
        run = Run(began.committed_ns, began.size, began.why, began.width, began.real)  # the lane's own goes on
        run.started_ns, run.first_ns, run.ended_ns, run.raised = began.started_ns, began.first_ns, now_ns, True
        replies = Replies()
        count = 0
        for handle, owner in zip(self._handles, self._owners, strict=True):
            self._desk.queue.unbind(handle)  # an equal request that comes now is to have a run of its own
            before = count
            for ticket in all_of(owner):
                error = RunTimeout(
                    f"the model call has taken longer than timeout_run={self._limit_ns / NS:g} s; the call itself goes "
                    "on, and its lane is taken until it returns. Allow more time, or make the batches smaller"
                )
                count += settle(ticket, None, error, replies, run)
            self.timed_out += count > before
        self._desk.counts.add("run_timeouts", count)
        self._desk.flush(replies)
