"""The scenarios A1, A2, A3 and A5: waiters of a pool that are cancelled, late or disconnected, and a pool resized.

Each for threads and for coroutines. A4 is in `test_pool_races`, A6 in `test_pool_late_holders`.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Make, Run, turns

from relay.errors import AcquireTimeout, Overloaded

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]


def test_a1_a_cancelled_waiter_passes_its_token_on(make: Make, run: Run) -> None:
    async def main(end: Callable[[asyncio.Task[Any]], object]) -> None:
        pool = make(1)
        token = await pool.acquire_async()
        first, second = (asyncio.create_task(pool.acquire_async(timeout=9)) for _ in range(2))
        await turns()
        assert pool.waiting == 2
        token.release()
        end(first)
        await turns(3)
        assert second.done() and first.cancelled()
        assert (pool.held, pool.free, pool.waiting) == (1, 0, 0)
        second.result().release()

    run(main(lambda task: task.cancel()))
    run(main(lambda task: (task.cancel(), task.cancel())))


def test_a1_from_other_doors(make: Make, clock: Any, run: Run) -> None:
    """The chosen waiter is cancelled before it was chosen, by a time limit around it, or times out as it is chosen."""
    pool = make(1)

    async def main() -> None:
        token = await pool.acquire_async()
        first, second = (asyncio.create_task(pool.acquire_async()) for _ in range(2))
        await turns()
        first.cancel()
        token.release()
        await turns(3)
        token = second.result()

        inner, outer = asyncio.create_task(pool.acquire_async()), asyncio.create_task(pool.acquire_async())
        await turns()
        token.release()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(inner, 0)
        await turns(3)
        token = outer.result()

        late, last = asyncio.create_task(pool.acquire_async(timeout=1)), asyncio.create_task(pool.acquire_async())
        await turns()
        clock.advance(1)
        with pytest.raises(AcquireTimeout):
            await late
        token.release()
        await turns(3)
        last.result().release()

    run(main())


class Stopped(BaseException):
    """Thrown into a thread."""


def test_a1_a_thread_that_is_stopped_passes_its_token_on(lab: Lab, make: Make) -> None:
    """As Ctrl-C does to the main thread: whether before it was chosen or after, the next one gets the token."""
    pool = make(1, clock=None)
    for _ in range(50):
        token = pool.acquire()
        first = lab.call(pool.acquire)
        lab.wait_until(lambda: pool.waiting == 1)
        second = lab.call(pool.acquire, timeout=30)
        lab.wait_until(lambda: pool.waiting == 2)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(first.thread.ident), ctypes.py_object(Stopped))
        token.release()
        token = second.result()
        assert (pool.held, pool.free, pool.waiting) == (1, 0, 0)
        token.release()
        with pytest.raises(Stopped):
            first.result()


def client(pool: Any, rng: random.Random, ends: dict[str, int]) -> None:
    """Asks once, with a deadline of 1 to 5 ms, and holds for a moment."""
    try:
        with pool.lease(rng.randrange(3), timeout=rng.uniform(0.001, 0.005)):
            ends["served"] += 1
            time.sleep(0)
    except AcquireTimeout:
        ends["late"] += 1


async def client_async(pool: Any, rng: random.Random, ends: dict[str, int]) -> None:
    """The same; it may be cancelled instead of late."""
    try:
        async with pool.lease(rng.randrange(3), timeout=rng.uniform(0.001, 0.005)):
            ends["served"] += 1
            await turns(rng.randrange(15))
            pool.check()
    except AcquireTimeout:
        ends["late"] += 1


@pytest.mark.parametrize(
    ("rounds", "seconds"), [(10, 0.0), pytest.param(0, 10.0, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_a2_short_deadlines_lose_nothing(make: Make, run: Run, rng: random.Random, rounds: int, seconds: float) -> None:
    """200 clients; whenever one of them looks, `check` finds nobody who waits for what is free."""
    pool, ends = make(40, clock=None), {"served": 0, "late": 0}

    async def late() -> None:
        """Holds all there is until somebody is late, so that both ends are met on a machine of any speed."""
        async with pool.lease(cost=40):
            while not ends["late"]:
                await asyncio.sleep(0.001)

    async def main() -> int:
        first = asyncio.ensure_future(late())
        await turns(2)
        until = time.monotonic() + seconds

        async def work() -> int:
            count = 0
            while count < rounds or time.monotonic() < until:
                await client_async(pool, rng, ends)
                count += 1
            return count

        asked = sum(await asyncio.gather(*(work() for _ in range(200))))
        await first
        return asked

    asked = run(main())
    assert ends["served"] + ends["late"] == asked and ends["served"] > 0 and ends["late"] > 0, ends
    assert (pool.waiting, pool.free) == (0, 40)


@pytest.mark.parametrize(
    ("rounds", "seconds"), [(10, 0.0), pytest.param(0, 10.0, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_a2_of_threads(lab: Lab, make: Make, seed: int, rounds: int, seconds: float) -> None:
    pool, ends = make(40, clock=None), [{"served": 0, "late": 0} for _ in range(200)]
    until = time.monotonic() + seconds

    def work(number: int) -> int:
        rng, count = random.Random(f"{seed} {number}"), 0
        while count < rounds or time.monotonic() < until:
            client(pool, rng, ends[number])
            count += 1
        return count

    threads = [lab.call(work, number) for number in range(200)]
    while any(thread.thread.is_alive() for thread in threads):
        pool.check()
        time.sleep(0.001)
    asked = sum(thread.result() for thread in threads)
    assert sum(sum(end.values()) for end in ends) == asked
    assert (pool.waiting, pool.free) == (0, 40)


def test_a3_resized_under_its_holders(lab: Lab, make: Make, clock: Any) -> None:
    pool = make(2, max_capacity=8)
    held = [pool.acquire(), pool.acquire()]
    waiters = []
    for number in range(2):
        waiters.append(lab.call(pool.acquire))
        clock.wait_for_sleepers(number + 1)
    for capacity, granted in ((1, 0), (2, 0), (1, 0), (3, 1)):
        pool.resize(capacity)
        assert (pool.held, pool.waiting) == (2 + granted, 2 - granted)
    held.append(waiters.pop(0).result())
    pool.resize(1)
    for left in (2, 1):
        held.pop().release()
        assert (pool.held, pool.waiting) == (left, 1), "more are out than there are: none is granted"
    held.pop().release()
    assert (pool.held, pool.waiting) == (1, 0)
    waiters.pop().result().release()


def test_a3_of_coroutines(make: Make, run: Run, rng: random.Random) -> None:
    """Random sizes: what is granted by a raise is just what it makes room for."""
    pool = make(2, max_capacity=8)

    async def main() -> None:
        tasks = [asyncio.create_task(pool.acquire_async()) for _ in range(300)]
        held: list[Any] = []
        while tasks or held:
            await turns(2)
            held += [task.result() for task in tasks if task.done()]
            tasks = [task for task in tasks if not task.done()]
            before, waiting = pool.held, pool.waiting
            assert (before, waiting) == (len(held), len(tasks))
            if held and rng.random() < 0.7:
                held.pop(rng.randrange(len(held))).release()
                before -= 1
            else:
                pool.resize(rng.randint(1, 8))
            granted = min(waiting, max(0, pool.capacity - before))
            assert (pool.held, pool.waiting) == (before + granted, waiting - granted)
            pool.check()

    run(main())


def test_a5_disconnected_callers_leave_no_trace(make: Make, clock: Any, run: Run) -> None:
    async def main(leave: str) -> None:
        pool = make(1, max_waiting=5)
        token = await pool.acquire_async()
        limit = 1 if leave == "timeout" else None
        callers = [asyncio.create_task(pool.acquire_async(timeout=limit)) for _ in range(5)]
        await turns()
        assert pool.snapshot().waiting == 5
        with pytest.raises(Overloaded, match="5 callers already wait") as refused:
            await pool.acquire_async()
        assert refused.value.reason == "queue_full" and refused.value.http_status == 429
        for caller in callers:
            if leave == "cancel":
                caller.cancel()
        if leave == "timeout":
            clock.advance(1)
        await asyncio.gather(*callers, return_exceptions=True)
        assert pool.snapshot().waiting == 0
        sixth = asyncio.create_task(pool.acquire_async())
        await turns()
        assert pool.snapshot().waiting == 1
        token.release()
        (await sixth).release()
        state = pool.snapshot()
        assert (state.waiting, state.held, state.granted, state.refused) == (0, 0, 2, 1)
        assert state.timed_out == (5 if leave == "timeout" else 0)

    run(main("cancel"))
    run(main("timeout"))
