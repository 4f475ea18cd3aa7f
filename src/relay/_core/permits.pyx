# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""Permits: who holds which token of a pool, and who waits for one. `relay._pure.permits` says what each call does.

Any thread may call any method. The GIL is the guard: a method changes everything it changes without running Python code
in between, so each call is atomic; objects are made before the first change or are not tracked by the collector, so no
finaliser can come in between either.
"""

from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_CheckExact
from cython cimport freelist, no_gc
from libc.stdint cimport int32_t, int64_t, uint16_t
from libc.stdlib cimport calloc, free

from relay._core._rows cimport ArenaTable
from relay._core.arena cimport (
    arena_check, arena_free, arena_hand_over, arena_init, arena_lease, arena_live, arena_release,
)
from relay._core.heap cimport Heap, heap_check, heap_free, heap_init, heap_key, heap_peek, heap_push, heap_remove
from relay._core.state cimport MAX_SLOTS, as_int64, to_int64

from relay.errors import Closed, StaleToken

__all__ = ["MAX_PRIORITY", "NAMES", "NO_PLACE", "TIERS", "Permits", "Token", "check_priority", "stale_token"]

MAX_PRIORITY = 255
TIERS = (0, 1, 2)
NAMES = {"realtime": 0, "interactive": 1, "batch": 2}
NO_PLACE = -2

cdef enum:
    LEVELS = 256
    GROUPS = 257        # one for each priority, and one for those without a floor


def stale_token(action):
    return StaleToken(
        f"cannot {action} this token: its lease has ended (released before, or handed on); acquire a new one"
    )


def check_priority(priority):
    if isinstance(priority, str):
        if priority.lower() not in NAMES:
            raise ValueError(
                f"unknown priority {priority!r}; use one of {', '.join(NAMES)}, or a number from 0 to {MAX_PRIORITY}"
            )
        return NAMES[priority.lower()]
    if not isinstance(priority, int):
        raise TypeError(f"priority must be an int from 0 to 255 or a name, got {type(priority).__name__}")
    if not 0 <= priority <= 255:
        raise ValueError(f"priority must be from 0 to {MAX_PRIORITY}, got {priority}")
    return int(priority)


cdef int32_t size_of(str name, object value, int least) except -1:
    cdef int64_t size = as_int64(name, value)
    if size < least:
        raise ValueError(f"{name} must be at least {least}, got {size}")
    if size > MAX_SLOTS:
        raise ValueError(f"{name} must be at most {<int>MAX_SLOTS}, got {size}")
    return <int32_t>size


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
    """Token(permits, handle, priority)
--

A permit to use compute: the lease of one slot of a pool, and a context manager that ends it."""

    cdef Permits permits            # keeps the pool alive while it has tokens out; None if made by no pool
    cdef int64_t lease              # slot and generation
    cdef readonly int priority

    def __init__(self, Permits permits not None, handle, priority):
        self.priority = level_of(priority)
        self.lease = to_int64("handle", handle)
        self.permits = permits

    @property
    def handle(self):
        """The slot and the lease it was given for, as one int; grows with every lease of a slot."""
        return self.lease

    @property
    def held(self):
        """True until the lease ends."""
        return self.permits is not None and arena_live(&self.permits.a, self.lease)

    def release(self):
        """Give the token back. If somebody waits, it is theirs when this returns."""
        self.end()

    def __enter__(self):
        if not self.held:
            raise stale_token("use")
        return self

    def __exit__(self, *exc):
        self.end()

    cdef inline int end(self) except -1:
        if self.permits is None:
            raise stale_token("release")
        return self.permits.give_back(self)

    def __repr__(self):
        return f"<Token priority={self.priority} {'held' if self.held else 'released'}>"


cdef class Permits:
    """Permits(capacity, floors=(), max_waiting=10_000)
--

