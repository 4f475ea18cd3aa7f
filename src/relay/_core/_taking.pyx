# A part of permits.pyx: a token at once, or a place in line, as in `relay._pure._ledger`.

cdef class Taking(Ledger):
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
        cdef int32_t tenant
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
        if key is None and self.keyed:
            key = LAST_KEY      # behind all those whose keys the caller has made
        tenant = self.tenant_of(name)
        self.trying = True
        self.stand(self.max_waiting, level, key, cost, tenant, beats_ns, arrival_ns, now_ns)
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
    cdef int seat(self, object waiter, int32_t p) except -1:
        # Write down where it stands. That may be Python code.
        try:
            waiter.index = p
        except BaseException:
            if self.parked[p] is waiter:
                self.pull(p)        # it would not find its way out
                self.unserved = self.news = True
            raise
        if self.parked[p] is not waiter:
            waiter.index = -1       # setting it ran code that gave it a token
        return 0
