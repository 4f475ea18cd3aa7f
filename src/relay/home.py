"""Home: the event loop that the coroutine models of one relay run on, and what becomes of them when it closes.

It is the loop of the first request, or one on a daemon thread of its own where the first request came from no loop. A
loop tells nobody that it closes; but it lets go of its timers then, so a timer that is never to ring, and that nobody
else holds, tells at once. Any thread may call any method.
"""

from __future__ import annotations

import _thread
import asyncio
import inspect
import logging
import threading
import weakref
from collections.abc import Callable
from contextvars import Context
from typing import Protocol

from relay.desk import Desk
from relay.errors import Closed

log = logging.getLogger("relay")

_NEVER_S = 1e9

_Loop = asyncio.AbstractEventLoop


class Lodger(Protocol):
    """A lane that runs on a home's loop.

    Attributes:
        loop: The loop that it has been woken on, and runs on until it sleeps; None while it is on none.
        idle: It neither runs a batch nor waits for a token.
    """

    loop: _Loop | None

    @property
    def idle(self) -> bool: ...

    def loses(self, loop: _Loop) -> bool:
        """A loop has closed. Whether it ran there: then it does nothing until `bereft` has been called."""

    def bereft(self) -> None:
        """Its loop has closed under it."""


class Home:
    """One dispatcher's.

    Args:
        desk: Whose requests.

    Attributes:
        loop: Where lanes are woken now; None before the first request, and after the loop has closed.
        own: The last loop of our own, which may have ended.
        lanes: Those that live here.
        lock: Held for the moment in which a lane changes its loop.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.loop: _Loop | None = None
        self.lanes: list[Lodger] = []
        self.lock = threading.Lock()
        self.own: OwnLoop | None = None
        self._makeshift = False
        self._bereaved = False  # a loop has closed, and no makeshift one has been left since
        self._timers: dict[_Loop, weakref.ref[asyncio.TimerHandle]] = {}  # which only their loops hold

    def bind(self, leaving: _Loop | None = None, *, makeshift: bool = False) -> _Loop:
        """The loop to wake a lane on: the present one; else the one that runs on this thread; else one of our own.

        Args:
            leaving: A loop that is about to close.
            makeshift: A loop of our own is left again when there is nothing more to do.
        """
        if self.loop is not None:
            return self.loop
        with self.lock:
            if self.loop is not None:
                return self.loop
            loop: _Loop | None = asyncio._get_running_loop()
            if loop is None or loop is leaving:
                self.own = OwnLoop(f"{self._desk.name}-loop")
                self._makeshift = makeshift or self._bereaved  # one lane may have woken another
                loop = self.own.loop
            self.loop = loop
        self._watch(loop)
        return loop

    def leave(self, loop: _Loop) -> None:
        """Wake nobody on this loop any more: it is about to close, or does not run. Batches that run there go on."""
        with self.lock:
            if self.loop is loop:
                self.loop = None
                self._desk.started = False  # the next request starts the lanes anew, on its own loop
            if self.own is not None and self.own.loop is loop:
                self.own.stop()

    def lost(self, loop: _Loop) -> None:
        """A loop has closed, perhaps in the middle of a batch."""
        if self._desk.forked:
            return
        self._bereaved = True
        self.leave(loop)
        self._unwatch(loop)
        for lane in self.lanes:
            with self.lock:
                lost = lane.loses(loop)
            if lost:
                lane.bereft()

    def resting(self, loop: _Loop) -> None:
        """A lane has nothing more to do. A makeshift loop that no lane needs now is left, so that the next request may
        choose another."""
        if self._makeshift and self.loop is loop and all(lane.idle for lane in self.lanes):
            self._makeshift = self._bereaved = False
            self.leave(loop)

    def end(self) -> None:
        """No lane will run any more."""
        for loop in list(self._timers):
            self._unwatch(loop)
        self.loop = None
        if self.own is not None:
            self.own.stop()

    def runs(self, loop: _Loop) -> bool:
        """Whether what is left on a loop is going to be run: it is running, or it is our own."""
        return (self.own is not None and loop is self.own.loop) or loop.is_running()

    def _watch(self, loop: _Loop) -> None:
        """Set the timer that tells when the loop closes. On the loop, or as soon as it turns."""
        if loop in self._timers:
            return
        if asyncio._get_running_loop() is not loop:
            loop.call_soon_threadsafe(self._watch, loop, context=Context())
            return
        timer = loop.call_later(_NEVER_S, bool, context=Context())
        self._timers[loop] = weakref.ref(timer, _gone(weakref.ref(self), loop))

    def _unwatch(self, loop: _Loop) -> None:
        timer = self._timers.pop(loop, None)
        if timer is not None:
            try:
                loop.call_soon_threadsafe(_cancel, timer, context=Context())
            except RuntimeError:
                pass  # it has closed


def _cancel(timer: weakref.ref[asyncio.TimerHandle]) -> None:
    if (handle := timer()) is not None:
        handle.cancel()


def _gone(home: weakref.ref[Home], loop: _Loop) -> Callable[[object], None]:
    """What is called when the timer of a loop is gone: in `loop.close()`, or wherever garbage happens to be collected.
    There any lock may be held, so all is left to a thread that holds none."""
    left = weakref.ref(loop)

    def gone(_: object) -> None:
        house, loop = home(), left()
        if house is None or loop is None or loop not in house._timers:
            return
        if house.loop is loop:
            house._desk.started = False
        try:
            _thread.start_new_thread(_look_after, (house, loop))
        except RuntimeError:
            pass  # the interpreter is on its way out

    return gone


def _look_after(home: Home, loop: _Loop) -> None:
    try:
        home.lost(loop)
    except BaseException:
        log.exception("relay: the lanes of a loop that has closed could not be freed, which is a bug in relay")


class OwnLoop:
    """An event loop on a daemon thread of its own."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopping = False
        try:
            self._thread.start()
        except BaseException:
            self.loop.close()
            raise

    @property
    def alive(self) -> bool:
        """True while it runs, and after it was told to end."""
        return self._stopping or self._thread.is_alive()

    def stop(self) -> None:
        """End it, from any thread. Does not wait."""
        self._stopping = True
        try:
            self.loop.call_soon_threadsafe(self.loop.stop)
        except RuntimeError:
            pass  # it has ended

    def join(self, timeout: float | None) -> bool:
        """Wait for its end; not on its own thread. True if it has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            while not self._stopping:
                try:
                    loop.run_forever()
                except BaseException:  # SystemExit of a callback that the model has left behind
                    log.exception("relay: a callback on the loop of a coroutine model has failed; the loop goes on")
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        except BaseException:
            log.exception("relay: the loop of a coroutine model could not be ended in order")
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def loop_closed_error() -> Closed:
    """What a batch ends in whose loop closed under it."""
    return Closed(
        "the event loop that the model was running on has closed in the middle of a batch; submit again from a running "
        "loop",
        reason="loop_closed",
    )


def stops_loop(error: BaseException) -> bool:
    """Whether an error is not the model's, although it came up there: Ctrl-C, or the ``sys.exit()`` of a signal's
    handler, is raised wherever the main thread happens to be. As in any task, it is for whoever runs the loop there."""
    return issubclass(type(error), KeyboardInterrupt | SystemExit) and (
        threading.current_thread() is threading.main_thread()
    )


def thrown_away(task: asyncio.Task[None]) -> None:
    """Have Python say nothing of a task that goes with its loop: it is seen to."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:  # type: ignore[arg-type]
        coroutine.close()  # or Python would say that nobody awaited it


def is_running(task: asyncio.Task[None]) -> bool:
    """Whether this code is run by that task."""
    return asyncio._get_running_loop() is not None and asyncio.current_task() is task
