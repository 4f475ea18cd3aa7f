# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, language_level=3
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""The answers of earlier requests, kept for those that ask the same again. `_pure/cache.py` is the specification.

Any thread may call any method. The GIL is the guard: a method changes everything it changes without running Python code
in between, so each call is atomic. Lists for what is let go are made before the first change, for to make one may start
a collection; what is in them is let go last.
"""

from cpython.bytes cimport PyBytes_CheckExact
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t, uintptr_t

from relay._core._digest cimport words_of
from relay._core._shelf cimport (
    SHELF_ENTRY_BYTES, SHELF_FREE, SHELF_MAIN, SHELF_MAX_ENTRIES, SHELF_MOST_HITS, SHELF_MOST_TURNS, SHELF_SHARE,
    SHELF_SMALL, Shelf, ShelfEntry, ShelfLine, shelf_append, shelf_check, shelf_clear, shelf_free, shelf_init, shelf_len,
    shelf_nbytes, shelf_over, shelf_remember, shelf_sizeof, shelf_take_out,
)
from relay._core.dedup cimport dedup_delete, dedup_find, dedup_insert
from relay._core.state cimport as_range, to_int64

__all__ = ["ABSENT", "ENTRY_BYTES", "MAX_BYTES", "MAX_ENTRIES", "MIN_BYTES", "ResultCache"]

MAX_ENTRIES = SHELF_MAX_ENTRIES
MAX_BYTES = 1 << 62
ENTRY_BYTES = SHELF_ENTRY_BYTES
MIN_BYTES = SHELF_SHARE * SHELF_ENTRY_BYTES

cdef int64_t MOST_BYTES = MAX_BYTES


class _Absent:
    def __repr__(self):
        return "ABSENT"


ABSENT = NOTHING = _Absent()


cdef tuple BROKEN = (
    "",
    "a slot is in two lines, or in none",
    "the bytes of a line are miscounted",
    "the bytes are too many",
    "a digest does not find its entry",
)


cdef inline bint same(object a, object b) except -1:
    if a is b:
        return True
    if PyUnicode_CheckExact(a):
        return PyUnicode_CheckExact(b) and <str>a == <str>b
    return PyBytes_CheckExact(a) and PyBytes_CheckExact(b) and <bytes>a == <bytes>b


cdef inline uint64_t of(object who) noexcept:
    # One content may have an answer for each `who`, so each has a digest of its own.
    return <uint64_t><uintptr_t><void*>who


cdef inline int key_of(object digest, object content, uint64_t* low, uint64_t* high) except -1:
    words_of("digest", digest, low, high)
    if not PyUnicode_CheckExact(content) and not PyBytes_CheckExact(content):
        raise TypeError(f"content must be a str or bytes, got {type(content).__name__}")
    return 0


cdef class ResultCache:
    """ResultCache(max_entries, max_bytes, ttl_ns=0)
--

