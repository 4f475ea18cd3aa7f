"""What the native heap must keep against C `heapq`, under the hold model: pop the first, push a later one.

heapq gets what its documentation recommends for a stable order: (key, sequence, item) tuples.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from time import perf_counter


def _hold_relay(size: int, keys: list[int], rounds: list[list[int]]) -> Callable[[int], float]:
    heap = importlib.import_module("relay._core.heap").PriorityHeap(size)
    for slot, key in enumerate(keys):
        heap.push(key, slot)

    def run(i: int) -> float:
        pop, push = heap.pop, heap.push
        begin = perf_counter()
        for key in rounds[i]:
            push(key, pop())
        return perf_counter() - begin

    return run


def _hold_heapq(size: int, keys: list[int], rounds: list[list[int]]) -> Callable[[int], float]:
    sequence = count(size)
    heap = [(key, slot, slot) for slot, key in enumerate(keys)]
    heapify(heap)

    def run(i: int) -> float:
        begin = perf_counter()
        for key in rounds[i]:
            heappush(heap, (key, next(sequence), heappop(heap)[2]))
        return perf_counter() - begin

    return run


def hold_ratio(size: int, *, steps: int = 5_000, rounds: int = 25, seed: int = 1) -> float:
    """How many times faster the native heap is than heapq at a standing `size`: best round against best round."""
    rng = random.Random(seed)
    now = 10**15
    # Keys in nanoseconds, like deadlines: each pushed one lies somewhere in the window that the heap spans.
    keys = [now + rng.randrange(1000 * size) for _ in range(size)]
    later = [[0] * steps for _ in range(rounds)]
    for block in later:
        for j in range(steps):
            now += 500
            block[j] = now + rng.randrange(1000 * size)
    ours, theirs = _hold_relay(size, keys, later), _hold_heapq(size, keys, later)
    times = [(ours(i), theirs(i)) for i in range(rounds)]
    return min(t for _, t in times) / min(t for t, _ in times)


FLOORS: list[tuple[str, float, Callable[[], float]]] = [
    ("heap_hold_100", 2.3, lambda: hold_ratio(100)),
    ("heap_hold_10000", 4.0, lambda: hold_ratio(10_000)),
    ("heap_hold_100000", 4.0, lambda: hold_ratio(100_000)),
]
