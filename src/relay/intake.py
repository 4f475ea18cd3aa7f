"""Intake: from an item and its keywords to a ticket with a place.

Pure checks first, on the caller's thread, so that what is wrong is raised by the call; then a place in an identical
run, in the queue, or in the line for room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from operator import index
from typing import Any, Generic, TypeVar

from relay.clock import NS, limit_ns
from relay.desk import Desk
from relay.errors import DeadlineExceeded, Expired, Overloaded, TooLarge
from relay.identity import MAX_SIZE, Groups, intern_params, size_of
from relay.merging import Merger
from relay.policy import BATCH, INTERACTIVE, Priority, tier
from relay.ticket import Group, Member, Ticket, refuse_own_thread, warn_if_on_loop

In = TypeVar("In")
Out = TypeVar("Out")


class Intake(Generic[In, Out]):
    """Makes tickets for one desk, and places them.

    Args:
        desk: Where they go.
        merger: Finds runs to share; None where nothing is shared.
        size: What an item counts for; None for its ids, or what `size_of` says.
        groups: Which requests may share a batch, where more than equal parameters decides; else None.
        deadlines_ns: For each priority, the deadline of requests that name none; empty for none.

    Attributes:
        most_mapped: Places that one `map` may hold.
        place: Give a ticket a place. False if there is none, or None; raises Closed.
        place_all: Give all of several tickets a place, or none of them.
    """

    def __init__(
        self,
        desk: Desk,
        merger: Merger | None,
        size: Callable[[In], int] | None = None,
        groups: Groups | None = None,
        deadlines_ns: Sequence[int] = (),
    ) -> None:
        self._desk = desk
        self._now_ns = desk.clock.now_ns
        self._check = desk.tokenizer.check if desk.tokenizer is not None else None
        self._most_size = desk.limits.max_batch_tokens if desk.tokenizer is None or size is not None else None
        self._own_size = size
        self._size = self._sized if size is not None else size_of if desk.tokenizer is None else None
        self._groups = groups
        self._deadlines_ns = deadlines_ns
        self.most_mapped = max(1, desk.limits.max_queue // 2)
        if groups is None and not deadlines_ns:
            desk.serve_plain(self._size, self._most_size)
        self.place = desk.admit if merger is None else merger.place
        self.place_all = desk.admit_all if merger is None else merger.place_all

    def ticket(
        self,
        item: In,
        priority: Priority | None = None,
        deadline: float | None = None,
        tenant: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Ticket[Out]:
        """Check a request and make its ticket; see `Relay.submit`."""
        level = INTERACTIVE if priority is None else tier(priority)
        ticket: Ticket[Out] = Ticket(self._desk, item, level, self._now_ns())
        if self._check is not None:
            self._check(item)
        if tenant is not None:
            ticket.tenant = tenant
        if params is not None and (shared := intern_params(params)) is not None:
            ticket._params, ticket._group = shared, shared.group
        if self._groups is not None:
            ticket._group, ticket._kept = self._groups.of(item, ticket._params)
        if deadline is not None and (limit := limit_ns(deadline, "deadline")) is not None:
            if limit == 0:
                raise DeadlineExceeded(
                    "a deadline of 0 s has passed before anything could start; give the request some time"
                )
            ticket._deadline_ns = ticket._arrival_ns + limit
        elif deadline is None and self._deadlines_ns and (limit := self._deadlines_ns[level]):
            ticket._deadline_ns = ticket._arrival_ns + limit
        if self._size is not None and (size := self._size(item)) != 1:
            if self._most_size is not None and size > self._most_size:
                raise TooLarge(
                    f"the item's size is {size}, but a batch may come to at most "
                    f"max_batch_tokens={self._most_size}; split it"
                )
            ticket.size = size
        return ticket

    def _sized(self, item: In) -> int:
        """What the user's `size` says of an item; nothing counts for less than 1.

        Raises:
            TypeError: It is not a whole number.
            ValueError: It is negative, or too large for any batch.
        """
        assert self._own_size is not None
        said = self._own_size(item)
        try:
            size = index(said)
        except TypeError:
            raise TypeError(
                f"size(item) must return a whole number, such as len(item), got {type(said).__name__}"
            ) from None
        if not 0 <= size <= MAX_SIZE:
            raise ValueError(f"size(item) must be from 0 to {MAX_SIZE}, got {size}; count in larger units")
        return size or 1

    def ticket_of(self, item: In, **request: Any) -> Ticket[Out]:
        """As `ticket`, from keywords handed through.

        Raises:
            TypeError: One of them is unknown.
        """
        _refuse_unknown(request)
        return self.ticket(item, **request)

    def check_shared(self, timeout: float | None, request: Mapping[str, Any]) -> None:
        """Check the keywords that many items share, so that what is wrong with them is not taken for an item's error.

        Raises:
            ValueError, TypeError: One of them is not valid.
        """
        _refuse_unknown(request)
        limit_ns(timeout, "timeout")
        tier(request["priority"])
        limit_ns(request.get("deadline"), "deadline")
        intern_params(request.get("params"))

    def submit_group(self, tickets: Sequence[Ticket[Out]], return_exceptions: bool) -> Ticket[list[Out]]:
        """Place tickets that were just made, all or none, under one more.

        Raises:
            TooLarge: There are more of them than the queue has places.
            Overloaded, Closed: As `Relay.submit_many`.
        """
        return self._place_group(tickets, return_exceptions, self.place_all)

    def warm_up(self, samples: Sequence[In], lanes: int, params: Mapping[str, Any] | None) -> None:
        """Run batches of growing size made of samples, as many at a time as there are lanes, so that each gets some.
        Nothing of them is merged, and they may take as long as they take.

        Raises:
            TypeError: They are no sequence.
            ValueError: There are no samples.
        """
        if isinstance(samples, str | bytes) or not hasattr(samples, "__len__"):
            raise TypeError(f"warmup needs a sequence of items, such as [item], got {type(samples).__name__}")
        if not len(samples):
            raise ValueError("warmup needs at least one sample; pass items like those to come")
        limits = self._desk.limits
        most = min(limits.max_batch_size, limits.max_queue)
        lanes = min(lanes, limits.max_queue // most)
        at = 0
        # Several of one item, for the first are slow, and few runs teach nothing.
        for size in (1, 1, 1, *(1 << power for power in range(1, most.bit_length())), most):
            groups: list[Ticket[list[Out]]] = []
            for _ in range(lanes):
                items = [samples[(at + offset) % len(samples)] for offset in range(size)]
                at += size
                tickets: list[Ticket[Out]] = [self.ticket(item, BATCH, inf, None, params) for item in items]
                groups.append(self._place_group(tickets, False, self._desk.admit_all))
            for group in groups:
                group.result()

    def _place_group(
        self,
        tickets: Sequence[Ticket[Out]],
        return_exceptions: bool,
        place_all: Callable[[Sequence[Ticket[Any]]], bool],
    ) -> Ticket[list[Out]]:
        desk = self._desk
        if len(tickets) > desk.limits.max_queue:
            raise TooLarge(
                f"{len(tickets)} items are more than max_queue={desk.limits.max_queue}; "
                "use map(), which takes any number"
            )
        group = Group(desk, tickets, return_exceptions)
        admitted = False
        try:
            desk.open.add(group)
            if not tickets:
                group.settle_empty()
                return group
            for ticket in tickets:
                ticket._arrival_ns = tickets[0]._arrival_ns
                ticket._deadline_ns = tickets[0]._deadline_ns
                ticket._waiters.append(Member(group))
            admitted = place_all(tickets)
        finally:
            if not admitted:
                desk.withdraw((group,))
        if not admitted:
            raise desk.refusal(len(tickets))
        return group

    def submit_waiting(self, item: In, timeout: float | None, **request: Any) -> Ticket[Out]:
        """Make a ticket and place it, blocking until there is room.

        Raises:
            Overloaded: There was none within `timeout` seconds.
            DeadlineExceeded: There was none by its deadline.
        """
        return self.place_waiting(self.ticket_of(item, **request), timeout)

    def place_waiting(self, ticket: Ticket[Out], timeout: float | None) -> Ticket[Out]:
        """Place a ticket, blocking until there is room. Raises as `submit_waiting`."""
        limit, until_ns = self.limits(timeout)
        if self.place(ticket):
            return ticket
        refuse_own_thread(self._desk, "waiting for room")
        warn_if_on_loop(f"waiting for room in {self._desk.name!r}", "use run_async() or map_async()")
        sooner_ns = _earlier(until_ns, ticket._deadline_ns)
        while limit != 0 and self._desk.room.wait(self._desk.key(ticket), sooner_ns):
            if self._desk.admit(ticket, claim=True):
                return ticket
        raise self._no_room(ticket, timeout, until_ns)

    async def submit_waiting_async(self, item: In, timeout: float | None, **request: Any) -> Ticket[Out]:
        """As `submit_waiting`, without blocking the loop."""
        return await self.place_waiting_async(self.ticket_of(item, **request), timeout)

    async def place_waiting_async(self, ticket: Ticket[Out], timeout: float | None) -> Ticket[Out]:
        """As `place_waiting`, without blocking the loop."""
        if not self.place(ticket):
            await self.wait_for_place_async(ticket, timeout)
        return ticket

    async def wait_for_place_async(self, ticket: Ticket[Out], timeout: float | None) -> None:
        """Wait for room for a ticket that found none, without blocking the loop. Raises as `submit_waiting`."""
        limit, until_ns = self.limits(timeout)
        sooner_ns = _earlier(until_ns, ticket._deadline_ns)
        while limit != 0 and await self._desk.room.wait_async(self._desk.key(ticket), sooner_ns):
            if self._desk.admit(ticket, claim=True):
                return
        raise self._no_room(ticket, timeout, until_ns)

    def again(self, ticket: Ticket[Out], item: In, request: Mapping[str, Any]) -> Ticket[Out] | None:
        """A new ticket, as old and with the same deadline, for a request that lost its place in the queue; None for one
        that has ended in any other way. Whoever waits for room waits again."""
        if not self._desk.has_lost_place(ticket):
            return None
        new = self.ticket_of(item, **request)
        new._arrival_ns, new._deadline_ns = ticket._arrival_ns, ticket._deadline_ns
        return new

    def failed(self, error: BaseException) -> Ticket[Out]:
        """A ticket that has ended in `error`: the place of a bad item among good ones."""
        ticket: Ticket[Out] = Ticket(self._desk, None, BATCH, 0)
        ticket._error, ticket._done = error, True
        return ticket

    def limits(self, timeout: float | None) -> tuple[int | None, int | None]:
        """A timeout in nanoseconds, and the moment when it is over.

        Raises:
            ValueError: It is negative or NaN.
        """
        if timeout is None:
            return None, None
        limit = limit_ns(timeout, "timeout")
        return limit, None if limit is None else self._now_ns() + limit

    def _no_room(self, ticket: Ticket[Out], timeout: float | None, until_ns: int | None) -> Overloaded | Expired:
        """The error of a ticket that has waited in vain until its deadline, or until `until_ns`."""
        desk = self._desk
        if ticket._deadline_ns >= 0 and (until_ns is None or ticket._deadline_ns <= until_ns):
            desk.counts.add("expired")
            limit = (ticket._deadline_ns - ticket._arrival_ns) / NS
            return DeadlineExceeded(
                f"there was no room in the queue of {desk.name!r} until the request's deadline, {limit:g} s after it "
                "came, and it was not started; give it more time, a more urgent priority, or less load"
            )
        error = desk.refusal()
        error.add_note(f"waited for room for timeout={timeout} s")
        return error


def _earlier(until_ns: int | None, deadline_ns: int) -> int | None:
    return until_ns if deadline_ns < 0 else deadline_ns if until_ns is None else min(until_ns, deadline_ns)


def _refuse_unknown(request: Mapping[str, Any]) -> None:
    unknown = request.keys() - {"priority", "deadline", "tenant", "params"}
    if unknown:
        raise TypeError(
            f"unexpected keyword arguments: {', '.join(sorted(unknown))}; the model's own go into params={{...}}"
        )
