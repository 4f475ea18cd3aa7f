"""Tickets: the part of them that every request passes through: made, awaited, settled, woken.

Any thread may call anything here. A ticket owns its outcome, which is set exactly once: whoever takes it out of the set
of open tickets (one atomic step) settles it, all others come too late. A waiter enters itself first and looks at
`_done` second; the settler sets `_done` first and takes the waiters second. So no waiter is missed and none needs a
lock.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextvars import Context, copy_context
from typing import Any, Protocol, TypeVar, cast

from relay._pure._asking import Asking, DeskBase, ask, asking
from relay._pure._runs import Batches, Run, Waits
from relay._pure.state import as_int64

__all__ = [
    "Asking", "Batches", "DeskBase", "Member", "Replies", "Run", "TicketBase", "Waits", "answer_all", "ask",
    "asking", "call", "finish", "let_go", "settle", "wait",
]  # fmt: skip

log = logging.getLogger("relay")

Out = TypeVar("Out")
_Loop = asyncio.AbstractEventLoop
_Waiter = tuple[_Loop, "asyncio.Future[Any]"] | Callable[[], object]


class _Desk(Protocol):
    open: set[Any]
    forked: bool

    def end_forked(self, ticket: Any) -> None: ...


class TicketBase:
    """What a ticket holds, the context it was made in included.

    Args:
        desk: Whoever made it; has the set ``open`` of unsettled tickets, and is `forked` in a child.
        item: The caller's item.
        priority: 0 to 255.
        arrival_ns: When it was made.

    Attributes:
        priority: 0 (most urgent) to 255.
        tenant: Whoever it was submitted for.
        size: What it counts for in a batch: its input ids, or the item's size. 1 before it is known.
    """

    # Defaults on the class: a request sets only what differs, and most differ in little.
    priority = 0
    tenant: str | None = None
    size = 1
    _deadline_ns = -1
    _params: Any = None
    _group = 0
    _content: str | bytes | None = None
    _digest = -1  # of the content, and what else is part of its identity
    _who: Any = None  # stands for parameters and tenant
    _epoch = 0
    _handle = -1
    _ready_ns = 0
    _followers: list[Any] | None = None
    _times: tuple[int, int] | None = None  # of a leader, once others have joined: their last and first deadline
    _done = False
    _value: Any = None
    _error: BaseException | None = None
    _run: Any = None
    _prepared: Any = None
    _kept: Any = None  # keeps the number of its group from being given to another

    def __init__(self, desk: _Desk, item: Any, priority: int, arrival_ns: int) -> None:
        self._desk: Any = desk
        self._item = item
        self.priority = as_int64("priority", priority)
        self._arrival_ns = as_int64("arrival_ns", arrival_ns)
        self._waiters: list[_Waiter] = []
        self._context: Context | None = copy_context()

    def __await__(self) -> Generator[Any, None, Any]:
        """Waits for the answer. Cancelling the awaiting task leaves the request alone."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._attach((loop, future))
        return future.__await__()

    def _attach(self, waiter: _Waiter) -> None:
        """Enters a waiter: a pair of loop and future, or a callable. One that comes too late is served at once."""
        if self._desk.forked and not self._done:
            self._desk.end_forked(self)  # a thread that the child has not was in the middle of settling it
        self._waiters.append(waiter)
        if self._done and self._detach(waiter):
            if type(waiter) is tuple:
                finish([(waiter[1], self)])
            else:
                call(cast("Callable[[], object]", waiter))

    def _detach(self, waiter: _Waiter) -> bool:
        """Takes a waiter back; False if the settler has it already."""
        try:
            self._waiters.remove(waiter)
        except ValueError:
            return False
        return True


class Member:
    """The entry of a group among the waiters of one of its members: ``group.count_down(replies)`` is called."""

    __slots__ = ("group",)

    def __init__(self, group: Any) -> None:
        self.group = group

    def __call__(self) -> None:
        replies = Replies()
        self.group.count_down(replies)
        replies.flush()


