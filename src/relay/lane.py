"""Lanes: each runs one batch at a time, on a thread (`threadlane`) or as tasks on an event loop (`tasklane`).

What both kinds share: when to take, when to wait for more, when to leave work to a faster lane, when to sleep. A lane
that finds nothing parks in the queue, which wakes it, and uses no processor. Members are chosen when the lane is free
and committed in the same step.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from relay._backend import lanes
from relay.pool import Token
from relay.running import Running
from relay.seat import Seat
from relay.station import Station

log = logging.getLogger("relay")


class Lane(lanes.LaneBase):
    """What the two kinds share, and is not in `lanes`."""

    number: int
    station: Station
    busy: Running | None
    seat: Seat | None
    _lanes: Sequence[Lane]
    _token: Token | None

    @property
    def until_ns(self) -> int:
        """When the present batch is expected to end."""
        began_ns, items, width = self._began
        return began_ns + int(self.station.cost.predict(items, width)[0])

    def start(self) -> None:
        """Get ready to be woken; called again and again until it has worked once."""
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

    def stumble(self, error: BaseException, running: bool = False) -> float:
        """Something has failed that is neither the model nor its batch: want of memory, or a bug. It goes on; for how
        many seconds to rest before. Until it has worked again, it is not healthy.

        Unless its batch is `running`, whoever is in it ends with the error: nobody else would end them. If not even
        that can be done they stay in `busy`, and it stumbles again after the rest."""
        name, work = self.station.name, None if running else self.busy
        self.stumbles += 1
        try:
            if work is not None:
                work.abandon(error)
                self.busy = None
                work.send()
        except Exception:
            log.exception("relay: a lane of %r could not end its batch", name)
        log.error("relay: a lane of %r failed outside the model; it goes on", name, exc_info=error)
        try:
            self.give_back()
        except Exception:
            log.exception("relay: a lane of %r could not give its token back", name)
        return min(0.01 * 2.0**self.stumbles, 1.0)

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
