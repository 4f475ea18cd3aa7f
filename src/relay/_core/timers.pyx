# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""Deadlines: which slots are due, and when the next one will be.

It owns one heap struct, ordered by time and then by arming. It reads no clock. It takes no lock: the class relies on
the GIL, a core part that embeds the struct brings its own guard. The invariant is the heap's: at most one timer a slot.
"""

from relay._core.heap cimport HEAP_MAX_SLOTS, heap_check, heap_free, heap_init, int64_of, slot_index


cdef class Timers:
    """Timers(capacity)
--

One timer a slot, due in order of time; timers of the same time are due as they were armed."""

    def __init__(self, capacity):
        cdef int64_t slots = int64_of(capacity, "capacity")
        if not 1 <= slots <= HEAP_MAX_SLOTS:
            raise ValueError(f"capacity {slots} is out of range: give 1 to {HEAP_MAX_SLOTS}")
        heap_free(&self.s)
        if heap_init(&self.s, <int32_t>slots) < 0:
            raise MemoryError(f"no memory for timers of {slots} slots")

    def __dealloc__(self):
        heap_free(&self.s)

    @property
    def capacity(self):
        """The number of slots these timers were made for."""
        return self.s.capacity

    def __len__(self):
        return self.s.size

    def arm(self, slot, when_ns):
        """Sets the timer of a slot; one that is armed already is moved, and is then the latest armed."""
        cdef int64_t i = int64_of(slot, "slot")
        cdef int64_t when = int64_of(when_ns, "when_ns")
        if timers_arm(&self.s, slot_index(i), when) < 0:
            raise ValueError(f"slot {i} is out of range: these timers have slots 0 to {self.s.capacity - 1}")

    def disarm(self, slot):
        """Takes the timer of a slot away; tells whether it was armed."""
        return timers_disarm(&self.s, slot_index(int64_of(slot, "slot"))) == 1

    def due(self, now_ns):
        """Takes away every timer whose time is `now_ns` or earlier; their slots, in order of time, then arming."""
        cdef int64_t now = int64_of(now_ns, "now_ns")
        cdef list slots = []
        cdef int32_t slot = timers_due_one(&self.s, now)
        while slot >= 0:
            slots.append(slot)
            slot = timers_due_one(&self.s, now)
        return slots

    def next_ns(self):
        """The time of the earliest timer, or None if none is armed."""
        return timers_next(&self.s) if self.s.size else None

    def check(self):
        """Recounts everything; raises AssertionError on a broken invariant."""
        cdef int broken = heap_check(&self.s)
        if broken:
            raise AssertionError(f"timers: the heap's invariant {broken} does not hold; this is a bug in relay")
