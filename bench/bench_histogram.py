"""The histogram on both sides, and beside them a deque, which only keeps the times; run with pytest-benchmark."""

from __future__ import annotations

import importlib
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

STEPS = 1000


def times() -> list[int]:
    rng = random.Random(1)
    return [int(rng.lognormvariate(14, 2)) for _ in range(STEPS)]


def filled(side: str) -> Any:
    histogram = importlib.import_module(f"relay.{side}.histogram").Histogram()
    for ns in times():
        histogram.record(ns)
    return histogram


@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_record(benchmark: Callable[..., object], side: str) -> None:
    histogram, told = filled(side), times()

    def record_all() -> None:
        record = histogram.record
        for ns in told:
            record(ns)

    benchmark(record_all)
    histogram.check()


def test_record_deque(benchmark: Callable[..., object]) -> None:
    kept, told = deque[int](maxlen=STEPS), times()

    def keep_all() -> None:
        append = kept.append
        for ns in told:
            append(ns)

    benchmark(keep_all)


@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_quantiles(benchmark: Callable[..., object], side: str) -> None:
    """What a snapshot asks for."""
    histogram = filled(side)
    benchmark(lambda: histogram.quantiles((0.5, 0.95, 0.99)))


def test_quantiles_sorted(benchmark: Callable[..., object]) -> None:
    told = times()

    def sort_and_pick() -> list[int]:
        ranked = sorted(told)
        return [ranked[int(q * STEPS)] for q in (0.5, 0.95, 0.99)]

    benchmark(sort_and_pick)
