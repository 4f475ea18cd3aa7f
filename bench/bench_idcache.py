"""The id cache on both sides: a hit, a miss, and filling it; run with pytest-benchmark."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

SIDES = ["_pure", "_core"]
TOKENS = [8, 64, 512]


def filled(side: str, tokens: int) -> tuple[Any, Any, int, list[str]]:
    """A cache with a hundred texts of so many ids, and a row to write to."""
    cache = importlib.import_module(f"relay.{side}.idcache").IdCache(1 << 20)
    table = importlib.import_module(f"relay.{side}.arena").Arena(1, 1024)
    texts = [f"{number} ".ljust(4 * tokens, "x") for number in range(100)]
    for number, text in enumerate(texts):
        cache.put(text, None, [number] * tokens)
    return cache, table, table.lease(pinned=True), texts


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("side", SIDES)
def test_hit(benchmark: Callable[..., object], side: str, tokens: int) -> None:
    cache, table, handle, texts = filled(side, tokens)

    def work() -> None:
        fetch = cache.fetch
        for text in texts:
            fetch(table, handle, text)

    benchmark(work)
    cache.check()


@pytest.mark.parametrize("side", SIDES)
def test_miss(benchmark: Callable[..., object], side: str) -> None:
    cache, table, handle, texts = filled(side, 64)
    unknown = [text + "?" for text in texts]

    def work() -> None:
        fetch = cache.fetch
        for text in unknown:
            fetch(table, handle, text)

    benchmark(work)


@pytest.mark.parametrize("side", SIDES)
def test_put_where_another_makes_room(benchmark: Any, side: str) -> None:
    cache = importlib.import_module(f"relay.{side}.idcache").IdCache(1 << 16)
    ids = list(range(64))
    rounds = iter(range(1 << 30))

    def fresh() -> tuple[tuple[list[str]], dict[str, object]]:
        salt = next(rounds)
        return ([f"{salt} {number} ".ljust(256, "x") for number in range(100)],), {}

    def work(texts: list[str]) -> None:
        put = cache.put
        for text in texts:
            put(text, None, ids)

    benchmark.pedantic(work, setup=fresh, rounds=100)
    assert cache.evictions
    cache.check()
