# A part of tickets.pyx: the short way of a request that has at most a priority and a deadline, from the item to its place,
# and the wait of a thread that is to have the answer, as `relay._pure._asking`.

cdef int64_t NS = 1_000_000_000
cdef double LONGEST_S = 4611686018.0      # a longer deadline is none
cdef int64_t LATEST_NS = <int64_t>1 << 62     # later than this a time and a deadline may be more than 64 bits
TOO_LATE = (
    "by prediction the answer would come {:.3g} s from now, and the deadline is {:.3g} s; retry later, give it more "
    "time, or a more urgent priority"
)


cdef class DeskBase:
    """DeskBase()
--

"""
    def __init__(self):
        self.open = set()
        self.crew = set()
        self._idle_watchers = []
        self.arm = bool

    def open_short_way(
        self, ticket, Door queue not None, now_ns, size, most_size, tier, usual, time_bits, step_bits, allowances_ns
    ):
        """Has `enter` admit requests."""
        cdef int i
        self.kind = ticket
        self.door = queue
        self.now_ns = now_ns
        self.size_of = size
        self.limited = most_size is not None
        self.most_size = to_int64("most_size", most_size) if self.limited else 0
        self.tier = tier
        self.usual = to_int64("usual", usual)
        self.time_bits = to_int64("time_bits", time_bits)
        self.step_bits = to_int64("step_bits", step_bits)
        allowances = tuple(allowances_ns)
        if len(allowances) != 256:
            raise ValueError(f"a policy's allowance_ns must name all 256 priorities, got {len(allowances)}")
        for i in range(256):
            self.allowances_ns[i] = to_int64("an allowance", allowances[i])
        self.short = True

    def enter(self, item, priority=None, deadline=None):
        """A ticket with a place for an item, or None."""
        return self.admitted(item, priority, deadline)

    def cancel(self, ticket):
        """End one waiter's request."""
        raise NotImplementedError

    def withdraw(self, tickets):
        """Forget tickets that were entered as open and never admitted."""
        raise NotImplementedError

    def too_late(self, int64_t deadline_ns, int64_t ends_ns, int64_t now_ns, int64_t count=1):
        """Counts and describes a refusal by prediction."""
        self.refused_late += count
        text = Text((TOO_LATE, <double>(ends_ns - now_ns) / NS, <double>(deadline_ns - now_ns) / NS))
        # As its constructor, which is Python and takes half of the time of a refusal.
        error = Overloaded.__new__(Overloaded, text)
        error.reason = "predicted_late"
        error.retry_after = <double>(ends_ns - deadline_ns) / NS
        return error

    def _send_away(self, owner):
        raise NotImplementedError

    cdef object admitted(self, object item, object priority, object deadline):
        cdef TicketBase ticket
        cdef int64_t level = self.usual, size = 1, arrival_ns, due_ns, first_ns, deadline_ns = -1, limit_ns = -1, handle
        if not self.short or self.refusing or not self.started or self.room.waiting:
            return None
        if priority is not None:
            level = self.tier(priority)
        if level < self.urgent_below:
            return None
        if deadline is not None:
            if type(deadline) is not float and type(deadline) is not int:
                return None
            if not 0 < deadline < LONGEST_S:
                return None
            if type(deadline) is int:
                limit_ns = <int64_t>deadline * NS
            else:
                limit_ns = max(<int64_t>(<double>deadline * NS), <int64_t>1)
        if self.door.is_full():
            return None
        if self.size_of is not None:
            size = to_int64("size", self.size_of(item))
            if self.limited and size > self.most_size:
                return None
        arrival_ns = relay_monotonic_ns() if self.now_ns is monotonic_ns else -1
        if arrival_ns < 0:
            arrival_ns = to_int64("now_ns", self.now_ns())
        if arrival_ns > LATEST_NS:
            return None
        due_ns = first_ns = arrival_ns + self.allowances_ns[level]
        if limit_ns > 0:
            deadline_ns = arrival_ns + limit_ns
            first_ns = min(due_ns, deadline_ns)
            if self.predict_ns is not None:
                ends_ns = self.predict_ns(self.door.up_to(level), size, arrival_ns)
                if ends_ns > deadline_ns:
                    raise self.too_late(deadline_ns, ends_ns, arrival_ns)
        ticket = <TicketBase>TicketBase.__new__(self.kind)
        ticket.fill(self, item, level, arrival_ns)
        ticket.size, ticket._deadline_ns = size, deadline_ns
        self.open.add(ticket)
        if self.refusing:
            self.withdraw((ticket,))
            return None
        try:
            handle = self.door.admit_one(
                ticket, level << self.time_bits | first_ns >> self.step_bits, arrival_ns, deadline_ns, size,
                <int32_t>level, due_ns,
            )
        except BaseException:
            self.withdraw((ticket,))
            raise
        if handle < 0:
            self.withdraw((ticket,))
            return None
        ticket._handle = handle
        if deadline_ns >= 0:
            try:
                self.arm(deadline_ns)
            except BaseException:
                self.cancel(ticket)
                raise
        if self.closed:
            self._send_away(ticket)
        return ticket


def ask(relay, item, priority=None, deadline=None):
    """Blocks for the answer of an item."""
    cdef DeskBase desk = relay._desk
    cdef object found = desk.admitted(item, priority, deadline)
    cdef TicketBase ticket
    if found is None:
        return relay._call(item, None, priority, deadline)
    ticket = <TicketBase>found
    if not ticket._done:
        # Not on a loop, nor on a thread that the answer may need.
        if running_loop() is not None or PyThread_get_thread_ident() in desk.crew:
            return relay._call(item, ticket, priority, deadline)
        try:
            waited(ticket, None if desk.monotonic else desk.clock, None)
        except BaseException:
            ticket.cancel()
            raise
    if ticket._error is None:
        return ticket._value
    if isinstance(ticket._error, Overloaded):
        return relay._call(item, ticket, priority, deadline)
    raise ticket._error
