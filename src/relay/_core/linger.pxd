# The types of `relay._pure.linger`, from which the native part is compiled.

cimport cython
from libc.stdint cimport int64_t

cdef int64_t _MOST_NS, _LEAST_NS
cdef int _ENOUGH, _MANY
cdef double _WEIGHT, _SLOW_WEIGHT, _LONGEST, _BACK, _CLUSTERED, _CLUSTERED_AND_STEADY, _STEADY, _SPARED, _WORTH, _NEARLY
cdef double[16] _PARTS
cdef int[32] _PART_OF


@cython.final
cdef class Linger:
    cdef public int64_t user_ns, learned_ns, before
    cdef public bint steady
    cdef readonly bint watching
    cdef int64_t _answered, _answered_ns, _left, _runs, _seen, _taken_ns, _window_ns
    cdef double _back, _back_ns, _fixed_ns, _items, _mean, _members, _span_ns, _variance
    cdef int _open
    cdef int64_t[2] _since_ns, _of
    cdef int64_t[32] _counts
    cdef double[16] _came

    @cython.locals(window_ns=int64_t, at=int, part=int)
    cpdef answered(self, int64_t now_ns, int64_t count, int64_t ready, double fixed_ns)
    @cython.locals(until_ns=int64_t, elapsed=int64_t, back=int64_t, more=int64_t, wanted=int64_t, whole_ns=int64_t,
                   part=int, fixed_ns=double, best=double, coming=double, nearly=double, wait_ns=double,
                   longer_ns=double, rest=double, gain=double)
    cpdef plan(self, int64_t now_ns, int64_t ready, int64_t most, int64_t oldest_ns)
    @cython.locals(arrival_ns=int64_t, after=int64_t, at=int, scale=double)
    cpdef taken(self, int64_t now_ns, list arrivals)
    @cython.locals(total=int64_t, part=int)
    cdef _close(self)
    @cython.locals(total=int64_t, came=int64_t, last=int)
    cdef _note_pace(self)
    @cython.locals(weight=double, off=double)
    cdef _count_callers(self, int64_t callers)
    @cython.locals(last=int, all_came=double, came=double, last_ns=double, usual=double)
    cdef bint _pays(self) except -1
