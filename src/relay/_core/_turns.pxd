# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# Whose turn it is, as `Lines.choose` of `relay._pure._lines`. As in _budget.pxd: no lock, no allocation, no Python, and
# all of it inlined.
#
# A choice costs O(groups * log(lines)): the first of those that fit what is free is found without a look at those that
# do not. Three cases look at every line: the turn of the overdue, while somebody is late; a request that lacks units,
# stands before the one that could be served, and is not late itself, while somebody is; and, while one bars the way,
# each group with a floor of its own that has room.

from libc.stdint cimport INT64_MAX, int32_t, int64_t

from relay._core._budget cimport Budget, budget_capped, budget_most, budget_room
from relay._core._lines cimport TIME_BITS, line_find, line_set_aside
from relay._core._shares cimport Shares
from relay._core._trees cimport Line, Lines, Place, line_before, line_first, tree_beyond, tree_within


cdef inline bint line_capped(const Lines* l, const Budget* b, int32_t i) noexcept nogil:
    return l.by_tenant and budget_capped(b, l.lines[i].tenant, l.lines[i].cost)


cdef inline bint line_late(const Lines* l, int32_t i, int64_t now_ns) noexcept nogil:
    return l.places[l.lines[i].head].arrival_ns + l.allowance_ns[l.lines[i].level] <= now_ns


cdef inline bint line_possible(const Lines* l, const Budget* b, int32_t i) noexcept nogil:
    return l.lines[i].cost <= budget_most(b, l.lines[i].level)


cdef inline bint line_bars(const Lines* l, const Budget* b, int32_t i, int64_t now_ns) noexcept nogil:
    # Whether it lacks units, is late, and could be served by and by.
    return (
        l.lines[i].cost > budget_room(b, b.group[l.lines[i].level]) and line_late(l, i, now_ns)
        and line_possible(l, b, i) and not line_capped(l, b, i)
    )


cdef inline bint group_barred(const Lines* l, const Budget* b, int group, int64_t now_ns, int32_t ahead) noexcept nogil:
    # Whether one of the group that stands before this one bars the way.
    cdef int32_t i, at
    for at in range(l.n_used):
        i = l.used[at]
        if b.group[l.lines[i].level] == group and line_before(&l.lines[i], &l.lines[ahead]) and line_bars(l, b, i, now_ns):
            return True
    return False


cdef inline int32_t lines_first(Lines* l, Budget* b, int32_t bar, int64_t now_ns) noexcept nogil:
    # The first that may be served now: with a bar, out of a floor of its own that no barring one has part in.
    cdef int32_t best = 0, group, room, i
    for group in range(b.groups):
        if not l.roots[group] or (bar and b.group[l.lines[bar].level] == group):
            continue
        room = budget_room(b, group)
        if bar and b.unfilled[group] < room:
            room = b.unfilled[group]
        while room > 0:
            i = tree_within(l, group, room)
            if i and line_capped(l, b, i):
                line_set_aside(l, b, i)
                continue
            if i and (not best or line_before(&l.lines[i], &l.lines[best])) and not (
                bar and group_barred(l, b, group, now_ns, i)
            ):
                best = i
            break
    return best


cdef inline int32_t lines_bar(Lines* l, Budget* b, int64_t now_ns, int32_t ahead) noexcept nogil:
    # The first that lacks units, is late, could be served by and by, and stands before the one who may be served now.
    cdef int32_t best = 0, group, room, i, at
    if now_ns < l.late_from:
        return 0
    for group in range(b.groups):
        room = budget_room(b, group)
        while l.roots[group]:
            i = tree_beyond(l, group, room)
            if i and line_capped(l, b, i):
                line_set_aside(l, b, i)
                continue
            if i and line_before(&l.lines[i], &l.lines[ahead]) and (
                not best or line_before(&l.lines[i], &l.lines[best])
            ):
                best = i
            break
    if not best or (line_late(l, best, now_ns) and line_possible(l, b, best)):
        return best
    best = 0
    for at in range(l.n_used):
        i = l.used[at]
        if line_before(&l.lines[i], &l.lines[ahead if not best else best]) and line_bars(l, b, i, now_ns):
            best = i
    return best


