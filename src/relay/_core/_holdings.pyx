# A part of permits.pyx: who holds what: tenants, and tokens, as in `relay._pure._ledger`. What a method here changes,
# it changes without running Python code in between.

cdef class Holdings(Books):
    # Tenants.

    @final
    cdef inline int64_t cap_of(self, object name) except? -2:
        return -1 if name is None else self.caps.get(name, self.cap)

    @final
    cdef int32_t find_tenant(self, object name) except? -1:
        # Its index, or -1 if it is new.
        if name is None:
            return NOBODY
        return self.tenants.get(name, -1)

    @final
    cdef int32_t tenant_of(self, object name) except -1:
        # Its index; settle() is to be called where it may neither hold nor wait in the end.
        cdef int32_t i = self.find_tenant(name)
        cdef Tenant* tenant
        cdef double weight = 1.0
        if i >= 0:
            return i
        if self.weights is not None:
            weight = self.weights.get(name, self.weight)
        cap = self.cap_of(name)
        i = self.spare_tenant or self.n_tenants
        if i < len(self.names):
            self.names[i] = name
        else:
            self.names.append(name)
        try:
            self.tenants[name] = i
        except MemoryError:
            self.names[i] = None
            raise
        tenant = &self.b.tenants[i]
        if i < self.n_tenants:
            self.spare_tenant = tenant.aside
        else:
            self.n_tenants += 1
        tenant.cap = cap
        tenant.weight = weight
        tenant.held = tenant.waiting = tenant.accounts = tenant.aside = 0
        return i

    @final
    cdef int settle(self, int32_t i) except -1:
        # Forget a tenant that neither holds nor waits, nor has taken more than its share.
        cdef Tenant* tenant = &self.b.tenants[i]
        if i == NOBODY or tenant.held or tenant.waiting or tenant.accounts:
            return 0
        del self.tenants[self.names[i]]
        self.names[i] = None
        tenant.aside = self.spare_tenant
        self.spare_tenant = i
        return 0

    @final
    cdef int make_room(self, int level, int32_t tenant) except -1:
        # See to it that there is an account to spare: forget what idle tenants owe, if need be.
        cdef int32_t i, other
        if not self.s.limit or self.s.count < self.s.limit or shares_find(&self.s, &self.b, level, tenant):
            return 0
        for i in range(1, self.s.top + 1):
            if self.s.accounts[i].active == 0:
                other = self.s.accounts[i].tenant
                shares_close(&self.s, &self.b, i)
                if other != tenant:
                    self.settle(other)
        return 0

    # Tokens.

    @final
    cdef int give(self, Token token, const Place* place, int64_t now_ns) except -1:
        # Lease a slot for a new token, to whom a place describes; `now_ns` is -1 where nobody needs it.
        cdef int32_t slot, account
        token.lease = arena_lease(
            &self.a, place.thread, now_ns, place.cost, place.tenant, <int32_t>self.epoch, 0, 0, 1
        )
        slot = state_slot(token.lease)
        self.a.deadline_ns[slot] = place.context
        self.a.group[slot] = place.level
        if place.heartbeat_ns > 0:
            self.a.ready_ns[slot] = now_ns
            self.a.commit_ns[slot] = place.heartbeat_ns
            timers_arm(&self.leases, slot, later(now_ns, place.heartbeat_ns))
            self.armed = self.news = True
        budget_count(&self.b, place.level, place.tenant, place.cost)
        if self.s.limit:
            self.make_room(place.level, place.tenant)
            account = shares_open(&self.s, &self.b, place.level, place.tenant)
            lines_retime(&self.l, &self.s, account, shares_charge(&self.s, &self.b, account, place.cost))
        self.granted += 1
        token.permits = self
        token.priority = place.priority
        token.cost = place.cost
        token.tenant = self.names[place.tenant]
        token.epoch = self.epoch
        token.owns = True
        return 0

    @final
    cdef inline int end(self, int64_t lease, int64_t now_ns) except -1:
        # End a lease, which is live. The time is needed if somebody waits, or `clocked` is set.
        cdef int32_t slot = state_slot(lease), cost = self.a.cost[slot], tenant = self.a.tenant[slot]
        cdef double passed, kept
        heap_remove(&self.leases, slot)
        if self.a.arrival_ns[slot] == FAILED:
            self.failed += 1
        elif self.a.arrival_ns[slot] != UNUSED:
            self.ended += 1
            if self.clocked and self.a.arrival_ns[slot] >= 0:
                self.held_ns += now_ns - self.a.arrival_ns[slot]
        arena_release(&self.a, lease)
        budget_count(&self.b, self.a.group[slot], tenant, -cost)
        if tenant:
            if self.b.tenants[tenant].aside:
                lines_recall(&self.l, &self.b, tenant)
            self.settle(tenant)
        if self.watched:
            self.freed = self.news = True
        if self.waiting:
            passed = <double>(now_ns - self.rate_at_ns)
            kept = exp(-passed / MEMORY_NS)
            self.rate_at_ns = now_ns
            self.rate_units = self.rate_units * kept + cost
            self.rate_ns = self.rate_ns * kept + passed
        return 0

    @final
    cdef void ask_back(self, int64_t lease, int64_t now_ns) noexcept:
        # Revoke a lease.
        arena_revoke(&self.a, lease)
        timers_arm(&self.leases, state_slot(lease), later(now_ns, self.grace_ns))
        self.armed = self.news = True
        self.revoked += 1

    @final
    cdef inline int state_at(self, int64_t lease) noexcept:
        return state_bits(state_load(&self.a.word[state_slot(lease)]))

    @final
    cdef Token view(self, int64_t lease):
        # A token that says what a slot's does, and may be dropped.
        cdef int32_t slot = state_slot(lease)
        cdef Token token = Token.__new__(Token)
        token.permits = self
        token.lease = lease
        token.priority = self.a.group[slot]
        token.cost = self.a.cost[slot]
        token.tenant = self.names[self.a.tenant[slot]]
        token.epoch = self.a.epoch[slot]
        return token
