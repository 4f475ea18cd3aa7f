# The clock, without a call of Python.

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <time.h>

    /* What time.monotonic_ns() returns, or -1 where only it knows. */
    static inline int64_t relay_monotonic_ns(void) {
    #ifdef __linux__
        struct timespec now;
        if (clock_gettime(CLOCK_MONOTONIC, &now) == 0) return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    #endif
        return -1;
    }
    """
    int64_t relay_monotonic_ns()
