# cython: language_level=3

from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_GET_LENGTH
from libc.stdint cimport int32_t, int64_t, uint64_t

from relay._core._ring cimport IDS_MAX_CHARS, IdsKey, IdsTable
from relay._core.arena cimport Arena
from relay._core.dedup cimport SECRET_WORDS


cdef class IdCache:
    # Every field: guarded by the GIL; no method runs Python code between two changes.
    cdef IdsTable s             # owned
    cdef uint64_t secret[SECRET_WORDS]
    cdef int64_t _max_bytes
    cdef int64_t _hits
    cdef int64_t _misses

    # False: they are not kept, or are here already.
    cdef bint keep(self, object text, object who, const int32_t* ids, int32_t n, int32_t split) except -1
    cdef bint enter(self, const IdsKey* key, int32_t n, int32_t split) noexcept
    cdef int key_of(self, object text, object who, IdsKey* key) except -1
    cdef int32_t copy(self, Arena arena, object handle, object text, object who, bint first, int64_t limit) except -3


# Whether the ids of a text may be in a cache: it is short enough to be hashed while somebody waits.
cdef inline bint ids_are_kept(object text, object who) noexcept:
    if not PyUnicode_CheckExact(text) or PyUnicode_GET_LENGTH(text) > IDS_MAX_CHARS:
        return False
    return who is None or PyUnicode_CheckExact(who)
