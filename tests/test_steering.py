"""Steering: what controllers are told of batches, how often, and that nothing they or a load do breaks the limit.

All in virtual time; where real controllers settle is in test_batch_controllers. Nothing of the core is used here.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fork_kit import held_elsewhere, in_child
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import NS
from relay.samples import Sample
from relay.steering import Steering

MS = NS // 1000


class Told:
    """A controller that keeps what it is told, and wants what it is given."""

    def __init__(self, wants: Any = None, **attributes: Any) -> None:
        self.wants = wants
        self.samples: list[Sample] = []
        self.__dict__.update(attributes)

    def update(self, sample: Sample) -> float:
        self.samples.append(sample)
        wants = self.wants(sample) if callable(self.wants) else self.wants
        return sample.limit if wants is None else wants  # type: ignore[no-any-return]


class Lane:
    """Tells a steering of batches, each right after the other."""

    def __init__(self, steering: Steering, now_ns: int = 1000 * NS) -> None:
        self.steering = steering
        self.now_ns = now_ns
        self.busy_ns = 0

    def ran(self, items: int = 10, ms: float = 10, failed: int = 0, waiting: int = 0, idle_ms: float = 0) -> int:
        run_ns = int(ms * MS)
        self.now_ns += run_ns + int(idle_ms * MS)
        self.busy_ns += run_ns
        self.steering.after_batch(self.now_ns, items, run_ns, failed, waiting, self.busy_ns)
        return self.steering.limit


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the log says, as it grows."""

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert record.exc_info is not None
            lines.append(record.getMessage())

    lines: list[str] = []
    handler = Kept(logging.WARNING)
    logging.getLogger("relay").addHandler(handler)
    yield lines
    logging.getLogger("relay").removeHandler(handler)


def trusted(steering: Steering) -> Lane:
    """A lane of which enough has been seen for its limit to grow."""
    lane = Lane(steering)
    for _ in range(40):
        lane.ran()
    return lane


