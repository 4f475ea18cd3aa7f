"""Histograms of times: what they promise, on both sides, and that the two sides cannot be told apart."""

from __future__ import annotations

import gc
import random
import tracemalloc
from importlib.machinery import EXTENSION_SUFFIXES
from math import ceil, inf, nan
from typing import Any

import pytest
from conftest import Core
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from relay._pure import histogram as pure

MIN, MAX = -(2**63), 2**63 - 1
GIVE = "give 0 to 1, as 0.99 for the 99th percentile"
QS = [0.0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0]


def nearest_rank(times: list[int], q: float) -> int:
    return sorted(times)[max(1, ceil(q * len(times))) - 1]


def test_comes_from_its_side(core: Core) -> None:
    histogram = core.histogram.Histogram()
    assert type(histogram).__module__ == core.histogram.__name__ == f"{core.package}.histogram"
    suffixes = {"pure": (".py",), "native": tuple(EXTENSION_SUFFIXES)}[core.side]
    assert str(core.histogram.__file__).endswith(suffixes)


def test_an_empty_one(core: Core) -> None:
    histogram = core.watch(core.histogram.Histogram())
    assert (len(histogram), histogram.count, histogram.total_ns, histogram.max_ns) == (0, 0, 0, 0)
    assert histogram.counts() == [] and not histogram
    assert [histogram.quantile(q) for q in QS] == histogram.quantiles(QS) == [0] * len(QS)


def test_small_times_are_exact(core: Core) -> None:
    histogram = core.watch(core.histogram.Histogram())
    for ns in (31, 0, 7, 7, -5, 16):
        histogram.record(ns)
    assert (histogram.count, histogram.total_ns, histogram.max_ns) == (6, 61, 31)
    assert histogram.counts() == [(0, 2), (7, 4), (16, 5), (31, 6)]
    assert histogram.quantiles([0, 1 / 6, 0.34, 0.5, 2 / 3, 0.7, 1]) == [0, 0, 7, 7, 7, 16, 31]


def test_buckets_lie_side_by_side(core: Core) -> None:
    """Each power of two has 16 of them, every time belongs to one, and none is wider than 1/16 of its times."""
    histogram = core.watch(core.histogram.Histogram())
    edges = [*range(16), *(m << shift for shift in range(59) for m in range(16, 32))]
    for ns in edges:
        histogram.record(ns)
    assert histogram.counts() == [(upper - 1, i + 1) for i, upper in enumerate([*edges[1:], 2**63])]
    for upper in [*edges[1:], 2**63]:
        histogram.record(upper - 1)
    assert histogram.counts() == [(upper - 1, 2 * i + 2) for i, upper in enumerate([*edges[1:], 2**63])]
    assert histogram.total_ns == sum(edges) + sum(edge - 1 for edge in edges[1:]) + MAX
    for low, upper in zip(edges[32:], edges[33:], strict=False):
        assert 16 * (upper - low) <= low


def test_the_longest_times(core: Core) -> None:
    histogram = core.watch(core.histogram.Histogram())
    for ns in (2**62 - 1, 2**62, MAX, MAX, MIN):
        histogram.record(ns)
    assert (histogram.total_ns, histogram.max_ns) == (2**63 - 1 + 2 * MAX, MAX)
    assert histogram.quantiles([0.2, 0.6]) == [0, 2**62 + 2**57]
    assert histogram.quantile(1) == 2**63 - 2**57


def test_a_quantile_is_never_more_than_the_maximum(core: Core) -> None:
    histogram = core.watch(core.histogram.Histogram())
    histogram.record(990_000)  # of the bucket 983,040 to 1,015,807
    assert histogram.quantiles(QS) == [990_000] * len(QS)
    histogram.record(2_000_000)
    assert histogram.quantiles([0.5, 1.0]) == [999_424, 1_998_848]


@pytest.mark.parametrize("shape", ["exponential", "lognormal", "bimodal", "constant", "uniform"])
def test_accuracy(core: Core, rng: random.Random, shape: str) -> None:
    draw = {
        "exponential": lambda: int(rng.expovariate(1e-6)),
        "lognormal": lambda: int(rng.lognormvariate(15, 3)),
        "bimodal": lambda: rng.choice([rng.randrange(10_000, 20_000), rng.randrange(10**9, 3 * 10**9)]),
        "constant": lambda: 123_456_789,
        "uniform": lambda: rng.randrange(MAX),
    }[shape]
    times = [draw() for _ in range(3000)]
    histogram = core.watch(core.histogram.Histogram())
    for ns in times:
        histogram.record(ns)
    assert (histogram.count, histogram.total_ns, histogram.max_ns) == (3000, sum(times), max(times))
    qs = QS + [rng.random() for _ in range(50)]
    for q, told in zip(qs, histogram.quantiles(qs), strict=True):
        true = nearest_rank(times, q)
        assert 32 * abs(told - true) <= true, (q, told, true)
        assert told == histogram.quantile(q)
    for upper, n in histogram.counts():
        assert n == sum(ns <= upper for ns in times)


