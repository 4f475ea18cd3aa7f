# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""The arena, compiled; `relay._pure.arena` is the specification.

Owns the slots, their columns, the free lists and the ids, in one block of memory. Callers serialise the calls
(composites by a guard, this class by the GIL); who works on a row outside the guard pins it first. Invariants: a
handle of an ended lease never reads or writes a row again; a pinned slot never becomes IDLE; every block is in
exactly one chain or free.
"""

from libc.stdlib cimport calloc, free
from libc.stdint cimport uint8_t, uint64_t, uintptr_t
from libcpp.atomic cimport memory_order_relaxed

from relay._core._rows cimport BLOCK_IDS, ids_of, rows_recount
from relay._core.state cimport GEN_BITS, MAX_SLOTS, Word, as_range, state_word, to_int32, to_int64

from relay.errors import StaleToken

__all__ = ["BLOCK", "DROP_BUSY", "DROP_DEFERRED", "DROP_FREED", "DROP_STALE", "NO_BLOCKS", "NO_SLOT", "Arena", "Rows"]

BLOCK = BLOCK_IDS

cdef int64_t MAX_IDS = 0x7FFFFFFF - BLOCK_IDS


cdef int arena_init(ArenaTable* a, int32_t capacity, int64_t ids_capacity, int32_t max_length) noexcept nogil:
    cdef int64_t blocks = (ids_capacity + BLOCK_IDS - 1) // BLOCK_IDS
    cdef int64_t n = capacity
    cdef char* at
    cdef int32_t i
    a.block = NULL
    a.capacity = a.free_slots = a.blocks = a.free_blocks = 0
    a.slot_head = a.block_head = -1
    if capacity < 1 or capacity > MAX_SLOTS or ids_capacity < 0 or ids_capacity > MAX_IDS:
        return -2
    if max_length < 0 or max_length > blocks * BLOCK_IDS:
        return -2
    a.block = calloc(1, <size_t>(64 + blocks * (BLOCK_IDS + 1) * 4 + n * (6 * 8 + 9 * 4)))
    if a.block == NULL:
        return -1
    # Widest columns first, so that each is aligned: ids to a cache line, then words and times, then counts.
    at = <char*>((<uintptr_t>a.block + 63) & ~<uintptr_t>63)
    a.ids = <int32_t*>at
    a.word = <Word*>(a.ids + blocks * BLOCK_IDS)
    a.key = <int64_t*>(a.word + n)
    a.arrival_ns = a.key + n
    a.ready_ns = a.arrival_ns + n
    a.commit_ns = a.ready_ns + n
    a.deadline_ns = a.commit_ns + n
    a.cost = <int32_t*>(a.deadline_ns + n)
    a.tenant = a.cost + n
    a.epoch = a.tenant + n
    a.group = a.epoch + n
    a.length = a.group + n
    a.split = a.length + n
    a.first_block = a.split + n
    a.n_blocks = a.first_block + n
    a.next_slot = a.n_blocks + n
    a.next_block = a.next_slot + n
    a.capacity = a.free_slots = capacity
    a.blocks = a.free_blocks = <int32_t>blocks
    a.max_length = max_length if max_length else <int32_t>(blocks * BLOCK_IDS)
    for i in range(capacity):
        a.next_slot[i] = i + 1 if i + 1 < capacity else -1
        a.first_block[i] = -1
    for i in range(a.blocks):
        a.next_block[i] = i + 1 if i + 1 < a.blocks else -1
    a.slot_head = 0
    a.block_head = 0 if blocks else -1
    arena_start_at(a, 1)
    return 0


cdef void arena_start_at(ArenaTable* a, int64_t generation) noexcept nogil:
    cdef int32_t i
    for i in range(a.capacity):
        # Relaxed: nobody else has the table yet; whatever hands it to another thread publishes it.
        a.word[i].store(state_word(<uint64_t>generation, IDLE, 0), memory_order_relaxed)


cdef void arena_free(ArenaTable* a) noexcept nogil:
    free(a.block)
    a.block = NULL
    a.capacity = a.free_slots = a.blocks = a.free_blocks = 0
    a.slot_head = a.block_head = -1


cdef int arena_check(const ArenaTable* a) noexcept nogil:
    cdef uint8_t* seen = <uint8_t*>calloc(<size_t>a.capacity + <size_t>a.blocks + 1, 1)
    cdef int result
    if seen == NULL:
        return -1
    result = rows_recount(a, seen, seen + a.capacity)
    free(seen)
    return result


BROKEN = (
    "", "free slots are miscounted", "a word breaks the layout", "a slot is both free and leased",
    "a row's blocks are not its own", "a row's length or split is out of range", "blocks are miscounted",
)


cdef object stale(int64_t handle):
    return StaleToken(f"handle {handle} is stale: the lease it was given for has ended; take a new one")


cdef class Rows:
    """Rows(capacity, ids_capacity=0, max_length=0, generation=1)
