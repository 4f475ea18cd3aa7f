"""Lanes on an event loop: where they are woken, how they leave it, and what becomes of them when it closes.

A loop tells nobody that it closes: `home` finds out. What such a lane runs is in `tasklane`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from relay.home import Home, loop_closed_error, thrown_away
from relay.lane import Lane
from relay.seat import Seat
from relay.station import Station


class LoopLane(Lane):
    """A lane on an event loop.

    Args:
        number, model, station, lanes, seat: As for a `Lane`.
        home: Where it runs.

    Attributes:
        loop: The loop that it was woken on last; None while it is on none.
        ended: Set when it will run nothing any more.
    """

    def __init__(
        self,
        number: int,
        model: Callable[..., Any],
        station: Station,
        lanes: Sequence[Lane],
        seat: Seat | None,
        home: Home,
    ) -> None:
        super().__init__(number, model, station, lanes, seat)
        self._home = home
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._choosing = False
        self._bereaved = False  # its loop has closed, and what it left there is being seen to
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ended = threading.Event()
        home.lanes.append(self)

    def start(self) -> None:
        self.wake()

    @property
    def idle(self) -> bool:  # it neither runs a batch nor waits for a token
        return self._task is None and self.busy is None and not self._choosing

    @property
    def alive(self) -> bool:
        own = self._home.own
        return not self.stumbles and (own is None or own.alive)

    def join(self, timeout: float | None) -> bool:
        home, loop, running = self._home, self.loop, asyncio._get_running_loop()
        own = home.own
        if loop is not None and not self.ended.is_set() and (not self.idle or own is not None and loop is own.loop):
            if running is loop:
                if self.idle:
                    return True
                raise RuntimeError(
                    f"Relay.close() was called on the event loop that {self.station.name!r} runs its batch on, and "
                    "would wait for itself; it takes no more requests now: use await aclose() to wait for the batch"
                )
            if home.runs(loop) and not self.ended.wait(timeout):
                return False
        return own is None or running is own.loop or own.join(timeout)

    def here(self) -> bool:
        loop = self._home.loop
        return loop is not None and asyncio._get_running_loop() is loop

    def dismiss(self) -> None:
        if self._home.loop is None and self.loop is None:
            self._end()
        else:
            self.wake()

    def wake(self) -> None:
        home = self._home
        try:
            while not self.ended.is_set():
                loop = self.loop
                if loop is None or loop is not home.loop:
                    loop = self._settle(home.bind())
                running = asyncio._get_running_loop()
                try:
                    if running is loop:
                        loop.call_soon(self._step, context=Context())
                        return
                    # One that does not run may never do so again; while there is nothing of ours on it, it is left.
                    if running is None or home.runs(loop) or not all(lane.idle for lane in home.lanes):
                        loop.call_soon_threadsafe(self._step, context=Context())
                        return
                    home.leave(loop)
                except RuntimeError:  # it has closed
                    home.lost(loop)
        except BaseException:  # no thread to be had for a loop of our own
            self.station.desk.started = False  # the next request tries again
            raise

    def loses(self, loop: asyncio.AbstractEventLoop) -> bool:
        """A loop has closed. Whether it ran there: then it does nothing until `bereft` has been called. The caller has
        the lock of its home."""
        task, lost = self._task, self.loop is loop
        if lost:
            self.loop = None
        if task is not None:
            lost = task.get_loop() is loop  # for it may have been woken on another since
        if not lost or self._bereaved:
            return False
        self._bereaved = True
        return True

    def bereft(self) -> None:
        """The loop has closed under it. On whatever thread found out; nothing of it runs any more."""
        if self._task is not None:
            thrown_away(self._task)
        self._timer, self._choosing = None, False
        if self.seat is not None:
            self.seat.forsake()
        self._lose_task(None)

    def _lose_task(self, leaving: asyncio.AbstractEventLoop | None) -> None:
        """Its task has ended, or never will, and has not seen to its batch: that fails, and it goes on elsewhere."""
        work = self.busy
        try:
            if work is None:
                self.give_back()
            else:
                work.abandon(loop_closed_error())
                self.done(work)
        finally:
            self._task, self._bereaved = None, False
        if leaving is not None:
            self._leave(leaving)
        else:
            self._move_on(None)
        if work is not None:
            work.send()  # last of all, for who is told may start this lane anew

    def _settle(self, loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
        with self._home.lock:
            self.loop = loop
        return loop

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop is about to close; this lane has nothing running there any more."""
        home = self._home
        home.leave(loop)
        with home.lock:
            left = self.loop is loop
            if left:
                self.loop = None
        if left:
            self._move_on(loop)
        else:
            self.wake()  # it was woken on another before, where it found itself at work

    def _move_on(self, leaving: asyncio.AbstractEventLoop | None) -> None:
        """On no loop now: sleep, or go on elsewhere, with what is ready."""
        requests = self.station.desk.queue
        if not requests.park(self.number, 1):
            self._home.bind(leaving, makeshift=True)
            self.wake()
        elif self.station.desk.closed and requests.unpark(self.number) == self.number:
            self._end()
        elif (loop := self._home.loop) is not None:
            self._home.resting(loop)  # another lane may have come to rest there while this one was still at work

    def _end(self) -> None:
        self.ended.set()
        if all(lane.ended.is_set() for lane in self._home.lanes if isinstance(lane, LoopLane)):
            self._home.end()

    # What the subclass does.

    def _step(self) -> None:
        """Take a batch and start it, or park. On the loop."""
        raise NotImplementedError
