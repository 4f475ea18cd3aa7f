"""Mapping: many items through a relay, lazily, their answers in order.

Used by one caller at a time. It holds at most half the places of the queue, so that others find some; what is still
under way when it is given up is cancelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, TypeVar, cast

from relay.errors import Closed, Overloaded
from relay.intake import Intake
from relay.ticket import Ticket

In = TypeVar("In")
Out = TypeVar("Out")


def map_in_order(
    intake: Intake[In, Out],
    items: Iterable[In],
    return_exceptions: bool,
    timeout: float | None,
    request: dict[str, Any],
) -> Iterator[Out]:
    """See `Relay.map`; `request` are the keywords of every item."""
    intake.check_shared(timeout, request)
    pending: deque[tuple[Ticket[Out], In]] = deque()
    try:
        for item in items:
            while len(pending) >= intake.most_mapped or pending and pending[0][0].done():
                answer = _answer(intake, pending, return_exceptions, timeout, request)
                pending.popleft()  # not before it is there: a wait that is interrupted leaves it to be cancelled
                yield answer
            try:
                ticket = intake.submit_waiting(item, timeout, **request)
            except Exception as error:
                if not of_its_item(error):
                    raise
                ticket = intake.failed(error)
            pending.append((ticket, item))
        while pending:
            answer = _answer(intake, pending, return_exceptions, timeout, request)
            pending.popleft()
            yield answer
    finally:
        for ticket, _ in pending:
            ticket.cancel()


def of_its_item(error: Exception) -> bool:
    """Whether an error concerns one item alone, which has it in its place, and not the whole of a `map`."""
    if isinstance(error, Overloaded):
        return error.reason == "predicted_late"
    return not isinstance(error, Closed | RuntimeError)


async def map_in_order_async(
    intake: Intake[In, Out],
    items: Iterable[In],
    return_exceptions: bool,
    timeout: float | None,
    request: dict[str, Any],
) -> AsyncIterator[Out]:
    """As `map_in_order`, for coroutines."""
    intake.check_shared(timeout, request)
    pending: deque[tuple[Ticket[Out], In]] = deque()
    try:
        for item in items:
            while len(pending) >= intake.most_mapped or pending and pending[0][0].done():
                answer = await _answer_async(intake, pending, return_exceptions, timeout, request)
                pending.popleft()
                yield answer
            try:
                ticket = await intake.submit_waiting_async(item, timeout, **request)
            except Exception as error:
                if not of_its_item(error):
                    raise
                ticket = intake.failed(error)
            pending.append((ticket, item))
        while pending:
            answer = await _answer_async(intake, pending, return_exceptions, timeout, request)
            pending.popleft()
            yield answer
    finally:
        for ticket, _ in pending:
            ticket.cancel()


def _answer(
    intake: Intake[In, Out],
    pending: deque[tuple[Ticket[Out], In]],
    return_exceptions: bool,
    timeout: float | None,
    request: dict[str, Any],
) -> Out:
    """The answer of the first; one that had to make room for a more urgent request waits for room again."""
    while True:
        ticket, item = pending[0]
        error = ticket.exception()
        again = None if error is None else intake.again(ticket, item, request)
        if again is None:
            return ticket.result() if error is None or not return_exceptions else cast(Out, error)
        pending[0] = intake.place_waiting(again, timeout), item


async def _answer_async(
    intake: Intake[In, Out],
    pending: deque[tuple[Ticket[Out], In]],
    return_exceptions: bool,
    timeout: float | None,
    request: dict[str, Any],
) -> Out:
    while True:
        ticket, item = pending[0]
        try:
            return await ticket
        except Exception as error:
            if (again := intake.again(ticket, item, request)) is None:
                if not return_exceptions:
                    raise
                return cast(Out, error)
        pending[0] = await intake.place_waiting_async(again, timeout), item
