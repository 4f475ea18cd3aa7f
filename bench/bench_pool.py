"""The pool as its users call it, and the limiters of the standard library beside it; run with pytest-benchmark.

RELAY_BACKEND chooses the side. What 32 threads get of 8 tokens is in `floors_pool.py`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import relay

STEPS = 1_000
WAITING = 1_000


@pytest.fixture
def pool() -> Iterator[relay.TokenPool]:
    with relay.TokenPool(1, max_waiting=WAITING, name="bench") as made:
        yield made
        made.check()


def plain(pool: relay.TokenPool) -> None:
    for _ in range(STEPS):
        pool.acquire().release()


def with_everything_said(pool: relay.TokenPool) -> None:
    for _ in range(STEPS):
        pool.acquire(relay.BATCH, timeout=1.0, cost=1, tenant="one").release()


def leased(pool: relay.TokenPool) -> None:
    for _ in range(STEPS):
        with pool.lease():
            pass


def with_a_heartbeat(pool: relay.TokenPool) -> None:
    for _ in range(STEPS):
        pool.acquire(heartbeat=10.0).release()


@pytest.mark.parametrize("task", [plain, with_everything_said, leased, with_a_heartbeat])
def test_thousand_pairs(benchmark: Any, pool: relay.TokenPool, task: Callable[[relay.TokenPool], None]) -> None:
    benchmark(task, pool)


def test_thousand_pairs_of_a_semaphore(benchmark: Any) -> None:
    limiter = threading.Semaphore()

    def pairs() -> None:
        for _ in range(STEPS):
            limiter.acquire()
            limiter.release()

    benchmark(pairs)


@pytest.mark.parametrize("side", ["pool", "Semaphore"])
@pytest.mark.parametrize("tasks", [1, 1_000])
def test_tasks(benchmark: Any, side: str, tasks: int) -> None:
    """Each task takes a token, lets others run, and gives it back, in all 1,000 times."""
    eight = relay.TokenPool(8, name="bench") if side == "pool" else asyncio.Semaphore(8)

    async def work() -> None:
        for _ in range(STEPS // tasks):
            if isinstance(eight, asyncio.Semaphore):
                async with eight:
                    await asyncio.sleep(0)
            else:
                with await eight.acquire_async():
                    await asyncio.sleep(0)

    async def all_of_them() -> None:
        await asyncio.gather(*(work() for _ in range(tasks)))

    with asyncio.Runner() as runner:
        benchmark(lambda: runner.run(all_of_them()))
    if isinstance(eight, relay.TokenPool):
        eight.close()


@pytest.mark.parametrize("waiting", [0, WAITING])
def test_snapshot(benchmark: Any, pool: relay.TokenPool, waiting: int) -> None:
    """Polled while tasks of many tenants wait, none or 1,000 of them."""

    async def in_line() -> None:
        with pool.acquire():
            tasks = [asyncio.ensure_future(wait(number)) for number in range(waiting)]
            await asyncio.sleep(0)
            assert pool.waiting == waiting
            benchmark(pool.snapshot)
        await asyncio.gather(*tasks)

    async def wait(number: int) -> None:
        (await pool.acquire_async(number % 3, tenant=str(number % 20))).release()

    asyncio.run(in_line())