class Replies:
    """The waiters of the tickets settled together, woken with one call for each event loop.

    Attributes:
        calls: Waiters that are no coroutines: called one by one.
        undeliverable: Answers dropped because their loop had closed.
    """

    __slots__ = ("_loops", "calls", "undeliverable")

    def __init__(self) -> None:
        self._loops: dict[_Loop, list[tuple[asyncio.Future[Any], TicketBase]]] = {}
        self.calls: list[Callable[[], object]] = []
        self.undeliverable = 0

    def add(self, loop: _Loop, future: asyncio.Future[Any], ticket: TicketBase) -> None:
        """Has `future` finished, on its loop, with the outcome of `ticket`."""
        pairs = self._loops.get(loop)
        if pairs is None:
            pairs = self._loops[loop] = []
        pairs.append((future, ticket))

    def flush(self, loop: _Loop | None = None) -> None:
        """Wakes everyone.

        Args:
            loop: The loop whose callback this is called from, if any: those who wait there need no wake-up of it.
        """
        loops, self._loops = self._loops, {}
        for each, pairs in loops.items():
            try:
                if each is loop:
                    finish(pairs)
                else:
                    each.call_soon_threadsafe(finish, pairs)
            except Exception:  # it has closed; whatever it is, the others' answers must go out
                self.undeliverable += len(pairs)
        calls, self.calls = self.calls, []
        for waiter in calls:
            call(waiter)


def settle(ticket: TicketBase, value: Any, error: BaseException | None, replies: Replies, run: Any = None) -> bool:
    """Ends `ticket`, unless it has ended already.

    Its context goes at once, unless others share its run. The rest stays until `let_go`: a batch that it was committed
    to may be about to read it.

    Args:
        ticket: The ticket.
        value: Its result.
        error: Or its error.
        replies: Gets the waiters; flush it afterwards.
        run: The batch it was run in.

    Returns:
        False if it had ended already; nothing is changed then.
    """
    try:
        ticket._desk.open.remove(ticket)
    except KeyError:
        return False
    ticket._value = value
    ticket._error = error
    ticket._run = run
    ticket._done = True
    if not ticket._followers:
        ticket._context = None
    waiters = ticket._waiters
    while waiters:
        try:
            waiter = waiters.pop(0)
        except IndexError:
            break  # taken back in this moment
        if type(waiter) is tuple:
            replies.add(waiter[0], waiter[1], ticket)
        elif type(waiter) is Member:
            waiter.group.count_down(replies)
        else:
            replies.calls.append(cast("Callable[[], object]", waiter))
    return True


def let_go(ticket: TicketBase) -> None:
    """Drops what only the work needed. For a ticket whose work is over, or was taken from the queue and never began."""
    ticket._item = ticket._content = ticket._who = ticket._prepared = ticket._context = ticket._kept = None


def answer_all(
    owners: Sequence[Any], rows: Sequence[Any], run: Any, replies: Replies, waits: Waits | None = None
) -> list[int]:
    """Settles the members of a batch with their rows, and lets go of what their work needed.

    Args:
        owners: Their tickets; their runs must be closed to joiners.
        rows: One result a member.
        run: The batch.
        replies: Gets the waiters; flush it afterwards.
        waits: Counts each of those settled here.

    Returns:
        The places of the members that were left alone: their row is an exception, or others share their run.
    """
    left: list[int] = []
    for index, owner in enumerate(owners):
        row = rows[index]
        # isinstance() would run a row's own __class__
        if owner._followers or issubclass(type(row), BaseException):
            left.append(index)
            continue
        let_go(owner)
        if settle(owner, row, None, replies, run) and waits is not None:
            waits.record(owner, run)
    return left


def wait(ticket: TicketBase, clock: Any, until_ns: int | None) -> bool:
    """Blocks until a ticket has ended.

    Args:
        ticket: The ticket.
        clock: What is waited on.
        until_ns: When the wait is over; None for never.

    Returns:
        False if the time came first.
    """
    gate = threading.Lock()
    gate.acquire()
    waiter = gate.release
    ticket._attach(waiter)
    try:
        arrived = clock.park(gate, until_ns)
    except BaseException:
        ticket._detach(waiter)
        raise
    return arrived or not ticket._detach(waiter)


def finish(pairs: Sequence[tuple[asyncio.Future[Any], TicketBase]]) -> None:
    """Gives futures the outcomes of their tickets; on the futures' own loop."""
    for future, ticket in pairs:
        if not future.done():
            if ticket._error is None:
                future.set_result(ticket._value)
            else:
                future.set_exception(ticket._error)


def call(waiter: Callable[[], object]) -> None:
    """Calls a waiter, whatever it raises."""
    try:
        waiter()
    except BaseException:  # CancelledError and SystemExit, too: the others' answers must go out
        log.exception("relay: a ticket's callback failed")