def test_quantiles_come_in_the_order_asked(core: Core) -> None:
    histogram = core.watch(core.histogram.Histogram())
    for ns in range(1, 21):
        histogram.record(ns)
    assert histogram.quantiles([]) == []
    assert histogram.quantiles(iter([1.0, 0.5, 0.05, 0.5, True, False, 0, 1])) == [20, 10, 1, 10, 20, 1, 1, 20]


def test_an_iterable_that_records(core: Core) -> None:
    histogram = core.watch(core.histogram.Histogram())

    def recording() -> Any:
        for ns in (5, 9):
            histogram.record(ns)
            yield 1.0

    assert histogram.quantiles(recording()) == [9, 9]


def test_merge_and_copy(core: Core, rng: random.Random) -> None:
    Histogram = core.histogram.Histogram
    whole, parts = core.watch(Histogram()), [core.watch(Histogram()) for _ in range(3)]
    for _ in range(1000):
        ns = int(rng.lognormvariate(12, 4))
        whole.record(ns)
        rng.choice(parts).record(ns)
    sum_of_parts = core.watch(parts[0].copy())
    assert type(sum_of_parts) is Histogram
    for part in parts[1:]:
        assert sum_of_parts.merge(part) is None
    assert sum_of_parts.counts() == whole.counts()
    assert (sum_of_parts.count, sum_of_parts.total_ns, sum_of_parts.max_ns) == (1000, whole.total_ns, whole.max_ns)
    assert sum_of_parts.quantiles(QS) == whole.quantiles(QS)
    # The copy, and what was merged, have lives of their own.
    before = parts[0].counts()
    sum_of_parts.clear()
    assert parts[0].counts() == before and parts[0].count < 1000
    assert (len(sum_of_parts), sum_of_parts.total_ns, sum_of_parts.max_ns, sum_of_parts.counts()) == (0, 0, 0, [])


def test_a_sum_past_64_bits_and_a_count_at_its_limit(core: Core) -> None:
    histogram = core.watch(core.histogram.Histogram())
    histogram.record(MAX)
    for doubled in range(1, 63):
        histogram.merge(histogram)
        assert (histogram.count, histogram.total_ns) == (2**doubled, MAX << doubled)
    assert histogram.quantiles([0, 1]) == [2**63 - 2**57] * 2
    histogram.check()
    one = core.histogram.Histogram()
    one.record(3)
    for more, n in ((one, 1), (histogram, 2**62)):
        with pytest.raises(OverflowError) as caught:
            histogram.merge(more)
        assert str(caught.value) == (
            f"cannot add {n} times to 4611686018427387904: a histogram holds 4611686018427387904 at most; "
            "clear() it, or merge into a new one"
        )
    assert (histogram.count, histogram.total_ns, len(histogram.counts())) == (2**62, MAX << 62, 1)


@pytest.mark.parametrize(
    ("method", "argument", "error", "text"),
    [
        ("record", 1.5, TypeError, "ns must be an int, got float"),
        ("record", None, TypeError, "ns must be an int, got NoneType"),
        ("record", 2**63, OverflowError, "ns 9223372036854775808 does not fit in 64 bits"),
        ("record", MIN - 1, OverflowError, "ns -9223372036854775809 does not fit in 64 bits"),
        ("quantile", nan, ValueError, "q nan is out of range: " + GIVE),
        ("quantile", inf, ValueError, "q inf is out of range: " + GIVE),
        ("quantile", 99, ValueError, "q 99 is out of range: " + GIVE),
        ("quantile", -0.01, ValueError, "q -0.01 is out of range: " + GIVE),
        ("quantile", "0.5", TypeError, "q must be a number, got str"),
        ("quantiles", [0.5, 1.5], ValueError, "q 1.5 is out of range: " + GIVE),
        ("quantiles", [None], TypeError, "q must be a number, got NoneType"),
        ("quantiles", 0.5, TypeError, "'float' object is not iterable"),
        ("merge", [1], TypeError, "other must be a Histogram, got list"),
        ("merge", None, TypeError, "other must be a Histogram, got NoneType"),
    ],
)
def test_refusals(core: Core, method: str, argument: object, error: type[Exception], text: str) -> None:
    histogram = core.watch(core.histogram.Histogram())
    for size in (0, 1):
        with pytest.raises(error) as caught:
            getattr(histogram, method)(argument)
        assert (type(caught.value), str(caught.value)) == (error, text)
        assert len(histogram) == size
        histogram.record(7)


