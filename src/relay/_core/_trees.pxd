# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# Who waits for a pool's units, and the two orders they are kept in; `_lines.pxd` says how they come and go, `_turns.pxd`
# whose turn it is. In a line stand requests of one tier, tenant (where tenants have caps or shares) and cost, in a
# pairing heap, so that the head is at hand and anybody can leave. The lines of each group of tiers are a tree by cost (a
# treap), in which every node knows whose turn it is first below it. As in _budget.pxd: no lock, no allocation, no
# Python, and all of it inlined. Line 0 is none.
#
# Sources: Fredman, Sedgewick, Sleator and Tarjan, "The pairing heap", Algorithmica 1986; Seidel and Aragon, "Randomized
# search trees", Algorithmica 1996.

from libc.stdint cimport int32_t, int64_t, uint32_t

from relay._core._budget cimport GROUPS, LEVELS


cdef struct Place:              # one waiter's
    int64_t key
    int64_t seq
    int64_t arrival_ns
    int64_t heartbeat_ns
    int64_t thread              # who acquires
    int64_t context
    int32_t priority            # asked for
    int32_t level               # stands in
    int32_t cost
    int32_t tenant
    int32_t line
    int32_t child               # in the pairing heap; -1: none, as for the next two
    int32_t next
    int32_t prev                # the elder sibling, or the parent


cdef struct Line:
    int64_t order               # with seq: whose turn it is; smaller first
    int64_t seq                 # of the head
    int32_t level
    int32_t tenant              # -1: whoever
    int32_t cost
    int32_t head
    int32_t count
    int32_t chained             # the next in its bucket, or of those not in use
    int32_t listed              # where it stands among those in use
    int32_t account
    int32_t next_mate           # of the same account
    int32_t prev_mate
    int32_t aside               # 1: set aside, and not in the tree; then the next two are of the tenant's chain
    int32_t left                # in the tree
    int32_t right
    int32_t up
    int32_t first               # whose turn it is first, of itself and those below
    uint32_t luck


cdef struct Lines:              # every field: guarded by the owner's lock (the GIL)
    Place* places               # owned by who owns the struct, as the next three
    Line* lines                 # as many as places, + 1
    int32_t* buckets            # mask + 1: a line of each hash
    int32_t* used               # lines in use, in no order
    int32_t n_used
    int32_t mask
    int32_t top                 # the highest line ever used
    int32_t spare               # chain
    int64_t next_seq
    int64_t late_from           # nobody is past its allowance before
    int64_t every
    int64_t turn
    bint by_tenant
    int32_t roots[GROUPS]
    int32_t waiting[LEVELS]
    int64_t units[LEVELS]       # asked for
    int64_t allowance_ns[LEVELS]


# The pairing heap of a line.

cdef inline int32_t heap_meld(Place* p, int32_t a, int32_t b) noexcept nogil:
    # One of two roots, which takes the other.
    cdef int32_t other
    if p[b].key < p[a].key or (p[b].key == p[a].key and p[b].seq < p[a].seq):
        other = a
        a = b
        b = other
    p[b].prev = a
    p[b].next = p[a].child
    if p[b].next >= 0:
        p[p[b].next].prev = b
    p[a].child = b
    return a


cdef inline int32_t heap_meld_all(Place* p, int32_t a) noexcept nogil:
    # The root of a row of siblings, or -1: in pairs, and then the pairs, last ones first.
    cdef int32_t b, rest, pairs = -1, root = -1
    while a >= 0:
        b = p[a].next
        rest = p[b].next if b >= 0 else -1
        p[a].next = p[a].prev = -1
        if b >= 0:
            p[b].next = p[b].prev = -1
            a = heap_meld(p, a, b)
        p[a].next = pairs
        pairs = a
        a = rest
    while pairs >= 0:
        a = pairs
        pairs = p[a].next
        p[a].next = -1
        root = heap_meld(p, root, a) if root >= 0 else a
    return root


