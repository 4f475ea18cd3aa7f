# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# The table (`_rows.pxd`) and the verbs of its slots, for other core parts to embed and inline; `relay._pure.arena`
# says what each does. No verb takes a lock, raises, touches Python, or (but arena_init, arena_check) allocates: who
# owns the table lets one thread in at a time. Words change by compare-and-swap all the same: who works on a pinned
# row and who owns the lock may meet on one word.

from libc.stdint cimport int32_t, int64_t, uint64_t

from relay._core._rows cimport (
    ArenaTable, arena_find, ids_of, rows_blocks_for, rows_give, rows_read, rows_resize, rows_take, rows_write,
)
from relay._core.state cimport (
    BUSY, DROPPED, IDLE, PINNED, QUEUED, REVOKE, state_bits, state_cas, state_edge, state_generation, state_hand_over,
    state_handle, state_load, state_slot,
)

cpdef enum:
    NO_SLOT = -1
    NO_BLOCKS = -2
    DROP_STALE = 0
    DROP_FREED = 1
    DROP_DEFERRED = 2
    DROP_BUSY = 3

# 0; -1 no memory; -2 an argument is out of range.
cdef int arena_init(ArenaTable* a, int32_t capacity, int64_t ids_capacity, int32_t max_length) noexcept nogil
# Right after arena_init: the first generation of each slot.
cdef void arena_start_at(ArenaTable* a, int64_t generation) noexcept nogil
# Idempotent; leaves an empty table.
cdef void arena_free(ArenaTable* a) noexcept nogil
# 0; the number of the broken invariant; -1 no memory to check.
cdef int arena_check(const ArenaTable* a) noexcept nogil


cdef inline bint arena_live(const ArenaTable* a, int64_t handle) noexcept nogil:
    return arena_find(a, handle) != 0


# The handle of the lease the slot is under, or -1 if it is free. The slot must be in range.
cdef inline int64_t arena_handle(const ArenaTable* a, int32_t slot) noexcept nogil:
    cdef uint64_t word = state_load(&a.word[slot])
    return state_handle(state_generation(word), slot) if state_bits(word) != IDLE else -1


# The handle; NO_SLOT; NO_BLOCKS.
cdef inline int64_t arena_lease(
    ArenaTable* a, int64_t key, int64_t now_ns, int32_t cost, int32_t tenant, int32_t epoch, int32_t ids,
    int flags_pinned, int busy,
) noexcept nogil:
    cdef int32_t slot = a.slot_head
    cdef int32_t need = rows_blocks_for(ids if ids < a.max_length else a.max_length)
    cdef uint64_t word, new
    if slot < 0:
        return NO_SLOT
    if need > a.free_blocks:
        return NO_BLOCKS
    a.slot_head = a.next_slot[slot]
    a.free_slots -= 1
    a.key[slot] = key
    a.arrival_ns[slot] = now_ns
    a.ready_ns[slot] = a.commit_ns[slot] = a.deadline_ns[slot] = -1
    a.cost[slot] = cost
    a.tenant[slot] = tenant
    a.epoch[slot] = epoch
    a.group[slot] = a.length[slot] = 0
    a.split[slot] = -1
    a.first_block[slot] = rows_take(a, need)
    a.n_blocks[slot] = need
    word = state_load(&a.word[slot])
    new = state_edge(word, BUSY if busy else QUEUED) | <uint64_t>(PINNED if flags_pinned else 0)
    # Only a lease changes an IDLE word, so this swap cannot lose; it publishes the row to all who look at the word.
    state_cas(&a.word[slot], word, new)
    return state_handle(state_generation(word), slot)


# To IDLE, slot and blocks freed; 0 if the word has changed.
cdef inline int arena_end(ArenaTable* a, int32_t slot, uint64_t word) noexcept nogil:
    if not state_cas(&a.word[slot], word, state_edge(word, IDLE)):
        return 0
    rows_give(a, a.first_block[slot], a.n_blocks[slot])
    a.first_block[slot] = -1
    a.n_blocks[slot] = 0
    a.next_slot[slot] = a.slot_head
    a.slot_head = slot
    a.free_slots += 1
    return 1


# An edge that keeps the lease; 0 if stale, in another state, or with one of the refused flags.
cdef inline int arena_go(ArenaTable* a, int64_t handle, int old_state, int new_state, uint64_t refused) noexcept nogil:
    cdef uint64_t word
    while True:
        word = arena_find(a, handle)
        if state_bits(word) != old_state or word & refused:
            return 0
        if state_cas(&a.word[state_slot(handle)], word, state_edge(word, new_state)):
            return 1


