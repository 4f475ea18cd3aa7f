# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""The order of waiting: an indexed 4-ary heap of slots, by key and then by arrival.

It owns one block of 16-byte nodes and an index from slot to node. It takes no lock: the class relies on the GIL, a core
part that embeds the struct brings its own guard. The invariant: every slot is in the heap at most once, `where` names
its node, no node sorts before its parent, and what is left of the last node's line is void.
"""

from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from libcpp.algorithm cimport sort


cdef int heap_init(Heap* h, int32_t capacity) noexcept nogil:
    cdef size_t cells = (<size_t>capacity + HEAP_ROOT + 3) & ~<size_t>3
    memset(h, 0, sizeof(Heap))
    if capacity < 1 or capacity > HEAP_MAX_SLOTS:
        return -1
    # Zeroed pages: what is never used is never touched. One line more, to align the first node.
    h.block = calloc(1, cells * sizeof(HeapNode) + <size_t>capacity * sizeof(int32_t) + 64)
    if h.block == NULL:
        return -1
    h.nodes = <HeapNode*>((<uintptr_t>h.block + 63) & ~<uintptr_t>63)
    h.where = <int32_t*>(h.nodes + cells)
    h.capacity = capacity
    return 0


cdef void heap_free(Heap* h) noexcept nogil:
    free(h.block)
    memset(h, 0, sizeof(Heap))


cdef int heap_refusal(const Heap* h, int32_t slot) noexcept nogil:
    if h.size == h.capacity:
        return -1
    return -3 if heap_has(h, slot) else -2


cdef bint rank_before(const HeapNode& a, const HeapNode& b) noexcept nogil:
    return a.rank < b.rank


cdef bint node_before(const HeapNode& a, const HeapNode& b) noexcept nogil:
    return heap_before(&a, &b)


cdef void heap_renumber(Heap* h) noexcept nogil:
    cdef HeapNode* first = h.nodes + HEAP_ROOT
    cdef uint64_t slot
    cdef int32_t i
    sort(first, first + h.size, &rank_before)
    for i in range(h.size):
        first[i].rank = <uint64_t>i << HEAP_SLOT_BITS | (first[i].rank & (HEAP_MAX_SLOTS - 1))
    # What is sorted is a heap.
    sort(first, first + h.size, &node_before)
    for i in range(h.size):
        h.where[first[i].rank & (HEAP_MAX_SLOTS - 1)] = HEAP_ROOT + i
    h.next_seq = <uint64_t>h.size


cdef int heap_check(const Heap* h) noexcept nogil:
    cdef int32_t i, slot, end = HEAP_ROOT + h.size, seen = 0
    if h.size < 0 or h.size > h.capacity or h.next_seq >> 42:
        return 1
    for i in range(HEAP_ROOT, end):
        slot = <int32_t>(h.nodes[i].rank & (HEAP_MAX_SLOTS - 1))
        if slot >= h.capacity or h.where[slot] != i:
            return 2
        if i > HEAP_ROOT and heap_before(&h.nodes[i], &h.nodes[(i >> 2) + 2]):
            return 3
        if h.nodes[i].rank >> HEAP_SLOT_BITS >= h.next_seq:
            return 4
    for slot in range(h.capacity):
        seen += h.where[slot] != 0
    if seen != h.size:
        return 2
    while h.size > 1 and end & 3:
        if h.nodes[end].key != INT64_MAX or h.nodes[end].rank != UINT64_MAX:
            return 5
        end += 1
    return 0


cdef tuple BROKEN = (
    "",
    "the counts are out of range",
    "the index of slots is wrong",
    "an entry stands out of order",
    "a sequence is out of range",
    "a void node is not void",
)


cdef class PriorityHeap:
    """PriorityHeap(capacity)
--

