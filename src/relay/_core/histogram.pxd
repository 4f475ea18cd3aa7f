# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# The struct and its verbs, for other core parts to embed by value and inline. No verb takes a lock, allocates, raises,
# or (but hist_total) touches Python: whoever owns the struct lets one thread in at a time. A zeroed struct is an empty
# histogram.

from libc.math cimport ceil
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t
from libc.string cimport memset

cdef extern from *:
    """
    #if defined(_MSC_VER) && !defined(__clang__)
    #include <intrin.h>
    static inline int relay_top_bit(uint64_t x) {
        unsigned long i;
        _BitScanReverse64(&i, x);
        return (int)i;
    }
    #else
    static inline int relay_top_bit(uint64_t x) { return 63 - __builtin_clzll(x); }
    #endif
    """
    int relay_top_bit(uint64_t x) noexcept nogil     # of x > 0


cdef enum:
    HIST_CELLS = 960


cdef struct Hist:                   # every field: guarded by the owner's lock (for the class: the GIL)
    int64_t count                   # the sum of the cells; at most 2**62 after a merge
    int64_t max_ns
    uint64_t total_lo               # the sum of the times, in 128 bits
    uint64_t total_hi
    int64_t cells[HIST_CELLS]


cdef int hist_check(const Hist* h) noexcept nogil      # 0, or the number of the broken invariant


cdef inline void hist_init(Hist* h) noexcept nogil:
    # Also how to clear one.
    memset(h, 0, sizeof(Hist))


cdef inline int32_t hist_cell(uint64_t ns) noexcept nogil:
    # Below 32 the cell is the time; above, 5 bits of the time are left.
    cdef int shift = relay_top_bit(ns | 16) - 4
    return <int32_t>((shift << 4) + (ns >> shift))


cdef inline int64_t hist_low(int32_t cell, int* shift) noexcept nogil:
    # The smallest time of a cell, which is 1 << shift wide.
    shift[0] = (cell >> 4) - 1 if cell >= 32 else 0
    return <int64_t>(cell - (shift[0] << 4)) << shift[0]


cdef inline int64_t hist_upper(int32_t cell) noexcept nogil:
    cdef int shift = 0
    cdef int64_t low = hist_low(cell, &shift)
    return low + ((<int64_t>1 << shift) - 1)


cdef inline void hist_record(Hist* h, int64_t ns) noexcept nogil:
    cdef uint64_t time = <uint64_t>ns if ns > 0 else 0
    h.cells[hist_cell(time)] += 1
    h.count += 1
    h.total_lo += time
    h.total_hi += h.total_lo < time
    if ns > h.max_ns:
        h.max_ns = ns


cdef inline int64_t hist_count(const Hist* h) noexcept nogil:
    return h.count


cdef inline int64_t hist_max(const Hist* h) noexcept nogil:
    return h.max_ns


cdef inline object hist_total(const Hist* h):
    # With the GIL: the sum is a Python int, for it may be longer than 64 bits.
    return (<object>h.total_hi << 64) + h.total_lo if h.total_hi else h.total_lo


cdef inline int64_t hist_rank(const Hist* h, double q) noexcept nogil:
    # The nearest rank, 1 .. count (0 if empty), for q in 0 .. 1.
    cdef int64_t rank = <int64_t>ceil(q * <double>h.count)
    if rank < 1:
        rank = 1
    return rank if rank < h.count else h.count


cdef inline int64_t hist_at(const Hist* h, int64_t rank, int32_t* cell, int64_t* below) noexcept nogil:
    # The time at a rank, 1 .. count. `cell` and `below` begin as 0, 0; a walk to a higher rank may go on from them.
    cdef int shift = 0
    cdef int64_t middle
    while cell[0] < HIST_CELLS - 1 and below[0] + h.cells[cell[0]] < rank:
        below[0] += h.cells[cell[0]]
        cell[0] += 1
    middle = hist_low(cell[0], &shift)
    middle += (<int64_t>1 << shift) >> 1
    return middle if middle < h.max_ns else h.max_ns


cdef inline int64_t hist_quantile(const Hist* h, double q) noexcept nogil:
    # For q in 0 .. 1; 0 if empty.
    cdef int32_t cell = 0
    cdef int64_t below = 0
    return hist_at(h, hist_rank(h, q), &cell, &below) if h.count else 0


cdef inline int hist_merge(Hist* h, const Hist* other) noexcept nogil:
    # 0, or -1: too many times together, nothing has changed. `other` may be `h`.
    cdef int32_t i
    cdef uint64_t lo = other.total_lo
    if other.count > (<int64_t>1 << 62) - h.count:
        return -1
    for i in range(HIST_CELLS):
        h.cells[i] += other.cells[i]
    h.count += other.count
    h.total_lo += lo
    h.total_hi += other.total_hi + (h.total_lo < lo)
    if other.max_ns > h.max_ns:
        h.max_ns = other.max_ns
    return 0


cdef class Histogram:
    cdef Hist s
