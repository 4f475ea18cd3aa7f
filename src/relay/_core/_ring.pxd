# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# Where an id cache keeps its records, as `relay._pure._ring`, and the index that finds them. No verb takes a lock,
# allocates (but ids_init), raises, or touches Python: whoever owns the table lets one thread in at a time. There is no
# _ring.pyx: all of it is inlined into the cache.
#
# The characters of a text lie in its record as they lie in the str (equal str have equal kinds and equal bytes), so a
# comparison in full is one of bytes. Every cell from an entry's home to its place is taken, so that a search may stop
# at the first empty one; deleting moves entries back to keep it so.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memmove, memset

cdef extern from *:
    """
    /* A block that the system zeroes page by page as it is first touched, and takes back whole. `calloc` promises neither:
       once a large block has been freed, an allocator may hand out used memory, and must touch all of it. */
    #ifdef _WIN32
    #include <windows.h>
    static inline void* relay_reserve(size_t n) { return VirtualAlloc(NULL, n, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE); }
    static inline void relay_return(void* p, size_t n) { (void)n; VirtualFree(p, 0, MEM_RELEASE); }
    #else
    #include <sys/mman.h>
    static inline void* relay_reserve(size_t n) {
        void* p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return p == MAP_FAILED ? NULL : p;
    }
    static inline void relay_return(void* p, size_t n) { munmap(p, n); }
    #endif
    """
    void* relay_reserve(size_t n) noexcept nogil
    void relay_return(void* p, size_t n) noexcept nogil


cdef enum:
    IDS_MAX = 16384
    IDS_MAX_CHARS = 65536
    IDS_MAX_NAME = 1024
    IDS_WIDE = 1            # marks of a record: ids of 4 bytes, not 2
    IDS_HIT = 2             # asked for since it was written
    SAVED = 64              # records, and their bytes, that are written anew at most to make room for one
    SAVED_BYTES = 65536
    PLAIN = 1 << 20         # a block of more bytes is not left to the allocator


cdef struct IdsCell:        # one place of the open-addressed index
    uint32_t tag            # of the entry's hash; tag & mask is its home, where a search for it starts
    uint32_t place          # of its record: 8-byte steps from the start of the ring, and one more; 0: the cell is empty


cdef struct IdsRecord:      # one text; behind it its ids, the characters of its owner's name, and those of the text
    uint32_t size           # bytes, this head included; a multiple of 8
    uint32_t tag
    uint32_t chars          # of the text
    int32_t length          # ids
    int32_t split           # index of the first id of the second segment, or -1
    uint16_t name           # characters of whose it is
    uint8_t kinds           # bytes a character: of the text, and of the name times 16; 0 for None
    uint8_t marks           # IDS_WIDE, IDS_HIT


cdef struct IdsKey:         # a text and whose it is, while a call lasts
    const char* text
    const char* name
    uint32_t chars
    uint32_t name_chars     # as given; more than IDS_MAX_NAME are in no record
    uint8_t kinds
    uint32_t tag


cdef struct IdsTable:       # all fields: guarded by the owner's lock
    void* block             # owned: the one allocation; index, ring and scratch point into it
    size_t size             # of it, in bytes
    IdsCell* cells          # mask + 1 of them; at most three in four are ever taken
    char* ring              # room bytes
    int32_t* scratch        # IDS_MAX ids, beside the bytes that are counted: a row passes through here
    uint32_t mask
    uint32_t tags           # the bits of a hash that count; all but in tests
    int64_t room
    int64_t tail            # the oldest record; they lie from here to head, or if wrapped to end and from 0 to head
    int64_t head
    int64_t end
    int64_t nbytes          # of all records
    int64_t most            # records
    int64_t count
    int64_t evictions
    bint wrapped


