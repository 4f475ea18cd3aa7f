# A part of queue.pyx: how the members of a batch are found and committed, as in `relay._pure._members`. Here the line
# is walked by popping it; whoever has not joined in the end is put back with key and sequence.

cdef class Members(Seen):
    def take(
        self, most, most_cost, now_ns, costs=None, step_ns=0, look=256, places=(), finish=False
    ):
        """Chooses the members of a batch and commits them: handles, owners, owners of the late, why no more have
        joined, the largest cost and the sum of costs."""
        cdef Choice c
        cdef int64_t step = to_int64("step_ns", step_ns)
        cdef list handles = [], owners = [], late = []
        c.most, c.most_cost = to_int32("most", most), to_int64("most_cost", most_cost)
        c.now = to_int64("now_ns", now_ns)
        c.step = step if step > 0 else 0
        c.look = to_int32("look", look)
        c.finish = bool(finish)
        self.choose_members(&c, costs, places, handles, owners, late)
        return handles, owners, late, c.why, c.width, c.real

    cdef int choose_members(
        self, Choice* choice, object costs, object places, list handles, list owners, list late
    ) except -1:
        cdef Filling b
        memset(&b, 0, sizeof(b))
        b.limit = INFINITY
        b.most, b.most_cost, b.now = choice.most, choice.most_cost, choice.now
        b.step, b.finish = <double>choice.step, choice.finish
        read_line(&b, costs)
        if type(places) is not tuple or len(<tuple>places):
            read_places(&b, places)
        b.crowd = min(self.heap.s.size, b.most) if b.most > 0 and self.heap.s.size else 1
        self.walk(&b, choice.look, handles, owners, late)
        if b.n >= b.most:
            b.why = SHUT_SIZE if b.n and self.heap.s.size else SHUT_IDLE
        choice.why, choice.width, choice.real = b.why, b.width, b.real
        return 0

    cdef int64_t in_line(self) noexcept:
        return self.heap.s.size

    cdef int64_t first_deadline(self) noexcept:
        return timers_next(&self.timers.s) if self.timers.s.size else -1

    cdef bint lie_down(self, int64_t lane, int64_t wanted) noexcept:
        if self.heap.s.size >= wanted:
            return False
        self.at_least[lane] = <int32_t>wanted
        self.parked |= <uint64_t>1 << lane
        return True

    @final
    cdef int walk(self, Filling* b, int32_t look, list handles, list owners, list late) except -1:
        cdef ArenaTable* a = &self.arena.s
        cdef Heap* h = &self.heap.s
        cdef Other* other
        cdef int64_t key = 0
        cdef uint64_t seq = 0
        cdef int32_t farthest = look if look > b.most else b.most, seen = 0, popped = 0, slot = 0, i
        cdef int reason
        cdef bint choosing = False, limited = b.known or b.places or b.most_cost    # by more than `most`
        while b.n < b.most and seen < farthest:
            if heap_pop_node(h, &key, &seq, &slot) < 0:
                break
            if a.deadline_ns[slot] >= 0 and self.is_late(b, slot, late):
                continue
            if not choosing:
                if b.n == 0:
                    b.top = self.level[slot]
                if self.mixed and self.grant(b, 1, handles, owners, late):
                    if state_bits(state_load(&a.word[slot])) != QUEUED:
                        continue
                    if b.n >= b.most:
                        popped = self.keep(popped, key, seq, slot, PASSED)
                        break
                if b.n == 0:
                    self.join(b, slot, handles, owners)
                    continue
            seen += 1
            if a.group[slot] != b.group:
                filling_note(b, SHUT_PARAMS)
                popped = self.keep(popped, key, seq, slot, PASSED)
                if look <= 0:
                    break
            elif choosing or (b.sized and look > 0 and a.cost[slot] != b.width):
                popped = self.keep(popped, key, seq, slot, SAME if self.level[slot] <= b.top else RIDER)
                choosing = True
            else:
                reason = 0
                if limited:
                    reason = filling_refusal(b, self.level[slot], a.cost[slot], a.deadline_ns[slot])
                if not reason:
                    self.join(b, slot, handles, owners)
                    continue
                filling_note(b, reason)
                popped = self.keep(popped, key, seq, slot, PASSED)
                if reason != SHUT_OWN_DEADLINE or look <= 0:
                    break
        if choosing and b.n < b.most:
            self.choose(b, popped, handles, owners, late)
        for i in range(popped):
            other = &self.others[i]
            if state_bits(state_load(&a.word[other.slot])) == QUEUED:
                heap_push_seq(h, other.key, other.seq, other.slot)
        return 0

    @final
    cdef int choose(self, Filling* b, int32_t popped, list handles, list owners, list late) except -1:
        # Among those that follow one another in line, of sizes that differ.
        cdef ArenaTable* a = &self.arena.s
        cdef Other* o = self.others
        cdef int32_t i, slot, n = 0, overdue = 0, first, last, round
        for i in range(popped):
            if o[i].kind == SAME:
                o[i].kind = WAITS
                n += 1
                overdue += 0 <= self.due_ns[o[i].slot] <= b.now
        if overdue:
            # Under lasting overload all are overdue, and batches in order of arrival are padded most.
            if overdue <= max(self.expected(b, popped), 1):
                for i in range(popped):
                    slot = o[i].slot
                    if o[i].kind == WAITS and 0 <= self.due_ns[slot] <= b.now:
                        self.grant(b, 1, handles, owners, late)
                        if self.waits(slot):
                            self.attempt(b, slot, handles, owners)
                        o[i].kind = PASSED
                        n -= 1
        # Of the places to come some are for overdue ones, whose width is to be known before the others are chosen.
        while n and self.since + n >= self.every and self.grant(b, self.expected(b, popped), handles, owners, late):
            pass
        for round in range(ROUNDS + 1):
            n = self.fill(b, popped, &first, &last)
            if round == ROUNDS or not self.hurry(b, n, first, last):
                break
            # This batch and another one like it may make them late: they join first, and the others are chosen anew.
            for i in range(popped):
                if o[i].kind == CHOSEN:
                    o[i].kind = WAITS
                elif o[i].kind == NEAR:
                    self.attempt(b, o[i].slot, handles, owners)
                    o[i].kind = PASSED
        for i in range(popped):
            if o[i].kind == CHOSEN:
                self.attempt(b, o[i].slot, handles, owners)
        for i in range(n):
            if b.why:
                break
            slot = o[self.waiting[i]].slot
            if o[self.waiting[i]].kind == WAITS:
                filling_note(b, filling_refusal(b, self.level[slot], a.cost[slot], -1) or SHUT_TOKENS)
        for i in range(popped):
            if b.n >= b.most:
                break
            if o[i].kind == RIDER:
                self.grant(b, 1, handles, owners, late)
                if self.waits(o[i].slot):
                    self.attempt(b, o[i].slot, handles, owners)
        return 0

    @final
    cdef int32_t fill(self, Filling* b, int32_t popped, int32_t* first, int32_t* last) noexcept:
        # Marks the chosen among those that may wait; how many may.
        cdef Other* o = self.others
        cdef int32_t i, n = 0
        for i in range(popped):
            if o[i].kind == WAITS and self.waits(o[i].slot):
                self.waiting[n] = i
                self.order[n] = size_rank(self.arena.s.cost[o[i].slot], n)
                n += 1
        filling_fill(b, self.order, self.sums, n, first, last)
        for i in range(first[0], last[0]):
            o[self.waiting[rank_index(self.order[i])]].kind = CHOSEN
        return n

    @final
    cdef int32_t expected(self, Filling* b, int32_t popped) noexcept:
        # How many would be chosen among those that may wait.
        cdef int32_t i, first, last
        self.fill(b, popped, &first, &last)
        for i in range(popped):
            if self.others[i].kind == CHOSEN:
                self.others[i].kind = WAITS
        return last - first

    @final
    cdef bint hurry(self, Filling* b, int32_t n, int32_t first, int32_t last) noexcept:
        # Marks those that are left and whose deadline is near; whether there are any.
        cdef Other* other
        cdef int32_t i, width = b.width
        cdef bint found = False
        cdef double near
        if b.n >= b.most:
            return False
        if last > first:
            i = rank_size(self.order[last - 1])
            width = width if width > i else i
        near = 2.0 * filling_time(b, b.n + last - first, width)
        for i in range(n):
            other = &self.others[self.waiting[i]]
            if other.kind == WAITS and filling_left(b, self.arena.s.deadline_ns[other.slot]) < near:
                other.kind = NEAR
                found = True
        return found

    @final
    cdef inline int32_t keep(self, int32_t popped, int64_t key, uint64_t seq, int32_t slot, int32_t kind) noexcept:
        self.others[popped] = Other(key, seq, slot, kind)
        return popped + 1

    @final
    cdef inline bint waits(self, int32_t slot) noexcept:
        return state_bits(state_load(&self.arena.s.word[slot])) == QUEUED

    @final
    cdef bint grant(self, Filling* b, int32_t to_come, list handles, list owners, list late) except -1:
        # Gives the longest overdue request one of the next places, if among so many there is one for it.
        cdef ArenaTable* a = &self.arena.s
        cdef int32_t slot
        cdef int reason
        if b.blocked or not self.mixed or to_come <= 0 or self.since + to_come < self.every:
            return False
        while self.by_due.s.size:
            slot = heap_peek(&self.by_due.s)
            if self.due_ns[slot] > b.now:
                return False
            if self.is_late(b, slot, late):
                continue
            if b.n:
                if b.sized and self.level[slot] == b.top:
                    return False    # its turn comes as the first in line; here it would only be padding
                reason = SHUT_PARAMS
                if a.group[slot] == b.group:
                    reason = filling_refusal(b, self.level[slot], a.cost[slot], a.deadline_ns[slot])
                # Without steps an overdue rider may make the batch wider.
                if reason and not (reason == SHUT_STEP and b.step == 0.0):
                    filling_note(b, reason)
                    b.blocked = True
                    return False
            heap_remove(&self.heap.s, slot)
            self.join(b, slot, handles, owners)
            self.since -= self.every
            return True
        return False

    @final
    cdef inline int attempt(self, Filling* b, int32_t slot, list handles, list owners) except -1:
        # Lets a request join if it may; the reason if it may not.
        cdef ArenaTable* a = &self.arena.s
        cdef int reason = filling_refusal(b, self.level[slot], a.cost[slot], a.deadline_ns[slot])
        if reason:
            filling_note(b, reason)
        else:
            self.join(b, slot, handles, owners)
        return reason

    @final
    cdef inline int join(self, Filling* b, int32_t slot, list handles, list owners) except -1:
        # The caller has taken it off the heap.
        cdef ArenaTable* a = &self.arena.s
        cdef int64_t handle = arena_handle(a, slot)
        if b.n == 0:
            b.group = a.group[slot]
        self.cover(slot)
        arena_commit(a, handle)     # what is in line is QUEUED and not pinned, and nobody comes in between
        self.discount(slot)
        timers_disarm(&self.timers.s, slot)
        a.commit_ns[slot] = b.now
        filling_add(b, self.level[slot], a.cost[slot], a.deadline_ns[slot])
        if self.since < self.every:
            self.since += 1
        handles.append(handle)
        owners.append(self._owners[slot])
        return 0

    @final
    cdef bint is_late(self, Filling* b, int32_t slot, list late) except -1:
        # Drops a request that is not to be started any more.
        cdef ArenaTable* a = &self.arena.s
        cdef int64_t handle
        if not filling_late(b, a.deadline_ns[slot], a.cost[slot]):
            return False
        handle = arena_handle(a, slot)
        late.append(self._owners[slot])
        arena_drop(a, handle)
        heap_remove(&self.heap.s, slot)     # where `walk` has not popped it
        self.discount(slot)
        self.forget(slot, handle)
        return True
