# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic, auto_pickle=False
"""Permits: who holds which token of a pool, and who waits for one. `relay._pure.permits` says what each call does.

Any thread may call any method. The GIL is the guard: a method changes everything it changes without running Python code
in between, so each call is atomic; objects are made before the first change or are not tracked by the collector, so no
finaliser can come in between either.

The parts: `_budget.pxd` counts units, `_shares.pxd` virtual times; `_trees.pxd`, `_lines.pxd` and `_turns.pxd` are the
lines of those who wait, and whose turn it is. The `.pyx` files that are included belong to this module; each class adds
a chapter to the one before it.
"""

from cpython.exc cimport PyErr_SetObject
from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_CheckExact
from cython cimport final, freelist, no_gc
from libc.math cimport exp
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from relay._core._budget cimport (
    LEVELS, NOBODY, Budget, Tenant, budget_broken, budget_capped, budget_count, budget_most, budget_refill, budget_room,
)
from relay._core._clock cimport relay_monotonic_ns
from relay._core._lines cimport lines_enter, lines_key, lines_leave, lines_recall, lines_retime
from relay._core._rows cimport ArenaTable
from relay._core._shares cimport Account, Shares, shares_charge, shares_close, shares_find, shares_open
from relay._core._trees cimport Line, Lines, Place
from relay._core._turns cimport lines_broken, lines_choose, place_broken
from relay._core.arena cimport (
    arena_check, arena_free, arena_handle, arena_init, arena_lease, arena_live, arena_release, arena_revoke,
    arena_start_at,
)
from relay._core.heap cimport Heap, heap_check, heap_free, heap_init, heap_remove
from relay._core.histogram cimport Histogram, hist_record
from relay._core.state cimport (
    BUSY, MAX_SLOTS, SLOT_BITS, as_int64, state_bits, state_generation, state_load, state_slot, to_int64,
)
from relay._core.timers cimport timers_arm, timers_due_one, timers_next

from asyncio import BaseEventLoop, Future, InvalidStateError
from asyncio import _get_running_loop as running_loop
from asyncio import get_running_loop as the_running_loop
from collections.abc import Coroutine
from time import monotonic_ns

from relay._core.state import whole

from relay.errors import Closed, Overloaded, StaleToken, TokenRevoked, TooLarge

__all__ = [
    "MAX_PRIORITY", "NAMES", "NO_PLACE", "TIERS", "Acquire", "Permits", "Token", "check_priority", "owner",
    "stale_token",
]

MAX_PRIORITY = 255
TIERS = (0, 1, 2)
NAMES = {"realtime": 0, "interactive": 1, "batch": 2}
NO_PLACE = -2

cdef enum:
    NO_PLACE_ = -2
    FAILED = -2         # in place of the time when a token was granted: its work has failed
    UNUSED = -3         # ... it says nothing about how long work takes

cdef object NO_BEATS = -1
cdef object LAST_KEY = 2**63 - 1
cdef int64_t FOREVER_NS = <int64_t>1 << 62
cdef int64_t LONGEST_NS = <int64_t>1 << 60
cdef double MEMORY_NS = 5e9
cdef str BUG = "; this is a bug in relay"

cdef extern from *:
    """
    /* Who runs: a thread, and the context it is in. Each task has a context of its own. */
    static inline int64_t relay_thread(void) { return (int64_t)PyThreadState_Get()->thread_id; }
    static inline int64_t relay_context(void) { return (int64_t)(intptr_t)PyThreadState_Get()->context; }
    """
    int64_t relay_thread()
    int64_t relay_context()

include "_loops.pyx"
include "_token.pyx"
include "_hooks.pyx"
include "_books.pyx"
include "_holdings.pyx"
include "_ledger.pyx"
include "_taking.pyx"
include "_leases.pyx"
include "_looking.pyx"
include "_whole.pyx"


cdef class Permits(Whole)


include "_acquire.pyx"


