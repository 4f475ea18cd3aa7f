# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False, embedsignature=True, embedsignature.format=python
"""Permits: who holds which token of a pool, and who waits for one. `relay._pure.permits` says what each call does.

Any thread may call any method. The GIL is the guard: a method changes everything it changes without running Python code in between, so each call is atomic;
objects are made before the first change or are not tracked by the collector, so no finaliser can come in between either.
"""

from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_CheckExact
from cython cimport freelist, no_gc
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

from relay._core.arena cimport arena_check, arena_free, arena_hand_over, arena_init, arena_lease, arena_live, arena_release
from relay._core.heap cimport Heap, heap_check, heap_free, heap_init, heap_key, heap_peek, heap_push, heap_remove
from relay._core._rows cimport ArenaTable
from relay._core.state cimport to_int64

from relay.errors import Closed, StaleToken

MAX_PRIORITY = 255
TIERS = (0, 1, 2)

cdef enum:
    LEVELS = 256


def stale_token(action):
    return StaleToken(f"cannot {action} this token: its lease has ended (released before, or handed on); acquire a new one")


def check_priority(priority):
    if not isinstance(priority, int):
        raise TypeError(f"priority must be an int from 0 to 255, got {type(priority).__name__}")
    if not 0 <= priority <= 255:
        raise ValueError(f"priority must be from 0 to 255, got {priority}")
    return int(priority)


cdef inline int level_of(object priority) except -1:
    cdef int overflow = 0
    cdef long value
    if PyLong_CheckExact(priority):
        value = PyLong_AsLongAndOverflow(priority, &overflow)
        if not overflow and 0 <= value < LEVELS:
            return <int>value
    return check_priority(priority)


@no_gc          # refers to its pool only, and no pool refers to its tokens, so it is in no cycle of relay's making
@freelist(256)
cdef class Token:
    cdef Permits permits            # keeps the pool alive while it has tokens out
    cdef int64_t lease              # slot and generation; never changes
    cdef readonly int priority

    @property
    def handle(self):
        return self.lease

    @property
    def held(self):
        return arena_live(&self.permits.a, self.lease)

    def release(self):
        self.permits.give_back(self)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.permits.give_back(self)

    def __repr__(self):
        return f"<Token priority={self.priority} {'held' if self.held else 'released'}>"