# Settings


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Steering(Told, 64), TypeError, "controller must be an object with update"),  # type: ignore[arg-type]
        (lambda: Steering(None, 64), TypeError, "controller must be an object with update"),  # type: ignore[arg-type]
        (lambda: Steering(Told(), 64, 0.5), TypeError, "load must be None, 'busy' or a function"),  # type: ignore[arg-type]
        (lambda: Steering(Told(), 64, "gpu"), TypeError, "load must be None, 'busy' or a function"),  # type: ignore[arg-type]
        (lambda: Steering(Told(), 0), ValueError, "most must be a whole number of at least 1, got 0"),
        (lambda: Steering(Told(), 8, lanes=0), ValueError, "lanes must be a whole number of at least 1, got 0"),
        (lambda: Steering(Told(), 8, None, 0), ValueError, "period_s must be a number of seconds over 0"),
        (lambda: Steering(Told(), 8, None, math.inf), ValueError, "period_s must be a number of seconds over 0"),
        (lambda: Steering(Told(every=0), 8), ValueError, "every must be a number of seconds over 0"),
        (lambda: Steering(Told(every=-1), 8), ValueError, "every must be "),
        (lambda: Steering(Told(every="day"), 8), TypeError, "every must be "),
    ],
)  # fmt: skip
def test_bad_settings(make: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^{text}"):
        make()


@pytest.mark.parametrize(("start", "most", "limit"), [(None, 64, 64), (50, 200, 50), (50, 8, 8), (0, 8, 1)])
def test_where_it_starts(start: int | None, most: int, limit: int) -> None:
    assert Steering(Told(start=start), most).limit == limit
    assert Steering(Told(), most).limit == most


def test_repr() -> None:
    class Mine(Told):
        def __repr__(self) -> str:
            return "Mine()"

    assert repr(Steering(Mine(start=5), 64, name="r")) == "<Steering of 'r' by Mine(), 5 of 64>"


# How often, and what


def test_a_steady_controller_is_asked_once() -> None:
    steady = Told(wants=math.inf, every=None)
    steering = Steering(steady, 64)
    lane = Lane(steering)
    assert steering.steady and steering.limit == 64
    for _ in range(100):
        assert lane.ran(failed=10) == 64
    assert len(steady.samples) == 1
    assert Steering(Told(wants=7, every=None), 64).limit == 7
    assert Steering(Told(wants=100, every=None), 64).limit == 64
    assert Steering(Told(wants=9, every=None, start=5), 64).limit == 9


def test_once_a_period() -> None:
    controller = Told()
    steering = Steering(controller, 64, load=lambda: 0.5)
    lane = Lane(steering)
    assert not steering.steady
    lane.ran(items=20, ms=10)  # begins the first period
    for items in (10, 20, 30):
        lane.ran(items, ms=items)
    lane.ran(items=40, ms=200, failed=5, waiting=17)
    assert controller.samples == [
        Sample(now=1000.27, limit=64, in_use=24, waiting=17, load=0.5, latency=0.054, completed=115, dropped=5)
    ]
    assert steering.last is controller.samples[0]
    lane.ran(items=1, ms=249)
    assert len(controller.samples) == 1
    lane.ran(items=3, ms=1)
    assert len(controller.samples) == 2
    assert controller.samples[1].in_use == 2 and controller.samples[1].completed == 4


def test_its_own_period() -> None:
    controller = Told(every=1.0)
    lane = Lane(Steering(controller, 64, load=lambda: 0.5, period_s=3600))
    for _ in range(1000):
        lane.ran()
    assert len(controller.samples) == 9 and {sample.load for sample in controller.samples} == {0.5}


def test_a_long_pause_makes_up_for_nothing() -> None:
    controller = Told()
    lane = trusted(Steering(controller, 64))
    before = len(controller.samples)
    lane.ran(idle_ms=3_600_000)
    assert len(controller.samples) == before + 1
    lane.ran()
    assert len(controller.samples) == before + 1


def test_each_batch() -> None:
    controller = Told(every="batch")
    lane = Lane(Steering(controller, 64))
    lane.ran(items=10, ms=5, waiting=3)
    lane.ran(items=20, ms=7, failed=20)
    lane.ran(items=30, ms=9, failed=1)
    told = [(s.in_use, s.waiting, s.latency, s.completed, s.dropped) for s in controller.samples]
    assert told == [(10, 3, 0.005, 10, 0), (20, 0, None, 0, 20), (30, 0, 0.009, 29, 1)]


def test_an_error_is_no_latency() -> None:
    controller = Told()
    lane = Lane(Steering(controller, 64))
    for _ in range(20):
        lane.ran(ms=30)
        lane.ran(ms=0.001, failed=10)
    assert len(controller.samples) == 2
    assert all(s.latency == 0.03 and s.dropped >= 80 for s in controller.samples)


def test_where_all_fails_there_is_no_latency() -> None:
    controller = Told()
    lane = Lane(Steering(controller, 64))
    for _ in range(1000):
        lane.ran(ms=1, failed=10)
    assert controller.samples and all(s.latency is None and s.completed == 0 for s in controller.samples[1:])


# The load


def test_a_reading_is_told_once() -> None:
    readings = iter(range(1, 100))
    controller = Told(every="batch")
    steering = Steering(controller, 64, load=lambda: next(readings) / 100)
    lane = Lane(steering)
    for _ in range(101):
        lane.ran(ms=10)
    loads = [sample.load for sample in controller.samples]
    assert [load for load in loads if load is not None] == [0.02, 0.03, 0.04, 0.05, 0.06]  # the first was at the start
    assert loads[0] == 0.02 and loads[25] == 0.03 and loads[1:25] == [None] * 24


def test_without_a_load_it_is_unknown() -> None:
    controller = Told()
    trusted(Steering(controller, 64))
    assert controller.samples and {sample.load for sample in controller.samples} == {None}


@pytest.mark.parametrize("lanes", [1, 2])
def test_the_lanes_own_busy_share(lanes: int) -> None:
    controller = Told()
    lane = Lane(Steering(controller, 64, load="busy", lanes=lanes))
    for _ in range(100):
        lane.ran(ms=10, idle_ms=30)
    assert controller.samples[0].load is None
    assert [s.load for s in controller.samples[1:]] == pytest.approx([0.25 / lanes] * (len(controller.samples) - 1))


@pytest.mark.parametrize("bad", [math.nan, -0.1, math.inf, "much", [], 1j])
def test_a_load_that_is_none(said: list[str], bad: Any) -> None:
    controller = Told(start=5)
    lane = trusted(Steering(controller, 64, load=lambda: bad, name="mine"))
    assert {sample.load for sample in controller.samples} == {None} and lane.steering.limit == 5
    assert said == ["relay: the load for 'mine' cannot be read; while it is unknown nothing is widened by it"]


def test_a_load_that_is_unknown_is_no_trouble(said: list[str]) -> None:
    controller = Told()
    trusted(Steering(controller, 64, load=lambda: None))
    assert {sample.load for sample in controller.samples} == {None} and said == []


@pytest.mark.parametrize("error", [ValueError, SystemExit, BaseException])
def test_a_load_that_raises(said: list[str], error: type[BaseException]) -> None:
    def load() -> float:
        if calls.append(1) or len(calls) % 2:  # type: ignore[func-returns-value]
            raise error("no")
        return 0.5

    calls: list[int] = []
    controller = Told()
    lane = trusted(Steering(controller, 64, load=load))
    for _ in range(100):
        lane.ran()
    assert {sample.load for sample in controller.samples} == {None, 0.5} and len(said) == 1


# What comes back


@pytest.mark.parametrize(
    ("wants", "limit"),
    [(20, 20), (20.9, 20), (0, 1), (-5, 1), (1000, 64), (math.inf, 64), (-math.inf, 1), (True, 1), (0.1 * 3 * 10, 3)],
)
def test_it_is_rounded_and_held(wants: float, limit: int) -> None:
    controller = Told(start=10)
    lane = trusted(Steering(controller, 64))
    controller.wants = wants
    lane.ran(ms=250)
    assert lane.steering.limit == limit and type(lane.steering.limit) is int


def fails(sample: Sample) -> float:
    raise ArithmeticError("no")


def ends(sample: Sample) -> float:
    raise SystemExit


@pytest.mark.parametrize("wants", [fails, ends, lambda _: math.nan, lambda _: "ten", lambda _: [], lambda _: 10**400])
def test_a_controller_that_fails_leaves_the_limit(said: list[str], wants: Any) -> None:
    controller = Told(start=10, every="batch")
    lane = trusted(Steering(controller, 64, name="mine"))
    controller.wants = 20
    assert lane.ran() == 20
    controller.wants = wants
    for _ in range(100):
        assert lane.ran() == 20
    assert said == ["relay: the controller of 'mine' failed; where it does, the limit stays as it is"]
    controller.wants = 30
    assert lane.ran() == 30


def test_a_controller_that_returns_none(said: list[str]) -> None:
    class Nothing:
        every = "batch"

        def update(self, sample: Sample) -> Any:
            return None

    assert trusted(Steering(Nothing(), 64)).steering.limit == 64 and len(said) == 1


def test_a_steady_controller_that_fails(said: list[str]) -> None:
    assert Steering(Told(wants=fails, every=None), 64).limit == 64 and len(said) == 1


def test_ctrl_c_is_not_ours() -> None:
    def interrupted(sample: Sample) -> float:
        raise KeyboardInterrupt

    controller = Told(start=10, every="batch")
    lane = trusted(Steering(controller, 64))
    controller.wants = interrupted
    with pytest.raises(KeyboardInterrupt):
        lane.ran()
    controller.wants = 12
    assert lane.ran() == 12


@given(
    wants=st.lists(st.one_of(st.floats(), st.integers(), st.none(), st.text(max_size=2)), min_size=1, max_size=50),
    batches=st.lists(
        st.tuples(st.integers(1, 100), st.floats(0, 1000), st.floats(0, 1), st.integers(0, 1000)), max_size=60
    ),
    most=st.integers(1, 1000),
    every=st.sampled_from(["batch", 0.05, None]),
)
def test_whatever_it_wants(
    wants: list[Any], batches: list[tuple[int, float, float, int]], most: int, every: Any
) -> None:
    logging.getLogger("relay").disabled = True
    try:
        steering = Steering(Told(wants=lambda sample: wants[int(sample.now * 7) % len(wants)], every=every), most)
        lane = Lane(steering)
        for items, ms, failed, waiting in batches:
            limit = lane.ran(items, ms, int(items * failed), waiting)
            assert type(limit) is int and 1 <= limit <= most
    finally:
        logging.getLogger("relay").disabled = False


# Errors hold it (G1)


@pytest.mark.parametrize("every", ["batch", 0.25])
def test_nothing_grows_before_enough_is_known(every: Any) -> None:
    lane = Lane(Steering(Told(wants=64, start=10, every=every), 64))
    for _ in range(15):
        assert lane.ran(ms=100) == 10
    for _ in range(5):
        lane.ran(ms=100)
    assert lane.steering.limit == 64


@pytest.mark.parametrize("every", ["batch", 0.25])
@pytest.mark.parametrize("ms", [1, 300])
def test_nothing_grows_while_work_fails(every: Any, ms: float) -> None:
    def run(failed: int) -> Iterator[int]:
        for i in range(4000):
            yield lane.ran(ms=ms, failed=failed * (i % 5 == 0))  # one batch in five

    controller = Told(start=10, every=every)
    lane = Lane(Steering(controller, 64))
    assert set(run(failed=10)) == {10}
    controller.wants = lambda sample: sample.limit + 1
    assert set(run(failed=10)) == {10}
    controller.wants = lambda sample: sample.limit - 1
    assert list(run(failed=10))[-1] < 10  # it may shrink
    controller.wants = lambda sample: sample.limit + 1
    assert list(run(failed=0))[-1] > 10  # and all is forgotten some time


def test_what_always_fails_somewhere_holds_nothing() -> None:
    controller = Told(start=10, every="batch", wants=lambda sample: sample.limit + 1)
    lane = Lane(Steering(controller, 64))
    for _ in range(100):
        lane.ran(items=64, failed=1)
    assert lane.steering.limit == 64


# Threads and forks


def test_one_at_a_time_and_nobody_waits() -> None:
    def update(sample: Sample) -> float:
        inside.set()
        assert gate.wait(30)
        return 5

    inside, gate = threading.Event(), threading.Event()
    controller = Told(wants=update, every="batch")
    steering = Steering(controller, 64)
    lane = Lane(steering)
    thread = threading.Thread(target=lane.ran)
    thread.start()
    assert inside.wait(30)
    for _ in range(3):
        lane.ran(items=20)
    assert len(controller.samples) == 1
    gate.set()
    thread.join(30)
    assert steering.limit == 5
    lane.ran(items=20)
    assert [sample.completed for sample in controller.samples] == [10, 80]  # none is left out


def test_many_lanes() -> None:
    def update(sample: Sample) -> float:
        assert not asked.locked()
        with asked:
            return sample.limit

    def run(number: int) -> None:
        barrier.wait(30)
        for i in range(2000):
            steering.after_batch(1000 * NS + i * MS, 3, MS, i % 2, number, i * MS)

    asked, barrier = threading.Lock(), threading.Barrier(8)
    controller = Told(wants=update, every="batch")
    steering = Steering(controller, 64)
    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    steering.after_batch(2000 * NS, 3, MS, 0, 0, 0)
    assert sum(s.completed for s in controller.samples) == 8 * 2000 * 3 - 8000 + 3
    assert sum(s.dropped for s in controller.samples) == 8000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_waits_for_no_thread_of_its_parent() -> None:
    controller = Told(every="batch")
    steering = Steering(controller, 64)
    lane = trusted(steering)

    def child() -> None:
        before = len(controller.samples)
        lane.ran()
        assert len(controller.samples) == before + 1

    with held_elsewhere(steering._counting, steering._asking):
        in_child(child)
    child()
