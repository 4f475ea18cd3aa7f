# A part of permits.pyx: waiting and giving back, and what is told at the end of a call, as in `relay._pure._ledger`.
# Between two grants, and two tellings, Python code may run; within them none does.

cdef class Ledger(Holdings):
    @final
    cdef inline Token own(self, object token):
        if not isinstance(token, Token):
            raise TypeError(f"token must be a Token, got {type(token).__name__}")
        if (<Token>token).permits is not self:
            raise ValueError("this token belongs to another pool; call token.release(), which knows its own")
        return <Token>token

    # Waiting.

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
    cdef object pull(self, int32_t p):
        # As `remove`, and its tenant is settled.
        cdef int32_t tenant = self.l.places[p].tenant
        waiter = self.remove(p)
        self.settle(tenant)
        return waiter

    @final
    cdef int step_aside(self, int32_t p) except -1:
        # Take a waiter out of line; it may have barred the way.
        waiter = self.pull(p)
        if isinstance(waiter, Acquire):
            (<Acquire>waiter).index = -1
        elif waiter is not None:
            self.unserved = self.news = True    # should it raise
            waiter.index = -1
        return 0

    @final
    cdef int32_t place_of(self, object waiter) except -3:
        # Where it stands, or less than 0. May run Python code.
        cdef int64_t p = (<Acquire>waiter).index if isinstance(waiter, Acquire) else to_int64("index", waiter.index)
        return <int32_t>p if 0 <= p < self.max_waiting and self.parked[p] is waiter else -1

    @final
    cdef int give_up(self, object waiter, int64_t now_ns) except -1:
        # Take a waiter out of line, or the token it has been granted from it.
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
            self.give_up(waiter, self.now())
        finally:
            self.conclude()
        return 0

    @final
    cdef int serve(self, int64_t now_ns) except -1:
        # Grant whatever can be granted; what is not, because there is no memory or a waiter raises, is granted at the
        # end of this call or of a later one. Between two grants a waiter may run Python code.
        cdef int32_t p
        cdef Py_ssize_t at
        cdef Place* place
        cdef Token token
        cdef list awake
        while self.waiting and self.b.held < self.b.capacity:
            p = lines_choose(&self.l, &self.b, now_ns)
            if p < 0:
                break
            self.unserved = self.news = True
            token = Token.__new__(Token)
            awake, at = self.awake, len(self.awake)
            if p < self.max_waiting:
                awake.append(None)      # room for it; nobody behind it is woken until it is filled
            self.unserved = False       # from here to the waiter's own part nothing is made, and so nothing fails
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
                awake[at] = waiter
            else:
                self.hand_over(waiter, token, awake, at, now_ns)
        self.unserved = False
        return 0

    @final
    cdef int hand_over(self, object waiter, Token token, list awake, Py_ssize_t at, int64_t now_ns) except -1:
        # Its attributes may be Python code. If it cannot take its token, the next one gets it, and it is told all the
        # same, so that it does not wait for ever.
        cdef bint taken = False
        try:
            try:
                waiter.token = token
                taken = True
            finally:
                waiter.index = -1
        except BaseException:
            self.unserved = True
            if not taken and arena_live(&self.a, token.lease):
                self.abandoned += 1
                self.a.arrival_ns[state_slot(token.lease)] = UNUSED
                self.end(token.lease, now_ns)
            raise
        finally:
            awake[at] = waiter
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
            if self.unserved:
                self.serve(self.now() if self.waiting else 0)
            if self.woken < len(self.awake) and self.awake[self.woken] is not None:
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
        cdef bint live
        while self.n_late:
            lease = self.late[self.n_late - 1]
            live = arena_live(&self.a, lease)
            if live:
                self.leaks.append(self.view(lease))     # first, for it may fail
                self.leaked += 1
                self.news = True
            self.n_late -= 1
            if live:
                self.a.arrival_ns[state_slot(lease)] = UNUSED
                self.end(lease, now_ns)
                self.serve(now_ns)
        return 0

    @final
    cdef int wake_one(self) except -1:
        cdef bint arrives
        cdef int64_t now_ns = 0
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
        if arrives:
            return 0
        # It will never take the token, so the next one gets it; with an old time rather than not at all.
        now_ns = self.rate_at_ns
        try:
            now_ns = self.now()
        finally:
            self.give_up(waiter, now_ns)
        return 0
