"""A controller that drives a real pool: what it is told of work that ends, fails or never began, and what it makes of
that. Steps are taken by hand, on a fake clock, but for where the thread is what is tested."""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Make, Run, turns

from relay.controller import AIMD, PID, Fixed, Gradient, Step
from relay.errors import AcquireTimeout, Closed, Overloaded

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]

BY_HAND = 1e6
"""A period in which the control's own thread never comes to take a step."""


def let_step(lab: Any, clock: Any, control: Any) -> None:
    """Let a second pass, and wait until the control has taken its step."""
    before = control.last
    clock.wait_for_sleepers(1)
    clock.advance(1)
    lab.wait_until(lambda: control.last is not before)
    clock.wait_for_sleepers(1)


def seen(control: Any) -> tuple[int, int, float | None]:
    """Completed, dropped and latency since the step before."""
    control.tick()
    return control.last.completed, control.last.dropped, control.last.latency


# What it is told.


def test_a_pool_grows_and_shrinks(lab: Lab, make: Make, clock: Any) -> None:
    pool = make(10, max_capacity=12)
    loads = [0.9, 0.9, 0.9, None, math.nan, 0.1]
    control = pool.control(Step(below=0.3), lambda: loads.pop(0), every=1.0)
    sizes = []
    for _ in range(6):
        let_step(lab, clock, control)
        sizes.append(pool.capacity)
    assert sizes == [11, 12, 12, 12, 12, 10]  # 12 less a tenth is 10.8, and rounded down
    assert control.alive and control.last.limit == 12
    pool.close()
    lab.wait_until(lambda: not control.alive)


class Wants:
    """A controller that wants one limit after the other."""

    def __init__(self, *limits: float) -> None:
        self.limits = iter(limits)

    def update(self, sample: Any) -> float:
        return next(self.limits)


def test_a_controlled_pool_tells_what_it_saw(lab: Lab, make: Make, clock: Any) -> None:
    """Latency is from grant to release; a cut takes no token from its holder; a raise serves who waits."""
    pool = make(2, max_capacity=8)
    control = pool.control(Wants(2, 1, 3), every=BY_HAND)
    one, two = pool.acquire(0), pool.acquire(0)
    waiter = lab.call(pool.acquire, 0)
    lab.wait_until(lambda: pool.waiting == 1)
    control.tick()
    seen = control.last
    assert (seen.limit, seen.in_use, seen.waiting, seen.latency, seen.completed, seen.dropped) == (2, 2, 1, None, 0, 0)
    control.tick()
    assert pool.capacity == 1 and pool.held == 2
    clock.advance(0.5)
    one.release()
    assert pool.held == 1 and pool.waiting == 1
    control.tick()
    seen = control.last
    assert (seen.in_use, seen.completed, seen.latency, seen.load) == (1, 1, pytest.approx(0.5), None)
    assert pool.capacity == 3
    waiter.result().release()
    two.release()


@pytest.mark.parametrize("controller", [Fixed(3), Step(), AIMD(0.1), Gradient(), PID()], ids=repr)
def test_every_controller_can_drive_a_pool(lab: Lab, make: Make, clock: Any, controller: Any) -> None:
    pool = make(3, max_capacity=8)
    control = pool.control(controller, lambda: 0.8, every=1.0)
    let_step(lab, clock, control)
    assert control.alive and control.last is not None and pool.capacity == 3


class Broken(Exception):
    """An error of the work itself."""


def work(clock: Any, error: BaseException | None) -> None:
    clock.advance(0.5)
    if error is not None:
        raise error


async def coroutine(clock: Any, error: BaseException | None) -> None:
    await turns(2)
    work(clock, error)


async def by_run(pool: Any, *args: Any) -> None:
    pool.run(work, *args)


async def by_run_async(pool: Any, *args: Any) -> None:
    await pool.run_async(coroutine, *args)


async def by_run_async_on_a_thread(pool: Any, *args: Any) -> None:
    await pool.run_async(work, *args)


async def by_guard(pool: Any, *args: Any) -> None:
    pool.guard(work)(*args)


async def by_async_guard(pool: Any, *args: Any) -> None:
    await pool.guard(coroutine)(*args)


async def by_token(pool: Any, *args: Any) -> None:
    with pool.acquire():
        work(*args)


async def by_lease(pool: Any, *args: Any) -> None:
    with pool.lease():
        work(*args)


async def by_async_lease(pool: Any, *args: Any) -> None:
    async with pool.lease():
        await coroutine(*args)


WAYS = [
    by_run, by_run_async, by_run_async_on_a_thread, by_guard, by_async_guard, by_token, by_lease, by_async_lease
]  # fmt: skip
ways = pytest.mark.parametrize("way", WAYS)


