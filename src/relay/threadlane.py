"""A lane of a plain model: its batches run on a thread of its own, which sleeps at a gate between them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from relay.clock import NS
from relay.lane import Lane
from relay.running import Running
from relay.seat import Seat
from relay.station import Station

log = logging.getLogger("relay")


class ThreadLane(Lane):
    """Runs a plain model on a thread of its own."""

    def __init__(
        self, number: int, model: Callable[..., Any], station: Station, lanes: Sequence[Lane], seat: Seat | None
    ) -> None:
        super().__init__(number, model, station, lanes, seat)
        self._start = threading.RLock()  # re-entrant, for a signal's handler may come while the thread starts
        self._starting = False
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        with self._start:
            if self.thread is None and not self._starting:
                # Entered when it runs, here and by itself, whoever is first: `alive` is not to see it half started, and
                # if it cannot be started the next request tries again.
                number = f"-{self.number}" if len(self._lanes) > 1 else ""
                self._starting = True
                try:
                    thread = threading.Thread(target=self._serve, name=f"{self.station.name}-lane{number}", daemon=True)
                    thread.start()
                    self.thread = thread
                finally:
                    self._starting = False

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
        desk.crew.add(threading.get_ident())
        while not desk.forked:  # as it is in a child that the model forked
            try:
                self.work()
                break
            except BaseException as error:
                if desk.forked:
                    break
                while True:
                    seconds = self.stumble(error)
                    clock.park(self._gate, clock.now_ns() + int(seconds * NS))
                    if self.busy is None:
                        break
        desk.crew.discard(threading.get_ident())

    def _sit(self) -> bool:
        """Wait for a token; False if there is none to be had."""
        assert self.seat is not None
        try:
            self._token = self.seat.wait()
        except Exception as error:
            self.fail(error)
        return self._token is not None

    def _broken(self, work: Running, error: BaseException) -> None:
        """Something has failed while it ran a batch."""
        log.exception("relay: a lane of %r failed outside the model, which is a bug in relay", self.station.name)
        work.abandon(error)
