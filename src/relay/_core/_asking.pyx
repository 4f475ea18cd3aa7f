# A part of tickets.pyx: what `run_async` returns, as `relay._pure._asking`. No `async def`: it is the waiter itself.

cdef extern from "Python.h":
    int PyIter_Send(object iterator, object value, PyObject** result) except -1

cdef enum:
    FRESH = 0
    GOING = 1
    WAITING = 2
    ELSEWHERE = 3       # another coroutine goes on in its place
    OVER = 4


cdef class Asking:
    """Asking(relay, item, priority=None, deadline=None)
--

A coroutine that ends with the answer."""

    def __init__(self, relay, item, priority=None, deadline=None):
        self.relay = relay
        self.item = item
        self.priority = priority
        self.deadline = deadline

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
            self.waits = None       # nobody waits for it
            self.end()

    cdef TicketBase end(self):
        # The ticket it waited for, or None.
        cdef TicketBase ticket = self.ticket if self.stage == WAITING else None
        cdef Waiting waits = self.waits
        if self.stage == GOING:
            raise ValueError("coroutine already executing")
        self.stage = OVER
        self.let_go()
        if ticket is not None:
            ticket.detach(self)
            if waits is not None and not waits.over:
                try:
                    waits.end_later()   # for a task that waits, and was not the one to end this
                except RuntimeError:
                    pass                # its loop has closed
        return ticket

    cdef object step(self, object value):
        # What to wait for; or the answer, and it is over.
        cdef TicketBase ticket
        cdef Waiting waits
        cdef int64_t answered = -1
        if self.stage == GOING:
            raise ValueError("coroutine already executing")
        if self.stage == OVER:
            raise RuntimeError("cannot reuse already awaited coroutine")
        if self.stage == FRESH and value is not None:
            raise TypeError("can't send non-None value to a just-started coroutine")
        if self.stage == WAITING and not self.ticket._done and not self.waits.over:
            raise RuntimeError("coroutine is being awaited already")
        try:
            if self.stage == FRESH:
                self.stage = GOING
                self.loop = current_loop()
                found = (<DeskBase?>self.relay._desk).admitted(self.item, self.priority, self.deadline, &answered)
                if answered >= 0:
                    self.stage = OVER       # whoever has awaited this drops it next, and it all that it holds
                    return found
                if found is None:
                    return self.elsewhere(self.relay._answer(self.item, self.priority, self.deadline))
                ticket = self.ticket = <TicketBase>found
                waits = self.waits = Waiting.__new__(Waiting)
                waits.loop = self.loop
                if ticket.attach_only(self):
                    waits._asyncio_future_blocking = True
                    self.stage = WAITING
                    return waits
            elif self.stage == ELSEWHERE:
                return self.go_on(value)
            else:
                self.stage = GOING
                ticket = self.ticket
                if not ticket._done:
                    ticket.detach(self)
                    waits = self.waits
                    try:
                        answer = waits.result()     # somebody else has ended it
                    except CancelledError:
                        ticket.cancel()
                        raise
                    self.stage = OVER
                    self.let_go()
                    return answer
            if ticket._error is None:
                answer = ticket._value
            elif isinstance(ticket._error, Overloaded):
                return self.elsewhere(self.relay._persist(ticket, self.item, self.priority))
            else:
                raise ticket._error
        except BaseException:
            self.stage = OVER
            self.let_go()
            raise
        self.stage = OVER
        self.let_go()
        return answer

    cdef void let_go(self) noexcept:
        self.relay = self.item = self.priority = self.deadline = self.waits = self.loop = self.ticket = self.inner = None

    cdef object elsewhere(self, object coroutine):
        self.inner = coroutine
        return self.go_on(None)

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


Coroutine.register(Asking)


def asking(relay, item, priority=None, deadline=None):
    """What `run_async` returns: an `Asking`."""
    cdef Asking made = Asking.__new__(Asking)   # whose constructor would take its arguments apart twice
    made.relay, made.item, made.priority, made.deadline = relay, item, priority, deadline
    return made


@freelist(16)
cdef class Answer:
    # What is awaited of a ticket that has ended: goes on at once.
    cdef TicketBase ticket

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration(self.take())

    cdef object take(self):
        if self.ticket._error is not None:
            raise self.ticket._error
        return self.ticket._value


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


cdef int answer_send(object self, object value, PyObject** result) except -1:
    cdef object found = (<Answer>self).take()
    Py_INCREF(found)
    result[0] = <PyObject*>found
    return 0

cdef PyObject* answer_next(object self) except NULL:
    found = (<Answer>self).take()
    if isinstance(found, (tuple, BaseException)):
        found = StopIteration(found)        # or it would be taken for the arguments of one
    PyErr_SetObject(StopIteration, found)
    return NULL


relay_set_slots(<PyObject*>Answer, <void*>answer_send, <void*>answer_next)
