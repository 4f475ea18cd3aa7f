# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# Which requests make a good batch, as `relay._pure._choosing`. No verb takes a lock, allocates, raises, or touches
# Python; all of it is inlined. The arithmetic is that of the pure side, in the same order, so that both choose alike.

from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libcpp.algorithm cimport sort

cdef enum:
    SHUT_IDLE = 0
    SHUT_SIZE = 1
    SHUT_TOKENS = 2
    SHUT_DEADLINE = 3
    SHUT_PARAMS = 4
    SHUT_STEP = 5
    SHUT_OWN_DEADLINE = 11
    BULK = 2
    FEW = 4
    MAX_PLACES = 16

# Of two that differ by less, rounding does not decide.
cdef inline double slack() noexcept nogil:
    return 1.0 + 1.0 / 1048576.0


cdef struct Filling:        # a batch that is being chosen: on the stack of one call
    double base             # the line of time, in ns
    double item
    double unit
    double square
    double step             # 0: no limit
    double limit            # until the tightest deadline that binds
    double value            # what the members would cost unpadded
    int64_t most_cost       # 0: no limit
    int64_t now
    int64_t real            # sum of sizes
    int32_t most
    int32_t n               # members
    int32_t crowd           # would run together now
    int32_t width           # largest size
    int32_t top             # priority of the first in line
    int32_t group
    int32_t why             # the first reason that kept one out
    int32_t places          # limits by priority
    int32_t lowest[MAX_PLACES]
    int32_t at_most[MAX_PLACES]
    int32_t counts[MAX_PLACES]
    bint known
    bint sized              # size costs something
    bint finish
    bint blocked            # an overdue one has found no place


cdef inline double filling_time(const Filling* b, int32_t n, int32_t width) noexcept nogil:
    cdef double w = width
    return b.base + <double>n * (b.item + w * (b.unit + w * b.square))


cdef inline double filling_own(const Filling* b, int32_t size) noexcept nogil:
    cdef double w = size
    return b.item + w * (b.unit + w * b.square)


# How many members of this width there may be: more would save less than a sixty-fourth.
cdef inline int32_t filling_worth(const Filling* b, int32_t width) noexcept nogil:
    cdef double most = b.base * 64.0, own = filling_own(b, width)
    cdef int32_t n
    if most >= own * <double>b.most:
        return b.most
    n = <int32_t>(most / own) + 1
    return n if n > FEW else FEW


# How long until a deadline that has not passed.
cdef inline double filling_left(const Filling* b, int64_t deadline) noexcept nogil:
    return <double>(<uint64_t>deadline - <uint64_t>b.now) if deadline >= 0 else INFINITY


cdef inline bint filling_late(const Filling* b, int64_t deadline, int32_t cost) noexcept nogil:
    if deadline < 0:
        return False
    if deadline <= b.now:
        return True
    return b.finish and b.known and filling_time(b, 1 if b.sized else b.crowd, cost) > filling_left(b, deadline)


cdef inline int filling_refusal(const Filling* b, int32_t level, int32_t cost, int64_t deadline) noexcept nogil:
    cdef int32_t n = b.n + 1, width = b.width if b.width > cost else cost, i
    cdef double time, left
    if n > b.most:
        return SHUT_SIZE
    for i in range(b.places):
        if level >= b.lowest[i] and b.counts[i] >= b.at_most[i]:
            return SHUT_SIZE
    if b.most_cost and <int64_t>width * n > b.most_cost:
        return SHUT_TOKENS
    if not b.known:
        return 0
    if n > filling_worth(b, width):
        return SHUT_TOKENS
    time = filling_time(b, n, width)
    if time > b.limit:
        return SHUT_DEADLINE
    left = filling_left(b, deadline)
    if time > left and left >= filling_time(b, 1, cost):
        return SHUT_OWN_DEADLINE
    if level > b.top or b.top >= BULK:
        if b.step > 0.0:
            return SHUT_STEP if time > b.step else 0
        if level > b.top and b.sized and width > b.width:
            return SHUT_STEP
    return 0


cdef inline void filling_add(Filling* b, int32_t level, int32_t cost, int64_t deadline) noexcept nogil:
    cdef int32_t i
    cdef double left
    b.n += 1
    b.width = b.width if b.width > cost else cost
    b.real += cost
    for i in range(b.places):
        b.counts[i] += level >= b.lowest[i]
    if b.known:
        b.value += filling_own(b, cost)
        left = filling_left(b, deadline)
        if left < b.limit and filling_time(b, 1, cost) <= left:
            b.limit = left