Slots in order of (key, arrival): the smallest key leaves first, equal keys leave as they came."""

    def __init__(self, capacity):
        cdef int64_t slots = int64_of(capacity, "capacity")
        if not 1 <= slots <= HEAP_MAX_SLOTS:
            raise ValueError(f"capacity {slots} is out of range: give 1 to {HEAP_MAX_SLOTS}")
        heap_free(&self.s)
        if heap_init(&self.s, <int32_t>slots) < 0:
            raise MemoryError(f"no memory for a heap of {slots} slots")

    def __dealloc__(self):
        heap_free(&self.s)

    @property
    def capacity(self):
        """The number of slots this heap was made for."""
        return self.s.capacity

    def __len__(self):
        return self.s.size

    def __contains__(self, slot):
        return heap_has(&self.s, slot_index(int64_of(slot, "slot")))

    def push(self, key, slot):
        """Puts a slot in, as the latest arrival."""
        cdef int64_t k = int64_of(key, "key")
        cdef int64_t i = int64_of(slot, "slot")
        cdef int status = heap_push(&self.s, k, slot_index(i))
        if status < 0:
            self._refuse(status, i, 0)

    def push_seq(self, key, seq, slot):
        """Puts a slot back with the arrival sequence that it had before."""
        cdef int64_t k = int64_of(key, "key")
        cdef int64_t q = int64_of(seq, "seq")
        cdef int64_t i = int64_of(slot, "slot")
        cdef int status = heap_push_seq(&self.s, k, <uint64_t>q, slot_index(i))
        if status < 0:
            self._refuse(status, i, q)

    cdef int _refuse(self, int status, int64_t slot, int64_t seq) except -1:
        if status == -1:
            raise ValueError(f"the heap is full: all {self.s.capacity} slots are in it; pop or remove one first")
        if status == -2:
            raise ValueError(f"slot {slot} is out of range: this heap has slots 0 to {self.s.capacity - 1}")
        if status == -3:
            raise ValueError(f"slot {slot} is already in the heap: lift it or remove it first")
        raise ValueError(f"seq {seq} is out of range: give one that pop_node returned, 0 to {(1 << 42) - 1}")

    def pop(self):
        """Takes the most urgent slot out; -1 if the heap is empty."""
        return heap_pop(&self.s)

    def pop_node(self):
        """Takes the most urgent entry out as (key, sequence, slot); None if the heap is empty."""
        cdef int64_t key = 0
        cdef uint64_t seq = 0
        cdef int32_t slot = 0
        if heap_pop_node(&self.s, &key, &seq, &slot) < 0:
            return None
        return key, seq, slot

    def pop_many(self, n):
        """Takes up to `n` slots out, most urgent first."""
        cdef int64_t k = int64_of(n, "n")
        if k < 0:
            raise ValueError(f"cannot pop {k} slots: give 0 or more")
        return [heap_pop(&self.s) for _ in range(min(k, <int64_t>self.s.size))]

    def remove(self, slot):
        """Takes a slot out, wherever it stands; tells whether it was in."""
        return heap_remove(&self.s, slot_index(int64_of(slot, "slot"))) == 1

    def lift(self, slot, key):
        """Gives a slot a new key and lets it keep its arrival; tells whether it was in."""
        cdef int32_t i = slot_index(int64_of(slot, "slot"))
        return heap_lift(&self.s, i, int64_of(key, "key")) == 1

    def peek(self):
        """The most urgent slot, which stays in; -1 if the heap is empty."""
        return heap_peek(&self.s)

    def key_of(self, slot):
        """The key of a slot that is in the heap."""
        cdef int64_t i = int64_of(slot, "slot")
        if not heap_has(&self.s, slot_index(i)):
            raise ValueError(f"slot {i} is not in the heap: ask `slot in heap` first")
        return heap_key(&self.s, <int32_t>i)

    def check(self):
        """Recounts everything; raises AssertionError on a broken invariant."""
        cdef int broken = heap_check(&self.s)
        if broken:
            raise AssertionError(f"heap: {BROKEN[broken]}; this is a bug in relay")
