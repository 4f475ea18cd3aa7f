# A part of tickets.pyx: what `run_async` returns, as `relay._pure._asking`. No `async def`: it is the waiter itself.

cdef extern from "Python.h":
    int PyIter_Send(object iterator, object value, PyObject** result) except -1

cdef enum:
    FRESH = 0
    GOING = 1
    WAITING = 2
    ELSEWHERE = 3       # another coroutine goes on in its place
    OVER = 4

cdef class DeskBase:
    """DeskBase()
--

"""
    # Every field: written by the desk or those who serve it, read by anyone; each access is one step.
    cdef public set open
    cdef public object room
    cdef public bint refusing
    cdef public bint closed
    cdef public bint forked
    cdef public bint started
    cdef public int64_t urgent_below
    # The rest: written once.
    cdef bint short
    cdef bint limited
    cdef object kind
    cdef Door door
    cdef object now_ns
    cdef object size_of
    cdef int64_t most_size
    cdef int64_t level
    cdef int64_t key_base
    cdef int64_t key_shift
    cdef int64_t allowance_ns

    def __init__(self):
        self.open = set()

    def open_short_way(
        self, ticket, Door queue not None, now_ns, size, most_size, level, key_base, key_shift, allowance_ns
    ):
        """Has `enter` admit requests."""
        self.kind = ticket
        self.door = queue
        self.now_ns = now_ns
        self.size_of = size
        self.limited = most_size is not None
        self.most_size = to_int64("most_size", most_size) if self.limited else 0
        self.level = to_int64("level", level)
        self.key_base = to_int64("key_base", key_base)
        self.key_shift = to_int64("key_shift", key_shift)
        self.allowance_ns = to_int64("allowance_ns", allowance_ns)
        self.short = True

    def enter(self, item):
        """A ticket with a place for an item without keywords, or None."""
        return self.admitted(item)

    def _send_away(self, owner):
        raise NotImplementedError

    @final
    cdef object admitted(self, object item):
        cdef TicketBase ticket
        cdef int64_t size = 1, arrival_ns, due_ns, handle
        if not self.short or self.refusing or not self.started or self.level < self.urgent_below or self.room.waiting:
            return None
        if self.size_of is not None:
            size = to_int64("size", self.size_of(item))
            if self.limited and size > self.most_size:
                return None
        arrival_ns = relay_monotonic_ns() if self.now_ns is monotonic_ns else -1
        if arrival_ns < 0:
            arrival_ns = to_int64("now_ns", self.now_ns())
        ticket = <TicketBase>TicketBase.__new__(self.kind)
        ticket.fill(self, item, self.level, arrival_ns)
        ticket.size = size
        due_ns = arrival_ns + self.allowance_ns
        self.open.add(ticket)
        try:
            handle = self.door.admit_one(
                ticket, self.key_base | due_ns >> self.key_shift, arrival_ns, size, <int32_t>self.level, due_ns
            )
        except BaseException:
            self.open.discard(ticket)
            raise
        if handle < 0:
            self.open.discard(ticket)
            return None
        ticket._handle = handle
        if self.closed:
            self._send_away(ticket)
        return ticket


