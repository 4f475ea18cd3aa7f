"""The desk: admission of requests, and every ending that is not an answer.

Owns the queue, the set of open tickets, the helper threads that tokenise, the alarm for deadlines, and the line for
room. Any thread may call any method. A request is a slot of the queue, and its owner is the ticket that leads it;
followers are tickets that share its run (see `merging`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from relay._backend import arena, queue
from relay.clock import NS, Alarm, Clock
from relay.errors import DeadlineExceeded, Overloaded, TooLarge
from relay.helpers import Helpers
from relay.limits import Limits
from relay.outputs import member_error
from relay.policy import DynamicPriority
from relay.room import Room, closed_error
from relay.stats import Counts
from relay.ticket import Replies, Ticket, cancelled_error, settle
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
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        name: str,
        limits: Limits,
        policy: DynamicPriority,
        clock: Clock,
        wake: Callable[[], object],
        start: Callable[[], object],
    ) -> None:
        self.tokenizer = tokenizer
        self.name = name
        self.limits = limits
        self.clock = clock
        self.counts = Counts()
        self.open: set[Ticket[Any]] = set()
        self.closed = False
        self.refusing = False
        longest = tokenizer.max_length if tokenizer is not None else 0
        self.queue = queue.RequestQueue(limits.max_queue, limits.ids_capacity(longest) if longest else 0, longest, wake)
        self.room = Room(self.queue, clock)
        self._key = policy.key
        self._start = start
        self.started = False
        self._idle_watchers: list[Callable[[], object]] = []
        # Held for the few steps from a shared request's waiters to its times; re-entrant, for finalisers may cancel.
        self._timing = threading.RLock()
        self._alarm = Alarm(clock, f"{name}-alarm", self.queue.next_ns, self._expire)
        self._helpers: Helpers | None = None
        if tokenizer is not None:
            self._helpers = Helpers(
                limits.helpers, f"{name}-helper", limits.encode_chunk, self._tokenise, self._tokenise_failed
            )

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
        reserve = -1 if self.tokenizer is None else self.tokenizer.reserve(ticket._item)
        arrival_ns, deadline_ns = ticket._arrival_ns, ticket._deadline_ns
        self.open.add(ticket)
        handle = self.queue.admit(
            ticket,
            self._key(ticket.priority, arrival_ns, deadline_ns),
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
            self._alarm.arm(deadline_ns)
        if self._helpers is not None:
            self._helpers.put(ticket)
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
        self.open.update(tickets)
        handles = self.queue.admit_all(
            tickets,
            self.key(first),
            first._arrival_ns,
            first._deadline_ns,
            [ticket.size for ticket in tickets],
            first._group,
            None if self.tokenizer is None else [self.tokenizer.reserve(ticket._item) for ticket in tickets],
        )
        if handles is None:
            self.open.difference_update(tickets)
            return False
        for ticket, handle in zip(tickets, handles, strict=True):
            ticket._handle = handle
            if self._helpers is not None:
                self._helpers.put(ticket)
        if first._deadline_ns >= 0:
            self._alarm.arm(first._deadline_ns)
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
        return self._key(ticket.priority, ticket._arrival_ns, ticket._deadline_ns)

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
        self.queue.lift(handle, self.key(follower))
        if follower._deadline_ns >= 0 or leader._deadline_ns >= 0 or leader._times is not None:
            self._extend(leader, handle, follower._deadline_ns)
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
            self._leave(owner, ticket)
            if ticket is owner or not self._wanted(owner):
                self._drop_if_unwanted(owner, ticket._handle)
        self.flush(replies)
        return True

    def _expire(self, now_ns: int) -> None:
        """End those whose deadline has come while they were queued. On the alarm's thread."""
        replies = Replies()
        for handle, owner in self.queue.due(now_ns):
            self._end_late(owner, now_ns, replies)
            self._drop_if_unwanted(owner, handle)
        self.flush(replies)

    def dropped_late(self, owners: Sequence[Ticket[Any]], now_ns: int) -> None:
        """End the requests whose deadline had come when the lane wanted to take them; their slots are free already."""
        replies = Replies()
        for owner in owners:
            self._end_late(owner, now_ns, replies)
            for ticket in self._all_of(owner):
                self._admit_again(ticket, replies)
        self.flush(replies)

    def _admit_again(self, ticket: Ticket[Any], replies: Replies) -> None:
        """It joined in the very moment the slot was dropped, and has time left: give it a place of its own."""
        try:
            self.open.remove(ticket)  # so that nobody ends it under our hands
        except KeyError:
            return
        try:
            if self.admit(ticket):
                return
            error: BaseException = self.refusal()
        except BaseException as raised:
            error = raised
        self.open.add(ticket)
        settle(ticket, None, error, replies)

    def _end_late(self, owner: Ticket[Any], now_ns: int, replies: Replies) -> None:
        for ticket in (owner, *self._followers(owner)):
            if 0 <= ticket._deadline_ns <= now_ns:
                limit = (ticket._deadline_ns - ticket._arrival_ns) / NS
                error = DeadlineExceeded(
                    f"the request was still queued at its deadline, {limit:g} s after submit, and was not started; "
                    "give it more time, a more urgent priority, or less load"
                )
                if settle(ticket, None, error, replies):
                    self.counts.add("expired")
                    self._leave(owner, ticket)

    @staticmethod
    def _leave(owner: Ticket[Any], ticket: Ticket[Any]) -> None:
        """Take a follower that has ended off the list, so that those who come and go do not pile up there."""
        if owner._followers and ticket is not owner:
            try:
                owner._followers.remove(ticket)
            except ValueError:
                pass  # whoever closes the run has it

    def _drop_if_unwanted(self, owner: Ticket[Any], handle: int) -> None:
        """Take a request out of the queue if nobody waits for it any more."""
        if self._wanted(owner):
            self._retime(owner, handle)
            return
        self.queue.unbind(handle)
        if not self._wanted(owner):  # nobody joined before it was closed
            self.queue.cancel(handle)
            self.made_room()

    def _retime(self, owner: Ticket[Any], handle: int) -> None:
        """Set a shared request's times: looked at when its first waiter's deadline comes, dropped only at its last."""
        if owner._deadline_ns < 0 and owner._times is None:
            return
        with self._timing:
            deadlines = [ticket._deadline_ns for ticket in (owner, *self._followers(owner)) if not ticket._done]
            limited = [deadline for deadline in deadlines if deadline >= 0]
            last = max(limited) if limited and len(limited) == len(deadlines) else -1
            first = min(limited, default=-1)
            owner._times = last, first
            if not self.queue.set_deadline(handle, last, first):
                return
        if first >= 0:
            self._alarm.arm(first)

    def _extend(self, leader: Ticket[Any], handle: int, deadline_ns: int) -> None:
        """As `_retime` for one waiter more, however many there are. Those who leave do not shrink the times; the alarm
        then looks once too often, and sets them anew."""
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
            if not self.queue.set_deadline(handle, last, first):
                return
        if first >= 0:
            self._alarm.arm(first)

    @staticmethod
    def _followers(owner: Ticket[Any]) -> tuple[Ticket[Any], ...]:
        return tuple(owner._followers) if owner._followers else ()

    @staticmethod
    def _all_of(owner: Ticket[Any]) -> Iterator[Ticket[Any]]:
        """All waiters of a run that is closed to joiners; each is taken off the list, and so is ours to settle."""
        yield owner
        followers = owner._followers
        while followers:
            try:
                yield followers.pop(0)
            except IndexError:
                return  # it has just left by itself, having seen that the run is closed

    def _wanted(self, owner: Ticket[Any]) -> bool:
        return not owner._done or any(not follower._done for follower in self._followers(owner))

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

    # Helper threads.

    def _tokenise(self, tickets: list[Ticket[Any]]) -> None:
        assert self.tokenizer is not None
        wanted = []
        for ticket in tickets:
            if not self._wanted(ticket):
                self.queue.unbind(ticket._handle)
                if not self._wanted(ticket):  # nobody joined before it was closed
                    self._give_up(ticket)
                    continue
            wanted.append(ticket)
        encoded = self.tokenizer.encode([ticket._item for ticket in wanted])
        if len(encoded) != len(wanted):
            raise RuntimeError(f"the tokenizer returned {len(encoded)} results for {len(wanted)} items")
        now_ns = self.clock.now_ns()
        replies = Replies()
        for ticket, ids in zip(wanted, encoded, strict=True):
            try:
                if isinstance(ids, BaseException):
                    raise ids
                self._write(ticket, *ids, now_ns)
            except BaseException as error:
                self._fail(ticket, error, replies)
        self.made_room()
        self.flush(replies)

    def _write(self, ticket: Ticket[Any], ids: Sequence[int], split: int, now_ns: int) -> None:
        limit = self.limits.max_batch_tokens
        if limit is not None and len(ids) > limit:
            raise TooLarge(
                f"the item has {len(ids)} input ids, but a batch may have at most max_batch_tokens={limit}; shorten it"
            )
        ticket.size = len(ids)
        ticket._ready_ns = now_ns
        if not self.queue.write(ticket._handle, ids, split) and self._wanted(ticket):
            raise Overloaded(
                f"no room for {len(ids)} input ids beside those of the requests in the queue of {self.name!r}; "
                "retry later or raise Limits.max_ids",
                reason="queue_full",
            )
        self.queue.ready(ticket._handle, now_ns)

    def _fail(self, ticket: Ticket[Any], error: BaseException, replies: Replies) -> None:
        self.queue.unbind(ticket._handle)
        for member in self._all_of(ticket):
            if settle(member, None, member_error(error, 1, self.name), replies):
                self.counts.add("failed")
        self._give_up(ticket)

    def _give_up(self, ticket: Ticket[Any]) -> None:
        """Free a pinned slot: mark it dropped, then unpin it."""
        self.queue.cancel(ticket._handle)
        self.queue.ready(ticket._handle, 0)

    def _tokenise_failed(self, tickets: list[Ticket[Any]], error: BaseException) -> None:
        replies = Replies()
        for ticket in tickets:
            self._fail(ticket, error, replies)
        self.made_room()
        self.flush(replies)

    # The end.

    @property
    def healthy(self) -> bool:
        """False if a helper thread or the alarm has died."""
        return self._alarm.alive and (self._helpers is None or self._helpers.healthy)

    def on_own_thread(self) -> bool:
        """True on a helper thread and on the alarm's."""
        return self._alarm.on_own_thread() or self._helpers is not None and self._helpers.on_own_thread()

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
        if self._helpers is not None:
            self._helpers.stop()
        self._alarm.stop()

    def _send_away(self, owner: Ticket[Any]) -> None:
        if self.queue.cancel(owner._handle) not in (arena.DROP_FREED, arena.DROP_DEFERRED):
            return
        replies = Replies()
        for ticket in self._all_of(owner):
            settle(ticket, None, closed_error(), replies)
        self.flush(replies)
