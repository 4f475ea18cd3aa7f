# cython: language_level=3

from libc.stdint cimport int32_t, int64_t, uint64_t

from relay._core._ring cimport IdsKey, IdsTable
from relay._core.arena cimport Arena
from relay._core.dedup cimport SECRET_WORDS


cdef class IdCache:
    # Every field: guarded by the GIL; no method runs Python code between two changes.
    cdef IdsTable s             # owned
    cdef uint64_t secret[SECRET_WORDS]
    cdef int64_t _max_bytes
    cdef int64_t _hits
    cdef int64_t _misses

    cdef int key_of(self, object text, object who, IdsKey* key) except -1
    cdef int32_t copy(self, Arena arena, object handle, object text, object who, bint first, int64_t limit) except -3
