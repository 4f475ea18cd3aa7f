# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, language_level=3
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""Which request is already here: a keyed 128-bit hash of the content → the handle that carries it.

`_pure/dedup.py` is the specification. A table owns pairs of integers and never sees content, which the caller compares
in full before anything is shared. Any thread may call its C functions, with or without the GIL, under the lock of the
table's owner. Invariant: every cell from an entry's home to its place is taken, so that a search may stop at the first
empty one; deleting moves entries back to keep it so, and leaves no tombstone.
"""

import hashlib
import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_Check
from cpython.unicode cimport PyUnicode_Check, PyUnicode_DATA, PyUnicode_GET_LENGTH, PyUnicode_KIND
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from relay._core._digest cimport relay_int_from_words, words_of

SLOT_BITS = 22
MAX_SLOTS = DEDUP_MAX_SLOTS
NO_HANDLE = -1
_PROCESS_SECRET = os.urandom(32)

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030C0000
    #undef PyUnicode_READY
    #define PyUnicode_READY(text) 0     /* every str is, and to ask is deprecated */
    #endif
    """
    int PyUnicode_READY(object text) except -1


# The table. A search walks cells of 8 bytes, and reads an entry of 24 only where 32 bits of its hash agree.

cdef int dedup_init(DedupTable* d, int32_t capacity) noexcept nogil:
    cdef size_t cells = 2
    cdef int32_t slot
    memset(d, 0, sizeof(DedupTable))
    if capacity < 1 or capacity > DEDUP_MAX_SLOTS:
        return -1
    while 3 * cells < 4 * <size_t>capacity:
        cells *= 2
    d.cells = <DedupCell*>calloc(1, cells * sizeof(DedupCell) + <size_t>capacity * sizeof(DedupEntry))
    if d.cells == NULL:
        return -1
    d.entries = <DedupEntry*>(d.cells + cells)
    d.mask = <uint32_t>(cells - 1)
    d.capacity = capacity
    for slot in range(capacity):
        d.entries[slot].handle = -1
    return 0


cdef void dedup_free(DedupTable* d) noexcept nogil:
    free(d.cells)
    memset(d, 0, sizeof(DedupTable))


cdef inline int64_t slot_in(int64_t handle) noexcept nogil:
    return handle & (DEDUP_MAX_SLOTS - 1)


cdef int dedup_insert(DedupTable* d, uint64_t lo, uint64_t hi, int64_t handle) noexcept nogil:
    cdef int64_t slot = slot_in(handle)
    cdef uint32_t tag = <uint32_t>lo
    cdef uint32_t at = tag & d.mask
    cdef DedupEntry* entry
    if handle < 0 or slot >= d.capacity:
        return -2
    while d.cells[at].slot != 0:
        if d.cells[at].tag == tag:
            entry = &d.entries[d.cells[at].slot - 1]
            if entry.lo == lo and entry.hi == hi:
                return 0
        at = (at + 1) & d.mask
    if d.count == d.capacity:
        return 0
    entry = &d.entries[slot]
    if entry.handle != -1:
        return -1
    entry.lo = lo
    entry.hi = hi
    entry.handle = handle
    d.cells[at].tag = tag
    d.cells[at].slot = <uint32_t>slot + 1
    d.count += 1
    return 1


cdef int dedup_delete(DedupTable* d, int64_t handle) noexcept nogil:
    cdef int64_t slot = slot_in(handle)
    cdef uint32_t at, hole
    if handle < 0 or slot >= d.capacity or d.entries[slot].handle != handle:
        return 0
    hole = <uint32_t>d.entries[slot].lo & d.mask
    while d.cells[hole].slot != <uint32_t>slot + 1:     # ends: the slot has an entry
        hole = (hole + 1) & d.mask
    at = (hole + 1) & d.mask
    while d.cells[at].slot != 0:
        # Moves back into the hole unless that lies before its home, where no search for it would come by.
        if ((at - (d.cells[at].tag & d.mask)) & d.mask) >= ((at - hole) & d.mask):
            d.cells[hole] = d.cells[at]
            hole = at
        at = (at + 1) & d.mask
    d.cells[hole].tag = 0
    d.cells[hole].slot = 0
    d.entries[slot].handle = -1
    d.count -= 1
    return 1


cdef void dedup_clear(DedupTable* d) noexcept nogil:
    cdef int32_t slot
    memset(d.cells, 0, (<size_t>d.mask + 1) * sizeof(DedupCell))
    for slot in range(d.capacity):
        d.entries[slot].handle = -1
    d.count = 0


