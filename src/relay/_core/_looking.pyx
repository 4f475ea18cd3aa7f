# A part of permits.pyx: what can be seen of a pool, and its recount. What a method returns, it has read at one moment.

cdef class Looking(Leases):
    @property
    def capacity(self):
        """Units in all."""
        return self.b.capacity

    @property
    def held(self):
        """Units held now."""
        return self.b.held

    @property
    def free(self):
        """Units free now, reserved ones included; 0 while more are held than there are after a cut."""
        return max(0, self.b.capacity - self.b.held)

    def __len__(self):
        return self.a.capacity - self.a.free_slots

    def holds(self, token):
        """True while the lease of `token`, one of this pool's, lasts."""
        if not isinstance(token, Token):
            raise TypeError(f"token must be a Token, got {type(token).__name__}")
        return (<Token>token).permits is self and arena_live(&self.a, (<Token>token).lease)

    def state_of(self, token):
        """"busy", "revoked" or "released"."""
        return token.state if self.holds(token) else "released"

    def tokens(self):
        """Views of all tokens held now; to drop them means nothing."""
        cdef list found = []
        cdef int64_t lease
        cdef int32_t slot
        for slot in range(self.a.capacity):
            lease = arena_handle(&self.a, slot)
            if lease >= 0:
                found.append(self.view(lease))
        self.conclude()
        return found

    def owned(self, who):
        """How many tokens somebody, named by `owner()`, has acquired and still holds."""
        cdef int64_t whose = to_int64("who", who)
        cdef int32_t slot, count = 0
        for slot in range(self.a.capacity):
            count += whose != 0 and arena_handle(&self.a, slot) >= 0 and (
                self.a.key[slot] == whose or self.a.deadline_ns[slot] == whose
            )
        self.conclude()
        return count

    def most_urgent(self):
        """The most urgent tier that waits, or -1."""
        cdef int level, found = -1
        for level in range(LEVELS):
            if self.l.waiting[level]:
                found = level
                break
        self.conclude()
        return found

    def by_tier(self):
        """For each tier with any of these: units held, requests waiting, units reserved."""
        cdef int32_t[LEVELS] held, waiting, kept
        cdef int level
        for level in range(LEVELS):
            held[level] = self.b.held_at[level]
            waiting[level] = self.l.waiting[level]
            kept[level] = -1
        for tier, _ in self.floors:
            kept[<int>tier] = self.b.floor[self.b.group[<int>tier]]
        found = {
            level: (held[level], waiting[level], max(0, kept[level]))
            for level in range(LEVELS) if held[level] or waiting[level] or kept[level] >= 0
        }
        self.conclude()
        return found

    def by_tenant(self):
        """For each tenant that holds or waits: units held, requests waiting, its cap or -1."""
        cdef list flat = []
        cdef int32_t i
        for i in range(1, self.n_tenants):
            if self.b.tenants[i].held or self.b.tenants[i].waiting:
                flat += (self.names[i], self.b.tenants[i].held, self.b.tenants[i].waiting, self.b.tenants[i].cap)
        self.conclude()
        return {flat[i]: (flat[i + 1], flat[i + 2], flat[i + 3]) for i in range(0, len(flat), 4)}

    def predict_ns(self, priority=1, cost=1):
        """How long a newcomer would wait, by the rate at which units came back lately, or -1 if that is not known."""
        cdef int level = level_of(priority), i
        cdef int64_t ahead = size_of("cost", cost, 1)
        cdef double wait_ns = -1
        if self.rate_units > 0 and self.rate_ns > 0:
            ahead -= self.b.capacity - self.b.held
            for i in range(level + 1):
                ahead += self.l.units[i]
            wait_ns = <double>(ahead if ahead > 0 else 0) / self.rate_units * self.rate_ns
        self.conclude()
        return FOREVER_NS if wait_ns >= <double>FOREVER_NS else <int64_t>wait_ns

    def check(self):
        """Recount everything; AssertionError if an invariant is broken."""
        try:
            self.recount()
        finally:
            self.conclude()

    @final
    cdef int recount(self) except -1:
        # AssertionError if an invariant is broken.
        cdef int32_t i, standing = 0, places = 0, could = 0, lack = 0
        cdef int64_t held = 0
        cdef Line* line
        if arena_check(&self.a) != 0 or heap_check(&self.leases) != 0:
            raise AssertionError("slots or their time limits miscounted" + BUG)
        self.waits.check()
        if budget_broken(&self.b, self.n_tenants):
            raise AssertionError("units miscounted" + BUG)
        for i in range(self.a.capacity):
            if arena_handle(&self.a, i) >= 0:
                held += self.a.cost[i]
        if held != self.b.held:
            raise AssertionError("held tokens miscounted" + BUG)
        for i in range(self.max_waiting + 1):
            standing += self.l.places[i].line != 0
            places += self.parked[i] is not None
            if self.l.places[i].line and (self.parked[i] is None or place_broken(&self.l, i)):
                raise AssertionError("waiters miscounted" + BUG)
        if standing != self.waiting or places != self.waiting or lines_broken(&self.l, &self.b, &self.s) != standing:
            raise AssertionError("waiters miscounted" + BUG)
        if self.waiting + self.n_idle != self.max_waiting:
            raise AssertionError("waiter places miscounted" + BUG)
        for i in range(1, self.n_tenants):
            if self.names[i] is not None:
                held = self.tenants[self.names[i]]
                if held != i or not (
                    self.b.tenants[i].held or self.b.tenants[i].waiting or self.b.tenants[i].accounts
                ):
                    raise AssertionError("tenants miscounted" + BUG)
        for i in range(self.l.n_used):
            line = &self.l.lines[self.l.used[i]]
            if self.l.by_tenant and budget_capped(&self.b, line.tenant, line.cost):
                continue
            if line.cost <= budget_room(&self.b, self.b.group[line.level]):
                could += 1
            else:
                lack += 1
        if could and not lack and not self.unserved:    # one who lacks enough may bar the way
            raise AssertionError("a waiter who could be served waits" + BUG)
        return 0
