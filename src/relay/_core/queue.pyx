# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""RequestQueue: the slots of one model, from admission to the end of the run. `relay._pure.queue` says what each call
does.

Any thread may call any method. The GIL is the guard: a method changes everything it changes without running Python code
in between, so each call is atomic; lists are made before the first change, and owners that are let go are returned,
still held by the caller, or let go last, so no finaliser can come in between either.
"""

from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cython cimport final
from libc.math cimport INFINITY
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from relay._core._choosing cimport (
    MAX_PLACES, SHUT_DEADLINE, SHUT_IDLE, SHUT_OWN_DEADLINE, SHUT_PARAMS, SHUT_SIZE, SHUT_STEP, SHUT_TOKENS, Filling,
    filling_add, filling_fill, filling_late, filling_left, filling_note, filling_refusal, filling_time, rank_index,
    rank_size, size_rank,
)
from relay._core._rows cimport ArenaTable, arena_find, ids_of, rows_blocks_for
from relay._core.arena cimport (
    DROP_DEFERRED, DROP_FREED, Arena, arena_commit, arena_drop, arena_handle, arena_lease, arena_live, arena_release,
    arena_unpin, arena_write_ids,
)
from relay._core._digest cimport relay_int_from_words, words_of
from relay._core.dedup cimport Dedup, dedup_delete, dedup_find, dedup_insert, hash_object
from relay._core.heap cimport (
    HEAP_MAX_SLOTS, HEAP_ROOT, HEAP_SLOT_BITS, Heap, PriorityHeap, heap_has, heap_key, heap_lift, heap_peek,
    heap_pop_node, heap_push, heap_push_seq, heap_remove,
)
from relay._core.idcache cimport IdCache, ids_are_kept
from relay._core.state cimport (
    BUSY, DROPPED, IDLE, PINNED, QUEUED, as_range, state_bits, state_flags, state_generation, state_load,
    state_next_generation, state_slot, to_int32, to_int64,
)
from relay._core.timers cimport Timers, timers_arm, timers_disarm, timers_due_one, timers_next

__all__ = [
    "CLOSED_DEADLINE", "CLOSED_IDLE", "CLOSED_PARAMS", "CLOSED_SIZE", "CLOSED_STEP", "CLOSED_TOKENS", "FULL",
    "LOOK_PAST", "NOT_KEPT", "NO_BLOCKS", "SEEN", "TAKEN", "RequestQueue",
]

cdef enum:
    FULL_ = -1
    NOT_WRITTEN_ = -2
    NOT_KEPT_ = -3
    SEEN_ = -4
    MOST_SIZE = 0x7FFFFFFF

FULL = FULL_
TAKEN = TAKEN_
NOT_KEPT = NOT_KEPT_
NO_BLOCKS = -2
SEEN = SEEN_
LOOK_PAST = 256
CLOSED_IDLE = SHUT_IDLE
CLOSED_SIZE = SHUT_SIZE
CLOSED_TOKENS = SHUT_TOKENS
CLOSED_DEADLINE = SHUT_DEADLINE
CLOSED_PARAMS = SHUT_PARAMS
CLOSED_STEP = SHUT_STEP

include "_queued.pyx"
include "_seen.pyx"
include "_asked.pyx"
include "_members.pyx"
include "_texts.pyx"
include "_entering.pyx"


cdef class RequestQueue(Entering):
    """RequestQueue(capacity, ids_capacity=0, max_length=0, wake=None, generation=1, overdue_every=0)
--

