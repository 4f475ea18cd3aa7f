# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# The struct and its verbs, for other core parts to embed, and the search and the hash for them to inline. No verb takes
# a lock, allocates (but dedup_init), raises, or touches Python: whoever owns the struct lets one thread in at a time.
# The hash touches nothing but its arguments.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #if defined(_MSC_VER) && !defined(__clang__)
    #include <intrin.h>
    static inline void relay_multiply(uint64_t a, uint64_t b, uint64_t* lo, uint64_t* hi) {
        *lo = a * b;
        *hi = __umulh(a, b);
    }
    #else
    static inline void relay_multiply(uint64_t a, uint64_t b, uint64_t* lo, uint64_t* hi) {
        unsigned __int128 product = (unsigned __int128)a * b;
        *lo = (uint64_t)product;
        *hi = (uint64_t)(product >> 64);
    }
    #endif
    """
    void relay_multiply(uint64_t a, uint64_t b, uint64_t* lo, uint64_t* hi) noexcept nogil


cdef enum:
    DEDUP_MAX_SLOTS = 1 << 22
    SECRET_WORDS = 32       # what hash128 and hash_object read of their secret


cdef struct DedupCell:      # one place of the open-addressed table
    uint32_t tag            # low 32 bits of the entry's hash; tag & mask is its home, where a search for it starts
    uint32_t slot           # slot + 1; 0: the cell is empty


cdef struct DedupEntry:     # one slot's entry
    uint64_t lo             # the hash; means nothing while handle is -1
    uint64_t hi
    int64_t handle          # -1: this slot has no entry


cdef struct DedupTable:     # all fields: guarded by the owner's lock (the GIL for the class)
    DedupCell* cells        # mask + 1 of them; owned: the start of the one block that holds both columns
    DedupEntry* entries     # capacity of them, in the same block
    uint32_t mask           # a power of two less one; at most three cells in four are ever taken
    int32_t capacity        # slots
    int32_t count           # live entries


cdef int dedup_init(DedupTable* d, int32_t capacity) noexcept nogil   # 0, or -1: out of memory or capacity out of range
cdef void dedup_free(DedupTable* d) noexcept nogil                    # idempotent, and safe on a zeroed struct
cdef int dedup_delete(DedupTable* d, int64_t handle) noexcept nogil   # 1 deleted, 0: that handle has no entry
cdef void dedup_clear(DedupTable* d) noexcept nogil                   # deletes all
cdef int dedup_check(const DedupTable* d) noexcept nogil              # 0, or the number of the broken invariant
cdef int dedup_insert(DedupTable* d, uint64_t lo, uint64_t hi, int64_t handle) noexcept nogil
#   1 entered; 0: the hash is present or the table full; -1: the slot has an entry; -2: the handle names no slot of it

# With the GIL, for whoever embeds a DedupTable and keeps SECRET_WORDS words beside it:
cdef int secret_words(object secret, uint64_t* words) except -1       # from bytes; None: from the process's own secret
cdef int hash_object(object data, const uint64_t* secret, uint64_t* lo, uint64_t* hi) except -1   # of a str or bytes


cdef class Dedup:
    cdef DedupTable s
    cdef uint64_t secret[SECRET_WORDS]


cdef inline int32_t dedup_len(const DedupTable* d) noexcept nogil:
    return d.count


cdef inline int64_t dedup_find(const DedupTable* d, uint64_t lo, uint64_t hi) noexcept nogil:
    # The handle entered under the hash, or -1.
    cdef uint32_t tag = <uint32_t>lo
    cdef uint32_t at = tag & d.mask
    cdef const DedupEntry* entry
    while d.cells[at].slot != 0:    # ends: one cell in four is empty
        if d.cells[at].tag == tag:
            entry = &d.entries[d.cells[at].slot - 1]
            if entry.lo == lo and entry.hi == hi:
                return entry.handle
        at = (at + 1) & d.mask
    return -1


# The hash. Multiply two words to 128 bits and fold the halves onto each other: the family of Vladimir Makarov's
# mum-hash and Wang Yi's wyhash (public domain); code, lanes and key schedule are our own. Folding alone would keep 64
# bits of a lane; a second accumulator keeps the half that folding loses, and both halves of the hash join the lanes
# under secrets of their own. It is keyed against prepared collisions, but is no cryptographic hash: content is compared
# in full before it is shared, so a collision costs a merge and never a wrong answer.

cdef inline uint64_t word_at(const uint8_t* p) noexcept nogil:
    cdef uint64_t word
    memcpy(&word, p, 8)     # any alignment
    return word


cdef inline uint32_t half_at(const uint8_t* p) noexcept nogil:
    cdef uint32_t half
    memcpy(&half, p, 4)
    return half


cdef inline uint64_t hash_fold(uint64_t a, uint64_t b) noexcept nogil:
    cdef uint64_t lo, hi
    relay_multiply(a, b, &lo, &hi)
    return lo ^ hi


cdef inline void hash_step(uint64_t x, uint64_t y, uint64_t secret, uint64_t* a, uint64_t* b) noexcept nogil:
    cdef uint64_t lo, hi
    relay_multiply(x ^ secret, y ^ a[0], &lo, &hi)
    a[0] = lo ^ hi
    b[0] = (b[0] + lo) ^ x


cdef inline uint64_t hash_spread(uint64_t x, uint64_t secret) noexcept nogil:
    # A bijection that carries every bit to the low ones, which choose the cell.
    x = (x ^ (x >> 32)) * (secret | 1)
    return x ^ (x >> 29)


cdef inline void hash128(const void* data, size_t n, const uint64_t* s, uint64_t* lo, uint64_t* hi) noexcept nogil:
    # Of the secret, words 0-5 seed the accumulators, 8-11 meet the input, 12-23 join the lanes, 24-25 end.
    # The last stripe overlaps the one before where n is no multiple; n, in the seeds, tells such inputs apart.
    cdef const uint8_t* p = <const uint8_t*>data
    cdef const uint8_t* last
    cdef uint64_t a0 = s[0] ^ n, a1 = s[1], a2 = s[2], a3 = s[3], b0 = s[4] ^ n, b1 = s[5]
    cdef uint64_t x = 0, y = 0, c
    cdef bint more = True
    if n > 64:      # four chains that do not wait for each other hide the multiplier's latency
        last = p + n - 64
        while more:
            more = p < last
            if not more:
                p = last
            hash_step(word_at(p), word_at(p + 8), s[8], &a0, &b0)
            hash_step(word_at(p + 16), word_at(p + 24), s[9], &a1, &b1)
            hash_step(word_at(p + 32), word_at(p + 40), s[10], &a2, &b0)
            hash_step(word_at(p + 48), word_at(p + 56), s[11], &a3, &b1)
            p += 64
        c = hash_fold(a0 ^ s[12], a2 ^ s[13]) ^ hash_fold(a1 ^ s[14], a3 ^ s[15])
        a0 = hash_fold(a0 ^ s[16], a1 ^ s[17]) ^ hash_fold(a2 ^ s[18], a3 ^ s[19])
        b0 = hash_fold(b0 ^ s[20], b1 ^ s[21])
    elif n > 16:
        last = p + n - 16
        while more:
            more = p < last
            if not more:
                p = last
            hash_step(word_at(p), word_at(p + 8), s[8], &a0, &b0)
            p += 16
        c = a0
    else:
        if n >= 8:
            x = word_at(p)
            y = word_at(p + n - 8)
        elif n >= 4:
            x = half_at(p) | (<uint64_t>half_at(p + n - 4) << 32)
        elif n > 0:
            x = p[0] | (<uint64_t>p[n >> 1] << 8) | (<uint64_t>p[n - 1] << 16)
        hash_step(x, y, s[8], &a0, &b0)
        c = a0
    lo[0] = hash_spread(a0, s[24])
    hi[0] = hash_spread(hash_fold(b0 ^ s[22], c ^ s[23]), s[25])
