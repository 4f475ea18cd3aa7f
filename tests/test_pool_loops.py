"""Pools and event loops that come, go, and close too early; rows C2 and C4 of the scenarios."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from typing import TYPE_CHECKING, Any

from pool_kit import Loops, Make, Run, turns

from relay.errors import AcquireTimeout

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]


def abandoned(pool: Any, loops: Loops, waiters: int) -> list[Any]:
    """A closed loop with tasks that still stand in line; nobody has cancelled them."""
    loop = loops()
    tasks = [loop.create_task(pool.acquire_async(timeout=(None, 9)[i % 2])) for i in range(waiters)]
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.run_until_complete(turns())
    assert pool.waiting >= waiters
    loop.close()
    return tasks


def test_a_closed_loop_swallows_no_token(lab: Lab, make: Make, clock: Any, loops: Loops) -> None:
    pool = make(1)
    token = pool.acquire()
    tasks = abandoned(pool, loops, 3_000)
    thread = lab.call(pool.acquire)
    while pool.waiting < 3_001:
        pass
    token.release()
    token = thread.result()
    assert token.held and pool.waiting == 0
    token.release()
    assert pool.held == 0
    tasks.clear()
    gc.collect()  # the coroutines leave the line once more, with tokens that have gone on
    assert pool.held == 0
    token = pool.acquire()
    tasks = abandoned(pool, loops, 3)
    tasks.clear()
    clock.advance(20)
    pool.check()
    token.release()
    assert pool.held == 0
    gc.collect()
    assert not pool._timed


def test_c2_a_loop_closes_as_the_token_is_given(lab: Lab, make: Make, loops: Loops) -> None:
    """Given to a coroutine whose loop has closed before it could run: it comes back when the coroutine goes."""
    pools = [make(1) for _ in range(100)]
    for pool in pools:
        loop = loops()
        token = pool.acquire()
        task = loop.create_task(pool.acquire_async())
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(turns())
        barrier = threading.Barrier(2)

        def give(token: Any = token, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            token.release()

        thread = lab.call(give)
        barrier.wait()
        loop.close()
        thread.result()
        del task, loop
    gc.collect()
    assert all(pool.held == 0 and pool.waiting == 0 for pool in pools)


def test_c4_loops_come_and_go(lab: Lab, make: Make, run: Run) -> None:
    """One pool, three loops one after the other and then two at the same time; each leaves tasks behind, inside and in
    line, for the end of its run to cancel."""
    pool = make(1)
    served: list[int] = []

    async def work(length: int = 1) -> None:
        async with pool.lease():
            await turns(length)
            served.append(1)

    async def main() -> None:
        await asyncio.gather(*(work() for _ in range(20)))
        left = [asyncio.create_task(work(1_000_000)) for _ in range(3)]
        await turns(1)
        assert not any(task.done() for task in left) and pool.held == 1

    for number in range(3):
        run(main())
        assert (pool.held, pool.waiting, len(served)) == (0, 0, 20 * number + 20)
    threads = [lab.call(run, main()) for _ in range(2)]
    for thread in threads:
        thread.result()
    assert (pool.held, pool.waiting, len(served)) == (0, 0, 100)


def test_threads_and_loops_at_once(lab: Lab, make: Make, run: Run, seed: int) -> None:
    pool = make(2, reserved={0: 1}, clock=None)
    inside: list[int] = []
    served: list[int] = []

    def holding() -> None:
        inside.append(1)
        assert len(inside) <= 2
        inside.pop()
        served.append(1)

    def thread(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        for _ in range(150):
            try:
                with pool.acquire(rng.randrange(3), timeout=rng.choice((None, 0, 1e-4))):
                    holding()
            except AcquireTimeout:
                pass

    async def client(rng: random.Random) -> None:
        for _ in range(15):
            work = asyncio.ensure_future(pool.acquire_async(rng.randrange(3), timeout=rng.choice((None, 0, 1e-3))))
            if rng.random() < 0.3:
                await turns(rng.randrange(3))
                work.cancel()
            try:
                token = await work
            except (AcquireTimeout, asyncio.CancelledError):
                continue
            holding()
            await turns(rng.randrange(2))
            token.release()

    async def main(number: int) -> None:
        rng = random.Random(f"{seed} loop {number}")
        await asyncio.gather(*(client(rng) for _ in range(20)))

    works = [lab.call(thread, number) for number in range(4)] + [lab.call(run, main(number)) for number in range(2)]
    for work in works:
        work.result()
    assert (pool.held, pool.waiting) == (0, 0) and len(served) > 100
