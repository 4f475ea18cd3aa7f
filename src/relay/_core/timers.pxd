# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# Verbs over the heap's struct, whose key is then a time. As there: no lock, no allocation, no Python; the owner of the
# struct lets one thread in at a time. A heap that is used for timers is used for nothing else.

from libc.stdint cimport INT64_MAX, int32_t, int64_t

from relay._core.heap cimport HEAP_ROOT, Heap, heap_pop, heap_push, heap_remove


cdef inline int timers_arm(Heap* h, int32_t slot, int64_t when_ns) noexcept nogil:
    # 0, or -2: slot out of range. An armed timer is moved, and is then the latest armed.
    heap_remove(h, slot)
    return -2 if heap_push(h, when_ns, slot) < 0 else 0


cdef inline int timers_disarm(Heap* h, int32_t slot) noexcept nogil:
    # 1, or 0: was not armed.
    return heap_remove(h, slot)


cdef inline int64_t timers_next(const Heap* h) noexcept nogil:
    # The earliest time, or INT64_MAX: none.
    return h.nodes[HEAP_ROOT].key if h.size else INT64_MAX


cdef inline int32_t timers_due_one(Heap* h, int64_t now_ns) noexcept nogil:
    # Takes the earliest timer away if it is due: its slot, or -1.
    return heap_pop(h) if h.size and h.nodes[HEAP_ROOT].key <= now_ns else -1


cdef class Timers:
    cdef Heap s
