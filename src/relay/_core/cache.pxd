from libc.stdint cimport int32_t, int64_t, uint64_t

from relay._core._shelf cimport Shelf

cdef object NOTHING             # `ABSENT`, for who asks `find_native`


cdef class ResultCache:
    cdef Shelf s
    cdef list contents          # by slot: a str or bytes, or None: the slot is free. Each is one reference, let go when
    cdef list whos              # the entry goes
    cdef list values
    cdef readonly int64_t ttl_ns
    cdef readonly int64_t epoch
    cdef readonly int64_t hits
    cdef readonly int64_t misses
    cdef readonly int64_t evictions
    cdef readonly int64_t rejected
    cdef readonly int64_t expired

    # As `find` and `put`, of digests in two words as `hash_object` gives them. `content` is a str or bytes, of no
    # subclass, and `nbytes` from 0 to 2**62: the caller sees to it. Both may run finalisers, when all is done.
    cdef object find_native(self, uint64_t low, uint64_t high, object content, object who, int64_t now_ns)
    cdef bint put_native(
        self, uint64_t low, uint64_t high, object content, object who, object value, int64_t nbytes, int64_t epoch,
        int64_t now_ns
    ) except -1
    cdef int64_t look(self, uint64_t low, uint64_t high, object content, object who) except -2
    cdef int remove(self, int32_t slot, list gone) except -1
    cdef int make_room(self, int64_t cost, int64_t now_ns, list gone) except -1
