"""The desk: admission of requests, and every ending that is not an answer.

Owns the queue, the set of open tickets, and the line for room. Any thread may call any method. A request is a slot of
the queue, and its owner is the ticket that leads it; followers are tickets that share its run (see `runs`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from relay._backend import arena, queue
from relay.clock import Clock
from relay.deadlines import Deadlines
from relay.errors import Overloaded
from relay.limits import Limits
from relay.policy import Policy
from relay.room import Room, closed_error
from relay.runs import all_of, leave, wanted
from relay.stats import Counts
from relay.ticket import Group, Replies, Ticket, cancelled_error, forked_error, settle
from relay.tokenising import Tokenising
from relay.tokenizer import Tokenizer


class Desk:
    """Where one model's requests come in.

    Args:
        tokenizer: Turns items into input ids, or None.
        name: For threads and messages.
        limits: Sizes.
        policy: Orders the queue.
        clock: What all time is read from.
        wake: Called, on any thread, when something is ready to run and the lane sleeps.
        start: Called when the first request has come.
        generation: The first generation of the handles.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        name: str,
        limits: Limits,
        policy: Policy,
        clock: Clock,
        wake: Callable[[], object],
        start: Callable[[], object],
        generation: int = 1,
    ) -> None:
        self.tokenizer = tokenizer
        self.name = name
        self.limits = limits
        self.clock = clock
        self.counts = Counts()
        self.open: set[Ticket[Any]] = set()
        self._between: set[Ticket[Any]] = set()  # those taken out of `open` for a moment, to be admitted again
        self.closed = False
        self.refusing = False
        self.forked = False
        longest = tokenizer.max_length if tokenizer is not None else 0
        ids = limits.ids_capacity(longest) if longest else 0
        self.queue = queue.RequestQueue(limits.max_queue, ids, longest, wake, generation)
        self.room = Room(self.queue, clock)
        self._key = policy.key
        self._start = start
        self.started = False
        self.lane: threading.Thread | None = None
        self._idle_watchers: list[Callable[[], object]] = []
        self.deadlines = Deadlines(self.queue, self.counts, clock, f"{name}-alarm", self._expire)
        self._tokenising: Tokenising | None = None
        if tokenizer is not None:
            self._tokenising = Tokenising(tokenizer, self.queue, name, limits, clock, self.counts, self._prepared)

    # Coming in.

    def admit(self, ticket: Ticket[Any], claim: bool = False) -> bool:
        """Give `ticket` a place of its own. False if there is none.

        Args:
            ticket: Its item must have been checked.
            claim: Use up a place promised by the room.

        Raises:
            Closed: The relay takes no more.
        """
        if self.refusing:
            if claim:
                self.queue.forgo()
            raise closed_error()
        if self.room.waiting and not claim:
            return False  # what is free, or just becomes so, belongs to those in line
        reserve = -1 if self._tokenising is None else self._tokenising.reserve(ticket)
        arrival_ns, deadline_ns = ticket._arrival_ns, ticket._deadline_ns
        try:
            key = self._key(ticket.priority, arrival_ns, deadline_ns, 1, ticket.tenant)
        except BaseException:  # a user's policy
            if claim:
                self.queue.forgo()
            raise
        self.open.add(ticket)
        handle = self.queue.admit(
            ticket,
            key,
            arrival_ns,
            deadline_ns,
            ticket.size,
            ticket._group,
            reserve,
            claim,
        )
        if handle < 0:
            self.open.discard(ticket)
            return False
        ticket._handle = handle
        if deadline_ns >= 0:
            self.deadlines.arm(deadline_ns)
        if self._tokenising is not None:
            self._tokenising.put(ticket)
        if not self.started:
            self._get_going((ticket,))
        if self.closed:
            self._send_away(ticket)  # close() ran between the check and the admission and did not see it
        return True

    def admit_all(self, tickets: Sequence[Ticket[Any]]) -> bool:
        """Give every ticket a place, or none of them. All must be of one priority and one deadline.

        Raises:
            Closed: The relay takes no more.
        """
        if self.refusing:
            raise closed_error()
        if self.room.waiting:
            return False
        first = tickets[0]
        key = self.key(first)
        self.open.update(tickets)
        handles = self.queue.admit_all(
            tickets,
            key,
            first._arrival_ns,
            first._deadline_ns,
            [ticket.size for ticket in tickets],
            first._group,
            None if self._tokenising is None else [self._tokenising.reserve(ticket) for ticket in tickets],
        )
        if handles is None:
            self.open.difference_update(tickets)
            return False
        for ticket, handle in zip(tickets, handles, strict=True):
            ticket._handle = handle
            if self._tokenising is not None:
                self._tokenising.put(ticket)
        if first._deadline_ns >= 0:
            self.deadlines.arm(first._deadline_ns)
        if not self.started:
            self._get_going(tickets)
        if self.closed:
            for ticket in tickets:
                self._send_away(ticket)
        return True

    def _get_going(self, tickets: Sequence[Ticket[Any]]) -> None:
        """Start the lane. If no thread can be had, the first requests are not left behind, and the next try again."""
        try:
            self._start()
        except BaseException:
            for ticket in tickets:
                self.cancel(ticket)
            raise
        self.started = True

    def withdraw(self, tickets: Iterable[Ticket[Any]]) -> None:
        """Forget tickets that were entered as open and never admitted."""
        self.open.difference_update(tickets)
        self.flush(Replies())

    def key(self, ticket: Ticket[Any]) -> int:
        """The order of a ticket among all that wait."""
        return self._key(ticket.priority, ticket._arrival_ns, ticket._deadline_ns, 1, ticket.tenant)

    def refusal(self, count: int = 1) -> Overloaded:
        """Count and describe a refusal for want of room."""
        self.counts.add("refused", count)
        asked = "the request" if count == 1 else f"{count} requests"
        return Overloaded(
            f"no room for {asked}: {len(self.queue)} of {self.limits.max_queue} places in the queue of {self.name!r} "
            "are taken; "
            "retry later, raise max_queue, or use run_async() or map(), which wait for room",
            reason="queue_full",
            retry_after=max(self.counts.mean_run_s, 0.001),
        )

    def join(self, leader: Ticket[Any], handle: int, digest: int, follower: Ticket[Any]) -> bool:
        """Let `follower` share the run of `leader`. False if it is closed to joiners by now, or has too many."""
        key = self.key(follower)
        followers = leader._followers
        if followers is None or len(followers) >= self.limits.max_followers:
            return False
        follower._handle = handle
        self.open.add(follower)
        followers.append(follower)
        if self.queue.find(digest)[0] != handle:
            try:
                followers.remove(follower)
            except ValueError:
                return True  # whoever closed the run has read us from the list, and answers
            self.open.discard(follower)
            return False
        self.queue.lift(handle, key)
        if follower._deadline_ns >= 0 or leader._deadline_ns >= 0 or leader._times is not None:
            self.deadlines.extend(leader, handle, follower._deadline_ns)
        self.counts.add("merged")
        return True

    # Endings.

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

    def _expire(self, now_ns: int) -> None:
        """End those whose deadline has come while they were queued. On the alarm's thread."""
        replies = Replies()
        for handle, owner in self.queue.due(now_ns):
            self.deadlines.end_late(owner, now_ns, replies)
            self._drop_if_unwanted(owner, handle)
        self.flush(replies)

    def dropped_late(self, owners: Sequence[Ticket[Any]], now_ns: int) -> None:
        """End the requests whose deadline had come when the lane wanted to take them; their slots are free already."""
        replies = Replies()
        for owner in owners:
            self.deadlines.end_late(owner, now_ns, replies)
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
                error: BaseException = self.refusal()
            except BaseException as raised:
                error = raised
            self.open.add(ticket)
            settle(ticket, None, error, replies)
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

    def flush(self, replies: Replies) -> None:
        """Wake the waiters of what has just been settled, and whoever waits for the last request to end."""
        # One by one: a watcher that is entered meanwhile is seen here, or sees for itself that no request is open.
        while self._idle_watchers and not self.open:
            try:
                replies.calls.append(self._idle_watchers.pop())
            except IndexError:
                break  # another thread has just taken the last
        replies.flush()
        if replies.undeliverable:
            self.counts.add("undeliverable", replies.undeliverable)

    def _prepared(self, replies: Replies) -> None:
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

    @property
    def healthy(self) -> bool:
        """False if a helper thread or the alarm has died."""
        return self.deadlines.alarm.alive and (self._tokenising is None or self._tokenising.helpers.healthy)

    def on_own_thread(self) -> bool:
        """True on the lane's thread, a helper's and the alarm's: whoever waits there for an answer waits for itself."""
        if threading.current_thread() is self.lane:
            return True
        helping = self._tokenising is not None and self._tokenising.helpers.on_own_thread()
        return helping or self.deadlines.alarm.on_own_thread()

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
        if self._tokenising is not None:
            self._tokenising.helpers.stop()
        self.deadlines.alarm.stop()

    def _send_away(self, owner: Ticket[Any]) -> None:
        if self.queue.cancel(owner._handle) not in (arena.DROP_FREED, arena.DROP_DEFERRED):
            return
        replies = Replies()
        for ticket in all_of(owner):
            settle(ticket, None, closed_error(), replies)
        self.flush(replies)