cdef inline void filling_note(Filling* b, int reason) noexcept nogil:
    if not b.why:
        b.why = reason & 7


# A size, and behind it who came first: the earlier of equals sort last.
cdef inline uint64_t size_rank(int32_t size, int32_t i) noexcept nogil:
    return <uint64_t>(<uint32_t>size ^ <uint32_t>0x80000000) << 32 | (<uint32_t>0xFFFFFFFF - <uint32_t>i)


cdef inline int32_t rank_size(uint64_t rank) noexcept nogil:
    return <int32_t>(<uint32_t>(rank >> 32) ^ <uint32_t>0x80000000)


cdef inline int32_t rank_index(uint64_t rank) noexcept nogil:
    return <int32_t>(<uint32_t>0xFFFFFFFF - <uint32_t>rank)


# What a batch costs beyond what its members would cost unpadded; not less than nothing, but for rounding.
cdef inline double filling_overhead(
    const Filling* b, const double* sums, int32_t end, int32_t joined, double own
) noexcept nogil:
    cdef double over = b.base + <double>(b.n + joined) * own - (b.value + (sums[end] - sums[end - joined]))
    return over if over > 0.0 else 0.0


cdef inline bint filling_pays(
    const Filling* b, const uint64_t* order, const double* sums, int32_t end, int32_t joined, double own
) noexcept nogil:
    cdef double padding = own - filling_own(b, rank_size(order[end - 1 - joined]))
    return padding * <double>(b.n + joined) <= filling_overhead(b, sums, end, joined, own) * slack()


cdef inline int32_t filling_joining(
    const Filling* b, const uint64_t* order, const double* sums, int32_t end, int32_t width, int32_t room, double own,
    double limit,
) noexcept nogil:
    cdef int32_t most = room if room < end else end, low, middle
    cdef int64_t fit
    if b.most_cost and width > 0:
        fit = b.most_cost // width - b.n
        most = most if most < fit else <int32_t>(fit if fit > 0 else 0)
    low = filling_worth(b, width) - b.n
    most = most if most < low else low
    if most > 0 and filling_time(b, b.n + most, width) > limit:
        low = 0
        most -= 1
        while low < most:
            middle = (low + most + 1) // 2
            if filling_time(b, b.n + middle, width) > limit:
                most = middle - 1
            else:
                low = middle
    if most <= 0:
        return 0
    if filling_pays(b, order, sums, end, most - 1, own):
        return most
    low = 0
    most -= 1
    while low < most:
        middle = (low + most) // 2
        if filling_pays(b, order, sums, end, middle, own):
            low = middle + 1
        else:
            most = middle
    return low


# Sorts the ranks of those that may wait; those from `first` to `last` join.
cdef inline void filling_fill(
    const Filling* b, uint64_t* order, double* sums, int32_t count, int32_t* first, int32_t* last
) noexcept nogil:
    cdef int32_t room = b.most - b.n, end, joining, width, following, members = b.n, i
    cdef double limit = b.limit, best, over, own
    first[0] = last[0] = 0
    for i in range(b.places):
        if b.top >= b.lowest[i] and b.at_most[i] - b.counts[i] < room:
            room = b.at_most[i] - b.counts[i]
    if b.top >= BULK and 0.0 < b.step and b.step < limit:
        limit = b.step
    sort(order, order + count)
    sums[0] = 0.0
    for i in range(count):
        sums[i + 1] = sums[i] + filling_own(b, rank_size(order[i]))
    best = filling_overhead(b, sums, 0, 0, filling_own(b, b.width))
    for end in range(1, count + 1):
        width = rank_size(order[end - 1])
        width = width if width > b.width else b.width
        if end < count:
            following = rank_size(order[end])
            if (following if following > b.width else b.width) == width:
                continue
        own = filling_own(b, width)
        if width > b.width:     # does padding those that have joined cost too much already?
            over = filling_overhead(b, sums, 0, 0, own)
            if over * <double>members >= best * <double>(b.n + (room if room < end else end)):
                continue
        joining = filling_joining(b, order, sums, end, width, room, own, limit)
        if joining <= 0:
            continue
        over = filling_overhead(b, sums, end, joining, own)
        if width == b.width or over * <double>members * slack() < best * <double>(b.n + joining):
            best, members = over, b.n + joining
            first[0], last[0] = end - joining, end
