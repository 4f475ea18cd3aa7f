# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""RequestQueue: the slots of one model, from admission to the end of the run. `relay._pure.queue` says what each call
does.

Any thread may call any method. The GIL is the guard: a method changes everything it changes without running Python code
in between, so each call is atomic; lists are made before the first change, and owners that are let go are returned,
still held by the caller, or let go last, so no finaliser can come in between either.
"""

from cython cimport final
from libc.stdint cimport int32_t, int64_t, uint64_t

from relay._core._rows cimport ArenaTable, arena_find, rows_blocks_for
from relay._core.arena cimport (
    DROP_DEFERRED, DROP_FREED, Arena, arena_commit, arena_drop, arena_handle, arena_lease, arena_live, arena_release,
    arena_unpin,
)
from relay._core.dedup cimport Dedup, dedup_delete
from relay._core.heap cimport (
    Heap, PriorityHeap, heap_has, heap_lift, heap_pop_node, heap_push, heap_push_seq, heap_remove,
)
from relay._core.state cimport (
    BUSY, DROPPED, IDLE, PINNED, QUEUED, state_bits, state_flags, state_generation, state_load, state_next_generation,
    state_slot, to_int32, to_int64,
)
from relay._core.timers cimport Timers, timers_arm, timers_disarm, timers_due_one, timers_next

__all__ = ["FULL", "LOOK_PAST", "NO_BLOCKS", "RequestQueue"]

FULL = -1
NO_BLOCKS = -2
LOOK_PAST = 256

cdef enum:
    PASSED = 256


cdef struct Node:
    int64_t key
    uint64_t seq
    int32_t slot

include "_queued.pyx"


cdef class RequestQueue(Queued):
    """RequestQueue(capacity, ids_capacity=0, max_length=0, wake=None, generation=1)
--