cdef inline int32_t heap_without(Place* p, int32_t root, int32_t i) noexcept nogil:
    # The root when i has left.
    cdef int32_t below = heap_meld_all(p, p[i].child)
    cdef int32_t prev = p[i].prev
    p[i].child = -1
    if i == root:
        return below
    if p[prev].child == i:
        p[prev].child = p[i].next
    else:
        p[prev].next = p[i].next
    if p[i].next >= 0:
        p[p[i].next].prev = prev
    return heap_meld(p, root, below) if below >= 0 else root


# The tree of a group.

cdef inline bint line_before(const Line* a, const Line* b) noexcept nogil:
    return a.order < b.order or (a.order == b.order and a.seq < b.seq)


cdef inline int32_t line_first(const Line* n, int32_t a, int32_t b) noexcept nogil:
    # Whose turn is first of two; 0 is nobody.
    if not a or not b:
        return a + b
    return b if line_before(&n[b], &n[a]) else a


cdef inline void tree_look(Line* n, int32_t i) noexcept nogil:
    cdef int32_t below = line_first(n, n[n[i].left].first, n[n[i].right].first)     # line 0 has none below
    n[i].first = line_first(n, i, below)


cdef inline void tree_hang(Lines* l, int group, int32_t old, int32_t new) noexcept nogil:
    # `new` in the place of `old`; it may be 0.
    cdef Line* n = l.lines
    cdef int32_t up = n[old].up
    if not up:
        l.roots[group] = new
    elif n[up].left == old:
        n[up].left = new
    else:
        n[up].right = new
    if new:
        n[new].up = up


cdef inline void tree_raise(Lines* l, int group, int32_t i) noexcept nogil:
    # Changes places with the one above it.
    cdef Line* n = l.lines
    cdef int32_t up = n[i].up, inner
    tree_hang(l, group, up, i)
    if n[up].left == i:
        inner = n[i].right
        n[up].left = inner
        n[i].right = up
    else:
        inner = n[i].left
        n[up].right = inner
        n[i].left = up
    if inner:
        n[inner].up = up
    n[up].up = i
    tree_look(n, up)
    tree_look(n, i)


cdef inline void tree_refresh(Lines* l, int32_t i) noexcept nogil:
    # Its order has changed.
    while i:
        tree_look(l.lines, i)
        i = l.lines[i].up


cdef inline void tree_add(Lines* l, int group, int32_t i) noexcept nogil:
    cdef Line* n = l.lines
    cdef int32_t up = 0, at = l.roots[group]
    n[i].left = n[i].right = 0
    n[i].first = i
    while at:
        up = at
        at = n[at].left if n[i].cost < n[at].cost or (n[i].cost == n[at].cost and i < at) else n[at].right
    n[i].up = up
    if not up:
        l.roots[group] = i
        return
    if n[i].cost < n[up].cost or (n[i].cost == n[up].cost and i < up):
        n[up].left = i
    else:
        n[up].right = i
    while n[i].up and n[i].luck < n[n[i].up].luck:
        tree_raise(l, group, i)
    tree_refresh(l, i)


cdef inline void tree_drop(Lines* l, int group, int32_t i) noexcept nogil:
    cdef Line* n = l.lines
    cdef int32_t left, right
    while n[i].left and n[i].right:
        left = n[i].left
        right = n[i].right
        tree_raise(l, group, left if n[left].luck < n[right].luck else right)
    tree_hang(l, group, i, n[i].left + n[i].right)
    tree_refresh(l, n[i].up)


cdef inline int32_t tree_within(const Lines* l, int group, int32_t room) noexcept nogil:
    # Whose turn is first of those that cost no more than room.
    cdef const Line* n = l.lines
    cdef int32_t at = l.roots[group], best = 0
    while at:
        if n[at].cost <= room:
            best = line_first(n, best, line_first(n, at, n[n[at].left].first))
            at = n[at].right
        else:
            at = n[at].left
    return best


cdef inline int32_t tree_beyond(const Lines* l, int group, int32_t room) noexcept nogil:
    # Whose turn is first of those that cost more.
    cdef const Line* n = l.lines
    cdef int32_t at = l.roots[group], best = 0
    while at:
        if n[at].cost > room:
            best = line_first(n, best, line_first(n, at, n[n[at].right].first))
            at = n[at].left
        else:
            at = n[at].right
    return best
