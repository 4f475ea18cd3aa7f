# A part of tickets.pyx: the short way of a request that has at most a priority and a deadline, from the item to its place,
# and the wait of a thread that is to have the answer, as `relay._pure._asking`.

cdef int64_t NS = 1_000_000_000
cdef double LONGEST_S = 4611686018.0      # a longer deadline is none
cdef int64_t LATEST_NS = <int64_t>1 << 62     # later than this a time and a deadline may be more than 64 bits
TOO_LATE = (
    "by prediction the answer would come {:.3g} s from now, and the deadline is {:.3g} s; retry later, give it more "
    "time, or a more urgent priority"
)


cdef enum:
    SHORT = 1 << 16     # characters of a str that stands for itself without a question


cdef bint alike(object owner, object content, object who, int64_t epoch) except -1:
    # Whether the run of this ticket may be joined.
    cdef TicketBase leader
    if not isinstance(owner, TicketBase):
        return False
    leader = <TicketBase>owner
    return leader._epoch == epoch and leader._who is who and leader._content == content


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
        self, ticket, Door queue not None, now_ns, size, most_size, tier, usual, time_bits, step_bits, allowances_ns,
        admits
    ):
        """Has `enter` take requests."""
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
        self.admits = admits
        self.short = True

    def open_sharing(self, content_of not None, texts, ResultCache results, given not None, kept not None):
        """Has `enter` look for requests that are the same."""
        self.content_of, self.texts, self.results, self.given, self.kept = content_of, texts, results, given, kept

    def led(self, int64_t count=1):
        """Counts those who could have been shared and lead runs of their own."""
        self.misses += count

    def find_result(self, digest, content, who, now_ns):
        """What to hand out of a kept answer, and the size of the request that it was the first answer to; or None."""
        cdef uint64_t low, high
        cdef int64_t size = -1
        words_of("digest", digest, &low, &high)
        value = self.result(low, high, content, who, to_int64("now_ns", now_ns), &size)
        return (value, size) if size >= 0 else None

    def find_leader(self, queue, digest, content, who, epoch):
        """The handle and the ticket of the one whose run may be joined, or ``(-1, None)``."""
        handle, owner = queue.find(digest)
        return (handle, owner) if alike(owner, content, who, to_int64("epoch", epoch)) else (-1, None)

    cdef object result(self, uint64_t low, uint64_t high, object content, object who, int64_t now_ns, int64_t* size):
        # `size` stays as it is where there is none.
        if self.results is None:
            return None
        pair = self.results.find_native(low, high, content, who, now_ns)
        if pair is NOTHING:
            return None
        size[0] = (<tuple>pair)[1]
        value = (<tuple>pair)[0]
        return value if type(value) is str else self.given(value)

    cdef TicketBase to_join(self, uint64_t low, uint64_t high, object content, int64_t epoch, int64_t* handle):
        owner = self.door.leader(low, high, handle)
        return <TicketBase>owner if alike(owner, content, None, epoch) else None

    cdef object content(self, object item):
        if self.texts and type(item) is str and len(<str>item) <= SHORT:
            return item
        return self.content_of(item)

    def enter(self, item, priority=None, deadline=None):
        """A ticket with a place for an item, or None."""
        cdef int64_t answered = -1
        found = self.admitted(item, priority, deadline, &answered)
        return self.answer(priority, found, answered) if answered >= 0 else found

    def cancel(self, ticket):
        """End one waiter's request."""
        raise NotImplementedError

    def join(self, leader, handle, digest, follower):
        """Let a request share the run of another."""
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

    cdef object admitted(self, object item, object priority, object deadline, int64_t* answered):
        # A ticket with a place, or None; or the answer itself, if it is there: then `answered` becomes its size.
        cdef TicketBase ticket, leader = None
        cdef int64_t level = self.usual, size = 1, arrival_ns, due_ns, first_ns, deadline_ns = -1, limit_ns = -1
        cdef int64_t handle, other
        cdef int64_t epoch = self.epoch
        cdef uint64_t low = 0, high = 0
        cdef object content = None
        cdef bint bound = False
        if not self.short or self.refusing or not self.started:
            return None
        if priority is not None:
            level = self.tier(priority)
        if deadline is not None:
            if type(deadline) is not float and type(deadline) is not int:
                return None
            if not 0 < deadline < LONGEST_S:
                return None
            if type(deadline) is int:
                limit_ns = <int64_t>deadline * NS
            else:
                limit_ns = max(<int64_t>(<double>deadline * NS), <int64_t>1)
        if self.content_of is not None:
            content = self.content(item)
            bound = content is not None
        if bound:
            self.door.digest_of(content, 0, epoch, &low, &high)
            # An answer is kept before its run is closed, so who looks for the run first cannot miss both.
            leader = self.to_join(low, high, content, epoch, &handle)
            if leader is None and self.results is not None:
                value = self.result(low, high, content, None, self.now() if self.results.ttl_ns else 0, answered)
                if answered[0] >= 0:
                    return value
        arrival_ns = self.now()
        if arrival_ns > LATEST_NS:
            return None
        if limit_ns > 0:
            deadline_ns = arrival_ns + limit_ns
        if leader is not None:
            ticket = <TicketBase>TicketBase.__new__(self.kind)
            ticket.fill(self, item, level, arrival_ns)
            ticket._deadline_ns = deadline_ns
            if self.join(leader, handle, relay_int_from_words(low, high), ticket):
                return ticket
            value = self.result(low, high, content, None, arrival_ns, answered)   # it has just ended, or is full
            if answered[0] >= 0:
                return value
        if bound and self.texts and type(item) is not str and type(item) is not bytes and type(item) is not int:
            return None     # it may be changed before it is run
        if not self.admits or self.room.waiting or level < self.urgent_below or self.door.is_full():
            return None
        if self.size_of is not None:
            size = to_int64("size", self.size_of(item))
            if self.limited and size > self.most_size:
                return None
        due_ns = first_ns = arrival_ns + self.allowances_ns[level]
        if deadline_ns >= 0:
            first_ns = min(due_ns, deadline_ns)
            if self.predict_ns is not None:
                ends_ns = self.predict_ns(self.door.up_to(level), size, arrival_ns)
                if ends_ns > deadline_ns:
                    raise self.too_late(deadline_ns, ends_ns, arrival_ns)
        ticket = <TicketBase>TicketBase.__new__(self.kind)
        ticket.fill(self, item, level, arrival_ns)
        ticket.size, ticket._deadline_ns = size, deadline_ns
        if bound:
            ticket._content, ticket._epoch, ticket.low, ticket.high, ticket._followers = content, epoch, low, high, []
        self.open.add(ticket)
        if self.refusing:
            self.withdraw((ticket,))
            return None
        try:
            first_ns = level << self.time_bits | first_ns >> self.step_bits
            handle = self.door.admit_one(
                ticket, first_ns, arrival_ns, deadline_ns, size, <int32_t>level, due_ns, low, high, bound
            )
            if handle == TAKEN_:    # by somebody who came a moment ago, or has other content or enough followers
                leader = self.to_join(low, high, content, epoch, &other)
                if leader is not None and self.join(leader, other, relay_int_from_words(low, high), ticket):
                    ticket._content = ticket._followers = None
                    return ticket
        except BaseException:
            self.withdraw((ticket,))
            raise
        if handle < 0:
            self.withdraw((ticket,))
            return None
        ticket._handle = handle
        if bound:
            self.misses += 1
        if deadline_ns >= 0:
            try:
                self.arm(deadline_ns)
            except BaseException:
                self.cancel(ticket)
                raise
        if self.closed:
            self._send_away(ticket)
        return ticket


    cdef int64_t now(self) except -1:
        cdef int64_t now_ns = relay_monotonic_ns() if self.now_ns is monotonic_ns else -1
        return now_ns if now_ns >= 0 else to_int64("now_ns", self.now_ns())

    cdef TicketBase answer(self, object priority, object value, int64_t size):
        # A ticket that nobody knows yet, with its answer.
        cdef TicketBase ticket = <TicketBase>TicketBase.__new__(self.kind)
        ticket._desk = self
        ticket.priority = self.usual if priority is None else self.tier(priority)
        ticket._arrival_ns = self.now()
        ticket._value, ticket.size = value, size
        ticket._deadline_ns = ticket._handle = -1
        ticket._done = True
        return ticket


def ask(relay, item, priority=None, deadline=None):
    """Blocks for the answer of an item."""
    cdef DeskBase desk = relay._desk
    cdef int64_t answered = -1
    cdef object found = desk.admitted(item, priority, deadline, &answered)
    cdef TicketBase ticket
    if answered >= 0:
        return found
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
