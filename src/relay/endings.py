"""Endings: every way a request ends that is not an answer, and what follows from it for others.

Owns the set of open tickets. Any thread may call any method. A request is a slot of the queue, and its owner is the
ticket that leads it; followers are tickets that share its run (see `runs`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from relay._backend import arena, queue, tickets
from relay.clock import Clock, MonotonicClock
from relay.deadlines import Deadlines
from relay.errors import Overloaded
from relay.limits import Limits
from relay.policy import MAX_PRIORITY
from relay.room import Room, closed_error
from relay.runs import all_of, leave, wanted
from relay.stats import Counts
from relay.ticket import Group, Replies, Ticket, cancelled_error, forked_error, settle


class Endings(tickets.DeskBase):
    """The part of a `Desk` that lets requests go.

    Args:
        requests: The queue.
        name: For threads and messages.
        limits: Sizes.
        clock: What all time is read from.
    """

    def __init__(self, requests: queue.RequestQueue, name: str, limits: Limits, clock: Clock) -> None:
        super().__init__()
        self.queue = requests
        self.name = name
        self.limits = limits
        self.clock = clock
        self.monotonic = type(clock) is MonotonicClock
        self.counts = Counts()
        self._renewing = threading.RLock()  # for a finaliser of what it lets go, or a signal, may renew as well
        self._between: set[Ticket[Any]] = set()  # those taken out of `open` for a moment, to be admitted again
        self.room: Room = Room(requests, clock)
        self.deadlines = Deadlines(requests, self.counts, clock, f"{name}-alarm", self._expire)
        self.arm = self.deadlines.arm

    def admit(self, ticket: Ticket[Any], claim: bool = False, digest: int = -1) -> bool | None:
        """Give a ticket a place of its own; see `Desk.admit`."""
        raise NotImplementedError

    def refusal(self, count: int = 1) -> Overloaded:
        """Count and describe a refusal for want of room."""
        self.counts.add("refused", count)
        asked = "the request" if count == 1 else f"{count} requests"
        return Overloaded(
            f"no room for {asked}: {len(self.queue)} of {self.limits.max_queue} places in the queue of {self.name!r} "
            "are taken; "
            "retry later, raise max_queue, or use run_async() or map(), which wait for room",
            reason="queue_full",
            retry_after=self._retry_after(),
        )

    def cancel(self, ticket: Ticket[Any]) -> bool:
        """End one waiter's request. The work goes on while another shares it, or once it runs."""
        replies = Replies()
        if not settle(ticket, None, cancelled_error(), replies):
            return False
        self.counts.add("cancelled")
        owner = self.queue.owner(ticket._handle)
        if owner is not None:
            leave(owner, ticket)
            if ticket is owner or not wanted(owner):
                self._drop_if_unwanted(owner, ticket._handle)
        self.flush(replies)
        return True

    def withdraw(self, tickets: Iterable[Ticket[Any]]) -> None:
        """Forget tickets that were entered as open and never admitted."""
        self.open.difference_update(tickets)
        self.flush(Replies())

    def displace(self, level: int, replies: Replies | None = None) -> Replies | None:
        """Send away the newest queued request of the least urgent tier, to make room for one of `level`.

        Returns:
            Whom to wake, `replies` included, once the newcomer has the place: they may want one again. None if nobody
            is less urgent.
        """
        handle, owner = self.queue.displace(level)
        if handle < 0:
            return None
        # The place of one that is being prepared is free at once, too: its helper finds the handle stale. Else one
        # newcomer would send away many.
        self.queue.ready(handle, 0)
        replies = replies if replies is not None else Replies()
        for ticket in all_of(owner):
            if ticket is not owner and ticket.priority <= level:
                self._admit_again(ticket, replies)  # it joined in the very moment
                continue
            error = Overloaded(
                f"the queue of {self.name!r} was full, and the request of priority {ticket.priority} had to make room "
                f"for one of priority {level}; retry later, ask at a more urgent priority, or raise max_queue",
                reason="displaced",
                retry_after=self._retry_after(),
            )
            if settle(ticket, None, self._lost_place(error), replies):
                self.counts.add("displaced")
        return replies

    def may_displace(self, level: int, count: int) -> bool:
        """Whether so many who are ready are less urgent than `level`."""
        return self.queue.ahead(MAX_PRIORITY) - self.queue.ahead(level) >= count

    def _lost_place(self, error: Overloaded) -> Overloaded:
        error.__dict__["lost_place"] = self.queue
        return error

    def has_lost_place(self, ticket: Ticket[Any]) -> bool:
        """Whether a request that has ended had a place in this queue and was sent away for want of room. A refusal by
        another relay, which a model or a preparation has passed on, is none."""
        error = ticket._error
        return isinstance(error, Overloaded) and error.__dict__.get("lost_place") is self.queue

    def _retry_after(self) -> float:
        return max(self.counts.mean_run_s, 0.001)

    def _expire(self, now_ns: int) -> None:
        """End those whose deadline has come while they were queued. On the alarm's thread."""
        self.crew.add(threading.get_ident())
        replies = Replies()
        for handle, owner in self.queue.due(now_ns):
            self.deadlines.end_late(owner, now_ns, replies)
            self._drop_if_unwanted(owner, handle)
        self.flush(replies)

    def dropped_late(self, owners: Sequence[Ticket[Any]], now_ns: int) -> None:
        """End the requests that the lane found too late when it wanted to take them; their slots are free already."""
        replies = Replies()
        for owner in owners:
            self.deadlines.end_hopeless(owner, now_ns, replies)
            for ticket in all_of(owner):
                self._admit_again(ticket, replies)
        self.flush(replies)

    def _admit_again(self, ticket: Ticket[Any], replies: Replies) -> None:
        """It joined in the very moment the slot was dropped, and has time left: give it a place of its own."""
        self._between.add(ticket)
        try:
            self.open.remove(ticket)  # so that nobody ends it under our hands
            try:
                if self.admit(ticket):
                    return
                error: BaseException = self._lost_place(
                    Overloaded(
                        f"the run that the request had joined was taken out of the queue of {self.name!r} in that very "
                        "moment, and there was no room for another; retry later, or raise max_queue",
                        reason="displaced",
                        retry_after=self._retry_after(),
                    )
                )
            except BaseException as raised:
                error = raised
            self.open.add(ticket)
            if settle(ticket, None, error, replies) and self.has_lost_place(ticket):
                self.counts.add("displaced")
        except KeyError:
            pass  # it has ended
        finally:
            self._between.discard(ticket)

    def _drop_if_unwanted(self, owner: Ticket[Any], handle: int) -> None:
        """Take a request out of the queue if nobody waits for it any more."""
        if wanted(owner):
            self.deadlines.retime(owner, handle)
            return
        self.queue.unbind(handle)
        if not wanted(owner):  # nobody joined before it was closed
            self.queue.cancel(handle)
            self.made_room()

    def flush(self, replies: Replies, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Wake the waiters of what has just been settled, and whoever waits for the last request to end. `loop` is the
        one whose callback this is called from, if any."""
        # One by one: a watcher that is entered meanwhile is seen here, or sees for itself that no request is open.
        while self._idle_watchers and not self.open:
            try:
                replies.calls.append(self._idle_watchers.pop())
            except IndexError:
                break  # another thread has just taken the last
        replies.flush(loop)
        if replies.undeliverable:
            self.counts.add("undeliverable", replies.undeliverable)

    def renew(self) -> None:
        """Begin a new epoch: what was asked before is not the same as what is asked from now on."""
        with self._renewing:
            if self.results is None:
                self.epoch += 1
            else:
                self.results.invalidate()  # first, so that nobody in the new epoch finds anything of the old one
                self.epoch = self.results.epoch

    def prepared(self, replies: Replies) -> None:
        """Some requests have ended before they were ready."""
        self.made_room()
        self.flush(replies)

    def made_room(self) -> None:
        """Places have become free: let in those who wait for one."""
        if self.room.waiting:
            self.room.grant()

    def when_idle(self, watcher: Callable[[], object]) -> None:
        """Have `watcher` called when no request is open: at once if none is. It may be called more than once."""
        self._idle_watchers.append(watcher)
        if not self.open:
            watcher()

    def unwatch(self, watcher: Callable[[], object]) -> None:
        """Take a watcher back."""
        try:
            self._idle_watchers.remove(watcher)
        except ValueError:
            pass

    # After a fork.

    def forsake(self) -> None:
        """In a child after a fork: what is open will be answered in the parent, and ends here. Takes no lock."""
        self.forked = self.refusing = self.closed = True
        self._idle_watchers.clear()
        self.room.forsake()
        self.deadlines.alarm.stop()
        groups_last = sorted((*self.open, *self._between), key=lambda ticket: isinstance(ticket, Group))
        for ticket in groups_last:
            if not ticket._done:  # as a group is when its members are
                self.end_forked(ticket)

    def end_forked(self, ticket: Ticket[Any]) -> None:
        """End a ticket that nobody will answer in this process. Its waiters are the parent's and are not woken."""
        self.open.add(ticket)
        settle(ticket, None, forked_error(), Replies())

    # The end.

    def stop_admitting(self) -> None:
        """Take no more, and send away those who wait for room."""
        self.refusing = True
        self.room.close()

    def close(self) -> None:
        """Take no more, and send away all who are queued or wait for room. Requests that run are left to the lane."""
        self.closed = True
        self.stop_admitting()
        for owner in self.queue.owners():
            self._send_away(owner)
        self.deadlines.close()

    def _send_away(self, owner: Ticket[Any]) -> None:
        if self.queue.cancel(owner._handle) not in (arena.DROP_FREED, arena.DROP_DEFERRED):
            return
        self.queue.ready(owner._handle, 0)  # free also if it is being prepared: there may be no helper any more
        replies = Replies()
        for ticket in all_of(owner):
            settle(ticket, None, closed_error(), replies)
        self.flush(replies)