cdef class Permits(Whole):
    """Permits(capacity, floors=(), max_waiting=10_000, max_capacity=0, allowance_ns=(), overdue_every=0, weights=None, weight=1.0, caps=None, cap=-1, heartbeat_ns=0, grace_ns=1_000_000_000, now_ns=None)
--

The core of a token pool. Subclasses override the hooks, whose names begin with an underscore."""

    # Taking.

    def try_acquire(self, priority=1, cost=1, tenant=None, heartbeat_ns=-1):
        """Take a token if one is free for this priority, else return None at once."""
        return self.try_for(priority, cost, tenant, heartbeat_ns)

    @final
    cdef inline object try_for(self, priority, cost, tenant, heartbeat_ns):
        cdef int level = level_of(priority)
        cdef int32_t units = size_of("cost", cost, 1)
        cdef Token token
        cdef int64_t beats_ns, now_ns
        if tenant is None and (heartbeat_ns is NO_BEATS or heartbeat_ns == -1) and not (
            self.waiting or self.closed or self.n_late or self.news or self.heartbeat_ns > 0 or self.clocked
            or self.traced or self.s.limit
        ):
            if units <= budget_room(&self.b, self.b.group[level]):
                token = Token.__new__(Token)
                token.lease = arena_lease(&self.a, relay_thread(), -1, units, NOBODY, <int32_t>self.epoch, 0, 0, 1)
                self.a.deadline_ns[state_slot(token.lease)] = relay_context()
                self.a.group[state_slot(token.lease)] = level
                budget_count(&self.b, level, NOBODY, units)
                self.granted += 1
                token.permits = self
                token.priority = level
                token.cost = units
                token.epoch = self.epoch
                token.owns = True
                return token
        name = name_of(tenant)
        beats_ns = beats_of(self, heartbeat_ns)
        if self.clock is None:
            return None     # not initialised
        now_ns = self.now() if self.waiting or beats_ns > 0 or self.clocked else -1
        try:
            token = self.take(level, units, name, beats_ns, None, -1, now_ns)
        finally:
            self.conclude()
        if token is not None and self.traced:
            self._trace(token)
        return token

    def acquire(self, priority=1, *, timeout=None, cost=1, tenant=None, heartbeat=None, retry=None):
        """Take a token: at once if one is free, else as the hook `_wait` does."""
        if heartbeat is None and retry is None and at_once(timeout):
            token = self.try_for(priority, cost, tenant, NO_BEATS)
            if token is not None:
                return token
        return self._wait(priority, timeout, cost, tenant, heartbeat, retry)

    def acquire_async(self, priority=1, *, timeout=None, cost=1, tenant=None, heartbeat=None, retry=None):
        """As `acquire`, for coroutines. A cancelled wait loses no token."""
        cdef Acquire wait
        if retry is not None:
            return self._wait_async(priority, timeout, cost, tenant, heartbeat, retry)
        wait = Acquire.__new__(Acquire)
        wait.begin(self, priority, timeout, cost, tenant, heartbeat)
        return wait

    def acquire_or_join(self, priority, key, waiter, cost=1, tenant=None, heartbeat_ns=-1, arrival_ns=-1):
        """Take a token, or stand in line as `waiter`, in one step."""
        return self.join_for(priority, key, waiter, cost, tenant, heartbeat_ns, arrival_ns)

    @final
    cdef object join_for(self, priority, key, waiter, cost, tenant, heartbeat_ns, arrival_ns):
        cdef int level = level_of(priority)
        cdef int32_t units = size_of("cost", cost, 1), p, tenant_index
        cdef int64_t beats_ns, now_ns = -1, since_ns
        cdef Token token
        name = name_of(tenant)
        if key is not None:
            key = to_int64("key", key)
        beats_ns = beats_of(self, heartbeat_ns)
        since_ns = to_int64("arrival_ns", arrival_ns)
        if not self.ready:
            self._get_ready()
        set_index(waiter, -1)
        if self.waiting or beats_ns > 0 or self.clocked or not self.fits(level, units, name):
            now_ns = self.now()
        try:
            token = self.take(level, units, name, beats_ns, key, since_ns, now_ns)
            if token is not None:
                waiter.token = token
            elif not self.n_idle:
                set_index(waiter, NO_PLACE_)
            else:
                tenant_index = self.tenant_of(name)
                self.n_idle -= 1
                p = self.idle[self.n_idle]
                self.parked[p] = waiter
                self.stand(p, level, key, units, tenant_index, beats_ns, since_ns, now_ns)
                if isinstance(waiter, Acquire):
                    (<Acquire>waiter).index = p
                else:
                    self.seat(waiter, p)
        finally:
            self.conclude()
        return token

    def leave(self, waiter):
        """Leave the line; the token it had been granted meanwhile, or None."""
        return self.leave_for(waiter)

    @final
    cdef object leave_for(self, waiter):
        cdef int64_t now_ns = 0
        cdef int32_t p
        if self.waiting > 1 and self.b.held < self.b.capacity:
            now_ns = self.now()
        p = self.place_of(waiter)
        try:
            if p >= 0:
                self.step_aside(p)
                self.serve(now_ns)
            token = (<Acquire>waiter).token if isinstance(waiter, Acquire) else waiter.token
        finally:
            self.conclude()
        return token

    def abandon(self, waiter):
        """As `leave`, and a token granted meanwhile goes on to the next. Safe to call from a finaliser."""
        self.abandon_now(waiter)

    def lift(self, waiter, priority, key=None):
        """Let a waiter stand in another tier's line, as the early or late comer it is."""
        cdef int level = level_of(priority)
        cdef int64_t now_ns
        cdef int32_t p
        cdef Place* place
        if key is not None:
            key = to_int64("key", key)
        now_ns = self.now()
        p = self.place_of(waiter)
        try:
            if p >= 0:
                place = &self.l.places[p]
                if place.cost <= budget_most(&self.b, level):
                    lines_leave(&self.l, &self.b, &self.s, p)
                    place.level = level
                    place.key = lines_key(&self.l, level, place.arrival_ns) if key is None else <int64_t>key
                    self.make_room(level, place.tenant)
                    lines_enter(&self.l, &self.b, &self.s, p)
                    self.serve(now_ns)
        finally:
            self.conclude()
        return p >= 0

    # Giving back.

    def release(self, token):
        """Take `token` back and hand what it frees to those whose turn it is."""
        self.give_back(self.own(token))

    def exit(self, token, kind=None):
        """As `release`, at the end of a block; in the child of a fork, tokens of the parent are let go silently."""
        self.leave_block(self.own(token), kind)

    def drop(self, handle):
        """Note that a token has been thrown away; if it was held, it comes back with the next call or soon."""
        self.throw_away(to_int64("handle", handle))

    def collect(self):
        """Take back what was thrown away, and wake whoever is still to be woken."""
        self.conclude()

    def adopt(self, token):
        """From now on `owner()` counts as who acquired `token`."""
        cdef int32_t slot = state_slot(self.own(token).lease)
        if arena_live(&self.a, (<Token>token).lease):
            self.a.key[slot] = relay_thread()
            self.a.deadline_ns[slot] = relay_context()