@ways
@pytest.mark.filterwarnings("ignore:.*blocks the running event loop:RuntimeWarning")
def test_work_that_fails_was_dropped(make: Make, clock: Any, run: Run, way: Any) -> None:
    """Its time is in no latency: an error that comes at once would look like a fast device."""
    pool = make(2)
    control = pool.control(Fixed(2), every=BY_HAND)

    async def main() -> None:
        with pytest.raises(Broken):
            await way(pool, clock, Broken())
        assert seen(control) == (0, 1, None)
        await way(pool, clock, None)
        assert seen(control) == (1, 0, pytest.approx(0.5))
        with pytest.raises(Broken):
            await way(pool, clock, Broken())
        await way(pool, clock, None)
        assert seen(control) == (1, 1, pytest.approx(0.5))
        assert seen(control) == (0, 0, None)

    run(main())


@pytest.mark.parametrize("way", [by_run_async, by_async_guard, by_async_lease, by_token])
@pytest.mark.filterwarnings("ignore:.*blocks the running event loop:RuntimeWarning")
def test_work_that_was_broken_off_says_nothing(make: Make, clock: Any, run: Run, way: Any) -> None:
    """A cancelled task has neither completed nor failed, however long it took."""
    pool = make(2)
    control = pool.control(Fixed(2), every=BY_HAND)

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await way(pool, clock, asyncio.CancelledError())
        assert seen(control) == (0, 0, None)

    run(main())


def test_a_lease_that_was_taken_back_was_dropped(lab: Lab, make: Make, clock: Any) -> None:
    pool = make(1, grace=1)
    control = pool.control(Fixed(1), every=BY_HAND)
    token = pool.acquire(heartbeat=5)
    clock.wait_for_sleepers(2)
    clock.advance(5)
    lab.wait_until(lambda: token.state == "revoked")
    assert seen(control) == (0, 0, None)
    clock.wait_for_sleepers(2)
    clock.advance(1)
    lab.wait_until(lambda: not token.held)
    assert seen(control) == (0, 1, None)


def test_threads_that_gave_up_dropped_nothing(lab: Lab, make: Make, clock: Any) -> None:
    pool = make(1, max_waiting=2)
    control = pool.control(Fixed(1), every=BY_HAND)
    with pool.acquire():
        with pytest.raises(AcquireTimeout):
            pool.run(work, clock, None, timeout=0)
        late = [lab.call(enter, timeout=1) for enter in (pool.acquire, partial(pool.run, work, clock, None))]
        clock.wait_for_sleepers(3)  # the control as well
        assert pool.waiting == 2
        with pytest.raises(Overloaded):
            pool.acquire()
        clock.advance(1)
        for call in late:
            with pytest.raises(AcquireTimeout):
                call.result()
        assert seen(control) == (0, 0, None) and control.last.waiting == 0
        last = lab.call(pool.acquire)
        lab.wait_until(lambda: pool.waiting == 1)
        clock.advance(1)
    last.result().release()
    assert seen(control) == (2, 0, pytest.approx(1.0))  # 2 s and none
    pool.close()
    with pytest.raises(Closed):
        pool.acquire()


def test_coroutines_that_gave_up_dropped_nothing(lab: Lab, make: Make, clock: Any, run: Run) -> None:
    pool = make(1)
    control = pool.control(Fixed(1), every=BY_HAND)

    async def lease() -> None:
        async with pool.lease():
            raise AssertionError("it was let in")

    async def main() -> None:
        with pool.acquire():
            late = [asyncio.create_task(pool.run_async(enter, timeout=1)) for enter in (int, turns)]
            gone = [asyncio.create_task(enter) for enter in (pool.acquire_async(), pool.run_async(turns), lease())]
            await turns(2)
            assert pool.waiting == 5
            for task in gone:
                task.cancel()
            clock.advance(1)
            ends = await asyncio.gather(*late, *gone, return_exceptions=True)
            assert [type(end) for end in ends] == [AcquireTimeout] * 2 + [asyncio.CancelledError] * 3
            assert seen(control) == (0, 0, None) and control.last.waiting == 0
            given = asyncio.create_task(lease())
            await turns(2)
        given.cancel()  # in the moment in which it is given the token
        with pytest.raises(asyncio.CancelledError):
            await given
        assert seen(control) == (1, 0, pytest.approx(1.0))

    run(main())


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("error", [None, Broken()], ids=["ends", "fails"])
def test_work_whose_caller_left_counts_as_it_ends(
    lab: Lab, make: Make, clock: Any, run: Run, kind: str, error: Broken | None
) -> None:
    pool = make(1)
    control = pool.control(Fixed(1), every=BY_HAND)
    begun, left, go_on = threading.Event(), threading.Event(), asyncio.Event()

    def blocking() -> None:
        begun.set()
        assert left.wait(30)
        work(clock, error)

    async def waiting() -> None:
        begun.set()
        await go_on.wait()
        work(clock, error)

    async def main() -> None:
        caller = asyncio.create_task(pool.run_async(blocking if kind == "def" else waiting))
        await turns(3)
        assert begun.wait(30)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert seen(control) == (0, 0, None) and control.last.in_use == 1
        left.set()
        go_on.set()
        await turns(3)
        lab.wait_until(lambda: pool.held == 0)
        assert seen(control) == ((1, 0, pytest.approx(0.5)) if error is None else (0, 1, None))

    run(main())


