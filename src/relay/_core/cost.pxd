# The types of `relay._pure.cost`, from which the native part is compiled. What readers see is written in one step under
# the GIL; one run at a time is learned from, as on the pure side, for the collector may run Python code in between.

cimport cython
from libc.stdint cimport int64_t

from relay._core.fit cimport (
    Runs, Shapes, Shift, explains, fold, line_t, median, predicted, reweighed, scaled, solve, sums_t,
)

cdef extern from "math.h":
    cpdef double sqrt(double) noexcept

cdef int _ENOUGH, _RARELY
cdef double _LEAST_NS, _KEPT_AT_A_CHANGE, _DOUBT, _SHARE


@cython.locals(whole=int64_t)
cdef int64_t _whole(double ns) noexcept


@cython.final
cdef class CostModel:
    cdef list _turn
    cdef public tuple coefficients
    cdef public bint learned
    cdef public int64_t runs
    cdef (double, double, double, double, double) _line
    cdef Runs _recent
    cdef double _first, _second
    cdef int _window
    cdef sums_t _sums, _prior
    cdef bint _guessed
    cdef Shapes _shapes
    cdef int64_t _changed, _checked
    cdef int _fresh, _due, _every
    cdef Shift _shift
    cdef double _error, _covered

    cpdef observe(self, int64_t items, int64_t width, int64_t ns, real=*)
    @cython.locals(time=double, mean=double, ratio=double, share=double, count=int)
    cdef _observe(self, int64_t items, int64_t width, int64_t ns)
    cpdef double mean_ns(self, int64_t items, int64_t width)
    @cython.locals(mean=double)
    cpdef tuple predict(self, int64_t items, int64_t width)
    @cython.locals(base=double, per_item=double, per_unit=double, per_square=double)
    cpdef int64_t finish_ns(self, int64_t items, int64_t width)
    @cython.locals(base=double, per_item=double, per_unit=double, per_square=double, left=double, each=double,
                   items=int64_t)
    cpdef int64_t largest(self, int64_t width, int64_t within_ns, int64_t most)
    cpdef snapshot(self)
    cdef _begin(self)
    @cython.locals(since=int64_t, ratios=double, fresh=int, good=bint, age=int, sums=sums_t)
    cdef _learn(self)
    @cython.locals(ratios=list, by=double, age=int, at=int)
    cdef _change(self, int count)
    @cython.locals(ratio=double, age=int)
    cdef _take(self, line_t line)
    @cython.locals(longest=double, factor=double)
    cdef _publish(self, line_t line)
