# A part of queue.pyx: how requests come in.

cdef class Entering(Texts):
    def admit(
        self, owner, key, now_ns, deadline_ns=-1, cost=1, group=0, ids=-1, claim=False, level=0, due_ns=-1, digest=-1
    ):
        """Leases a slot for a request."""
        cdef uint64_t low = 0, high = 0
        cdef bint bound = digest >= 0
        cdef int64_t order = to_int64("key", key), now = to_int64("now_ns", now_ns)
        cdef int64_t deadline = to_int64("deadline_ns", deadline_ns)
        cdef int32_t size = to_int32("cost", cost), kind = to_int32("group", group), reserve = to_int32("ids", ids)
        cdef int32_t priority = to_level(level, 0)
        cdef int64_t due = to_int64("due_ns", due_ns), handle
        if bound:
            words_of("digest", digest, &low, &high)
        if claim:
            self.take_promise()
        if bound and dedup_find(&self.dedup.s, low, high) >= 0:
            return TAKEN
        if not claim and self.is_full():
            return FULL
        handle = self.lease(owner, order, now, deadline, size, kind, reserve, priority, due)
        if handle >= 0 and bound:
            dedup_insert(&self.dedup.s, low, high, handle)
        if self.parked and reserve < 0:
            self.wake_lanes(1)
        return handle

    cdef int64_t admit_one(
        self, object owner, int64_t key, int64_t now, int64_t deadline, int64_t size, int32_t level, int64_t due,
        uint64_t low, uint64_t high, bint bound
    ) except? -3:
        # As `admit`, for a request that is ready and has no group.
        cdef int64_t handle
        if bound and dedup_find(&self.dedup.s, low, high) >= 0:
            return TAKEN_
        if self.is_full():
            return FULL_
        if size > MOST_SIZE:
            to_int32("cost", size)      # says why
        handle = self.lease(owner, key, now, deadline, <int32_t>size, 0, -1, level, due)
        if handle >= 0 and bound:
            dedup_insert(&self.dedup.s, low, high, handle)
        if self.parked:
            self.wake_lanes(1)
        return handle

    def admit_all(
        self, owners, key, now_ns, deadline_ns=-1, costs=None, group=0, ids=None, level=0, due_ns=-1
    ):
        """Leases a slot for each of several requests of one key, or for none of them."""
        cdef int64_t order = to_int64("key", key), now = to_int64("now_ns", now_ns)
        cdef int64_t deadline = to_int64("deadline_ns", deadline_ns), due = to_int64("due_ns", due_ns), blocks = 0
        cdef int32_t priority = to_level(level, 0), count, fresh = 0
        cdef Py_ssize_t n, i
        cdef list who = list(owners), sizes, kinds, reserve, handles
        n = len(who)
        if isinstance(group, (list, tuple)):
            kinds = [to_int32("group", kind) for kind in group]
        else:
            kinds = [to_int32("group", group)] * n
        sizes = [1] * n if costs is None else [to_int32("cost", cost) for cost in costs]
        reserve = [-1] * n if ids is None else [to_int32("ids", wanted) for wanted in ids]
        for name, numbers in (("costs", sizes), ("groups", kinds), ("ids", reserve)):
            if len(numbers) != n:
                raise ValueError(f"{len(numbers)} {name} were given for {n} owners; give one for each")
        handles = [-1] * n
        for i in range(n):
            count = reserve[i]
            fresh += count < 0
            blocks += rows_blocks_for(min(max(count, 0), self.arena.s.max_length))
        if self.arena.s.free_slots - self.promised < n or blocks > self.arena.s.free_blocks:
            return None
        for i in range(n):
            handles[i] = self.lease(who[i], order, now, deadline, sizes[i], kinds[i], reserve[i], priority, due)
        if self.parked:
            self.wake_lanes(fresh)
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
        self.enter(slot)
        if self.parked:
            self.wake_lanes(1)
        return True

    def ready_all(self, handles, now_ns):
        """As `ready` for each of several, in order; the lanes see all of them at once."""
        cdef int64_t h, now = to_int64("now_ns", now_ns)
        cdef ArenaTable* a = &self.arena.s
        cdef list gone = []         # owners, let go last
        cdef list named = handles if type(handles) is list else list(handles)
        cdef int32_t slot, fresh = 0
        cdef uint64_t word
        for handle in named:
            h = to_int64("handle", handle)
            slot = state_slot(h)
            word = arena_find(a, h)
            if not word & PINNED or state_bits(word) != QUEUED:
                continue
            if not arena_unpin(a, h):
                gone.append(self._owners[slot])
                self.forget(slot, h)
                continue
            a.ready_ns[slot] = now
            self.enter(slot)
            fresh += 1
        if fresh and self.parked:
            self.wake_lanes(fresh)
        return fresh
