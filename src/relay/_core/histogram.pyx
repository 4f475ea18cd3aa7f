# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic, auto_pickle=False
"""How long things took: a histogram of times, in buckets whose width grows with the time.

It owns one struct of a fixed size, inside the object. It takes no lock: the class relies on the GIL, a core part that
embeds the struct brings its own guard. The invariant: every recorded time is counted in exactly one bucket, the one
that holds it.
"""

from relay._core.state cimport to_int64


cdef int hist_check(const Hist* h) noexcept nogil:
    cdef int32_t i, last = 0
    cdef int64_t n = 0
    cdef int shift = 0
    cdef double total = <double>h.total_hi * 18446744073709551616.0 + <double>h.total_lo
    cdef double least = 0, most = 0
    for i in range(HIST_CELLS):
        if h.cells[i] < 0 or h.cells[i] > INT64_MAX - n:
            return 1
        n += h.cells[i]
        if h.cells[i]:
            last = i
            least += <double>hist_low(i, &shift) * <double>h.cells[i]
            most += <double>hist_upper(i) * <double>h.cells[i]
    if n != h.count:
        return 1
    if h.max_ns < hist_low(last, &shift) or h.max_ns > hist_upper(last):
        return 2
    # A double holds 53 bits of a sum that may have 125.
    if total < least * (1 - 1e-12) or total > most * (1 + 1e-12):
        return 3
    return 0


cdef tuple BROKEN = (
    "",
    "the buckets do not add up to the count",
    "the maximum is not in the last bucket",
    "the sum does not fit the buckets",
)


cdef double share_of(object q) except? -1:
    if not isinstance(q, (int, float)):
        raise TypeError(f"q must be a number, got {type(q).__name__}")
    if not 0 <= q <= 1:
        raise ValueError(f"q {q} is out of range: give 0 to 1, as 0.99 for the 99th percentile")
    return q


cdef class Histogram:
    """Histogram()
--

Counts times, in ns, and tells their quantiles: within 1/32 of the true ones, and exactly below 32 ns."""

    def __init__(self):
        hist_init(&self.s)

    def __len__(self):
        return self.s.count

    @property
    def count(self):
        """How many times are recorded."""
        return self.s.count

    @property
    def total_ns(self):
        """The exact sum of the recorded times."""
        return hist_total(&self.s)

    @property
    def max_ns(self):
        """The exact longest time recorded, or 0 if there is none."""
        return self.s.max_ns

    def record(self, ns):
        """Counts one time; a negative one counts as 0."""
        hist_record(&self.s, to_int64("ns", ns))

    def quantile(self, q):
        """The time that a share `q` of the recorded times does not exceed, by the nearest rank; 0 if there is none."""
        cdef double share = share_of(q)
        return hist_quantile(&self.s, share)

    def quantiles(self, qs):
        """Several quantiles at once, in one pass over the buckets if they ascend."""
        cdef list shares = [share_of(q) for q in qs]  # first of all: the iterable may be one that records
        cdef list found = []
        cdef int64_t rank, last = 0, below = 0
        cdef int32_t cell = 0
        cdef double share
        for share in shares:
            rank = hist_rank(&self.s, share)
            if rank < last:
                cell, below = 0, 0
            last = rank
            found.append(hist_at(&self.s, rank, &cell, &below) if rank else 0)
        return found

    def merge(self, other):
        """Adds what another histogram has recorded; the other stays as it is."""
        if not isinstance(other, Histogram):
            raise TypeError(f"other must be a Histogram, got {type(other).__name__}")
        if hist_merge(&self.s, &(<Histogram>other).s) < 0:
            raise OverflowError(
                f"cannot add {(<Histogram>other).s.count} times to {self.s.count}: "
                f"a histogram holds {<int64_t>1 << 62} at most; clear() it, or merge into a new one"
            )

    def counts(self):
        """(largest time, how many times are not larger) of each bucket that is not empty, in ascending order."""
        cdef list found = []
        cdef int64_t n = 0
        cdef int32_t i
        for i in range(HIST_CELLS):
            if self.s.cells[i]:
                n += self.s.cells[i]
                found.append((hist_upper(i), n))
        return found

    def clear(self):
        """Forgets everything recorded."""
        hist_init(&self.s)

    def copy(self):
        """A histogram of its own that holds the same."""
        cdef Histogram twin = Histogram.__new__(Histogram)
        twin.s = self.s
        return twin

    def check(self):
        """Recounts everything; raises AssertionError on a broken invariant."""
        cdef int broken = hist_check(&self.s)
        if broken:
            raise AssertionError(f"histogram: {BROKEN[broken]}; this is a bug in relay")
