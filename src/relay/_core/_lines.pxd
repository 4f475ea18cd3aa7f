# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# Standing in line, as `Lines` of `relay._pure._lines`; the structs are in `_trees.pxd`. A line whose tenant may hold no
# more is set aside when it is met, and comes back when the tenant's units do: then, and only then, the lines of that
# tenant that are set aside are looked at one by one. As in _budget.pxd: no lock, no allocation, no Python, and all of it
# inlined.

from libc.stdint cimport int32_t, int64_t, uint32_t

from relay._core._budget cimport Budget, budget_capped
from relay._core._shares cimport Shares, shares_leave, shares_open
from relay._core._trees cimport Line, Lines, Place, heap_meld, heap_without, tree_add, tree_drop, tree_refresh

cdef enum:
    TIME_BITS = 55
    STEP_BITS = 6


cdef inline int64_t lines_key(const Lines* l, int level, int64_t arrival_ns) noexcept nogil:
    return <int64_t>level << TIME_BITS | (arrival_ns + l.allowance_ns[level]) >> STEP_BITS


cdef inline int32_t line_bucket(const Lines* l, int level, int32_t tenant, int32_t cost) noexcept nogil:
    cdef uint32_t mixed = <uint32_t>cost * 0x9E3779B1u + <uint32_t>(tenant + 1) * 0x85EBCA6Bu + <uint32_t>level
    mixed ^= mixed >> 15
    return <int32_t>(mixed * 0xC2B2AE35u >> 7) & l.mask


cdef inline int32_t line_find(const Lines* l, int level, int32_t tenant, int32_t cost) noexcept nogil:
    cdef int32_t i = l.buckets[line_bucket(l, level, tenant, cost)]
    cdef const Line* n = l.lines
    while i and (n[i].cost != cost or n[i].level != level or n[i].tenant != tenant):
        i = n[i].chained
    return i


cdef inline int32_t line_make(Lines* l, int level, int32_t tenant, int32_t cost) noexcept nogil:
    cdef int32_t bucket = line_bucket(l, level, tenant, cost)
    cdef int32_t i = l.spare
    cdef Line* line
    if i:
        l.spare = l.lines[i].chained
    else:
        l.top += 1
        i = l.top
    line = &l.lines[i]
    line.level = level
    line.tenant = tenant
    line.cost = cost
    line.head = -1
    line.count = line.account = line.next_mate = line.prev_mate = line.aside = 0
    line.luck = <uint32_t>i * 0x9E3779B1u
    line.luck = (line.luck ^ line.luck >> 16) * 0x85EBCA6Bu
    line.chained = l.buckets[bucket]
    l.buckets[bucket] = i
    line.listed = l.n_used
    l.used[l.n_used] = i
    l.n_used += 1
    return i


cdef inline void line_unmake(Lines* l, int32_t i) noexcept nogil:
    cdef Line* line = &l.lines[i]
    cdef int32_t* link = &l.buckets[line_bucket(l, line.level, line.tenant, line.cost)]
    while link[0] != i:
        link = &l.lines[link[0]].chained
    link[0] = line.chained
    line.chained = l.spare
    l.spare = i
    l.n_used -= 1
    l.used[line.listed] = l.used[l.n_used]
    l.lines[l.used[line.listed]].listed = line.listed


# Lines that are set aside, because their tenant may hold no more.

cdef inline void line_set_aside(Lines* l, Budget* b, int32_t i) noexcept nogil:
    cdef Line* line = &l.lines[i]
    cdef int32_t* chain = &b.tenants[line.tenant].aside
    tree_drop(l, b.group[line.level], i)
    line.aside = 1
    line.left = 0
    line.right = chain[0]
    if chain[0]:
        l.lines[chain[0]].left = i
    chain[0] = i


cdef inline void line_unchain(Lines* l, Budget* b, int32_t i) noexcept nogil:
    cdef Line* line = &l.lines[i]
    if line.left:
        l.lines[line.left].right = line.right
    else:
        b.tenants[line.tenant].aside = line.right
    if line.right:
        l.lines[line.right].left = line.left
    line.aside = 0


