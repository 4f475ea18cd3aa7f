"""Waiting for room: the line of those who want a place in a full queue.

Used only while the queue is full. Places are promised to those in line, most urgent first, so that callers who do not
wait cannot slip in before them. Any thread may call any method. A promised place is used up by the waiter's next
admission or given back by `leave`.
"""

from __future__ import annotations

import asyncio
import threading

from relay._backend import heap, queue
from relay.clock import Clock
from relay.errors import Closed, Overloaded
from relay.waiter import Waiter

MAX_WAITING = 65_536


class _Waiter(Waiter):
    """One who waits for room.

    Attributes:
        promised: A place is kept for it.
        closed: The queue was closed while it waited.
    """

    __slots__ = ("closed", "promised")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        super().__init__(loop)
        self.promised = self.closed = False


class Room:
    """The line before one queue.

    Attributes:
        waiting: How many stand in line; read without a lock to skip the line when nobody does.
    """

    def __init__(self, requests: queue.RequestQueue, clock: Clock) -> None:
        self._requests = requests
        self._clock = clock
        self._lock = threading.RLock()  # re-entrant, for a coroutine that is thrown away while it waits leaves the line
        self._waiters: dict[int, _Waiter] = {}
        self._heap = heap.PriorityHeap(MAX_WAITING)
        self._spare: list[int] = []  # places given back; those from _fresh on have never been used
        self._fresh = 0
        self._closed = self._forked = False
        self.waiting = 0

    def wait(self, key: int, until_ns: int | None) -> bool:
        """Block until a place is promised. False if the time came first.

        Raises:
            Closed: The relay was closed meanwhile.
            Overloaded: Too many wait already.
        """
        waiter = self._join(key, None)
        try:
            self._clock.park(waiter.gate, until_ns)
        except BaseException:
            if self._leave(waiter):
                self._give_back()
            raise
        return self._outcome(waiter)

    async def wait_async(self, key: int, until_ns: int | None) -> bool:
        """As `wait`, for a coroutine."""
        waiter = self._join(key, asyncio.get_running_loop())
        limit = None if until_ns is None else max(0.0, (until_ns - self._clock.now_ns()) / 1e9)
        try:
            async with asyncio.timeout(limit):  # wait_for() may swallow a cancel that comes together with the wake-up
                await waiter.future
        except TimeoutError:
            pass
        except BaseException:
            if self._leave(waiter):
                self._give_back()
            raise
        return self._outcome(waiter)

    def grant(self) -> None:
        """Promise the places that are free to those in line."""
        while self.waiting:
            with self._lock:
                if not len(self._heap) or not self._requests.promise():
                    return
                waiter = self._waiters.pop(self._heap.pop())
                self._drop(waiter)
                waiter.promised = True
            if not waiter.wake() and self._leave(waiter):
                self._requests.forgo()

    def close(self) -> None:
        """Send everyone away."""
        with self._lock:
            self._closed = True
            waiters = list(self._waiters.values())
            for waiter in waiters:
                waiter.closed = True
                self._heap.remove(waiter.index)
                self._drop(waiter)
            self._waiters.clear()
        for waiter in waiters:
            waiter.wake()

    def forsake(self) -> None:
        """In a child after a fork: those in line are the parent's. A coroutine of theirs that is thrown away here finds
        a fresh lock, and gives nothing back. Takes no lock."""
        self._lock = threading.RLock()
        self._closed = self._forked = True
        self._waiters.clear()
        self.waiting = 0

    def _join(self, key: int, loop: asyncio.AbstractEventLoop | None) -> _Waiter:
        waiter = _Waiter(loop)
        with self._lock:
            if self._closed:
                raise closed_error()
            if self.waiting == MAX_WAITING:
                raise Overloaded(
                    f"{MAX_WAITING} callers already wait for room in the queue; retry later or slow down",
                    reason="queue_full",
                )
            if not self._spare:
                self._spare.append(self._fresh)
                self._fresh += 1
            waiter.index = self._spare.pop()
            self._waiters[waiter.index] = waiter
            self._heap.push(key, waiter.index)
            self.waiting += 1
        # A place may have become free between the refusal and now; whoever freed it saw nobody in line.
        self.grant()
        return waiter

    def _drop(self, waiter: _Waiter) -> None:
        self._spare.append(waiter.index)
        self.waiting -= 1

    def _leave(self, waiter: _Waiter) -> bool:
        """Leave the line. True, once, if a place had been promised, which is now the caller's."""
        with self._lock:
            if self._waiters.get(waiter.index) is waiter:
                del self._waiters[waiter.index]
                self._heap.remove(waiter.index)
                self._drop(waiter)
            promised, waiter.promised = waiter.promised, False
            return promised

    def _outcome(self, waiter: _Waiter) -> bool:
        if self._leave(waiter):
            return True
        if waiter.closed:
            raise closed_error()
        return False

    def _give_back(self) -> None:
        if self._forked:
            return
        self._requests.forgo()
        self.grant()


def closed_error() -> Closed:
    """The error for anything asked of a closed relay."""
    return Closed("the relay is closed and takes no more requests; make a new one")