The core of a token pool."""

    cdef ArenaTable a               # one slot a token
    cdef Heap* heaps                # groups of them, owned: those who wait, by the floor they share
    cdef int32_t* idle              # max_waiting, owned: a stack of free places in the line
    cdef int32_t n_idle
    cdef int32_t groups
    cdef int32_t floor[GROUPS]      # tokens kept for each group
    cdef int32_t held_by[GROUPS]    # tokens held by each group
    cdef int32_t unfilled[GROUPS]   # max(0, floor - held_by)
    cdef int32_t unfilled_total
    cdef uint16_t group[LEVELS]     # priority -> group
    cdef list parked                # max_waiting: who stands at each place
    cdef readonly int32_t capacity
    cdef readonly int32_t max_waiting
    cdef readonly int32_t waiting
    cdef readonly int64_t granted
    cdef readonly bint closed

    def __init__(self, capacity, floors=(), max_waiting=10_000):
        cdef int32_t tokens = size_of("capacity", capacity, 1), places = size_of("max_waiting", max_waiting, 0), i
        if self.heaps != NULL:
            raise TypeError("a pool can be initialised only once")
        named = sorted([(check_priority(tier), size_of("a reserved count", count, 0)) for tier, count in floors])
        reserved = sum([count for _, count in named])
        if reserved > tokens:
            raise ValueError(
                f"reserved tokens come to {reserved}, but the pool has only {tokens}; "
                "reserve fewer or raise the capacity"
            )
        counts = dict(named)
        if len(counts) < len(named):
            raise ValueError("tokens are reserved twice for one priority; name each priority once")
        for index, (tier, count) in enumerate(named, start=1):
            above = [other for other in TIERS + tuple(counts) if other > tier]
            for priority in range(tier, min(above, default=LEVELS)):
                self.group[<int>priority] = index
            self.floor[<int>index] = self.unfilled[<int>index] = count
        self.unfilled_total = reserved
        self.parked = [None] * places
        self.groups = 1 + <int32_t>len(named)
        self.heaps = <Heap*>calloc(self.groups, sizeof(Heap))
        self.idle = <int32_t*>calloc(max(places, 1), sizeof(int32_t))
        if self.heaps == NULL or self.idle == NULL or arena_init(&self.a, tokens, 0, 0) < 0:
            raise MemoryError(f"no memory for a pool of {tokens} tokens")
        for i in range(self.groups):
            if heap_init(&self.heaps[i], max(places, 1)) < 0:
                raise MemoryError(f"no memory for {places} waiters")
        for i in range(places):
            self.idle[i] = i
        self.n_idle = places
        self.capacity = tokens
        self.max_waiting = places

    def __dealloc__(self):
        cdef int32_t i
        if self.heaps != NULL:
            for i in range(self.groups):
                heap_free(&self.heaps[i])
        free(self.heaps)
        free(self.idle)
        arena_free(&self.a)

    def try_acquire(self, priority=1):
        """Take a token if one is free for this priority, else return None at once."""
        cdef int level = level_of(priority)
        if self.closed:
            raise Closed("the pool is closed; no more tokens are given out")
        return self.take(level)

    def acquire_or_join(self, priority, key, waiter):
        """Take a token, or stand in line as `waiter`, in one step."""
        cdef int level = level_of(priority)
        cdef int64_t order = to_int64("key", key)
        cdef int32_t index
        waiter.priority = level     # may run code of the waiter's own: before anything is looked at
        if self.closed:
            raise Closed("the pool is closed; no more tokens are given out")
        token = self.take(level)
        if token is not None:
            waiter.token = token
            return token
        if not self.n_idle:
            waiter.index = NO_PLACE
            return None
        index = self.idle[self.n_idle - 1]
        waiter.index = index
        self.n_idle -= 1
        self.parked[index] = waiter
        heap_push(&self.heaps[self.group[level]], order, index)
        self.waiting += 1
        return None

    def leave(self, waiter):
        """Leave the line; the token it had been granted meanwhile, or None."""
        cdef int32_t index = waiter.index
        if index >= 0:
            self.remove(waiter, index, waiter.priority)
        return waiter.token

    def release(self, token):
        """Take `token` back and hand it to the most urgent eligible waiter, if there is one."""
        if not isinstance(token, Token):
            raise TypeError(f"token must be a Token, got {type(token).__name__}")
        if (<Token>token).permits is not self:
            raise ValueError("this token belongs to another pool; call token.release(), which knows its own")
        self.give_back(<Token>token)

    def holds(self, token):
        """True while the lease of `token`, one of this pool's, lasts."""
        if not isinstance(token, Token):
            raise TypeError(f"token must be a Token, got {type(token).__name__}")
        return (<Token>token).permits is self and arena_live(&self.a, (<Token>token).lease)

    def shut(self):
        """Refuse all further calls and return those who waited; tokens already held stay valid."""
        cdef list left = [waiter for waiter in self.parked if waiter is not None]
        self.closed = True
        for waiter in left:
            self.remove(waiter, waiter.index, waiter.priority)
        return left

    @property
    def held(self):
        """Tokens held now."""
        return self.capacity - self.a.free_slots

    @property
    def free(self):
        """Tokens free now, reserved ones included."""
        return self.a.free_slots

    def __len__(self):
        return self.capacity - self.a.free_slots

    def check(self):
        """Recount everything; AssertionError if an invariant is broken."""
        cdef int32_t i, held = 0, waiting = 0, unfilled = 0, short
        cdef bint broken = arena_check(&self.a) != 0
        bug = "; this is a bug in relay"
        for i in range(self.groups):
            broken |= heap_check(&self.heaps[i]) != 0
            held += self.held_by[i]
            waiting += self.heaps[i].size
            short = max(0, self.floor[i] - self.held_by[i])
            broken |= short != self.unfilled[i]
            unfilled += short
        if broken or unfilled != self.unfilled_total or self.a.free_slots < unfilled:
            raise AssertionError("reserved tokens miscounted" + bug)
        if held != self.capacity - self.a.free_slots:
            raise AssertionError("held tokens miscounted" + bug)
        if not sum([waiter is not None for waiter in self.parked]) == self.waiting == waiting:
            raise AssertionError("waiters miscounted" + bug)
        if self.waiting + self.n_idle != self.max_waiting:
            raise AssertionError("waiter places miscounted" + bug)
        if self.next_waiter(self.a.free_slots) >= 0:
            raise AssertionError("an eligible waiter waits beside a free token" + bug)

    def _deliver(self, waiter):
        return True

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

    cdef inline int give_back(self, Token token) except -1:
        if self.waiting:
            return self.hand_on(token)
        if not arena_release(&self.a, token.lease):
            raise stale_token("release")
        self.count(self.group[token.priority], -1)
        return 0

    cdef int hand_on(self, Token token) except -1:
        # To the next waiter who wakes.
        cdef int32_t index
        cdef int level
        cdef bint strict = True
        cdef Token given
        while True:
            given = Token.__new__(Token)
            if not arena_live(&self.a, token.lease):
                if strict:
                    raise stale_token("release")
                return 0
            self.count(self.group[token.priority], -1)
            index = self.next_waiter(self.a.free_slots + 1)
            if index < 0:
                arena_release(&self.a, token.lease)
                return 0
            waiter = self.parked[index]
            level = waiter.priority
            given.permits = self
            given.priority = level
            given.lease = arena_hand_over(&self.a, token.lease)
            self.count(self.group[level], 1)
            self.granted += 1
            self.remove(waiter, index, level)
            waiter.token = given
            if self._deliver(waiter):
                return 0
            token = given
            strict = False  # the one who never wakes may yet be finalised, and have released it itself

    cdef int32_t next_waiter(self, int32_t free) noexcept:
        cdef int32_t best = -1, i
        cdef int64_t best_key = 0, key
        cdef Heap* heap
        if not self.waiting:
            return best
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
