"""The cost model on both sides: runs observed at steady state and while it is new, predictions; pytest-benchmark."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any

import pytest

STEPS = 1000
SIDES = pytest.mark.parametrize("side", ["_pure", "_core"])


def made(side: str) -> Any:
    return importlib.import_module(f"relay.{side}.cost").CostModel()


def runs(sigma: float) -> list[tuple[int, int, int]]:
    source = random.Random(1)
    drawn = []
    for _ in range(2 * STEPS):
        items, width = source.randint(1, 64), source.randint(8, 512)
        ns = 300_000 + 20_000 * items + 15_000 * items * width + 20 * items * width * width
        drawn.append((items, width, round(ns * source.lognormvariate(0, sigma))))
    return drawn


@SIDES
@pytest.mark.parametrize("age", ["new", "steady"])
@pytest.mark.parametrize("sigma", [0.05, 0.5])
def test_observe(benchmark: Any, sigma: float, age: str, side: str) -> None:
    drawn = runs(sigma)
    steps = drawn[STEPS:] if age == "steady" else drawn[:50]

    def fresh() -> tuple[tuple[Any], dict[str, Any]]:
        model = made(side)
        for items, width, ns in drawn[:STEPS] if age == "steady" else ():
            model.observe(items, width, ns)
        return (model,), {}

    def work(model: Any) -> None:
        observe = model.observe
        for items, width, ns in steps:
            observe(items, width, ns)

    benchmark.group = f"observe x {len(steps)}"
    benchmark.pedantic(work, setup=fresh, rounds=30)


@SIDES
@pytest.mark.parametrize(
    "ask",
    [
        lambda model: model.predict(8, 128),
        lambda model: model.finish_ns(8, 128),
        lambda model: model.largest(128, 10**8, 64),
    ],
    ids=["predict", "finish_ns", "largest"],
)
def test_ask(benchmark: Any, ask: Callable[[Any], object], side: str) -> None:
    model = made(side)
    for items, width, ns in runs(0.05):
        model.observe(items, width, ns)

    def work() -> None:
        for _ in range(STEPS):
            ask(model)

    benchmark.group = f"ask x {STEPS}"
    benchmark(work)