Keeps answers by their content."""

    def __cinit__(self, max_entries, max_bytes, ttl_ns=0):
        cdef int64_t entries = as_range("max_entries", max_entries, 1, SHELF_MAX_ENTRIES)
        cdef int64_t nbytes = as_range("max_bytes", max_bytes, SHELF_SHARE * SHELF_ENTRY_BYTES, MOST_BYTES)
        self.ttl_ns = as_range("ttl_ns", ttl_ns, 0, INT64_MAX)
        if shelf_init(&self.s, <int32_t>entries, nbytes) != 0:
            raise MemoryError(f"no memory for a cache of {entries} entries")
        self.contents = [None] * entries
        self.whos = [None] * entries
        self.values = [None] * entries

    def __dealloc__(self):
        shelf_free(&self.s)

    def find(self, digest, content, who, now_ns):
        """The answer that is kept for a content, or `ABSENT`."""
        cdef uint64_t low, high
        key_of(digest, content, &low, &high)
        return self.find_native(low, high, content, who, to_int64("now_ns", now_ns))

    def put(self, digest, content, who, value, nbytes, epoch, now_ns):
        """Keep an answer, in place of an earlier one to the same; False if it is too large or its epoch over."""
        cdef uint64_t low, high
        cdef int64_t cost, at
        key_of(digest, content, &low, &high)
        cost = to_int64("nbytes", nbytes)
        if not 0 <= cost <= MOST_BYTES:
            as_range("nbytes", nbytes, 0, MOST_BYTES)   # says why
        at = to_int64("epoch", epoch)
        return self.put_native(low, high, content, who, value, cost, at, to_int64("now_ns", now_ns))

    def invalidate(self):
        """Begin the next epoch: all answers go, and those that are on their way are not kept when they come."""
        cdef Py_ssize_t n = self.s.max_entries
        cdef list contents = [None] * n, whos = [None] * n, values = [None] * n
        cdef list old_contents = self.contents, old_whos = self.whos, old_values = self.values
        self.contents = contents
        self.whos = whos
        self.values = values
        shelf_clear(&self.s)
        self.epoch += 1

    cdef object find_native(self, uint64_t low, uint64_t high, object content, object who, int64_t now_ns):
        cdef int64_t slot
        cdef list gone
        low ^= of(who)
        slot = self.look(low, high, content, who)
        if slot >= 0 and shelf_over(&self.s, <int32_t>slot, now_ns):
            gone = []
            slot = self.look(low, high, content, who)   # again, for to make a list may have run anything
            if slot >= 0 and shelf_over(&self.s, <int32_t>slot, now_ns):
                self.remove(<int32_t>slot, gone)
                self.expired += 1
                slot = -1
        if slot < 0:
            self.misses += 1
            return NOTHING
        self.s.entries[slot].hits += self.s.entries[slot].hits < SHELF_MOST_HITS
        self.hits += 1
        return self.values[slot]

    cdef bint put_native(
        self, uint64_t low, uint64_t high, object content, object who, object value, int64_t nbytes, int64_t epoch,
        int64_t now_ns
    ) except -1:
        cdef Shelf* t = &self.s
        cdef int64_t cost = nbytes + SHELF_ENTRY_BYTES
        cdef int64_t found
        cdef int32_t slot
        cdef int where = SHELF_SMALL
        cdef uint8_t hits = 0
        cdef ShelfEntry* e
        cdef list gone = []
        if epoch != self.epoch or cost > t.small_bytes:
            self.rejected += 1
            return False
        low ^= of(who)
        found = dedup_find(&t.digests, low, high)
        if found >= t.max_entries:      # it has left not long ago
            dedup_delete(&t.digests, found)
            where = SHELF_MAIN
        elif found >= 0:
            if self.look(low, high, content, who) >= 0:
                where = t.entries[found].where
                hits = t.entries[found].hits
            else:
                self.evictions += 1
            self.remove(<int32_t>found, gone)
        self.make_room(cost, now_ns, gone)
        slot = t.free_slot
        e = &t.entries[slot]
        t.free_slot = e.newer
        dedup_insert(&t.digests, low, high, slot)
        e.cost = cost
        e.hits = hits
        e.due_ns = INT64_MAX if not self.ttl_ns or now_ns > INT64_MAX - self.ttl_ns else now_ns + self.ttl_ns
        shelf_append(t, where, slot)
        self.contents[slot] = content
        self.whos[slot] = who
        self.values[slot] = value
        return True

    cdef int64_t look(self, uint64_t low, uint64_t high, object content, object who) except -2:
        cdef int64_t slot = dedup_find(&self.s.digests, low, high)
        if 0 <= slot < self.s.max_entries and self.whos[slot] is who and same(self.contents[slot], content):
            return slot
        return -1

    cdef int remove(self, int32_t slot, list gone) except -1:
        cdef Shelf* t = &self.s
        gone.append(self.contents[slot])
        gone.append(self.whos[slot])
        gone.append(self.values[slot])
        self.contents[slot] = None      # held by `gone`, as the next two: nothing ends here
        self.whos[slot] = None
        self.values[slot] = None
        dedup_delete(&t.digests, slot)
        shelf_take_out(t, slot)
        t.entries[slot].where = SHELF_FREE
        t.entries[slot].newer = t.free_slot
        t.free_slot = slot
        return 0

    cdef int make_room(self, int64_t cost, int64_t now_ns, list gone) except -1:
        cdef Shelf* t = &self.s
        cdef ShelfLine* small = &t.lines[SHELF_SMALL]
        cdef ShelfLine* main = &t.lines[SHELF_MAIN]
        cdef ShelfEntry* e
        cdef int turns = SHELF_MOST_TURNS
        cdef int32_t slot
        cdef uint64_t low, high
        cdef bint from_small
        while shelf_len(t) == t.max_entries or shelf_nbytes(t) + cost > t.max_bytes:
            from_small = small.count > 0 and (
                small.count >= t.small_entries or small.nbytes + cost > t.small_bytes or main.count == 0
            )
            slot = small.oldest if from_small else main.oldest
            e = &t.entries[slot]
            if shelf_over(t, slot, now_ns):
                self.remove(slot, gone)
                self.expired += 1
            elif e.hits and turns:
                turns -= 1
                shelf_take_out(t, slot)
                shelf_append(t, SHELF_MAIN, slot)
                e.hits = 0 if from_small else e.hits - 1
            else:
                turns = SHELF_MOST_TURNS
                low = t.digests.entries[slot].lo
                high = t.digests.entries[slot].hi
                self.remove(slot, gone)
                self.evictions += 1
                if from_small:
                    shelf_remember(t, low, high)
        return 0

    @property
    def nbytes(self):
        """What all answers cost now, `ENTRY_BYTES` for each included."""
        return shelf_nbytes(&self.s)

    @property
    def max_entries(self):
        """How many answers it keeps; never changes."""
        return self.s.max_entries

    @property
    def max_bytes(self):
        """What they may cost together; never changes."""
        return self.s.max_bytes

    def __len__(self):
        return shelf_len(&self.s)

    def __sizeof__(self):
        """The bytes of its tables: all that was made for `max_entries`, without the answers."""
        lists = self.contents.__sizeof__() + self.whos.__sizeof__() + self.values.__sizeof__()
        return object.__sizeof__(self) + shelf_sizeof(&self.s) + lists

    def check(self):
        """Recount everything; AssertionError if an invariant is broken."""
        cdef int broken = shelf_check(&self.s)
        cdef int32_t slot
        cdef bint empty
        for slot in range(self.s.max_entries):
            empty = self.s.entries[slot].where == SHELF_FREE
            if empty != (self.contents[slot] is None):
                broken = broken or 1
            if empty and (self.whos[slot] is not None or self.values[slot] is not None):
                broken = broken or 1
        if broken:
            raise AssertionError(f"cache: {BROKEN[broken]}; this is a bug in relay")
