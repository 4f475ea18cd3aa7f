"""How many requests a second a relay must carry beside the package `batched` (its asyncio form, no window).

A closed loop: 1,000 tasks, each asking again as soon as it has its answer, over a model that does nothing, with batches
of at most 64 on both sides. The time of a side is the least of alternating rounds, so that both see the same weather.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Coroutine
from time import perf_counter
from typing import Any

import relay

TASKS = 1_000
EACH = 12
ROUNDS = 11

Runner = Callable[[Coroutine[Any, Any, float]], float]


def _echo(items: list[int]) -> list[int]:
    return items


async def _closed_loop(ask: Callable[[int], Awaitable[int]]) -> float:
    async def client(number: int) -> None:
        for _ in range(EACH):
            if await ask(number) != number:
                raise AssertionError("someone else's answer")

    begin = perf_counter()
    await asyncio.gather(*(client(number) for number in range(TASKS)))
    return perf_counter() - begin


async def _with_relay() -> float:
    async with relay.Relay(_echo, max_batch_size=64, name="floor") as echo:
        await echo.run_async(0)
        return await _closed_loop(echo.run_async)


async def _with_batched() -> float:
    echo = importlib.import_module("batched").aio.dynamically(_echo, batch_size=64, timeout_ms=0.0)
    await echo(0)
    return await _closed_loop(echo)


def times_faster_than_batched(run: Runner) -> float:
    """Time of `batched` over time of relay, on event loops made by `run`."""
    times = [(run(_with_relay()), run(_with_batched())) for _ in range(ROUNDS)]
    return min(theirs for _, theirs in times) / min(ours for ours, _ in times)


def _uvloop() -> float:
    return times_faster_than_batched(importlib.import_module("uvloop").run)


FLOORS: list[tuple[str, float, Callable[[], float]]] = [
    ("relay_closed_loop_asyncio", 3.0, lambda: times_faster_than_batched(asyncio.run)),
    ("relay_closed_loop_uvloop", 3.0, _uvloop),
]

if __name__ == "__main__":
    for name, floor, measure in FLOORS:
        print(f"{name}: {measure():.2f}x, floor {floor}x")