--

The columns of a fixed number of slots, and their rows of ids; see `relay._pure._rows.Rows`."""

    def __cinit__(self, capacity, ids_capacity=0, max_length=0, generation=1):
        cdef int32_t n = <int32_t>as_range("capacity", capacity, 1, MAX_SLOTS)
        cdef int64_t ids = as_range("ids_capacity", ids_capacity, 0, MAX_IDS)
        cdef int64_t longest = (ids + BLOCK_IDS - 1) // BLOCK_IDS * BLOCK_IDS
        cdef int32_t most = <int32_t>as_range("max_length", max_length, 0, longest)
        cdef int64_t first = as_range("generation", generation, 1, (<int64_t>1 << GEN_BITS) - 1)
        if arena_init(&self.s, n, ids, most) == 0:
            arena_start_at(&self.s, first)
            self.scratch = <int32_t*>calloc(<size_t>self.s.max_length + 1, sizeof(int32_t))
        if self.scratch == NULL:
            raise MemoryError(f"no memory for {n} slots and {ids} ids")

    def __dealloc__(self):
        arena_free(&self.s)
        free(self.scratch)

    @property
    def capacity(self):
        return self.s.capacity

    @property
    def ids_capacity(self):
        return <int64_t>self.s.blocks * BLOCK_IDS

    @property
    def max_length(self):
        return self.s.max_length

    @property
    def free_blocks(self):
        return self.s.free_blocks

    def ids(self, handle):
        cdef int64_t h = to_int64("handle", handle)
        cdef int32_t n = arena_copy_ids(&self.s, h, self.scratch, self.s.max_length)
        cdef int32_t i
        if n < 0:
            raise stale(h)
        return [self.scratch[i] for i in range(n)]

    def live(self, handle):
        return arena_find(&self.s, to_int64("handle", handle)) != 0

    def queued(self, handle):
        return arena_find(&self.s, to_int64("handle", handle)) & 11 == QUEUED

    def handle(self, slot):
        return arena_handle(&self.s, <int32_t>as_range("slot", slot, 0, self.s.capacity - 1))

    def facts(self, handle):
        cdef int64_t h = to_int64("handle", handle)
        cdef uint64_t word = arena_find(&self.s, h)
        cdef int32_t i = state_slot(h)
        cdef ArenaTable* a = &self.s
        if word == 0:
            raise stale(h)
        return dict(
            slot=i, generation=state_generation(word), state=state_bits(word), flags=word & (PINNED | DROPPED),
            key=a.key[i], arrival_ns=a.arrival_ns[i], ready_ns=a.ready_ns[i], commit_ns=a.commit_ns[i],
            deadline_ns=a.deadline_ns[i], cost=a.cost[i], tenant=a.tenant[i], epoch=a.epoch[i], group=a.group[i],
            length=a.length[i], split=a.split[i], first_block=a.first_block[i], n_blocks=a.n_blocks[i],
        )

    def set_key(self, handle, key):
        return set_wide(self, self.s.key, handle, "key", key)

    def set_ready(self, handle, ready_ns):
        return set_wide(self, self.s.ready_ns, handle, "ready_ns", ready_ns)

    def set_commit(self, handle, commit_ns):
        return set_wide(self, self.s.commit_ns, handle, "commit_ns", commit_ns)

    def set_deadline(self, handle, deadline_ns):
        return set_wide(self, self.s.deadline_ns, handle, "deadline_ns", deadline_ns)

    def set_cost(self, handle, cost):
        return set_narrow(self, self.s.cost, handle, "cost", cost)

    def set_epoch(self, handle, epoch):
        return set_narrow(self, self.s.epoch, handle, "epoch", epoch)

    def set_group(self, handle, group):
        return set_narrow(self, self.s.group, handle, "group", group)


cdef class Arena(Rows):
    """Arena(capacity, ids_capacity=0, max_length=0, generation=1)
