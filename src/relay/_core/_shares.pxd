# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# Virtual time of each tenant in each tier, as `Shares` of `relay._pure._lines`: start-time fair queueing. An account is
# there while its tenant waits in the tier, or has taken more than its share. Index 0 is none. As in _budget.pxd: no
# lock, no allocation, no Python, and all of it inlined.

from libc.math cimport rint
from libc.stdint cimport int32_t, int64_t

from relay._core._budget cimport LEVELS, Budget

cdef enum:
    CHARGE = 1 << 20            # what one unit costs a tenant of weight 1

cdef extern from *:
    """
    #define RELAY_REBASE ((int64_t)1 << 53)
    """
    int64_t REBASE "RELAY_REBASE"


cdef struct Account:
    int64_t time
    int32_t level
    int32_t tenant
    int32_t active              # how many requests wait; -1: not in use
    int32_t lines               # chain of the lines it stands in
    int32_t next                # of the tenant's; or the next one not in use
    int32_t prev


cdef struct Shares:             # every field: guarded by the owner's lock (the GIL)
    Account* accounts           # limit + 1, owned by who owns the struct
    int32_t limit               # 0: not shared
    int32_t count
    int32_t top                 # the highest ever used
    int32_t spare               # chain
    int64_t clock[LEVELS]


cdef inline int32_t shares_find(const Shares* s, const Budget* b, int level, int32_t tenant) noexcept nogil:
    cdef int32_t i = b.tenants[tenant].accounts
    while i and s.accounts[i].level != level:
        i = s.accounts[i].next
    return i


cdef inline int32_t shares_open(Shares* s, Budget* b, int level, int32_t tenant) noexcept nogil:
    # The account, which is made if need be: the caller has seen to it that there is one to spare.
    cdef int32_t i = shares_find(s, b, level, tenant)
    cdef Account* account
    if not i:
        i = s.spare
        if i:
            s.spare = s.accounts[i].next
        else:
            s.top += 1
            i = s.top
        s.count += 1
        account = &s.accounts[i]
        account.time = s.clock[level]
        account.level = level
        account.tenant = tenant
        account.active = account.lines = account.prev = 0
        account.next = b.tenants[tenant].accounts
        if account.next:
            s.accounts[account.next].prev = i
        b.tenants[tenant].accounts = i
    elif s.accounts[i].active == 0 and s.accounts[i].time < s.clock[level]:
        s.accounts[i].time = s.clock[level]
    return i


cdef inline void shares_close(Shares* s, Budget* b, int32_t i) noexcept nogil:
    cdef Account* account = &s.accounts[i]
    if account.prev:
        s.accounts[account.prev].next = account.next
    else:
        b.tenants[account.tenant].accounts = account.next
    if account.next:
        s.accounts[account.next].prev = account.prev
    account.active = -1
    account.next = s.spare
    s.spare = i
    s.count -= 1


cdef inline void shares_leave(Shares* s, Budget* b, int32_t i) noexcept nogil:
    # One request waits no more.
    cdef Account* account = &s.accounts[i]
    account.active -= 1
    if account.active == 0 and account.time <= s.clock[account.level]:
        shares_close(s, b, i)


cdef inline bint shares_charge(Shares* s, const Budget* b, int32_t i, int32_t cost) noexcept nogil:
    # True if all times of the tier have been moved back.
    cdef Account* account = &s.accounts[i]
    cdef int64_t start = account.time, by
    cdef int64_t charge = <int64_t>rint(<double>(<int64_t>cost * CHARGE) / b.tenants[account.tenant].weight)
    cdef int level = account.level
    if start > s.clock[level]:
        s.clock[level] = start
    account.time = start + (charge if charge > 1 else 1)
    if start < REBASE:
        return False
    by = s.clock[level]
    s.clock[level] = 0
    for i in range(1, s.top + 1):
        account = &s.accounts[i]
        if account.active >= 0 and account.level == level:
            account.time = account.time - by if account.time > by else 0
    return True