cdef inline int arena_commit(ArenaTable* a, int64_t handle) noexcept nogil:
    return arena_go(a, handle, QUEUED, BUSY, PINNED | DROPPED)


cdef inline int arena_requeue(ArenaTable* a, int64_t handle) noexcept nogil:
    if not arena_go(a, handle, BUSY, QUEUED, DROPPED):
        return 0
    a.commit_ns[state_slot(handle)] = -1
    return 1


cdef inline int arena_revoke(ArenaTable* a, int64_t handle) noexcept nogil:
    return arena_go(a, handle, BUSY, REVOKE, DROPPED)


# The next owner's handle, or -1.
cdef inline int64_t arena_hand_over(ArenaTable* a, int64_t handle) noexcept nogil:
    cdef int32_t slot = state_slot(handle)
    cdef uint64_t word, new
    while True:
        word = arena_find(a, handle)
        new = state_hand_over(word)
        if word & PINNED or new == 0:
            return -1
        if state_cas(&a.word[slot], word, new):
            return state_handle(state_generation(new), slot)


cdef inline int arena_pin(ArenaTable* a, int64_t handle) noexcept nogil:
    cdef uint64_t word
    while True:
        word = arena_find(a, handle)
        if word == 0 or word & PINNED:
            return 0
        if state_cas(&a.word[state_slot(handle)], word, word | PINNED):
            return 1


# 1: the lease lives on; 0: stale, or freed now.
cdef inline int arena_unpin(ArenaTable* a, int64_t handle) noexcept nogil:
    cdef uint64_t word
    while True:
        word = arena_find(a, handle)
        if word == 0:
            return 0
        if word & DROPPED:
            if arena_end(a, state_slot(handle), word):
                return 0
        elif state_cas(&a.word[state_slot(handle)], word, word & ~<uint64_t>PINNED):
            return 1


# Ends a lease: DROP_FREED, DROP_DEFERRED where it is pinned, or 0 where the word has changed.
cdef inline int arena_end_or_defer(ArenaTable* a, int32_t slot, uint64_t word) noexcept nogil:
    if word & PINNED:
        return DROP_DEFERRED if state_cas(&a.word[slot], word, word | DROPPED) else 0
    return arena_end(a, slot, word)


cdef inline int arena_drop(ArenaTable* a, int64_t handle) noexcept nogil:
    cdef uint64_t word
    cdef int how
    while True:
        word = arena_find(a, handle)
        if word == 0 or word & DROPPED:
            return DROP_STALE
        if state_bits(word) != QUEUED:
            return DROP_BUSY
        how = arena_end_or_defer(a, state_slot(handle), word)
        if how:
            return how


# 1: ended, or will be when unpinned; 0: stale, released before, or queued.
cdef inline int arena_release(ArenaTable* a, int64_t handle) noexcept nogil:
    cdef uint64_t word
    while True:
        word = arena_find(a, handle)
        if word == 0 or word & DROPPED or state_bits(word) == QUEUED:
            return 0
        if arena_end_or_defer(a, state_slot(handle), word):
            return 1


# 1 written; 0 stale or dropped; -1 too few blocks; -2 not pinned; -3 n or split out of range. All but 1 leave the row.
cdef inline int arena_write_ids(
    ArenaTable* a, int64_t handle, const int32_t* ids, int32_t n, int32_t split
) noexcept nogil:
    cdef int32_t slot = state_slot(handle)
    cdef int32_t need
    cdef uint64_t word
    if n < 0 or n > a.max_length or split < -1 or split > n:
        return -3
    word = arena_find(a, handle)
    if word == 0 or word & DROPPED:
        return 0
    if not word & PINNED:
        return -2
    need = rows_blocks_for(n)
    if need - a.n_blocks[slot] > a.free_blocks:
        return -1
    rows_resize(a, slot, need)
    rows_write(a, slot, ids, n)
    a.length[slot] = n
    a.split[slot] = split
    return 1


# How many ids the row has, of which as many as `limit` are copied; -1 stale.
cdef inline int32_t arena_copy_ids(const ArenaTable* a, int64_t handle, int32_t* out, int32_t limit) noexcept nogil:
    cdef int32_t slot = state_slot(handle)
    if arena_find(a, handle) == 0:
        return -1
    rows_read(a, slot, out, a.length[slot] if a.length[slot] < limit else limit)
    return a.length[slot]


cdef class Rows:
    cdef ArenaTable s        # owned; for other core parts to read and drive under the GIL
    cdef int32_t* scratch    # max_length ids, owned: a row is checked here before it is written


cdef class Arena(Rows):
    pass
