"""Answering: waiting for the answer of one request, in spite of a place that it loses to a more urgent one.

A new ticket, as old and with the same deadline, then waits for room again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from relay.errors import Overloaded
from relay.intake import Intake
from relay.ticket import Ticket

In = TypeVar("In")
Out = TypeVar("Out")


def wait_for(
    intake: Intake[In, Out], ticket: Ticket[Out], item: In, timeout: float | None, request: Mapping[str, Any]
) -> Out:
    """Block for the answer of a ticket that has a place.

    Args:
        intake: Where it came in.
        ticket: It is cancelled if the wait is interrupted.
        item: Its item.
        timeout: Seconds to wait for room again at most, each time.
        request: The keywords it was made with; a deadline among them is not looked at again.

    Raises:
        Exception: Whatever the request ends with; Overloaded if there was no room again.
    """
    while True:
        try:
            return ticket.result()
        except BaseException as error:
            ticket.cancel()  # without effect unless the wait itself was interrupted
            if not isinstance(error, Overloaded) or (again := intake.again(ticket, item, request)) is None:
                raise
        ticket = intake.place_waiting(again, timeout)


async def wait_for_async(
    intake: Intake[In, Out], ticket: Ticket[Out], item: In, timeout: float | None, request: Mapping[str, Any]
) -> Out:
    """As `wait_for`, for coroutines."""
    while True:
        try:
            return await ticket
        except asyncio.CancelledError:
            ticket.cancel()
            raise
        except Overloaded:
            if (again := intake.again(ticket, item, request)) is None:
                raise
        ticket = again
        await intake.place_waiting_async(ticket, timeout)