The queue of one model."""

    def admit(self, owner, key, now_ns, deadline_ns=-1, cost=1, group=0, ids=-1, claim=False):
        """Leases a slot for a request."""
        cdef int64_t order = to_int64("key", key), now = to_int64("now_ns", now_ns)
        cdef int64_t deadline = to_int64("deadline_ns", deadline_ns)
        cdef int32_t size = to_int32("cost", cost), kind = to_int32("group", group), reserve = to_int32("ids", ids)
        cdef int64_t handle
        if claim:
            self.take_promise()
        elif self.arena.s.free_slots <= self.promised:
            return FULL
        handle = self.lease(owner, order, now, deadline, size, kind, reserve)
        if self.parked and reserve < 0:
            self.wake_lane()
        return handle

    def admit_all(self, owners, key, now_ns, deadline_ns=-1, costs=None, group=0, ids=None):
        """Leases a slot for each of several requests of one key, or for none of them."""
        cdef int64_t order = to_int64("key", key), now = to_int64("now_ns", now_ns)
        cdef int64_t deadline = to_int64("deadline_ns", deadline_ns), blocks = 0
        cdef int32_t kind = to_int32("group", group), count
        cdef Py_ssize_t n, i
        cdef bint ready = False
        cdef list who = list(owners), sizes, reserve, handles
        n = len(who)
        sizes = [1] * n if costs is None else [to_int32("cost", cost) for cost in costs]
        reserve = [-1] * n if ids is None else [to_int32("ids", wanted) for wanted in ids]
        for name, numbers in (("costs", sizes), ("ids", reserve)):
            if len(numbers) != n:
                raise ValueError(f"{len(numbers)} {name} were given for {n} owners; give one for each")
        handles = [-1] * n
        for i in range(n):
            count = reserve[i]
            ready |= count < 0
            blocks += rows_blocks_for(min(max(count, 0), self.arena.s.max_length))
        if self.arena.s.free_slots - self.promised < n or blocks > self.arena.s.free_blocks:
            return None
        for i in range(n):
            handles[i] = self.lease(who[i], order, now, deadline, sizes[i], kind, reserve[i])
        if self.parked and ready:
            self.wake_lane()
        return handles

    def promise(self):
        """Sets one free slot aside for someone who waits for room; tells whether there was one."""
        cdef ArenaTable* a = &self.arena.s
        if a.free_slots <= self.promised or rows_blocks_for(a.max_length) > a.free_blocks:
            return False
        self.promised += 1
        return True

    def forgo(self):
        """Gives a promised slot back."""
        self.take_promise()

    def write(self, handle, ids, split=-1):
        """Writes a pinned slot's input ids; their number becomes its cost."""
        cdef int32_t slot, length
        if not self.arena.write_ids(handle, ids, split):
            return False
        slot = state_slot(handle)
        length = self.arena.s.length[slot]
        self.arena.s.cost[slot] = length if length > 0 else 1
        return True

    def ready(self, handle, now_ns):
        """Unpins a slot and puts it into the heap; False if it was dropped, is stale, or not pinned."""
        cdef int64_t h = to_int64("handle", handle), now = to_int64("now_ns", now_ns)
        cdef ArenaTable* a = &self.arena.s
        cdef int32_t slot = state_slot(h)
        cdef uint64_t word = arena_find(a, h)
        if not word & PINNED or state_bits(word) != QUEUED:
            return False
        if not arena_unpin(a, h):
            self.forget(slot, h)
            return False
        a.ready_ns[slot] = now
        heap_push(&self.heap.s, a.key[slot], slot)
        if self.parked:
            self.wake_lane()
        return True

    def take(self, most, most_cost, now_ns):
        """Chooses the members of a batch and commits them: handles, owners, and the owners of the late."""
        cdef int32_t room = to_int32("most", most), n = 0, n_passed = 0, slot, size, kind = 0, widest = 0, i
        cdef int64_t limit = to_int64("most_cost", most_cost), now = to_int64("now_ns", now_ns), handle
        cdef ArenaTable* a = &self.arena.s
        cdef Node passed[PASSED]
        cdef Node* node
        cdef list handles = [], owners = [], late = []
        while n < room and n_passed < PASSED:
            node = &passed[n_passed]
            if heap_pop_node(&self.heap.s, &node.key, &node.seq, &node.slot) < 0:
                break
            slot = node.slot
            handle = arena_handle(a, slot)
            owner = self._owners[slot]
            if 0 <= a.deadline_ns[slot] <= now:
                late.append(owner)
                arena_drop(a, handle)
                self.forget(slot, handle)
                continue
            size = a.cost[slot]
            if n == 0:
                kind = a.group[slot]
            elif a.group[slot] != kind:
                n_passed += 1
                continue
            elif limit and <int64_t>(widest if widest > size else size) * (n + 1) > limit:
                n_passed += 1
                break
            if not arena_commit(a, handle):
                continue
            widest = widest if widest > size else size
            a.commit_ns[slot] = now
            timers_disarm(&self.timers.s, slot)
            n += 1
            handles.append(handle)
            owners.append(owner)
        for i in range(n_passed):
            heap_push_seq(&self.heap.s, passed[i].key, passed[i].seq, passed[i].slot)
        return handles, owners, late

    def park(self):
        """Says that a lane is about to sleep; False if something is ready."""
        if self.heap.s.size:
            return False
        self.parked += 1
        return True

    def unpark(self):
        """True if a lane sleeps, and is now the caller's to wake."""
        if not self.parked:
            return False
        self.parked -= 1
        return True

    def cancel(self, handle):
        """Drops a request that is still queued; answers as `Arena.drop`."""
        cdef int64_t h = to_int64("handle", handle)
        cdef int code = arena_drop(&self.arena.s, h)
        if code == DROP_FREED:
            self.forget(state_slot(h), h)
        elif code == DROP_DEFERRED:
            timers_disarm(&self.timers.s, state_slot(h))
            dedup_delete(&self.dedup.s, h)
        return code

    def finish(self, handles):
        """Ends the leases of a batch's members."""
        cdef int64_t h
        for handle in handles:
            h = to_int64("handle", handle)
            if not arena_release(&self.arena.s, h):
                self.arena.release(h)  # says why
            self.forget(state_slot(h), h)

    def lift(self, handle, key):
        """Makes a queued request more urgent, keeping its place among equals."""
        cdef int64_t h = to_int64("handle", handle), order = to_int64("key", key)
        cdef int32_t slot = state_slot(h)
        if not self.is_queued(h) or order >= self.arena.s.key[slot]:
            return False
        self.arena.s.key[slot] = order
        heap_lift(&self.heap.s, slot, order)
        return True

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
        return timers_next(&self.timers.s) if self.timers.s.size else None

    def digest(self, content):
        """The keyed hash of a request's content."""
        return self.dedup.hash(content)

    def bind(self, digest, handle):
        """Lets identical requests find `handle` under `digest`."""
        cdef uint64_t word = arena_find(&self.arena.s, to_int64("handle", handle))
        return word != 0 and not word & DROPPED and self.dedup.insert(digest, handle)

    def find(self, digest):
        """The handle and owner bound under `digest`, or (-1, None)."""
        cdef int64_t handle = self.dedup.find(digest)
        return (handle, self._owners[state_slot(handle)]) if handle >= 0 else (-1, None)

    def unbind(self, handle):
        """Closes `handle` to joiners."""
        return self.dedup.delete(handle)
