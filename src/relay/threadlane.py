"""A lane of a plain model: its batches run on a thread of its own, which sleeps at a gate between them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from relay.clock import NS, release_once
from relay.current import batch_variable
from relay.lane import Lane
from relay.linger import Linger
from relay.running import Running
from relay.seat import Seat
from relay.station import Station

log = logging.getLogger("relay")


class ThreadLane(Lane):
    """Runs a plain model on a thread of its own."""

    def __init__(
        self,
        number: int,
        model: Callable[..., Any],
        station: Station,
        linger: Linger,
        lanes: Sequence[Lane],
        seat: Seat | None,
    ) -> None:
        super().__init__(number, model, station, linger, lanes, seat)
        self._gate = threading.Lock()
        self._gate.acquire()
        self._woken = False
        self._starting = threading.Lock()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        with self._starting:
            if self.thread is None:
                # Entered when it runs, here and by itself, whoever is first: `alive` is not to see it half started, and
                # if it cannot be started the next request tries again.
                number = f"-{self.number}" if len(self._lanes) > 1 else ""
                thread = threading.Thread(target=self._serve, name=f"{self.station.name}-lane{number}", daemon=True)
                thread.start()
                self.thread = thread

    def wake(self) -> None:
        # The gate may be open already, where a clock has opened it in this moment: what counts is what is noted.
        self._woken = True
        release_once(self._gate)

    def join(self, timeout: float | None) -> bool:
        thread = self.thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def here(self) -> bool:
        return threading.current_thread() is self.thread

    @property
    def alive(self) -> bool:
        return not self.stumbles and (self.thread is None or self.thread.is_alive())

    def _serve(self) -> None:
        self.thread = threading.current_thread()
        desk, clock = self.station.desk, self.station.clock
        while not desk.forked:  # as it is in a child that the model forked
            try:
                if self._turn():
                    return
            except BaseException as error:
                if desk.forked:
                    return
                seconds = self.stumble(error)
                clock.park(self._gate, clock.now_ns() + int(seconds * NS))

    def _turn(self) -> bool:
        """Run a batch, or sleep. True at the end."""
        desk, clock = self.station.desk, self.station.clock
        now_ns = clock.now_ns()
        self._woken = False
        parked, until_ns = self.rest(now_ns)
        if parked:
            if desk.closed and desk.queue.unpark(self.number) == self.number:
                return True
            self._sleep(until_ns)
            return False
        if self.seat is not None:
            try:
                self._token = self.seat.wait()
            except Exception as error:
                self.fail(error)
                return False
            now_ns = clock.now_ns()
        work = self.pick(now_ns) if self.seat is None or self._token is not None else None
        if work is None:
            self.give_back()
            return False
        try:
            self._run(work)
        except BaseException as error:
            log.exception("relay: a lane of %r failed outside the model, which is a bug in relay", desk.name)
            work.abandon(error)
        if not desk.forked:
            try:
                self.done(work)
            finally:
                work.send()  # last of all: who wakes needs the interpreter, and would find it taken
        return False

    def _sleep(self, until_ns: int | None) -> None:
        """Until it is woken, or the time has come and nobody has woken it."""
        clock, gate = self.station.clock, self._gate
        while not self._woken:
            if not clock.park(gate, until_ns):
                if self.station.desk.queue.unpark(self.number) == self.number:
                    break
                until_ns = None  # somebody is about to
        self.rests_until_ns = 0

    def _run(self, work: Running) -> None:
        model, requests = self.model, self.station.desk.queue
        while work.open():
            try:
                output = Context().run(_call, model, work)
            except BaseException as error:
                work.failed(error)
            else:
                self.ready = requests.queued
                work.returned(output)
                del output


def _call(model: Callable[..., Any], work: Running) -> Any:
    """Call the model with its batch, in a context of its own."""
    batch_variable.set(work.current)
    return model(work.argument, **work.keywords)
