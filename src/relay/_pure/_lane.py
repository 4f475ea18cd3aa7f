"""Lanes: when one takes a batch, waits for more, or sleeps. What is rarer is `relay.lane`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from relay._pure import queue
from relay._pure._station import OVERHEAD_NS

__all__ = ["LaneBase"]

FAR_NS = 2.0**61
"""No prediction is longer, so that three of them can be added."""


class LaneBase:
    """One lane; see `relay.lane`.

    Args:
        number: Which of its dispatcher's lanes it is; the queue wakes the lowest first.
        model: What it runs.
        station: What it runs it with.
        lanes: All lanes of the dispatcher, this one included.
        seat: Where it waits for a token for each batch; None if it needs none.

    Attributes:
        busy: The running batch, or None.
        ready: How many were ready when the model had returned, before anybody was answered.
        rests_until_ns: Until when it wants to wait for more; 0 while it does not.
        stumbles: How often it has failed outside the model since it last worked.
    """

    __slots__ = (
        "_began", "_gate", "_lanes", "_token", "_woken", "busy", "model", "number", "ready", "rests_until_ns", "seat",
        "station", "stumbles",
    )  # fmt: skip

    def __init__(self, number: int, model: Callable[..., Any], station: Any, lanes: Sequence[Any], seat: Any) -> None:
        self.number = number
        self.model = model
        self.station = station
        self.seat = seat
        self.busy: Any = None
        self.ready = 0
        self.rests_until_ns = 0
        self.stumbles = 0
        self._lanes = lanes
        self._token: Any = None
        self._began = 0, 0, 1  # the present batch, or the last: when, its members, their width
        self._gate = threading.Lock()  # where a thread sleeps
        self._gate.acquire()
        self._woken = False

    def pick(self, now_ns: int) -> Any:
        """Take the next batch, or None if there is none. Where that fails, the batch stays in `busy`, for `stumble`."""
        station = self.station
        # Made and noted first: from the moment in which somebody is committed there is who ends them.
        self.busy = work = station._work(station, now_ns)
        station._choose(now_ns, work)
        if work.late:
            station.desk.dropped_late(work.late, now_ns)
            work.late = []
            station.desk.made_room()
        if not work.size:
            self.busy = None
            return None
        self._began = now_ns, work.size, work.run.width
        return work

    def rest(self, now_ns: int) -> tuple[bool, int | None]:
        """Park until there is more to do. Whether it is parked, and until when it may sleep."""
        station = self.station
        requests = station.desk.queue
        ready = requests.queued
        if (plan := station.plan(now_ns, ready)) is None and ready and len(self._lanes) > 1:
            plan = self._leaves(now_ns, ready)
        if plan is None or station.desk.closed:
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

    def done(self, work: Any) -> None:
        """Its batch has ended, whatever came of it."""
        if self.busy is work:  # it may have been started anew on another loop
            self.busy = None
        self.stumbles = 0
        if self._token is not None:
            self.give_back()
        self.station.linger.before = self.ready
        self.station.ended(work)

    def give_back(self) -> None:
        """Give back the token of the batch that has ended, or that there was none for."""
        token, self._token = self._token, None
        if token is not None:
            token.release()

    def answer_ns(self, ahead: int, size: int, now_ns: int) -> int:
        """When a request would be answered, if this is the only lane; see `relay.admission`.

        Args:
            ahead: How many would come before it.
            size: What it counts for.
            now_ns: The time, and the answer while nothing has been learned.
        """
        station = self.station
        cost = station.cost
        if not cost.learned:
            return now_ns
        width = max(station.mean_width, size)
        most = station.full(width)
        free_ns, largest = now_ns, 0
        work = self.busy
        if work is not None:
            largest = work.size
            if work.run.why == queue.CLOSED_DEADLINE:
                most = min(most, largest)  # and so will the next ones be, until fewer are let in
            began_ns, items, wide = self._began
            free_ns = max(began_ns + int(min(cost.predict(items, wide)[0], FAR_NS)), now_ns)
        batches, members = ahead // most, ahead % most + 1
        if batches:
            free_ns += int(min((batches + 1) * (cost.predict(most, width)[0] + OVERHEAD_NS), FAR_NS))
            members = most
        elif free_ns > now_ns:
            members = min(most, max(members, largest))
        return free_ns + min(int(cost.finish_ns(members, width)), int(FAR_NS)) + OVERHEAD_NS

    # On a thread of its own.

    def work(self) -> None:
        """Run batches, and sleep between them, until the end."""
        while not self._turn_here():
            pass

    def _turn_here(self) -> bool:
        """Run a batch, or sleep. True at the end, and in a child that the model has forked."""
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
            if not self._sit():
                return False
            now_ns = clock.now_ns()
        work = self.pick(now_ns)
        if work is None:
            self.give_back()
            return False
        try:
            self._run_here(work)
        except BaseException as error:
            self._broken(work, error)
        if desk.forked:
            return True
        try:
            self.done(work)
        finally:
            work.send()  # last of all: who wakes needs the interpreter, and would find it taken
        return False

    def wake(self) -> None:
        """Something is ready: let it go on, from any thread. Never blocks."""
        # It may be open already, where a clock has opened it in this moment: what counts is what is noted.
        self._woken = True
        try:
            self._gate.release()
        except RecursionError:
            raise  # it is a RuntimeError as well
        except RuntimeError:
            pass

    def _sleep(self, until_ns: int | None) -> None:
        """Until it is woken, or the time has come and nobody has woken it."""
        clock = self.station.clock
        while not self._woken:
            if not clock.park(self._gate, until_ns):
                if self.station.desk.queue.unpark(self.number) == self.number:
                    break
                until_ns = None  # somebody is about to
        self.rests_until_ns = 0

    def _run_here(self, work: Any) -> None:
        while work.open():
            try:
                output = Context().run(_call, self.model, work)
            except BaseException as error:
                work.failed(error)
            else:
                self.ready = self.station.desk.queue.queued
                work.returned(output)
                del output

    # What the subclass does.

    def _leaves(self, now_ns: int, ready: int) -> tuple[int, int] | None:
        raise NotImplementedError

    def _sit(self) -> bool:
        raise NotImplementedError

    def _broken(self, work: Any, error: BaseException) -> None:
        raise NotImplementedError


def _call(model: Callable[..., Any], work: Any) -> Any:
    """Call the model with its batch, in a context of its own."""
    work._station._variable.set(work.current)
    return model(work.argument, **work.keywords)
