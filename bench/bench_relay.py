"""What a request costs end to end, through a thread and through an event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import relay


def test_submit_and_result(benchmark: Any) -> None:
    with relay.Relay(lambda items: items) as echo:
        benchmark(lambda: echo.submit(1).result())


def test_submit_many(benchmark: Any) -> None:
    items = list(range(256))
    with relay.Relay(lambda items: items) as echo:
        benchmark(lambda: echo.submit_many(items).result())


def test_closed_loop_of_1000_tasks(benchmark: Any) -> None:
    async def run() -> None:
        async with relay.Relay(lambda items: items) as echo:
            await asyncio.gather(*(echo.run_async(i) for i in range(1_000)))

    benchmark(lambda: asyncio.run(run()))


def test_merged_requests(benchmark: Any) -> None:
    with relay.Relay(lambda items: items, merge=True) as echo:
        benchmark(lambda: echo.submit_many(["the same text"] * 256).result())
