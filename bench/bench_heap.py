"""The heap on both sides, and C `heapq` beside them; run with pytest-benchmark."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

import pytest

SIZES = [100, 10_000]
STEPS = 1000


def keys_for(size: int) -> tuple[list[int], list[int]]:
    """The keys of a standing heap, and those pushed later: each lies in the window that the heap spans."""
    rng = random.Random(1)
    now = 10**15
    return (
        [now + rng.randrange(1000 * size) for _ in range(size)],
        [now + 500 * step + rng.randrange(1000 * size) for step in range(STEPS)],
    )


def filled(side: str, size: int) -> Any:
    heap = importlib.import_module(f"relay.{side}.heap").PriorityHeap(size)
    for slot, key in enumerate(keys_for(size)[0]):
        heap.push(key, slot)
    return heap


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_hold(benchmark: Callable[..., object], side: str, size: int) -> None:
    heap, later = filled(side, size), keys_for(size)[1]

    def hold() -> None:
        pop, push = heap.pop, heap.push
        for key in later:
            push(key, pop())

    benchmark(hold)
    heap.check()


@pytest.mark.parametrize("size", SIZES)
def test_hold_heapq(benchmark: Callable[..., object], size: int) -> None:
    first, later = keys_for(size)
    sequence = count(size)
    heap = [(key, slot, slot) for slot, key in enumerate(first)]
    heapify(heap)

    def hold() -> None:
        for key in later:
            heappush(heap, (key, next(sequence), heappop(heap)[2]))

    benchmark(hold)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_remove_and_push(benchmark: Callable[..., object], side: str, size: int) -> None:
    heap, (first, _) = filled(side, size), keys_for(size)
    slots = [slot * 7919 % size for slot in range(STEPS)]

    def cancel() -> None:
        remove, push = heap.remove, heap.push
        for slot in slots:
            remove(slot)
            push(first[slot], slot)

    benchmark(cancel)
    heap.check()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_lift(benchmark: Callable[..., object], side: str, size: int) -> None:
    heap, (first, _) = filled(side, size), keys_for(size)
    slots = [slot * 7919 % size for slot in range(STEPS // 2)]

    def lift() -> None:
        lift = heap.lift
        for slot in slots:
            lift(slot, 0)
            lift(slot, first[slot])

    benchmark(lift)
    heap.check()
