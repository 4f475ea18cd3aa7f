# A part of lanes.pyx: the common course of a batch, as `relay._pure._running`.

cdef class BatchView:
    """BatchView(owners, items, params, version)
--

"""
    cdef public object _owners
    cdef public object _items
    cdef public object params
    cdef public object version

    def __init__(self, owners, items, params, version):
        self._owners = owners
        self._items = items
        self.params = params
        self.version = version


cdef enum:
    PAIR_BYTES = 88     # of a tuple of two, one of them a number


cdef class RunningBase:
    """RunningBase(station, now_ns)
--

"""
    cdef public StationBase _station
    cdef public list _handles
    cdef public list _owners
    cdef public list late
    cdef public object _splitter
    cdef public object _part
    cdef public object _call
    cdef public object _replies
    cdef public object argument
    cdef public dict keywords
    cdef public object current
    cdef public Run run
    cdef public int64_t size
    cdef public int64_t failures
    cdef public int64_t run_ns
    cdef public bint _open

    def __init__(self, station, now_ns):
        self.begin(station, to_int64("now_ns", now_ns))

    cdef int begin(self, StationBase station, int64_t now_ns) except -1:
        cdef Run run = Run.__new__(Run)
        run.committed_ns = run.started_ns = run.ended_ns = now_ns
        run.width = 1
        self._station = station
        self._handles, self._owners, self.late = [], [], []
        self.run = run
        self._open = True
        return 0

    def open(self):
        """Make the next call ready. False once every member has been answered."""
        return self.opened()

    cdef bint opened(self) except -1:
        while self._open:
            try:
                self.assemble()
                return True
            except BaseException as error:
                self.failed(error)
        return False

    cdef int assemble(self) except -1:
        cdef StationBase station = self._station
        cdef list owners = self._owners, handles = self._handles, items, given
        cdef dict keywords
        cdef BatchView view
        if self._part is not None:
            owners, handles = [owners[index] for index in self._part], [handles[index] for index in self._part]
        items = [(<TicketBase>owner)._item for owner in owners]
        given = [(<TicketBase>owner)._prepared for owner in owners] if station.prepared else items
        shared = (<TicketBase>owners[0])._params
        keywords = dict(shared.keywords) if shared is not None else {}
        if station.mixed:
            keywords = self._keywords_of(owners, keywords)
        self.keywords = keywords
        view = BatchView.__new__(station.view)
        view._owners, view._items, view.params, view.version = owners, items, keywords, station.version
        self.current = view
        self.argument = given if station.assembler is None else station.assembler.batch(handles, given, keywords)
        if "torch" in MODULES:
            self._about_to_call()
        self.run.started_ns = station.now()
        if station.run_limit_ns:
            self._watch(handles, owners, station.run_limit_ns)
        return 0

    def returned(self, output):
        """The model has returned."""
        self.finished(output)

    cdef int finished(self, object output) except -1:
        cdef StationBase station = self._station
        cdef Run run = self.run
        cdef int64_t run_ns
        if not self._open:
            return 0
        rows = output
        try:
            if type(output) is not list or len(<list>output) != run.size:
                rows = self._rows_of(output)
            if station.check_finite:
                rows = self._finite(output, rows)
        except BaseException as error:
            self.failed(error)
            return 0
        self.call_is_over()
        run_ns = run.ended_ns - run.started_ns
        if run_ns > self.run_ns:
            self.run_ns = run_ns
        if self._splitter is None:
            station.health.suspect = False
            if station.memory.limit:
                station.memory.succeeded(run.size, run.width)
            self._open = False
            self.answer(self._handles, self._owners, rows, run, ())
        else:
            self._splitter.succeeded(rows)
            self._go_on()
        station.ran(run.size, run.width, run.real, run_ns)
        return 0

    cdef int call_is_over(self) except -1:
        call, self._call = self._call, None
        if call is not None:
            self.failures += call.timed_out
        self.argument = None
        self.run.ended_ns = self._station.now()
        return 0

    cdef int answer(self, list handles, list owners, object rows, Run run, object sizes) except -1:
        cdef StationBase station = self._station
        cdef Replies replies
        cdef int64_t failed = 0
        if station.desk.forked:
            return 0
        if (<DeskBase>station.desk).results is not None:
            rows = self.keep(owners, rows, run.ended_ns)    # before they are closed: who comes then finds them
        self.close(handles)     # nobody enters a list of followers behind the loop below
        replies = Replies()
        try:
            for at in answered(owners, rows, run, replies, station.waits):
                failed += self._answer_one(owners[at], rows[at], sizes[at] if sizes else run.size, run, replies)
        finally:
            self._replies = replies     # whatever has come: who has ended is told
        station.batches.note(run, len(owners), failed, self._part is not None)
        return 0

    @boundscheck(True)      # the model has the list of rows, too
    cdef object keep(self, list owners, object rows, int64_t now_ns):
        cdef DeskBase desk = self._station.desk
        cdef ResultCache results = desk.results
        cdef TicketBase owner
        cdef Py_ssize_t index = 0
        cdef int64_t nbytes
        cdef list answers = None
        for owner in owners:
            who, content = owner._who, owner._content   # in this order, the reverse of letting go
            if content is not None:
                row = rows[index]
                found = None if PyExceptionInstance_Check(row) else desk.kept(row)
                if found is not None:
                    value = (<tuple>found)[0]
                    nbytes = (<int64_t>(<tuple>found)[1]) + <int64_t>content.__sizeof__() + PAIR_BYTES
                    if who is not None:
                        nbytes += <int64_t>who.nbytes
                    pair = value, owner.size
                    results.put_native(owner.low, owner.high, content, who, pair, nbytes, owner._epoch, now_ns)
                    if type(value) is type(row) and value is not row:
                        if answers is None:
                            answers = list(rows)    # which may be the model's own
                        answers[index] = value
            index += 1
        return rows if answers is None else answers

    cdef int64_t close(self, list handles) except -1:
        try:
            self._station.queue.end_leases(handles)
            return len(handles)
        except StaleToken:      # somebody has abandoned the batch
            return sum([self.close([handle]) for handle in handles]) if len(handles) > 1 else 0

    def send(self, loop=None):
        """Wake whom the last call has answered; on a loop's callback, or on a thread of its own."""
        self.told(loop, None)

    cdef Py_ssize_t told(self, object loop, Gate last) except -1:
        # How many threads are woken, if they are so many that `last` will be opened after them.
        cdef Replies replies = self._replies
        cdef DeskBase desk = self._station.desk
        cdef Py_ssize_t follows = 0
        self._replies = None
        if replies is None:
            return 0
        if desk._idle_watchers:
            (<object>desk).flush(replies, loop)
        else:
            follows = replies.send(loop, last)
            if replies.undeliverable:
                (<object>desk).counts.add("undeliverable", replies.undeliverable)
        if desk.room.waiting:
            (<object>desk).made_room()
        return follows

    # What the subclass does.

    def failed(self, error):
        raise NotImplementedError

    def _go_on(self):
        raise NotImplementedError

    def _rows_of(self, output):
        raise NotImplementedError

    def _finite(self, output, rows):
        raise NotImplementedError

    def _keywords_of(self, owners, keywords):
        raise NotImplementedError

    def _about_to_call(self):
        raise NotImplementedError

    def _watch(self, handles, owners, limit_ns):
        raise NotImplementedError

    def _answer_one(self, owner, row, size, run, replies):
        raise NotImplementedError

    # For the subclass.

    def _call_is_over(self):
        self.call_is_over()

    def _answer(self, handles, owners, rows, run, sizes):
        self.answer(handles, owners, rows, run, sizes)

    def _close(self, handles):
        return self.close(list(handles))
