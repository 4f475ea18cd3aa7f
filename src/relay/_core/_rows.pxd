# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# What the slots of an arena hold, as `relay._pure._rows`: the table of columns, and rows of ids in chained blocks of
# 32. No verb takes a lock, allocates, raises, or touches Python: whoever owns the table lets one thread in at a time.
# There is no _rows.pyx: all of it is inlined into the arena and what is built on it.

from cpython.buffer cimport PyBUF_FULL_RO, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from relay._core.state cimport (
    DROPPED, IDLE, MAX_SLOTS, PINNED, SLOT_BITS, Word, state_bits, state_generation, state_load, to_int32,
)

cdef enum:
    BLOCK_IDS = 32


cdef struct ArenaTable:      # every field: guarded by the owner's lock (for the class: the GIL), but for word
    void* block              # owned: the one allocation; all columns point into it
    Word* word               # state words; each changes by compare-and-swap of the whole word only
    int64_t* key             # order key
    int64_t* arrival_ns
    int64_t* ready_ns        # -1: not yet, as for the next two
    int64_t* commit_ns
    int64_t* deadline_ns     # -1: none
    int32_t* cost            # compute units
    int32_t* tenant
    int32_t* epoch           # model version
    int32_t* group           # only equal groups share a batch
    int32_t* length          # ids in the row
    int32_t* split           # index of the first id of the second segment, or -1
    int32_t* first_block     # of the row's chain, or -1
    int32_t* n_blocks        # in the row's chain
    int32_t* next_slot       # free list
    int32_t* next_block      # chains and free list
    int32_t* ids             # 32 a block, 64-byte aligned; a pinned row may be read and written without the lock
    int32_t capacity         # slots, fixed
    int32_t blocks           # fixed
    int32_t max_length       # ids a row may hold, fixed
    int32_t free_slots       # counted
    int32_t slot_head        # first free slot, or -1
    int32_t free_blocks      # counted
    int32_t block_head       # first free block, or -1


# The word of the handle's slot, or 0 if the handle is stale.
cdef inline uint64_t arena_find(const ArenaTable* a, int64_t handle) noexcept nogil:
    cdef int64_t slot = handle & (MAX_SLOTS - 1)
    cdef uint64_t word
    if handle < 0 or slot >= a.capacity:
        return 0
    word = state_load(&a.word[slot])
    return word if state_bits(word) and state_generation(word) == handle >> SLOT_BITS else 0


cdef inline int32_t rows_blocks_for(int32_t n) noexcept nogil:
    return n // BLOCK_IDS + (n % BLOCK_IDS != 0)


# A chain of n blocks off the free list (the caller has seen that so many are free), or -1 if n is 0.
cdef inline int32_t rows_take(ArenaTable* a, int32_t n) noexcept nogil:
    cdef int32_t first = a.block_head
    cdef int32_t last = first
    cdef int32_t i
    if n <= 0:
        return -1
    for i in range(n - 1):
        last = a.next_block[last]
    a.block_head = a.next_block[last]
    a.next_block[last] = -1
    a.free_blocks -= n
    return first


cdef inline void rows_give(ArenaTable* a, int32_t first, int32_t n) noexcept nogil:
    cdef int32_t last = first
    cdef int32_t i
    if n <= 0:
        return
    for i in range(n - 1):
        last = a.next_block[last]
    a.next_block[last] = a.block_head
    a.block_head = first
    a.free_blocks += n


# Makes the slot's chain one of `need` blocks; the caller has seen that there are enough.
cdef inline void rows_resize(ArenaTable* a, int32_t slot, int32_t need) noexcept nogil:
    cdef int32_t n = a.n_blocks[slot]
    cdef int32_t last = a.first_block[slot]
    cdef int32_t i
    if need == n:
        return
    if n == 0:
        a.first_block[slot] = rows_take(a, need)
    elif need == 0:
        rows_give(a, last, n)
        a.first_block[slot] = -1
    else:
        for i in range((n if n < need else need) - 1):
            last = a.next_block[last]
        if need > n:
            a.next_block[last] = rows_take(a, need - n)
        else:
            rows_give(a, a.next_block[last], n - need)
            a.next_block[last] = -1
    a.n_blocks[slot] = need


cdef inline void rows_write(ArenaTable* a, int32_t slot, const int32_t* ids, int32_t n) noexcept nogil:
    cdef int32_t block = a.first_block[slot]
    cdef int32_t at = 0
    cdef int32_t part
    while at < n:
        part = n - at if n - at < BLOCK_IDS else BLOCK_IDS
        memcpy(a.ids + <int64_t>block * BLOCK_IDS, ids + at, <size_t>part * sizeof(int32_t))
        block = a.next_block[block]
        at += part