# What controllers make of it.


class Traffic:
    """Callers who keep a pool full, and some who do not get in.

    A round takes a second: whoever was let in works for half of it, then others take their places; and in each half
    some stand in line for a while and give up.

    Args:
        pool: A pool.
        clock: Its clock.
        control: Its control, which takes a step at the end of each round.
        failing: The share of the work that fails.
    """

    def __init__(self, pool: Any, clock: Any, control: Any, failing: float = 0.0) -> None:
        self.pool, self.clock, self.control = pool, clock, control
        self.failing = failing
        self.gave_up = 0
        self._owed = 0.0  # failures still to come
        self.capacities: list[int] = []
        self._held: list[Any] = []

    async def rounds(self, count: int) -> list[int]:
        """Lets so many rounds pass: the capacity after each."""
        for _ in range(count):
            await self._work()
            late = await self._come()
            self.control.tick()
            self.capacities.append(self.pool.capacity)
            await self._give_up(late)
        return self.capacities[-count:]

    async def __aenter__(self) -> Traffic:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._leave()

    async def _work(self) -> None:
        await self._give_up(await self._come())
        self._leave()

    async def _come(self) -> list[Any]:
        while (token := self.pool.try_acquire()) is not None:
            self._held.append(token)
        late = [asyncio.create_task(self.pool.acquire_async(timeout=0.4)) for _ in range(4)]
        await turns(1)
        return late

    async def _give_up(self, late: list[Any]) -> None:
        await turns(2)  # some have been let in by a resize
        self.clock.advance(0.5)
        for end in await asyncio.gather(*late, return_exceptions=True):
            if isinstance(end, BaseException):
                assert isinstance(end, AcquireTimeout)
                self.gave_up += 1
            else:
                self._held.append(end)

    def _leave(self) -> None:
        for token in self._held:
            self._owed += self.failing
            with suppress(Broken), token:
                if self._owed >= 1:
                    self._owed -= 1
                    raise Broken
        self._held.clear()


CONTROLLERS = [
    pytest.param(lambda: AIMD(), id="AIMD"),
    pytest.param(lambda: AIMD(target=2.0), id="AIMD with a target"),
    pytest.param(lambda: Gradient(), id="Gradient"),
]
each_controller = pytest.mark.parametrize("controller", CONTROLLERS)


@each_controller
def test_failed_work_shrinks(make: Make, clock: Any, run: Run, controller: Any) -> None:
    pool = make(20, max_capacity=40)

    async def main() -> None:
        async with Traffic(pool, clock, pool.control(controller(), every=BY_HAND), failing=0.5) as traffic:
            sizes = await traffic.rounds(30)
            assert max(sizes[-5:]) <= 4, sizes
            traffic.failing = 0.0
            assert (await traffic.rounds(90))[-1] > 10, traffic.capacities  # it comes back when the fault has gone

    run(main())


@each_controller
@pytest.mark.parametrize("capacity", [8, 30])
def test_a_few_failures_are_no_overload(make: Make, clock: Any, run: Run, controller: Any, capacity: int) -> None:
    """Nor is one among few, whose share is large: while a probe narrows the limit, say."""
    pool = make(capacity, max_capacity=40)

    async def main() -> None:
        async with Traffic(pool, clock, pool.control(controller(), every=BY_HAND), failing=0.03) as traffic:
            await traffic.rounds(120)
            late = traffic.capacities[60:]
            assert sum(late) / len(late) > capacity and min(late) > 1, traffic.capacities

    run(main())


@each_controller
def test_callers_who_give_up_shrink_nothing(make: Make, clock: Any, run: Run, controller: Any) -> None:
    """A limit that is too low makes them, and lowering it would make more."""
    pool = make(8, max_capacity=40)

    async def main() -> None:
        control = pool.control(controller(), every=BY_HAND)
        async with Traffic(pool, clock, control) as traffic:
            for _ in range(90):
                await traffic.rounds(1)
                assert control.last.dropped == 0
            assert traffic.gave_up == pool.snapshot().timed_out > 400
            assert min(traffic.capacities) >= 2 and traffic.capacities[-1] > 8, traffic.capacities

    run(main())


@each_controller
def test_nothing_but_callers_who_give_up_changes_nothing(make: Make, clock: Any, run: Run, controller: Any) -> None:
    """The work itself never ends, so there is nothing to learn from."""
    pool = make(4, max_capacity=8)

    async def main() -> None:
        control = pool.control(controller(), every=BY_HAND)
        held = [pool.acquire() for _ in range(4)]
        for _ in range(20):
            late = [asyncio.create_task(pool.acquire_async(timeout=0.5)) for _ in range(10)]
            await turns(1)
            control.tick()
            assert (control.last.in_use, control.last.waiting, control.last.dropped) == (4, 10, 0)
            clock.advance(1)
            for end in await asyncio.gather(*late, return_exceptions=True):
                assert isinstance(end, AcquireTimeout)
            control.tick()
            assert pool.capacity == 4
        for token in held:
            token.release()

    run(main())
