# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# The units of a pool, as `relay._pure._budget`: how many there are, which are kept for whom, and whether a request
# fits. No verb takes a lock, allocates, raises, or touches Python: whoever owns the struct lets one thread in at a time.
# There is no _budget.pyx: all of it is inlined into what is built on it.

from libc.stdint cimport int32_t, int64_t, uint16_t

cdef enum:
    LEVELS = 256
    GROUPS = 257            # one for each priority, and one for those without a floor
    NOBODY = 0              # the tenant of those who have none


cdef struct Tenant:         # 0 chains nothing
    int64_t cap             # -1: none
    double weight
    int32_t held
    int32_t waiting
    int32_t accounts        # chain of its virtual times
    int32_t aside           # chain of its lines that are set aside; in a free entry: the next one


cdef struct Budget:         # every field: guarded by the owner's lock (the GIL)
    Tenant* tenants         # owned by who owns the struct
    int32_t capacity
    int32_t held            # more than the capacity after a cut
    int32_t kept            # the sum of the floors
    int32_t unfilled_total
    int32_t groups
    int32_t floor[GROUPS]
    int32_t held_by[GROUPS]
    int32_t unfilled[GROUPS]
    int32_t held_at[LEVELS]
    uint16_t group[LEVELS]  # priority -> group


cdef inline int32_t budget_room(const Budget* b, int group) noexcept nogil:
    # What is free for a group: a request of it that costs no more fits. A floor that is not filled is open to its own
    # group and closed to others.
    cdef int32_t free = b.capacity - b.held
    cdef int32_t own = b.unfilled[group]
    cdef int32_t open = free - (b.unfilled_total - own)
    cdef int32_t room = own if own > open else open
    return room if room < free else free


cdef inline int32_t budget_most(const Budget* b, int level) noexcept nogil:
    return b.capacity - b.kept + b.floor[b.group[level]]


cdef inline bint budget_capped(const Budget* b, int32_t tenant, int32_t cost) noexcept nogil:
    cdef const Tenant* t = &b.tenants[tenant]
    return 0 <= t.cap < <int64_t>t.held + cost


cdef inline void budget_count(Budget* b, int level, int32_t tenant, int32_t units) noexcept nogil:
    cdef int group = b.group[level]
    cdef int32_t short
    b.held += units
    b.held_by[group] += units
    b.held_at[level] += units
    b.tenants[tenant].held += units
    if b.floor[group]:
        short = b.floor[group] - b.held_by[group]
        short = short if short > 0 else 0
        b.unfilled_total += short - b.unfilled[group]
        b.unfilled[group] = short


cdef inline void budget_refill(Budget* b) noexcept nogil:
    # After a change of the floors.
    cdef int32_t group, short
    b.kept = b.unfilled_total = 0
    for group in range(b.groups):
        short = b.floor[group] - b.held_by[group]
        b.unfilled[group] = short if short > 0 else 0
        b.unfilled_total += b.unfilled[group]
        b.kept += b.floor[group]


cdef inline bint budget_broken(const Budget* b, int32_t tenants) noexcept nogil:
    cdef int32_t group, level, unfilled = 0, by_group = 0, by_level = 0, by_tenant = 0, kept = 0, short
    for group in range(b.groups):
        short = b.floor[group] - b.held_by[group]
        if b.unfilled[group] != (short if short > 0 else 0):
            return True
        unfilled += b.unfilled[group]
        by_group += b.held_by[group]
        kept += b.floor[group]
    for level in range(LEVELS):
        by_level += b.held_at[level]
    for group in range(tenants):
        by_tenant += b.tenants[group].held
    return not (
        unfilled == b.unfilled_total and by_group == by_level == by_tenant == b.held and kept == b.kept <= b.capacity
    )
