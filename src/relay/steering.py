"""Steering: what a relay's lanes tell a controller of their batches, and the limit of a batch that it sets.

It has no thread and reads no clock: the lanes tell it of each batch that has ended, and read `Steering.limit` when they
choose the next. Any lane may call, in a thread or on a loop; one at a time asks the controller, and no other waits for
it. The invariant: the limit is a whole number from 1 to the largest batch, and whatever the controller or the load
raises or returns, it stays one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from relay.clock import NS, limit_ns
from relay.fork import survivors
from relay.load import Share
from relay.samples import Controller, Sample, check_whole, known, overloaded, whole

log = logging.getLogger("relay")

_FEW = 16
"""So many batches at least say how much of the work fails, however slow the model is."""


class Steering:
    """Drives the limit of a batch for the lanes of one relay.

    How often a controller is asked it says itself, in an attribute `every`: ``"batch"`` is after each, a number is
    that many seconds, at the end of a batch; None is never again, for it always wants the same. One without this
    attribute is asked every `period_s`. It may have an attribute `start`, the limit to begin with; else that is `most`.

    What a sample says: `in_use` is the mean size of the batches since the sample before, `latency` the mean time of
    those in which something completed, `completed` and `dropped` count items. So an error that comes at once never
    looks like a fast model. Requests refused at the door are in none of it: a smaller batch would only make more of
    them. (A model that refuses raises, and that is an error.) While more items fail than some always do, over the last
    `period_s` and a few batches at least, nothing widens the limit, whatever the controller wants: where batches fail
    and succeed by turns, every other sample looks like success.

    Args:
        controller: Decides. It serves this relay alone, and is called by one thread at a time.
        most: The largest batch.
        load: Utilisation, 0 to 1, such as `relay.load.device()`; None, NaN or an exception is unknown. ``"busy"`` is
            the lanes' own busy share; lanes with a backlog and nothing to do in between are always busy, at any
            limit. Without it all loads are unknown. It is called by the lane that has ended a batch, so it must be
            quick; here it is called once, for the first reading seldom is.
        period_s: Seconds between samples, and between readings of the load for a controller that is asked after each
            batch. Such a reading is told once, and in between the load is unknown: what was measured before the limit
            grew is no reason to let it grow again.
        lanes: How many lanes there are.
        name: The relay's, for the log.

    Raises:
        ValueError: `most` or `lanes` is no whole number of at least 1; `period_s` or `every` is not over 0, or endless.
        TypeError: `controller` has no `update`, or `load` cannot be called.
    """

    def __init__(
        self,
        controller: Controller,
        most: int,
        load: Callable[[], float | None] | Literal["busy"] | None = None,
        period_s: float = 0.25,
        *,
        lanes: int = 1,
        name: str = "relay",
    ) -> None:
        if isinstance(controller, type) or not callable(getattr(controller, "update", None)):
            raise TypeError(f"controller must be an object with update(sample), such as AIMD(), got {controller!r}")
        if load is not None and load != "busy" and not callable(load):
            raise TypeError(f"load must be None, 'busy' or a function that returns 0 to 1 or None, got {load!r}")
        check_whole("most", most, 1)
        check_whole("lanes", lanes, 1)
        self._controller = controller
        self._most = most
        self._load = load
        self._name = name
        self._period_ns = _period(period_s, "period_s")
        every = getattr(controller, "every", period_s)
        self.steady: bool = every is None
        """True if the limit never changes. Then `after_batch` does nothing, and need not be called."""
        each_batch = every is None or every == "batch"
        self._every_ns = 0 if each_batch else _period(every, "every")
        self._load_every_ns = self._period_ns if each_batch else self._every_ns
        self.last: Sample | None = None
        """What the controller was told last."""
        self._new_locks()
        self._seen = _Seen()  # since the last sample
        self._due_ns = -1  # the next; both under `_counting`
        self._load_due_ns = -1  # this and the rest belong to whoever holds `_asking`
        self._share = Share(lanes)
        self._recent, self._earlier, self._until_ns = _Seen(), _Seen(), 0
        self._told: set[str] = set()
        start = getattr(controller, "start", None)
        self.limit: int = most if start is None else min(max(int(start), 1), most)
        """How many items a batch may have now. Read by any thread."""
        if self.steady:
            self._ask(Sample(0.0, most, 0, 0, None, None, 0, 0))
        elif callable(load):
            self._read(load)
        survivors.add(self)

    def after_batch(self, now_ns: int, items: int, run_ns: int, failed: int, waiting: int, busy_ns: int) -> None:
        """Take note of a batch that has ended; now and then, ask the controller.

        Args:
            now_ns: The time.
            items: How many members it had, at least 1.
            run_ns: How long the model took; of a batch that was taken apart, for the longest run that answered.
            failed: How many of the members ended with an error or ran out of their time.
            waiting: Requests in line now.
            busy_ns: How long the lanes have been running batches so far, all together.
        """
        if self.steady:
            return
        with self._counting:
            self._seen.add(items, run_ns, failed)
            if now_ns < self._due_ns:
                return
            if self._due_ns < 0 and self._every_ns:  # the first
                self._due_ns = now_ns + self._every_ns
                return
            asking = self._asking
            if not asking.acquire(False):
                return  # this batch will be in the next sample
            seen, self._seen = self._seen, _Seen()
            self._due_ns = now_ns + self._every_ns
        try:
            self._take_note(now_ns, seen)
            load = self._read_load(now_ns, busy_ns)
            sample = Sample(
                now=now_ns / NS,
                limit=self.limit,
                in_use=round(seen.items / seen.batches),
                waiting=waiting,
                load=load,
                latency=seen.run_ns / seen.answered / NS if seen.answered else None,
                completed=seen.completed,
                dropped=seen.dropped,
            )
            self._ask(sample)
        finally:
            asking.release()

    def __repr__(self) -> str:
        return f"<Steering of {self._name!r} by {self._controller!r}, {self.limit} of {self._most}>"

    def _ask(self, sample: Sample) -> None:
        self.last = sample
        try:
            wanted = float(self._controller.update(sample))
            if wanted != wanted:
                raise ValueError(f"{self._controller!r} wants {wanted}, which is no limit")
        except BaseException as error:
            self._tell(error, "the controller of %r failed; where it does, the limit stays as it is", self._name)
            return
        limit = whole(min(max(wanted, 1), self._most))
        if limit <= self.limit or self.steady or not self._losing(sample):
            self.limit = limit

    def _take_note(self, now_ns: int, seen: _Seen) -> None:
        """Keep what was seen lately, in two parts, of which the older is left out as soon as the other says enough."""
        if self._recent.batches >= _FEW and now_ns >= self._until_ns:
            self._earlier, self._recent, self._until_ns = self._recent, _Seen(), now_ns + self._period_ns
        self._recent.batches += seen.batches
        self._recent.completed += seen.completed
        self._recent.dropped += seen.dropped

    def _losing(self, sample: Sample) -> bool:
        """True while too much fails for the limit to grow, or too little has been seen to know."""
        if self._earlier.batches + self._recent.batches < _FEW:
            return True
        completed = self._earlier.completed + self._recent.completed
        dropped = self._earlier.dropped + self._recent.dropped
        return overloaded(Sample(sample.now, sample.limit, 0, 0, None, None, completed, dropped))

    def _read_load(self, now_ns: int, busy_ns: int) -> float | None:
        if self._load is None or now_ns < self._load_due_ns:
            return None
        self._load_due_ns = now_ns + self._load_every_ns
        return self._share.since(now_ns, busy_ns) if self._load == "busy" else self._read(self._load)

    def _read(self, load: Callable[[], float | None]) -> float | None:
        try:
            reading = load()
            if reading is None:
                return None
            value = known(float(reading))
            if value is None:
                raise ValueError(f"the load is {reading!r}, not 0 to 1")
        except BaseException as error:
            self._tell(
                error, "the load for %r cannot be read; while it is unknown nothing is widened by it", self._name
            )
            return None
        return value

    def _tell(self, error: BaseException, text: str, *values: object) -> None:
        """Log what a user's code has raised, once for each text."""
        if isinstance(error, KeyboardInterrupt):  # on a loop of the main thread; not ours to keep
            raise error
        if text not in self._told:
            self._told.add(text)
            log.warning(f"relay: {text}", *values, exc_info=error)

    def _new_locks(self) -> None:
        self._counting = threading.Lock()
        self._asking = threading.Lock()

    def _after_fork_in_child(self) -> None:
        self._new_locks()


@dataclass(slots=True)
class _Seen:
    """Batches that have ended, and what became of their items."""

    batches: int = 0
    items: int = 0
    completed: int = 0
    dropped: int = 0
    answered: int = 0  # batches in which something completed
    run_ns: int = 0  # of those

    def add(self, items: int, run_ns: int, failed: int) -> None:
        self.batches += 1
        self.items += items
        self.completed += items - failed
        self.dropped += failed
        if failed < items:
            self.answered += 1
            self.run_ns += run_ns


def _period(seconds: float, what: str) -> int:
    period_ns = limit_ns(seconds, what)
    if not period_ns:
        raise ValueError(f"{what} must be a number of seconds over 0 and not endless, got {seconds!r}")
    return period_ns
