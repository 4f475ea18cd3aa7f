# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, language_level=3
"""The native core under many threads at once, without Python in any of them, for the sanitizers to watch.

Twelve threads share an arena, a heap, timers, a dedup and the flag lock that guards them. Callers submit (find a
leader, or lease, enter, push and arm), cancel and expire under the lock. Lanes pop and commit under it, gather the rows
they have pinned without it, and release under it. Tokenisers pin and write rows without it. Every row holds ids made
from its own handle, so a row touched under the wrong lease shows. In the end nothing may be left, and all is recounted.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from libcpp.atomic cimport atomic, memory_order_acquire, memory_order_relaxed, memory_order_release

from relay._core._rows cimport ArenaTable, rows_write
from relay._core.arena cimport (
    DROP_BUSY, DROP_DEFERRED, DROP_FREED, arena_check, arena_commit, arena_drop, arena_free, arena_handle,
    arena_init, arena_lease, arena_pin, arena_release, arena_requeue, arena_unpin, arena_write_ids,
)
from relay._core.batch cimport batch_gather
from relay._core.dedup cimport (
    SECRET_WORDS, DedupTable, dedup_check, dedup_delete, dedup_find, dedup_free, dedup_init, dedup_insert, hash128,
)
from relay._core.heap cimport (
    Heap, heap_check, heap_free, heap_init, heap_pop_node, heap_push, heap_push_seq, heap_remove,
)
from relay._core.state cimport (
    BUSY, IDLE, Word, state_bits, state_cas, state_edge, state_generation, state_load, state_slot, state_word,
)
from relay._core.timers cimport timers_arm, timers_disarm, timers_due_one


cdef extern from "lock.hpp" namespace "relay" nogil:
    cppclass FlagLock:
        void lock() noexcept
        void unlock() noexcept

cdef extern from "threads.hpp" nogil:
    void run_threads(int n, void (*work)(void*, int) noexcept nogil, void* world)
    void give_way "std::this_thread::yield"() noexcept

cdef enum:
    SLOTS = 96
    BOARD = 64          # handles that threads show each other
    BATCH = 16
    MAX_IDS = 100
    CALLERS = 8
    LANES = 2
    TOKENISERS = 2
    RACE = 1            # faults to plant: a caller pushes without the lock
    OVERRUN = 2         # a hash reads one byte too many

cdef cppclass World:
    FlagLock lock
    ArenaTable arena                # these four: guarded by lock, but for state words and pinned rows
    Heap heap
    Heap timers
    DedupTable dedup
    atomic[int64_t] board[BOARD]
    atomic[int] callers             # that are still at work; the others end with the last of them
    atomic[int64_t] wrong           # what must not happen, counted
    atomic[int64_t] served          # rows gathered
    atomic[int64_t] merged
    atomic[int64_t] deferred        # cancelled while pinned
    Word word                       # for the duel: who makes it BUSY owns `duels`
    int64_t duels
    uint64_t secret[SECRET_WORDS]
    uint64_t seed
    int64_t steps
    int plant


cdef inline uint64_t draw(uint64_t* seed) noexcept nogil:
    seed[0] ^= seed[0] << 13
    seed[0] ^= seed[0] >> 7
    seed[0] ^= seed[0] << 17
    return seed[0] >> 11


cdef inline int32_t id_of(int64_t handle) noexcept nogil:
    return <int32_t>((<uint64_t>handle * 0x9E3779B97F4A7C15ULL) >> 34) + 1


cdef inline void expect(World* w, bint holds) noexcept nogil:
    if not holds:
        w.wrong.fetch_add(1)


cdef void leave(World* w, int64_t handle) noexcept nogil:
    """Under the lock: a lease that has ended, or will when it is unpinned, is in no queue any more."""
    heap_remove(&w.heap, state_slot(handle))
    timers_disarm(&w.timers, state_slot(handle))
    dedup_delete(&w.dedup, handle)


cdef void submit(World* w, uint64_t* seed) noexcept nogil:
    cdef uint64_t lo, hi
    cdef int64_t handle = 0
    cdef int64_t key = <int64_t>(draw(seed) % 1000)
    cdef size_t size = draw(seed) % 200
    cdef char* content = <char*>malloc(size if size else 1)     # its exact size: reading past the end is found
    memset(content, <int>(draw(seed) % 3), size)
    hash128(content, size + (w.plant == OVERRUN), w.secret, &lo, &hi)
    free(content)
    w.lock.lock()
    if dedup_find(&w.dedup, lo, hi) >= 0:
        w.merged.fetch_add(1, memory_order_relaxed)
    else:
        handle = arena_lease(&w.arena, key, 0, 1, 0, 0, <int32_t>(draw(seed) % MAX_IDS), 0, 0)
        if handle >= 0:
            expect(w, dedup_insert(&w.dedup, lo, hi, handle) == 1)
            expect(w, timers_arm(&w.timers, state_slot(handle), key) == 0)
            expect(w, heap_push(&w.heap, key, state_slot(handle)) == 0)
            w.board[draw(seed) % BOARD].store(handle, memory_order_release)
    w.lock.unlock()
    if handle < 0:      # full: others have work to do
        give_way()


cdef void cancel(World* w, int64_t handle) noexcept nogil:
    w.lock.lock()
    cdef int how = arena_drop(&w.arena, handle)
    if how == DROP_FREED or how == DROP_DEFERRED:
        leave(w, handle)
    w.lock.unlock()
    w.deferred.fetch_add(how == DROP_DEFERRED, memory_order_relaxed)


cdef void expire(World* w, int64_t now_ns) noexcept nogil:
    cdef int32_t slot
    cdef int64_t handle
    w.lock.lock()
    slot = timers_due_one(&w.timers, now_ns)
    if slot >= 0:
        handle = arena_handle(&w.arena, slot)
        if arena_drop(&w.arena, handle) != DROP_BUSY:
            leave(w, handle)
    w.lock.unlock()


cdef void duel(World* w) noexcept nogil:
    """No lock: the word alone decides who may touch `duels`."""
    cdef uint64_t word = state_load(&w.word)
    cdef uint64_t taken = state_edge(word, BUSY)
    if state_bits(word) == IDLE and state_cas(&w.word, word, taken):
        w.duels += 1
        expect(w, w.duels == state_generation(taken))
        expect(w, state_cas(&w.word, taken, state_edge(taken, IDLE)))


cdef void caller(World* w, uint64_t* seed) noexcept nogil:
    cdef uint64_t what
    cdef int64_t i = 0
    while i < w.steps or (w.deferred.load() < 100 and i < 50 * w.steps):    # the rarest meeting decides how long
        i += 1
        what = draw(seed) % 16
        if what < 9:
            submit(w, seed)
        elif what < 12:
            cancel(w, w.board[draw(seed) % (2 if what == 9 else BOARD)].load(memory_order_acquire))
        elif what < 14:
            expire(w, <int64_t>(draw(seed) % 500))
        else:
            duel(w)
        if w.plant == RACE and what == 15:
            heap_push(&w.heap, 0, <int32_t>(draw(seed) % SLOTS))
        if i % 256 == 0:
            w.lock.lock()
            expect(w, heap_check(&w.heap) == 0 and heap_check(&w.timers) == 0 and dedup_check(&w.dedup) == 0)
            w.lock.unlock()


cdef int32_t select(World* w, int64_t* handles) noexcept nogil:
    """Pops, commits and pins up to BATCH; who is pinned by a tokeniser goes back where it stood."""
    cdef int64_t keys[BATCH]
    cdef uint64_t seqs[BATCH]
    cdef int32_t back[BATCH]
    cdef int32_t n = 0, kept = 0, i
    cdef int64_t handle
    w.lock.lock()
    while n + kept < BATCH and heap_pop_node(&w.heap, &keys[kept], &seqs[kept], &back[kept]) == 0:
        handle = arena_handle(&w.arena, back[kept])
        expect(w, handle >= 0)
        if not arena_commit(&w.arena, handle):
            kept += 1
        elif not arena_pin(&w.arena, handle):       # a tokeniser came between
            expect(w, arena_requeue(&w.arena, handle))
            kept += 1
        else:
            handles[n] = handle
            n += 1
    for i in range(kept):
        expect(w, heap_push_seq(&w.heap, keys[i], seqs[i], back[i]) == 0)
    w.lock.unlock()
    return n


cdef void lane(World* w, uint64_t* seed) noexcept nogil:
    cdef int64_t handles[BATCH]
    cdef int32_t ids[BATCH * MAX_IDS]
    cdef int32_t mask[BATCH * MAX_IDS]
    cdef int32_t n = 1, i, j, length
    while w.callers.load() or n:
        n = select(w, handles)
        if n == 0:
            give_way()
        batch_gather(&w.arena, handles, n, MAX_IDS, ids, mask, NULL, 4, 0)
        for i in range(n):
            length = w.arena.length[state_slot(handles[i])]     # its row is ours while it is pinned
            for j in range(MAX_IDS):
                expect(w, ids[i * MAX_IDS + j] == (id_of(handles[i]) if j < length else 0))
                expect(w, mask[i * MAX_IDS + j] == (j < length))
        w.served.fetch_add(n, memory_order_relaxed)
        w.lock.lock()
        for i in range(n):
            if draw(seed) % 8 == 0:                 # retried: back into the queue, with its dedup entry and timer
                expect(w, arena_requeue(&w.arena, handles[i]))
                expect(w, heap_push(&w.heap, w.arena.key[state_slot(handles[i])], state_slot(handles[i])) == 0)
                timers_arm(&w.timers, state_slot(handles[i]), w.arena.key[state_slot(handles[i])])
            else:
                expect(w, arena_release(&w.arena, handles[i]))
                leave(w, handles[i])
            arena_unpin(&w.arena, handles[i])       # ends the lease that was released while pinned
        w.lock.unlock()


cdef void tokeniser(World* w, uint64_t* seed) noexcept nogil:
    cdef int32_t row[MAX_IDS]
    cdef int32_t slot, n, i
    cdef int64_t handle
    while w.callers.load():
        handle = w.board[draw(seed) % BOARD].load(memory_order_acquire)
        n = <int32_t>(draw(seed) % MAX_IDS)
        if not arena_pin(&w.arena, handle):
            give_way()
            continue
        if draw(seed) % 2 == 0:     # a long text: time enough to be cancelled by who sees it
            w.board[draw(seed) % 2].store(handle, memory_order_release)
            give_way()
        slot = state_slot(handle)
        for i in range(n):
            row[i] = id_of(handle)
        if n <= 32 * w.arena.n_blocks[slot]:        # fits what was reserved: written without the lock
            rows_write(&w.arena, slot, row, n)
            w.arena.length[slot] = n
            w.arena.split[slot] = -1
            w.lock.lock()
        else:
            w.lock.lock()
            arena_write_ids(&w.arena, handle, row, n, -1)       # refuses what was dropped, or where no block is free
        arena_unpin(&w.arena, handle)
        w.lock.unlock()


cdef void work(void* world, int i) noexcept nogil:
    cdef World* w = <World*>world
    cdef uint64_t seed = w.seed + <uint64_t>(i + 1) * 0x9E3779B97F4A7C15ULL
    if i < CALLERS:
        caller(w, &seed)
        w.callers.fetch_sub(1)
    elif i < CALLERS + LANES:
        lane(w, &seed)
    else:
        tokeniser(w, &seed)


def run(int64_t steps, uint64_t seed, str plant="nothing"):
    """Rows served, requests merged, cancels deferred, duels won; AssertionError if a count or an invariant is wrong."""
    cdef World* w = new World()
    cdef int i
    w.steps = steps
    w.seed = seed
    w.plant = {"nothing": 0, "race": RACE, "overrun": OVERRUN}[plant]
    w.callers.store(CALLERS)
    w.word.store(state_word(1, IDLE, 0))
    for i in range(SECRET_WORDS):
        w.secret[i] = draw(&seed) << 32 ^ draw(&seed)
    for i in range(BOARD):
        w.board[i].store(-1)
    try:
        assert arena_init(&w.arena, SLOTS, 32 * 3 * SLOTS, MAX_IDS) == dedup_init(&w.dedup, SLOTS) == 0
        assert heap_init(&w.heap, SLOTS) == heap_init(&w.timers, SLOTS) == 0
        with nogil:
            run_threads(CALLERS + LANES + TOKENISERS, work, w)
        assert arena_check(&w.arena) == 0, f"arena: invariant {arena_check(&w.arena)} is broken"
        for i in range(SLOTS):      # one thread is left: what was not served is queued, and nothing is pinned
            if arena_handle(&w.arena, i) >= 0:
                cancel(w, arena_handle(&w.arena, i))
        assert w.wrong.load() == 0, f"{w.wrong.load()} steps went wrong"
        assert arena_check(&w.arena) == 0 and heap_check(&w.heap) == 0 and dedup_check(&w.dedup) == 0
        assert w.heap.size == w.timers.size == w.dedup.count == 0
        assert w.arena.free_slots == SLOTS and w.arena.free_blocks == w.arena.blocks
        assert w.duels == state_generation(state_load(&w.word)) - 1
        return w.served.load(), w.merged.load(), w.deferred.load(), w.duels
    finally:
        arena_free(&w.arena)
        heap_free(&w.heap)
        heap_free(&w.timers)
        dedup_free(&w.dedup)
        del w