cdef class Asking:
    """Asking(relay, item)
--

A coroutine that ends with the answer."""

    cdef object relay
    cdef object item
    cdef object loop
    cdef object future
    cdef object inner           # who goes on, ELSEWHERE
    cdef TicketBase ticket
    cdef int stage
    cdef object __weakref__

    def __init__(self, relay, item):
        self.relay = relay
        self.item = item

    @property
    def __name__(self):
        return "run_async"

    @property
    def __qualname__(self):
        return "Relay.run_async"

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        """Go on."""
        result = self.step(value)
        if self.stage == OVER:
            raise StopIteration(result)
        return result

    def throw(self, *error):
        """Go on with an error."""
        if self.stage == ELSEWHERE:
            try:
                return self.inner.throw(*error)
            except BaseException:
                self.stage = OVER
                self.inner = None
                raise
        meant = thrown(error)
        if self.stage == OVER:
            raise RuntimeError("cannot reuse already awaited coroutine")
        ticket = self.end()
        if ticket is not None and isinstance(meant, CancelledError):
            ticket.cancel()
        raise meant

    def close(self):
        """End it. The request goes on."""
        if self.stage == ELSEWHERE:
            self.stage = OVER
            inner, self.inner = self.inner, None
            inner.close()
        elif self.stage != OVER:
            self.end()

    def __del__(self):
        if self.stage == FRESH:
            if not is_finalizing():
                warn("coroutine 'Relay.run_async' was never awaited", RuntimeWarning, 1)
        elif self.stage == WAITING:
            self.future = None      # nobody waits for it
            self.end()

    @final
    cdef TicketBase end(self):
        # The ticket it waited for, or None.
        cdef TicketBase ticket = self.ticket if self.stage == WAITING else None
        cdef object future = self.future
        if self.stage == GOING:
            raise ValueError("coroutine already executing")
        self.stage = OVER
        self.let_go()
        if ticket is not None:
            ticket.detach(self)
            if future is not None and not future.done():
                future.set_result(None)     # for a task that waits, and was not the one to end this
        return ticket

    @final
    cdef object step(self, object value):
        # What to wait for; or the answer, and it is over.
        cdef TicketBase ticket
        if self.stage == GOING:
            raise ValueError("coroutine already executing")
        if self.stage == OVER:
            raise RuntimeError("cannot reuse already awaited coroutine")
        if self.stage == FRESH and value is not None:
            raise TypeError("can't send non-None value to a just-started coroutine")
        if self.stage == WAITING and not self.ticket._done and not self.future.done():
            raise RuntimeError("coroutine is being awaited already")
        try:
            if self.stage == FRESH:
                self.stage = GOING
                self.loop = current_loop()
                found = (<DeskBase?>self.relay._desk).admitted(self.item)
                if found is None:
                    return self.elsewhere(self.relay._answer(self.item))
                ticket = self.ticket = <TicketBase>found
                self.future = new_future(self.loop)
                if ticket.attach_only(self):
                    self.future._asyncio_future_blocking = True
                    self.stage = WAITING
                    return self.future
            elif self.stage == ELSEWHERE:
                return self.go_on(value)
            else:
                self.stage = GOING
                ticket = self.ticket
                if not ticket._done:
                    ticket.detach(self)
                    try:
                        answer = self.future.result()       # somebody else has ended it
                    except CancelledError:
                        ticket.cancel()
                        raise
                    self.stage = OVER
                    self.let_go()
                    return answer
            if ticket._error is None:
                answer = ticket._value
            elif isinstance(ticket._error, Overloaded):
                return self.elsewhere(self.relay._persist(ticket, self.item))
            else:
                raise ticket._error
        except BaseException:
            self.stage = OVER
            self.let_go()
            raise
        self.stage = OVER
        self.let_go()
        return answer

    @final
    cdef inline void let_go(self) noexcept:
        self.relay = self.item = self.future = self.loop = self.ticket = self.inner = None

    @final
    cdef object elsewhere(self, object coroutine):
        self.inner = coroutine
        return self.go_on(None)

    @final
    cdef object go_on(self, object value):
        cdef PyObject* result = NULL
        cdef object found, inner = self.inner
        cdef int status
        self.stage = GOING
        status = PyIter_Send(inner, value, &result)
        found = <object>result
        Py_DECREF(found)
        if status == 0:
            self.stage = OVER
            self.let_go()
        else:
            self.stage = ELSEWHERE
        return found

    @final
    cdef int wake(self) except -1:
        if self.future is not None:
            try:
                self.future.set_result(None)
            except InvalidStateError:
                pass    # cancelled
        return 0


Coroutine.register(Asking)


cdef int asking_send(object self, object value, PyObject** result) except -1:
    cdef object found = (<Asking>self).step(value)
    Py_INCREF(found)
    result[0] = <PyObject*>found
    return 0 if (<Asking>self).stage == OVER else 1

cdef PyObject* asking_next(object self) except NULL:
    cdef object found = (<Asking>self).step(None)
    if (<Asking>self).stage != OVER:
        Py_INCREF(found)
        return <PyObject*>found
    if isinstance(found, (tuple, BaseException)):
        found = StopIteration(found)        # or it would be taken for the arguments of one
    PyErr_SetObject(StopIteration, found)
    return NULL


relay_set_slots(<PyObject*>Asking, <void*>asking_send, <void*>asking_next)
