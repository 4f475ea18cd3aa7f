"""The order of waiting: an indexed priority heap of slots, by key and then by arrival.

It owns (key, arrival sequence, slot) entries and nothing else: it knows only integers. It takes no lock; one thread at
a time may call it. The invariant: every slot is in the heap at most once, the order is total, and no entry outlives its
removal, so the heap is never larger than its slots.

Here the entries stand in one sorted list, most urgent last: the plainest thing that keeps these promises, and as long
as the list is not huge, moving its tail in C costs less than sifting in Python. The native side is a 4-ary heap.
"""

from __future__ import annotations

from bisect import bisect_left, insort

_MAX_SLOTS = 2**22
_SEQ_END = 2**42


def _int64(name: str, value: int) -> int:
    """Returns `value` if it is an int of 64 bits, else raises an error that calls it `name`."""
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not -(2**63) <= value < 2**63:
        raise OverflowError(f"{name} {value:d} does not fit in 64 bits")
    return value


def _capacity(value: int) -> int:
    """Returns `value` if a heap may have that many slots, else raises."""
    if not 1 <= _int64("capacity", value) <= _MAX_SLOTS:
        raise ValueError(f"capacity {value:d} is out of range: give 1 to {_MAX_SLOTS}")
    return int(value)


class PriorityHeap:
    """Slots in order of (key, arrival): the smallest key leaves first, equal keys leave as they came.

    Args:
        capacity: The number of slots, 1 to 4,194,304. Slots are the ints 0 to capacity - 1.

    Raises:
        ValueError: `capacity` is out of range.
    """

    __slots__ = ("_capacity", "_entries", "_next_seq", "_order")

    def __init__(self, capacity: int) -> None:
        self._capacity = _capacity(capacity)
        # Negated, so that the most urgent entry is the last and leaves without moving the others.
        self._order: list[tuple[int, int, int]] = []
        self._entries: dict[int, tuple[int, int, int]] = {}
        self._next_seq = 0

    @property
    def capacity(self) -> int:
        """The number of slots this heap was made for."""
        return self._capacity

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, slot: int) -> bool:
        return _int64("slot", slot) in self._entries

    def push(self, key: int, slot: int) -> None:
        """Puts a slot in, as the latest arrival.

        Args:
            key: The order key; smaller is more urgent.
            slot: The slot, not now in the heap.

        Raises:
            ValueError: The heap is full, the slot is out of range, or it is already in.
            TypeError: An argument is not an int.
            OverflowError: An argument does not fit in 64 bits.
        """
        self._put(_int64("key", key), self._next_seq, _int64("slot", slot))

    def push_seq(self, key: int, seq: int, slot: int) -> None:
        """Puts a slot back with the arrival sequence that it had before.

        Args:
            key: The order key.
            seq: A sequence that `pop_node` gave. Later arrivals get larger ones.
            slot: The slot, not now in the heap.

        Raises:
            ValueError: As for `push`, or the sequence is out of range.
            TypeError: An argument is not an int.
            OverflowError: An argument does not fit in 64 bits.
        """
        self._put(_int64("key", key), _int64("seq", seq), _int64("slot", slot))

    def pop(self) -> int:
        """Takes the most urgent slot out.

        Returns:
            The slot, or -1 if the heap is empty.
        """
        if not self._order:
            return -1
        slot = -self._order.pop()[2]
        del self._entries[slot]
        return slot

    def pop_node(self) -> tuple[int, int, int] | None:
        """Takes the most urgent entry out with all that `push_seq` needs to put it back.

        Sequences are renumbered once in 2**42 arrivals; one that is outside the heap at that moment then sorts as late.

        Returns:
            (key, sequence, slot), or None if the heap is empty.
        """
        if not self._order:
            return None
        key, seq, slot = self._order.pop()
        del self._entries[-slot]
        return -key, -seq, -slot

    def pop_many(self, n: int) -> list[int]:
        """Takes up to `n` slots out, most urgent first.

        Args:
            n: How many at most.

        Raises:
            ValueError: `n` is negative.
            TypeError: `n` is not an int.
            OverflowError: `n` does not fit in 64 bits.
        """
        if _int64("n", n) < 0:
            raise ValueError(f"cannot pop {n:d} slots: give 0 or more")
        return [self.pop() for _ in range(min(n, len(self._order)))]

    def remove(self, slot: int) -> bool:
        """Takes a slot out, wherever it stands.

        Returns:
            Whether it was in.

        Raises:
            TypeError: `slot` is not an int.
            OverflowError: `slot` does not fit in 64 bits.
        """
        entry = self._entries.pop(_int64("slot", slot), None)
        if entry is None:
            return False
        del self._order[bisect_left(self._order, entry)]
        return True

    def lift(self, slot: int, key: int) -> bool:
        """Gives a slot a new key and lets it keep its arrival: removal, and re-insertion with the old sequence.

        Args:
            slot: The slot.
            key: Its new key, usually a more urgent one.

        Returns:
            Whether the slot was in; if not, nothing has changed.

        Raises:
            TypeError: An argument is not an int.
            OverflowError: An argument does not fit in 64 bits.
        """
        slot, key = _int64("slot", slot), _int64("key", key)
        entry = self._entries.get(slot)
        if entry is None:
            return False
        del self._order[bisect_left(self._order, entry)]
        self._insert((-key, entry[1], entry[2]))
        return True

    def peek(self) -> int:
        """Returns the most urgent slot, which stays in, or -1 if the heap is empty."""
        return -self._order[-1][2] if self._order else -1

    def key_of(self, slot: int) -> int:
        """Returns the key of a slot that is in the heap.

        Raises:
            ValueError: The slot is not in the heap.
            TypeError: `slot` is not an int.
            OverflowError: `slot` does not fit in 64 bits.
        """
        entry = self._entries.get(_int64("slot", slot))
        if entry is None:
            raise ValueError(f"slot {slot:d} is not in the heap: ask `slot in heap` first")
        return -entry[0]

    def check(self) -> None:
        """Recounts everything.

        Raises:
            AssertionError: An invariant is broken; that is a bug in relay.
        """
        order = self._order
        if any(a >= b for a, b in zip(order, order[1:], strict=False)):
            raise AssertionError("heap: an entry stands out of order; this is a bug in relay")
        if {-entry[2]: entry for entry in order} != self._entries or len(order) != len(self._entries):
            raise AssertionError("heap: the index of slots is wrong; this is a bug in relay")
        if not all(0 <= slot < self._capacity for slot in self._entries):
            raise AssertionError("heap: a slot is out of range; this is a bug in relay")
        if not all(0 <= -seq < self._next_seq for _, seq, _ in order) or not 0 <= self._next_seq < _SEQ_END:
            raise AssertionError("heap: a sequence is out of range; this is a bug in relay")

    def _put(self, key: int, seq: int, slot: int) -> None:
        if len(self._order) == self._capacity:
            raise ValueError(f"the heap is full: all {self._capacity} slots are in it; pop or remove one first")
        if not 0 <= slot < self._capacity:
            raise ValueError(f"slot {slot:d} is out of range: this heap has slots 0 to {self._capacity - 1}")
        if slot in self._entries:
            raise ValueError(f"slot {slot:d} is already in the heap: lift it or remove it first")
        if not 0 <= seq < _SEQ_END:
            raise ValueError(f"seq {seq:d} is out of range: give one that pop_node returned, 0 to {_SEQ_END - 1}")
        self._insert((-key, -seq, -slot))
        self._next_seq = max(self._next_seq, seq + 1)
        if self._next_seq == _SEQ_END:
            self._renumber()

    def _insert(self, entry: tuple[int, int, int]) -> None:
        insort(self._order, entry)
        self._entries[-entry[2]] = entry

    def _renumber(self) -> None:
        """Gives the entries the sequences 0, 1, ... in order of arrival; sequences have 42 bits on both sides."""
        arrivals = sorted(self._order, key=lambda entry: (-entry[1], -entry[2]))
        self._order = sorted((key, -i, slot) for i, (key, _, slot) in enumerate(arrivals))
        self._entries = {-entry[2]: entry for entry in self._order}
        self._next_seq = len(arrivals)
