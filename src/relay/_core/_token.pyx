# A part of permits.pyx: what a pool hands out, and the checks on what it is asked for, as `relay._pure._token`.

def owner():
    """Who runs now, as an int: the same for a task, or a thread outside of tasks, as long as it runs."""
    return (relay_context() if running_loop() is not None else 0) or relay_thread()


def stale_token(action):
    return StaleToken(
        f"cannot {action} this token: its lease has ended (released before, or taken back); acquire a new one"
    )


def check_priority(priority):
    if isinstance(priority, str):
        if priority.lower() not in NAMES:
            raise ValueError(
                f"unknown priority {priority!r}; use one of {', '.join(NAMES)}, or a number from 0 to {MAX_PRIORITY}"
            )
        return NAMES[priority.lower()]
    level = whole(priority)
    if level is None:
        raise TypeError(f"priority must be an int from 0 to 255 or a name, got {type(priority).__name__}")
    if not 0 <= level <= 255:
        raise ValueError(f"priority must be from 0 to {MAX_PRIORITY}, got {level}")
    return level


cdef int32_t size_of(str name, object value, int least) except -1:
    cdef int64_t size = to_int64(name, value)
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


cdef inline object name_of(object tenant):
    # As an exact str, whose comparison runs no Python code, or None.
    if tenant is None or PyUnicode_CheckExact(tenant):
        return tenant
    if not isinstance(tenant, str):
        raise TypeError(f"tenant must be a str or None, got {type(tenant).__name__}")
    return str.__str__(tenant)


cdef inline int64_t beats_of(Books pool, object heartbeat_ns) except? -2:
    if heartbeat_ns is NO_BEATS or heartbeat_ns == -1:
        return pool.heartbeat_ns
    return to_int64("heartbeat_ns", heartbeat_ns)


cdef inline int64_t later(int64_t now_ns, int64_t by_ns) noexcept nogil:
    return now_ns + by_ns if by_ns < FOREVER_NS - now_ns else FOREVER_NS


cdef inline bint at_once(object timeout) except -1:
    # Whether it is a time limit that needs no looking at, if a token is free.
    return timeout is None or ((type(timeout) is float or type(timeout) is int) and timeout >= 0)


cdef inline int set_index(object waiter, int32_t index) except -1:
    if isinstance(waiter, Acquire):
        (<Acquire>waiter).index = index
    else:
        waiter.index = index
    return 0


cdef list shrunk(list floors, int64_t base, int64_t capacity):
    # The floor of each group at a capacity, that of the first, which has none, included.
    counts = [0] + [count for _, count in floors]
    if capacity >= base:
        return counts
    found = [count * capacity // base for count in counts]
    spare = (2 * sum(counts) * capacity + base) // (2 * base) - sum(found)
    remainders = sorted([(-(count * capacity % base), group) for group, count in enumerate(counts)])
    for _, group in remainders[:spare]:
        found[group] += 1
    return found


cdef class Books
cdef class Ledger
cdef class Acquire


@no_gc          # refers to its pool and a str, and no pool refers to its tokens, so it is in no cycle of relay's making
@freelist(256)
cdef class Token:
    """Token(permits, handle, priority, cost=1, tenant=None, epoch=0)
--

A permit to use compute: the lease of one slot of a pool, and a context manager that ends it."""

    cdef Ledger permits             # keeps the pool alive while it has tokens out; None if made by no pool
    cdef int64_t lease              # slot and generation
    cdef bint owns
    cdef readonly int priority
    cdef readonly int32_t cost
    cdef readonly object tenant
    cdef readonly int64_t epoch

    def __init__(self, Ledger permits not None, handle, priority, cost=1, tenant=None, epoch=0):
        self.priority = level_of(priority)
        self.lease = to_int64("handle", handle)
        self.cost = size_of("cost", cost, 1)
        self.tenant = name_of(tenant)
        self.epoch = to_int64("epoch", epoch)
        self.permits = permits

    @property
    def handle(self):
        """The slot and the lease it was given for, as one int; grows with every lease of a slot."""
        return self.lease

    @property
    def held(self):
        """True until the lease ends."""
        return self.permits is not None and arena_live(&self.permits.a, self.lease)

    @property
    def state(self):
        """"busy"; "revoked" when it has been asked back; "released" when the lease has ended."""
        if self.permits is None or not arena_live(&self.permits.a, self.lease):
            return "released"
        return "busy" if state_bits(state_load(&self.permits.a.word[state_slot(self.lease)])) == BUSY else "revoked"

    def release(self):
        """Give the token back. If somebody waits, it is theirs when this returns."""
        if self.permits is None:
            raise stale_token("release")
        self.permits.give_back(self)

    def heartbeat(self):
        """Say that the holder is alive; needed only where the lease was asked for with ``heartbeat=``."""
        if self.permits is None:
            raise stale_token("beat for")
        (<object>self.permits).beat(self)

    def __enter__(self):
        if not self.held:
            raise stale_token("use")
        return self

    def __exit__(self, *error):
        if self.permits is None:
            raise stale_token("release")
        self.permits.leave_block(self, error[0] if error else None)

    def __dealloc__(self):
        if self.owns:
            self.permits.throw_away(self.lease)

    def __repr__(self):
        return f"<Token priority={self.priority} {self.state}>"
