"""What a queue knows of its requests: their times, who owns them, which content they stand for, and who is ready.

Owns the arena, the timers, the map of identical requests, the list of owners, and both orders of those that are ready:
by key, and by when they have waited too long. A queue is built on this, shares its lock, and adds how they come in and
how they are chosen. Invariants: a slot has a timer only while it is QUEUED, and an owner exactly while it is leased; it
is counted at its priority exactly while it is in the order of keys; the order of due times is kept only once there have
been two priorities (before that the overdue are the first in line anyhow, and nobody pays for it), and then has those
that are ready and can be overdue.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from relay._pure.arena import Arena
from relay._pure.dedup import Dedup
from relay._pure.heap import PriorityHeap
from relay._pure.state import DROPPED, as_int64, as_range, generation_of, next_generation, slot_of
from relay._pure.timers import Timers

LEVELS = 256
# Odd, and their bits are mixed: numbers that differ by little give salts that differ in half of their bits.
WHO = 0x9E3779B97F4A7C15
EPOCH = 0xD1B54A32D192ED03
PART = 64


class Requests:
    """The requests of one model; see `RequestQueue`."""

    __slots__ = (
        "_at_least", "_by_due", "_dedup", "_due_ns", "_every", "_heap", "_level", "_lock", "_mixed", "_newest",
        "_one_level", "_owners", "_promised", "_ready", "_sealed", "_serial", "_shared", "_since", "_timers", "_wake",
        "arena", "hash_bits",
    )  # fmt: skip

    def __init__(
        self,
        capacity: int,
        ids_capacity: int = 0,
        max_length: int = 0,
        wake: Callable[[int], object] | None = None,
        generation: int = 1,
        overdue_every: int = 0,
    ) -> None:
        self._every = as_range("overdue_every", overdue_every, 0, 2**31 - 1)
        self.arena = Arena(capacity, ids_capacity, max_length, generation)
        self._heap = PriorityHeap(capacity)
        self._timers = Timers(capacity)
        self._dedup = Dedup(capacity)
        self._owners: list[Any] = [None] * capacity
        self._wake = wake
        self._at_least: dict[int, int] = {}  # by parked lane: how many it waits for
        self._promised = 0
        self._level, self._serial = [0] * capacity, [0] * capacity
        self._due_ns = [-1] * capacity
        self._shared = [False] * capacity
        self._sealed = [False] * capacity  # closed to joiners for good
        self._newest = 0
        self._ready = [0] * LEVELS  # how many are ready, by priority
        self._by_due = PriorityHeap(capacity)
        self._one_level = -1  # the only priority there has been
        self._mixed = False
        self.hash_bits = 128
        self._since = 0  # members since the last overdue one that was given a place
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

    def digest(self, content: str | bytes, who: int = 0, epoch: int = 0) -> int:
        """The keyed hash of a request's content, for `admit`, `bind` and `find`.

        Args:
            content: The content.
            who: A number for what else is part of its identity; other numbers give other hashes.
            epoch: Likewise.

        Raises:
            TypeError: `content` is neither str nor bytes, or a number is not an int.
            OverflowError: A number does not fit in 64 bits.
        """
        salt = as_int64("who", who) * WHO + as_int64("epoch", epoch) * EPOCH
        digest = self._dedup.hash(content)
        if self.hash_bits < 64:
            return digest & (1 << self.hash_bits) - 1
        return digest ^ salt & 0xFFFFFFFFFFFFFFFF

    def bind(self, digest: int, handle: int) -> bool:
        """Lets identical requests find `handle` under `digest`. False if it has ended, has been closed by `unbind`, or
        another is bound there."""
        with self._lock:
            word = self._word(handle)
            if word == 0 or word & DROPPED or self._sealed[slot_of(handle)]:
                return False
            return self._dedup.insert(digest, handle)

    def find(self, digest: int) -> tuple[int, Any]:
        """The handle and owner bound under `digest`, or ``(-1, None)``."""
        with self._lock:
            handle = self._dedup.find(digest)
            return (handle, self._owners[slot_of(handle)]) if handle >= 0 else (-1, None)

    def unbind(self, handle: int) -> bool:
        """Closes `handle` to joiners for good: whoever is about to end it may do so before it is bound. False if it was
        not bound."""
        with self._lock:
            if self.arena.live(handle):
                self._sealed[slot_of(handle)] = True
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

    def ahead(self, level: int) -> int:
        """How many are ready of this priority or of more urgent ones."""
        level = as_range("level", level, 0, LEVELS - 1)
        with self._lock:
            return sum(self._ready[: level + 1])

    def head_level(self) -> int:
        """The priority of the first in line, or -1 if nothing is ready."""
        with self._lock:
            slot = self._heap.peek()
            return self._level[slot] if slot >= 0 else -1

    def oldest_ready_ns(self) -> int:
        """When the one that has been ready for longest became so, or 0 if nothing is ready."""
        with self._lock:
            ready_ns, arrival_ns = self.arena.ready_ns, self.arena.arrival_ns
            return min(
                (ready_ns[slot] if ready_ns[slot] >= 0 else arrival_ns[slot] for slot in self._line()), default=0
            )

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

    def _line(self) -> Iterator[int]:
        """The slots of those that are ready, in order. Whoever leaves meanwhile may still be named, for the line is
        read in parts, and who enters may not be."""
        end = len(self._heap)
        while end > 0:
            part = self._heap._order[max(end - PART, 0) : end]
            for entry in reversed(part):
                yield -entry[2]
            end = bisect_left(self._heap._order, part[0])

    def _enter(self, slot: int) -> None:
        """A request is ready: into line."""
        self._heap.push(self.arena.key[slot], slot)
        self._ready[self._level[slot]] += 1
        if self._mixed and self._due_ns[slot] >= 0:
            self._enter_due(slot)

    def _leave(self, slot: int) -> None:
        """It runs, or has ended: out of the line."""
        if self._heap.remove(slot):
            self._ready[self._level[slot]] -= 1
            self._by_due.remove(slot)

    def _enter_due(self, slot: int) -> None:
        """Among equally overdue ones, too, the first that came is the first."""
        self._by_due.push_seq(self._due_ns[slot], -self._heap._entries[slot][1], slot)

    def _see(self, level: int) -> None:
        """Takes note of a priority; with the second one the order of due times begins."""
        if self._one_level < 0:
            self._one_level = level
        if level != self._one_level and not self._mixed and self._every:
            self._mixed = True
            for slot in self._line():
                if self._due_ns[slot] >= 0:
                    self._enter_due(slot)

    def _forget(self, slot: int, handle: int) -> Any:
        """Takes an ended lease out of everything; the owner, for the caller to let go outside the lock."""
        self._leave(slot)
        self._timers.disarm(slot)
        self._dedup.delete(handle)
        owner, self._owners[slot] = self._owners[slot], None
        return owner
