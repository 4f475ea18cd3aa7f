"""What an uncontended acquire and release of the native pool must keep, with reserved tokens set, against the standard
library: many times faster than `threading.Semaphore`, and not much slower than a bare lock, which keeps no count.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from time import perf_counter

Pair = tuple[Callable[[], object], Callable[[], object]]


def relay_pair() -> Callable[[int], float]:
    """Rounds of ``try_acquire`` and ``release`` on a pool of which tokens are reserved for other tiers."""
    permits = importlib.import_module("relay._core.permits").Permits(8, ((0, 1), (2, 1)), 100)

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


FLOORS: list[tuple[str, float, Callable[[], float]]] = [
    ("permits_semaphore", 10.0, lambda: ratio(standard_pair(threading.Semaphore(8)))),
    ("permits_lock", 1 / 1.5, lambda: ratio(standard_pair(threading.Lock()))),
]
