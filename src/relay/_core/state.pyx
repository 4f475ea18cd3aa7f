# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""The state word, compiled; `relay._pure.state` is the specification.

Owns the layout of words and handles, the one table of edges, and the atomic words. Any thread may call anything here
without a lock. Invariant: a generation names exactly one lease, for every edge that ends a lease takes the next
generation.
"""

from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.number cimport PyNumber_Index
from libc.stdlib cimport calloc, free
from libcpp.atomic cimport memory_order_relaxed

__all__ = [
    "BUSY", "DROPPED", "EDGES", "GEN_BITS", "IDLE", "MAX_GENERATION", "MAX_SLOTS", "NAMES", "NO_HANDLE", "PINNED",
    "QUEUED", "REVOKE", "SLOT_BITS", "StateWords", "edge", "flags_of", "generation_of", "handle_generation",
    "handle_of", "legal", "next_generation", "slot_of", "state_of", "whole", "word",
]

MAX_GENERATION = (1 << 41) - 1
NAMES = ("IDLE", "QUEUED", "BUSY", "REVOKE")
EDGES = frozenset((old, new) for old in range(4) for new in range(4) if state_legal(old, new))

cdef int64_t LAST_GENERATION = (<int64_t>1 << GEN_BITS) - 1
cdef int64_t MAX_WORD = (<int64_t>1 << (8 + GEN_BITS)) - 1
cdef int64_t MAX_HANDLE = 0x7FFFFFFFFFFFFFFF


def whole(value):
    """The int that an argument is, or stands for, or None."""
    if PyLong_CheckExact(value):
        return value
    try:
        return int(PyNumber_Index(value))
    except TypeError:
        return None


cdef int64_t as_int64(str name, object value) except? -2:
    cdef int overflow = 0
    cdef int64_t result
    number = whole(value)
    if number is None:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    result = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow:
        raise OverflowError(f"{name} {number} does not fit in 64 bits")
    return result


cdef int32_t as_int32(str name, object value) except? -2:
    cdef int overflow = 0
    cdef int64_t result
    number = whole(value)
    if number is None:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    result = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow or result != <int32_t>result:
        raise OverflowError(f"{name} {number} does not fit in 32 bits")
    return <int32_t>result


cdef int64_t as_range(str name, object value, int64_t low, int64_t high) except? 0:
    cdef int64_t result = as_int64(name, value)
    if result < low or result > high:
        raise ValueError(f"{name} {result} is outside {low}..{high}")
    return result


def word(generation, state, flags=0):
    cdef int64_t g = as_range("generation", generation, 1, LAST_GENERATION)
    cdef int64_t s = as_range("state", state, IDLE, REVOKE)
    cdef int64_t f = as_int64("flags", flags)
    if f & ~<int64_t>(PINNED | DROPPED):
        raise ValueError(f"flags {f} holds bits other than PINNED {PINNED} and DROPPED {DROPPED}")
    return state_word(<uint64_t>g, <uint64_t>s, <uint64_t>f)


def state_of(word):
    return state_bits(<uint64_t>as_range("word", word, 0, MAX_WORD))


def flags_of(word):
    return state_flags(<uint64_t>as_range("word", word, 0, MAX_WORD))


def generation_of(word):
    return state_generation(<uint64_t>as_range("word", word, 0, MAX_WORD))


def handle_of(generation, slot):
    cdef int64_t g = as_range("generation", generation, 1, LAST_GENERATION)
    return state_handle(g, as_range("slot", slot, 0, MAX_SLOTS - 1))


def slot_of(handle):
    return state_slot(as_range("handle", handle, 0, MAX_HANDLE))


def handle_generation(handle):
    return state_handle_generation(as_range("handle", handle, 0, MAX_HANDLE))


def next_generation(generation):
    return state_next_generation(as_range("generation", generation, 1, LAST_GENERATION))


def legal(old_state, new_state):
    cdef int64_t old = as_int64("old_state", old_state)
    cdef int64_t new = as_int64("new_state", new_state)
    return 0 <= old <= 3 and 0 <= new <= 3 and state_legal(<int>old, <int>new)


def edge(word, new_state, *, hand_over=False):
    cdef uint64_t old = <uint64_t>as_range("word", word, 0, MAX_WORD)
    cdef int to = <int>as_range("new_state", new_state, IDLE, REVOKE)
    cdef bint over = bool(hand_over)
    cdef uint64_t new = 0
    if not over:
        new = state_edge(old, to)
    elif to == BUSY:
        new = state_hand_over(old)
    if new == 0:
        how = "hand-over" if over else "edge"
        raise ValueError(f"there is no {how} {NAMES[state_bits(old)]} -> {NAMES[to]}; see relay's table of edges")
    return new


cdef class StateWords:
    """StateWords(n)
--

A row of atomic words; see `relay._pure.state.StateWords`."""

    def __cinit__(self, n):
        cdef int32_t i
        self.n = <int32_t>as_range("n", n, 1, MAX_SLOTS)
        self.words = <Word*>calloc(<size_t>self.n, sizeof(Word))
        if self.words == NULL:
            raise MemoryError()
        for i in range(self.n):
            # Relaxed: nobody else has the object yet; the GIL publishes it.
            self.words[i].store(state_word(1, IDLE, 0), memory_order_relaxed)

    def __dealloc__(self):
        free(self.words)

    def __len__(self):
        cdef int32_t i, live = 0
        for i in range(self.n):
            live += state_bits(state_load(&self.words[i])) != IDLE
        return live

    @property
    def capacity(self):
        return self.n

    def load(self, i):
        return state_load(&self.words[as_range("index", i, 0, self.n - 1)])

    def cas(self, i, old, new):
        cdef int64_t index = as_range("index", i, 0, self.n - 1)
        cdef int64_t before = as_range("old", old, 0, MAX_WORD)
        cdef int64_t after = as_range("new", new, 0, MAX_WORD)
        return state_cas(&self.words[index], <uint64_t>before, <uint64_t>after)

    def check(self):
        cdef int32_t i
        cdef uint64_t value
        for i in range(self.n):
            value = state_load(&self.words[i])
            dangling = value & DROPPED and not value & PINNED
            if value < 256 or value & 0xF0 or dangling or (not value & 3 and value & (PINNED | DROPPED)):
                raise AssertionError(f"word {i} is {value:#x}; this is a bug in relay")
