"""Tickets: what a caller holds until its answer is there.

A ticket may be used from any thread and any event loop, by several waiters at once. It owns its outcome, which is set
exactly once: whoever takes the ticket out of the set of open tickets (one atomic step) settles it, all others come too
late. A waiter enters itself first and looks at `_done` second, the settler sets `_done` first and takes the waiters
second, so no waiter is missed and none needs a lock.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from relay.clock import NS, Clock, limit_ns
from relay.errors import RequestCancelled
from relay.identity import Params

log = logging.getLogger("relay")

Out = TypeVar("Out")
_Loop = asyncio.AbstractEventLoop
_Waiter = tuple[_Loop, "asyncio.Future[Any]"] | Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Where a request's time went, in seconds.

    Attributes:
        prepare: From submit until it was ready to run (tokenised); 0 where there is nothing to prepare.
        queue: From then until it was chosen for a batch.
        batch: From then until the model was called: padding, copying.
        run: The model call.
        total: From submit until the answer was handed out.
        batch_size: Members of its batch.
    """

    prepare: float
    queue: float
    batch: float
    run: float
    total: float
    batch_size: int


class Run:
    """The times of one batch, shared by its members' tickets."""

    __slots__ = ("committed_ns", "ended_ns", "size", "started_ns")

    def __init__(self, committed_ns: int, size: int) -> None:
        self.committed_ns = committed_ns
        self.started_ns = committed_ns
        self.ended_ns = committed_ns
        self.size = size


class Desk(Protocol):
    """What a ticket needs of whoever made it."""

    clock: Clock
    open: set[Ticket[Any]]

    def cancel(self, ticket: Ticket[Any]) -> bool: ...


class Ticket(Generic[Out]):
    """The answer to come of one request: awaitable, and usable from plain threads.

    Attributes:
        priority: 0 (most urgent) to 255.
        tenant: Whoever it was submitted for.
        size: What it counts for in a batch: its input ids, or the item's size. 1 before it is known.
    """

    # Defaults on the class: a request sets only what differs, and most differ in little.
    tenant: str | None = None
    size = 1
    _deadline_ns = -1
    _params: Params | None = None
    _group = 0
    _content: str | bytes | None = None
    _handle = -1
    _ready_ns = 0
    _followers: list[Ticket[Any]] | None = None
    _times: tuple[int, int] | None = None  # of a leader, once others have joined: their last and first deadline
    _done = False
    _value: Any = None
    _error: BaseException | None = None
    _run: Run | None = None

    def __init__(self, desk: Desk, item: Any, priority: int, arrival_ns: int) -> None:
        self._desk = desk
        self._item = item
        self.priority = priority
        self._arrival_ns = arrival_ns
        self._waiters: list[_Waiter] = []

    def __await__(self) -> Generator[Any, None, Out]:
        """Wait for the answer. Cancelling the awaiting task leaves the request alone; see `cancel`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Out] = loop.create_future()
        self._attach((loop, future))
        return future.__await__()

    def result(self, timeout: float | None = None) -> Out:
        """Block until the answer is there.

        Args:
            timeout: Seconds to wait at most; None waits without limit. When it runs out the request itself goes on.

        Raises:
            TimeoutError: The timeout ran out.
            Exception: Whatever the request ended with.
        """
        self._wait(timeout)
        if self._error is not None:
            raise self._error
        return cast("Out", self._value)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Block until the request has ended; its error, or None if it has a result.

        Raises:
            TimeoutError: The timeout ran out.
        """
        self._wait(timeout)
        return self._error

    def done(self) -> bool:
        """True once the request has ended, in whatever way."""
        return self._done

    def cancel(self) -> bool:
        """Give up the request: its waiters get `RequestCancelled`, and queued work is never run.

        Returns:
            False if it had ended already.
        """
        return self._desk.cancel(self)

    def add_done_callback(self, callback: Callable[[Ticket[Out]], object]) -> None:
        """Have ``callback(ticket)`` called when the request has ended: at once if it has, else from the thread that
        ends it. Keep it short."""
        self._attach(partial(callback, self))

    @property
    def timing(self) -> Timing | None:
        """Where the time went; None unless the request was run."""
        run = self._run
        if run is None or not self._done:
            return None
        # Someone who joined a run under way waited for less than all of it.
        arrival = self._arrival_ns
        ready = max(arrival, self._ready_ns)
        chosen = max(ready, run.committed_ns)
        started = max(chosen, run.started_ns)
        ended = max(started, run.ended_ns)
        return Timing(
            prepare=(ready - arrival) / NS,
            queue=(chosen - ready) / NS,
            batch=(started - chosen) / NS,
            run=(ended - started) / NS,
            total=(ended - arrival) / NS,
            batch_size=run.size,
        )

    def __repr__(self) -> str:
        state = "pending" if not self._done else "failed" if self._error is not None else "done"
        return f"<Ticket {state} priority={self.priority}>"

    def _wait(self, timeout: float | None) -> None:
        limit = limit_ns(timeout, "timeout")
        if self._done:
            return
        warn_if_on_loop("Ticket.result()", "await the ticket instead")
        gate = threading.Lock()
        gate.acquire()
        waiter = gate.release
        self._attach(waiter)
        clock = self._desk.clock
        try:
            arrived = clock.park(gate, None if limit is None else clock.now_ns() + limit)
        except BaseException:
            self._detach(waiter)
            raise
        if not arrived and self._detach(waiter):
            raise TimeoutError(f"no answer within {timeout} s; the request goes on, and result() may be called again")

    def _attach(self, waiter: _Waiter) -> None:
        self._waiters.append(waiter)
        if self._done and self._detach(waiter):
            if isinstance(waiter, tuple):
                _finish(waiter[1], self)
            else:
                _call(waiter)

    def _detach(self, waiter: _Waiter) -> bool:
        """Take a waiter back; False if the settler has it already."""
        try:
            self._waiters.remove(waiter)
        except ValueError:
            return False
        return True


