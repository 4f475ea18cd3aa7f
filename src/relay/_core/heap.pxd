# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# The struct and its verbs, for other core parts to embed and inline. No verb takes a lock, allocates (but heap_init),
# raises, or touches Python: whoever owns the struct lets one thread in at a time.

from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_Check
from libc.stdint cimport INT64_MAX, UINT64_MAX, int32_t, int64_t, uint32_t, uint64_t


cdef enum:
    HEAP_SLOT_BITS = 22
    HEAP_MAX_SLOTS = 1 << 22
    HEAP_ROOT = 3                   # the children of i are 4i-8 .. 4i-5: each family fills one 64-byte line


cdef struct HeapNode:               # 16 bytes
    int64_t key                     # smaller is more urgent
    uint64_t rank                   # arrival sequence (42 bits) << 22 | slot: unique, so the order is total


cdef struct Heap:                   # every field: guarded by the owner's lock (for the class: the GIL)
    HeapNode* nodes                 # into block, 64-byte aligned; from HEAP_ROOT; void from the end to its line's end
    int32_t* where                  # into block: slot -> index of its node; 0: not in
    void* block                     # owned: the one allocation
    uint64_t next_seq               # larger than any sequence in the heap, below 2**42
    int32_t size                    # nodes in the heap
    int32_t capacity                # slots


cdef int heap_init(Heap* h, int32_t capacity) noexcept nogil       # 0, or -1: out of memory or capacity out of range
cdef void heap_free(Heap* h) noexcept nogil                        # idempotent; leaves an empty heap of capacity 0
cdef int heap_refusal(const Heap* h, int32_t slot) noexcept nogil  # why heap_push refused
cdef void heap_renumber(Heap* h) noexcept nogil                    # sequences 0 .. size-1, same order
cdef int heap_check(const Heap* h) noexcept nogil                  # 0, or the number of the broken invariant


cdef inline bint heap_before(const HeapNode* a, const HeapNode* b) noexcept nogil:
    # Without branches: which of four children is first cannot be predicted.
    return (a.key < b.key) | ((a.key == b.key) & (a.rank < b.rank))


cdef inline void heap_place(Heap* h, int32_t i, HeapNode* node) noexcept nogil:
    h.nodes[i] = node[0]
    h.where[node.rank & (HEAP_MAX_SLOTS - 1)] = i


cdef inline void heap_void(Heap* h, int32_t i) noexcept nogil:
    # A void node sorts after every real one, so that the last family is always four.
    h.nodes[i].key = INT64_MAX
    h.nodes[i].rank = UINT64_MAX


cdef inline void heap_up(Heap* h, int32_t i, HeapNode* node) noexcept nogil:
    cdef int32_t parent
    while i > HEAP_ROOT:
        parent = (i >> 2) + 2
        if not heap_before(node, &h.nodes[parent]):
            break
        heap_place(h, i, &h.nodes[parent])
        i = parent
    heap_place(h, i, node)


cdef inline void heap_down(Heap* h, int32_t i, HeapNode* node) noexcept nogil:
    cdef int32_t end = HEAP_ROOT + h.size
    cdef int32_t child = 4 * i - 8
    cdef int32_t a, b
    cdef HeapNode* n = h.nodes
    while child < end:
        a = child + heap_before(&n[child + 1], &n[child])
        b = child + 2 + heap_before(&n[child + 3], &n[child + 2])
        a = b if heap_before(&n[b], &n[a]) else a
        if not heap_before(&n[a], node):
            break
        heap_place(h, i, &n[a])
        i = a
        child = 4 * i - 8
    heap_place(h, i, node)


cdef inline void heap_settle(Heap* h, int32_t i, HeapNode* node) noexcept nogil:
    if i > HEAP_ROOT and heap_before(node, &h.nodes[(i >> 2) + 2]):
        heap_up(h, i, node)
    else:
        heap_down(h, i, node)


cdef inline bint heap_has(const Heap* h, int32_t slot) noexcept nogil:
    return <uint32_t>slot < <uint32_t>h.capacity and h.where[slot] != 0


cdef inline int32_t heap_len(const Heap* h) noexcept nogil:
    return h.size


