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
        self.alarm = Alarm(clock, name, requests.next_ns, due)
        self.arm = self.alarm.arm

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
        for ticket in (owner, *followers(owner)):
            if 0 <= ticket._deadline_ns <= now_ns:
                limit = (ticket._deadline_ns - ticket._arrival_ns) / NS
                error = DeadlineExceeded(
                    f"the request was still queued at its deadline, {limit:g} s after submit, and was not started; "
                    "give it more time, a more urgent priority, or less load"
                )
                if settle(ticket, None, error, replies):
                    self._counts.add("expired")
                    leave(owner, ticket)
