# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# The table of a result cache, as `relay._pure._shelf`: what stands where, and which digests have left. No verb takes a
# lock, allocates (but shelf_init), raises, or touches Python: whoever owns the table lets one call in at a time. There
# is no _shelf.pyx: all of it is inlined into the cache, which has the contents and chooses who goes.

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from relay._core.dedup cimport (
    DedupCell, DedupEntry, DedupTable, dedup_check, dedup_clear, dedup_delete, dedup_free, dedup_init, dedup_insert,
)

cdef enum:
    SHELF_ENTRY_BYTES = 148     # as ENTRY_BYTES of the pure side, which says what it is made of
    SHELF_MAX_ENTRIES = 1 << 21
    SHELF_MOST_HITS = 3
    SHELF_MOST_TURNS = 256
    SHELF_SHARE = 10
    SHELF_SMALL = 0             # where an entry stands: the first two are lines
    SHELF_MAIN = 1
    SHELF_FREE = 2


cdef struct ShelfEntry:         # one slot
    int64_t cost                # bytes
    int64_t due_ns              # INT64_MAX: its time is never over
    int32_t older               # neighbours in its line, or -1
    int32_t newer               # also the next free slot
    uint8_t where               # one of the three above
    uint8_t hits                # finds that have not been looked at yet


cdef struct ShelfLine:
    int64_t nbytes              # of its entries
    int32_t oldest              # slots, or -1
    int32_t newest
    int32_t count


cdef struct Shelf:              # all fields: guarded by the owner, who holds the GIL
    DedupTable digests          # digest -> slot of its entry, or max_entries and more: a digest that has left
    ShelfEntry* entries         # max_entries of them, owned
    ShelfLine lines[2]
    int64_t max_bytes
    int64_t small_bytes         # the share of the small line, and what the largest entry may cost
    int32_t max_entries
    int32_t small_entries
    int32_t free_slot           # first of the free ones, or -1
    int32_t next_place          # of the places for digests that have left, the one that is used next


cdef inline int32_t shelf_len(const Shelf* t) noexcept nogil:
    return t.lines[SHELF_SMALL].count + t.lines[SHELF_MAIN].count


cdef inline int64_t shelf_nbytes(const Shelf* t) noexcept nogil:
    return t.lines[SHELF_SMALL].nbytes + t.lines[SHELF_MAIN].nbytes


cdef inline bint shelf_over(const Shelf* t, int32_t slot, int64_t now_ns) noexcept nogil:
    return t.entries[slot].due_ns <= now_ns and t.entries[slot].due_ns != INT64_MAX


cdef inline size_t shelf_sizeof(const Shelf* t) noexcept nogil:
    # The bytes of all it has allocated.
    return (
        (<size_t>t.digests.mask + 1) * sizeof(DedupCell) + t.digests.capacity * sizeof(DedupEntry)
        + t.max_entries * sizeof(ShelfEntry)
    )


cdef inline void shelf_free(Shelf* t) noexcept nogil:
    dedup_free(&t.digests)
    free(t.entries)
    memset(t, 0, sizeof(Shelf))


cdef inline void shelf_clear(Shelf* t) noexcept nogil:
    cdef int32_t slot
    cdef int line
    dedup_clear(&t.digests)
    for line in range(2):
        t.lines[line].nbytes = 0
        t.lines[line].count = 0
        t.lines[line].oldest = t.lines[line].newest = -1
    for slot in range(t.max_entries):
        t.entries[slot].where = SHELF_FREE
        t.entries[slot].newer = slot + 1
    t.entries[t.max_entries - 1].newer = -1
    t.free_slot = t.next_place = 0


cdef inline int shelf_init(Shelf* t, int32_t max_entries, int64_t max_bytes) noexcept nogil:
    memset(t, 0, sizeof(Shelf))
    t.max_entries = max_entries
    t.max_bytes = max_bytes
    t.small_entries = max_entries // SHELF_SHARE
    if t.small_entries < 1:
        t.small_entries = 1
    t.small_bytes = max_bytes // SHELF_SHARE
    t.entries = <ShelfEntry*>calloc(max_entries, sizeof(ShelfEntry))
    if t.entries == NULL or dedup_init(&t.digests, 2 * max_entries) != 0:
        shelf_free(t)
        return -1
    shelf_clear(t)
    return 0


cdef inline void shelf_append(Shelf* t, int where, int32_t slot) noexcept nogil:
    cdef ShelfLine* line = &t.lines[where]
    cdef ShelfEntry* e = &t.entries[slot]
    e.where = <uint8_t>where
    e.older = line.newest
    e.newer = -1
    if line.newest >= 0:
        t.entries[line.newest].newer = slot
    else:
        line.oldest = slot
    line.newest = slot
    line.count += 1
    line.nbytes += e.cost


cdef inline void shelf_take_out(Shelf* t, int32_t slot) noexcept nogil:
    cdef ShelfEntry* e = &t.entries[slot]
    cdef ShelfLine* line = &t.lines[e.where]
    if e.older >= 0:
        t.entries[e.older].newer = e.newer
    else:
        line.oldest = e.newer
    if e.newer >= 0:
        t.entries[e.newer].older = e.older
    else:
        line.newest = e.older
    line.count -= 1
    line.nbytes -= e.cost


cdef inline void shelf_remember(Shelf* t, uint64_t low, uint64_t high) noexcept nogil:
    cdef int64_t place = t.max_entries + t.next_place
    dedup_delete(&t.digests, place)
    dedup_insert(&t.digests, low, high, place)
    t.next_place = t.next_place + 1 if t.next_place + 1 < t.max_entries else 0


cdef inline int shelf_check(const Shelf* t) noexcept nogil:
    cdef int32_t slot, older, seen = 0, count
    cdef int line
    cdef int64_t nbytes
    cdef const ShelfEntry* e
    for line in range(2):
        slot = t.lines[line].oldest
        older = -1
        nbytes = count = 0
        while slot >= 0:
            e = &t.entries[slot]
            if slot >= t.max_entries or count == t.max_entries or e.where != line or e.older != older:
                return 1
            if t.digests.entries[slot].handle != slot or e.hits > SHELF_MOST_HITS:
                return 4
            nbytes += e.cost
            count += 1
            older = slot
            slot = e.newer
        if older != t.lines[line].newest or count != t.lines[line].count:
            return 1
        if nbytes != t.lines[line].nbytes:
            return 2
        seen += count
    slot = t.free_slot
    while slot >= 0:
        if slot >= t.max_entries or seen == t.max_entries or t.entries[slot].where != SHELF_FREE:
            return 1
        if t.digests.entries[slot].handle != -1:
            return 4
        seen += 1
        slot = t.entries[slot].newer
    if seen != t.max_entries:
        return 1
    if shelf_nbytes(t) > t.max_bytes:
        return 3
    return 4 if dedup_check(&t.digests) else 0
