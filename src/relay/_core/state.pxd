# cython: language_level=3
# The words and handles of `relay._pure.state`, for other core parts to inline. Any thread may call this, with the GIL
# or without.

from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.stdint cimport int32_t, int64_t, uint64_t
from libcpp.atomic cimport atomic, memory_order_acq_rel, memory_order_acquire

cpdef enum:
    IDLE = 0
    QUEUED = 1
    BUSY = 2
    REVOKE = 3
    PINNED = 4
    DROPPED = 8
    SLOT_BITS = 22
    GEN_BITS = 41
    MAX_SLOTS = 4194304
    NO_HANDLE = -1

# The table of edges: bit 4 * old + new. The second holds those that hand the slot to another owner.
cdef enum:
    # IDLE to QUEUED, BUSY; QUEUED to IDLE, BUSY; BUSY to IDLE, QUEUED, REVOKE; REVOKE to IDLE
    EDGE_BITS = 0x06 | 0x50 | 0xB00 | 0x1000
    # BUSY to BUSY; REVOKE to BUSY
    HAND_OVER_BITS = 0x400 | 0x4000

ctypedef atomic[uint64_t] Word


cdef inline uint64_t state_word(uint64_t generation, uint64_t state, uint64_t flags) noexcept nogil:
    return generation << 8 | flags | state


cdef inline int state_bits(uint64_t word) noexcept nogil:
    return <int>(word & 3)


cdef inline int state_flags(uint64_t word) noexcept nogil:
    return <int>(word & (PINNED | DROPPED))


cdef inline int64_t state_generation(uint64_t word) noexcept nogil:
    return <int64_t>(word >> 8)


cdef inline int64_t state_handle(int64_t generation, int64_t slot) noexcept nogil:
    return generation << SLOT_BITS | slot


cdef inline int32_t state_slot(int64_t handle) noexcept nogil:
    return <int32_t>(handle & (MAX_SLOTS - 1))


cdef inline int64_t state_handle_generation(int64_t handle) noexcept nogil:
    return handle >> SLOT_BITS


cdef inline int64_t state_next_generation(int64_t generation) noexcept nogil:
    return generation + 1 if generation < (<int64_t>1 << GEN_BITS) - 1 else 1


cdef inline bint state_legal(int old_state, int new_state) noexcept nogil:
    return ((EDGE_BITS | HAND_OVER_BITS) >> (4 * old_state + new_state)) & 1


# The word after an edge, or 0 (no word is 0) where the table does not hold it. Ending a lease takes the next generation
# and clears the flags.
cdef inline uint64_t state_edge(uint64_t word, int new_state) noexcept nogil:
    if not (EDGE_BITS >> (4 * <int>(word & 3) + new_state)) & 1:
        return 0
    if new_state == IDLE:
        return state_word(<uint64_t>state_next_generation(state_generation(word)), IDLE, 0)
    return (word & ~<uint64_t>3) | <uint64_t>new_state


cdef inline uint64_t state_hand_over(uint64_t word) noexcept nogil:
    if not (HAND_OVER_BITS >> (4 * <int>(word & 3) + BUSY)) & 1:
        return 0
    return state_word(<uint64_t>state_next_generation(state_generation(word)), BUSY, 0)


# Acquire: pairs with the release half of state_cas, so who sees a word also sees the row written before that swap.
cdef inline uint64_t state_load(const Word* word) noexcept nogil:
    return word.load(memory_order_acquire)


# Release half: publishes the row before the word, for state_load and for the next winner. Acquire half: pairs with the
# release of the swap it replaces, so the winner sees all that the last owner wrote. On failure acquire, as state_load:
# the loser looks again, and backs off.
cdef inline bint state_cas(Word* word, uint64_t old, uint64_t new) noexcept nogil:
    return word.compare_exchange_strong(old, new, memory_order_acq_rel, memory_order_acquire)


# Arguments as C ints, with the texts of the pure side.
cdef int64_t as_int64(str name, object value) except? -2
cdef int32_t as_int32(str name, object value) except? -2
cdef int64_t as_range(str name, object value, int64_t low, int64_t high) except? 0


# As as_int64 and as_int32, for hot paths: an exact int that fits takes the short way.
cdef inline int64_t to_int64(str name, object value) except? -2:
    cdef int overflow = 0
    cdef int64_t result
    if PyLong_CheckExact(value):
        result = PyLong_AsLongLongAndOverflow(value, &overflow)
        if not overflow:
            return result
    return as_int64(name, value)


cdef inline int32_t to_int32(str name, object value) except? -2:
    cdef int overflow = 0
    cdef int64_t result
    if PyLong_CheckExact(value):
        result = PyLong_AsLongLongAndOverflow(value, &overflow)
        if not overflow and result == <int32_t>result:
            return <int32_t>result
    return as_int32(name, value)


cdef class StateWords:
    cdef Word* words   # n words, owned; freed with the object; each changes by state_cas only, so needs no lock
    cdef int32_t n     # fixed at construction