def test_its_size_is_fixed(core: Core, rng: random.Random) -> None:
    histogram = core.watch(core.histogram.Histogram())
    times = [rng.randrange(MAX) for _ in range(2000)]
    for ns in times[:100]:
        histogram.record(ns)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for ns in times:
            histogram.record(ns)
        assert tracemalloc.get_traced_memory()[0] - before < 500
    finally:
        tracemalloc.stop()
    assert core.side == "pure" or not gc.is_tracked(histogram)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda histogram: histogram._cells.__setitem__(3, 1), "the buckets do not add up to the count"),
        (lambda histogram: setattr(histogram, "_max_ns", 10_000), "the maximum is not in the last bucket"),
        (lambda histogram: setattr(histogram, "_total_ns", 90), "the sum does not fit the buckets"),
    ],
)
def test_check_finds_what_is_broken(spoil: Any, text: str) -> None:
    histogram = pure.Histogram()
    histogram.record(100)
    histogram.check()
    spoil(histogram)
    with pytest.raises(AssertionError, match=f"^histogram: {text}; this is a bug in relay$"):
        histogram.check()


def test_a_copy_holds_whatever_there_is(core: Core) -> None:
    """Also one time more than two histograms may hold together."""
    histogram = core.histogram.Histogram()
    histogram.record(1)
    for _ in range(62):
        histogram.merge(histogram)
    histogram.record(1)
    copy = histogram.copy()
    assert (copy.count, copy.total_ns, copy.max_ns) == (2**62 + 1, 2**62 + 1, 1)


class Twins(RuleBasedStateMachine):
    """Both sides take every step; whatever one of them answers, or refuses, the other must too."""

    TIMES = st.one_of(
        st.integers(0, 40),
        st.builds(lambda shift, m: (m << shift >> 4) - m % 2, st.integers(0, 63), st.integers(16, 31)),
        st.sampled_from([MIN, MIN - 1, -1, 2**62 - 1, 2**62, MAX, 2**63, True, 2.0, None, "3"]),
    )
    ODD = st.sampled_from([0, 1, True, -0.0, 5e-324, 1.0000001, -1, 2**70, nan, inf, None, "0.5", 1j])
    SHARES = st.one_of(st.floats(0, 1), st.sampled_from(QS), ODD)

    @initialize()
    def make(self) -> None:
        native = Core("native").histogram
        self.twins = [[side.Histogram() for _ in range(2)] for side in (pure, native)]

    def both(self, which: int, method: str, *arguments: Any) -> None:
        """Calls a method, or reads a property, of both; a callable argument makes the argument from the twins."""
        answers: list[tuple[object, object]] = []
        for twins in self.twins:
            given = [argument(twins) if callable(argument) else argument for argument in arguments]
            try:
                found = getattr(twins[which], method)
                answers.append(("returned", found(*given) if callable(found) else found))
            except Exception as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1], (method, arguments)
        assert type(answers[0][1]) is type(answers[1][1])

    @rule(which=st.integers(0, 1), times=st.lists(TIMES, min_size=1, max_size=20))
    def record(self, which: int, times: list[object]) -> None:
        for ns in times:
            self.both(which, "record", ns)

    @rule(which=st.integers(0, 1), q=SHARES)
    def quantile(self, which: int, q: object) -> None:
        self.both(which, "quantile", q)

    @rule(which=st.integers(0, 1), qs=st.one_of(st.lists(SHARES), st.lists(st.floats(0, 1)), st.just(0.5)))
    def quantiles(self, which: int, qs: object) -> None:
        self.both(which, "quantiles", qs)

    @rule(which=st.integers(0, 1), other=st.integers(0, 1), times=st.sampled_from([1, 1, 1, 20, 70]))
    def merge(self, which: int, other: int, times: int) -> None:
        for _ in range(times):
            self.both(which, "merge", lambda twins: twins[other])

    @rule(which=st.integers(0, 1))
    def clear(self, which: int) -> None:
        self.both(which, "clear")

    @rule(which=st.integers(0, 1))
    def copy(self, which: int) -> None:
        for twins in self.twins:
            twins[1 - which] = twins[which].copy()

    @invariant()
    def same(self) -> None:
        if hasattr(self, "twins"):
            for which in (0, 1):
                for name in ("check", "__len__", "count", "total_ns", "max_ns", "counts"):
                    self.both(which, name)
                self.both(which, "quantiles", QS)


def test_twins() -> None:
    run_state_machine_as_test(Twins, settings=settings(max_examples=60, stateful_step_count=30))


@pytest.mark.long
def test_twins_long() -> None:
    run_state_machine_as_test(Twins, settings=settings(max_examples=500, stateful_step_count=50))
