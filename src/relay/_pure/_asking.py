"""Asking: the short way of a request with at most a priority and a deadline, from the item to a ticket with a place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

from relay._pure._admission import TAKEN
from relay._pure._sharing import SharingBase
from relay.errors import Overloaded, Text

__all__ = ["Asking", "DeskBase", "ask", "asking"]

NS = 1_000_000_000
LONGEST_S = 4_611_686_018.0
"""A longer deadline is none, and goes the long way."""
LATEST_NS = 1 << 62
"""Later than this a time and a deadline may be more than 64 bits."""
TOO_LATE = (
    "by prediction the answer would come {:.3g} s from now, and the deadline is {:.3g} s; retry later, give it more "
    "time, or a more urgent priority"
)


class DeskBase(SharingBase):
    """What a desk is asked for with every request.

    Attributes:
        arm: Make sure that the alarm is awake by a time.
        open: The tickets that have not ended.
        crew: Numbers of the threads that answers come from: to wait there is to wait for oneself.
        refusing: It takes no more.
        closed: It has sent away who was queued.
        forked: It is the parent's, and this is a child.
        started: The lanes have been started.
        monotonic: Its clock is the machine's own, and nobody needs to be told of waits on it.
        predict_ns: When a request would be answered, from how many are ahead of it, its size and the time; None where
            nothing is refused by prediction.
        refused_late: How many were refused by prediction.
        urgent: Something more urgent than BATCH has come, ever.
        urgent_below: A request of a priority below this is told of.
        room: Its ``waiting`` callers stand in line for a place.
    """

    __slots__ = (
        "_idle_watchers", "_short", "arm", "closed", "crew", "forked", "monotonic", "open", "predict_ns",
        "refused_late", "refusing", "room", "started", "urgent", "urgent_below",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.open: set[Any] = set()
        self.crew: set[int] = set()
        self.refusing = self.closed = self.forked = self.started = self.urgent = self.monotonic = False
        self._idle_watchers: list[Callable[[], object]] = []
        self.urgent_below = self.refused_late = 0
        self.room: Any = None
        self.arm: Callable[[int], object] = bool
        self.predict_ns: Callable[[int, int, int], int] | None = None
        self._short: tuple[Any, ...] | None = None

    def open_short_way(
        self,
        ticket: type,
        queue: Any,
        now_ns: Callable[[], int],
        size: Callable[[Any], int] | None,
        most_size: int | None,
        tier: Callable[[Any], int],
        usual: int,
        time_bits: int,
        step_bits: int,
        allowances_ns: Sequence[int],
        admits: bool,
    ) -> None:
        """Have `enter` take requests. For a desk whose requests need nothing but a place, or the answer of another.

        Args:
            ticket: The class of tickets.
            queue: The `RequestQueue`.
            now_ns: Reads the clock.
            size: What an item counts for; None if each counts for 1.
            most_size: What it may count for at most; None for no limit.
            tier: Makes a number of a priority.
            usual: The priority of requests that name none.
            time_bits, step_bits: A request's key is ``priority << time_bits | ns >> step_bits``, with the time when it
                is overdue, or its deadline, if that is earlier.
            allowances_ns: For each priority, the time from its arrival until a request is overdue.
            admits: Whether those who have to be run need nothing but a place.

        Raises:
            ValueError: They are not 256.
        """
        allowances = tuple(allowances_ns)
        if len(allowances) != 256:
            raise ValueError(f"a policy's allowance_ns must name all 256 priorities, got {len(allowances)}")
        self._short = ticket, queue, now_ns, size, most_size, tier, usual, time_bits, step_bits, allowances, admits

    def enter(self, item: Any, priority: Any = None, deadline: Any = None) -> Any:
        """A ticket with a place for an item; None, and nothing has been done, where that takes more than a place.

        Args:
            item: The item.
            priority: As the user gave it.
            deadline: Likewise, in seconds.

        Raises:
            Overloaded: By prediction it would be answered too late.
            Exception: As the priority or the size of the item, or an alarm or a lane that cannot be woken.
        """
        short = self._short
        if short is None or self.refusing or not self.started:
            return None
        ticket_of, queue, now_ns, size_of, most_size, tier, level, time_bits, step_bits, allowances_ns, admits = short
        if priority is not None:
            level = tier(priority)
        limit_ns = -1
        if deadline is not None:
            if type(deadline) not in (int, float) or not 0 < deadline < LONGEST_S:
                return None
            limit_ns = max(int(deadline * NS), 1)
        arrival_ns = now_ns()
        if arrival_ns > LATEST_NS:
            return None
        deadline_ns = arrival_ns + limit_ns if limit_ns > 0 else -1
        content, digest, epoch = None, -1, self.epoch
        if self._content_of is not None and (content := self._content_of(item)) is not None:
            digest = queue.digest(content, 0, epoch)
            # An answer is kept before its run is closed, so who looks here for the run first cannot miss both.
            handle, leader = self.find_leader(queue, digest, content, None, epoch)
            if leader is not None:
                ticket = ticket_of(self, item, level, arrival_ns)
                ticket._deadline_ns = deadline_ns
                if self.join(leader, handle, digest, ticket):
                    return ticket
            if (found := self.find_result(digest, content, None, arrival_ns)) is not None:
                return _answered(ticket_of(self, None, level, arrival_ns), *found)
        if content is not None and self._texts and type(item) not in (str, bytes, int):
            return None  # it may be changed before it is run
        if not admits or self.room.waiting or level < self.urgent_below or queue.free <= 0:
            return None  # before the user's `size` is asked, which the long way does as well
        size = 1 if size_of is None else size_of(item)
        if most_size is not None and size > most_size:
            return None
        due_ns = first_ns = arrival_ns + allowances_ns[level]
        if deadline_ns >= 0:
            first_ns = min(due_ns, deadline_ns)
            if self.predict_ns is not None:
                ends_ns = self.predict_ns(queue.ahead(level), size, arrival_ns)
                if ends_ns > deadline_ns:
                    raise self.too_late(deadline_ns, ends_ns, arrival_ns)
        ticket = ticket_of(self, item, level, arrival_ns)
        ticket.size, ticket._deadline_ns = size, deadline_ns
        if content is not None:
            ticket._content, ticket._digest, ticket._epoch, ticket._followers = content, digest, epoch, []
        self.open.add(ticket)
        if self.refusing:
            # Entered first, looked second, as `drain` does it the other way round: it waits for us, or we see it.
            self.withdraw((ticket,))
            return None
        try:
            key = level << time_bits | first_ns >> step_bits
            handle = queue.admit(ticket, key, arrival_ns, deadline_ns, size, 0, -1, False, level, due_ns, digest)
            if handle == TAKEN and content is not None:
                # By somebody who came a moment ago, or has other content or enough followers.
                bound, leader = self.find_leader(queue, digest, content, None, epoch)
                if leader is not None and self.join(leader, bound, digest, ticket):
                    ticket._content = ticket._followers = None
                    return ticket
        except BaseException:
            self.withdraw((ticket,))
            raise
        if handle < 0:
            self.withdraw((ticket,))
            return None
        ticket._handle = handle
        if content is not None:
            self.led()
        if deadline_ns >= 0:
            try:
                self.arm(deadline_ns)
            except BaseException:
                self.cancel(ticket)
                raise
        if self.closed:
            self._send_away(ticket)  # close() ran between the check and the admission and did not see it
        return ticket

    # What the subclass does.

    def cancel(self, ticket: Any) -> bool:
        """End one waiter's request."""
        raise NotImplementedError

    def join(self, leader: Any, handle: int, digest: int, follower: Any) -> bool:
        """Let a request share the run of another. False if that is closed to it."""
        raise NotImplementedError

    def withdraw(self, tickets: Sequence[Any]) -> None:
        """Forget tickets that were entered as open and never admitted."""
        raise NotImplementedError

    def too_late(self, deadline_ns: int, ends_ns: int, now_ns: int, count: int = 1) -> Overloaded:
        """Count and describe a refusal by prediction."""
        with self._lock:
            self.refused_late += count
        text = Text((TOO_LATE, (ends_ns - now_ns) / NS, (deadline_ns - now_ns) / NS))
        return Overloaded(text, reason="predicted_late", retry_after=(ends_ns - deadline_ns) / NS)

    def _send_away(self, owner: Any) -> None:
        raise NotImplementedError


