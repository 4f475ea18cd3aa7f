# A part of queue.pyx: what a queue holds, and the small steps that its calls are made of.

cdef enum:
    LANES = 64
    LEVELS = 256
    PASSED = 0          # as it was popped: of another group, or does not fit
    SAME = 1            # may be chosen
    RIDER = 2
    WAITS = 3           # may be passed over
    CHOSEN = 4
    NEAR = 5            # its deadline is
    OUT = -2
    ROUNDS = 3          # times that a choice is made anew at most


cdef struct Other:      # one that `take` has popped and not committed, yet or at all
    int64_t key
    uint64_t seq
    int32_t slot
    int32_t kind


cdef inline int32_t to_level(object level, int64_t least) except? -2:
    cdef int64_t result = to_int64("level", level)
    if result < least or result >= LEVELS:
        as_range("level", level, least, LEVELS - 1)     # says why
    return <int32_t>result


cdef inline int32_t heap_slot(const Heap* h, int32_t i) noexcept nogil:
    return <int32_t>(h.nodes[i].rank & (HEAP_MAX_SLOTS - 1))


cdef class Door:
    # Where `tickets` lets requests in, and `lanes` takes them out.

    cdef int64_t admit_one(
        self, object owner, int64_t key, int64_t now, int64_t deadline, int64_t size, int32_t level, int64_t due,
        uint64_t low, uint64_t high, bint bound
    ) except? -3:
        raise NotImplementedError

    cdef int digest_of(self, object content, int64_t who, int64_t epoch, uint64_t* low, uint64_t* high) except -1:
        raise NotImplementedError

    cdef object leader(self, uint64_t low, uint64_t high, int64_t* handle):
        return None

    cdef int64_t up_to(self, int64_t level) noexcept:
        return 0

    cdef bint is_full(self) noexcept:
        return False

    cdef int choose_members(
        self, Choice* choice, object costs, object places, list handles, list owners, list late
    ) except -1:
        raise NotImplementedError

    cdef int end_leases(self, list handles) except -1:
        raise NotImplementedError

    cdef int64_t in_line(self) noexcept:
        return 0

    cdef int64_t first_deadline(self) noexcept:
        return -1

    cdef bint lie_down(self, int64_t lane, int64_t wanted) noexcept:
        return False


