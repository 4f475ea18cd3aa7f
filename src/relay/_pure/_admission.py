"""How a request comes into a queue: places that are promised, slots that are leased, until it is ready to run; and the
lanes that sleep meanwhile. How its row is written in between is in `_texts`.

Any thread may call any method; each call is atomic. The invariants: no more places are promised than are free, and no
lane is left asleep by a request that has become ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relay._pure._requests import LEVELS
from relay._pure._rows import BLOCK
from relay._pure._texts import Texts
from relay._pure.state import PINNED, QUEUED, as_int32, as_int64, as_range, slot_of, state_of

FULL = -1
TAKEN = -4
LANES = 64


class Admission(Texts):
    """What `RequestQueue` is built on: requests until they are ready, and who waits for them to be."""

    __slots__ = ()

    def admit(
        self,
        owner: Any,
        key: int,
        now_ns: int,
        deadline_ns: int = -1,
        cost: int = 1,
        group: int = 0,
        ids: int = -1,
        claim: bool = False,
        level: int = 0,
        due_ns: int = -1,
        digest: int = -1,
    ) -> int:
        """Leases a slot for a request.

        Args:
            owner: Any object but None; `take`, `due`, `find` and `owner` give it back.
            key: The order; smaller runs first, equal keys in order of arrival.
            now_ns: The time of arrival.
            deadline_ns: When it must have been started, or -1.
            cost: Its size, for the batch's limit.
            group: Only equal groups share a batch.
            ids: How many input ids to reserve room for: the slot is then pinned, and stays out of the heap until
                `ready`. -1: ready at once.
            claim: Use up one promised place.
            level: Its priority, 0 to 255; smaller is more urgent.
            due_ns: When it will have been overtaken for long enough, or -1 for never.
            digest: What it is bound under in the same step, or -1.

        Returns:
            A handle; `TAKEN` if another is bound under `digest`; `FULL`; or `NO_BLOCKS` if there is no room for that
            many ids. A promise is used up in any case.

        Raises:
            TypeError: A number is not an int.
            OverflowError: `key` or a time does not fit in 64 bits, or another number in 32.
            ValueError: No place is promised, or there is no such priority.
        """
        key, now_ns = as_int64("key", key), as_int64("now_ns", now_ns)
        deadline_ns = as_int64("deadline_ns", deadline_ns)
        cost, group, ids = as_int32("cost", cost), as_int32("group", group), as_int32("ids", ids)
        level, due_ns = as_range("level", level, 0, LEVELS - 1), as_int64("due_ns", due_ns)
        with self._lock:
            if claim:
                self.forgo()
            if digest >= 0 and self._dedup.find(digest) >= 0:
                return TAKEN
            if not claim and self.free <= 0:
                return FULL
            handle = self._lease(owner, key, now_ns, deadline_ns, cost, group, ids, level, due_ns)
            if handle >= 0 and digest >= 0:
                self._dedup.insert(digest, handle)
        if ids < 0:
            self._wake_lanes(1)
        return handle

    def admit_all(
        self,
        owners: Sequence[Any],
        key: int,
        now_ns: int,
        deadline_ns: int = -1,
        costs: Sequence[int] | None = None,
        group: int | Sequence[int] = 0,
        ids: Sequence[int] | None = None,
        level: int = 0,
        due_ns: int = -1,
    ) -> list[int] | None:
        """Leases a slot for each of several requests of one key, or for none of them.

        Args:
            owners: One object a request.
            key, now_ns, deadline_ns, level, due_ns: As for `admit`, for all of them.
            costs: Their sizes; None: 1 each.
            group: That of all of them, or a sequence of one for each.
            ids: Input ids to reserve for each; None: ready at once.

        Returns:
            The handles in order, or None if there is no room for all.

        Raises:
            TypeError, OverflowError: As for `admit`.
            ValueError: There are not as many costs, groups or ids as owners, or there is no such priority.
        """
        key, now_ns = as_int64("key", key), as_int64("now_ns", now_ns)
        deadline_ns, due_ns = as_int64("deadline_ns", deadline_ns), as_int64("due_ns", due_ns)
        level = as_range("level", level, 0, LEVELS - 1)
        owners = list(owners)
        if isinstance(group, (list, tuple)):
            groups = [as_int32("group", one) for one in group]
        else:
            groups = [as_int32("group", group)] * len(owners)  # type: ignore[arg-type]
        sizes = [1] * len(owners) if costs is None else [as_int32("cost", cost) for cost in costs]
        reserve = [-1] * len(owners) if ids is None else [as_int32("ids", count) for count in ids]
        for name, numbers in (("costs", sizes), ("groups", groups), ("ids", reserve)):
            if len(numbers) != len(owners):
                raise ValueError(f"{len(numbers)} {name} were given for {len(owners)} owners; give one for each")
        with self._lock:
            if self.free < len(owners) or not self._room_for(reserve):
                return None
            handles = [
                self._lease(owner, key, now_ns, deadline_ns, size, kind, count, level, due_ns)
                for owner, size, kind, count in zip(owners, sizes, groups, reserve, strict=True)
            ]
        self._wake_lanes(sum(count < 0 for count in reserve))
        return handles

    def promise(self) -> bool:
        """Sets one free slot aside for someone who waits for room. False if there is none, or no room for the longest
        row."""
        with self._lock:
            if self.free <= 0 or not self._room_for([self.arena.max_length]):
                return False
            self._promised += 1
            return True

    def forgo(self) -> None:
        """Gives a promised slot back.

        Raises:
            ValueError: No place is promised.
        """
        with self._lock:
            if not self._promised:
                raise ValueError("no place is promised; call promise() first")
            self._promised -= 1

    def ready(self, handle: int, now_ns: int) -> bool:
        """Unpins a slot and puts it into the heap. False if it was dropped meanwhile (it is free now), or is stale or
        not pinned."""
        return self.ready_all((handle,), now_ns) == 1

    def ready_all(self, handles: Sequence[int], now_ns: int) -> int:
        """As `ready` for each of several, in order; the lanes see all of them at once. How many of them were put into
        the heap."""
        now_ns, gone, fresh = as_int64("now_ns", now_ns), [], 0
        with self._lock:
            for handle in handles:
                handle = as_int64("handle", handle)
                if not self._word(handle) & PINNED or state_of(self._word(handle)) != QUEUED:
                    continue
                slot = slot_of(handle)
                if not self.arena.unpin(handle):
                    gone.append(self._forget(slot, handle))
                    continue
                self.arena.ready_ns[slot] = now_ns
                self._enter(slot)
                fresh += 1
        self._wake_lanes(fresh)
        return fresh

    def park(self, lane: int = 0, at_least: int = 1) -> bool:
        """Says that a lane is about to sleep until so many are ready. False, and no such thing, if they are.

        Args:
            lane: Its number, 0 to 63.
            at_least: For how many it waits.

        Raises:
            TypeError, OverflowError: As for `admit`.
            ValueError: There is no such lane.
        """
        lane, at_least = as_range("lane", lane, 0, LANES - 1), as_int32("at_least", at_least)
        with self._lock:
            if len(self._heap) >= at_least:
                return False
            self._at_least[lane] = at_least
            return True

    def unpark(self, lane: int = -1) -> int:
        """Makes a sleeping lane the caller's to wake, or to count as awake; what becomes ready wakes lanes by itself.

        Args:
            lane: Its number, or -1 for the lowest that sleeps.

        Returns:
            Its number, or -1 if it does not sleep: somebody has woken it already.

        Raises:
            TypeError, OverflowError, ValueError: As for `park`.
        """
        lane = as_range("lane", lane, -1, LANES - 1)
        with self._lock:
            if lane < 0:
                lane = min(self._at_least, default=-1)
            return lane if self._at_least.pop(lane, None) is not None else -1

    def _wake_lanes(self, fresh: int) -> None:
        """Some have become ready: wakes as many lanes, of those that wait for no more than are ready now, the lowest
        first. A lane that then finds too few parks again."""
        while fresh > 0 and self._wake is not None:
            with self._lock:
                ready = len(self._heap)
                lane = min((lane for lane, wanted in self._at_least.items() if wanted <= ready), default=-1)
                if not ready or lane < 0:
                    return
                wanted = self._at_least.pop(lane)
            try:
                self._wake(lane)
            except BaseException:
                self._at_least.setdefault(lane, wanted)  # it sleeps still: whoever comes next wakes it
                raise
            fresh -= 1

    def _room_for(self, ids: Sequence[int]) -> bool:
        """Whether rows of all these lengths find blocks."""
        longest = self.arena.max_length
        return sum(-(-min(max(count, 0), longest) // BLOCK) for count in ids) <= self.arena.free_blocks

    def _lease(
        self,
        owner: Any,
        key: int,
        now_ns: int,
        deadline_ns: int,
        cost: int,
        group: int,
        ids: int,
        level: int,
        due_ns: int,
    ) -> int:
        handle = self.arena.lease(key, now_ns, cost, 0, 0, max(ids, 0), ids >= 0)
        if handle < 0:
            return handle
        slot = slot_of(handle)
        self._owners[slot] = owner
        self.arena.group[slot] = group
        self._newest += 1
        self._serial[slot] = self._newest
        self._level[slot], self._due_ns[slot] = level, due_ns
        self._shared[slot] = self._sealed[slot] = False
        if level != self._one_level:
            self._see(level)
        if deadline_ns >= 0:
            self.arena.deadline_ns[slot] = deadline_ns
            self._timers.arm(slot, deadline_ns)
        if ids < 0:
            self._enter(slot)
        return handle
