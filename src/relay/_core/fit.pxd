# The types of `relay._pure.fit`, from which the native part is compiled. It takes no lock: the GIL is the guard.

cimport cython
from libc.stdint cimport int64_t

cdef extern from "math.h":
    cpdef double log(double) noexcept

ctypedef (double, double, double, double) line_t
ctypedef (
    double, double, double, double, double, double, double, double, double, double, double, double, double, double
) sums_t

cdef double _FADE, _CLIP, _LOG_CLIP, _ALARM, _SLACK, _TINY_NS


@cython.final
cdef class Runs:
    cdef readonly int count
    cdef int _next
    cdef public int64_t[128] items, widths
    cdef public double[128] times, means, ratios

    cpdef add(self, int64_t items, int64_t width, double time, double mean)
    cpdef int place(self, int age)


@cython.final
cdef class Shapes:
    cdef readonly bint items_vary, widths_vary
    cdef int64_t _few, _many, _narrow, _wide

    cpdef look(self, Runs runs, int count)


cpdef Runs reweighed(Runs runs, int count, line_t line)

@cython.locals(mean=double)
cpdef double predicted(line_t line, int64_t items, int64_t width)

cpdef sums_t fold(sums_t sums, Runs runs, int first, int last, bint own=*)

cpdef sums_t scaled(sums_t sums, double by, double weight)

cpdef double median(list values)

@cython.locals(ratios=list)
cdef double _off_by(line_t line, Runs runs, int first, int last) except -1

cpdef bint explains(line_t line, Runs runs, int count, int before, double noise)

@cython.locals(near=bint)
cpdef line_t solve(sums_t sums, line_t line, int sweeps)


@cython.final
cdef class Shift:
    cdef readonly double noise
    cdef double _up, _down
    cdef int _ups, _downs

    cpdef int count(self, double ratio)
