"""How soon somebody who waits for a token of a pool goes on, from the call of `release`, beside the semaphores of the
standard library. No other pool is alive meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from floors_pool import pool_of

import relay

Side = tuple[Callable[[], Any], Callable[[Any], Callable[[], object]]]
"""How to take a token, and what to call then to give it back."""


def thread_wake_up(side: Side, times: int) -> float:
    """How long it took to wake a blocked thread, in seconds: the median."""
    take, release_of = side
    ask, answer = threading.Lock(), threading.Lock()
    ask.acquire()
    answer.acquire()
    found: list[Any] = [take(), 0.0]

    def work() -> None:
        for _ in range(times):
            ask.acquire()
            found[:] = take(), perf_counter()
            answer.release()

    thread = threading.Thread(target=work)
    thread.start()
    took: list[float] = []
    for _ in range(times):
        release = release_of(found[0])
        ask.release()
        time.sleep(0.0003)  # until it is blocked
        begin = perf_counter()
        release()
        answer.acquire()
        took.append(found[1] - begin)
    thread.join()
    release_of(found[0])()
    return median(took)


def wake_up_of_thread(times: int = 25, rounds: int = 100) -> float:
    """The median of `threading.Semaphore`, over the pool's.

    Where a thread wakes up, and how deep that processor slept, makes more of a difference than the limiter. So both
    take turns often, and it is the median of all rounds that counts: the best one is a matter of luck.
    """
    limiter = threading.Semaphore()
    with pool_of(1) as pool:
        mine: Side = (pool.acquire, lambda token: token.release)
        theirs: Side = (limiter.acquire, lambda token: limiter.release)
        rows = [[thread_wake_up(side, times) for side in (mine, theirs)] for _ in range(rounds)]
    return median(row[1] for row in rows) / median(row[0] for row in rows)


async def task_wake_up(side: Side, times: int) -> float:
    """How long it took to wake a waiting task, in seconds: the median."""
    take, release_of = side
    found: list[Any] = [await take(), 0.0]

    async def work() -> None:
        found[:] = await take(), perf_counter()

    took: list[float] = []
    for _ in range(times):
        release = release_of(found[0])
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        begin = perf_counter()
        release()
        await task
        took.append(found[1] - begin)
    release_of(found[0])()
    return median(took)


def wake_up_of_task(times: int = 500, rounds: int = 40) -> float:
    """The median of `asyncio.Semaphore`, over the pool's."""

    async def rows(pool: relay.TokenPool) -> list[list[float]]:
        limiter = asyncio.Semaphore()
        mine: Side = (pool.acquire_async, lambda token: token.release)
        theirs: Side = (limiter.acquire, lambda token: limiter.release)
        return [[await task_wake_up(side, times) for side in (mine, theirs)] for _ in range(rounds)]

    with pool_of(1) as pool:
        found = asyncio.run(rows(pool))
    return min(row[1] for row in found) / min(row[0] for row in found)


FLOORS: list[tuple[str, float, Callable[[], float]]] = [
    ("pool_wake_up_of_thread", 1 / 1.1, wake_up_of_thread),
    ("pool_wake_up_of_task", 1 / 1.1, wake_up_of_task),
]

if __name__ == "__main__":
    for name, floor, measure in FLOORS:
        print(f"{name}: {measure():.2f}, floor {floor:.2f}")