cdef class Permits:
    cdef ArenaTable a               # one slot a token
    cdef Heap* heaps                # groups of them, owned: those who wait, by the floor they share
    cdef int32_t* floor             # groups: tokens kept for each group
    cdef int32_t* held_by           # groups: tokens held by each group
    cdef int32_t* unfilled          # groups: max(0, floor - held_by)
    cdef int32_t* idle              # max_waiting: a stack of free places in the line
    cdef int32_t n_idle
    cdef int32_t groups
    cdef int32_t unfilled_total
    cdef uint8_t group[LEVELS]      # priority -> group
    cdef list parked                # max_waiting: who stands at each place
    cdef readonly int32_t capacity
    cdef readonly int32_t max_waiting
    cdef readonly int32_t waiting
    cdef readonly int64_t granted
    cdef readonly bint closed

    def __init__(self, capacity, floors=(), max_waiting=10_000):
        cdef int32_t i
        if self.heaps != NULL:
            raise TypeError("a pool can be initialised only once")
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        if max_waiting < 0:
            raise ValueError(f"max_waiting must be at least 0, got {max_waiting}")
        if sum([count for _, count in floors]) > capacity:
            raise ValueError(
                f"reserved tokens come to {sum([count for _, count in floors])}, but the pool has only {capacity}; reserve fewer or raise the capacity"
            )
        named = sorted(floors)
        for index, (tier, count) in enumerate(named, start=1):
            if check_priority(tier) != tier or count < 0:
                raise ValueError(f"a reserved count must be at least 0, got {count} for priority {tier}")
            above = [other for other in TIERS + tuple([other for other, _ in named]) if other > tier]
            for priority in range(tier, min(above, default=LEVELS)):
                self.group[<int>priority] = index
        if arena_init(&self.a, capacity, 0, 0) < 0:
            raise MemoryError(f"no memory for a pool of {capacity} tokens")
        self.groups = 1 + len(named)
        self.heaps = <Heap*>calloc(self.groups, sizeof(Heap))
        self.floor = <int32_t*>calloc(3 * self.groups, sizeof(int32_t))
        self.idle = <int32_t*>calloc(max(max_waiting, 1), sizeof(int32_t))
        if self.heaps == NULL or self.floor == NULL or self.idle == NULL:
            raise MemoryError(f"no memory for {max_waiting} waiters")
        self.held_by = self.floor + self.groups
        self.unfilled = self.held_by + self.groups
        for i in range(self.groups):
            if heap_init(&self.heaps[i], max(max_waiting, 1)) < 0:
                raise MemoryError(f"no memory for {max_waiting} waiters")
        for index, (_, count) in enumerate(named, start=1):
            self.floor[<int>index] = self.unfilled[<int>index] = count
            self.unfilled_total += count
        for i in range(max_waiting):
            self.idle[i] = i
        self.n_idle = max_waiting
        self.parked = [None] * max_waiting
        self.capacity = capacity
        self.max_waiting = max_waiting

    def __dealloc__(self):
        cdef int32_t i
        if self.heaps != NULL:
            for i in range(self.groups):
                heap_free(&self.heaps[i])
        free(self.heaps)
        free(self.floor)
        free(self.idle)
        arena_free(&self.a)

    def try_acquire(self, priority=1):
        cdef int level = level_of(priority)
        if self.closed:
            raise Closed("the pool is closed; no more tokens are given out")
        return self.take(level)

    def acquire_or_join(self, priority, key, waiter):
        cdef int level = level_of(priority)
        cdef int64_t order = to_int64("key", key)
        cdef int32_t index
        if self.closed:
            raise Closed("the pool is closed; no more tokens are given out")
        token = self.take(level)
        if token is not None:
            return token
        if not self.n_idle:
            waiter.index = -1
            return None
        self.n_idle -= 1
        index = self.idle[self.n_idle]
        waiter.index = index
        waiter.priority = level
        self.parked[index] = waiter
        heap_push(&self.heaps[self.group[level]], order, index)
        self.waiting += 1
        return None

    def leave(self, waiter):
        cdef int32_t index = waiter.index
        if index >= 0:
            self.remove(waiter, index, waiter.priority)
        return waiter.token

    def release(self, Token token not None):
        self.give_back(token)

    def holds(self, Token token not None):
        return arena_live(&self.a, token.lease)

    def shut(self):
        cdef list left = [waiter for waiter in self.parked if waiter is not None]
        self.closed = True
        for waiter in left:
            self.remove(waiter, waiter.index, waiter.priority)
        return left

    @property
    def held(self):
        return self.capacity - self.a.free_slots

    @property
    def free(self):
        return self.a.free_slots

    def __len__(self):
        return self.capacity - self.a.free_slots

    def check(self):
        cdef int32_t i, held = 0, waiting = 0, unfilled = 0, short
        cdef bint broken = arena_check(&self.a) != 0
        for i in range(self.groups):
            broken |= heap_check(&self.heaps[i]) != 0
            held += self.held_by[i]
            waiting += self.heaps[i].size
            short = max(0, self.floor[i] - self.held_by[i])
            broken |= short != self.unfilled[i]
            unfilled += short
        assert not broken and unfilled == self.unfilled_total, "reserved tokens miscounted; this is a bug in relay"
        assert held == self.capacity - self.a.free_slots, "held tokens miscounted; this is a bug in relay"
        parked = sum([waiter is not None for waiter in self.parked])
        assert parked == self.waiting == waiting, "waiters miscounted; this is a bug in relay"
        assert self.waiting + self.n_idle == self.max_waiting, "waiter places miscounted; this is a bug in relay"
        assert self.next_waiter(self.a.free_slots) < 0, "an eligible waiter waits beside a free token; this is a bug in relay"

    def _deliver(self, waiter):
        pass

    cdef inline bint eligible(self, int group, int32_t free) noexcept:
        return free - (self.unfilled_total - self.unfilled[group]) > 0

    cdef inline void count(self, int group, int by) noexcept:
        cdef int32_t short
        self.held_by[group] += by
        if self.floor[group]:
            short = self.floor[group] - self.held_by[group]
            short = short if short > 0 else 0
            self.unfilled_total += short - self.unfilled[group]
            self.unfilled[group] = short

    cdef inline Token take(self, int level):
        cdef Token token
        cdef int group = self.group[level]
        if not self.eligible(group, self.a.free_slots):
            return None
        token = Token.__new__(Token)
        token.permits = self
        token.priority = level
        token.lease = arena_lease(&self.a, 0, 0, 1, 0, 0, 0, 0, 1)
        self.count(group, 1)
        self.granted += 1
        return token

    cdef int give_back(self, Token token) except -1:
        cdef int32_t index
        cdef int level
        cdef Token given
        if not self.waiting:
            if not arena_release(&self.a, token.lease):
                raise stale_token("release")
            self.count(self.group[token.priority], -1)
            return 0
        if not arena_live(&self.a, token.lease):
            raise stale_token("release")
        self.count(self.group[token.priority], -1)
        index = self.next_waiter(self.a.free_slots + 1)
        if index < 0:
            arena_release(&self.a, token.lease)
            return 0
        waiter = self.parked[index]
        level = waiter.priority
        given = Token.__new__(Token)
        given.permits = self
        given.priority = level
        given.lease = arena_hand_over(&self.a, token.lease)
        self.count(self.group[level], 1)
        self.granted += 1
        self.remove(waiter, index, level)
        waiter.token = given
        self._deliver(waiter)
        return 0

    cdef int32_t next_waiter(self, int32_t free) noexcept:
        cdef int32_t best = -1, i
        cdef int64_t best_key = 0, key
        cdef Heap* heap
        for i in range(self.groups):
            heap = &self.heaps[i]
            if heap.size and self.eligible(i, free):
                key = heap_key(heap, heap_peek(heap))
                if best < 0 or key < best_key:
                    best = heap_peek(heap)
                    best_key = key
        return best

    cdef int remove(self, object waiter, int32_t index, int level) except -1:
        heap_remove(&self.heaps[self.group[level]], index)
        self.parked[index] = None
        self.idle[self.n_idle] = index
        self.n_idle += 1
        self.waiting -= 1
        waiter.index = -1
        return 0