cdef int dedup_check(const DedupTable* d) noexcept nogil:
    cdef int32_t in_cells = 0, in_slots = 0, slot
    cdef uint32_t at, back
    cdef const DedupEntry* entry
    for at in range(d.mask + 1):
        if d.cells[at].slot == 0:
            continue
        in_cells += 1
        if d.cells[at].slot > <uint32_t>d.capacity:
            return 1
        entry = &d.entries[d.cells[at].slot - 1]
        if entry.handle < 0 or slot_in(entry.handle) != d.cells[at].slot - 1 or <uint32_t>entry.lo != d.cells[at].tag:
            return 2
        back = at
        while back != d.cells[at].tag & d.mask:
            back = (back - 1) & d.mask
            if d.cells[back].slot == 0:
                return 3
    for slot in range(d.capacity):
        in_slots += d.entries[slot].handle != -1
    return 0 if in_cells == d.count and in_slots == d.count else 4


# The face: what needs the GIL.

cdef int hash_object(object data, const uint64_t* secret, uint64_t* lo, uint64_t* hi) except -1:
    # A str is hashed in place: equal str have equal kinds and equal bytes. Each kind, and bytes objects, are told apart
    # by words of the secret laid over the hash: 26-28 and 29-31.
    cdef int kind
    if PyUnicode_Check(data):
        PyUnicode_READY(data)
        kind = PyUnicode_KIND(data)
        hash128(PyUnicode_DATA(data), <size_t>PyUnicode_GET_LENGTH(data) * kind, secret, lo, hi)
        lo[0] ^= secret[26 + (kind >> 1)]
        hi[0] ^= secret[29 + (kind >> 1)]
    elif PyBytes_Check(data):
        hash128(PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data), secret, lo, hi)
    else:
        raise TypeError(f"data must be str or bytes, got {type(data).__name__}")
    return 0


cdef int secret_words(object secret, uint64_t* words) except -1:
    cdef int i
    if secret is None:
        secret = _PROCESS_SECRET
    elif not PyBytes_Check(secret):
        raise TypeError(f"secret must be bytes, got {type(secret).__name__}")
    elif not 16 <= PyBytes_GET_SIZE(secret) <= 64:
        raise ValueError(f"secret has {len(secret)} bytes: give 16 to 64, as os.urandom(32) does, or leave it out")
    for i in range(SECRET_WORDS // 8):
        block = hashlib.blake2b(b"%d" % i, digest_size=64, key=secret, usedforsecurity=False).digest()
        memcpy(words + 8 * i, PyBytes_AS_STRING(block), 64)
    return 0


cdef inline int64_t as_int64(object value, str name) except? -1:
    cdef int overflow = 0
    if not PyLong_Check(value):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    cdef int64_t result = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        raise OverflowError(f"{name} {value} does not fit in 64 bits")
    return result


cdef class Dedup:
    """Dedup(capacity, secret=None)
--

A table of fixed capacity from content hashes to handles."""

    def __cinit__(self, capacity, secret=None):
        cdef int64_t slots = as_int64(capacity, "capacity")
        if not 1 <= slots <= DEDUP_MAX_SLOTS:
            raise ValueError(f"capacity {slots} is out of range: give 1 to {MAX_SLOTS}")
        secret_words(secret, self.secret)
        if dedup_init(&self.s, <int32_t>slots) != 0:
            raise MemoryError(f"no memory for a dedup of {slots} slots")

    def __dealloc__(self):
        dedup_free(&self.s)

    @property
    def capacity(self):
        """The slots it can have entries for; never changes."""
        return self.s.capacity

    def __len__(self):
        return dedup_len(&self.s)

    def hash(self, data):
        """Hash a str or bytes under this table's secret: 0 to 2**128 - 1."""
        cdef uint64_t lo, hi
        hash_object(data, self.secret, &lo, &hi)
        return relay_int_from_words(lo, hi)

    def insert(self, h, handle):
        """Enter a handle under a hash; False if the hash is present or the table full."""
        cdef uint64_t lo, hi
        words_of("h", h, &lo, &hi)
        cdef int64_t named = as_int64(handle, "handle")
        cdef int done = dedup_insert(&self.s, lo, hi, named)
        if done >= 0:
            return done == 1
        slot = slot_in(named)
        if named < 0:
            raise ValueError(f"handle {named} is out of range: handles are not negative")
        if done == -2:
            raise ValueError(f"handle {named} names slot {slot}: this table has slots 0 to {self.s.capacity - 1}")
        raise ValueError(f"slot {slot} has an entry, of handle {self.s.entries[slot].handle}: delete that first")

    def find(self, h):
        """Return the handle entered under a hash, or -1."""
        cdef uint64_t lo, hi
        words_of("h", h, &lo, &hi)
        return dedup_find(&self.s, lo, hi)

    def delete(self, handle):
        """Take out the entry of a handle; False if it has none."""
        return dedup_delete(&self.s, as_int64(handle, "handle")) == 1

    def check(self):
        """Recount everything; AssertionError if an invariant is broken."""
        cdef int broken = dedup_check(&self.s)
        if broken:
            what = ("a cell names no slot", "cell and slot disagree", "a search misses an entry", "the count is wrong")
            raise AssertionError(f"dedup: {what[broken - 1]}; this is a bug in relay")
