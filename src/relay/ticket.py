"""Tickets: what a caller holds until its answer is there.

A ticket may be used from any thread and any event loop, by several waiters at once. What every request passes through
(made, awaited, settled) is part of the core, `tickets`; here is what its holder sees.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from relay._backend import tickets
from relay.clock import NS, Clock, limit_ns
from relay.errors import Closed, RequestCancelled

Out = TypeVar("Out")
Member = tickets.Member
Replies = tickets.Replies
Run = tickets.Run
let_go = tickets.let_go
settle = tickets.settle


CLOSED_BY = ("idle lane", "size", "tokens", "deadline", "params", "step", "group")
"""What closed a batch, by its number: those of the queue's ``CLOSED_`` constants in their order, and
`lanes.CLOSED_GROUP`."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Where a request's time went, in seconds: prepare + queue + batch + split + run = total.

    Attributes:
        prepare: From submit until it was ready to run (prepared, tokenised); 0 where there is nothing to prepare.
        queue: From then until it was chosen for a batch.
        batch: From then until the model was first called with that batch: padding, copying.
        run: The model call that answered it.
        total: From submit until the answer was handed out.
        batch_size: Members of that call.
        copy: The part of `batch` that went into copies to a device; 0 on the CPU.
        split: From the first call with its batch, which failed, until that call began.
        closed_by: Why the batch was not larger: ``"idle lane"`` (it took all there was), ``"size"``, ``"tokens"``,
            ``"deadline"`` (a larger one would have been too late for a member), ``"params"`` (the next one had others),
            ``"group"`` (or was of another group), ``"step"`` (a larger one would have held up urgent requests).
    """

    prepare: float
    queue: float
    batch: float
    run: float
    total: float
    batch_size: int
    copy: float = 0.0
    split: float = 0.0
    closed_by: str = CLOSED_BY[0]


class Desk(Protocol):
    """What a ticket needs of whoever made it."""

    clock: Clock
    open: set[Ticket[Any]]
    forked: bool

    def end_forked(self, ticket: Ticket[Any]) -> None: ...

    def cancel(self, ticket: Ticket[Any]) -> bool: ...

    def on_own_thread(self) -> bool: ...


class Ticket(tickets.TicketBase, Generic[Out]):
    """The answer to come of one request: awaitable, and usable from plain threads.

    Attributes:
        priority: 0 (most urgent) to 255.
        tenant: Whoever it was submitted for.
        size: What it counts for in a batch: its input ids, or the item's size. 1 before it is known.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Any, None, Out]:
            """Wait for the answer. Cancelling the awaiting task leaves the request alone; see `cancel`."""

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
        return bool(self._desk.cancel(self))

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
        first = max(chosen, run.first_ns or run.started_ns)
        started = max(first, run.started_ns)
        ended = max(started, run.ended_ns)
        return Timing(
            prepare=(ready - arrival) / NS,
            queue=(chosen - ready) / NS,
            batch=(first - chosen) / NS,
            run=(ended - started) / NS,
            total=(ended - arrival) / NS,
            batch_size=run.size,
            split=(started - first) / NS,
            closed_by=CLOSED_BY[run.why],
        )

    def __repr__(self) -> str:
        state = "pending" if not self._done else "failed" if self._error is not None else "done"
        return f"<Ticket {state} priority={self.priority}>"

    def _wait(self, timeout: float | None) -> None:
        limit = limit_ns(timeout, "timeout")
        if self._done:
            return
        refuse_own_thread(self._desk, "Ticket.result()")
        warn_if_on_loop("Ticket.result()", "await the ticket instead")
        clock = self._desk.clock
        if not tickets.wait(self, clock, None if limit is None else clock.now_ns() + limit):
            raise TimeoutError(f"no answer within {timeout} s; the request goes on, and result() may be called again")


class Group(Ticket[list[Out]]):
    """The one ticket of many items: done when all of them are, with their answers in order. Whoever makes it enters it
    among the open ones.

    Args:
        desk: As for a ticket.
        members: The tickets of the items.
        return_exceptions: Put errors in their places instead of failing with the first of them.
    """

    __slots__ = ("_left", "_members", "_return_exceptions")

    def __init__(self, desk: Desk, members: Sequence[Ticket[Out]], return_exceptions: bool) -> None:
        super().__init__(desk, None, members[0].priority if members else 0, 0)
        self._members = members
        self._return_exceptions = return_exceptions
        # One entry a member. If two threads take the last two at once both may see none left; only one of them settles.
        self._left = [None] * len(members)

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


def cancelled_error() -> RequestCancelled:
    """What the waiters of a cancelled ticket get."""
    return RequestCancelled("the request was cancelled through its ticket")


def forked_error() -> Closed:
    """What the tickets of a parent end with in its child."""
    return Closed(
        "the process has forked since the request was submitted, and only the parent gets its answer; "
        "submit it again in this process",
        reason="forked",
    )


def refuse_own_thread(desk: Desk, what: str) -> None:
    """Refuse a blocking call that would wait for the very thread it is made on."""
    if desk.on_own_thread():
        raise RuntimeError(
            f"{what} was called from the relay's own model or callback, or on its coroutine model's own event loop, "
            "where it would wait for itself; submit() and add_done_callback() do not wait, and run_async() and the "
            "other async forms wait without blocking the loop"
        )


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
