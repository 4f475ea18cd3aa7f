# A part of queue.pyx: what a queue holds, the small steps that its calls are made of, and what can be seen of it.

cdef class Queued:
    cdef readonly Arena arena           # its table is what all the others index
    cdef PriorityHeap heap
    cdef Timers timers
    cdef Dedup dedup
    cdef list _owners                   # capacity: one object for each leased slot, None for the free ones
    cdef object wake                    # a callable or None; called after all changes
    cdef int32_t parked
    cdef int32_t promised

    def __cinit__(self, capacity, ids_capacity=0, max_length=0, wake=None, generation=1):
        self.wake = wake
        self.arena = Arena(capacity, ids_capacity, max_length, generation)
        self.heap = PriorityHeap(capacity)
        self.timers = Timers(capacity)
        self.dedup = Dedup(capacity)
        self._owners = [None] * capacity

    # Steps, each of them within a call.

    @final
    cdef inline int take_promise(self) except -1:
        if not self.promised:
            raise ValueError("no place is promised; call promise() first")
        self.promised -= 1
        return 0

    @final
    cdef int wake_lane(self) except -1:
        if self.wake is not None and self.heap.s.size:
            self.parked -= 1
            self.wake()
        return 0

    @final
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

    @final
    cdef inline bint is_queued(self, int64_t handle) noexcept:
        cdef uint64_t word = arena_find(&self.arena.s, handle)
        return word != 0 and state_bits(word) == QUEUED and not word & DROPPED

    @final
    cdef inline int forget(self, int32_t slot, int64_t handle) except -1:
        heap_remove(&self.heap.s, slot)
        timers_disarm(&self.timers.s, slot)
        dedup_delete(&self.dedup.s, handle)
        self._owners[slot] = None
        return 0

    # What can be seen.

    def owner(self, handle):
        """The owner of a lease, or None if it has ended."""
        cdef int64_t h = to_int64("handle", handle)
        return self._owners[state_slot(h)] if arena_live(&self.arena.s, h) else None

    def owners(self):
        """The owners of all leased slots."""
        return [owner for owner in self._owners if owner is not None]

    def lengths(self, handles):
        """How many input ids each of `handles` has."""
        cdef int64_t h
        cdef list found = []
        for handle in handles:
            h = to_int64("handle", handle)
            if not arena_live(&self.arena.s, h):
                self.arena.facts(h)     # says why
            found.append(self.arena.s.length[state_slot(h)])
        return found

    @property
    def capacity(self):
        """Slots in all."""
        return self.arena.s.capacity

    @property
    def free(self):
        """Slots free now and promised to nobody."""
        return self.arena.s.free_slots - self.promised

    @property
    def queued(self):
        """Requests ready to run."""
        return self.heap.s.size

    @property
    def next_generation(self):
        """A generation above all that were given out."""
        cdef int64_t newest = 0
        cdef int32_t slot
        for slot in range(self.arena.s.capacity):
            newest = max(newest, state_generation(state_load(&self.arena.s.word[slot])))
        return state_next_generation(newest)

    def __len__(self):
        return self.arena.s.capacity - self.arena.s.free_slots

    def check(self):
        """Recounts everything; AssertionError if an invariant is broken."""
        cdef int32_t slot
        cdef uint64_t word
        self.arena.check()
        self.heap.check()
        self.timers.check()
        self.dedup.check()
        if self.promised < 0 or self.arena.s.free_slots < self.promised:
            raise AssertionError(
                f"{self.promised} places promised, {self.arena.s.free_slots} free; this is a bug in relay"
            )
        for slot in range(self.arena.s.capacity):
            word = state_load(&self.arena.s.word[slot])
            owned = self._owners[slot] is not None
            # One that was finished while `gather` reads its row has no owner any more, and is freed by gather.
            if owned == (state_bits(word) == IDLE or (state_bits(word) == BUSY and word & DROPPED != 0)):
                raise AssertionError(f"slot {slot} has an owner and no lease, or the reverse; this is a bug in relay")
            if heap_has(&self.heap.s, slot) != (state_bits(word) == QUEUED and not state_flags(word)):
                raise AssertionError(
                    f"slot {slot} is ready but not in the heap, or the reverse; this is a bug in relay"
                )
