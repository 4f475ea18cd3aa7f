# Runs: the calls of a model, their times, and the histograms and counters of them. Part of `tickets`.

@freelist(16)
cdef class Run:
    """Run(committed_ns, size, why=0, width=1, real=0)
--

"""
    def __init__(self, committed_ns, size, why=0, width=1, real=0):
        self.committed_ns = self.started_ns = self.ended_ns = to_int64("committed_ns", committed_ns)
        self.size = to_int64("size", size)
        self.why = to_int64("why", why)
        self.width = to_int64("width", width)
        self.real = to_int64("real", real)


cdef class Waits:
    """Waits()
--

"""
    def __init__(self):
        self.prepare = Histogram()
        self.queue = Histogram()
        self.total = Histogram()

    def record(self, TicketBase ticket not None, Run run not None):
        self.note(ticket, run)

    cdef void note(self, TicketBase ticket, Run run) noexcept:
        cdef int64_t arrival_ns = ticket._arrival_ns
        cdef int64_t ready_ns = max(arrival_ns, ticket._ready_ns)
        cdef int64_t chosen_ns = max(ready_ns, run.committed_ns)
        cdef int64_t ended_ns = max(chosen_ns, run.started_ns, run.ended_ns)
        hist_record(&self.prepare.s, ready_ns - arrival_ns)
        hist_record(&self.queue.s, chosen_ns - ready_ns)
        hist_record(&self.total.s, ended_ns - arrival_ns)

    def read(self):
        return self.prepare.copy(), self.queue.copy(), self.total.copy()


cdef class Batches:
    """Batches()
--

"""
    def __init__(self):
        self.began_ns = -1
        self.run_time = Histogram()
        self.batch_time = Histogram()
        self.batch_size = Histogram()

    def record(self, Run run not None, int64_t answered, int64_t failed, bint split=False):
        self.note(run, answered, failed, split)

    cdef void note(self, Run run, int64_t answered, int64_t failed, bint split) noexcept:
        cdef int64_t took_ns = max(run.ended_ns - run.started_ns, 0)
        if self.batches:
            self.mean_run_ns += (took_ns - self.mean_run_ns) * 0.1
        else:
            self.mean_run_ns = took_ns
            self.began_ns = run.committed_ns
        self.batches += 1
        self.items += answered
        self.failed += failed
        self.failed_batches += run.raised
        if split:
            self.splits += 1
        else:
            hist_record(&self.batch_time.s, run.started_ns - run.committed_ns)
            if 0 <= run.why < REASONS:
                self.reasons[run.why] += 1
        hist_record(&self.run_time.s, took_ns)
        hist_record(&self.batch_size.s, run.size)
        if run.real:
            self.real += run.real
            self.padded += run.size * run.width
        self.busy_ns += took_ns

    def closed_by(self):
        return [self.reasons[number] for number in range(REASONS)]

    def read(self):
        return self.run_time.copy(), self.batch_time.copy(), self.batch_size.copy()
