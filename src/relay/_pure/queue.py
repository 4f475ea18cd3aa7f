"""RequestQueue: the slots of one model, from admission to the end of the run.

Owns, with `_requests` and `_admission`, the arena, the heap of those ready to run, the timers of those with a deadline,
the map of identical requests, and the list of owners (one object a slot). Any thread may call any method; each call is
atomic and none runs user code or waits for it. The invariant: a slot is in the heap exactly while it is QUEUED and not
pinned, has a timer only while it is QUEUED, and has an owner exactly while it is leased.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relay._pure._admission import FULL, Admission
from relay._pure.arena import DROP_DEFERRED, DROP_FREED, NO_BLOCKS
from relay._pure.state import BUSY, DROPPED, IDLE, QUEUED, as_int32, as_int64, flags_of, slot_of, state_of

__all__ = ["FULL", "LOOK_PAST", "NO_BLOCKS", "RequestQueue"]

LOOK_PAST = 256
"""How many requests of another group `take` looks past at most."""


class RequestQueue(Admission):
    """The queue of one model.

    Args:
        capacity: Slots: requests queued and running together.
        ids_capacity: Room for input ids, over all slots.
        max_length: The longest row of input ids.
        wake: Called when a request has become ready while a lane was parked; that lane counts as awake from then on.
            Called outside the lock, on the thread that made the request ready.
        generation: The first generation of each slot, as for `Arena`.

    Attributes:
        arena: The slots themselves, for `batch.gather`.
    """

    __slots__ = ()

    def take(self, most: int, most_cost: int, now_ns: int) -> tuple[list[int], list[Any], list[Any]]:
        """Chooses the members of a batch, most urgent first, and commits them.

        A batch ends before the first request that does not fit; requests of another group than the first's are passed
        over and keep their place.

        Args:
            most: Members at most.
            most_cost: Members times the largest cost among them at most; 0 for no limit. The first always fits.
            now_ns: Requests whose deadline has come are not chosen but dropped.

        Returns:
            The members' handles, their owners, and the owners of the dropped.

        Raises:
            TypeError, OverflowError: As for `admit`.
        """
        most, most_cost, now_ns = as_int32("most", most), as_int64("most_cost", most_cost), as_int64("now_ns", now_ns)
        handles: list[int] = []
        owners: list[Any] = []
        late: list[Any] = []
        passed: list[tuple[int, int]] = []
        group = widest = 0
        arena = self.arena
        with self._lock:
            while len(handles) < most and len(passed) < LOOK_PAST:
                node = self._heap.pop_node()
                if node is None:
                    break
                _, seq, slot = node
                handle, owner = arena.handle(slot), self._owners[slot]
                if 0 <= arena.deadline_ns[slot] <= now_ns:
                    if arena.drop(handle) == DROP_FREED:
                        late.append(self._forget(slot, handle))
                    continue
                cost = arena.cost[slot]
                if not handles:
                    group = arena.group[slot]
                elif arena.group[slot] != group:
                    passed.append((handle, seq))
                    continue
                elif most_cost and max(widest, cost) * (len(handles) + 1) > most_cost:
                    passed.append((handle, seq))
                    break
                if not arena.commit(handle):
                    continue
                widest = max(widest, cost)
                arena.commit_ns[slot] = now_ns
                self._timers.disarm(slot)
                handles.append(handle)
                owners.append(owner)
            for handle, seq in passed:
                if arena.queued(handle):
                    self._heap.push_seq(arena.key[slot_of(handle)], seq, slot_of(handle))
            return handles, owners, late

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

    def lift(self, handle: int, key: int) -> bool:
        """Makes a queued request more urgent, keeping its place among equals. False if it is not queued or already as
        urgent."""
        handle, key = as_int64("handle", handle), as_int64("key", key)
        with self._lock:
            if not self.arena.queued(handle) or key >= self.arena.key[slot_of(handle)]:
                return False
            slot = slot_of(handle)
            self.arena.key[slot] = key
            self._heap.lift(slot, key)
            return True

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
