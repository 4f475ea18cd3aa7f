# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, language_level=3
"""The lines of a token pool under eight threads at once, without Python in any of them: A8 for the sanitizers to watch.

The threads share the units of a pool (`_budget`), those who wait for them (`_trees`, `_lines`, `_turns`), the virtual
times of tenants (`_shares`), a histogram of waits, and the flag lock that guards them all. Each acquires with a time
limit of 0 to 1 ms: it takes what is free, or stands in line and parks at a gate of its own; then it leaves the line, or
takes what it was granted while its time ended, holds it for a moment, and releases. Whoever leaves, releases or
changes the capacity grants under the lock, and opens the gates of those who were granted without it. In the end nothing
may be held and nobody may stand in line, and all is recounted.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t
from libcpp.atomic cimport atomic, memory_order_relaxed

from relay._core._budget cimport (
    LEVELS, Budget, Tenant, budget_broken, budget_capped, budget_count, budget_most, budget_refill, budget_room,
)
from relay._core._lines cimport lines_enter, lines_key, lines_leave, lines_recall, lines_retime
from relay._core._shares cimport Account, Shares, shares_charge, shares_open
from relay._core._trees cimport Line, Lines, Place
from relay._core._turns cimport lines_broken, lines_choose, place_broken
from relay._core.histogram cimport Hist, Histogram, hist_check, hist_count, hist_record


cdef extern from "threads.hpp" nogil:
    void run_threads(int n, void (*work)(void*, int) noexcept nogil, void* world)
    void give_way "std::this_thread::yield"() noexcept

cdef enum:
    ENOUGH = 100            # of the rarest meeting

include "_pool_world.pyx"


cdef void open_all(World* w, Gate** wake, int32_t n) noexcept nogil:
    cdef int32_t i
    for i in range(n):
        wake[i].open()
        if w.plant != EARLY:
            wake[i].let_go()


cdef void release(World* w, int level, int32_t tenant, int32_t cost) noexcept nogil:
    cdef Gate* wake[PLACES]
    cdef int32_t n
    w.lock.lock()
    w.now_ns += STEP_NS
    budget_count(&w.b, level, tenant, -cost)
    if w.tenants[tenant].aside:
        lines_recall(&w.l, &w.b, tenant)
    n = serve(w, wake)
    w.lock.unlock()
    open_all(w, wake, n)


cdef void rearrange(World* w, uint64_t* seed) noexcept nogil:
    """Another capacity, or another tier for somebody; everything is recounted first."""
    cdef Gate* wake[PLACES]
    cdef int32_t n
    w.lock.lock()
    check(w)
    if draw(seed) % 2:
        w.b.capacity = 2 * CAPACITY - 1 - w.b.capacity      # one less, or one more again
        budget_refill(&w.b)
    else:
        lift(w, <int32_t>(draw(seed) % PLACES), <int>(draw(seed) % TIERS))
    n = serve(w, wake)
    w.lock.unlock()
    open_all(w, wake, n)


cdef bint acquire(World* w, Gate* gate, int timeout_us, int* level, int32_t tenant, int32_t cost) noexcept nogil:
    """Whether it has got what it asked for, in the tier that is written to `level`."""
    cdef Gate* wake[PLACES]
    cdef int32_t n = 0
    cdef bint held, stands = False, opened
    w.lock.lock()
    w.now_ns += STEP_NS
    held = not w.waiting and cost <= budget_room(&w.b, w.b.group[level[0]]) and not budget_capped(&w.b, tenant, cost)
    if held:
        give(w, level[0], tenant, cost)
    else:
        stands = stand(w, gate, level[0], tenant, cost)
        n = serve(w, wake)
    w.lock.unlock()
    open_all(w, wake, n)
    if not stands:
        if held:
            w.at_once.fetch_add(1, memory_order_relaxed)
        else:
            w.refused.fetch_add(1, memory_order_relaxed)
            give_way()
        return held
    opened = gate.park(timeout_us)
    if w.plant == RACE and not opened:
        hist_record(&w.waits, timeout_us)
    n = 0
    w.lock.lock()
    held = gate.granted
    if held:
        level[0] = gate.level       # it may have been lifted
    else:
        expect(w, not opened)
        remove(w, gate.place)
        n = serve(w, wake)          # it may have barred the way
    w.lock.unlock()
    open_all(w, wake, n)
    if held:
        w.granted.fetch_add(1, memory_order_relaxed)
        w.late.fetch_add(not opened, memory_order_relaxed)
    else:
        w.timed_out.fetch_add(1, memory_order_relaxed)
    return held


cdef void work(void* world, int me) noexcept nogil:
    cdef World* w = <World*>world
    cdef uint64_t seed = w.seed + <uint64_t>(me + 1) * 0x9E3779B97F4A7C15ULL
    cdef int64_t i = 0
    cdef int level
    cdef int32_t tenant, cost
    cdef uint64_t pause
    cdef Gate* gate
    while i < w.steps or (w.late.load() < ENOUGH and i < 50 * w.steps):     # the rarest meeting decides how long
        i += 1
        level = <int>(draw(&seed) % TIERS)
        tenant = <int32_t>(draw(&seed) % (TENANTS + 1))
        cost = 1 + <int32_t>(draw(&seed) % 3)
        gate = new Gate()
        if acquire(w, gate, <int>(draw(&seed) % 1000) if draw(&seed) % 4 else 0, &level, tenant, cost):
            gate.let_go()
            pause = draw(&seed) % 32
            while pause:
                pause -= 1
                give_way()
            release(w, level, tenant, cost)
        else:
            gate.let_go()
        if i % 64 == 0:
            rearrange(w, &seed)


def run(int64_t steps, uint64_t seed, bint shared=False, str plant="nothing"):
    """What happened how often, by name; AssertionError if a count or an invariant is wrong."""
    cdef World* w = new World()
    w.steps = steps
    w.seed = seed
    w.plant = {"nothing": 0, "race": RACE, "early": EARLY}[plant]
    try:
        with nogil:
            build(w, shared)
            run_threads(THREADS, work, w)
            check(w)
        assert w.wrong.load() == 0, f"{w.wrong.load()} steps went wrong"
        assert w.b.held == w.waiting == w.l.n_used == 0 and w.n_idle == PLACES
        assert hist_count(&w.waits) == w.granted.load()
        return {
            "at_once": w.at_once.load(), "granted": w.granted.load(), "late": w.late.load(),
            "timed_out": w.timed_out.load(), "refused": w.refused.load(),
        }
    finally:
        del w


def record(Histogram histogram not None, int64_t times):
    """A fault to plant: what the GIL guards is written without it."""
    cdef Hist* h = &histogram.s
    cdef int64_t i
    with nogil:
        for i in range(times):
            hist_record(h, i)
            give_way()