The queue of one model."""

    def park(self, lane=0, at_least=1):
        """Says that a lane is about to sleep until so many are ready; False if they are."""
        cdef int64_t number = as_range("lane", lane, 0, LANES - 1)
        cdef int32_t wanted = to_int32("at_least", at_least)
        return self.lie_down(number, wanted)

    def unpark(self, lane=-1):
        """Makes a sleeping lane, -1: the lowest, the caller's to wake: its number, or -1 if it does not sleep."""
        cdef int64_t number = as_range("lane", lane, -1, LANES - 1)
        if number < 0:
            if not self.parked:
                return -1
            number = 0
            while not self.parked >> number & 1:
                number += 1
        if not self.parked >> number & 1:
            return -1
        self.parked &= ~(<uint64_t>1 << number)
        return number

    def cancel(self, handle):
        """Drops a request that is still queued; answers as `Arena.drop`."""
        return self.drop(to_int64("handle", handle))

    @final
    cdef int drop(self, int64_t h) except -1:
        cdef int code = arena_drop(&self.arena.s, h)
        if code == DROP_FREED:
            self.forget(state_slot(h), h)
        elif code == DROP_DEFERRED:
            self.cover(state_slot(h))
            timers_disarm(&self.timers.s, state_slot(h))
            dedup_delete(&self.dedup.s, h)
        return code

    def finish(self, handles):
        """Ends the leases of a batch's members."""
        self.end_leases(handles if type(handles) is list else list(handles))

    cdef int end_leases(self, list handles) except -1:
        cdef int64_t h
        for handle in handles:
            h = to_int64("handle", handle)
            if not arena_release(&self.arena.s, h):
                self.arena.release(h)  # says why
            self.forget(state_slot(h), h)
        return 0

    def lift(self, handle, key, level=-1, due_ns=-1):
        """Makes a queued request more urgent, keeping its place among equals."""
        cdef int64_t h = to_int64("handle", handle), order = to_int64("key", key), due = to_int64("due_ns", due_ns)
        cdef int32_t priority = to_level(level, -1), slot = state_slot(h)
        cdef bint ready, exposed, sooner, first, earlier
        if not self.is_queued(h):
            return False
        ready = heap_has(&self.heap.s, slot)
        sooner = order < self.arena.s.key[slot]
        first = 0 <= priority < self.level[slot]
        earlier = due >= 0 and not 0 <= self.due_ns[slot] <= due
        if sooner:
            self.arena.s.key[slot] = order
            heap_lift(&self.heap.s, slot, order)
        if first:
            if ready:
                self.counts[self.level[slot]] -= 1
                self.counts[priority] += 1
            exposed = self.younger[slot] != OUT
            self.cover(slot)
            self.level[slot] = <uint8_t>priority
            if exposed:
                self.expose(slot)
            if priority != self.one_level:
                self.see(priority)
        if earlier:
            self.due_ns[slot] = due
            if ready and self.mixed:
                heap_remove(&self.by_due.s, slot)
                self.enter_due(slot)
        return sooner or first or earlier

    def share(self, handle):
        """Says that others share the request's run: it is not displaced from now on."""
        cdef int64_t h = to_int64("handle", handle)
        if not arena_live(&self.arena.s, h):
            return False
        self.shared[state_slot(h)] = True
        self.cover(state_slot(h))
        return True

    def displace(self, level):
        """Drops the newest queued request of the least urgent priority below `level`; its handle and owner."""
        cdef int64_t least = LEVELS - 1, most = to_level(level, 0), handle
        while least > most and self.youngest[least] < 0:
            least -= 1
        if least <= most:
            return -1, None
        handle = arena_handle(&self.arena.s, self.youngest[least])
        owner = self._owners[self.youngest[least]]
        self.drop(handle)
        return handle, owner

    def set_deadline(self, handle, deadline_ns, alarm_ns=-1):
        """Sets when a queued request must have been started, and its timer."""
        cdef int64_t h = to_int64("handle", handle), deadline = to_int64("deadline_ns", deadline_ns)
        cdef int64_t alarm = to_int64("alarm_ns", alarm_ns)
        if not self.is_queued(h):
            return False
        self.arena.s.deadline_ns[state_slot(h)] = deadline
        if alarm >= 0:
            timers_arm(&self.timers.s, state_slot(h), alarm)
        else:
            timers_disarm(&self.timers.s, state_slot(h))
        return True

    def due(self, now_ns):
        """Handles and owners of the queued requests whose timer has come."""
        cdef int64_t now = to_int64("now_ns", now_ns)
        cdef list handles = [], owners = []     # pairs are made last: a tuple may start a collection
        cdef int32_t slot = timers_due_one(&self.timers.s, now)
        while slot >= 0:
            handles.append(arena_handle(&self.arena.s, slot))
            owners.append(self._owners[slot])
            slot = timers_due_one(&self.timers.s, now)
        return list(zip(handles, owners))

    def next_ns(self):
        """When the earliest timer comes, or None."""
        return self.first_deadline() if self.timers.s.size else None

    def digest(self, content, who=0, epoch=0):
        """The keyed hash of a request's content."""
        cdef uint64_t low, high
        self.digest_of(content, to_int64("who", who), to_int64("epoch", epoch), &low, &high)
        return relay_int_from_words(low, high)

    cdef int digest_of(self, object content, int64_t who, int64_t epoch, uint64_t* low, uint64_t* high) except -1:
        hash_object(content, self.dedup.secret, low, high)
        if self.hash_bits < 64:
            low[0] &= (<uint64_t>1 << self.hash_bits) - 1
            high[0] = 0
            return 0
        # Odd factors whose bits are, too: numbers that differ by little give salts that differ in half of theirs.
        low[0] ^= <uint64_t>who * <uint64_t>0x9E3779B97F4A7C15 + <uint64_t>epoch * <uint64_t>0xD1B54A32D192ED03
        return 0

    cdef object leader(self, uint64_t low, uint64_t high, int64_t* handle):
        # The owner bound under a hash, or None.
        handle[0] = dedup_find(&self.dedup.s, low, high)
        return self._owners[state_slot(handle[0])] if handle[0] >= 0 else None

    def bind(self, digest, handle):
        """Lets identical requests find `handle` under `digest`."""
        cdef int64_t h = to_int64("handle", handle)
        cdef uint64_t word = arena_find(&self.arena.s, h)
        if word == 0 or word & DROPPED or self.sealed[state_slot(h)]:
            return False
        return self.dedup.insert(digest, handle)

    def find(self, digest):
        """The handle and owner bound under `digest`, or (-1, None)."""
        cdef int64_t handle = self.dedup.find(digest)
        return (handle, self._owners[state_slot(handle)]) if handle >= 0 else (-1, None)

    def unbind(self, handle):
        """Closes `handle` to joiners for good."""
        cdef int64_t h = to_int64("handle", handle)
        if arena_live(&self.arena.s, h):
            self.sealed[state_slot(h)] = True
        return self.dedup.delete(handle)
