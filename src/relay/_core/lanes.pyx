# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""Lanes: the course of a batch that every one takes. `relay._pure.lanes` says what each name does.

The GIL guards each object; the order of the steps is that of the pure side.
"""

from _thread import allocate_lock
from cython cimport boundscheck
from libc.math cimport rint
from libc.stdint cimport int32_t, int64_t

from relay._core._clock cimport relay_monotonic_ns
from relay._core.cache cimport ResultCache
from relay._core.cost cimport CostModel
from relay._core.linger cimport Linger
from relay._core.queue cimport Choice, Door
from relay._core.state cimport to_int32, to_int64
from relay._core.tickets cimport Batches, DeskBase, Gate, Replies, Run, TicketBase, Waits, answered

from sys import modules

from relay._core.queue import CLOSED_DEADLINE, CLOSED_PARAMS, CLOSED_STEP

from relay.errors import StaleToken

cdef extern from "Python.h":
    object PyContext_New()
    int PyContext_Enter(object context) except -1
    int PyContext_Exit(object context) except -1
    object PyContextVar_Set(object variable, object value)

cdef extern from *:
    bint PyExceptionInstance_Check(object o)

cdef dict MODULES = modules

__all__ = ["CLOSED_GROUP", "OVERHEAD_NS", "BatchView", "LaneBase", "RunningBase", "StationBase"]

include "_station.pyx"
include "_running.pyx"
include "_lane.pyx"
