# A part of tickets.pyx: where threads wait for answers.
#
# Threads that are woken all at once would only wait for the interpreter one by one, and each fall asleep twice. So two
# are, and each wakes the next but one when it has the interpreter; it is done with it when that one comes. The main
# thread wakes nobody: it may be in a signal's handler for a while.

cdef list spare_gates = []      # closed


cdef class Gate:
    def __cinit__(self):
        self.lock = allocate_lock()
        self.shut, self.open = self.lock.acquire, self.lock.release
        self.shut()

    def __call__(self):
        self.let_by()

    cdef int let_by(self) except -1:
        try:
            self.open()
        except RecursionError:
            raise           # it is a RuntimeError as well
        except RuntimeError:
            pass            # a clock has opened it in this moment
        return 0

    cdef int pass_on(self) except -1:
        cdef Gate after = self.next
        if after is not None:
            self.next = None
            after.let_by()
        return 0

    cdef bint comes(self, double seconds) except -1:
        # Wait to be opened; for the last of a row.
        return self.lock.acquire(True, seconds)


cdef bint waited(TicketBase ticket, object clock, object until_ns) except -1:
    # `wait`; None for the monotonic clock.
    cdef Gate gate = <Gate>(spare_gates.pop() if clock is None and spare_gates else Gate())
    gate.alone = PyThread_get_thread_ident() == <unsigned long>main_thread().ident
    ticket.attach(gate)
    try:
        if clock is None:
            arrived = gate.shut()
        else:
            arrived = clock.park(gate.lock, until_ns)
    except BaseException:
        leave(ticket, gate)
        raise
    if not arrived:
        return not leave(ticket, gate)
    gate.pass_on()
    if clock is None:
        spare_gates.append(gate)    # another clock may have opened it twice
    return True


cdef bint leave(TicketBase ticket, Gate gate) except -1:
    # Whether whoever has ended the ticket has not taken it yet.
    gate.left = True
    gate.pass_on()
    return ticket.detach(gate)


def wait(TicketBase ticket not None, clock, until_ns):
    """Blocks until a ticket has ended. False if the time came first."""
    desk = ticket._desk
    return waited(
        ticket, None if until_ns is None and isinstance(desk, DeskBase) and (<DeskBase>desk).monotonic else clock, until_ns
    )


cdef Py_ssize_t open_gates(Replies replies, Gate end) except -1:
    # How many there are in the row, if `end` stands at its end.
    cdef list gates = replies.gates
    cdef Gate gate, first = None, second = None, before = None, last = None
    cdef Py_ssize_t count = 0
    replies.gates = None
    for waiter in gates:        # nothing is called in here, so nobody leaves meanwhile
        gate = <Gate>waiter
        if gate.left or gate.alone:
            continue
        if first is None:
            first = gate
        elif second is None:
            second = gate
        else:
            before.next = gate
        before, last = last, gate
        count += 1
    if end is not None and count > 2:
        last.next = end
    if first is not None:
        first.let_by()
    if second is not None:
        second.let_by()
    for waiter in gates:
        if (<Gate>waiter).alone:
            (<Gate>waiter).let_by()
    return count if end is not None and count > 2 else 0
