# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, language_level=3
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""The input ids of texts that were tokenised before, compiled; `relay._pure.idcache` is the specification.

Owns one block of memory of fixed size, an index and a ring of records (`_ring.pxd`), and keeps no Python object. Any
thread may call anything: the GIL is the guard, and no method runs Python code between two changes. Invariants: the
records lie in the ring in the order in which they were written, without a gap but the one at its end; every record is
in the index once.
"""

from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_DATA, PyUnicode_GET_LENGTH, PyUnicode_KIND
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from relay._core._ring cimport (
    IDS_HIT, IDS_MAX, IDS_MAX_CHARS, IDS_MAX_NAME, IdsCell, IdsKey, IdsRecord, ids_check, ids_clear, ids_find, ids_free,
    ids_init, ids_read, ids_write,
)
from relay._core._rows cimport ids_of
from relay._core.arena cimport Arena, arena_write_ids
from relay._core.dedup cimport hash_object, secret_words
from relay._core.state cimport as_range, to_int64

__all__ = ["MAX_BYTES", "MAX_CHARS", "MAX_IDS", "MAX_NAME", "MIN_BYTES", "NOT_HERE", "NOT_WRITTEN", "IdCache"]

cdef enum:
    NOT_HERE_ = -1
    NOT_WRITTEN_ = -2
    MOST_ENTRIES = 1 << 28
    BYTES_AN_ENTRY = 128

MAX_CHARS = IDS_MAX_CHARS
MAX_IDS = IDS_MAX
MAX_NAME = IDS_MAX_NAME
MIN_BYTES = 1024
NOT_HERE = NOT_HERE_
NOT_WRITTEN = NOT_WRITTEN_

cdef int64_t MOST_BYTES = <int64_t>1 << 32

MAX_BYTES = MOST_BYTES


cdef class IdCache:
    """IdCache(max_bytes, max_entries=None, hash_bits=32)
--

