"""Lanes: each runs one batch at a time, on a thread (`threadlane`) or as tasks on an event loop (`tasklane`).

What both kinds share: when to take, when to wait for more, when to leave work to a faster lane, when to sleep. A lane
that finds nothing parks in the queue, which wakes it, and uses no processor. Members are chosen when the lane is free
and committed in the same step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

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
        ready: How many were ready when the model had returned, before anybody was answered.
        stumbles: How often it has failed outside the model since it last worked.
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
        self._began = 0, 0, 1  # the present batch, or the last: when, its members, their width
        self.ready = 0
        self.rests_until_ns = 0
        self.stumbles = 0

    @property
    def until_ns(self) -> int:
        """When the present batch is expected to end."""
        began_ns, items, width = self._began
        return began_ns + int(self.station.cost.predict(items, width)[0])

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
        """True if it runs, or has not been needed yet, and does not stumble."""
        raise NotImplementedError

    def stumble(self, error: BaseException) -> float:
        """Something has failed that is neither the model nor its batch: want of memory, or a bug. It goes on; for how
        many seconds to rest before. Until it has worked again, it is not healthy."""
        name = self.station.name
        log.error("relay: a lane of %r failed outside the model; it goes on", name, exc_info=error)
        self.stumbles += 1
        try:
            self.give_back()
        except Exception:
            log.exception("relay: a lane of %r could not give its token back", name)
        return min(0.01 * 2.0**self.stumbles, 1.0)

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
        self._began = now_ns, len(taken[0]), taken[4]
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
        if self.busy is work:  # it may have been started anew on another loop
            self.busy = None
        self.stumbles = 0
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
            try:
                self.done(work)
            finally:
                work.send()

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
