"""The arena: a fixed table of slots, each one lease of compute and one row of input ids.

Owns the slots, their columns and the free list. Callers serialise the calls (composites by a guard); who works on a row
outside the guard pins it first. Invariants: a handle of an ended lease never reads or writes a row again; a pinned slot
never becomes IDLE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay._pure._rows import BLOCK, Rows, as_ids
from relay._pure.state import (
    BUSY,
    DROPPED,
    IDLE,
    MAX_SLOTS,
    PINNED,
    QUEUED,
    REVOKE,
    SLOT_BITS,
    as_int32,
    as_int64,
    as_range,
    edge,
)

__all__ = ["BLOCK", "DROP_BUSY", "DROP_DEFERRED", "DROP_FREED", "DROP_STALE", "NO_BLOCKS", "NO_SLOT", "Arena", "Rows"]

NO_SLOT = -1
NO_BLOCKS = -2
DROP_STALE, DROP_FREED, DROP_DEFERRED, DROP_BUSY = 0, 1, 2, 3

# Tests set this to run other actors in the middle of a verb: lease, pin, write, trim, unpin, drop, commit.
step: Callable[[str], None] | None = None

_SLOT = MAX_SLOTS - 1


def _at(name: str) -> None:
    if step is not None:
        step(name)


class Arena(Rows):
    """A fixed table of slots and their rows of ids.

    The columns are plain lists indexed by slot, read directly by what is built on top: `key`, `arrival_ns`, `ready_ns`,
    `commit_ns`, `deadline_ns` (times in ns, -1 for none), `cost`, `tenant`, `epoch`, `group`, `length`, `split`,
    `first_block`, `n_blocks`; `word` holds the state words, `blocks` the ids. A slot's columns hold only while it is
    leased.

    Args:
        capacity: Slots, 1 to `MAX_SLOTS`.
        ids_capacity: Ids all rows hold together, rounded up to whole blocks of 32.
        max_length: Ids one row may hold; 0 for as many as there are.
        generation: The first generation of each slot: after a fork, one above the parent's.

    Raises:
        ValueError: An argument is out of range.
    """

    def __init__(self, capacity: int, ids_capacity: int = 0, max_length: int = 0, generation: int = 1) -> None:
        super().__init__(capacity, ids_capacity, max_length, generation)
        self._next = [*range(1, self.capacity), -1]
        self._head, self._free = 0, self.capacity

    def __len__(self) -> int:
        """How many slots are leased."""
        return len(self.key) - self._free

    @property
    def free(self) -> int:
        """How many slots are free."""
        return self._free

    def lease(
        self,
        key: int = 0,
        now_ns: int = 0,
        cost: int = 1,
        tenant: int = 0,
        epoch: int = 0,
        ids: int = 0,
        pinned: bool = False,
        busy: bool = False,
    ) -> int:
        """Leases a free slot: IDLE to QUEUED, or at once to BUSY.

        Args:
            key: Order key.
            now_ns: Arrival time.
            cost: Compute units.
            tenant: Whose it is.
            epoch: Model version.
            ids: Ids to reserve room for; an estimate, so more than `max_length` reserves `max_length`.
            pinned: Starts pinned, for the tokeniser to write the row.
            busy: Goes to BUSY, not QUEUED.

        Returns:
            The handle, `NO_SLOT` (-1) if no slot is free, or `NO_BLOCKS` (-2) if the ids find no room.
        """
        key, now_ns, cost = as_int64("key", key), as_int64("now_ns", now_ns), as_int32("cost", cost)
        tenant, epoch, ids = as_int32("tenant", tenant), as_int32("epoch", epoch), as_range("ids", ids, 0, 0x7FFFFFFF)
        flags, state = PINNED if pinned else 0, BUSY if busy else QUEUED
        slot, need = self._head, -(-min(ids, self._max_length) // BLOCK)
        if slot < 0:
            return NO_SLOT
        if need > self.blocks.free:
            return NO_BLOCKS
        self._head = self._next[slot]
        self._free -= 1
        self.key[slot], self.arrival_ns[slot], self.cost[slot] = key, now_ns, cost
        self.tenant[slot], self.epoch[slot] = tenant, epoch
        self.ready_ns[slot] = self.commit_ns[slot] = self.deadline_ns[slot] = self.split[slot] = -1
        self.group[slot] = self.length[slot] = 0
        self.first_block[slot], self.n_blocks[slot] = self.blocks.take(need), need
        _at("lease")
        word = self.word.load(slot)
        self.word.cas(slot, word, edge(word, state) | flags)  # only a lease changes an IDLE word: this cannot lose
        return word >> 8 << SLOT_BITS | slot

    def commit(self, handle: int) -> bool:
        """Commits to a batch: QUEUED to BUSY. False if stale, pinned, dropped, or not queued."""
        return self._go(handle, QUEUED, BUSY, PINNED | DROPPED)

    def requeue(self, handle: int) -> bool:
        """Puts back for a retry or a pause: BUSY to QUEUED. False if stale, released, or not BUSY."""
        if not self._go(handle, BUSY, QUEUED, DROPPED):
            return False
        self.commit_ns[handle & _SLOT] = -1
        return True

    def revoke(self, handle: int) -> bool:
        """Takes back from a silent holder: BUSY to REVOKE; `release` confirms or fences. False as for `requeue`."""
        return self._go(handle, BUSY, REVOKE, DROPPED)

    def hand_over(self, handle: int) -> int:
        """Gives a BUSY or REVOKE slot to its next owner, who finds the columns as they are.

        Returns:
            The next owner's handle; the old one is stale. `NO_HANDLE` (-1) if stale, pinned or queued.
        """
        while word := self._find(handle):
            if word & 3 == QUEUED or word & PINNED:
                return -1
            new = edge(word, BUSY, hand_over=True)
            if self.word.cas(handle & _SLOT, word, new):
                return new >> 8 << SLOT_BITS | handle & _SLOT
        return -1

    def pin(self, handle: int) -> bool:
        """Keeps the slot from being reused while its row is touched. False if stale or already pinned."""
        while word := self._find(handle):
            if word & PINNED:
                return False
            _at("pin")
            if self.word.cas(handle & _SLOT, word, word | PINNED):
                return True
        return False

    def unpin(self, handle: int) -> bool:
        """Ends a pin. True if the lease lives on; False if stale, or dropped or released meanwhile and freed now."""
        while word := self._find(handle):
            _at("unpin")
            if word & DROPPED:
                if self._end(handle & _SLOT, word):
                    return False
            elif self.word.cas(handle & _SLOT, word, word & ~PINNED):
                return True
        return False

    def drop(self, handle: int) -> int:
        """Cancels or expires a queued lease.

        Returns:
            `DROP_FREED` if the slot is free again, `DROP_DEFERRED` if it is pinned and whoever unpins frees it,
            `DROP_BUSY` if it is committed, `DROP_STALE` if the lease has ended or its end is already on its way.
        """
        while word := self._find(handle):
            if word & DROPPED:
                return DROP_STALE
            if word & 3 != QUEUED:
                return DROP_BUSY
            _at("drop")
            if self._end_or_defer(handle & _SLOT, word):
                return DROP_DEFERRED if word & PINNED else DROP_FREED
        return DROP_STALE

    def release(self, handle: int) -> None:
        """Ends a lease: BUSY or REVOKE to IDLE; a pinned slot is freed by whoever unpins it.

        Raises:
            StaleToken: The lease has ended, by an earlier release perhaps.
            ValueError: The slot is queued.
        """
        while not (word := self._live(handle)) & DROPPED:
            if word & 3 == QUEUED:
                raise ValueError(f"handle {int(handle)} is queued and holds nothing to release; drop() it")
            if self._end_or_defer(handle & _SLOT, word):
                return
        raise self._stale(handle)

    def write_ids(self, handle: int, ids: Sequence[int], split: int = -1) -> bool:
        """Writes the row of a pinned slot, all or nothing; takes more blocks or gives back those left over.

        Args:
            handle: The lease; the caller has pinned it.
            ids: A list or tuple of ints, or a 1-D buffer of int32 or int64; each fits in 32 bits.
            split: Index of the first id of the second segment, or -1 for one segment.

        Returns:
            False if stale or dropped, or if there are too few blocks: the row is then as before. A drop during the
            write shows at `unpin`.

        Raises:
            ValueError: More than `max_length` ids, a split outside them, or a slot that is not pinned.
            TypeError: An id is not an int.
            OverflowError: An id does not fit in 32 bits.
        """
        handle, values = as_int64("handle", handle), as_ids(ids, self._max_length)
        split = as_range("split", split, -1, len(values))
        word = self._find(handle)
        if not word or word & DROPPED:
            return False
        if not word & PINNED:
            raise ValueError(f"handle {handle} is not pinned; pin() it before writing its row")
        slot, need = handle & _SLOT, -(-len(values) // BLOCK)
        first, n = self.first_block[slot], self.n_blocks[slot]
        if need - n > self.blocks.free:
            return False
        most = max(n, need)
        first = self.first_block[slot] = self.blocks.resize(first, n, most)
        self.n_blocks[slot] = most
        _at("write")
        self.blocks.write(first, values)
        self.length[slot], self.split[slot] = len(values), split
        _at("trim")
        self.first_block[slot] = self.blocks.resize(first, most, need)
        self.n_blocks[slot] = need
        return True

    def check(self) -> None:
        """Recounts everything.

        Raises:
            AssertionError: An invariant is broken; a bug in relay.
        """
        self.word.check()
        free, slot = set[int](), self._head
        while slot >= 0 and slot not in free:
            free.add(slot)
            slot = self._next[slot]
        chains: dict[int, int] = {}
        for slot in range(self.capacity):
            n, length = self.n_blocks[slot], self.length[slot]
            idle = self.word.load(slot) & 3 == IDLE
            first, split = self.first_block[slot], self.split[slot]
            if idle != (slot in free) or (idle and n):
                raise AssertionError("a slot is both free and leased; this is a bug in relay")
            if (n > 0) != (first >= 0) or first in chains:
                raise AssertionError("a row's blocks are not its own; this is a bug in relay")
            if not idle and not (0 <= length <= min(n * BLOCK, self._max_length) and -1 <= split <= length):
                raise AssertionError("a row's length or split is out of range; this is a bug in relay")
            if n:
                chains[first] = n
        if len(free) != self._free or len(self) != len(self.word):
            raise AssertionError("free slots are miscounted; this is a bug in relay")
        self.blocks.check(chains)

    def _go(self, handle: int, old_state: int, new_state: int, refused: int) -> bool:
        """Takes an edge that keeps the lease, unless the word is in another state or has one of the refused flags."""
        while word := self._find(handle):
            if word & 3 != old_state or word & refused:
                return False
            if new_state == BUSY:
                _at("commit")
            if self.word.cas(handle & _SLOT, word, edge(word, new_state)):
                return True
        return False

    def _end_or_defer(self, slot: int, word: int) -> bool:
        """Ends a lease, or leaves it to whoever unpins it. False if the word has changed."""
        return self.word.cas(slot, word, word | DROPPED) if word & PINNED else self._end(slot, word)

    def _end(self, slot: int, word: int) -> bool:
        """Takes the edge to IDLE and frees the slot and its blocks. False if the word has changed."""
        if not self.word.cas(slot, word, edge(word, IDLE)):
            return False
        self.blocks.give(self.first_block[slot], self.n_blocks[slot])
        self.first_block[slot], self.n_blocks[slot] = -1, 0
        self._next[slot], self._head = self._head, slot
        self._free += 1
        return True
