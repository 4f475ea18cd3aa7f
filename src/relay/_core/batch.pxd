# cython: language_level=3
# Gathering, for other core parts to call without the GIL; `relay._pure.batch` says what it does.

from libc.stdint cimport int32_t, int64_t

from relay._core.arena cimport ArenaTable

# Fills `rows` rows of `width` from the rows of these handles, which the caller has found live and no longer than that.
# `types` may be NULL; `size` is the bytes of an item, 4 or 8. Takes no lock: each slot is pinned, or nothing else runs.
cdef void batch_gather(
    const ArenaTable* a, const int64_t* handles, int32_t rows, int64_t width,
    void* ids, void* mask, void* types, int size, int32_t pad_id,
) noexcept nogil
