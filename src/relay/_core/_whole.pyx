# A part of permits.pyx: a pool as a whole: how it is made, resized, closed, and begun anew.

cdef class Whole(Looking):
    def __init__(
        self, capacity, floors=(), max_waiting=10_000, max_capacity=0, allowance_ns=(), overdue_every=0, weights=None,
        weight=1.0, caps=None, cap=-1, heartbeat_ns=0, grace_ns=1_000_000_000, now_ns=None,
    ):
        cdef int32_t units = size_of("capacity", capacity, 1), places = size_of("max_waiting", max_waiting, 0), i
        cdef int32_t most = size_of("max_capacity", max_capacity, 0) or units
        if self.clock is not None:
            raise TypeError("a pool can be initialised only once")
        if most < units:
            raise ValueError(f"capacity {units} is more than max_capacity {most}; raise max_capacity")
        named = sorted([(check_priority(tier), size_of("a reserved count", count, 0)) for tier, count in floors])
        reserved = sum([count for _, count in named])
        if reserved > units:
            raise ValueError(
                f"reserved tokens come to {reserved}, but the pool has only {units}; "
                "reserve fewer or raise the capacity"
            )
        if len(dict(named)) < len(named):
            raise ValueError("tokens are reserved twice for one priority; name each priority once")
        self.caps = {name_of(name): size_of("a tenant's cap", count, 0) for name, count in (caps or {}).items()}
        for share in (weight, *(weights or {}).values()):
            if not 2.0**-10 <= share <= 2.0**20:
                raise ValueError(f"a weight must be from {2.0**-10} to {2.0**20}, got {share!r}")
        shares = None if weights is None else {name_of(name): float(share) for name, share in weights.items()}
        allowances = [min(as_int64("an allowance", ns), LONGEST_NS) for ns in allowance_ns] or [0] * LEVELS
        if len(allowances) != LEVELS:
            raise ValueError(f"allowance_ns must name all 256 priorities, or none, got {len(allowances)}")
        for i in range(LEVELS):
            self.l.allowance_ns[i] = allowances[i]
        for index, (tier, _) in enumerate(named, start=1):
            above = [other for other in {*TIERS, *dict(named)} if other > tier]
            for level in range(tier, min(above, default=LEVELS)):
                self.b.group[<int>level] = index
        self.b.groups = 1 + <int32_t>len(named)
        self.floors, self.weights, self.weight = named, shares, weight
        self.cap = as_int64("cap", cap)
        self.l.every = as_int64("overdue_every", overdue_every)
        self.heartbeat_ns = as_int64("heartbeat_ns", heartbeat_ns)
        self.grace_ns = as_int64("grace_ns", grace_ns)
        self.max_waiting, self.max_capacity, self.base = places, most, units
        self.custom = True
        self.build(units, 1)
        self.clock = monotonic_ns if now_ns is None else now_ns

    def resize(self, capacity):
        """Change the capacity. Tokens that are held stay valid. Reserved units shrink in proportion."""
        cdef int32_t units = size_of("capacity", capacity, 1)
        cdef int64_t now_ns
        if units > self.max_capacity:
            raise ValueError(
                f"capacity {units} is more than max_capacity {self.max_capacity}; make the pool with a larger "
                "max_capacity"
            )
        floors = shrunk(self.floors, self.base, units)
        now_ns = self.now()
        self.set_capacity(units, floors)
        try:
            self.serve(now_ns)
        finally:
            self.conclude()

    def advance(self):
        """Start a new epoch; tokens granted from now on carry its number, which is returned."""
        cdef int64_t epoch = self.epoch + 1
        self.epoch = epoch
        self.conclude()
        return epoch

    def seal(self):
        """Refuse all newcomers; those who wait are still served."""
        self.closed = True
        self.conclude()

    def shut(self):
        """Refuse all newcomers and send away those who wait, with no token; tokens already held stay valid."""
        cdef int32_t p
        self.closed = True
        try:
            for p in range(self.max_waiting):
                waiter = self.parked[p]
                if waiter is not None:
                    self.awake.append(waiter)
                    self.news = True
                    self.step_aside(p)
        finally:
            self.conclude()

    def start_over(self):
        """In the child of a fork: nobody holds a token or waits, and every handle from before is stale."""
        cdef int64_t newest = 0, generation
        cdef int32_t slot
        for waiter in self.parked:
            if waiter is not None:
                set_index(waiter, -1)
        for slot in range(self.a.capacity):
            generation = state_generation(state_load(&self.a.word[slot]))
            newest = generation if generation > newest else newest
        self.build(self.b.capacity, newest + 1)
