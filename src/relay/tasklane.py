"""A lane of a coroutine model: its batches are tasks on the event loop of the relay's home, with no hop to a thread.

Between batches there is no task. It is woken by a call on the loop; when the loop closes, its running batch fails, and
what is queued moves on to another loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any

from relay.clock import NS
from relay.current import batch_variable
from relay.home import Home, is_running, loop_closed_error
from relay.lane import Lane
from relay.outputs import without_grad
from relay.running import Running
from relay.seat import Seat
from relay.station import Station

log = logging.getLogger("relay")


class TaskLane(Lane):
    """Runs a coroutine model.

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

    def bereft(self) -> None:
        """The loop has closed under it. On whatever thread found out; nothing of it runs any more."""
        if self._task is not None:
            self._task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is seen to here
            coroutine = self._task.get_coro()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:  # type: ignore[arg-type]
                coroutine.close()  # or Python would say that nobody awaited it
        work, self._task, self._timer, self._choosing = self.busy, None, None, False
        if self.seat is not None:
            self.seat.forsake()
        if work is not None:
            work.abandon(loop_closed_error())
            self.done(work)
        else:
            self.give_back()
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
            if self.loop is not loop:
                return
            self.loop = None
        self._move_on(loop)

    def _move_on(self, leaving: asyncio.AbstractEventLoop | None) -> None:
        """On no loop now: sleep, or go on elsewhere with what is ready."""
        requests = self.station.desk.queue
        if not requests.park(self.number, 1):
            self._home.bind(leaving, makeshift=True)
            self.wake()
        elif self.station.desk.closed and requests.unpark(self.number) == self.number:
            self._end()
        elif (loop := self._home.loop) is not None:
            self._home.resting(loop)  # another lane may have come to rest there while this one was still at work

    def _step(self) -> None:
        """Take a batch and start it, or park. On the loop."""
        loop = self.loop
        if loop is None or asyncio._get_running_loop() is not loop:
            return  # it has been woken on another since
        try:
            self._turn(loop)
        except BaseException as error:
            self._choosing = False
            seconds = self.stumble(error)
            if self._timer is None and self._task is None:
                self._timer = loop.call_later(seconds, self._step, context=Context())
            if not isinstance(error, Exception):
                raise  # the loop's own affair

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        station, number = self.station, self.number
        desk, requests = station.desk, station.desk.queue
        if self._task is not None:
            # It looks for itself when the batch is done; whoever sleeps may have the wake-up.
            if (other := requests.unpark()) >= 0:
                self._lanes[other].wake()
            return
        if self._home.loop is not loop:
            self._leave(loop)
            return
        while not desk.forked:
            now_ns = station.clock.now_ns()
            parked, until_ns = self.rest(now_ns)
            if parked:
                if desk.closed:
                    if requests.unpark(number) == number:
                        self._end()
                elif until_ns is not None:
                    self._timer = loop.call_later(
                        max(0, until_ns - now_ns) / NS, self._time_is_over, loop, context=Context()
                    )
                else:
                    self._home.resting(loop)
                return
            if self.seat is not None:
                self._task = asyncio.Task(self._run_with_token(self.seat, loop), loop=loop, context=Context())
                return
            self._choosing = True
            work = self.pick(now_ns)
            if work is not None:
                # Not by the loop's factory: a task that begins at once would end before it is noted here.
                self._task = asyncio.Task(self._run(work, loop), loop=loop, context=Context())
                self._choosing = False
                return
            self._choosing = False

    def _time_is_over(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.loop is loop and self.station.desk.queue.unpark(self.number) == self.number:
            self._timer = None
            self._step()

    async def _run_with_token(self, seat: Seat, loop: asyncio.AbstractEventLoop) -> None:
        task = asyncio.current_task()
        assert task is not None
        token = None
        try:
            token = await seat.wait_async()
        except asyncio.CancelledError:
            self._over(task, loop)
            return
        except Exception as error:
            self.fail(error)
        if token is not None:
            self._token = token
            try:
                work = self.pick(self.station.clock.now_ns())
            except Exception as error:
                self.stumble(error)
                work = None
            if work is not None:
                await self._run(work, loop)
                return
            self.give_back()
        self._over(task, loop)

    async def _run(self, work: Running, loop: asyncio.AbstractEventLoop) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            while work.open():
                batch_variable.set(work.current)
                try:
                    output = await without_grad(self.model(work.argument, **work.keywords))
                except BaseException as error:
                    if isinstance(error, GeneratorExit) and not is_running(task):
                        raise  # thrown away with its loop: the batch has been ended, or ends with its lane
                    if isinstance(error, asyncio.CancelledError) and task.cancelling():
                        raise  # the loop is about to close
                    work.failed(error)
                else:
                    self.ready = self.station.desk.queue.queued
                    work.returned(output)
                    del output
        except GeneratorExit:
            raise
        except asyncio.CancelledError:
            work.abandon(loop_closed_error())
        except BaseException as error:
            log.exception("relay: a lane of %r failed outside the model, which is a bug in relay", self.station.name)
            work.abandon(error)
        if self._task is task and not self.station.desk.forked:
            for end in (self.done, partial(Running.send, loop=loop)):
                try:
                    end(work)
                except Exception as error:
                    self.stumble(error)
            self._over(task, loop)
        else:
            work.send()

    def _over(self, task: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> None:
        """Its task has come to its end: go on with the next."""
        if self._task is not task:
            return  # it had lost its loop
        self._task = None
        if not task.cancelling() and (self._home.loop is loop or self.loop is not loop):
            self._step()
        else:
            self._leave(loop)

    def _end(self) -> None:
        self.ended.set()
        if all(lane.ended.is_set() for lane in self._home.lanes if isinstance(lane, TaskLane)):
            self._home.end()
