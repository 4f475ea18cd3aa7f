# A part of lanes.pyx: what a lane works with, as `relay._pure._station`.

CLOSED_GROUP = CLOSED_STEP + 1
OVERHEAD_NS = 100_000

cdef double OVERHEAD = OVERHEAD_NS
cdef double WEIGHT = 0.125
cdef int64_t SHUT_PARAMS_ = CLOSED_PARAMS
cdef int64_t SHUT_GROUP = CLOSED_GROUP


cdef class StationBase:
    """StationBase(desk, ways, most_cost, step_ns, look, assembler, cost, health, memory, steering, linger, work, view, variable)
--

"""
    cdef readonly DeskBase desk
    cdef readonly object name
    cdef readonly object clock
    cdef readonly object ways
    cdef readonly object assembler
    cdef readonly object health
    cdef readonly object memory
    cdef readonly object steering
    cdef readonly Linger linger
    cdef public CostModel cost
    cdef public object watch
    cdef public int64_t version
    cdef public int64_t mean_width
    cdef Door queue
    cdef Waits waits
    cdef Batches batches
    cdef object work
    cdef object view
    cdef object variable
    cdef double mean
    cdef int64_t most_cost
    cdef int64_t step_ns
    cdef int32_t look
    cdef object line
    cdef object costs
    cdef object places
    cdef object mixed
    cdef int64_t run_limit_ns
    cdef bint finish
    cdef bint grouped
    cdef bint prepared
    cdef bint check_finite
    cdef bint monotonic

    def __init__(
        self, desk, ways, most_cost, step_ns, look, assembler, cost, health, memory, steering, linger, work, view,
        variable,
    ):
        self.desk = desk
        self.queue = desk.queue
        self.waits = desk.counts.waits
        self.batches = desk.counts.batches
        self.name = desk.name
        self.clock = desk.clock
        self.monotonic = self.desk.monotonic
        self.ways = ways
        self.places, self.finish, self.grouped = ways.places, ways.finish, ways.grouped
        self.prepared, self.mixed, self.check_finite = ways.prepared, ways.mixed, ways.check_finite
        self.run_limit_ns = to_int64("run_limit_ns", ways.run_limit_ns)
        self.assembler = assembler
        self.cost = cost
        self.health = health
        self.memory = memory
        self.steering = steering
        self.linger = linger
        self.mean_width = 1
        self.watch = desk.deadlines.arm
        self.work = work
        self.view = view
        self.variable = variable
        self.most_cost = to_int64("most_cost", most_cost)
        self.step_ns = to_int64("step_ns", step_ns)
        self.look = to_int32("look", look)

    cpdef int64_t full(self, int64_t width) except -1:
        """How many members of this size a batch has at most."""
        cdef int64_t most = self.steering.limit
        return max(<int64_t>1, min(most, self.most_cost // width)) if self.most_cost else most

    cdef inline int64_t now(self) except? -1:
        cdef int64_t now_ns = relay_monotonic_ns() if self.monotonic else -1
        return now_ns if now_ns >= 0 else to_int64("now_ns", self.clock.now_ns())

    def take(self, now_ns):
        """Choose and commit the members of a batch; see `RequestQueue.take`."""
        cdef RunningBase work = RunningBase.__new__(self.work)
        work.begin(self, to_int64("now_ns", now_ns))
        self.choose(work)
        return work._handles, work._owners, work.late, work.run.why, work.run.width, work.run.real

    cdef int choose(self, RunningBase work) except -1:
        cdef tuple line = self.cost.coefficients
        cdef Choice choice
        cdef Run run = work.run
        cdef int64_t memory
        if line is not self.line:
            self.line = line
            self.costs = (line[0] + OVERHEAD, *line[1:]) if self.cost.learned else None
        choice.most_cost = self.most_cost
        memory = self.memory.limit
        if memory and (not choice.most_cost or memory < choice.most_cost):
            choice.most_cost = memory
        choice.most = to_int32("limit", self.steering.limit)
        choice.now = run.committed_ns
        choice.step = self.step_ns if self.desk.urgent else 0
        choice.look = self.look
        choice.finish = self.finish
        self.queue.choose_members(&choice, self.costs, self.places, work._handles, work._owners, work.late)
        run.why, run.width, run.real = choice.why, choice.width, choice.real
        work.size = run.size = len(work._handles)
        if work.size:
            if self.linger.watching:
                self.linger.taken(choice.now, [(<TicketBase>owner)._arrival_ns for owner in work._owners])
            if self.grouped and choice.why == SHUT_PARAMS_:
                run.why = SHUT_GROUP
        return 0

    def plan(self, now_ns, ready):
        """Whether to wait for more than is ready; see `Linger.plan`."""
        return self.planned(to_int64("now_ns", now_ns), to_int64("ready", ready))

    cdef inline object planned(self, int64_t now_ns, int64_t ready):
        cdef Linger linger = self.linger
        if not linger.user_ns and not linger.learned_ns:
            return None
        oldest_ns = (<object>self.queue).oldest_ready_ns() if linger.user_ns and ready else 0
        return linger.plan(now_ns, ready, self.steering.limit, oldest_ns)

    cpdef ran(self, int64_t items, int64_t width, int64_t real, int64_t run_ns):
        """A model call has succeeded."""
        cdef double mean = <double>real / <double>items
        self.cost.observe(items, width, run_ns, real)
        self.mean = self.mean + (mean - self.mean) * WEIGHT if self.mean else mean
        self.mean_width = <int64_t>rint(self.mean) or 1

    def ended(self, RunningBase work not None):
        """A batch has been answered: learn from it."""
        self.over(work)

    cdef int over(self, RunningBase work) except -1:
        cdef Run run = work.run
        cdef int64_t ready
        if self.desk.closed:
            (<object>self.desk).deadlines.close()
        ready = self.queue.in_line()
        self.linger.answered(run.ended_ns, work.size, ready, self.cost.mean_ns(0, 1))
        steering = self.steering
        if not steering.steady:
            steering.after_batch(run.ended_ns, work.size, work.run_ns, work.failures, ready, self.batches.busy_ns)
        return 0
