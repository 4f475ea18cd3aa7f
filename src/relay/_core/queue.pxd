from libc.stdint cimport int32_t, int64_t

cdef class Door:
    cdef int64_t admit_one(
        self, object owner, int64_t key, int64_t now, int64_t size, int32_t level, int64_t due
    ) except? -3
