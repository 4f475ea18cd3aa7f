"""The loop that lets a controller set a pool's capacity: steps without a thread, and the thread on a fake clock."""

from __future__ import annotations

import gc
import logging
import math
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fork_kit import held_elsewhere, in_child

from relay.control import Control
from relay.controller import AIMD, PID, Sample, Step
from relay.errors import Closed
from relay.testing import FakeClock

Reading = tuple[int, int, int, float | None, int, int]


class StandIn:
    """What control sees of a pool."""

    def __init__(self, capacity: int = 10, max_capacity: int = 64) -> None:
        self.name = "gpu"
        self.closed = False
        self.capacity, self.max_capacity = capacity, max_capacity
        self.sizes: list[int] = []
        self.asked = 0
        self.changed = threading.Condition()
        self.on_resize: Callable[[], None] = lambda: None

    def resize(self, n: int) -> None:
        if self.closed:
            raise Closed("the pool is closed")
        assert type(n) is int and 1 <= n <= self.max_capacity
        with self.changed:
            self.capacity = n
            self.sizes.append(n)
            self.changed.notify_all()
        self.on_resize()

    def _sample(self) -> Reading:
        if self.closed:
            raise Closed("the pool is closed")
        self.asked += 1
        return self.capacity, self.capacity, 3, 0.05, 100, 0

    def wait_for_sizes(self, *sizes: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.sizes == list(sizes), 30), self.sizes


class Wants:
    """A controller that wants one thing after the other, and the last for ever."""

    def __init__(self, *wanted: Any) -> None:
        self.wanted = list(wanted)
        self.samples: list[Sample] = []

    def update(self, sample: Sample) -> float:
        self.samples.append(sample)
        wanted = self.wanted.pop(0) if len(self.wanted) > 1 else self.wanted[0]
        if isinstance(wanted, BaseException):
            raise wanted
        return wanted  # type: ignore[no-any-return]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def threads() -> Iterator[Callable[[], list[threading.Thread]]]:
    """The threads that have come since, which all must have ended when the test is over."""
    before = set(threading.enumerate())

    def left() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in before]

    yield left
    for thread in left():
        thread.join(30)
        assert not thread.is_alive(), thread


def test_a_step(clock: FakeClock) -> None:
    pool, wants = StandIn(), Wants(12.0)
    control = Control(pool, wants, lambda: 0.9, 1.0, clock)
    assert (control.last, control.alive, pool.asked) == (None, False, 1)  # what was before has been thrown away
    clock.advance(5)
    control.tick()
    expected = Sample(1005.0, 10, 10, 3, 0.9, 0.05, 100, 0)
    assert control.last == expected and wants.samples == [expected]
    assert pool.sizes == [12]
    control.tick()
    assert pool.sizes == [12]  # no change, no resize


@pytest.mark.parametrize(
    ("wanted", "capacity"),
    [(12, 12), (12.999, 12), (10.999, 10), (9.999, 9), (0.3 * 40, 12), (30 * 0.4, 12), (0, 1), (-5.5, 1), (1e300, 64),
     (math.inf, 64), (-math.inf, 1), (64.5, 64), (True, 1)],
)  # fmt: skip
def test_rounding_and_bounds(wanted: float, capacity: int, clock: FakeClock) -> None:
    pool = StandIn()
    Control(pool, Wants(wanted), None, 1.0, clock).tick()
    assert pool.capacity == capacity