--

A fixed table of slots and their rows of ids; see `relay._pure.arena.Arena`."""

    def __len__(self):
        return self.s.capacity - self.s.free_slots

    @property
    def free(self):
        return self.s.free_slots

    def lease(self, key=0, now_ns=0, cost=1, tenant=0, epoch=0, ids=0, pinned=False, busy=False):
        cdef int64_t k = to_int64("key", key)
        cdef int64_t now = to_int64("now_ns", now_ns)
        cdef int32_t units = to_int32("cost", cost)
        cdef int32_t whose = to_int32("tenant", tenant)
        cdef int32_t version = to_int32("epoch", epoch)
        cdef int64_t n = to_int64("ids", ids)
        cdef bint pin = pinned
        cdef bint at_once = busy
        if n < 0 or n > 0x7FFFFFFF:
            raise ValueError(f"ids {n} is outside 0..{0x7FFFFFFF}")
        return arena_lease(&self.s, k, now, units, whose, version, <int32_t>n, pin, at_once)

    def commit(self, handle):
        return arena_commit(&self.s, to_int64("handle", handle)) != 0

    def requeue(self, handle):
        return arena_requeue(&self.s, to_int64("handle", handle)) != 0

    def revoke(self, handle):
        return arena_revoke(&self.s, to_int64("handle", handle)) != 0

    def hand_over(self, handle):
        return arena_hand_over(&self.s, to_int64("handle", handle))

    def pin(self, handle):
        return arena_pin(&self.s, to_int64("handle", handle)) != 0

    def unpin(self, handle):
        return arena_unpin(&self.s, to_int64("handle", handle)) != 0

    def drop(self, handle):
        return arena_drop(&self.s, to_int64("handle", handle))

    def release(self, handle):
        cdef int64_t h = to_int64("handle", handle)
        if not arena_release(&self.s, h):
            if state_bits(arena_find(&self.s, h)) == QUEUED and not arena_find(&self.s, h) & DROPPED:
                raise ValueError(f"handle {h} is queued and holds nothing to release; drop() it")
            raise stale(h)

    def write_ids(self, handle, ids, split=-1):
        cdef int64_t h = to_int64("handle", handle)
        cdef int32_t n = ids_of(ids, self.scratch, self.s.max_length)
        cdef int status = arena_write_ids(&self.s, h, self.scratch, n, <int32_t>as_range("split", split, -1, n))
        if status == -2:
            raise ValueError(f"handle {h} is not pinned; pin() it before writing its row")
        return status == 1

    def check(self):
        cdef int broken = arena_check(&self.s)
        if broken < 0:
            raise MemoryError("no memory to check the arena")
        if broken:
            raise AssertionError(f"{BROKEN[broken]}; this is a bug in relay")


cdef bint set_wide(Rows rows, int64_t* column, object handle, str name, object value) except -1:
    cdef int64_t new = to_int64(name, value)
    cdef int64_t h = to_int64("handle", handle)
    if not arena_live(&rows.s, h):
        return False
    column[state_slot(h)] = new
    return True


cdef bint set_narrow(Rows rows, int32_t* column, object handle, str name, object value) except -1:
    cdef int32_t new = to_int32(name, value)
    cdef int64_t h = to_int64("handle", handle)
    if not arena_live(&rows.s, h):
        return False
    column[state_slot(h)] = new
    return True
