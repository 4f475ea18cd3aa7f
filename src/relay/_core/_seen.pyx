# A part of queue.pyx: what can be seen of a queue.

cdef class Seen(Queued):
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

    def ahead(self, level):
        """How many are ready of this priority or of more urgent ones."""
        return self.up_to(as_range("level", level, 0, LEVELS - 1))

    cdef int64_t up_to(self, int64_t level) noexcept:
        cdef int64_t found = 0
        cdef int i
        for i in range(level + 1):
            found += self.counts[i]
        return found

    cdef bint is_full(self) noexcept:
        return self.arena.s.free_slots <= self.promised

    def head_level(self):
        """The priority of the first in line, or -1 if nothing is ready."""
        return self.level[heap_peek(&self.heap.s)] if self.heap.s.size else -1

    def oldest_ready_ns(self):
        """When the one that has been ready for longest became so, or 0 if nothing is ready."""
        cdef ArenaTable* a = &self.arena.s
        cdef int64_t oldest = INT64_MAX, ns
        cdef int32_t i, slot
        for i in range(HEAP_ROOT, HEAP_ROOT + self.heap.s.size):
            slot = heap_slot(&self.heap.s, i)
            ns = a.ready_ns[slot] if a.ready_ns[slot] >= 0 else a.arrival_ns[slot]
            oldest = ns if ns < oldest else oldest
        return oldest if self.heap.s.size else 0

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
        self.by_due.check()
        self.check_order()
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

    @final
    cdef int check_order(self) except -1:
        cdef Heap* h = &self.heap.s
        cdef int32_t found[LEVELS]
        cdef int32_t i, slot, due = 0, exposed = 0
        cdef int lane
        cdef bint kept = True
        memset(found, 0, sizeof(found))
        for i in range(HEAP_ROOT, HEAP_ROOT + h.size):
            slot = heap_slot(h, i)
            found[self.level[slot]] += 1
            if self.mixed and self.due_ns[slot] >= 0:
                due += 1
                kept &= heap_has(&self.by_due.s, slot) and heap_key(&self.by_due.s, slot) == self.due_ns[slot]
        if memcmp(found, self.counts, sizeof(found)):
            raise AssertionError("those that are ready are miscounted by priority; this is a bug in relay")
        if not kept or due != self.by_due.s.size:
            raise AssertionError("the order of due times is not that of those that are ready; this is a bug in relay")
        for slot in range(self.arena.s.capacity):
            exposed += self.is_queued(arena_handle(&self.arena.s, slot)) and not self.shared[slot]
        for i in range(LEVELS):
            slot = self.youngest[i]
            while slot >= 0:
                exposed -= 1
                kept &= self.level[slot] == i and self.younger[slot] != OUT and not self.shared[slot]
                kept &= self.older[slot] < 0 or self.serial[self.older[slot]] < self.serial[slot]
                slot = self.older[slot]
        if exposed or not kept:
            raise AssertionError("those that may be displaced are not in order of arrival; this is a bug in relay")
        for lane in range(LANES):
            if self.parked >> lane & 1 and self.at_least[lane] <= 0:
                raise AssertionError("a lane is parked that waits for nothing; this is a bug in relay")
        if self.since > self.every:
            raise AssertionError("overdue requests have been counted out of turn; this is a bug in relay")
        return 0
