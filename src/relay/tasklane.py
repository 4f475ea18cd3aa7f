"""A lane of a coroutine model: its batches are tasks on the event loop of the relay's home, with no hop to a thread.

Between batches there is no task. It is woken by a call on the loop. When the loop ends its tasks, as `asyncio.run`
does, or closes under a batch, the batch fails; what is queued moves on to another loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any

from relay.clock import NS
from relay.current import batch_variable
from relay.home import is_running, loop_closed_error, stops_loop
from relay.looplane import LoopLane
from relay.outputs import without_grad
from relay.running import Running
from relay.seat import Seat

log = logging.getLogger("relay")


class TaskLane(LoopLane):
    """Runs a coroutine model; see `LoopLane`."""

    def _step(self) -> None:
        """Take a batch and start it, or park. On the loop."""
        loop = self.loop
        if loop is None or asyncio._get_running_loop() is not loop or self._bereaved:
            return  # it has been woken on another since, or looks for itself when it has been seen to
        try:
            self._turn(loop)
        except BaseException as error:
            self._choosing = False
            seconds = self.stumble(error, running=self._task is not None)
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
        if self.busy is not None:
            raise RuntimeError("a batch that could not be run could not be ended either")
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
                self._begin(self._run_with_token(self.seat, loop), loop)
                return
            self._choosing = True
            work = self.pick(now_ns)
            if work is not None:
                self._begin(self._run(work, loop), loop)
                self._choosing = False
                return
            self._choosing = False

    def _begin(self, coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        context = Context()
        # Not by the loop's factory: a task that begins at once would end before it is noted here.
        self._task = task = asyncio.Task(coroutine, loop=loop, context=context)
        task.add_done_callback(self._has_ended, context=context)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        # What stops the loop is told by whoever runs it.
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            log.error("relay: a lane of %r has failed, which is a bug in relay", self.station.name, exc_info=error)
        if self._task is task and not self.station.desk.forked:  # as one that was cancelled before its first turn
            self._lose_task(task.get_loop())

    def _time_is_over(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.loop is loop and self.station.desk.queue.unpark(self.number) == self.number:
            self._timer = None
            self._step()

    async def _run_with_token(self, seat: Seat, loop: asyncio.AbstractEventLoop) -> None:
        task = asyncio.current_task()
        assert task is not None
        work, stop = None, None
        try:
            try:
                self._token = await seat.wait_async()
            except Exception as error:
                self.fail(error)
            if self._token is not None:
                work = self.pick(self.station.clock.now_ns())
        except GeneratorExit:
            raise  # thrown away with its loop, and seen to by `bereft`
        except asyncio.CancelledError:
            pass  # the loop is about to close
        except BaseException as error:
            self.stumble(error)
            stop = error if stops_loop(error) else None
        if work is not None:
            await self._run(work, loop)
            return
        self.give_back()
        self._over(task, loop, stop)

    async def _run(self, work: Running, loop: asyncio.AbstractEventLoop) -> None:
        task = asyncio.current_task()
        assert task is not None
        failed: BaseException | None = None
        stop: BaseException | None = None
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
                    if stops_loop(error):
                        raise
                    work.failed(error)
                else:
                    self.ready = self.station.desk.queue.queued
                    work.returned(output)
                    del output
        except GeneratorExit:
            raise
        except asyncio.CancelledError:
            failed = loop_closed_error()
        except BaseException as error:
            failed, stop = error, error if stops_loop(error) else None
            if stop is None:
                name = self.station.name
                log.exception("relay: a lane of %r failed outside the model, which is a bug in relay", name)
        mine = self._task is task and not self.station.desk.forked
        ends: list[Callable[[], object]] = [partial(self.done, work)] if mine else []
        ends.append(partial(work.send, loop if mine else None))
        if failed is not None:
            ends.insert(0, partial(work.abandon, failed))
        for end in ends:
            try:
                end()
            except BaseException as error:
                self.stumble(error, running=True)
                stop = error if stops_loop(error) else stop
        self._over(task, loop, stop)

    def _over(self, task: asyncio.Task[None], loop: asyncio.AbstractEventLoop, stop: BaseException | None) -> None:
        """Its task has come to its end: go on with the next, and have whoever runs the loop see what stops it."""
        if self._task is task and not self.station.desk.forked:  # or it had lost its loop
            self._task = None
            if not task.cancelling() and self.loop is loop is self._home.loop:
                self._step()
            else:
                self._leave(loop)
        if stop is not None:
            try:
                raise stop
            finally:
                del stop  # which holds this frame
