"""Deadlines: which slots are due, and when the next one will be.

It owns one indexed heap, ordered by time and then by arming. It reads no clock and starts no thread: the caller brings
the time. It takes no lock; one thread at a time may call it. The invariant: a slot has at most one timer, and one that
was disarmed or due is gone, so there are never more timers than slots.
"""

from __future__ import annotations

from relay._pure.heap import PriorityHeap, _int64


class Timers:
    """One timer a slot, due in order of time; timers of the same time are due as they were armed.

    Args:
        capacity: The number of slots, 1 to 4,194,304. Slots are the ints 0 to capacity - 1.

    Raises:
        ValueError: `capacity` is out of range.
    """

    __slots__ = ("_heap",)

    def __init__(self, capacity: int) -> None:
        self._heap = PriorityHeap(capacity)

    @property
    def capacity(self) -> int:
        """The number of slots these timers were made for."""
        return self._heap.capacity

    def __len__(self) -> int:
        return len(self._heap)

    def arm(self, slot: int, when_ns: int) -> None:
        """Sets the timer of a slot; one that is armed already is moved, and is then the latest armed.

        Args:
            slot: The slot.
            when_ns: The time from which it is due, on the caller's clock.

        Raises:
            ValueError: The slot is out of range.
            TypeError: An argument is not an int.
            OverflowError: An argument does not fit in 64 bits.
        """
        slot, when_ns = _int64("slot", slot), _int64("when_ns", when_ns)
        if not 0 <= slot < self.capacity:
            raise ValueError(f"slot {slot:d} is out of range: these timers have slots 0 to {self.capacity - 1}")
        self._heap.remove(slot)
        self._heap.push(when_ns, slot)

    def disarm(self, slot: int) -> bool:
        """Takes the timer of a slot away.

        Returns:
            Whether it was armed.

        Raises:
            TypeError: `slot` is not an int.
            OverflowError: `slot` does not fit in 64 bits.
        """
        return self._heap.remove(slot)

    def due(self, now_ns: int) -> list[int]:
        """Takes away every timer whose time is `now_ns` or earlier.

        Args:
            now_ns: The time on the caller's clock.

        Returns:
            Their slots, in order of time and then of arming.

        Raises:
            TypeError: `now_ns` is not an int.
            OverflowError: `now_ns` does not fit in 64 bits.
        """
        now_ns = _int64("now_ns", now_ns)
        slots = []
        while len(self._heap) and self._heap.key_of(self._heap.peek()) <= now_ns:
            slots.append(self._heap.pop())
        return slots

    def next_ns(self) -> int | None:
        """Returns the time of the earliest timer, or None if none is armed."""
        return self._heap.key_of(self._heap.peek()) if len(self._heap) else None

    def check(self) -> None:
        """Recounts everything.

        Raises:
            AssertionError: An invariant is broken; that is a bug in relay.
        """
        self._heap.check()