The ids of one tokenizer's texts."""

    def __cinit__(self, max_bytes, max_entries=None, hash_bits=32):
        cdef int64_t size = as_range("max_bytes", max_bytes, MIN_BYTES, MOST_BYTES)
        cdef int64_t most, cells = 2
        cdef int64_t bits
        if max_entries is None:
            max_entries = min(size // BYTES_AN_ENTRY, MOST_ENTRIES)
        most = as_range("max_entries", max_entries, 1, MOST_ENTRIES)
        bits = as_range("hash_bits", hash_bits, 0, 32)
        while 3 * cells < 4 * most:
            cells *= 2
        if 2 * cells * <int64_t>sizeof(IdsCell) > size:
            raise ValueError(
                f"an index of {most} entries takes {cells * <int64_t>sizeof(IdsCell)} of {size} bytes, more than "
                "half; give fewer max_entries or more max_bytes"
            )
        secret_words(None, self.secret)
        self._max_bytes = size
        if ids_init(&self.s, size, cells, most, <uint32_t>((<uint64_t>1 << bits) - 1)) != 0:
            raise MemoryError(f"no memory for an id cache of {size} bytes")

    def __dealloc__(self):
        ids_free(&self.s)

    cdef int key_of(self, object text, object who, IdsKey* key) except -1:
        # 1, or 0: so long a text, or a name, is not kept, and not hashed.
        cdef uint64_t lo, hi, name_lo = 0, name_hi = 0
        cdef Py_ssize_t chars, name_chars = 0
        if not PyUnicode_CheckExact(text):
            raise TypeError(f"text must be a str, got {type(text).__name__}")
        if who is not None and not PyUnicode_CheckExact(who):
            raise TypeError(f"who must be a str or None, got {type(who).__name__}")
        chars = PyUnicode_GET_LENGTH(text)
        if who is not None:
            name_chars = PyUnicode_GET_LENGTH(who)
        if chars > IDS_MAX_CHARS or name_chars > IDS_MAX_NAME:
            return 0
        hash_object(text, self.secret, &lo, &hi)    # makes ready a str of the old kind, too
        key.text = <const char*>PyUnicode_DATA(text)
        key.chars = <uint32_t>chars
        key.kinds = <uint8_t>PyUnicode_KIND(text)
        key.name = key.text     # of no length
        key.name_chars = <uint32_t>name_chars
        if who is not None:
            hash_object(who, self.secret, &name_lo, &name_hi)
            key.name = <const char*>PyUnicode_DATA(who)
            key.kinds |= <uint8_t>(PyUnicode_KIND(who) << 4)
            lo = lo * 3 + name_lo
        key.tag = <uint32_t>lo & self.s.tags
        return 1

    def fetch(self, arena, handle, text, who=None, tentative=False, most=16384):
        """Copy the ids of a text into the row of a pinned slot: how many, NOT_HERE or NOT_WRITTEN."""
        cdef bint first = tentative
        cdef int64_t limit = as_range("most", most, 0, 0x7FFFFFFF)
        if not isinstance(arena, Arena):
            raise TypeError(f"arena must be an Arena, got {type(arena).__name__}")
        return self.copy(<Arena>arena, handle, text, who, first, limit)

    cdef int32_t copy(self, Arena arena, object handle, object text, object who, bint first, int64_t limit) except -3:
        cdef IdsKey key
        cdef IdsRecord* record = NULL
        cdef int status = 0
        cdef int64_t h
        if self.key_of(text, who, &key):
            record = ids_find(&self.s, &key)
        if record == NULL:
            self._misses += not first
            return NOT_HERE_
        if record.length <= limit and record.length <= arena.s.max_length:
            h = to_int64("handle", handle)
            status = arena_write_ids(&arena.s, h, ids_read(&self.s, record), record.length, record.split)
            if status == -2:
                raise ValueError(f"handle {h} is not pinned; pin() it before writing its row")
        if status != 1:
            self._hits += not first
            return NOT_WRITTEN_
        record.marks |= IDS_HIT
        self._hits += 1
        return record.length

    def put(self, text, who, ids, split=-1):
        """Keep the ids of a text; False if they are here already, or are not kept at all."""
        cdef IdsKey key
        cdef bint short = self.key_of(text, who, &key)
        cdef int32_t n = ids_of(ids, self.s.scratch, IDS_MAX)
        cdef int32_t second = <int32_t>as_range("split", split, -1, n)
        return short and self.enter(&key, n, second)

    cdef bint keep(self, object text, object who, const int32_t* ids, int32_t n, int32_t split) except -1:
        cdef IdsKey key
        if n > IDS_MAX or not ids_are_kept(text, who) or not self.key_of(text, who, &key):
            return False
        memcpy(self.s.scratch, ids, <size_t>n * sizeof(int32_t))
        return self.enter(&key, n, split)

    cdef bint enter(self, const IdsKey* key, int32_t n, int32_t split) noexcept:
        # The ids are those in scratch.
        cdef bint wide = False
        cdef uint32_t size
        cdef int32_t i
        for i in range(n):
            wide |= <uint32_t>self.s.scratch[i] > 0xFFFF
        size = <uint32_t>sizeof(IdsRecord) + <uint32_t>n * (4 if wide else 2)
        size += key.chars * (key.kinds & 15) + key.name_chars * (key.kinds >> 4)
        size = (size + 7) & ~<uint32_t>7
        if 4 * <int64_t>size > self.s.room or ids_find(&self.s, key) != NULL:
            return False
        ids_write(&self.s, key, size, wide, n, split)
        return True

    def clear(self):
        """Drop everything; all of it counts as evicted."""
        ids_clear(&self.s)

    @property
    def max_bytes(self):
        """Size of the whole block; never changes."""
        return self._max_bytes

    @property
    def max_entries(self):
        """Texts in it at most; never changes."""
        return self.s.most

    @property
    def entries(self):
        """Texts in it now: those that were put in, less the `evictions`."""
        return self.s.count

    @property
    def nbytes(self):
        """Bytes that they take, without the index."""
        return self.s.nbytes

    @property
    def hits(self):
        """Fetches that found their text."""
        return self._hits

    @property
    def misses(self):
        """Fetches that did not."""
        return self._misses

    @property
    def evictions(self):
        """Texts dropped so far."""
        return self.s.evictions

    def check(self):
        """Recounts everything; AssertionError if an invariant is broken."""
        cdef int broken = ids_check(&self.s)
        if broken:
            what = ("a record is not behind the one before it", "a record is not in the index",
                    "the index and the ring have different numbers of entries", "its bytes are miscounted")
            raise AssertionError(f"id cache: {what[broken - 1]}; this is a bug in relay")
