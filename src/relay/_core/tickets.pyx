# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""Tickets: the part of them that every request passes through. `relay._pure.tickets` says what each name does.

Any thread may call anything here. The GIL makes each list, set and dict operation one step; the order of the steps is that of the pure side.
"""

import logging
from _thread import allocate_lock
from asyncio import CancelledError, InvalidStateError
from asyncio import _get_running_loop as running_loop
from asyncio import current_task
from asyncio import get_running_loop as the_running_loop
from collections.abc import Coroutine
from sys import is_finalizing
from threading import main_thread
from time import monotonic_ns
from warnings import warn

from cpython.exc cimport PyErr_SetObject
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.set cimport PySet_Discard
from cython cimport boundscheck, freelist
from libc.stdint cimport int32_t, int64_t, uint64_t

from relay._core._clock cimport relay_monotonic_ns
from relay._core._digest cimport relay_int_from_words, words_of
from relay._core.cache cimport NOTHING, ResultCache
from relay._core.histogram cimport Histogram, hist_record
from relay._core.queue cimport TAKEN_, Door
from relay._core.state cimport to_int64

from relay.errors import Overloaded, Text

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() nogil

    int PyContext_Enter(object context) except -1
    int PyContext_Exit(object context) except -1

cdef extern from *:
    bint PyExceptionInstance_Check(object o)
    object PyContext_CopyCurrent()

__all__ = [
    "Asking", "Batches", "DeskBase", "Member", "Replies", "Run", "TicketBase", "Waits", "answer_all", "ask",
    "asking", "call", "finish", "let_go", "settle", "wait",
]

log = logging.getLogger("relay")

include "_loops.pyx"


cdef class TicketBase:
    """TicketBase(desk, item, priority, arrival_ns)
--

"""
    def __init__(self, desk, item, priority, arrival_ns):
        self.fill(desk, item, to_int64("priority", priority), to_int64("arrival_ns", arrival_ns))

    cdef int fill(self, object desk, object item, int64_t priority, int64_t arrival_ns) except -1:
        self._desk = desk
        self._item = item
        self.priority = priority
        self._arrival_ns = arrival_ns
        self.size = 1
        self._deadline_ns = self._handle = -1
        self._context = PyContext_CopyCurrent()
        return 0

    @property
    def _digest(self):
        return relay_int_from_words(self.low, self.high)

    @_digest.setter
    def _digest(self, digest):
        words_of("digest", digest, &self.low, &self.high)

    @property
    def _waiters(self):
        return self.waiters()

    cdef list waiters(self):
        cdef list fresh
        if self.several is None:
            fresh = []              # a collection may run, and with it anything
            if self.several is None:
                self.several = fresh
        return self.several

    def __await__(self):
        cdef Answer at_once
        loop = current_loop()
        if self._done:
            at_once = Answer.__new__(Answer)
            at_once.ticket = self
            return at_once
        future = loop.create_future()
        self.attach((loop, future))
        return future.__await__()

    def _attach(self, waiter):
        self.attach(waiter)

    def _detach(self, waiter):
        return self.detach(waiter)

    cdef bint attach_only(self, Asking waiter) except -1:
        # For whoever has made it, and nobody else knows it: False if it has ended.
        if self._done:
            return False
        self.only = waiter
        return True

    cdef int attach(self, object waiter) except -1:
        self.waiters().append(waiter)
        if self._done and self.detach(waiter):
            if type(waiter) is tuple:
                finish([((<tuple>waiter)[1], self)])
            else:
                call(waiter)
        return 0

    cdef bint detach(self, object waiter) except -1:
        if waiter is self.only and waiter is not None:
            self.only = None
            return True
        try:
            self.waiters().remove(waiter)
        except ValueError:
            return False
        return True


include "_runs.pyx"
include "_gates.pyx"
include "_desk.pyx"
include "_asking.pyx"
include "_waiting.pyx"


cdef class Member:
    """Member(group)
--

"""
    cdef public object group

    def __init__(self, group):
        self.group = group

    def __call__(self):
        cdef Replies replies = Replies()
        self.group.count_down(replies)
        replies.flush()


@freelist(8)
cdef class Replies:
    """Replies()
--

"""
    def __init__(self):
        self._loops = {}
        self.calls = []

    def add(self, loop, future, ticket):
        self.enter(loop, future, ticket)

    cdef list of_loop(self, object loop):
        pairs = self._loops.get(loop)
        if pairs is None:
            pairs = self._loops[loop] = []
        return <list>pairs

    cdef int enter(self, object loop, object future, object ticket) except -1:
        self.of_loop(loop).append((future, ticket))
        return 0

    cpdef flush(self, loop=None):
        self.send(loop, None)

    cdef Py_ssize_t send(self, object loop, Gate last) except -1:
        # As `flush`; how many threads are woken, if they are so many that `last` will be opened after them.
        cdef dict loops = self._loops
        cdef list calls
        cdef Py_ssize_t follows = 0
        self._loops = {}
        for each, pairs in loops.items():
            try:
                if each is loop:
                    finish(pairs)
                else:
                    each.call_soon_threadsafe(finish, pairs)
            except Exception:
                self.undeliverable += len(pairs)
        if self.gates is not None:
            follows = open_gates(self, last)
        calls = self.calls
        self.calls = []
        for waiter in calls:
            call(waiter)
        return follows


cdef bint end(TicketBase ticket, object value, object error, Replies replies, object run) except -1:
    cdef list waiters
    cdef Asking only
    cdef object desk = ticket._desk
    if not PySet_Discard((<DeskBase>desk).open if isinstance(desk, DeskBase) else desk.open, ticket):
        return False
    ticket._value = value
    ticket._error = error
    ticket._run = run
    ticket._done = True
    if not ticket._followers:
        ticket._context = None
    only = ticket.only
    if only is not None:
        ticket.only = None
        replies.of_loop(only.loop).append(only)
    waiters = ticket.several
    while waiters:
        try:
            waiter = waiters.pop(0)
        except IndexError:
            break
        if type(waiter) is tuple:
            replies.enter((<tuple>waiter)[0], (<tuple>waiter)[1], ticket)
        elif type(waiter) is Gate:
            if replies.gates is None:
                replies.gates = []
            replies.gates.append(waiter)
        elif type(waiter) is Member:
            (<Member>waiter).group.count_down(replies)
        else:
            replies.calls.append(waiter)
    return True


def settle(TicketBase ticket not None, value, error, Replies replies not None, run=None):
    return end(ticket, value, error, replies, run)


cdef int drop(TicketBase ticket) except -1:
    ticket._item = ticket._content = ticket._who = ticket._prepared = ticket._context = ticket._kept = None
    return 0


def let_go(TicketBase ticket not None):
    drop(ticket)


def answer_all(owners, rows, run, Replies replies not None, Waits waits=None):
    return answered(list(owners), rows, run, replies, waits)


@boundscheck(True)      # the model has the list of rows, too
cdef list answered(list owners, object rows, object run, Replies replies, Waits waits):
    cdef list left = []
    cdef TicketBase owner
    cdef Py_ssize_t index = 0
    cdef Run times = None if waits is None else run
    for owner in owners:
        row = rows[index]
        if owner._followers or PyExceptionInstance_Check(row):
            left.append(index)
        else:
            drop(owner)
            if end(owner, row, None, replies, run) and times is not None:
                waits.note(owner, times)
        index += 1
    return left


def call(waiter):
    try:
        waiter()
    except BaseException:
        log.exception("relay: a ticket's callback failed")
