"""What a queue knows of its requests: their times, who owns them, and which content they stand for.

Owns the arena, the timers, the map of identical requests and the list of owners; a queue is built on this, shares its
lock, and adds the order in which they run. Invariants: a slot has a timer only while it is QUEUED, and an owner exactly
while it is leased.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from relay._pure.arena import Arena
from relay._pure.dedup import Dedup
from relay._pure.heap import PriorityHeap
from relay._pure.state import DROPPED, as_int64, generation_of, next_generation, slot_of
from relay._pure.timers import Timers


class Requests:
    """The requests of one model; see `RequestQueue`."""

    __slots__ = ("_dedup", "_heap", "_lock", "_owners", "_parked", "_promised", "_timers", "_wake", "arena")

    def __init__(
        self,
        capacity: int,
        ids_capacity: int = 0,
        max_length: int = 0,
        wake: Callable[[], object] | None = None,
        generation: int = 1,
    ) -> None:
        self.arena = Arena(capacity, ids_capacity, max_length, generation)
        self._heap = PriorityHeap(capacity)
        self._timers = Timers(capacity)
        self._dedup = Dedup(capacity)
        self._owners: list[Any] = [None] * capacity
        self._wake = wake
        self._parked = 0
        self._promised = 0
        # Re-entrant, for a finaliser that runs inside a call may cancel a request of its own.
        self._lock = threading.RLock()

    def set_deadline(self, handle: int, deadline_ns: int, alarm_ns: int = -1) -> bool:
        """Sets when a queued request must have been started (-1: any time) and when `due` is to name it. False if it is
        not queued."""
        handle, deadline_ns = as_int64("handle", handle), as_int64("deadline_ns", deadline_ns)
        alarm_ns = as_int64("alarm_ns", alarm_ns)
        with self._lock:
            if not self.arena.queued(handle):
                return False
            slot = slot_of(handle)
            self.arena.deadline_ns[slot] = deadline_ns
            if alarm_ns >= 0:
                self._timers.arm(slot, alarm_ns)
            else:
                self._timers.disarm(slot)
            return True

    def due(self, now_ns: int) -> list[tuple[int, Any]]:
        """Handles and owners of the queued requests whose timer has come; the timers are disarmed."""
        with self._lock:
            return [(self.arena.handle(slot), self._owners[slot]) for slot in self._timers.due(now_ns)]

    def next_ns(self) -> int | None:
        """When the earliest timer comes, or None."""
        with self._lock:
            return self._timers.next_ns()

    def digest(self, content: str | bytes) -> int:
        """The keyed hash of a request's content, for `bind` and `find`."""
        return self._dedup.hash(content)

    def bind(self, digest: int, handle: int) -> bool:
        """Lets identical requests find `handle` under `digest`. False if it has ended or another is bound there."""
        with self._lock:
            word = self._word(handle)
            return word != 0 and not word & DROPPED and self._dedup.insert(digest, handle)

    def find(self, digest: int) -> tuple[int, Any]:
        """The handle and owner bound under `digest`, or ``(-1, None)``."""
        with self._lock:
            handle = self._dedup.find(digest)
            return (handle, self._owners[slot_of(handle)]) if handle >= 0 else (-1, None)

    def unbind(self, handle: int) -> bool:
        """Closes `handle` to joiners. False if it was not bound."""
        with self._lock:
            return self._dedup.delete(handle)

    def owner(self, handle: int) -> Any:
        """The owner of a lease, or None if it has ended."""
        with self._lock:
            return self._owners[slot_of(handle)] if self.arena.live(handle) else None

    def owners(self) -> list[Any]:
        """The owners of all leased slots."""
        with self._lock:
            return [owner for owner in self._owners if owner is not None]

    def lengths(self, handles: Sequence[int]) -> list[int]:
        """How many input ids each of `handles` has.

        Raises:
            StaleToken: A lease has ended.
        """
        with self._lock:
            return [self.arena.facts(handle)["length"] for handle in handles]

    @property
    def capacity(self) -> int:
        """Slots in all."""
        return self.arena.capacity

    @property
    def free(self) -> int:
        """Slots free now and promised to nobody."""
        return self.arena.free - self._promised

    @property
    def queued(self) -> int:
        """Requests ready to run."""
        return len(self._heap)

    @property
    def next_generation(self) -> int:
        """A generation above all that were given out: where the queue begins that takes this one's place in a child
        after a fork. Takes no lock, for there it may be held by a thread that is gone."""
        return next_generation(generation_of(max(self.arena.word._words)))

    def __len__(self) -> int:
        """Slots leased: queued, being prepared, and running."""
        return len(self.arena)

    def _word(self, handle: int) -> int:
        """The state word of a live lease, or 0."""
        return self.arena.word.load(slot_of(handle)) if self.arena.live(handle) else 0

    def _forget(self, slot: int, handle: int) -> Any:
        """Takes an ended lease out of everything; the owner, for the caller to let go outside the lock."""
        self._heap.remove(slot)
        self._timers.disarm(slot)
        self._dedup.delete(handle)
        owner, self._owners[slot] = self._owners[slot], None
        return owner
