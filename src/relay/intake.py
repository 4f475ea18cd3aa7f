"""Intake: from an item and its keywords to a ticket with a place.

Pure checks first, on the caller's thread, so that what is wrong is raised by the call; then a place in an identical
run, in the queue, or in the line for room.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, Generic, TypeVar

from relay.clock import limit_ns
from relay.desk import Desk
from relay.errors import DeadlineExceeded, Overloaded, TooLarge
from relay.identity import intern_params, size_of
from relay.merging import Merger
from relay.policy import BATCH, INTERACTIVE, Priority, tier
from relay.ticket import Ticket, refuse_own_thread, warn_if_on_loop

In = TypeVar("In")
Out = TypeVar("Out")


class Intake(Generic[In, Out]):
    """Makes tickets for one desk, and places them.

    Args:
        desk: Where they go.
        merger: Finds runs to share; None where nothing is shared.

    Attributes:
        most_mapped: Places that one `map` may hold.
        place: Give a ticket a place. False if there is none; raises Closed.
        place_all: Give all of several tickets a place, or none of them.
    """

    def __init__(self, desk: Desk, merger: Merger | None) -> None:
        self._desk = desk
        self._now_ns = desk.clock.now_ns
        self._check = desk.tokenizer.check if desk.tokenizer is not None else None
        self._most_size = desk.limits.max_batch_tokens if desk.tokenizer is None else None
        self.most_mapped = max(1, desk.limits.max_queue // 2)
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
        if deadline is not None and (limit := limit_ns(deadline, "deadline")) is not None:
            if limit == 0:
                raise DeadlineExceeded(
                    "a deadline of 0 s has passed before anything could start; give the request some time"
                )
            ticket._deadline_ns = ticket._arrival_ns + limit
        if self._most_size is not None:
            ticket.size = size_of(item)
            if ticket.size > self._most_size:
                raise TooLarge(
                    f"the item's size is {ticket.size}, but a batch may come to at most "
                    f"max_batch_tokens={self._most_size}; split it"
                )
        return ticket

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

    def submit_waiting(self, item: In, timeout: float | None, **request: Any) -> Ticket[Out]:
        """Make a ticket and place it, blocking until there is room.

        Raises:
            Overloaded: There was none within `timeout` seconds.
        """
        limit, until_ns = self.limits(timeout)
        ticket = self.ticket_of(item, **request)
        if self.place(ticket):
            return ticket
        refuse_own_thread(self._desk, "waiting for room")
        warn_if_on_loop(f"waiting for room in {self._desk.name!r}", "use run_async() or map_async()")
        while limit != 0 and self._desk.room.wait(self._desk.key(ticket), until_ns):
            if self._desk.admit(ticket, claim=True):
                return ticket
        raise self._no_room(timeout)

    async def submit_waiting_async(self, item: In, timeout: float | None, **request: Any) -> Ticket[Out]:
        """As `submit_waiting`, without blocking the loop."""
        ticket = self.ticket_of(item, **request)
        if not self.place(ticket):
            await self.wait_for_place_async(ticket, timeout)
        return ticket

    async def wait_for_place_async(self, ticket: Ticket[Out], timeout: float | None) -> None:
        """Wait for room for a ticket that found none, without blocking the loop. Raises as `submit_waiting`."""
        limit, until_ns = self.limits(timeout)
        while limit != 0 and await self._desk.room.wait_async(self._desk.key(ticket), until_ns):
            if self._desk.admit(ticket, claim=True):
                return
        raise self._no_room(timeout)

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

    def _no_room(self, timeout: float | None) -> Overloaded:
        error = self._desk.refusal()
        error.add_note(f"waited for room for timeout={timeout} s")
        return error


def _refuse_unknown(request: Mapping[str, Any]) -> None:
    unknown = request.keys() - {"priority", "deadline", "tenant", "params"}
    if unknown:
        raise TypeError(
            f"unexpected keyword arguments: {', '.join(sorted(unknown))}; the model's own go into params={{...}}"
        )


def check_model(model: object) -> None:
    """Refuse what cannot be a model.

    Raises:
        TypeError: It cannot be called, or is a coroutine or generator function.
    """
    if not callable(model):
        raise TypeError(
            f"model must be callable, got {type(model).__name__}; pass a function or an object with __call__"
        )
    for function in (model, type(model).__call__):
        if iscoroutinefunction(function):
            raise TypeError(
                "coroutine models are not supported yet; pass a plain function, which runs on the relay's own thread"
            )
        if isgeneratorfunction(function) or isasyncgenfunction(function):
            raise TypeError(
                "a generator cannot be a model, for streams are not supported; return a list with one row for each item"
            )
