"""Deadlines: when a queued request must have been started, and who is told when it was not.

Owns the alarm. A request that is shared has the deadlines of all its waiters: it is looked at when the first of them
comes, and dropped only at the last. Any thread may call any method.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from relay._backend import queue
from relay.clock import NS, Alarm, Clock
from relay.errors import DeadlineExceeded
from relay.runs import followers, leave
from relay.stats import Counts
from relay.ticket import Replies, Ticket, settle


class Deadlines:
    """The deadlines of one queue.

    Args:
        requests: The queue, which holds the timers.
        counts: Where those who expire are counted.
        clock: What all time is read from.
        name: The alarm's thread's name.
        due: Called with the time, on the alarm's thread, when a timer has come.

    Attributes:
        arm: Make sure that the alarm is awake by a time.
    """

    def __init__(
        self, requests: queue.RequestQueue, counts: Counts, clock: Clock, name: str, due: Callable[[int], None]
    ) -> None:
        self._requests = requests
        self._counts = counts
        # Held for the few steps from a shared request's waiters to its times; re-entrant, for finalisers may cancel.
        self._timing = threading.RLock()
        self._due = due
        self._next_run_ns: Callable[[], int | None] = _never
        self._run_due: Callable[[int], object] = bool
        self.alarm = Alarm(clock, name, self._next_ns, self._ring)
        self.arm = self.alarm.arm

    def watch_runs(self, next_ns: Callable[[], int | None], due: Callable[[int], object]) -> None:
        """Have the alarm look after running batches as well: when the next will have taken too long, and what then."""
        self._next_run_ns, self._run_due = next_ns, due

    def close(self) -> None:
        """End the alarm, or have it look after the batches that still run; then this is to be called again when one of
        them has ended."""
        if self._next_run_ns() is None:
            self.alarm.stop()

    def _next_ns(self) -> int | None:
        times = self._requests.next_ns(), self._next_run_ns()
        return min((ns for ns in times if ns is not None), default=None)

    def _ring(self, now_ns: int) -> None:
        self._due(now_ns)
        self._run_due(now_ns)

    def retime(self, owner: Ticket[Any], handle: int) -> None:
        """Set the times of a request anew, from those who wait for it now."""
        if owner._deadline_ns < 0 and owner._times is None:
            return
        with self._timing:
            deadlines = [ticket._deadline_ns for ticket in (owner, *followers(owner)) if not ticket._done]
            limited = [deadline for deadline in deadlines if deadline >= 0]
            last = max(limited) if limited and len(limited) == len(deadlines) else -1
            first = min(limited, default=-1)
            owner._times = last, first
            if not self._requests.set_deadline(handle, last, first):
                return
        if first >= 0:
            self.arm(first)

    def extend(self, leader: Ticket[Any], handle: int, deadline_ns: int) -> None:
        """As `retime` for one waiter more, however many there are.

        Those who leave do not shrink the times; the alarm then looks once too often, and sets them anew.
        """
        with self._timing:
            before = leader._times or (leader._deadline_ns, leader._deadline_ns)
            last, first = before
            if deadline_ns < 0:
                last = -1
            else:
                last = max(last, deadline_ns) if last >= 0 else -1
                first = min(first, deadline_ns) if first >= 0 else deadline_ns
            if before == (last, first):
                return
            leader._times = last, first
            if not self._requests.set_deadline(handle, last, first):
                return
        if first >= 0:
            self.arm(first)

    def end_late(self, owner: Ticket[Any], now_ns: int, replies: Replies) -> None:
        """End those waiters of a request whose deadline has come."""
        self._end(owner, now_ns, now_ns, replies)

    def end_hopeless(self, owner: Ticket[Any], now_ns: int, replies: Replies) -> None:
        """End those waiters of a request who could not be answered in time, or whose deadline has come."""
        last_ns = owner._times[0] if owner._times is not None else owner._deadline_ns
        self._end(owner, now_ns, max(last_ns, now_ns), replies)

    def _end(self, owner: Ticket[Any], now_ns: int, until_ns: int, replies: Replies) -> None:
        for ticket in (owner, *followers(owner)):
            if 0 <= ticket._deadline_ns <= until_ns:
                limit = (ticket._deadline_ns - ticket._arrival_ns) / NS
                if ticket._deadline_ns <= now_ns:
                    why = f"the request was still queued at its deadline, {limit:g} s after submit, and was not started"
                else:
                    why = f"by prediction the run could not have ended by the deadline, {limit:g} s after submit"
                error = DeadlineExceeded(f"{why}; give it more time, a more urgent priority, or less load")
                if settle(ticket, None, error, replies):
                    self._counts.add("expired")
                    leave(owner, ticket)


def _never() -> None:
    return None