cdef inline void lines_recall(Lines* l, Budget* b, int32_t tenant) noexcept nogil:
    # Units of the tenant have come back.
    cdef int32_t i = b.tenants[tenant].aside, next
    while i:
        next = l.lines[i].right
        if not budget_capped(b, tenant, l.lines[i].cost):
            line_unchain(l, b, i)
            tree_add(l, b.group[l.lines[i].level], i)
        i = next


# Standing in line.

cdef inline void line_set_head(Lines* l, const Shares* s, int32_t i) noexcept nogil:
    # The head, or its turn, has changed.
    cdef Line* line = &l.lines[i]
    cdef Place* head = &l.places[line.head]
    cdef int64_t late_ns = head.arrival_ns + l.allowance_ns[line.level]
    line.order = <int64_t>line.level << TIME_BITS | s.accounts[line.account].time if s.limit else head.key
    line.seq = head.seq
    if late_ns < l.late_from:
        l.late_from = late_ns


cdef inline void lines_enter(Lines* l, Budget* b, Shares* s, int32_t p) noexcept nogil:
    # The place is filled in, but for its seq; an account is to spare.
    cdef Place* place = &l.places[p]
    cdef int32_t tenant = place.tenant if l.by_tenant else -1
    cdef int32_t i = line_find(l, place.level, tenant, place.cost), account = 0
    cdef bint made = not i
    cdef Line* line
    if made:
        i = line_make(l, place.level, tenant, place.cost)
    line = &l.lines[i]
    place.line = i
    place.child = place.next = place.prev = -1
    b.tenants[place.tenant].waiting += 1
    l.units[place.level] += place.cost
    l.waiting[place.level] += 1
    if s.limit:
        account = shares_open(s, b, place.level, place.tenant)
        s.accounts[account].active += 1
        if made:
            line.account = account
            line.next_mate = s.accounts[account].lines
            if line.next_mate:
                l.lines[line.next_mate].prev_mate = i
            s.accounts[account].lines = i
    line.head = heap_meld(l.places, line.head, p) if line.count else p
    line.count += 1
    if line.head == p:
        line_set_head(l, s, i)
        if made:
            tree_add(l, b.group[place.level], i)
        elif not line.aside:
            tree_refresh(l, i)


cdef inline void lines_leave(Lines* l, Budget* b, Shares* s, int32_t p) noexcept nogil:
    # From wherever. Its tenant, and others without an account, may have become nobody's concern.
    cdef Place* place = &l.places[p]
    cdef int32_t i = place.line
    cdef Line* line = &l.lines[i]
    cdef int32_t head = heap_without(l.places, line.head, p)
    place.line = 0
    b.tenants[place.tenant].waiting -= 1
    l.units[place.level] -= place.cost
    l.waiting[place.level] -= 1
    line.count -= 1
    if line.count == 0:
        if line.aside:
            line_unchain(l, b, i)
        else:
            tree_drop(l, b.group[line.level], i)
        if line.account:
            if line.prev_mate:
                l.lines[line.prev_mate].next_mate = line.next_mate
            else:
                s.accounts[line.account].lines = line.next_mate
            if line.next_mate:
                l.lines[line.next_mate].prev_mate = line.prev_mate
        line_unmake(l, i)
    elif head != line.head:
        line.head = head
        line_set_head(l, s, i)
        if not line.aside:
            tree_refresh(l, i)
    if line.account:
        shares_leave(s, b, line.account)


cdef inline void lines_retime(Lines* l, const Shares* s, int32_t account, bint all) noexcept nogil:
    # The account's time has changed, or those of its whole tier.
    cdef int32_t i = s.accounts[account].lines, at
    cdef int level = s.accounts[account].level
    if all:
        for at in range(l.n_used):
            i = l.used[at]
            if l.lines[i].level == level:
                line_set_head(l, s, i)
                if not l.lines[i].aside:
                    tree_refresh(l, i)
        return
    while i:
        line_set_head(l, s, i)
        if not l.lines[i].aside:
            tree_refresh(l, i)
        i = l.lines[i].next_mate