# 0, or -1: no memory. `max_bytes` is the size of index and ring; `cells` a power of two.
cdef inline int ids_init(IdsTable* t, int64_t max_bytes, int64_t cells, int64_t most, uint32_t tags) noexcept nogil:
    memset(t, 0, sizeof(IdsTable))
    t.size = <size_t>(max_bytes + IDS_MAX * <int64_t>sizeof(int32_t))
    t.block = relay_reserve(t.size) if t.size > PLAIN else calloc(1, t.size)
    if t.block == NULL:
        return -1
    t.cells = <IdsCell*>t.block
    t.ring = <char*>(t.cells + cells)
    t.mask = <uint32_t>(cells - 1)
    t.tags = tags
    t.room = (max_bytes - cells * <int64_t>sizeof(IdsCell)) & ~<int64_t>7
    t.scratch = <int32_t*>(t.ring + t.room)
    t.most = most
    return 0


# Idempotent.
cdef inline void ids_free(IdsTable* t) noexcept nogil:
    if t.size > PLAIN and t.block != NULL:
        relay_return(t.block, t.size)
    else:
        free(t.block)
    t.block = NULL


cdef inline void ids_clear(IdsTable* t) noexcept nogil:
    memset(t.cells, 0, (<size_t>t.mask + 1) * sizeof(IdsCell))
    t.evictions += t.count
    t.tail = t.head = t.end = t.nbytes = t.count = 0
    t.wrapped = False


cdef inline IdsRecord* ids_record(const IdsTable* t, int64_t at) noexcept nogil:
    return <IdsRecord*>(t.ring + at)


cdef inline uint32_t ids_bytes(const IdsRecord* record) noexcept nogil:
    return <uint32_t>record.length * (4 if record.marks & IDS_WIDE else 2)


# The record of a key, or NULL.
cdef inline IdsRecord* ids_find(const IdsTable* t, const IdsKey* key) noexcept nogil:
    cdef uint32_t at = key.tag & t.mask
    cdef IdsRecord* record
    cdef const char* held
    while t.cells[at].place != 0:   # ends: one cell in four is empty
        if t.cells[at].tag == key.tag:
            record = ids_record(t, (<int64_t>t.cells[at].place - 1) << 3)
            if record.chars == key.chars and record.name == key.name_chars and record.kinds == key.kinds:
                held = <const char*>(record + 1) + ids_bytes(record)
                if memcmp(held, key.name, key.name_chars * <size_t>(key.kinds >> 4)) == 0:
                    held += key.name_chars * <size_t>(key.kinds >> 4)
                    if memcmp(held, key.text, key.chars * <size_t>(key.kinds & 15)) == 0:
                        return record
        at = (at + 1) & t.mask
    return NULL


# Its ids; good until the next call.
cdef inline const int32_t* ids_read(const IdsTable* t, const IdsRecord* record) noexcept nogil:
    cdef const uint16_t* narrow = <const uint16_t*>(record + 1)
    cdef int32_t i
    if record.marks & IDS_WIDE:
        return <const int32_t*>(record + 1)
    for i in range(record.length):
        t.scratch[i] = narrow[i]
    return t.scratch


# The cell of the record that lies at `at`.
cdef inline uint32_t ids_cell(const IdsTable* t, const IdsRecord* record, int64_t at) noexcept nogil:
    cdef uint32_t place = <uint32_t>(at >> 3) + 1
    cdef uint32_t cell = record.tag & t.mask
    while t.cells[cell].place != place:     # ends: the record is in the index
        cell = (cell + 1) & t.mask
    return cell


cdef inline void ids_forget(IdsTable* t, const IdsRecord* record, int64_t at) noexcept nogil:
    cdef uint32_t hole = ids_cell(t, record, at)
    cdef uint32_t next = (hole + 1) & t.mask
    while t.cells[next].place != 0:
        # Moves back into the hole unless that lies before its home, where no search for it would come by.
        if ((next - (t.cells[next].tag & t.mask)) & t.mask) >= ((next - hole) & t.mask):
            t.cells[hole] = t.cells[next]
            hole = next
        next = (next + 1) & t.mask
    t.cells[hole].tag = t.cells[hole].place = 0
    t.nbytes -= record.size
    t.count -= 1
    t.evictions += 1


cdef inline void ids_settle(IdsTable* t) noexcept nogil:
    if t.wrapped and t.tail == t.end:
        t.tail = 0
        t.wrapped = False
    if not t.wrapped and t.tail == t.head:
        t.tail = t.head = 0


