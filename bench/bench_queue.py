"""The queue of a model on both sides: what a request costs from admission to the end, by batch size, and what it costs
to choose a batch among sizes that differ; run with pytest-benchmark."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any

import pytest

REQUESTS = 512


def made(side: str) -> Any:
    return importlib.import_module(f"relay.{side}.queue").RequestQueue(1024, 1024 * 64, 512)


@pytest.mark.parametrize("size", [1, 8, 64])
@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_admit_take_finish(benchmark: Callable[..., object], side: str, size: int) -> None:
    queue, owner = made(side), object()

    def turns() -> None:
        admit, take, finish = queue.admit, queue.take, queue.finish
        for start in range(0, REQUESTS, size):
            for key in range(start, start + size):
                admit(owner, key, key, -1, 1, 0)
            finish(take(size, 0, 0)[0])

    benchmark(turns)
    queue.check()


@pytest.mark.parametrize("ready", [256, 4096])
@pytest.mark.parametrize("sizes", ["equal", "mixed"])
@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_take_of_64(benchmark: Any, side: str, sizes: str, ready: int) -> None:
    """The take alone, out of so many that are ready; a window of 256 where sizes differ, and who leaves is replaced."""
    queue = importlib.import_module(f"relay.{side}.queue").RequestQueue(8192, overdue_every=8)
    rng, owner, key = random.Random(1), object(), 0
    taken: Any = None

    def replace() -> None:
        nonlocal key
        if taken is not None:
            queue.finish(taken[0])
        while queue.queued < ready:
            cost = 40 if sizes == "equal" else min(512, int(rng.lognormvariate(4, 0.8)) + 3)
            queue.admit(owner, key, key, -1, cost)
            key += 1

    def take() -> None:
        nonlocal taken
        taken = queue.take(64, 0, 0, (3e5, 1e4, 2e4, 10.0))

    benchmark.pedantic(take, setup=replace, rounds=300 if side == "_core" else 50)
    queue.check()


@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_with_rows_and_deadlines(benchmark: Callable[..., object], side: str) -> None:
    queue, owner, ids = made(side), object(), list(range(40))

    def turns() -> None:
        for start in range(0, REQUESTS, 64):
            handles = [queue.admit(owner, key, key, 10**15 + key, 1, 0, 48) for key in range(start, start + 64)]
            for handle in handles:
                queue.write(handle, ids)
                queue.ready(handle, 1)
            queue.finish(queue.take(64, 64 * 64, 2)[0])

    benchmark(turns)
    queue.check()


@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_admit_all(benchmark: Callable[..., object], side: str) -> None:
    queue, owners = made(side), [object()] * REQUESTS

    def turns() -> None:
        queue.admit_all(owners, 0, 0)
        queue.finish(queue.take(REQUESTS, 0, 0)[0])

    benchmark(turns)
    queue.check()


@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_cancel(benchmark: Callable[..., object], side: str) -> None:
    """Out of the middle of a line of 512."""
    queue, owner = made(side), object()

    def turns() -> None:
        admit, cancel = queue.admit, queue.cancel
        handles = [admit(owner, 0, 0, 10**15) for _ in range(REQUESTS)]
        for handle in handles[::2] + handles[1::2]:
            cancel(handle)

    benchmark(turns)
    queue.check()


@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_bind_and_find(benchmark: Callable[..., object], side: str) -> None:
    queue, owner = made(side), object()
    texts = [f"{i} " * 128 for i in range(REQUESTS)]

    def turns() -> None:
        digest, bind, find = queue.digest, queue.bind, queue.find
        handles = []
        for text in texts:
            handle = queue.admit(owner, 0, 0)
            handles.append(handle)
            bind(digest(text), handle)
            find(digest(text))
        queue.finish(queue.take(REQUESTS, 0, 0)[0])

    benchmark(turns)
    queue.check()
