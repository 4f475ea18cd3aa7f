# A part of permits.pyx: taking, waiting and giving back, and what is told at the end of a call, as in
# `relay._pure._ledger`. Between two grants, and two tellings, Python code may run; within them none does.

cdef class Ledger(Books):
    @final
    cdef inline Token own(self, object token):
        if not isinstance(token, Token):
            raise TypeError(f"token must be a Token, got {type(token).__name__}")
        if (<Token>token).permits is not self:
            raise ValueError("this token belongs to another pool; call token.release(), which knows its own")
        return <Token>token

    # Taking and waiting.

    @final
    cdef bint fits(self, int level, int32_t cost, object name) except -1:
        cdef int32_t tenant = self.find_tenant(name)
        cdef int64_t cap = self.cap_of(name), held = self.b.tenants[tenant].held if tenant >= 0 else 0
        return not (0 <= cap < held + cost) and cost <= budget_room(&self.b, self.b.group[level])

    @final
    cdef Token take(
        self, int level, int32_t cost, object name, int64_t beats_ns, object key, int64_t arrival_ns, int64_t now_ns
    ):
        # A token, if one may be had at once.
        cdef int32_t most = budget_most(&self.b, level)
        cdef int64_t cap = self.cap_of(name)
        cdef Token token
        if self.closed:
            self.refused_closed += 1
            raise Closed("the pool is closed; no more tokens are given out")
        if cost > max(most, 1):
            self.refused_large += 1
            raise TooLarge(
                f"cost {cost} is more than the {most} units that this pool could ever give to priority {level}; "
                "ask for less, or raise its capacity"
            )
        if 0 <= cap < cost:
            self.refused_cap += 1
            raise Overloaded(
                f"cost {cost} is more than the {cap} units that tenant {name!r} may hold; "
                "ask for less, or raise its cap",
                reason="tenant_cap",
            )
        if not self.fits(level, cost, name):
            return None
        if not self.waiting:
            token = Token.__new__(Token)
            if beats_ns <= 0 and not self.clocked:
                now_ns = -1
            self.fill(self.max_waiting, level, cost, self.tenant_of(name), beats_ns)
            self.give(token, &self.l.places[self.max_waiting], now_ns)
            return token
        if self.trying:
            return None     # a finaliser tries while somebody does
        # One of those who wait may bar the way: stand in line for a moment, where it is decided who may pass.
        self.trying = True
        if key is None and self.keyed:
            key = LAST_KEY      # behind all those whose keys the caller has made
        self.stand(self.max_waiting, level, key, cost, self.tenant_of(name), beats_ns, arrival_ns, now_ns)
        try:
            self.serve(now_ns)
        finally:
            token = self.tried
            self.tried = None
            if token is None and self.trying:
                self.step_aside(self.max_waiting)
            self.trying = False
        return token

    @final
    cdef void fill(self, int32_t p, int level, int32_t cost, int32_t tenant, int64_t beats_ns) noexcept:
        # A place, for whoever calls.
        cdef Place* place = &self.l.places[p]
        place.thread = relay_thread()
        place.context = relay_context()
        place.priority = place.level = level
        place.cost = cost
        place.tenant = tenant
        place.heartbeat_ns = beats_ns

    @final
    cdef int stand(
        self, int32_t p, int level, object key, int32_t cost, int32_t tenant, int64_t beats_ns, int64_t arrival_ns,
        int64_t now_ns,
    ) except -1:
        # Put a waiter into line.
        cdef Place* place = &self.l.places[p]
        if not self.waiting:
            self.rate_at_ns = now_ns
        if arrival_ns < 0 or arrival_ns > now_ns:
            arrival_ns = now_ns
        place.key = lines_key(&self.l, level, arrival_ns) if key is None else <int64_t>key
        place.seq = self.l.next_seq
        place.arrival_ns = arrival_ns
        self.fill(p, level, cost, tenant, beats_ns)
        self.l.next_seq += 1
        self.make_room(level, tenant)
        lines_enter(&self.l, &self.b, &self.s, p)
        self.waiting += 1
        return 0

    @final
    cdef object remove(self, int32_t p):
        # Take a waiter out of line; who it was. Its index is to be set, and its tenant may have to be settled.
        waiter = self.parked[p]
        lines_leave(&self.l, &self.b, &self.s, p)
        self.parked[p] = None
        if p < self.max_waiting:
            self.idle[self.n_idle] = p
            self.n_idle += 1
        else:
            self.trying = False
        self.waiting -= 1
        if self.watched:
            self.freed = self.news = True
        return waiter

    @final
    cdef int step_aside(self, int32_t p) except -1:
        # Take a waiter out of line; it may have barred the way.
        cdef int32_t tenant = self.l.places[p].tenant
        waiter = self.remove(p)
        self.settle(tenant)
        if waiter is not None:
            set_index(waiter, -1)
        return 0

    @final
    cdef int32_t place_of(self, object waiter) except -3:
        # Where it stands, or less than 0. May run Python code.
        cdef int64_t p = (<Acquire>waiter).index if isinstance(waiter, Acquire) else to_int64("index", waiter.index)
        return <int32_t>p if 0 <= p < self.max_waiting and self.parked[p] is waiter else -1

    @final
    cdef int give_up(self, object waiter) except -1:
        # Take a waiter out of line, or the token it has been granted from it.
        cdef int64_t now_ns = self.now()
        cdef Token token = waiter.token
        cdef int32_t p = self.place_of(waiter)
        if p >= 0:
            self.abandoned += 1
            self.step_aside(p)
            self.serve(now_ns)
        elif token is not None:
            self.abandoned += 1
            if arena_live(&self.a, token.lease):
                self.a.arrival_ns[state_slot(token.lease)] = UNUSED
                self.end(token.lease, now_ns)
                self.serve(now_ns)
        return 0

    @final
    cdef int abandon_now(self, object waiter) except -1:
        try:
            self.give_up(waiter)
        finally:
            self.conclude()
        return 0

    @final
    cdef int serve(self, int64_t now_ns) except -1:
        # Grant whatever can be granted. Between two grants a waiter may run Python code.
        cdef int32_t p
        cdef Place* place
        cdef Token token
        while self.waiting and self.b.held < self.b.capacity:
            p = lines_choose(&self.l, &self.b, now_ns)
            if p < 0:
                return 0
            token = Token.__new__(Token)
            place = &self.l.places[p]
            # Before it leaves the line: its tenant has not been idle, and is charged from where it stands.
            self.give(token, place, now_ns)
            waiter = self.remove(p)
            if p == self.max_waiting:
                self.tried = token
                continue
            hist_record(&self.waits.s, now_ns - place.arrival_ns)
            if isinstance(waiter, Acquire):
                (<Acquire>waiter).token = token
                (<Acquire>waiter).index = -1
            else:
                waiter.token = token
                waiter.index = -1
            self.awake.append(waiter)
            self.news = True
        return 0

    @final
    cdef inline int give_back(self, Token token) except -1:
        cdef int64_t now_ns = -1
        if not (self.waiting or self.n_late or self.news or self.clocked):
            if not arena_live(&self.a, token.lease):
                raise stale_token("release")
            self.end(token.lease, -1)
            return self.conclude() if self.news else 0
        if self.waiting or self.clocked:
            now_ns = self.now()
        try:
            if not arena_live(&self.a, token.lease):
                raise stale_token("release")
            self.end(token.lease, now_ns)
            self.serve(now_ns)
        finally:
            self.conclude()
        return 0

    @final
    cdef int leave_block(self, Token token, object kind) except -1:
        # At the end of a block, which raised an error of this kind.
        if token.lease >> SLOT_BITS < self.first_generation:
            return 0
        if kind is not None and arena_live(&self.a, token.lease):
            self.a.arrival_ns[state_slot(token.lease)] = FAILED if issubclass(kind, Exception) else UNUSED
        return self.give_back(token)

    @final
    cdef int throw_away(self, int64_t lease) except -1:
        # From finalisers.
        cdef int32_t slot = state_slot(lease)
        if arena_live(&self.a, lease):
            if self.a.split[slot] < 0:      # not noted yet
                self.a.split[slot] = 0
                self.late[self.n_late] = lease
                self.n_late += 1
            self._nudge()
        return 0

    # At the end of a call.

    @final
    cdef inline int conclude(self) except -1:
        return self.tell() if self.n_late or self.news else 0

    @final
    cdef int tell(self) except -1:
        # Take back what was thrown away, and tell all consequences. What is not told, because a hook raises, is told at
        # the end of a later call.
        while True:
            if self.n_late:
                self.settle_late()
            if self.woken < len(self.awake):
                self.wake_one()
            elif self.armed:
                self.armed = False
                try:
                    self._lease_armed()
                except BaseException:
                    self.armed = True
                    raise
            elif self.freed:
                self.freed = False
                try:
                    self._freed()
                except BaseException:
                    self.freed = True
                    raise
            elif self.leaks:
                self._leaked(self.leaks.pop(0))
            elif not self.n_late:
                self.news = False
                return 0

    @final
    cdef int settle_late(self) except -1:
        cdef int64_t now_ns = self.now(), lease
        while self.n_late:
            self.n_late -= 1
            lease = self.late[self.n_late]
            if arena_live(&self.a, lease):
                self.leaks.append(self.view(lease))
                self.leaked += 1
                self.news = True
                self.a.arrival_ns[state_slot(lease)] = UNUSED
                self.end(lease, now_ns)
                self.serve(now_ns)
        return 0

    @final
    cdef int wake_one(self) except -1:
        cdef bint arrives
        waiter = self.awake[self.woken]
        if isinstance(waiter, Acquire):
            arrives = (<Acquire>waiter).rouse()
        else:
            arrives = self._deliver(waiter)
        if self.woken >= len(self.awake) or self.awake[self.woken] is not waiter:
            return 0    # another thread has woken it as well, and sees to the rest
        self.awake[self.woken] = None
        self.woken += 1
        if self.woken == len(self.awake):
            self.awake.clear()
            self.woken = 0
        if not arrives:
            self.give_up(waiter)    # it will never take the token, so the next one gets it
        return 0
