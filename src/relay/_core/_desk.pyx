# A part of tickets.pyx: the short way of a request that asks for nothing special, from the item to a ticket with a place,
# and the wait of a thread that is to have the answer, as `relay._pure._asking`.

cdef class DeskBase:
    """DeskBase()
--

"""
    def __init__(self):
        self.open = set()
        self.crew = set()
        self._idle_watchers = []

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


def ask(relay, item):
    """Blocks for the answer of an item without keywords."""
    cdef DeskBase desk = relay._desk
    cdef object found = desk.admitted(item)
    cdef TicketBase ticket
    if found is None:
        return relay._call(item)
    ticket = <TicketBase>found
    if not ticket._done:
        # Not on a loop, nor on a thread that the answer may need.
        if running_loop() is not None or PyThread_get_thread_ident() in desk.crew:
            return relay._call(item, ticket)
        try:
            waited(ticket, None if desk.monotonic else desk.clock, None)
        except BaseException:
            ticket.cancel()
            raise
    if ticket._error is None:
        return ticket._value
    if isinstance(ticket._error, Overloaded):
        return relay._call(item, ticket)
    raise ticket._error
