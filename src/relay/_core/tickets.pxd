from libc.stdint cimport int64_t, uint64_t

from relay._core.cache cimport ResultCache
from relay._core.histogram cimport Histogram
from relay._core.queue cimport Door


cdef class TicketBase:
    # Every field: written by whoever made or settles the ticket, read by anyone; objects, so each access is one step.
    cdef public object _desk
    cdef public object _item
    cdef public object tenant
    cdef public object _params
    cdef public object _content
    cdef public object _who
    cdef public object _followers
    cdef public object _times
    cdef public object _value
    cdef public object _error
    cdef public object _run
    cdef public object _context
    cdef public object _prepared
    cdef public object _kept
    cdef list several               # waiters; made when it is needed
    cdef Asking only                # one more, which most tickets have alone
    cdef public int64_t _arrival_ns
    cdef public int64_t _deadline_ns
    cdef public int64_t _ready_ns
    cdef public int64_t _handle
    cdef public int64_t priority
    cdef public int64_t size
    cdef public int64_t _group
    cdef public int64_t _epoch
    cdef uint64_t low               # the digest
    cdef uint64_t high
    cdef public bint _done
    cdef object __weakref__

    cdef int fill(self, object desk, object item, int64_t priority, int64_t arrival_ns) except -1
    cdef list waiters(self)
    cdef bint attach_only(self, Asking waiter) except -1
    cdef int attach(self, object waiter) except -1
    cdef bint detach(self, object waiter) except -1


cdef class Gate:
    # Where a thread waits for an answer. Whoever has passed it opens the next one.
    cdef object lock
    cdef object shut            # as bound methods
    cdef object open
    cdef Gate next
    cdef bint left
    cdef bint alone                 # of the main thread

    cdef int let_by(self) except -1
    cdef int pass_on(self) except -1
    cdef bint comes(self, double seconds) except -1


cdef class Replies:
    cdef dict _loops
    cdef list gates                 # of threads; made when it is needed
    cdef public list calls
    cdef public int64_t undeliverable

    cdef list of_loop(self, object loop)
    cdef int enter(self, object loop, object future, object ticket) except -1
    cpdef flush(self, loop=*)
    cdef Py_ssize_t send(self, object loop, Gate last) except -1


cdef class Run:
    cdef public int64_t committed_ns
    cdef public int64_t started_ns
    cdef public int64_t ended_ns
    cdef public int64_t first_ns
    cdef public int64_t size
    cdef public int64_t why
    cdef public int64_t width
    cdef public int64_t real
    cdef public bint raised


cdef class Waits:
    cdef readonly Histogram prepare
    cdef readonly Histogram queue
    cdef readonly Histogram total

    cdef void note(self, TicketBase ticket, Run run) noexcept


cdef enum:
    REASONS = 8                     # why a batch was closed is a number below this


cdef class Batches:
    # Every field: guarded by the GIL; `record` calls no Python.
    cdef readonly int64_t batches
    cdef readonly int64_t items
    cdef readonly int64_t failed
    cdef readonly int64_t failed_batches
    cdef readonly int64_t splits
    cdef readonly int64_t busy_ns
    cdef readonly int64_t real
    cdef readonly int64_t padded
    cdef readonly int64_t began_ns
    cdef readonly double mean_run_ns
    cdef readonly Histogram run_time
    cdef readonly Histogram batch_time
    cdef readonly Histogram batch_size
    cdef int64_t reasons[REASONS]

    cdef void note(self, Run run, int64_t answered, int64_t failed, bint split) noexcept


cdef class DeskBase:
    # Every field: written by the desk or those who serve it, read by anyone; each access is one step.
    cdef public set open
    cdef public set crew
    cdef public list _idle_watchers
    cdef public object room
    cdef public object arm
    cdef public object predict_ns
    cdef public bint refusing
    cdef public bint closed
    cdef public bint forked
    cdef public bint started
    cdef public bint urgent
    cdef public bint monotonic
    cdef public int64_t urgent_below
    cdef public int64_t refused_late
    cdef public int64_t epoch
    cdef public int64_t misses
    cdef public ResultCache results
    cdef object content_of
    cdef bint texts                 # items stand for themselves
    cdef object given
    cdef readonly object kept
    # The rest: written once.
    cdef bint short
    cdef bint limited
    cdef object kind
    cdef Door door
    cdef object now_ns
    cdef object size_of
    cdef int64_t most_size
    cdef object tier
    cdef int64_t usual
    cdef int64_t time_bits
    cdef int64_t step_bits
    cdef int64_t allowances_ns[256]
    cdef bint admits

    cdef object admitted(self, object item, object priority, object deadline, int64_t* answered)
    cdef int64_t now(self) except -1
    cdef TicketBase answer(self, object priority, object value, int64_t size)
    cdef object content(self, object item)
    cdef object result(self, uint64_t low, uint64_t high, object content, object who, int64_t now_ns, int64_t* size)
    cdef TicketBase to_join(self, uint64_t low, uint64_t high, object content, int64_t epoch, int64_t* handle)


cdef class Waiting:
    # What the task of an `Asking` waits at: as much of a future as a task asks for. What a future would have the loop
    # call, a turn later, is called at once.
    cdef object loop
    cdef object callback        # and its context; most have one
    cdef object context
    cdef list more              # pairs of them; made when it is needed
    cdef object value           # or what it was cancelled with
    cdef bint over
    cdef bint given_up
    cdef public bint _asyncio_future_blocking
    cdef object __weakref__

    cdef list take(self)
    cdef int end_later(self) except -1
    cdef int end_now(self) except -1


cdef class Asking:
    cdef object relay
    cdef object item
    cdef object priority
    cdef object deadline
    cdef object loop
    cdef Waiting waits
    cdef object inner           # who goes on, ELSEWHERE
    cdef TicketBase ticket
    cdef int stage
    cdef object __weakref__

    cdef TicketBase end(self)
    cdef object step(self, object value)
    cdef void let_go(self) noexcept
    cdef object elsewhere(self, object coroutine)
    cdef object go_on(self, object value)


cdef list answered(list owners, object rows, object run, Replies replies, Waits waits)
