"""Floors of `batch`: gathering against NumPy, row by row, into reused buffers of int64."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from time import perf_counter

import numpy as np

ROWS = 64
ROUNDS = 15


def _least(once: Callable[[], object], other: Callable[[], object], calls: int = 40) -> tuple[float, float]:
    """The least time of each in alternating rounds, so that both see the same weather."""
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        for which, call in enumerate((once, other)):
            start = perf_counter()
            for _ in range(calls):
                call()
            best[which] = min(best[which], perf_counter() - start)
    return best[0], best[1]


def ratio(longest: int, equal: bool) -> float:
    """How many times faster than NumPy.

    Args:
        longest: Ids of the longest row, and the width of the buffers.
        equal: All rows are that long; otherwise their lengths are random up to it.
    """
    gather = importlib.import_module("relay._core.batch").gather
    source = random.Random(longest)
    lengths = [longest] * ROWS if equal else [longest, *(source.randint(1, longest) for _ in range(ROWS - 1))]
    rows = [np.array([source.randrange(30_000) for _ in range(n)], dtype=np.int64) for n in lengths]
    arena = importlib.import_module("relay._core.arena").Arena(ROWS, ROWS * longest, longest)
    handles = [arena.lease(ids=n, pinned=True) for n in lengths]
    for handle, row in zip(handles, rows, strict=True):
        assert arena.write_ids(handle, row) and arena.unpin(handle)
    ids, mask, expected, expected_mask = (np.full((ROWS, longest), 7, dtype=np.int64) for _ in range(4))

    def numpy() -> None:
        for i, row in enumerate(rows):
            n = len(row)
            expected[i, :n] = row
            expected[i, n:] = 0
            expected_mask[i, :n] = 1
            expected_mask[i, n:] = 0

    theirs, ours = _least(numpy, lambda: gather(arena, handles, ids, mask))
    assert (ids == expected).all() and (mask == expected_mask).all()
    return theirs / ours


FLOORS: list[tuple[str, float, Callable[[], float]]] = [
    ("batch_128_random", 8.0, lambda: ratio(128, False)),
    ("batch_128_equal", 8.0, lambda: ratio(128, True)),
    ("batch_512_random", 4.0, lambda: ratio(512, False)),
    ("batch_512_equal", 4.0, lambda: ratio(512, True)),
]
