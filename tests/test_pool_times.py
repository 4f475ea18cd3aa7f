"""The time limits of those who wait for a pool, threads and coroutines; row A9 of the scenarios."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Make, Run, turns

from relay.errors import AcquireTimeout

INFINITY, NAN = float("inf"), float("nan")

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]


LIMITS: list[Any] = [None, 0, 1e-9, 4294967.296, 1e10, INFINITY]


@pytest.mark.parametrize("timeout", [-1, -1e-9, NAN, -INFINITY])
def test_a9_a_time_limit_that_is_none(make: Make, run: Run, timeout: float) -> None:
    pool = make(1)
    text = f"timeout must be None or a number of seconds of at least 0, got {timeout!r}"
    for held in (False, True):
        token = pool.try_acquire() if held else None
        for call in (pool.acquire, pool.lease(timeout=timeout).__enter__, lambda **_: pool.run(int, timeout=timeout)):
            with pytest.raises(ValueError) as refused:
                call(**({"timeout": timeout} if call == pool.acquire else {}))
            assert str(refused.value) == text
        for work in (pool.acquire_async(timeout=timeout), pool.run_async(int, timeout=timeout)):
            with pytest.raises(ValueError) as refused:
                run(work)
            assert str(refused.value) == text
        if token is not None:
            token.release()


@pytest.mark.parametrize("timeout", LIMITS)
def test_a9_time_limits_of_threads(lab: Lab, make: Make, clock: Any, timeout: Any) -> None:
    pool = make(1)
    token = pool.acquire(timeout=timeout)
    thread = lab.call(pool.acquire, timeout=timeout)
    if timeout == 0:
        with pytest.raises(AcquireTimeout, match="timeout=0 does not wait"):
            thread.result()
    elif timeout == 1e-9:
        clock.wait_for_sleepers(1)
        clock.advance(1e-6)
        with pytest.raises(AcquireTimeout, match="became free within timeout=1e-09 s"):
            thread.result()
    else:
        clock.wait_for_sleepers(1)
        clock.advance(4294967)
        assert pool.waiting == 1
        token.release()
        token = thread.result()
    token.release()


@pytest.mark.parametrize("timeout", LIMITS)
def test_a9_time_limits_of_coroutines(make: Make, clock: Any, run: Run, timeout: Any) -> None:
    pool = make(1)

    async def main() -> None:
        token = await pool.acquire_async(timeout=timeout)
        task = asyncio.create_task(pool.acquire_async(timeout=timeout))
        await turns(1)
        if timeout in (0, 1e-9):
            clock.advance(1e-6)
            with pytest.raises(AcquireTimeout):
                await task
        else:
            assert pool.waiting == 1
            clock.advance(4294967)
            await turns()
            assert pool.waiting == 1
            token.release()
            token = await task
        token.release()

    run(main())


@pytest.mark.parametrize("timeout", [1e-9, 1e-4])
def test_a9_on_the_machines_own_clock(lab: Lab, make: Make, run: Run, timeout: float) -> None:
    pool = make(1, clock=None)
    with pool.acquire():
        with pytest.raises(AcquireTimeout):
            pool.acquire(timeout=timeout)
        with pytest.raises(AcquireTimeout):
            run(pool.acquire_async(timeout=timeout))
        thread = lab.call(pool.acquire, timeout=1e10)
        while not pool.waiting:
            pass
    thread.result().release()


def test_each_waiter_has_its_own_time(make: Make, clock: Any, run: Run) -> None:
    pool = make(1)

    async def main() -> None:
        token = await pool.acquire_async()
        limits = [5, 3, None, 1, 4]
        tasks = [asyncio.create_task(pool.acquire_async(timeout=limit)) for limit in limits]
        await turns()
        for now, late in [(1, 3), (3, 1), (4, 4)]:
            clock.advance(now - (clock.now_ns() / 1e9 - 1000))
            with pytest.raises(AcquireTimeout):
                await tasks[late]
            assert sum(task.done() for task in tasks) == {1: 1, 3: 2, 4: 3}[now]
        token.release()
        token = await tasks[0]
        assert not pool._timed, "its timer went with it"
        token.release()
        (await tasks[2]).release()

    run(main())


def test_time_and_release_at_the_same_moment(lab: Lab, make: Make, clock: Any) -> None:
    """The clock opens the waiter's gate, and the releaser would too, before the waiter runs: it has the token."""
    pool = make(1)
    interval = sys.getswitchinterval()
    for _ in range(20):
        token = pool.acquire()
        thread = lab.call(pool.acquire, timeout=1)
        clock.wait_for_sleepers(1)
        sys.setswitchinterval(5)
        try:
            clock.advance(1)
            token.release()
        finally:
            sys.setswitchinterval(interval)
        try:
            given = thread.result()
        except AcquireTimeout:
            assert pool.held == 0
        else:
            assert given.held and pool.held == 1
            given.release()


def test_granted_before_its_timer_is_set(lab: Lab, make: Make, clock: Any, run: Run) -> None:
    """Another thread may release between standing in line and setting the timer; its place may be taken again, too."""
    pool = make(1)
    plain = clock.now_ns
    joined: list[Any] = []

    async def main() -> None:
        token = await pool.acquire_async()
        calls: list[int] = []
        other: list[Any] = []

        def now_ns() -> int:
            calls.append(1)
            if len(calls) == 1:  # the core has its own way to the clock
                clock.now_ns = plain  # type: ignore[method-assign]
                joined.append(pool.waiting)
                token.release()
                other.append(lab.call(pool.acquire, timeout=50))
                clock.wait_for_sleepers(1)
            return plain()

        clock.now_ns = now_ns  # type: ignore[method-assign]
        mine = await pool.acquire_async(timeout=10)
        assert joined == [1] and mine.held and not pool._timed
        mine.release()
        other[0].result().release()

    run(main())