cdef inline int32_t heap_peek(const Heap* h) noexcept nogil:
    # The first slot, or -1.
    return <int32_t>(h.nodes[HEAP_ROOT].rank & (HEAP_MAX_SLOTS - 1)) if h.size else -1


cdef inline int64_t heap_key(const Heap* h, int32_t slot) noexcept nogil:
    # The key of a slot that is in; INT64_MAX for one that is not (ask heap_has where that may be a key).
    return h.nodes[h.where[slot]].key if heap_has(h, slot) else INT64_MAX


cdef inline int heap_push_seq(Heap* h, int64_t key, uint64_t seq, int32_t slot) noexcept nogil:
    # 0, -1 full, -2 slot out of range, -3 already in, -4 seq out of range. `seq`: as heap_pop_node gave it.
    cdef HeapNode node
    cdef int32_t i = HEAP_ROOT + h.size
    # A heap that is full holds every slot, so this one test finds all three refusals.
    if <uint32_t>slot >= <uint32_t>h.capacity or h.where[slot] != 0:
        return heap_refusal(h, slot)
    if seq >> 42:
        return -4
    if i & 3 == 0:
        heap_void(h, i + 1)
        heap_void(h, i + 2)
        heap_void(h, i + 3)
    h.size += 1
    node.key = key
    node.rank = seq << HEAP_SLOT_BITS | <uint64_t>slot
    heap_up(h, i, &node)
    if seq >= h.next_seq:
        h.next_seq = seq + 1
        if h.next_seq >> 42:
            heap_renumber(h)
    return 0


cdef inline int heap_push(Heap* h, int64_t key, int32_t slot) noexcept nogil:
    # 0, -1 full, -2 slot out of range, -3 already in.
    return heap_push_seq(h, key, h.next_seq, slot)


cdef inline void heap_take(Heap* h, int32_t i) noexcept nogil:
    # Removes the node at i; the last node fills the gap.
    cdef int32_t end
    cdef HeapNode last
    h.where[h.nodes[i].rank & (HEAP_MAX_SLOTS - 1)] = 0
    h.size -= 1
    end = HEAP_ROOT + h.size
    last = h.nodes[end]
    heap_void(h, end)
    if i != end:
        heap_settle(h, i, &last)


cdef inline int32_t heap_pop(Heap* h) noexcept nogil:
    # The first slot, or -1.
    cdef int32_t slot = heap_peek(h)
    if slot >= 0:
        heap_take(h, HEAP_ROOT)
    return slot


cdef inline int heap_pop_node(Heap* h, int64_t* key, uint64_t* seq, int32_t* slot) noexcept nogil:
    # 0, or -1 empty: nothing is written.
    if h.size == 0:
        return -1
    key[0] = h.nodes[HEAP_ROOT].key
    seq[0] = h.nodes[HEAP_ROOT].rank >> HEAP_SLOT_BITS
    slot[0] = heap_peek(h)
    heap_take(h, HEAP_ROOT)
    return 0


cdef inline int heap_remove(Heap* h, int32_t slot) noexcept nogil:
    # 1, or 0: not in.
    if not heap_has(h, slot):
        return 0
    heap_take(h, h.where[slot])
    return 1


cdef inline int heap_lift(Heap* h, int32_t slot, int64_t key) noexcept nogil:
    # 1, or 0: not in. The same as removal and re-insertion with the old sequence.
    cdef HeapNode node
    if not heap_has(h, slot):
        return 0
    node.key = key
    node.rank = h.nodes[h.where[slot]].rank
    heap_settle(h, h.where[slot], &node)
    return 1


cdef inline int64_t int64_of(object value, str name) except? -1:
    # The one way in for ints from Python: the same refusals, word for word, as `_int64` on the pure side.
    cdef int overflow = 0
    cdef int64_t result
    if not PyLong_Check(value):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    result = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        raise OverflowError(f"{name} {value:d} does not fit in 64 bits")
    return result


cdef inline int32_t slot_index(int64_t slot) noexcept nogil:
    # A slot that no heap has becomes -1, instead of losing its high bits.
    return <int32_t>slot if 0 <= slot < HEAP_MAX_SLOTS else -1


cdef class PriorityHeap:
    cdef Heap s
    cdef int _refuse(self, int status, int64_t slot, int64_t seq) except -1
