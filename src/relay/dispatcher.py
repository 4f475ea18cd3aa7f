"""The dispatcher: one model's desk and its lanes, from the first request to the end.

It starts the lanes, wakes those that the queue names, watches over the time of running batches, and ends everything.
What a lane does is in `lane`, what becomes of a batch in `running`.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from asyncio import iscoroutinefunction
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from relay._backend import backend
from relay.assemble import Assembler
from relay.clock import NS, Clock, release_once
from relay.costmodel import CostModel
from relay.desk import Desk
from relay.home import Home
from relay.isolation import Health, MemoryLimit
from relay.lane import Lane
from relay.limits import Limits
from relay.linger import Linger
from relay.policy import BATCH, MAX_PRIORITY, Policy
from relay.pool import TokenPool
from relay.seat import Seat
from relay.station import Station, Ways
from relay.stats import RelaySnapshot, SharingSnapshot
from relay.steering import Steering
from relay.tasklane import TaskLane
from relay.threadlane import ThreadLane
from relay.tokenizer import Tokenizer


class Dispatcher:
    """One model, the desk where its requests come in, and the lanes that run it.

    Args:
        models: One for each lane, the fastest first; the same one may stand there several times.
        tokenizer: Turns items into input ids, or None.
        prepare: Makes of each item what the model gets, or None.
        name: For threads, logs and notes.
        limits: Sizes.
        policy: Orders the queue.
        clock: What all time is read from.
        ways: How batches are treated.
        steering: Makes what sets the size of batches, for each model.
        linger_ns: How long the user would have a free lane wait for a full batch.
        pool: Where a lane takes a token for each batch, or None.
        generation: The first generation of the handles.
    """

    def __init__(
        self,
        models: Sequence[Callable[..., Any]],
        tokenizer: Tokenizer | None,
        prepare: Callable[[Any], Any] | None,
        name: str,
        limits: Limits,
        policy: Policy,
        clock: Clock,
        ways: Ways,
        steering: Callable[[], Steering],
        linger_ns: int = 0,
        pool: TokenPool | None = None,
        generation: int = 1,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self.desk = desk = Desk(tokenizer, prepare, name, limits, policy, clock, self._wake, self._start, generation)
        desk.here = self._on_own_thread
        if ways.run_limit_ns:
            desk.deadlines.watch_runs(self._next_run_ns, self._run_due)
        self.lanes: list[Lane] = []
        home = Home(desk)
        shared: dict[int, tuple[CostModel, Health, MemoryLimit, Steering]] = {}
        for number, model in enumerate(models):
            if id(model) not in shared:
                shared[id(model)] = CostModel(), Health(), MemoryLimit(), steering()
            known = shared[id(model)]
            assembler = Assembler(desk.queue, tokenizer) if tokenizer is not None else None
            station = Station(desk, limits, ways, assembler, *known, Linger(linger_ns))
            seat = Seat(pool, desk) if pool is not None else None
            if is_coroutine_model(model):
                self.lanes.append(TaskLane(number, model, station, self.lanes, seat, home))
            else:
                self.lanes.append(ThreadLane(number, model, station, self.lanes, seat))
        self._lingers = bool(linger_ns)
        if pool is not None or linger_ns:
            desk.urgent_below = MAX_PRIORITY + 1
            desk.raised = self._raised
        _living.add(self)

    def _start(self) -> None:
        for lane in self.lanes:
            lane.start()

    def _wake(self, number: int) -> None:
        self.lanes[number].wake()

    def _raised(self, level: int) -> None:
        """A request has come: perhaps more urgent than those that lanes wait for a token for, perhaps with less time
        than lanes want to wait for more."""
        if level < BATCH:
            self.desk.urgent = True
        if self._lingers and (next_ns := self.desk.queue.next_ns()) is not None:
            for lane in self.lanes:
                if next_ns < lane.rests_until_ns and self.desk.queue.unpark(lane.number) == lane.number:
                    lane.wake()
        for lane in self.lanes:
            if lane.seat is not None and level < lane.seat.level:
                lane.seat.lift(level)

    @property
    def alive(self) -> bool:
        """True if the lanes run, or have not been needed yet."""
        return all(lane.alive for lane in self.lanes)

    # Time.

    def _next_run_ns(self) -> int | None:
        """When the earliest running batch will have taken too long."""
        due = [due_ns for lane in self.lanes if (work := lane.busy) is not None and (due_ns := work.due_ns())]
        return min(due, default=None)

    def _run_due(self, now_ns: int) -> None:
        for lane in self.lanes:
            if (work := lane.busy) is not None and 0 < work.due_ns() <= now_ns:
                work.time_out()

    def snapshot(self) -> RelaySnapshot:
        """Counters and gauges of this moment."""
        desk, now_ns = self.desk, self._clock.now_ns()
        running = [work.run for lane in self.lanes if (work := lane.busy) is not None]
        running_ns = sum(max(now_ns - run.started_ns, 0) for run in running)
        station = self.lanes[0].station
        told = desk.counts.told(now_ns, len(self.lanes), running_ns)
        told["refused"] += desk.refused_late
        return RelaySnapshot(
            name=desk.name,
            backend=backend,
            capacity=self._limits.max_queue,
            admitted=len(desk.queue),
            queued=desk.queue.queued,
            waiting=desk.room.waiting,
            open=len(desk.open),
            prediction_error=station.cost.snapshot().error,
            limit=station.most,
            lanes=len(self.lanes),
            sharing=self._shared(told),
            **told,
        )

    def _shared(self, told: dict[str, Any]) -> SharingSnapshot:
        """What requests had of each other, by what else is told."""
        desk, results = self.desk, self.desk.results
        each = told["busy"] / told["items"] if told["items"] else 0.0
        if results is None:
            return SharingSnapshot(misses=desk.misses, joins=told["merged"], saved=each * told["merged"])
        return SharingSnapshot(
            hits=results.hits,
            misses=desk.misses,
            joins=told["merged"],
            entries=len(results),
            nbytes=results.nbytes,
            evictions=results.evictions,
            expired=results.expired,
            saved=each * (results.hits + told["merged"]),
        )

    # The end.

    def close(self) -> None:
        """Take no more, send away what is queued, and end the lanes after their present batches. Does not wait; see
        `join`."""
        self.desk.close()
        while (number := self.desk.queue.unpark()) >= 0:
            self.lanes[number].dismiss()
        for lane in self.lanes:
            if lane.seat is not None:
                lane.seat.leave()

    def retire(self) -> None:
        """Answer what has been admitted, then close: for a relay that nobody holds any more."""
        self.desk.stop_admitting()
        self.desk.when_idle(self.close)

    def drain(self, limit_ns: int | None) -> int:
        """Take no more, and wait until no request is open. Returns how many are left when the limit is over."""
        self.desk.stop_admitting()
        gate = threading.Lock()
        gate.acquire()
        watcher = partial(release_once, gate)
        self.desk.when_idle(watcher)
        try:
            self._clock.park(gate, None if limit_ns is None else self._clock.now_ns() + limit_ns)
        finally:
            self.desk.unwatch(watcher)
        return len(self.desk.open)

    async def drain_async(self, limit_ns: int | None) -> int:
        """As `drain`, for coroutines."""
        self.desk.stop_admitting()
        idle = asyncio.Event()
        watcher = partial(asyncio.get_running_loop().call_soon_threadsafe, idle.set)
        self.desk.when_idle(watcher)
        try:
            async with asyncio.timeout(None if limit_ns is None else limit_ns / NS):
                await idle.wait()
        except TimeoutError:
            pass
        finally:
            self.desk.unwatch(watcher)
        return len(self.desk.open)

    def _after_fork_in_child(self) -> None:
        """The lanes, and whatever is under way, are the parent's: nothing of it runs or is answered here."""
        _living.discard(self)
        self.desk.forsake()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the lanes to end. True if they have."""
        return all([lane.join(timeout) for lane in self.lanes])

    def _on_own_thread(self) -> bool:
        return any(lane.here() for lane in self.lanes)


def is_coroutine_model(model: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    return iscoroutinefunction(model) or iscoroutinefunction(type(model).__call__)


_living: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """At the interpreter's exit: let running batches end, for a while."""
    dispatchers = list(_living)
    for dispatcher in dispatchers:
        dispatcher.close()
    for dispatcher in dispatchers:
        dispatcher.join(dispatcher._limits.exit_grace_s)