cdef class Queued(Door):
    cdef readonly Arena arena           # its table is what all the others index
    cdef PriorityHeap heap
    cdef Timers timers
    cdef Dedup dedup
    cdef list _owners                   # capacity: one object for each leased slot, None for the free ones
    cdef object wake                    # a callable or None; called after all changes
    cdef PriorityHeap by_due            # of those that are ready; kept once `mixed`
    cdef void* block                    # owned: the one allocation; the columns point into it
    cdef int64_t* due_ns                # -1: never
    cdef int64_t* serial                # in the order they came
    cdef double* sums                   # capacity + 1: for `take`, as the next three
    cdef uint64_t* order
    cdef Other* others
    cdef int32_t* waiting
    cdef uint8_t* level
    cdef int32_t* older                 # those that may be displaced, by priority, in the order they came: the one before
    cdef int32_t* younger               # the one behind; OUT: it may not be displaced
    cdef bint* shared
    cdef bint* sealed                   # closed to joiners for good
    cdef int64_t newest
    cdef int64_t since                  # members since the last overdue one that was given a place
    cdef int64_t every
    cdef uint64_t parked                # one bit a lane
    cdef int32_t at_least[LANES]        # how many a parked lane waits for
    cdef int32_t counts[LEVELS]         # how many are ready, by priority
    cdef int32_t youngest[LEVELS]       # the last of those that may be displaced
    cdef int32_t one_level              # the only priority there has been, or -1
    cdef bint mixed
    cdef public int64_t hash_bits       # less than 64: for tests
    cdef int32_t promised

    def __cinit__(self, capacity, ids_capacity=0, max_length=0, wake=None, generation=1, overdue_every=0):
        cdef size_t n, i
        self.every = as_range("overdue_every", overdue_every, 0, 0x7FFFFFFF)
        self.one_level = -1
        self.hash_bits = 128
        self.wake = wake
        self.arena = Arena(capacity, ids_capacity, max_length, generation)
        self.heap = PriorityHeap(capacity)
        self.timers = Timers(capacity)
        self.dedup = Dedup(capacity)
        self._owners = [None] * capacity
        self.by_due = PriorityHeap(capacity)
        n = <size_t>self.arena.s.capacity
        self.block = calloc(1, 8 + n * (4 * 8 + sizeof(Other) + 3 * sizeof(int32_t) + 2 * sizeof(bint) + 1))
        if self.block == NULL:
            raise MemoryError(f"no memory for {n} slots")
        self.due_ns = <int64_t*>self.block
        self.serial = self.due_ns + n
        self.order = <uint64_t*>(self.serial + n)
        self.sums = <double*>(self.order + n)
        self.others = <Other*>(self.sums + n + 1)
        self.waiting = <int32_t*>(self.others + n)
        self.older = self.waiting + n
        self.younger = self.older + n
        self.shared = <bint*>(self.younger + n)
        self.sealed = self.shared + n
        self.level = <uint8_t*>(self.sealed + n)
        for i in range(n):
            self.younger[i] = OUT
        for i in range(LEVELS):
            self.youngest[i] = -1

    def __dealloc__(self):
        free(self.block)

    # Steps, each of them within a call.

    @final
    cdef inline int take_promise(self) except -1:
        if not self.promised:
            raise ValueError("no place is promised; call promise() first")
        self.promised -= 1
        return 0

    @final
    cdef int wake_lanes(self, int32_t fresh) except -1:
        # So many have become ready.
        cdef int lane
        while fresh > 0 and self.parked and self.wake is not None:
            for lane in range(LANES):
                if self.parked >> lane & 1 and self.at_least[lane] <= self.heap.s.size:
                    break
            else:
                return 0
            if not self.heap.s.size:
                return 0
            self.parked &= ~(<uint64_t>1 << lane)
            try:
                self.wake(lane)
            except BaseException:
                self.parked |= <uint64_t>1 << lane      # it sleeps still: whoever comes next wakes it
                raise
            fresh -= 1
        return 0

    @final
    cdef inline void enter(self, int32_t slot) noexcept:
        heap_push(&self.heap.s, self.arena.s.key[slot], slot)
        self.counts[self.level[slot]] += 1
        if self.mixed and self.due_ns[slot] >= 0:
            self.enter_due(slot)

    @final
    cdef inline void discount(self, int32_t slot) noexcept:
        # It stands in line no more, and is off the heap.
        self.counts[self.level[slot]] -= 1
        if self.mixed:
            heap_remove(&self.by_due.s, slot)

    @final
    cdef inline void enter_due(self, int32_t slot) noexcept:
        # Among equally overdue ones, too, the first that came is the first.
        cdef Heap* h = &self.heap.s
        heap_push_seq(&self.by_due.s, self.due_ns[slot], h.nodes[h.where[slot]].rank >> HEAP_SLOT_BITS, slot)

    @final
    cdef void see(self, int32_t level) noexcept:
        # Another priority than `one_level`.
        cdef int32_t i, slot
        if self.one_level < 0:
            self.one_level = level
        elif not self.mixed and self.every:
            self.mixed = True
            for i in range(HEAP_ROOT, HEAP_ROOT + self.heap.s.size):
                slot = heap_slot(&self.heap.s, i)
                if self.due_ns[slot] >= 0:
                    self.enter_due(slot)

    @final
    cdef inline void expose(self, int32_t slot) noexcept:
        # It may be displaced from now on.
        cdef int32_t before = self.youngest[self.level[slot]], behind = -1
        while before >= 0 and self.serial[before] > self.serial[slot]:
            behind = before
            before = self.older[before]
        self.older[slot] = before
        self.younger[slot] = behind
        if before >= 0:
            self.younger[before] = slot
        if behind >= 0:
            self.older[behind] = slot
        else:
            self.youngest[self.level[slot]] = slot

    @final
    cdef inline void cover(self, int32_t slot) noexcept:
        # It may not, any more.
        cdef int32_t before = self.older[slot], behind = self.younger[slot]
        if behind == OUT:
            return
        if before >= 0:
            self.younger[before] = behind
        if behind >= 0:
            self.older[behind] = before
        else:
            self.youngest[self.level[slot]] = before
        self.younger[slot] = OUT

    @final
    cdef int64_t lease(
        self, object owner, int64_t key, int64_t now, int64_t deadline, int32_t cost, int32_t group, int32_t ids,
        int32_t level, int64_t due,
    ) except? -3:
        cdef ArenaTable* a = &self.arena.s
        cdef int64_t handle = arena_lease(a, key, now, cost, 0, 0, ids if ids > 0 else 0, ids >= 0, 0)
        cdef int32_t slot
        if handle < 0:
            return handle
        slot = state_slot(handle)
        self._owners[slot] = owner
        a.group[slot] = group
        self.newest += 1
        self.serial[slot] = self.newest
        self.level[slot] = <uint8_t>level
        self.due_ns[slot] = due
        self.shared[slot] = self.sealed[slot] = False
        self.expose(slot)
        if level != self.one_level:
            self.see(level)
        if deadline >= 0:
            a.deadline_ns[slot] = deadline
            timers_arm(&self.timers.s, slot, deadline)
        if ids < 0:
            self.enter(slot)
        return handle

    @final
    cdef inline bint is_queued(self, int64_t handle) noexcept:
        cdef uint64_t word = arena_find(&self.arena.s, handle)
        return word != 0 and state_bits(word) == QUEUED and not word & DROPPED

    @final
    cdef inline int forget(self, int32_t slot, int64_t handle) except -1:
        if heap_remove(&self.heap.s, slot):
            self.discount(slot)
        self.cover(slot)
        timers_disarm(&self.timers.s, slot)
        dedup_delete(&self.dedup.s, handle)
        self._owners[slot] = None
        return 0