cdef inline void ids_wrap(IdsTable* t) noexcept nogil:
    t.end = t.head
    t.head = 0
    t.wrapped = True
    ids_settle(t)


# Drops the oldest until there is an entry, and so many bytes in one piece, to be had.
cdef inline void ids_make_room(IdsTable* t, uint32_t size) noexcept nogil:
    cdef int saved = 0
    cdef uint32_t saved_bytes = 0, taken
    cdef IdsRecord* oldest
    cdef int64_t at
    cdef bint full
    while True:
        full = t.count == t.most
        if not full and (t.tail if t.wrapped else t.room) - t.head >= size:
            return
        if not full and not t.wrapped:
            ids_wrap(t)
            continue
        at = t.tail
        oldest = ids_record(t, at)
        taken = oldest.size
        if oldest.marks & IDS_HIT and saved < SAVED and saved_bytes + taken <= SAVED_BYTES:
            saved += 1
            saved_bytes += taken
            if not t.wrapped and t.room - t.head < taken:
                ids_wrap(t)
            oldest.marks &= ~IDS_HIT
            t.cells[ids_cell(t, oldest, at)].place = <uint32_t>(t.head >> 3) + 1
            memmove(t.ring + t.head, oldest, taken)     # over its own old place, at worst
            t.head += taken
        else:
            ids_forget(t, oldest, at)
        t.tail += taken
        ids_settle(t)


# The ids are those in scratch; the key must not be here.
cdef inline void ids_write(IdsTable* t, const IdsKey* key, uint32_t size, bint wide, int32_t n, int32_t split) noexcept nogil:
    cdef IdsRecord* record
    cdef uint16_t* narrow
    cdef char* at
    cdef uint32_t cell = key.tag & t.mask
    cdef int32_t i
    ids_make_room(t, size)
    record = ids_record(t, t.head)
    record.size = size
    record.tag = key.tag
    record.chars = key.chars
    record.length = n
    record.split = split
    record.name = <uint16_t>key.name_chars
    record.kinds = key.kinds
    record.marks = IDS_WIDE if wide else 0
    if wide:
        memcpy(record + 1, t.scratch, <size_t>n * 4)
    else:
        narrow = <uint16_t*>(record + 1)
        for i in range(n):
            narrow[i] = <uint16_t>t.scratch[i]
    at = <char*>(record + 1) + ids_bytes(record)
    memcpy(at, key.name, key.name_chars * <size_t>(key.kinds >> 4))
    memcpy(at + key.name_chars * <size_t>(key.kinds >> 4), key.text, key.chars * <size_t>(key.kinds & 15))
    cell = key.tag & t.mask
    while t.cells[cell].place != 0:
        cell = (cell + 1) & t.mask
    t.cells[cell].tag = key.tag
    t.cells[cell].place = <uint32_t>(t.head >> 3) + 1
    t.head += size
    t.nbytes += size
    t.count += 1


# 0, or the number of the broken invariant.
cdef inline int ids_check(const IdsTable* t) noexcept nogil:
    cdef int64_t at = t.tail, seen = 0, nbytes = 0, taken = 0
    cdef bint wrapped = t.wrapped
    cdef const IdsRecord* record
    cdef uint32_t cell
    while wrapped or at != t.head:
        if at < 0 or at >= t.room or seen > t.count:
            return 1
        record = ids_record(t, at)
        if record.size < sizeof(IdsRecord) or record.size & 7 or at + record.size > (t.end if wrapped else t.room):
            return 1
        cell = record.tag & t.mask
        while t.cells[cell].place != <uint32_t>(at >> 3) + 1:
            if t.cells[cell].place == 0:
                return 2
            cell = (cell + 1) & t.mask
        if t.cells[cell].tag != record.tag:
            return 2
        seen += 1
        nbytes += record.size
        at += record.size
        if wrapped and at == t.end:
            at = 0
            wrapped = False
    for cell in range(t.mask + 1):
        taken += t.cells[cell].place != 0
    if seen != t.count or taken != t.count or t.count > t.most:
        return 3
    return 0 if nbytes == t.nbytes and t.head <= (t.tail if t.wrapped else t.room) else 4