def _answered(ticket: Any, value: Any, size: int) -> Any:
    """A ticket that nobody knows yet, with its answer."""
    ticket._value, ticket.size, ticket._done, ticket._context = value, size, True, None
    return ticket


def ask(relay: Any, item: Any, priority: Any = None, deadline: Any = None) -> Any:
    """Block for the answer of an item.

    Args:
        relay: Whose. ``_desk`` is a `DeskBase`; ``_call(item, ticket, priority, deadline)`` blocks for the answer of
            one that has a ticket, or has none yet.
        item: The item.
        priority, deadline: As the user gave them.

    Raises:
        Exception: As ``_call``.
    """
    return relay._call(item, relay._desk.enter(item, priority, deadline), priority, deadline)


class Asking(Coroutine[Any, Any, Any]):
    """The coroutine of a request that has at most a priority and a deadline. Cancelling it cancels the request.

    Args:
        relay: Whose; it is held until the answer is there. ``_desk`` is a `DeskBase`, ``_answer(item, priority,
            deadline)`` the coroutine of any request, ``_persist(ticket, item, priority)`` that of one with a ticket,
            which may lose its place.
        item: The item.
        priority, deadline: As the user gave them.
    """

    __slots__ = ("__weakref__", "_steps")

    def __init__(self, relay: Any, item: Any, priority: Any = None, deadline: Any = None) -> None:
        self._steps: Coroutine[Any, Any, Any] = _named(_ask(relay, item, priority, deadline))

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


def asking(relay: Any, item: Any, priority: Any = None, deadline: Any = None) -> Asking:
    """What `run_async` returns: an `Asking`."""
    return Asking(relay, item, priority, deadline)


async def _ask(relay: Any, item: Any, priority: Any, deadline: Any) -> Any:
    asyncio.get_running_loop()  # before anything is asked
    ticket = relay._desk.enter(item, priority, deadline)
    if ticket is None:
        return await relay._answer(item, priority, deadline)
    return await relay._persist(ticket, item, priority)
