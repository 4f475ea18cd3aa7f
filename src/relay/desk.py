"""The desk: admission of requests. How they end without an answer is in `endings`.

Any thread may call any method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relay._backend import queue
from relay.clock import Clock
from relay.endings import Endings
from relay.limits import Limits
from relay.policy import BATCH, INTERACTIVE, STEP_BITS, TIME_BITS, Policy, tier
from relay.preparing import Preparing
from relay.room import closed_error
from relay.ticket import Replies, Ticket
from relay.tokenizer import Tokenizer


class Desk(Endings):
    """Where one model's requests come in.

    Args:
        tokenizer: Turns items into input ids, or None.
        prepare: Makes of each item what the model gets, or None.
        name: For threads and messages.
        limits: Sizes.
        policy: Orders the queue.
        clock: What all time is read from.
        wake: Called with a lane's number, on any thread, when something is ready to run and that lane sleeps.
        start: Called when the first request has come.
        generation: The first generation of the handles.

    Attributes:
        here: Whether a wait on this thread would be one for itself.
        raised: Called when a request has come that is more urgent than `urgent_below`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prepare: Callable[[Any], Any] | None,
        name: str,
        limits: Limits,
        policy: Policy,
        clock: Clock,
        wake: Callable[[int], object],
        start: Callable[[], object],
        generation: int = 1,
    ) -> None:
        longest = tokenizer.max_length if tokenizer is not None else 0
        ids = limits.ids_capacity(longest) if longest else 0
        requests = queue.RequestQueue(limits.max_queue, ids, longest, wake, generation, policy.overdue_every)
        super().__init__(requests, name, limits, clock)
        self._admit = requests.admit
        self.tokenizer = tokenizer
        self._key = policy.key
        self._plain_key = type(policy).key is Policy.key
        self._allowance_ns = policy.allowance_ns
        self._start = start
        self.here: Callable[[], bool] = bool
        self.urgent_below = BATCH
        self.raised: Callable[[int], object] = self._first_urgent
        self._preparing: Preparing | None = None
        if tokenizer is not None or prepare is not None:
            self._preparing = Preparing(
                prepare, tokenizer, requests, name, limits, clock, self.counts, self.prepared, self._ready
            )

    def serve_plain(self, size: Callable[[Any], int] | None, most_size: int | None) -> None:
        """Requests with at most a priority and a deadline need nothing but a place, as far as the intake knows: let
        them have the short way, if that is so, and where it is not, the answers and the runs of others.

        Args:
            size: What an item counts for; None if each counts for 1.
            most_size: What it may count for at most; None for no limit.
        """
        self.open_short_way(
            Ticket, self.queue, self.clock.now_ns, size, most_size, tier, INTERACTIVE, TIME_BITS, STEP_BITS,
            self._allowance_ns, self._plain_key and self._preparing is None,
        )  # fmt: skip

    def admit(self, ticket: Ticket[Any], claim: bool = False, digest: int = -1) -> bool | None:
        """Give `ticket` a place of its own, that of a less urgent one if need be. False if there is none.

        Args:
            ticket: Its item must have been checked.
            claim: Use up a place promised by the room.
            digest: Others may find it under this, from its admission on; -1: they may not. None is the answer if
                another is found there already.

        Raises:
            Closed: The relay takes no more.
            Overloaded: By prediction it would be answered too late.
            OverflowError: The key of a user's policy, or its size, is too large.
        """
        level, arrival_ns, deadline_ns = ticket.priority, ticket._arrival_ns, ticket._deadline_ns
        due_ns = arrival_ns + self._allowance_ns[level]
        reserve = -1
        away: Replies | None = None
        try:
            if self.refusing:
                raise closed_error()
            if self._plain_key:  # as `Policy.key`, which would cost more than the admission
                key = level << TIME_BITS | (deadline_ns if 0 <= deadline_ns < due_ns else due_ns) >> STEP_BITS
            else:
                key = self._key(level, arrival_ns, deadline_ns, 1, ticket.tenant)  # a user's policy may raise
            if deadline_ns >= 0 and self.predict_ns is not None:
                self._refuse_late(ticket, self.predict_ns)
            if self._preparing is not None:
                reserve = self._preparing.reserve(ticket)  # and so may a tokenizer
            # What is free, or just becomes so, belongs to those in line; who displaces another brings a place along.
            if not claim and self.room.waiting and (away := self.displace(level)) is None:
                return False
            self.open.add(ticket)
            if self.refusing:  # entered first, looked second: `drain` does the reverse
                raise closed_error()
            while True:
                handle: int = self._admit(
                    ticket, key, arrival_ns, deadline_ns, ticket.size, ticket._group, reserve, claim, level, due_ns,
                    digest,
                )  # fmt: skip
                if handle >= 0 or claim or handle == queue.TAKEN or (more := self.displace(level, away)) is None:
                    break
                away = more
        except BaseException:
            self.withdraw((ticket,))
            if claim:
                self.queue.forgo()
                self.made_room()
            raise
        finally:
            if away is not None:
                self.flush(away)
        if handle < 0:
            self.withdraw((ticket,))
            return None if handle == queue.TAKEN else False
        ticket._handle = handle
        if claim and ticket._followers is not None:
            self.queue.bind(ticket._digest, handle)
            self.led()
        if deadline_ns >= 0 or self._preparing is not None or level < self.urgent_below or not self.started:
            self._see_to((ticket,))
        if self.closed:
            self._send_away(ticket)  # close() ran between the check and the admission and did not see it
        return True

    def admit_all(self, tickets: Sequence[Ticket[Any]]) -> bool:
        """Give every ticket a place, those of less urgent ones if need be, or none of them. All must be of one priority
        and one deadline.

        Raises:
            Closed: The relay takes no more.
            Overloaded: By prediction the last of them would be answered too late.
            OverflowError: As for `admit`.
        """
        if self.refusing:
            raise closed_error()
        first, count, level = tickets[0], len(tickets), tickets[0].priority
        key = self.key(first)
        if first._deadline_ns >= 0 and self.predict_ns is not None:
            self._refuse_late(first, self.predict_ns, count)
        preparing = self._preparing
        reserve = None if preparing is None else preparing.reserve_all(tickets)
        away = Replies()
        handles: list[int] | None = None
        # What is free belongs to those in line, as in `admit`.
        missing = count - (0 if self.room.waiting else self.queue.free)
        try:
            self.open.update(tickets)
            if self.refusing:
                raise closed_error()
            while handles is None and self._make_places(missing, level, away):
                handles = self.queue.admit_all(
                    tickets,
                    key,
                    first._arrival_ns,
                    first._deadline_ns,
                    [ticket.size for ticket in tickets],
                    [ticket._group for ticket in tickets],
                    reserve,
                    level,
                    first._arrival_ns + self._allowance_ns[level],
                )
                missing = max(count - self.queue.free, 1)
        finally:
            if handles is None:
                self.open.difference_update(tickets)
            self.flush(away)
        if handles is None:
            return False
        for ticket, handle in zip(tickets, handles, strict=True):
            ticket._handle = handle
        self._see_to(tickets)
        if self.closed:
            for ticket in tickets:
                self._send_away(ticket)
        return True

    def _make_places(self, count: int, level: int, replies: Replies) -> bool:
        """Displace so many, if there seem to be as many to displace."""
        if count <= 0:
            return True
        return self.may_displace(level, count) and all(self.displace(level, replies) for _ in range(count))

    def _see_to(self, tickets: Sequence[Ticket[Any]]) -> None:
        """What follows from an admission: the alarm, the helpers, the lanes. If no thread can be had, nobody is left
        behind, and the next request tries again."""
        first, preparing = tickets[0], self._preparing
        try:
            if first._deadline_ns >= 0:
                self.deadlines.arm(first._deadline_ns)
            if preparing is not None:
                if len(tickets) == 1:
                    preparing.put(first)
                else:
                    preparing.put_all(tickets)
            if first.priority < self.urgent_below:
                self.raised(first.priority)
            if not self.started:
                self._start()
                self.started = True
        except BaseException:
            for ticket in tickets:
                self.cancel(ticket)
            raise

    def _ready(self, level: int) -> None:
        """One that was being prepared may be taken from now on."""
        if level < self.urgent_below:
            self.raised(level)

    def _first_urgent(self, level: int) -> None:
        self.urgent, self.urgent_below = True, -1

    def _refuse_late(self, ticket: Ticket[Any], predict_ns: Callable[[int, int, int], int], count: int = 1) -> None:
        now_ns = self.clock.now_ns()  # it may have waited for room since it came
        ends_ns = predict_ns(self.queue.ahead(ticket.priority) + count - 1, ticket.size, now_ns)
        if ends_ns > ticket._deadline_ns:
            raise self.too_late(ticket._deadline_ns, ends_ns, now_ns, count)

    def key(self, ticket: Ticket[Any]) -> int:
        """The order of a ticket among all that wait."""
        return self._key(ticket.priority, ticket._arrival_ns, ticket._deadline_ns, 1, ticket.tenant)

    def join(self, leader: Ticket[Any], handle: int, digest: int, follower: Ticket[Any]) -> bool:
        """Let `follower` share the run of `leader`. False if it is closed to joiners by now, or has too many."""
        key, followers, level = self.key(follower), leader._followers, follower.priority
        if followers is None or len(followers) >= self.limits.max_followers:
            return False
        follower._handle = handle
        try:
            self.open.add(follower)
            followers.append(follower)
        except BaseException:
            self.open.discard(follower)  # it may be in no list, and nobody would end it
            raise
        self.queue.share(handle)
        if self.queue.find(digest)[0] != handle:
            try:
                followers.remove(follower)
                self.open.remove(follower)
                self._drop_if_unwanted(leader, handle)  # who has closed it may have left it to us
                return False
            except (ValueError, KeyError):  # whoever has closed the run has read us from the list, and answers
                self.counts.add("merged")
                return True
        self.queue.lift(handle, key, level, follower._arrival_ns + self._allowance_ns[level])
        if level < self.urgent_below:
            self.raised(level)
        if follower._deadline_ns >= 0 or leader._deadline_ns >= 0 or leader._times is not None:
            self.deadlines.extend(leader, handle, follower._deadline_ns)
        self.counts.add("merged")
        return True

    @property
    def healthy(self) -> bool:
        """False if a helper thread or the alarm has died."""
        return self.deadlines.alarm.alive and (self._preparing is None or self._preparing.helpers.healthy)

    def on_own_thread(self) -> bool:
        """True on the lane's thread, a helper's and the alarm's: whoever waits there for an answer waits for itself."""
        helping = self._preparing is not None and self._preparing.helpers.on_own_thread()
        return helping or self.here() or self.deadlines.alarm.on_own_thread()

    def close(self) -> None:
        """Take no more, and send away all who are queued or wait for room. Requests that run are left to the lane."""
        super().close()
        if self._preparing is not None:
            self._preparing.helpers.stop()
