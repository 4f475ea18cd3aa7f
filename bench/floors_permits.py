"""What acquire and release of the native pool must keep against the standard library. Uncontended, with reserved tokens
set: many times faster than `threading.Semaphore`, not much slower than a bare lock, which keeps no count, and faster
than `asyncio.Semaphore`. With 1,000 tasks on 8 tokens: not much slower than `asyncio.Semaphore`, which keeps no
priorities.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any


def pool(floors: tuple[tuple[int, int], ...] = ()) -> Any:
    permits = importlib.import_module("relay._core.permits").Permits(8, floors, 2_000)
    permits.custom = False
    return permits


def relay_pair() -> Callable[[int], float]:
    """Rounds of ``try_acquire`` and ``release`` on a pool of which tokens are reserved for other tiers."""
    permits = pool(((0, 1), (2, 1)))

    def run(steps: int) -> float:
        take, give = permits.try_acquire, permits.release
        begin = perf_counter()
        for _ in range(steps):
            give(take(1))
        return perf_counter() - begin

    return run


def standard_pair(limiter: threading.Semaphore | threading.Lock) -> Callable[[int], float]:
    """Rounds of ``acquire`` and ``release``."""

    def run(steps: int) -> float:
        take, give = limiter.acquire, limiter.release
        begin = perf_counter()
        for _ in range(steps):
            take()
            give()
        return perf_counter() - begin

    return run


def ratio(theirs: Callable[[int], float], *, steps: int = 10_000, rounds: int = 40) -> float:
    """How many times faster relay is than `theirs`: best round against best round, taken in turns."""
    ours = relay_pair()
    times = [(ours(steps), theirs(steps)) for _ in range(rounds)]
    return min(other for _, other in times) / min(mine for mine, _ in times)


async def relay_awaits(steps: int) -> None:
    take = pool(((0, 1), (2, 1))).acquire_async
    for _ in range(steps):
        token = await take(1)
        token.release()


async def standard_awaits(steps: int) -> None:
    semaphore = asyncio.Semaphore(8)
    for _ in range(steps):
        await semaphore.acquire()
        semaphore.release()


async def relay_crowd(steps: int) -> None:
    """1,000 tasks, each of which holds a token for one turn of the loop, several times."""
    permits = pool()

    async def work() -> None:
        for _ in range(steps // 1_000):
            token = await permits.acquire_async(1)
            await asyncio.sleep(0)
            token.release()

    await asyncio.gather(*[work() for _ in range(1_000)])


async def standard_crowd(steps: int) -> None:
    semaphore = asyncio.Semaphore(8)

    async def work() -> None:
        for _ in range(steps // 1_000):
            await semaphore.acquire()
            await asyncio.sleep(0)
            semaphore.release()

    await asyncio.gather(*[work() for _ in range(1_000)])


Main = Callable[[int], Coroutine[Any, Any, None]]


def async_ratio(ours: Main, theirs: Main, *, steps: int = 10_000, rounds: int = 15) -> float:
    """As `ratio`, on an event loop."""

    def run(main: Main) -> float:
        with asyncio.Runner() as runner:
            runner.run(main(1_000))
            begin = perf_counter()
            runner.run(main(steps))
            return perf_counter() - begin

    times = [(run(ours), run(theirs)) for _ in range(rounds)]
    return min(other for _, other in times) / min(mine for mine, _ in times)


FLOORS: list[tuple[str, float, Callable[[], float]]] = [
    ("permits_semaphore", 10.0, lambda: ratio(standard_pair(threading.Semaphore(8)))),
    ("permits_lock", 1 / 1.5, lambda: ratio(standard_pair(threading.Lock()))),
    ("async_uncontended", 1.8, lambda: async_ratio(relay_awaits, standard_awaits)),
    ("async_1000_on_8", 1 / 1.1, lambda: async_ratio(relay_crowd, standard_crowd)),
]
