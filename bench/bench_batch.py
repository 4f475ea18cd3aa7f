"""Gathering on both sides, and NumPy row by row beside them; run with pytest-benchmark."""

from __future__ import annotations

import importlib
import random
from typing import Any

import numpy as np
import pytest

ROWS = 64


@pytest.mark.parametrize("side", ["_pure", "_core", "numpy"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("equal", [True, False], ids=["equal", "random"])
@pytest.mark.parametrize("longest", [16, 128, 512])
def test_gather(benchmark: Any, side: str, dtype: Any, equal: bool, longest: int) -> None:
    source = random.Random(longest)
    lengths = [longest if equal or i == 0 else source.randint(1, longest) for i in range(ROWS)]
    rows = [np.arange(n, dtype=dtype) for n in lengths]
    ids, mask = (np.zeros((ROWS, longest), dtype) for _ in range(2))
    benchmark.group = f"{longest} ids, {'equal' if equal else 'random'}, {dtype.__name__}"

    def numpy() -> None:
        for i, row in enumerate(rows):
            n = len(row)
            ids[i, :n] = row
            ids[i, n:] = 0
            mask[i, :n] = 1
            mask[i, n:] = 0

    if side == "numpy":
        benchmark(numpy)
        return
    arena = importlib.import_module(f"relay.{side}.arena").Arena(ROWS, ROWS * max(longest, 32), longest)
    gather = importlib.import_module(f"relay.{side}.batch").gather
    handles = []
    for row in rows:
        handles.append(arena.lease(pinned=True))
        assert arena.write_ids(handles[-1], row) and arena.unpin(handles[-1])
    assert benchmark(gather, arena, handles, ids, mask) == longest