cdef inline void rows_read(const ArenaTable* a, int32_t slot, int32_t* out, int32_t n) noexcept nogil:
    cdef int32_t block = a.first_block[slot]
    cdef int32_t at = 0
    cdef int32_t part
    while at < n:
        part = n - at if n - at < BLOCK_IDS else BLOCK_IDS
        memcpy(out + at, a.ids + <int64_t>block * BLOCK_IDS, <size_t>part * sizeof(int32_t))
        block = a.next_block[block]
        at += part


cdef inline object wrong_ids(object ids):
    return TypeError(
        f"ids must be a list or tuple of ints, or a 1-D int32 or int64 array, got {type(ids).__name__}"
    )


# The ids of a list, tuple, or 1-D buffer of int32 or int64, into out; how many there are. Raises, with the pure texts.
cdef inline int32_t ids_of(object ids, int32_t* out, int32_t limit) except -1:
    cdef Py_ssize_t n, i
    cdef int64_t wide
    cdef char* at
    cdef Py_buffer view
    if isinstance(ids, (list, tuple)):
        n = PyList_GET_SIZE(ids) if isinstance(ids, list) else PyTuple_GET_SIZE(ids)
        if n > limit:
            raise ValueError(f"{n} ids are more than max_length {limit}; truncate them first")
        if isinstance(ids, list):
            for i in range(n):
                out[i] = to_int32("id", <object>PyList_GET_ITEM(ids, i))
        else:
            for i in range(n):
                out[i] = to_int32("id", <object>PyTuple_GET_ITEM(ids, i))
        return <int32_t>n
    if not PyObject_CheckBuffer(ids):
        raise wrong_ids(ids)
    PyObject_GetBuffer(ids, &view, PyBUF_FULL_RO)
    try:
        if view.ndim != 1 or view.format == NULL or view.format[0] not in (b"i", b"l", b"q") or view.format[1] != 0:
            raise wrong_ids(ids)
        n = view.shape[0]
        if n > limit:
            raise ValueError(f"{n} ids are more than max_length {limit}; truncate them first")
        at = <char*>view.buf
        for i in range(n):
            wide = (<int32_t*>at)[0] if view.itemsize == 4 else (<int64_t*>at)[0]
            if wide != <int32_t>wide:
                raise OverflowError(f"id {wide} does not fit in 32 bits")
            out[i] = <int32_t>wide
            at += view.strides[0]
    finally:
        PyBuffer_Release(&view)
    return <int32_t>n


# Walks a chain, marking its blocks; how many there were, or -1 where it meets a block that is marked or out of range.
cdef inline int32_t rows_walk(const ArenaTable* a, int32_t block, uint8_t* seen) noexcept nogil:
    cdef int32_t count = 0
    while block >= 0:
        if block >= a.blocks or seen[block]:
            return -1
        seen[block] = 1
        block = a.next_block[block]
        count += 1
    return count


# 0, or the number of the broken invariant (the arena's BROKEN names them); the marks come zeroed.
cdef inline int rows_recount(const ArenaTable* a, uint8_t* free_slot, uint8_t* seen) noexcept nogil:
    cdef int32_t slot = a.slot_head
    cdef int32_t count = 0
    cdef int64_t blocks = 0
    cdef uint64_t word
    cdef bint idle
    while slot >= 0:
        if slot >= a.capacity or free_slot[slot]:
            return 1
        free_slot[slot] = 1
        slot = a.next_slot[slot]
        count += 1
    if count != a.free_slots:
        return 1
    for slot in range(a.capacity):
        word = state_load(&a.word[slot])
        idle = state_bits(word) == IDLE
        if word < 256 or word & 0xF0 or (word & DROPPED and not word & PINNED) or (idle and word & (PINNED | DROPPED)):
            return 2
        if idle != free_slot[slot] or (idle and a.n_blocks[slot]):
            return 3
        if rows_walk(a, a.first_block[slot], seen) != a.n_blocks[slot]:
            return 4
        blocks += a.n_blocks[slot]
        if idle:
            continue
        if a.length[slot] < 0 or a.length[slot] > a.n_blocks[slot] * BLOCK_IDS or a.length[slot] > a.max_length:
            return 5
        if a.split[slot] < -1 or a.split[slot] > a.length[slot]:
            return 5
    if rows_walk(a, a.block_head, seen) != a.free_blocks or blocks + a.free_blocks != a.blocks:
        return 6
    return 0
