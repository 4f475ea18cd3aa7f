"""Lanes: each runs one batch at a time, on a thread of its own (here) or as tasks on an event loop (`tasklane`).

What both kinds share: when to take, when to wait for more, when to leave work to a faster lane, when to sleep. A lane
that finds nothing parks in the queue, which wakes it, and uses no processor. Members are chosen when the lane is free
and committed in the same step.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from relay.clock import release_once
from relay.current import batch_variable
from relay.linger import Linger
from relay.pool import Token
from relay.running import Running
from relay.seat import Seat
from relay.station import Station

log = logging.getLogger("relay")


class Lane:
    """What the two kinds share.

    Args:
        number: Which of its dispatcher's lanes it is; the queue wakes the lowest first.
        model: What it runs.
        station: What it runs it with.
        linger: When it waits for more, which `station` teaches.
        lanes: All lanes of the dispatcher, this one included.
        seat: Where it waits for a token for each batch; None if it needs none.

    Attributes:
        busy: The running batch, or None.
        until_ns: When that is expected to end.
        ready: How many were ready when the model had returned, before anybody was answered.
    """

    def __init__(
        self,
        number: int,
        model: Callable[..., Any],
        station: Station,
        linger: Linger,
        lanes: Sequence[Lane],
        seat: Seat | None,
    ) -> None:
        self.number = number
        self.model = model
        self.station = station
        self.linger = linger
        self._lanes = lanes
        self.seat = seat
        self._token: Token | None = None
        self.busy: Running | None = None
        self.until_ns = 0
        self.ready = 0
        self.rests_until_ns = 0

    def start(self) -> None:
        """Get ready to be woken; called again and again until it has worked once."""
        raise NotImplementedError

    def wake(self) -> None:
        """Something is ready. Never blocks."""
        raise NotImplementedError

    def dismiss(self) -> None:
        """The end has come, and it was asleep. Never blocks."""
        self.wake()

    def join(self, timeout: float | None) -> bool:
        """Wait for it to end. True if it has, or cannot be waited for here."""
        raise NotImplementedError

    def here(self) -> bool:
        """True where to wait for an answer of this lane would be to wait for oneself."""
        raise NotImplementedError

    @property
    def alive(self) -> bool:
        """True if it runs, or has not been needed yet."""
        raise NotImplementedError

    def pick(self, now_ns: int) -> Running | None:
        """Take the next batch, or None if there is none."""
        station = self.station
        taken = station.take(now_ns)
        if taken[2]:
            station.desk.dropped_late(taken[2], now_ns)
            station.desk.made_room()
        if not taken[0]:
            return None
        self.busy = work = Running(station, now_ns, taken)
        self.until_ns = now_ns + int(station.cost.predict(len(taken[0]), taken[4])[0])
        return work

    def rest(self, now_ns: int) -> tuple[bool, int | None]:
        """Park until there is more to do. Whether it is parked, and until when it may sleep."""
        station = self.station
        requests = station.desk.queue
        ready = requests.queued
        if (plan := station.plan(now_ns, ready)) is None and ready and len(self._lanes) > 1:
            plan = self._leaves(now_ns, ready)
        if plan is None:
            return (False, None) if ready else (requests.park(self.number, 1), None)
        if station.desk.closed:
            return (False, None) if ready else (requests.park(self.number, 1), None)
        wanted, until_ns = plan
        # Noted first: who comes with a deadline before that looks whether anybody sleeps for too long.
        self.rests_until_ns = until_ns
        if (deadline_ns := requests.next_ns()) is not None:
            needed_ns = 2 * station.cost.finish_ns(max(ready, 1), station.mean_width)
            if needed_ns or deadline_ns > until_ns:
                until_ns = min(until_ns, deadline_ns - needed_ns)
            else:
                until_ns = now_ns  # who knows how long a run takes: better now
            if until_ns <= now_ns:
                self.rests_until_ns = 0
                return (False, None) if ready else (requests.park(self.number, 1), None)
        if not requests.park(self.number, wanted):
            self.rests_until_ns = 0
            return False, None
        return True, until_ns

    def done(self, work: Running) -> None:
        """Its batch has ended, whatever came of it."""
        self.busy = None
        self.give_back()
        self.linger.before = self.ready
        self.station.ended(work)

    def give_back(self) -> None:
        """Give back the token of the batch that has ended, or that there was none for."""
        token, self._token = self._token, None
        if token is not None:
            token.release()

    def fail(self, error: BaseException) -> None:
        """There will be no token: whatever is ready ends with the reason."""
        work = self.pick(self.station.clock.now_ns())
        if work is not None:
            work.abandon(error)
            self.done(work)

    def _leaves(self, now_ns: int, ready: int) -> tuple[int, int] | None:
        """Whether a faster lane would have what is ready done sooner, now if it sleeps, or after its present batch: for
        how many to wait then, and until when."""
        mine = self.station
        if not mine.cost.learned:
            return None
        width = mine.mean_width
        own_ns = now_ns + mine.cost.predict(ready, width)[0]
        for lane in self._lanes:
            other = lane.station
            if other.cost is mine.cost or not other.cost.learned or ready > other.most:
                continue
            other_ns = other.cost.predict(ready, width)[0]
            if lane.busy is None:
                if now_ns + other_ns < own_ns and mine.desk.queue.unpark(lane.number) == lane.number:
                    lane.wake()
                    return ready + 1, int(own_ns - other_ns)
            elif lane.until_ns > now_ns and lane.until_ns + other_ns < own_ns:
                return ready + 1, lane.until_ns
        return None


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
        return self.thread is None or self.thread.is_alive()

    def _serve(self) -> None:
        self.thread = threading.current_thread()
        desk, clock = self.station.desk, self.station.clock
        requests = desk.queue
        while not desk.forked:  # as it is in a child that the model forked
            now_ns = clock.now_ns()
            self._woken = False
            parked, until_ns = self.rest(now_ns)
            if parked:
                if desk.closed and requests.unpark(self.number) == self.number:
                    return
                self._sleep(until_ns)
                continue
            if self.seat is not None:
                try:
                    self._token = self.seat.wait()
                except Exception as error:
                    self.fail(error)
                    continue
                now_ns = clock.now_ns()
            work = self.pick(now_ns) if self.seat is None or self._token is not None else None
            if work is None:
                self.give_back()
                continue
            try:
                self._run(work)
            except BaseException as error:
                log.exception("relay: a lane of %r failed outside the model, which is a bug in relay", desk.name)
                work.abandon(error)
            if desk.forked:
                return
            self.done(work)
            del work  # keep nothing alive while asleep

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
