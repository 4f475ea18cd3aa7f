# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""Gathering, compiled; `relay._pure.batch` is the specification.

Owns nothing. One thread at a time may call it for one arena, under the arena's rules; the buffers are the caller's,
and nobody else touches them meanwhile. Invariant: it checks all before it writes, so a refused call leaves them as
they were.
"""

from cpython.buffer cimport (
    PyBUF_FULL_RO, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from relay._core.arena cimport Arena, arena_pin, arena_unpin
from relay._core._rows cimport BLOCK_IDS, arena_find
from relay._core.state cimport state_slot, to_int32, to_int64

from relay.errors import StaleToken

__all__ = ["gather"]

cdef enum:
    FEW = 256               # rows whose handles fit on the stack
    LONG_LOOP = 1 << 16     # items from which the loop runs without the GIL; below, getting it back may cost far more

cdef int64_t MINE = <int64_t>(<uint64_t>1 << 63)  # set in a handle that gather itself has pinned

ctypedef fused Item:
    int32_t
    int64_t


cdef inline void gather_rows(
    const ArenaTable* a, const int64_t* handles, int32_t rows, int64_t width,
    Item* ids, Item* mask, Item* types, Item pad_id,
) noexcept nogil:
    cdef const int32_t* block
    cdef int64_t at, j, n, split, whole
    cdef int32_t i, slot, chain
    for i in range(rows):
        slot = state_slot(handles[i])
        n = a.length[slot]
        chain = a.first_block[slot]
        whole = n - n % BLOCK_IDS
        at = 0
        while at < whole:
            block = a.ids + <int64_t>chain * BLOCK_IDS
            for j in range(BLOCK_IDS):  # a fixed length, so it becomes straight vector code
                ids[at + j] = block[j]
            chain = a.next_block[chain]
            at += BLOCK_IDS
        if at < n:
            block = a.ids + <int64_t>chain * BLOCK_IDS
            for j in range(n - at):
                ids[at + j] = block[j]
        for j in range(n, width):
            ids[j] = pad_id
        for j in range(n):
            mask[j] = 1
        for j in range(n, width):
            mask[j] = 0
        if types != NULL:
            split = a.split[slot] if a.split[slot] >= 0 else n
            for j in range(split):
                types[j] = 0
            for j in range(split, n):
                types[j] = 1
            for j in range(n, width):
                types[j] = 0
            types += width
        ids += width
        mask += width


cdef void batch_gather(
    const ArenaTable* a, const int64_t* handles, int32_t rows, int64_t width,
    void* ids, void* mask, void* types, int size, int32_t pad_id,
) noexcept nogil:
    if size == 8:
        gather_rows[int64_t](a, handles, rows, width, <int64_t*>ids, <int64_t*>mask, <int64_t*>types, pad_id)
    else:
        gather_rows[int32_t](a, handles, rows, width, <int32_t*>ids, <int32_t*>mask, <int32_t*>types, pad_id)


# The caller releases the view, whether this raises or not.
cdef int take_buffer(str name, object buffer, Py_buffer* view) except -1:
    if not PyObject_CheckBuffer(buffer):
        raise TypeError(f"{name} must be a 2-D int32 or int64 array, got {type(buffer).__name__}")
    PyObject_GetBuffer(buffer, view, PyBUF_FULL_RO)
    if view.ndim != 2:
        raise ValueError(f"{name} has {view.ndim} dimensions; pass a 2-D int32 or int64 array")
    if view.format == NULL or view.format[0] not in (b"i", b"l", b"q") or view.format[1] != 0:
        form = (<bytes>view.format).decode() if view.format != NULL else "B"
        raise ValueError(f"{name} holds items of format {form!r}; pass a 2-D int32 or int64 array")
    if view.readonly:
        raise ValueError(f"{name} is read-only; pass a writable array")
    if not PyBuffer_IsContiguous(view, b"C"):
        raise ValueError(f"{name} is not C-contiguous; pass a whole array, not a slice of its columns")
    return 0


cdef int same_layout(str name, Py_buffer* view, Py_buffer* ids) except -1:
    if view.shape[0] != ids.shape[0] or view.shape[1] != ids.shape[1]:
        shape, wanted = (view.shape[0], view.shape[1]), (ids.shape[0], ids.shape[1])
        raise ValueError(f"{name} has shape {shape} and input_ids has {wanted}; pass equal shapes")
    if view.itemsize != ids.itemsize:
        raise ValueError(f"{name} has {view.itemsize} bytes an item and input_ids {ids.itemsize}; pass equal types")
    return 0


# The handles as C ints, all of them live; the length of the longest row.
cdef int32_t judge(const ArenaTable* a, object handles, int64_t* held, Py_ssize_t n) except -1:
    cdef int32_t longest = 0
    cdef Py_ssize_t i
    for i in range(n):
        held[i] = to_int64("handle", handles[i])
        if not arena_find(a, held[i]):
            raise StaleToken(f"handle {held[i]} is stale: the lease it was given for has ended; take a new one")
        longest = max(longest, a.length[state_slot(held[i])])
    return longest


cdef int32_t gather_into(ArenaTable* a, object handles, Py_buffer* views, int32_t pad_id, int64_t* held) except -1:
    cdef int64_t width = views[0].shape[1]
    cdef int size = <int>views[0].itemsize
    cdef int32_t n = <int32_t>len(handles)
    cdef int32_t longest = judge(a, handles, held, n)
    cdef int32_t i
    if longest > width:
        raise ValueError(f"the longest row has {longest} ids, and the buffers are {width} wide")
    if n * width < LONG_LOOP:
        batch_gather(a, held, n, width, views[0].buf, views[1].buf, views[2].buf, size, pad_id)
        return longest
    for i in range(n):
        if arena_pin(a, held[i]):
            held[i] |= MINE
    with nogil:
        batch_gather(a, held, n, width, views[0].buf, views[1].buf, views[2].buf, size, pad_id)
    for i in range(n):
        if held[i] < 0:
            arena_unpin(a, held[i] & ~MINE)
    return longest


def gather(arena, handles, input_ids, attention_mask, token_type_ids=None, pad_id=0):
    cdef int64_t few[FEW]
    cdef int64_t* held = few
    cdef Py_buffer views[3]
    cdef Py_ssize_t n
    cdef int32_t pad
    cdef int i
    if not isinstance(arena, Arena):
        raise TypeError(f"arena must be an Arena, got {type(arena).__name__}")
    if not isinstance(handles, (list, tuple)):
        raise TypeError(f"handles must be a list or tuple of ints, got {type(handles).__name__}")
    pad = to_int32("pad_id", pad_id)
    memset(views, 0, sizeof(views))  # a view of nothing is released without effect
    try:
        take_buffer("input_ids", input_ids, &views[0])
        take_buffer("attention_mask", attention_mask, &views[1])
        if token_type_ids is not None:
            take_buffer("token_type_ids", token_type_ids, &views[2])
        same_layout("attention_mask", &views[1], &views[0])
        if token_type_ids is not None:
            same_layout("token_type_ids", &views[2], &views[0])
        # Exporting a buffer may have run code of its owner's, so the list is measured only now.
        n = len(handles)
        if n > views[0].shape[0]:
            raise ValueError(f"{n} handles need as many rows, and the buffers have {views[0].shape[0]}")
        if n > FEW:
            held = <int64_t*>malloc(<size_t>n * sizeof(int64_t))
            if held == NULL:
                raise MemoryError(f"no memory for {n} rows")
        return gather_into(&(<Arena>arena).s, handles, views, pad, held)
    finally:
        if held != few:
            free(held)
        for i in range(3):
            PyBuffer_Release(&views[i])