cdef inline int32_t lines_overdue(Lines* l, Budget* b, int64_t now_ns) noexcept nogil:
    # Of those past their allowance the one that came first: it may be served now, or by and by.
    cdef int32_t best = 0, i, at
    cdef int64_t late_ns, late_from = INT64_MAX
    cdef Place* head
    cdef Place* oldest = NULL
    if now_ns < l.late_from:
        return 0
    for at in range(l.n_used):
        i = l.used[at]
        head = &l.places[l.lines[i].head]
        late_ns = head.arrival_ns + l.allowance_ns[l.lines[i].level]
        if late_ns < late_from:
            late_from = late_ns
        if late_ns > now_ns or not line_possible(l, b, i) or line_capped(l, b, i):
            continue
        if not best or head.arrival_ns < oldest.arrival_ns or (
            head.arrival_ns == oldest.arrival_ns and head.seq < oldest.seq
        ):
            best = i
            oldest = head
    l.late_from = late_from
    return best


cdef inline int32_t lines_choose(Lines* l, Budget* b, int64_t now_ns) noexcept nogil:
    # The place of whoever is next, or -1.
    cdef int32_t first = lines_first(l, b, 0, now_ns), bar = 0
    if not first:
        return -1
    if l.every and l.turn == l.every - 1:
        bar = lines_overdue(l, b, now_ns)
        if bar and l.lines[bar].cost <= budget_room(b, b.group[l.lines[bar].level]):
            l.turn = 0
            return l.lines[bar].head
    if not bar:
        bar = lines_bar(l, b, now_ns, first)
    if bar:
        first = lines_first(l, b, bar, now_ns)
        if not first:
            return -1
    l.turn = l.turn + 1 if l.turn < l.every - 1 else (l.every - 1 if l.every > 0 else 0)
    return l.lines[first].head


# Recounting.

cdef inline bint place_broken(const Lines* l, int32_t p) noexcept nogil:
    # Whether the links of one who stands in line are wrong, or it stands before the head.
    cdef const Place* place = &l.places[p]
    cdef const Place* head = &l.places[l.lines[place.line].head]
    cdef const Place* prev
    if place.key < head.key or (place.key == head.key and place.seq < head.seq):
        return True
    if place.prev < 0:
        return place != head or place.next >= 0
    prev = &l.places[place.prev]
    return prev.line != place.line or (prev.next != p and (prev.child != p or place.key < prev.key))


cdef inline int32_t tree_count(const Lines* l, const Budget* b, int group, int32_t at, int32_t up) noexcept nogil:
    # How many lines stand in a tree at and below a node; some large number less than 0 if one is wrong.
    cdef const Line* n = l.lines
    cdef int32_t left = n[at].left, right = n[at].right
    if not at:
        return 0
    if (
        n[at].up != up or b.group[n[at].level] != group or n[at].aside or (up and n[at].luck < n[up].luck)
        or (left and n[left].cost > n[at].cost) or (right and n[right].cost < n[at].cost)
        or n[at].first != line_first(n, at, line_first(n, n[left].first, n[right].first))
    ):
        return -1000000000
    return 1 + tree_count(l, b, group, left, at) + tree_count(l, b, group, right, at)


cdef inline int32_t lines_broken(const Lines* l, const Budget* b, const Shares* s) noexcept nogil:
    # How many stand in line, or less than 0 if an invariant is broken.
    cdef int32_t at, i, group, standing = 0, in_trees = 0, aside = 0
    cdef const Line* line
    for at in range(l.n_used):
        i = l.used[at]
        line = &l.lines[i]
        if line.listed != at or line_find(l, line.level, line.tenant, line.cost) != i or line.count < 1:
            return -1
        if l.places[line.head].line != i or line.seq != l.places[line.head].seq:
            return -1
        if s.limit == 0 and line.order != l.places[line.head].key:
            return -1
        if s.limit and line.order != (<int64_t>line.level << TIME_BITS | s.accounts[line.account].time):
            return -1
        if line.aside and not line_capped(l, b, i):
            return -1
        aside += line.aside
        standing += line.count
    for group in range(b.groups):
        in_trees += tree_count(l, b, group, l.roots[group], 0)
    return standing if in_trees + aside == l.n_used else -1
