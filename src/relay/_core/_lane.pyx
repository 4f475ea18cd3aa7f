# A part of lanes.pyx: when a lane takes a batch, waits for more, or sleeps, as `relay._pure._lane`.

# Threads that have been answered need the interpreter before they can ask again, and so does the lane. If it slept only
# until the first of them asks, it would be in the way of the others, and batches would be small. So it lets them pass:
# where nothing is ready, it sleeps until the last of them is awake, or for so long at most for each.
cdef double EACH_S = 20e-6

cdef double FAR = 2305843009213693952.0     # 2 ** 61: so that three predictions can be added
cdef int64_t SHUT_DEADLINE_ = CLOSED_DEADLINE

cdef tuple AWAKE = (False, None)
cdef tuple PARKED = (True, None)


cdef class LaneBase:
    """LaneBase(number, model, station, lanes, seat)
--

"""
    cdef readonly int64_t number
    cdef public object model
    cdef public StationBase station
    cdef public object seat
    cdef public object busy
    cdef public int64_t ready
    cdef public int64_t rests_until_ns
    cdef public int64_t stumbles
    cdef public object _lanes
    cdef public object _token
    cdef public object _began
    cdef public object _gate
    cdef public bint _woken
    cdef Gate last              # opened after many threads that have been answered

    def __init__(self, number, model, station, lanes, seat):
        self.number = to_int64("number", number)
        self.model = model
        self.station = station
        self.seat = seat
        self._lanes = lanes
        self._began = 0, 0, 1
        self._gate = allocate_lock()
        self._gate.acquire()
        self.last = Gate()

    cpdef pick(self, now_ns):
        """Take the next batch, or None if there is none. Where that fails, the batch stays in `busy`, for `stumble`."""
        cdef StationBase station = self.station
        # Made and noted first: from the moment in which somebody is committed there is who ends them.
        cdef RunningBase work = RunningBase.__new__(station.work)
        work.begin(station, to_int64("now_ns", now_ns))
        self.busy = work
        station.choose(work)
        if work.late:
            (<object>station.desk).dropped_late(work.late, now_ns)
            work.late = []
            (<object>station.desk).made_room()
        if not work.size:
            self.busy = None
            return None
        self._began = now_ns, work.size, work.run.width
        return work

    cpdef rest(self, now_ns):
        """Park until there is more to do. Whether it is parked, and until when it may sleep."""
        cdef StationBase station = self.station
        cdef Door queue = station.queue
        cdef int64_t now = to_int64("now_ns", now_ns), ready = queue.in_line(), until, deadline, needed
        plan = station.planned(now, ready)
        if plan is None and ready and len(self._lanes) > 1:
            plan = self._leaves(now_ns, ready)
        if plan is None or station.desk.closed:
            return PARKED if not ready and queue.lie_down(self.number, 1) else AWAKE
        wanted, until_ns = plan
        until = to_int64("until_ns", until_ns)
        # Noted first: who comes with a deadline before that looks whether anybody sleeps for too long.
        self.rests_until_ns = until
        deadline = queue.first_deadline()
        if deadline >= 0:
            needed = 2 * station.cost.finish_ns(max(ready, 1), station.mean_width)
            if needed or deadline > until:
                until = min(until, deadline - needed)
            else:
                until = now
            if until <= now:
                self.rests_until_ns = 0
                return PARKED if not ready and queue.lie_down(self.number, 1) else AWAKE
        if not queue.lie_down(self.number, to_int32("wanted", wanted)):
            self.rests_until_ns = 0
            return AWAKE
        return True, until

    cpdef done(self, work):
        """Its batch has ended, whatever came of it."""
        if self.busy is work:
            self.busy = None
        self.stumbles = 0
        if self._token is not None:
            self.give_back()
        self.station.linger.before = self.ready
        self.station.over(work)

    def give_back(self):
        """Give back the token of the batch that has ended, or that there was none for."""
        token, self._token = self._token, None
        if token is not None:
            token.release()

    def answer_ns(self, ahead, size, now_ns):
        """When a request would be answered, if this is the only lane; see `relay.admission`."""
        cdef StationBase station = self.station
        cdef CostModel cost = station.cost
        cdef int64_t now = to_int64("now_ns", now_ns), width = max(station.mean_width, to_int64("size", size))
        cdef int64_t most, free_ns = now, largest = 0, batches, members = to_int64("ahead", ahead)
        if not cost.learned:
            return now_ns
        most = station.full(width)
        work = self.busy
        if work is not None:
            largest = work.size
            if work.run.why == SHUT_DEADLINE_:
                most = min(most, largest)       # and so will the next ones be, until fewer are let in
            began_ns, items, wide = self._began
            free_ns = max(to_int64("began_ns", began_ns) + <int64_t>min(cost.mean_ns(items, wide), FAR), now)
        batches, members = members // most, members % most + 1
        if batches:
            free_ns += <int64_t>min(<double>(batches + 1) * (cost.mean_ns(most, width) + OVERHEAD), FAR)
            members = most
        elif free_ns > now:
            members = min(most, max(members, largest))
        return free_ns + min(cost.finish_ns(members, width), <int64_t>FAR) + OVERHEAD_NS

    # On a thread of its own.

    def work(self):
        """Run batches, and sleep between them, until the end."""
        while not self.turn():
            pass

    cdef bint turn(self) except -1:
        # Run a batch, or sleep. True at the end, and in a child that the model has forked.
        cdef StationBase station = self.station
        cdef DeskBase desk = station.desk
        cdef RunningBase work
        cdef Gate last
        cdef Py_ssize_t woken
        self._woken = False
        now_ns = station.now()
        parked, until_ns = self.rest(now_ns)
        if parked:
            if desk.closed and (<object>station.queue).unpark(self.number) == self.number:
                return True
            self.sleep(until_ns)
            return False
        if self.seat is not None:
            if not self._sit():
                return False
            now_ns = station.now()
        work = self.pick(now_ns)
        if work is None:
            self.give_back()
            return False
        try:
            self.run(work)
        except BaseException as error:
            self._broken(work, error)
        if desk.forked:
            return True
        try:
            self.done(work)
        finally:
            # Last of all: who wakes needs the interpreter, and would find it taken.
            last = self.last if station.monotonic and not station.queue.in_line() else None
            try:
                woken = work.told(None, last)
                if woken and not last.comes(woken * EACH_S):
                    self.last = Gate()      # it may still be opened
            except BaseException:
                self.last = Gate()
                raise
        return False

    def wake(self):
        """Something is ready: let it go on, from any thread. Never blocks."""
        # It may be open already, where a clock has opened it in this moment: what counts is what is noted.
        self._woken = True
        try:
            self._gate.release()
        except RecursionError:
            raise       # it is a RuntimeError as well
        except RuntimeError:
            pass

    cdef int sleep(self, until_ns) except -1:
        cdef StationBase station = self.station
        while not self._woken:
            if station.monotonic and until_ns is None:
                self._gate.acquire()
            elif not station.clock.park(self._gate, until_ns):
                if (<object>station.queue).unpark(self.number) == self.number:
                    break
                until_ns = None     # somebody is about to
        self.rests_until_ns = 0
        return 0

    cdef int run(self, RunningBase work) except -1:
        while work.opened():
            try:
                output = called(self.model, work)
            except BaseException as error:
                work.failed(error)
            else:
                self.ready = self.station.queue.in_line()
                work.finished(output)
                output = None
        return 0

    # What the subclass does.

    def _leaves(self, now_ns, ready):
        raise NotImplementedError

    def _sit(self):
        raise NotImplementedError

    def _broken(self, work, error):
        raise NotImplementedError


cdef object called(object model, RunningBase work):
    # The model with its batch, in a context of its own.
    context = PyContext_New()
    PyContext_Enter(context)
    try:
        PyContextVar_Set(work._station.variable, work.current)
        return model(work.argument, **work.keywords) if work.keywords else model(work.argument)
    finally:
        PyContext_Exit(context)
