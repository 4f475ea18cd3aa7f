"""What the slots of an arena hold: their columns, and the ids of each row in chained blocks of 32.

Owns the columns, the ids, the chains and the free blocks; an arena is built on this, and its callers serialise the
calls. Invariant: every block is in exactly one row's chain or on the free list. A chain is named by its first block,
or -1, and the row keeps how many blocks it has.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from relay._pure.state import MAX_GENERATION, MAX_SLOTS, QUEUED, SLOT_BITS, StateWords, as_int32, as_int64, as_range
from relay.errors import StaleToken

BLOCK = 32
MAX_IDS = 0x7FFFFFFF - BLOCK

_SLOT = MAX_SLOTS - 1
_WIDE = ("key", "arrival_ns", "ready_ns", "commit_ns", "deadline_ns")
_NARROW = ("cost", "tenant", "epoch", "group", "length", "split", "first_block", "n_blocks")


def as_ids(ids: Any, limit: int) -> list[int]:
    """Checks the ids of one row.

    Args:
        ids: A list or tuple of ints, or a 1-D buffer of int32 or int64.
        limit: How many there may be.

    Returns:
        A new list.

    Raises:
        TypeError: It is none of these, or holds something else than ints.
        ValueError: There are too many.
        OverflowError: One does not fit in 32 bits.
    """
    if not isinstance(ids, (list, tuple)):
        try:
            view = memoryview(ids)
        except TypeError:
            view = memoryview(b"")
        if view.ndim != 1 or view.format not in ("i", "l", "q"):
            raise TypeError(
                f"ids must be a list or tuple of ints, or a 1-D int32 or int64 array, got {type(ids).__name__}"
            )
        ids = view if len(view) > limit else view.tolist()
    if len(ids) > limit:
        raise ValueError(f"{len(ids)} ids are more than max_length {limit}; truncate them first")
    return [as_int32("id", value) for value in ids]


class Blocks:
    """A fixed number of blocks, all free at first; the lowest are taken first.

    Args:
        n: How many.
    """

    def __init__(self, n: int) -> None:
        self.ids = array("i", bytes(4 * BLOCK * n))
        self.next = list(range(1, n + 1))
        if n:
            self.next[-1] = -1
        self.head = 0 if n else -1
        self.free = n

    def take(self, n: int) -> int:
        """Takes a chain of `n` blocks (so many are free). Returns the first, or -1 if `n` is 0."""
        if not n:
            return -1
        first = last = self.head
        for _ in range(n - 1):
            last = self.next[last]
        self.head, self.next[last] = self.next[last], -1
        self.free -= n
        return first

    def give(self, first: int, n: int) -> None:
        """Gives a chain of `n` blocks back."""
        if not n:
            return
        last = first
        for _ in range(n - 1):
            last = self.next[last]
        self.next[last], self.head = self.head, first
        self.free += n

    def resize(self, first: int, n: int, need: int) -> int:
        """Makes a chain of `n` blocks one of `need` (so many are free). Returns the first, or -1 for an empty chain."""
        if need > n == 0:
            return self.take(need)
        if need < n and need == 0:
            self.give(first, n)
            return -1
        if need != n:
            last = first
            for _ in range(min(n, need) - 1):
                last = self.next[last]
            if need > n:
                self.next[last] = self.take(need - n)
            else:
                self.give(self.next[last], n - need)
                self.next[last] = -1
        return first

    def write(self, first: int, values: Sequence[int]) -> None:
        """Writes ids into a chain that has room for them."""
        for i in range(0, len(values), BLOCK):
            part = array("i", values[i : i + BLOCK])
            self.ids[first * BLOCK : first * BLOCK + len(part)] = part
            first = self.next[first]

    def read(self, first: int, n: int) -> array[int]:
        """The first `n` ids of a chain."""
        out = array("i")
        while len(out) < n:
            out += self.ids[first * BLOCK : first * BLOCK + min(BLOCK, n - len(out))]
            first = self.next[first]
        return out

    def check(self, chains: dict[int, int]) -> None:
        """Recounts everything.

        Args:
            chains: For each chain its first block and how many blocks it shall have.

        Raises:
            AssertionError: A block is in two places or in none; a bug in relay.
        """
        seen: set[int] = set()
        for first, n in [*chains.items(), (self.head, self.free)]:
            block, count = first, 0
            while block >= 0 and block not in seen:
                seen.add(block)
                block, count = self.next[block], count + 1
            if block >= 0 or count != n:
                raise AssertionError(f"the chain of block {first} has {count} blocks, not {n}; this is a bug in relay")
        if len(seen) != len(self.next):
            raise AssertionError(f"{len(seen)} of {len(self.next)} blocks are accounted for; this is a bug in relay")


class Rows:
    """The columns of a fixed number of slots, and their rows of ids; `Arena`, built on this, says what they mean."""

    def __init__(self, capacity: int, ids_capacity: int = 0, max_length: int = 0, generation: int = 1) -> None:
        capacity = as_range("capacity", capacity, 1, MAX_SLOTS)
        n_blocks = -(-as_range("ids_capacity", ids_capacity, 0, MAX_IDS) // BLOCK)
        self._max_length = as_range("max_length", max_length, 0, n_blocks * BLOCK) or n_blocks * BLOCK
        generation = as_range("generation", generation, 1, MAX_GENERATION)
        self.word = StateWords(capacity)
        self.word._words[:] = [generation << 8] * capacity  # nobody else has them yet
        self.key, self.arrival_ns, self.ready_ns, self.commit_ns, self.deadline_ns = ([0] * capacity for _ in _WIDE)
        self.cost, self.tenant, self.epoch, self.group, self.length, self.split = ([0] * capacity for _ in range(6))
        self.first_block, self.n_blocks = [-1] * capacity, [0] * capacity
        self.blocks = Blocks(n_blocks)

    @property
    def capacity(self) -> int:
        """How many slots there are."""
        return len(self.key)

    @property
    def ids_capacity(self) -> int:
        """Ids all rows hold together."""
        return len(self.blocks.ids)

    @property
    def max_length(self) -> int:
        """Ids one row may hold."""
        return self._max_length

    @property
    def free_blocks(self) -> int:
        """How many blocks of 32 ids are free."""
        return self.blocks.free

    def ids(self, handle: int) -> list[int]:
        """The ids of the row.

        Raises:
            StaleToken: The lease has ended.
        """
        slot = self._live(handle) and handle & _SLOT
        return self.blocks.read(self.first_block[slot], self.length[slot]).tolist()

    def live(self, handle: int) -> bool:
        """Whether the handle's lease has not ended; a dropped one lives until it is unpinned."""
        return self._find(handle) != 0

    def queued(self, handle: int) -> bool:
        """Whether the handle's lease is QUEUED and not dropped."""
        return self._find(handle) & 11 == QUEUED

    def handle(self, slot: int) -> int:
        """The handle of the lease a slot is under, or `NO_HANDLE` (-1) if it is free."""
        slot = as_range("slot", slot, 0, len(self.key) - 1)
        word = self.word.load(slot)
        return word >> 8 << SLOT_BITS | slot if word & 3 else -1

    def facts(self, handle: int) -> dict[str, int]:
        """All there is to know of a lease: slot, generation, state, flags, and each column.

        Raises:
            StaleToken: The lease has ended.
        """
        word, slot = self._live(handle), handle & _SLOT
        columns = {name: getattr(self, name)[slot] for name in (*_WIDE, *_NARROW)}
        return {"slot": slot, "generation": word >> 8, "state": word & 3, "flags": word & 12, **columns}

    def set_key(self, handle: int, key: int) -> bool:
        """Sets the order key. False if stale, as for each setter."""
        return self._set(self.key, handle, as_int64("key", key))

    def set_ready(self, handle: int, ready_ns: int) -> bool:
        """Sets the time its row was ready."""
        return self._set(self.ready_ns, handle, as_int64("ready_ns", ready_ns))

    def set_commit(self, handle: int, commit_ns: int) -> bool:
        """Sets the time it was committed."""
        return self._set(self.commit_ns, handle, as_int64("commit_ns", commit_ns))

    def set_deadline(self, handle: int, deadline_ns: int) -> bool:
        """Sets the deadline, -1 for none."""
        return self._set(self.deadline_ns, handle, as_int64("deadline_ns", deadline_ns))

    def set_cost(self, handle: int, cost: int) -> bool:
        """Sets the compute units."""
        return self._set(self.cost, handle, as_int32("cost", cost))

    def set_epoch(self, handle: int, epoch: int) -> bool:
        """Sets the model version, bound when committed."""
        return self._set(self.epoch, handle, as_int32("epoch", epoch))

    def set_group(self, handle: int, group: int) -> bool:
        """Sets the group it may share a batch with."""
        return self._set(self.group, handle, as_int32("group", group))

    def _stale(self, handle: int) -> StaleToken:
        return StaleToken(f"handle {int(handle)} is stale: the lease it was given for has ended; take a new one")

    def _find(self, handle: int) -> int:
        """The word of the handle's slot, or 0 if the handle is stale."""
        handle = as_int64("handle", handle)
        if handle < 0 or handle & _SLOT >= len(self.key):
            return 0
        word = self.word.load(handle & _SLOT)
        return word if word >> 8 == handle >> SLOT_BITS and word & 3 else 0

    def _live(self, handle: int) -> int:
        word = self._find(handle)
        if not word:
            raise self._stale(handle)
        return word

    def _set(self, column: list[int], handle: int, value: int) -> bool:
        if not self._find(handle):
            return False
        column[handle & _SLOT] = value
        return True
