from libc.stdint cimport int32_t, int64_t, uint64_t


cdef enum:
    TAKEN_ = -4


cdef struct Choice:         # of the members of a batch
    int64_t most_cost       # what is asked for, as in `RequestQueue.take`
    int64_t now
    int64_t step
    int32_t most
    int32_t look
    bint finish
    int32_t why             # what came of it
    int32_t width
    int64_t real


cdef class Door:
    cdef int64_t admit_one(
        self, object owner, int64_t key, int64_t now, int64_t deadline, int64_t size, int32_t level, int64_t due,
        uint64_t low, uint64_t high, bint bound
    ) except? -3
    cdef int digest_of(self, object content, int64_t who, int64_t epoch, uint64_t* low, uint64_t* high) except -1
    cdef object leader(self, uint64_t low, uint64_t high, int64_t* handle)
    cdef int64_t up_to(self, int64_t level) noexcept
    cdef bint is_full(self) noexcept
    cdef int choose_members(
        self, Choice* choice, object costs, object places, list handles, list owners, list late
    ) except -1
    cdef int end_leases(self, list handles) except -1
    cdef int64_t in_line(self) noexcept
    cdef int64_t first_deadline(self) noexcept
    cdef bint lie_down(self, int64_t lane, int64_t wanted) noexcept
