"""Mapping: many items through a relay, lazily, their answers in order.

Used by one caller at a time. It holds at most half the places of the queue, so that others find some; what is still
under way when it is given up is cancelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, TypeVar

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
    pending: deque[Ticket[Out]] = deque()
    try:
        for item in items:
            while len(pending) >= intake.most_mapped or pending and pending[0].done():
                answer = _answer(pending[0], return_exceptions)
                pending.popleft()  # not before it is there: a wait that is interrupted leaves it to be cancelled
                yield answer
            try:
                pending.append(intake.submit_waiting(item, timeout, **request))
            except (ValueError, TypeError) as error:
                pending.append(intake.failed(error))
        while pending:
            answer = _answer(pending[0], return_exceptions)
            pending.popleft()
            yield answer
    finally:
        for ticket in pending:
            ticket.cancel()


async def map_in_order_async(
    intake: Intake[In, Out],
    items: Iterable[In],
    return_exceptions: bool,
    timeout: float | None,
    request: dict[str, Any],
) -> AsyncIterator[Out]:
    """As `map_in_order`, for coroutines."""
    intake.check_shared(timeout, request)
    pending: deque[Ticket[Out]] = deque()
    try:
        for item in items:
            while len(pending) >= intake.most_mapped or pending and pending[0].done():
                answer = await _answer_async(pending[0], return_exceptions)
                pending.popleft()
                yield answer
            try:
                pending.append(await intake.submit_waiting_async(item, timeout, **request))
            except (ValueError, TypeError) as error:
                pending.append(intake.failed(error))
        while pending:
            answer = await _answer_async(pending[0], return_exceptions)
            pending.popleft()
            yield answer
    finally:
        for ticket in pending:
            ticket.cancel()


def _answer(ticket: Ticket[Out], return_exceptions: bool) -> Out:
    error = ticket.exception()
    if error is None or not return_exceptions:
        return ticket.result()
    return error  # type: ignore[return-value]


async def _answer_async(ticket: Ticket[Out], return_exceptions: bool) -> Out:
    try:
        return await ticket
    except Exception as error:
        if not return_exceptions:
            raise
        return error  # type: ignore[return-value]