@pytest.mark.parametrize("wrong", [math.nan, None, "many", RuntimeError("unlucky"), Closed("another pool is")])
def test_a_controller_that_fails_changes_nothing(
    wrong: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = StandIn()
    control = Control(pool, Wants(wrong, wrong, 12, wrong), None, 1.0, clock)
    control.tick()
    control.tick()
    assert pool.sizes == [] and len(caplog.records) == 1  # not once a period
    assert "the controller of 'gpu' failed; its capacity stays 10" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING and caplog.records[0].exc_info
    control.tick()
    assert pool.sizes == [12]
    control.tick()
    assert pool.sizes == [12] and len(caplog.records) == 2  # a new failure


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.5, "high", [], RuntimeError("no device")])
def test_a_load_that_cannot_be_read_is_unknown(wrong: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    def load() -> Any:
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    pool = StandIn()
    control = Control(pool, Step(), load, 1.0, clock)
    for _ in range(3):
        control.tick()
        assert control.last is not None and control.last.load is None
    assert pool.sizes == []
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "the load for 'gpu' cannot be read" in caplog.text


@pytest.mark.parametrize("load", [None, lambda: None])
def test_an_unknown_load_is_no_fault(load: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    pool = StandIn()
    for controller in (Step(), PID(), AIMD(0.1, below=0.6)):
        Control(pool, controller, load, 1.0, clock).tick()
    assert pool.sizes == [] and caplog.text == ""


def test_the_settings_are_checked(clock: FakeClock) -> None:
    pool = StandIn()
    for every in (0, -1, math.nan, math.inf, 1e30, None):
        with pytest.raises(ValueError, match="every must be"):
            Control(pool, Step(), None, every, clock)  # type: ignore[arg-type]
    for controller in (Step, None, lambda sample: 3):
        with pytest.raises(TypeError, match=r"controller must be an object with update\(sample\)"):
            Control(pool, controller, None, 1.0, clock)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="load must be None or a function"):
        Control(pool, Step(), 0.5, 1.0, clock)  # type: ignore[arg-type]
    pool.closed = True
    with pytest.raises(Closed):
        Control(pool, Step(), None, 1.0, clock)


def test_the_thread(clock: FakeClock, threads: Callable[[], list[threading.Thread]]) -> None:
    pool = StandIn()
    control = Control(pool, Wants(11, 12, 13), None, 2.0, clock)
    assert threads() == [] and repr(control).endswith("not started>")
    assert control.start() is control and control.start() is control
    (thread,) = threads()
    assert thread.daemon and thread.name == "gpu-control" and control.alive and "running" in repr(control)
    clock.wait_for_sleepers(1)
    clock.advance(1.9)
    assert pool.asked == 1  # not before its time
    clock.advance(0.1)
    pool.wait_for_sizes(11)
    clock.wait_for_sleepers(1)
    clock.advance(1000)  # a long sleep is not made up for
    pool.wait_for_sizes(11, 12)
    clock.wait_for_sleepers(1)
    clock.advance(2)
    pool.wait_for_sizes(11, 12, 13)
    control.stop()
    thread.join(30)
    assert not control.alive and "stopped" in repr(control)
    control.stop()
    assert not control.start().alive
    control.tick()
    assert pool.asked == 4


def test_the_thread_lives_on(
    clock: FakeClock, threads: Callable[[], list[threading.Thread]], caplog: pytest.LogCaptureFixture
) -> None:
    pool = StandIn()
    errors: list[BaseException | None] = [SystemExit("from the load"), KeyboardInterrupt(), None, None, None]
    read = threading.Semaphore(0)

    def load() -> float:
        read.release()
        if (error := errors.pop(0)) is not None:
            raise error
        return 0.9

    with Control(pool, Wants(ValueError("first"), SystemExit("then"), 11), load, 1.0, clock) as control:
        for _ in range(4):
            clock.wait_for_sleepers(1)
            clock.advance(1)
            assert read.acquire(timeout=30)
        clock.wait_for_sleepers(1)
        assert control.alive and pool.sizes == []
        clock.advance(1)
        pool.wait_for_sizes(11)
    assert "it goes on" in caplog.text and "its capacity stays 10" in caplog.text


def test_a_closed_pool_ends_it(clock: FakeClock, threads: Callable[[], list[threading.Thread]]) -> None:
    for how in ("before", "by the load"):
        pool = StandIn()

        def load(pool: StandIn = pool) -> float:
            pool.closed = True
            return 0.9

        control = Control(pool, Step(), load, 1.0, clock).start()
        (thread,) = threads()
        pool.closed = how == "before"
        clock.wait_for_sleepers(1)
        clock.advance(1)
        thread.join(30)
        assert not control.alive and pool.sizes == []


def test_it_does_not_keep_the_pool(clock: FakeClock, threads: Callable[[], list[threading.Thread]]) -> None:
    pool = StandIn()
    control = Control(pool, Step(), lambda: 0.9, 1.0, clock).start()
    clock.wait_for_sleepers(1)
    clock.advance(1)
    pool.wait_for_sizes(11)
    clock.wait_for_sleepers(1)
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None
    for thread in threads():
        thread.join(30)  # at once, not at the end of its period
    assert not control.alive
    control.tick()
    assert "stopped" in repr(control)


def test_after_stop_nothing_is_resized(clock: FakeClock) -> None:
    """Stopped while the controller thinks: the answer comes too late."""
    pool = StandIn()
    thinking, go_on = threading.Event(), threading.Event()

    class Slow:
        def update(self, sample: Sample) -> float:
            thinking.set()
            assert go_on.wait(30)
            return 11

    control = Control(pool, Slow(), None, 1.0, clock)
    step = threading.Thread(target=control.tick, daemon=True)
    step.start()
    assert thinking.wait(30)
    control.tick()  # one at a time: this one does nothing
    assert pool.asked == 2
    control.stop()  # does not wait for it
    go_on.set()
    step.join(30)
    assert not step.is_alive() and pool.sizes == []


def test_stopped_from_within(clock: FakeClock, threads: Callable[[], list[threading.Thread]]) -> None:
    for where in ("load", "resize"):
        pool = StandIn()
        stop: list[Callable[[], None]] = []

        def load(stop: list[Callable[[], None]] = stop, where: str = where) -> float:
            if where == "load":
                stop[0]()
            return 0.9

        control = Control(pool, Step(), load, 1.0, clock)
        stop.append(control.stop)
        if where == "resize":
            pool.on_resize = control.stop
        control.start()
        (thread,) = threads()
        clock.wait_for_sleepers(1)
        clock.advance(1)
        thread.join(30)
        assert not thread.is_alive() and pool.sizes == ([] if where == "load" else [11])


def test_many_ticks_at_once(clock: FakeClock) -> None:
    pool = StandIn(1, max_capacity=10_000)
    running, most = [0], [0]

    class Counting:
        def update(self, sample: Sample) -> float:
            running[0] += 1
            most[0] = max(most[0], running[0])
            running[0] -= 1
            return sample.limit + 1

    control = Control(pool, Counting(), None, 1.0, clock)
    barrier = threading.Barrier(4)

    def ticks() -> None:
        barrier.wait()
        for _ in range(500):
            control.tick()

    many = [threading.Thread(target=ticks) for _ in range(4)]
    for thread in many:
        thread.start()
    for thread in many:
        thread.join(30)
    assert most == [1] and pool.sizes == list(range(2, len(pool.sizes) + 2))


EXIT = """
import relay.control, relay.controller
class Pool:
    name, closed, max_capacity = "gpu", False, 64
    def resize(self, n): pass
    def _sample(self): return 10, 10, 0, None, 0, 0
pool = Pool()
control = relay.control.Control(pool, relay.controller.Step(), None, 3600.0).start()
print(control.alive)
"""


def test_it_does_not_keep_the_process_alive() -> None:
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a11_a_child_is_not_controlled(clock: FakeClock, threads: Callable[[], list[threading.Thread]]) -> None:
    pool = StandIn()
    control = Control(pool, Step(), lambda: 0.9, 1.0, clock).start()
    clock.wait_for_sleepers(1)

    def child() -> None:
        control.tick()
        control.stop()
        assert not control.alive and pool.sizes == [] and not control.start().alive

    with held_elsewhere(control._stepping, control._resizing):
        in_child(child)
    assert control.alive
    control.stop()
