# A part of permits.pyx: what `acquire_async` returns, as `relay._pure._acquire`. No `async def`: it is driven through
# the slots of its type, so that a token that is free costs no future, no exception and no look at the loop.

cdef enum:
    FRESH = 0
    GOING = 1
    WAITING = 2
    OVER = 3


cdef extern from *:
    unsigned long PyThread_get_thread_ident()


cdef bint runs_here(object loop) except -1:
    # Whether a loop runs on this thread. asyncio's own say where they run; to ask which loop runs is a system call.
    try:
        thread = loop._thread_id
    except AttributeError:
        return running_loop() is loop
    return thread is not None and <unsigned long>thread == PyThread_get_thread_ident()


cdef object plain_loop = None       # the last type of loop whose futures are made as asyncio's own makes them

cdef object new_future(object loop):
    global plain_loop
    if type(loop) is not plain_loop:
        if type(loop).create_future is not BaseEventLoop.create_future:
            return loop.create_future()
        plain_loop = type(loop)
    return Future(loop=loop)


# From no free list: an object that comes from one counts as finalised already, and would leave the line with no one told.
cdef class Acquire:
    """Acquire(permits, priority=1, timeout=None, cost=1, tenant=None, heartbeat=None, arrival_ns=-1)
--

A coroutine that ends with a token, and the waiter as well: the pool writes its place and its token."""

    cdef Ledger permits
    cdef object priority
    cdef object timeout
    cdef object cost
    cdef object tenant
    cdef object heartbeat
    cdef object future
    cdef public object token
    cdef public object loop
    cdef public int32_t index
    cdef public int32_t place       # where its time limit is noted: written by the pool
    cdef int64_t arrival_ns
    cdef int stage
    cdef bint asked                 # it may stand in line
    cdef bint armed
    cdef object __weakref__         # whoever notes a wait must not keep its coroutine

    def __init__(
        self, Ledger permits not None, priority=1, timeout=None, cost=1, tenant=None, heartbeat=None, arrival_ns=-1
    ):
        self.begin(permits, priority, timeout, cost, tenant, heartbeat)
        self.arrival_ns = to_int64("arrival_ns", arrival_ns)

    @final
    cdef inline void begin(self, Ledger permits, priority, timeout, cost, tenant, heartbeat) noexcept:
        self.permits = permits
        self.priority = priority
        self.timeout = timeout
        self.cost = cost
        self.tenant = tenant
        self.heartbeat = heartbeat
        self.index = self.place = -1
        self.arrival_ns = -1

    def __await__(self):
        if self.stage == OVER:
            raise RuntimeError("this wait is over already; call acquire_async() for each token")
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        """Go on."""
        result = self.step()
        if self.stage == OVER:
            raise StopIteration(result)
        return result

    def throw(self, *error):
        """Go on with an error."""
        meant = thrown(error)
        self.end()
        raise meant

    def close(self):
        """End it."""
        self.end()

    def __del__(self):
        if self.stage == WAITING:
            self.end()

    def wake(self):
        """Let it go on, from any thread. False if its loop is closed, so that it never will."""
        return self.rouse()

    def _finish(self):
        self.finish()

    @final
    cdef int finish(self) except -1:
        if self.future is not None:
            try:
                self.future.set_result(None)
            except InvalidStateError:
                pass    # woken before, or cancelled
        return 0

    @final
    cdef bint rouse(self) except -1:
        try:
            if runs_here(self.loop):
                self.finish()
            else:
                self.loop.call_soon_threadsafe(self._finish)
        except Exception:
            if not self.loop.is_closed():
                raise       # an error of the moment: the pool tries again
            return False
        return True

    @final
    cdef object step(self):
        # The token, and it is over; or the future to wait for.
        cdef Permits permits = <Permits>self.permits
        if self.stage == GOING:
            raise ValueError("generator already executing")
        if self.stage == OVER:
            return None
        try:
            if self.stage == FRESH:
                self.stage = GOING
                if not permits.waiting and self.heartbeat is None and at_once(self.timeout):
                    token = permits.try_for(self.priority, self.cost, self.tenant, NO_BEATS)
                    if token is not None:
                        self.stage = OVER
                        return token
                token = self.join(permits)
                if self.stage == WAITING:
                    return self.future
            else:
                self.stage = GOING
                if self.token is None:
                    self.future.result()    # raises if it was cancelled
                token = permits.leave_for(self) if self.token is None else self.token
        except BaseException:
            self.stage = OVER
            if self.asked:
                self.give_up()
            raise
        self.stage = OVER
        if self.armed or permits.custom:
            self.armed = False
            permits._left(self)
        if token is None:
            raise permits._empty_handed(self.priority, self.timeout)
        if permits.traced:
            permits._trace(token)
        return token

    @final
    cdef object join(self, Permits permits):
        # A token, or None: then it stands in line, and waits, or it will get none.
        cdef int64_t limit_ns = -1 if self.timeout is None else permits._limit_ns(self.timeout)
        beats_ns = NO_BEATS if self.heartbeat is None else permits._beats_ns(self.heartbeat)
        self.loop = current_loop()
        self.future = new_future(self.loop)
        self.asked = True
        if limit_ns == 0:
            return permits.try_for(self.priority, self.cost, self.tenant, beats_ns)
        if permits.custom:
            token = permits._join(self, self.priority, self.cost, self.tenant, beats_ns, self.arrival_ns)
        else:
            token = permits.join_for(
                self.priority, None, self, self.cost, self.tenant, beats_ns, self.arrival_ns
            )
            if self.index == NO_PLACE_:
                permits._refuse(level_of(self.priority), self.cost)
        if token is not None:
            return token
        if limit_ns > 0:
            permits._arm(self, limit_ns)
            self.armed = True
        if (self.index < 0 or self.armed or permits.custom) and self.future.done():
            return permits.leave_for(self)      # a hook ran meanwhile, and others
        self.future._asyncio_future_blocking = True
        self.stage = WAITING
        return None

    @final
    cdef int end(self) except -1:
        cdef bint waits = self.stage == WAITING
        if self.stage == GOING:
            raise ValueError("generator already executing")
        self.stage = OVER
        if waits:
            self.give_up()
        return 0

    @final
    cdef int give_up(self) except -1:
        # Leave the line, and let go of what was granted meanwhile.
        try:
            self.permits.abandon_now(self)
        finally:
            if self.armed or self.permits.custom:
                self.armed = False
                self.permits._left(self)
        return 0


Coroutine.register(Acquire)


# In the type's slots: what the interpreter and asyncio call instead of send() and __next__(). A StopIteration is raised
# in the short form, without an object of its own, as those of coroutines are.

cdef int acquire_send(object self, object value, PyObject** result) except -1:
    cdef object found = (<Acquire>self).step()
    Py_INCREF(found)
    result[0] = <PyObject*>found
    return 1 if (<Acquire>self).stage == WAITING else 0


cdef PyObject* acquire_next(object self) except NULL:
    cdef object found = (<Acquire>self).step()
    if (<Acquire>self).stage == WAITING:
        Py_INCREF(found)
        return <PyObject*>found
    PyErr_SetObject(StopIteration, found)
    return NULL


relay_set_slots(<PyObject*>Acquire, <void*>acquire_send, <void*>acquire_next)
