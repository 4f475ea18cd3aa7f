# A part of stress_pool.pyx: the world that its threads share, and what they do there while they hold its lock. It is
# what `_books.pyx` and `_ledger.pyx` of the core do, without tokens, objects and names.

cdef extern from "lock.hpp" namespace "relay" nogil:
    cppclass FlagLock:
        void lock() noexcept
        void unlock() noexcept

cdef extern from "gate.hpp" nogil:
    cppclass Gate:
        int place
        int level
        bint granted
        bint park(int timeout_us) noexcept
        void open() noexcept
        void share() noexcept
        void let_go() noexcept

cdef enum:
    THREADS = 8
    PLACES = 6              # fewer than threads, so that some are refused
    CAPACITY = 6
    TENANTS = 4             # and nobody
    TIERS = 3
    ACCOUNTS = TIERS * (TENANTS + 1)
    STEP_NS = 1000          # the time is counted in steps: each thread's own wait is the only real one
    RACE = 1                # faults to plant: a wait is recorded without the lock
    EARLY = 2               # the waker has no reference to the gate it opens

cdef cppclass World:
    FlagLock lock
    Budget b                # from here to `now_ns`: guarded by lock
    Lines l
    Shares s
    Hist waits
    Tenant tenants[TENANTS + 1]
    Place places[PLACES]
    Line lines[PLACES + 1]
    int32_t buckets[8]
    int32_t used[PLACES + 1]
    Account accounts[ACCOUNTS + 1]
    Gate* parked[PLACES]
    int32_t idle[PLACES]
    int32_t n_idle
    int32_t waiting
    int64_t now_ns
    atomic[int64_t] wrong   # what must not happen, counted
    atomic[int64_t] at_once
    atomic[int64_t] granted     # while it stood in line
    atomic[int64_t] late        # of those: its time was over before the gate was open
    atomic[int64_t] timed_out
    atomic[int64_t] refused
    uint64_t seed
    int64_t steps
    int plant


cdef inline uint64_t draw(uint64_t* seed) noexcept nogil:
    seed[0] ^= seed[0] << 13
    seed[0] ^= seed[0] >> 7
    seed[0] ^= seed[0] << 17
    return seed[0] >> 11


cdef inline void expect(World* w, bint holds) noexcept nogil:
    if not holds:
        w.wrong.fetch_add(1)


# Under the lock.

cdef void give(World* w, int level, int32_t tenant, int32_t cost) noexcept nogil:
    cdef int32_t account
    budget_count(&w.b, level, tenant, cost)
    expect(w, w.b.held <= w.b.capacity)
    if w.s.limit:
        account = shares_open(&w.s, &w.b, level, tenant)
        lines_retime(&w.l, &w.s, account, shares_charge(&w.s, &w.b, account, cost))


cdef void remove(World* w, int32_t p) noexcept nogil:
    lines_leave(&w.l, &w.b, &w.s, p)
    w.parked[p].place = -1
    w.parked[p] = NULL
    w.idle[w.n_idle] = p
    w.n_idle += 1
    w.waiting -= 1


cdef int32_t serve(World* w, Gate** wake) noexcept nogil:
    # Grant whatever can be granted; how many gates are to be opened.
    cdef int32_t n = 0, p
    cdef Gate* gate
    while w.waiting and w.b.held < w.b.capacity:
        p = lines_choose(&w.l, &w.b, w.now_ns)
        if p < 0:
            break
        give(w, w.places[p].level, w.places[p].tenant, w.places[p].cost)
        gate = w.parked[p]
        remove(w, p)
        hist_record(&w.waits, w.now_ns - w.places[p].arrival_ns)
        gate.level = w.places[p].level
        gate.granted = True
        if w.plant != EARLY:
            gate.share()
        wake[n] = gate
        n += 1
    return n


cdef bint stand(World* w, Gate* gate, int level, int32_t tenant, int32_t cost) noexcept nogil:
    cdef int32_t p
    cdef Place* place
    if not w.n_idle:
        return False
    w.n_idle -= 1
    p = w.idle[w.n_idle]
    w.parked[p] = gate
    gate.place = p
    place = &w.places[p]
    place.key = lines_key(&w.l, level, w.now_ns)
    place.seq = w.l.next_seq
    place.arrival_ns = w.now_ns
    place.priority = place.level = level
    place.cost = cost
    place.tenant = tenant
    w.l.next_seq += 1
    lines_enter(&w.l, &w.b, &w.s, p)
    w.waiting += 1
    return True


cdef void lift(World* w, int32_t p, int level) noexcept nogil:
    if w.parked[p] != NULL and w.places[p].cost <= budget_most(&w.b, level):
        lines_leave(&w.l, &w.b, &w.s, p)
        w.places[p].level = level
        w.places[p].key = lines_key(&w.l, level, w.places[p].arrival_ns)
        lines_enter(&w.l, &w.b, &w.s, p)


cdef void check(World* w) noexcept nogil:
    cdef int32_t p
    expect(w, not budget_broken(&w.b, TENANTS + 1) and hist_check(&w.waits) == 0)
    expect(w, lines_broken(&w.l, &w.b, &w.s) == w.waiting == PLACES - w.n_idle)
    for p in range(PLACES):
        expect(w, w.parked[p] == NULL or not place_broken(&w.l, p))


cdef void build(World* w, bint shared) noexcept nogil:
    # All of it was zero.
    cdef int i
    for i in range(TENANTS + 1):
        w.tenants[i].cap = 3 if i % 2 else -1
        w.tenants[i].weight = 1 << i
    w.b.tenants, w.b.capacity, w.b.groups = w.tenants, CAPACITY, 2
    w.b.floor[1] = 1            # a unit is kept for the first tier
    w.b.group[0] = 1
    budget_refill(&w.b)
    w.l.places, w.l.lines, w.l.buckets, w.l.used = w.places, w.lines, w.buckets, w.used
    w.l.mask = 7
    w.l.late_from = INT64_MAX
    w.l.every = 4
    w.l.by_tenant = True
    for i in range(LEVELS):
        w.l.allowance_ns[i] = 8 * STEP_NS * i
    w.s.accounts = w.accounts
    w.s.limit = ACCOUNTS if shared else 0
    for i in range(PLACES):
        w.idle[i] = i
    w.n_idle = PLACES
