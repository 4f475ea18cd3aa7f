"""RequestQueue: the slots of one model, from admission to the end of the run.

Owns, with `_requests`, `_texts`, `_admission` and `_members`, the arena, the heap of those ready to run, the timers of
those with a deadline, the map of identical requests, and the list of owners (one object a slot). Any thread may call
any method; each call is atomic and none runs user code or waits for it. The invariant: a slot is in the heap exactly
while it is QUEUED and not pinned, has a timer only while it is QUEUED, and has an owner exactly while it is leased.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relay._pure._admission import FULL, TAKEN
from relay._pure._choosing import (
    CLOSED_DEADLINE,
    CLOSED_IDLE,
    CLOSED_PARAMS,
    CLOSED_SIZE,
    CLOSED_STEP,
    CLOSED_TOKENS,
)
from relay._pure._members import LOOK_PAST, Members
from relay._pure._requests import LEVELS
from relay._pure._texts import NOT_KEPT, SEEN
from relay._pure.arena import DROP_DEFERRED, DROP_FREED, NO_BLOCKS
from relay._pure.state import BUSY, DROPPED, IDLE, QUEUED, as_int64, as_range, flags_of, slot_of, state_of

__all__ = [
    "CLOSED_DEADLINE",
    "CLOSED_IDLE",
    "CLOSED_PARAMS",
    "CLOSED_SIZE",
    "CLOSED_STEP",
    "CLOSED_TOKENS",
    "FULL",
    "LOOK_PAST",
    "NOT_KEPT",
    "NO_BLOCKS",
    "SEEN",
    "TAKEN",
    "RequestQueue",
]


class RequestQueue(Members):
    """The queue of one model.

    Args:
        capacity: Slots: requests queued and running together.
        ids_capacity: Room for input ids, over all slots.
        max_length: The longest row of input ids.
        wake: Called with the number of a parked lane once as many requests are ready as it waits for; that lane counts
            as awake from then on. Called outside the lock, on the thread that made the last of them ready.
        generation: The first generation of each slot, as for `Arena`.
        overdue_every: Of so many members one is the request that is overdue for longest, whatever its priority; 0 for
            none. The owner's promise that nobody starves.

    Attributes:
        arena: The slots themselves, for `batch.gather`.
        hash_bits: With less than 64 a hash has so many bits, and of the content alone; for tests of what else tells
            requests apart.
    """

    __slots__ = ()

    def cancel(self, handle: int) -> int:
        """Drops a request that is still queued; the answers are those of `Arena.drop`."""
        _gone = None
        with self._lock:
            code = self.arena.drop(handle)
            if code == DROP_FREED:
                _gone = self._forget(slot_of(handle), handle)
            elif code == DROP_DEFERRED:
                self._timers.disarm(slot_of(handle))
                self._dedup.delete(handle)
            return code

    def finish(self, handles: Sequence[int]) -> None:
        """Ends the leases of a batch's members; from then on nobody can join them.

        Raises:
            StaleToken: A lease had ended already.
        """
        gone = []
        with self._lock:
            for handle in handles:
                self.arena.release(handle)
                gone.append(self._forget(slot_of(handle), handle))

    def lift(self, handle: int, key: int, level: int = -1, due_ns: int = -1) -> bool:
        """Makes a queued request more urgent, keeping its place among equals.

        Args:
            handle: The request.
            key: Its new key, if that is smaller than the old one.
            level: Its new priority, if that is more urgent; -1 leaves it as it is.
            due_ns: When it is overdue, if that is earlier; -1 leaves it as it is.

        Returns:
            Whether anything has changed. False if it is not queued.

        Raises:
            TypeError, OverflowError, ValueError: As for `admit`.
        """
        handle, key, due_ns = as_int64("handle", handle), as_int64("key", key), as_int64("due_ns", due_ns)
        level = as_range("level", level, -1, LEVELS - 1)
        with self._lock:
            if not self.arena.queued(handle):
                return False
            slot = slot_of(handle)
            ready = slot in self._heap
            sooner, first = key < self.arena.key[slot], 0 <= level < self._level[slot]
            earlier = due_ns >= 0 and not 0 <= self._due_ns[slot] <= due_ns
            if sooner:
                self.arena.key[slot] = key
                self._heap.lift(slot, key)
            if first:
                if ready:
                    self._ready[self._level[slot]] -= 1
                    self._ready[level] += 1
                self._level[slot] = level
                if level != self._one_level:
                    self._see(level)
            if earlier:
                self._due_ns[slot] = due_ns
                if ready and self._mixed:
                    self._by_due.remove(slot)
                    self._enter_due(slot)
            return sooner or first or earlier

    def share(self, handle: int) -> bool:
        """Says that others share the request's run: it is not displaced from now on. False if its lease has ended."""
        handle = as_int64("handle", handle)
        with self._lock:
            if not self.arena.live(handle):
                return False
            self._shared[slot_of(handle)] = True
            return True

    def displace(self, level: int) -> tuple[int, Any]:
        """Drops a queued request to make room for one of priority `level`: the newest of the least urgent priority, if
        that is less urgent than `level`. One whose run others share stays.

        Returns:
            Its handle and owner, or ``(-1, None)``. If its row is being written its place becomes free when `ready` is
            called, as for `cancel`.

        Raises:
            TypeError, OverflowError, ValueError: As for `admit`.
        """
        level = as_range("level", level, 0, LEVELS - 1)
        with self._lock:
            found, least = -1, (level, 2**63)
            for slot in range(self.capacity):
                rank = self._level[slot], self._serial[slot]
                if rank > least and not self._shared[slot] and self.arena.queued(self.arena.handle(slot)):
                    found, least = slot, rank
            if found < 0:
                return -1, None
            handle, owner = self.arena.handle(found), self._owners[found]
            self.cancel(handle)
            return handle, owner

    def check(self) -> None:
        """Recounts everything.

        Raises:
            AssertionError: An invariant is broken, which is a bug in relay.
        """
        with self._lock:
            self.arena.check()
            self._heap.check()
            self._timers.check()
            self._dedup.check()
            if self._promised < 0 or self.free < 0:
                raise AssertionError(
                    f"{self._promised} places promised, {self.arena.free} free; this is a bug in relay"
                )
            self._by_due.check()
            self._check_order()
            for slot in range(self.capacity):
                word = self.arena.word.load(slot)
                state, flags = state_of(word), flags_of(word)
                # One that was finished while `gather` reads its row has no owner any more, and is freed by gather.
                if (self._owners[slot] is None) != (state == IDLE or (state == BUSY and flags & DROPPED != 0)):
                    raise AssertionError(
                        f"slot {slot} has an owner and no lease, or the reverse; this is a bug in relay"
                    )
                if (slot in self._heap) != (state == QUEUED and not flags):
                    raise AssertionError(
                        f"slot {slot} is ready but not in the heap, or the reverse; this is a bug in relay"
                    )

    def _check_order(self) -> None:
        counts, due = [0] * LEVELS, {}
        for slot in self._line():
            counts[self._level[slot]] += 1
            if self._mixed and self._due_ns[slot] >= 0:
                due[slot] = (-self._due_ns[slot], *self._heap._entries[slot][1:])
        if counts != self._ready:
            raise AssertionError("those that are ready are miscounted by priority; this is a bug in relay")
        if due != self._by_due._entries:
            raise AssertionError("the order of due times is not that of those that are ready; this is a bug in relay")
        if not all(0 <= lane < 64 and wanted > 0 for lane, wanted in self._at_least.items()):
            raise AssertionError("a lane is parked that waits for nothing; this is a bug in relay")
        if self._since > self._every:
            raise AssertionError("overdue requests have been counted out of turn; this is a bug in relay")