class Group(Ticket[list[Out]]):
    """The one ticket of many items: done when all of them are, with their answers in order.

    Args:
        desk: As for a ticket.
        members: The tickets of the items.
        return_exceptions: Put errors in their places instead of failing with the first of them.
    """

    def __init__(self, desk: Desk, members: Sequence[Ticket[Out]], return_exceptions: bool) -> None:
        super().__init__(desk, None, members[0].priority if members else 0, 0)
        self._members = members
        self._return_exceptions = return_exceptions
        # One entry a member. If two threads take the last two at once both may see none left; only one of them settles.
        self._left = [None] * len(members)
        desk.open.add(self)

    def count_down(self, replies: Replies) -> None:
        """One member less to wait for; the last one settles the group, within its own round of replies."""
        self._left.pop()
        if self._left:
            return
        outcomes: list[Any] = []
        for member in self._members:
            error = member._error
            if error is not None and not self._return_exceptions:
                settle(self, None, error, replies)
                return
            outcomes.append(member._value if error is None else error)
        settle(self, outcomes, None, replies)

    def settle_empty(self) -> None:
        """End a group of no members."""
        settle(self, [], None, Replies())

    def cancel(self) -> bool:
        """Cancel all members that have not ended. False if all had."""
        return any([member.cancel() for member in self._members])

    @property
    def timings(self) -> list[Timing | None]:
        """The members' timings, in order."""
        return [member.timing for member in self._members]

    @property
    def sizes(self) -> list[int]:
        """The members' sizes, in order."""
        return [member.size for member in self._members]


class Replies:
    """The waiters of the tickets settled together, woken with one call for each event loop.

    Attributes:
        calls: Waiters that are no coroutines: called one by one.
        undeliverable: Answers dropped because their loop had closed.
    """

    __slots__ = ("_loops", "calls", "undeliverable")

    def __init__(self) -> None:
        self._loops: dict[_Loop, list[tuple[asyncio.Future[Any], Ticket[Any]]]] = {}
        self.calls: list[Callable[[], object]] = []
        self.undeliverable = 0

    def add(self, loop: _Loop, future: asyncio.Future[Any], ticket: Ticket[Any]) -> None:
        """Have `future` finished, on its loop, with the outcome of `ticket`."""
        try:
            self._loops[loop].append((future, ticket))
        except KeyError:
            self._loops[loop] = [(future, ticket)]

    def flush(self) -> None:
        """Wake everyone."""
        for loop, pairs in self._loops.items():
            try:
                loop.call_soon_threadsafe(_finish_all, pairs)
            except Exception:  # it has closed; whatever it is, the others' answers must go out
                self.undeliverable += len(pairs)
        self._loops = {}
        calls, self.calls = self.calls, []
        for call in calls:
            _call(call)


def settle(
    ticket: Ticket[Any], value: Any, error: BaseException | None, replies: Replies, run: Run | None = None
) -> bool:
    """End `ticket`, unless it has ended already.

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


class Member:
    """The entry of a `Group` among the waiters of one of its members."""

    __slots__ = ("group",)

    def __init__(self, group: Group[Any]) -> None:
        self.group = group

    def __call__(self) -> None:
        replies = Replies()
        self.group.count_down(replies)
        replies.flush()


def cancelled_error() -> RequestCancelled:
    """What the waiters of a cancelled ticket get."""
    return RequestCancelled("the request was cancelled through its ticket")


_warned: set[tuple[str, int]] = set()


def warn_if_on_loop(what: str, instead: str) -> None:
    """Warn, once for each place in the caller's code, that a call blocks a running event loop."""
    if asyncio._get_running_loop() is None or "IPython" in sys.modules:
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("relay."):
        frame, level = frame.f_back, level + 1
    place = (frame.f_code.co_filename, frame.f_lineno)
    if place not in _warned:
        _warned.add(place)
        warnings.warn(f"{what} blocks the running event loop; {instead}", RuntimeWarning, stacklevel=level)


def _finish_all(pairs: list[tuple[asyncio.Future[Any], Ticket[Any]]]) -> None:
    for future, ticket in pairs:
        if not future.done():
            if ticket._error is None:
                future.set_result(ticket._value)
            else:
                future.set_exception(ticket._error)


def _finish(future: asyncio.Future[Any], ticket: Ticket[Any]) -> None:
    _finish_all([(future, ticket)])


def _call(call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException:  # CancelledError and SystemExit, too: the others' answers must go out
        log.exception("relay: a ticket's callback failed")
