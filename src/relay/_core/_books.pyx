# A part of permits.pyx: the books of a pool, all of its fields, and how they are made. The clock may be Python code: it
# is read before anything is changed.

cdef class Books(Hooks):
    cdef ArenaTable a               # one slot a token; key, deadline_ns: the thread and the context that acquired it,
                                    # group: the tier whose units, arrival_ns: since when (-1: unknown) or how it ends,
                                    # ready_ns: the last beat, commit_ns: the heartbeat, split: 0 if it was thrown away
    cdef readonly int32_t waiting
    cdef int32_t n_late
    cdef bint news                  # there is something to tell
    cdef readonly bint closed
    cdef public bint traced
    cdef public bint watched
    cdef public bint clocked
    cdef public bint custom
    cdef public bint keyed
    cdef public bint ready
    cdef bint armed                 # to be told, as the next
    cdef bint freed
    cdef bint unserved              # somebody who could be served may wait
    cdef bint trying                # the last place is taken
    cdef public int64_t heartbeat_ns
    cdef readonly int64_t granted
    cdef readonly int64_t ended
    cdef readonly int64_t failed
    cdef readonly int64_t epoch
    cdef Budget b
    cdef Lines l
    cdef Shares s
    cdef Heap leases                # when each slot is to be looked at
    cdef int32_t* idle              # max_waiting, owned: a stack of free places
    cdef int64_t* late              # max_capacity, owned: a stack of tokens that were thrown away
    cdef int32_t n_idle
    cdef int32_t n_tenants          # in use or spare
    cdef int32_t spare_tenant       # chain
    cdef int32_t max_tenants
    cdef int32_t base
    cdef int32_t woken              # how many of awake have been woken
    cdef readonly int32_t max_waiting
    cdef readonly int32_t max_capacity
    cdef public int64_t grace_ns
    cdef readonly int64_t abandoned
    cdef readonly int64_t revoked
    cdef readonly int64_t leaked
    cdef readonly int64_t held_ns
    cdef readonly int64_t refused_closed
    cdef readonly int64_t refused_large
    cdef readonly int64_t refused_cap
    cdef int64_t first_generation
    cdef int64_t cap
    cdef int64_t rate_at_ns
    cdef double rate_units
    cdef double rate_ns
    cdef double weight
    cdef readonly Histogram waits
    cdef object clock
    cdef list floors                # (tier, count), sorted
    cdef list parked                # who stands at each place
    cdef list names                 # of the tenants
    cdef dict tenants               # name -> index
    cdef dict caps
    cdef dict weights
    cdef list awake                 # to be woken, from `woken` on; None: about to be given a token
    cdef list leaks                 # views of tokens that were thrown away, to be told of
    cdef Token tried                # what the one who tries was given

    def __dealloc__(self):
        self.free_all()

    @final
    cdef void free_all(self) noexcept:
        arena_free(&self.a)
        heap_free(&self.leases)
        free(self.idle)
        free(self.late)
        free(self.b.tenants)
        free(self.l.places)
        free(self.l.lines)
        free(self.l.buckets)
        free(self.l.used)
        free(self.s.accounts)
        self.idle = self.l.buckets = self.l.used = NULL
        self.late = NULL
        self.b.tenants = NULL
        self.l.places = NULL
        self.l.lines = NULL
        self.s.accounts = NULL

    @final
    cdef int build(self, int32_t capacity, int64_t generation) except -1:
        # Everything as at first.
        cdef int32_t slots = self.max_capacity, mask = 1, i
        cdef int32_t places = self.max_waiting + 1      # the last one is for who only tries
        cdef list parked = self.parked, awake = self.awake, leaks = self.leaks     # let go when all is as it shall be
        cdef Token tried = self.tried
        cdef bint shared = self.weights is not None
        floors = shrunk(self.floors, self.base, capacity)
        waits, newly_parked, names, tenants, newly_awake, newly_leaks = Histogram(), [None] * places, [None], {}, [], []
        while mask < places:
            mask *= 2
        self.free_all()
        self.max_tenants = 2 * (places + slots) + 2
        self.idle = <int32_t*>calloc(places, sizeof(int32_t))
        self.late = <int64_t*>calloc(slots, sizeof(int64_t))
        self.b.tenants = <Tenant*>calloc(self.max_tenants, sizeof(Tenant))
        self.l.places = <Place*>calloc(places, sizeof(Place))
        self.l.lines = <Line*>calloc(places + 1, sizeof(Line))
        self.l.buckets = <int32_t*>calloc(mask, sizeof(int32_t))
        self.l.used = <int32_t*>calloc(places + 1, sizeof(int32_t))
        if shared:
            self.s.accounts = <Account*>calloc(places + slots + 1, sizeof(Account))
        if (
            self.idle == NULL or self.late == NULL or self.b.tenants == NULL or self.l.places == NULL
            or self.l.lines == NULL or self.l.buckets == NULL or self.l.used == NULL
            or (shared and self.s.accounts == NULL) or arena_init(&self.a, slots, 0, 0) < 0
            or heap_init(&self.leases, slots) < 0
        ):
            self.waiting = self.n_late = self.n_idle = self.b.capacity = self.b.held = 0
            raise MemoryError(f"no memory for a pool of {slots} tokens and {self.max_waiting} waiters")
        arena_start_at(&self.a, generation)
        self.first_generation = generation
        for i in range(self.max_waiting):
            self.idle[i] = i
        self.n_idle = self.max_waiting
        self.b.held = 0
        memset(self.b.held_by, 0, sizeof(self.b.held_by))
        memset(self.b.held_at, 0, sizeof(self.b.held_at))
        self.b.tenants[NOBODY].cap = -1
        self.b.tenants[NOBODY].weight = self.weights.get(None, self.weight) if shared else 1.0
        self.n_tenants = 1
        self.spare_tenant = 0
        self.l.mask = mask - 1
        self.l.n_used = self.l.top = self.l.spare = 0
        self.l.next_seq = self.l.turn = 0
        self.l.late_from = INT64_MAX
        self.l.by_tenant = shared or bool(self.caps) or self.cap >= 0
        memset(self.l.roots, 0, sizeof(self.l.roots))
        memset(self.l.waiting, 0, sizeof(self.l.waiting))
        memset(self.l.units, 0, sizeof(self.l.units))
        self.s.limit = places + slots if shared else 0
        self.s.count = self.s.top = self.s.spare = 0
        memset(self.s.clock, 0, sizeof(self.s.clock))
        self.set_capacity(capacity, floors)
        self.waiting = self.n_late = self.woken = 0
        self.granted = self.ended = self.failed = self.abandoned = self.revoked = self.leaked = self.epoch = 0
        self.held_ns = self.refused_closed = self.refused_large = self.refused_cap = 0
        self.rate_at_ns = 0
        self.rate_units = self.rate_ns = 0.0
        self.news = self.armed = self.freed = self.unserved = self.trying = self.ready = False
        self.waits, self.parked, self.names, self.tenants = waits, newly_parked, names, tenants
        self.awake, self.leaks, self.tried = newly_awake, newly_leaks, None
        return 0

    @final
    cdef int set_capacity(self, int32_t capacity, list floors) except -1:
        cdef int32_t i
        for i in range(self.b.groups):
            self.b.floor[i] = floors[i]
        self.b.capacity = capacity
        budget_refill(&self.b)
        return 0

    @final
    cdef inline int64_t now(self) except? -1:
        # May run Python code.
        cdef int64_t now_ns = relay_monotonic_ns() if self.clock is monotonic_ns else -1
        return now_ns if now_ns >= 0 else to_int64("now_ns", self.clock())
