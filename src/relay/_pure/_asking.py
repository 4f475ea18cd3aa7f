"""Asking: the short way of a request that asks for nothing special, from the item to a ticket with a place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

__all__ = ["Asking", "DeskBase", "ask"]


class DeskBase:
    """What a desk is asked for with every request.

    Attributes:
        open: The tickets that have not ended.
        crew: Numbers of the threads that answers come from: to wait there is to wait for oneself.
        refusing: It takes no more.
        closed: It has sent away who was queued.
        forked: It is the parent's, and this is a child.
        started: The lanes have been started.
        monotonic: Its clock is the machine's own, and nobody needs to be told of waits on it.
        urgent: Something more urgent than BATCH has come, ever.
        urgent_below: A request of a priority below this is told of.
        room: Its ``waiting`` callers stand in line for a place.
    """

    __slots__ = (
        "_idle_watchers", "_short", "closed", "crew", "forked", "monotonic", "open", "refusing", "room", "started",
        "urgent", "urgent_below",
    )  # fmt: skip

    def __init__(self) -> None:
        self.open: set[Any] = set()
        self.crew: set[int] = set()
        self.refusing = self.closed = self.forked = self.started = self.urgent = self.monotonic = False
        self._idle_watchers: list[Callable[[], object]] = []
        self.urgent_below = 0
        self.room: Any = None
        self._short: tuple[Any, ...] | None = None

    def open_short_way(
        self,
        ticket: type,
        queue: Any,
        now_ns: Callable[[], int],
        size: Callable[[Any], int] | None,
        most_size: int | None,
        level: int,
        key_base: int,
        key_shift: int,
        allowance_ns: int,
    ) -> None:
        """Have `enter` admit requests. For a desk whose requests need nothing but a place.

        Args:
            ticket: The class of tickets.
            queue: The `RequestQueue`.
            now_ns: Reads the clock.
            size: What an item counts for; None if each counts for 1.
            most_size: What it may count for at most; None for no limit.
            level: The priority of requests that name none.
            key_base, key_shift: A request's key is ``key_base | due_ns >> key_shift``.
            allowance_ns: From its arrival until it is overdue.
        """
        self._short = ticket, queue, now_ns, size, most_size, level, key_base, key_shift, allowance_ns

    def enter(self, item: Any) -> Any:
        """A ticket with a place for an item without keywords; None, and nothing has been done, where that takes more
        than a place.

        Raises:
            Exception: As the size of the item, or a lane that cannot be woken.
        """
        short = self._short
        if short is None or self.refusing or not self.started or self.room.waiting:
            return None
        ticket_of, queue, now_ns, size_of, most_size, level, key_base, key_shift, allowance_ns = short
        if level < self.urgent_below:
            return None
        size = 1 if size_of is None else size_of(item)
        if most_size is not None and size > most_size:
            return None
        arrival_ns = now_ns()
        ticket = ticket_of(self, item, level, arrival_ns)
        ticket.size = size
        due_ns = arrival_ns + allowance_ns
        self.open.add(ticket)
        try:
            key = key_base | due_ns >> key_shift
            handle = queue.admit(ticket, key, arrival_ns, -1, size, 0, -1, False, level, due_ns)
        except BaseException:
            self.open.discard(ticket)
            raise
        if handle < 0:
            self.open.discard(ticket)
            return None
        ticket._handle = handle
        if self.closed:
            self._send_away(ticket)  # close() ran between the check and the admission and did not see it
        return ticket

    def _send_away(self, owner: Any) -> None:
        raise NotImplementedError


def ask(relay: Any, item: Any) -> Any:
    """Block for the answer of an item without keywords.

    Args:
        relay: Whose. ``_desk`` is a `DeskBase`; ``_call(item)`` blocks for the answer of any request,
            ``_call(item, ticket)`` for that of one with a ticket.
        item: The item.

    Raises:
        Exception: As ``_call``.
    """
    ticket = relay._desk.enter(item)
    return relay._call(item) if ticket is None else relay._call(item, ticket)


class Asking(Coroutine[Any, Any, Any]):
    """The coroutine of a request without keywords. Cancelling it cancels the request.

    Args:
        relay: Whose; it is held until the answer is there. ``_desk`` is a `DeskBase`, ``_answer(item)`` the coroutine
            of any request, ``_persist(ticket, item)`` that of one with a ticket, which may lose its place.
        item: The item.
    """

    __slots__ = ("__weakref__", "_steps")

    def __init__(self, relay: Any, item: Any) -> None:
        self._steps: Coroutine[Any, Any, Any] = _named(_ask(relay, item))

    def __getattr__(self, name: str) -> Any:
        if name in ("__name__", "__qualname__"):  # for the names of tasks
            return getattr(self._steps, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __await__(self) -> Generator[Any, None, Any]:
        return self._steps.__await__()

    def __iter__(self) -> Generator[Any, None, Any]:
        return self._steps.__await__()

    def __next__(self) -> Any:
        return self._steps.send(None)

    def send(self, value: Any) -> Any:
        """Go on."""
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        """Go on with an error."""
        return self._steps.throw(*error)

    def close(self) -> None:
        """End it. The request goes on."""
        self._steps.close()


def _named(steps: Any) -> Any:
    steps.__name__, steps.__qualname__ = "run_async", "Relay.run_async"  # said where nobody awaits it
    return steps


async def _ask(relay: Any, item: Any) -> Any:
    asyncio.get_running_loop()  # before anything is asked
    ticket = relay._desk.enter(item)
    return await (relay._answer(item) if ticket is None else relay._persist(ticket, item))
