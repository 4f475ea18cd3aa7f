# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False, embedsignature=True, embedsignature.format=python
"""RequestQueue: the slots of one model, from admission to the end of the run. `relay._pure.queue` says what each call does.

Any thread may call any method. The GIL is the guard: a method changes everything it changes without running Python code in between, so each call is atomic;
lists are made before the first change, and owners that are let go are returned or still held by the caller, so no finaliser can come in between either.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t

from relay._core.arena cimport (
    DROP_DEFERRED, DROP_FREED, Arena, arena_commit, arena_drop, arena_handle, arena_lease, arena_live, arena_release, arena_unpin,
)
from relay._core.dedup cimport Dedup, dedup_delete
from relay._core.heap cimport Heap, PriorityHeap, heap_has, heap_lift, heap_pop_node, heap_push, heap_push_seq, heap_remove
from relay._core._rows cimport ArenaTable, arena_find, rows_blocks_for
from relay._core.state cimport (
    DROPPED, PINNED, QUEUED, state_bits, state_flags, state_load, state_slot, to_int32, to_int64,
)
from relay._core.timers cimport Timers, timers_arm, timers_disarm, timers_due_one, timers_next

FULL = -1
NO_BLOCKS = -2
LOOK_PAST = 256

cdef enum:
    PASSED = 256


cdef struct Node:
    int64_t key
    uint64_t seq
    int32_t slot


cdef class RequestQueue:
    cdef readonly Arena arena           # its table is what all the others index
    cdef PriorityHeap heap
    cdef Timers timers
    cdef Dedup dedup
    cdef list _owners                   # capacity: one object for each leased slot, None for the free ones
    cdef object wake                    # a callable or None; called after all changes
    cdef int32_t parked
    cdef int32_t promised

    def __init__(self, capacity, ids_capacity=0, max_length=0, wake=None):
        self.wake = wake
        self.arena = Arena(capacity, ids_capacity, max_length)
        self.heap = PriorityHeap(capacity)
        self.timers = Timers(capacity)
        self.dedup = Dedup(capacity)
        self._owners = [None] * capacity

    def admit(self, owner, key, now_ns, deadline_ns=-1, cost=1, group=0, ids=-1, claim=False):
        cdef int64_t order = to_int64("key", key), now = to_int64("now_ns", now_ns), deadline = to_int64("deadline_ns", deadline_ns)
        cdef int32_t size = to_int32("cost", cost), kind = to_int32("group", group), reserve = to_int32("ids", ids)
        if claim:
            self.promised -= 1
        elif self.arena.s.free_slots <= self.promised:
            return FULL
        cdef int64_t handle = self.lease(owner, order, now, deadline, size, kind, reserve)
        if self.parked:
            self.wake_lane()
        return handle

    def admit_all(self, owners, key, now_ns, deadline_ns=-1, costs=None, group=0, ids=None):
        cdef int64_t order = to_int64("key", key), now = to_int64("now_ns", now_ns), deadline = to_int64("deadline_ns", deadline_ns)
        cdef int32_t kind = to_int32("group", group), i, n = len(owners)
        cdef list handles = [-1] * n
        if self.arena.s.free_slots - self.promised < n:
            return None
        if ids is not None and not self.room_for(ids):
            return None
        for i in range(n):
            handles[i] = self.lease(
                owners[i], order, now, deadline, 1 if costs is None else to_int32("cost", costs[i]), kind, -1 if ids is None else to_int32("ids", ids[i])
            )
        if self.parked:
            self.wake_lane()
        return handles

    def promise(self):
        if self.arena.s.free_slots <= self.promised or rows_blocks_for(self.arena.s.max_length) > self.arena.s.free_blocks:
            return False
        self.promised += 1
        return True

    def forgo(self):
        self.promised -= 1

    def write(self, handle, ids, split=-1):
        cdef int32_t slot, length
        if not self.arena.write_ids(handle, ids, split):
            return False
        slot = state_slot(handle)
        length = self.arena.s.length[slot]
        self.arena.s.cost[slot] = length if length > 0 else 1
        return True

    def ready(self, handle, now_ns):
        cdef int64_t h = to_int64("handle", handle), now = to_int64("now_ns", now_ns)
        cdef ArenaTable* a = &self.arena.s
        cdef int32_t slot = state_slot(h)
        cdef bint mine = arena_live(a, h)
        if not arena_unpin(a, h):
            if mine:
                self.forget(slot, h)
            return False
        a.ready_ns[slot] = now
        heap_push(&self.heap.s, a.key[slot], slot)
        if self.parked:
            self.wake_lane()
        return True

    def take(self, most, most_cost, now_ns):
        cdef int64_t now = to_int64("now_ns", now_ns), limit = to_int64("most_cost", most_cost), handle
        cdef int32_t room = to_int32("most", most), n = 0, n_passed = 0, slot, size, kind = 0, widest = 0, i
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
            widest = widest if widest > size else size
            arena_commit(a, handle)
            a.commit_ns[slot] = now
            timers_disarm(&self.timers.s, slot)
            n += 1
            handles.append(handle)
            owners.append(owner)
        for i in range(n_passed):
            heap_push_seq(&self.heap.s, passed[i].key, passed[i].seq, passed[i].slot)
        return handles, owners, late

    def park(self):
        if self.heap.s.size:
            return False
        self.parked += 1
        return True

    def unpark(self):
        if not self.parked:
            return False
        self.parked -= 1
        return True

    def cancel(self, handle):
        cdef int64_t h = to_int64("handle", handle)
        cdef int code = arena_drop(&self.arena.s, h)
        if code == DROP_FREED:
            self.forget(state_slot(h), h)
        elif code == DROP_DEFERRED:
            timers_disarm(&self.timers.s, state_slot(h))
            dedup_delete(&self.dedup.s, h)
        return code

    def finish(self, handles):
        cdef int64_t h
        for handle in handles:
            h = to_int64("handle", handle)
            if not arena_release(&self.arena.s, h):
                self.arena.release(h)  # says why
            self.forget(state_slot(h), h)

    def lift(self, handle, key):
        cdef int64_t h = to_int64("handle", handle), order = to_int64("key", key)
        cdef int32_t slot = state_slot(h)
        if not self.is_queued(h) or order >= self.arena.s.key[slot]:
            return False
        self.arena.s.key[slot] = order
        heap_lift(&self.heap.s, slot, order)
        return True

    def set_deadline(self, handle, deadline_ns, alarm_ns=-1):
        cdef int64_t h = to_int64("handle", handle), deadline = to_int64("deadline_ns", deadline_ns), alarm = to_int64("alarm_ns", alarm_ns)
        if not self.is_queued(h):
            return False
        self.arena.s.deadline_ns[state_slot(h)] = deadline
        if alarm >= 0:
            timers_arm(&self.timers.s, state_slot(h), alarm)
        else:
            timers_disarm(&self.timers.s, state_slot(h))
        return True

    def due(self, now_ns):
        cdef int64_t now = to_int64("now_ns", now_ns)
        cdef int32_t slot
        cdef list found = []
        for slot in self.timers.due(now):
            found.append((arena_handle(&self.arena.s, slot), self._owners[slot]))
        return found

    def next_ns(self):
        cdef int64_t when = timers_next(&self.timers.s)
        return when if when != INT64_MAX else None

    def digest(self, content):
        return self.dedup.hash(content)

    def bind(self, digest, handle):
        return arena_live(&self.arena.s, to_int64("handle", handle)) and self.dedup.insert(digest, handle)

    def find(self, digest):
        cdef int64_t handle = self.dedup.find(digest)
        return (handle, self._owners[state_slot(handle)]) if handle >= 0 else (-1, None)

    def unbind(self, handle):
        return self.dedup.delete(handle)

    def owner(self, handle):
        cdef int64_t h = to_int64("handle", handle)
        return self._owners[state_slot(h)] if arena_live(&self.arena.s, h) else None

    def owners(self):
        return [owner for owner in self._owners if owner is not None]

    def lengths(self, handles):
        cdef int64_t h
        return [self.arena.s.length[state_slot(h)] for h in handles]

    @property
    def capacity(self):
        return self.arena.s.capacity

    @property
    def free(self):
        return self.arena.s.free_slots - self.promised

    @property
    def queued(self):
        return self.heap.s.size

    def __len__(self):
        return self.arena.s.capacity - self.arena.s.free_slots

    def check(self):
        cdef int32_t slot
        cdef uint64_t word
        self.arena.check()
        self.heap.check()
        self.timers.check()
        self.dedup.check()
        if sum([owner is not None for owner in self._owners]) != len(self.arena):
            raise AssertionError("owners and leases differ in number; this is a bug in relay")
        if self.promised < 0 or self.arena.s.free_slots < self.promised:
            raise AssertionError(f"{self.promised} places promised, {self.arena.s.free_slots} free; this is a bug in relay")
        for slot in range(self.arena.s.capacity):
            word = state_load(&self.arena.s.word[slot])
            if heap_has(&self.heap.s, slot) != (state_bits(word) == QUEUED and not state_flags(word)):
                raise AssertionError(f"slot {slot} is ready but not in the heap, or the reverse; this is a bug in relay")

    cdef int wake_lane(self) except -1:
        if self.wake is not None and self.heap.s.size:
            self.parked -= 1
            self.wake()
        return 0

    cdef bint room_for(self, ids) except -1:
        cdef int64_t blocks = 0
        cdef int32_t count
        for count in ids:
            blocks += rows_blocks_for(min(max(count, 0), self.arena.s.max_length))
        return blocks <= self.arena.s.free_blocks

    cdef int64_t lease(
        self, object owner, int64_t key, int64_t now, int64_t deadline, int32_t cost, int32_t group, int32_t ids
    ) except? -3:
        cdef ArenaTable* a = &self.arena.s
        cdef int64_t handle = arena_lease(a, key, now, cost, 0, 0, ids if ids > 0 else 0, ids >= 0, 0)
        cdef int32_t slot
        if handle < 0:
            return handle
        slot = state_slot(handle)
        self._owners[slot] = owner
        a.group[slot] = group
        if deadline >= 0:
            a.deadline_ns[slot] = deadline
            timers_arm(&self.timers.s, slot, deadline)
        if ids < 0:
            heap_push(&self.heap.s, key, slot)
        return handle

    cdef inline bint is_queued(self, int64_t handle) noexcept:
        cdef uint64_t word = arena_find(&self.arena.s, handle)
        return word != 0 and state_bits(word) == QUEUED and not word & DROPPED

    cdef inline int forget(self, int32_t slot, int64_t handle) except -1:
        heap_remove(&self.heap.s, slot)
        timers_disarm(&self.timers.s, slot)
        dedup_delete(&self.dedup.s, handle)
        self._owners[slot] = None
        return 0
