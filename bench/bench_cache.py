"""The result cache on both sides, and an `OrderedDict` under a lock beside it; run with pytest-benchmark."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
from floors_cache import STANDING, Recent, texts

SIZES = [16, 300, 8192]
SIDES = ["_pure", "_core"]


def filled(side: str, chars: int) -> tuple[Any, list[tuple[int, str]], list[tuple[int, str]]]:
    """A full cache, some of what it holds, and some of what it does not."""
    cache = importlib.import_module(f"relay.{side}.cache").ResultCache(STANDING, 1 << 30)
    table = importlib.import_module(f"relay.{side}.dedup").Dedup(1)
    for number in range(STANDING):
        cache.put(table.hash(f"standing {number}"), f"standing {number}", None, number, 300, 0, 0)
    for text in texts(chars, 0):  # once more, so that it has left and is among the kept
        cache.put(table.hash(text), text, None, text, 300, 0, 0)
    return (cache, *([(table.hash(text), text) for text in texts(chars, first)] for first in (0, STANDING)))


@pytest.mark.parametrize("chars", SIZES)
@pytest.mark.parametrize("side", SIDES)
def test_hit(benchmark: Callable[..., object], side: str, chars: int) -> None:
    cache, held, _ = filled(side, chars)

    def work() -> None:
        find = cache.find
        for digest, text in held:
            find(digest, text, None, 0)

    benchmark(work)
    assert cache.hits and not cache.misses


@pytest.mark.parametrize("side", SIDES)
def test_miss(benchmark: Callable[..., object], side: str) -> None:
    cache, _, others = filled(side, 300)

    def work() -> None:
        find = cache.find
        for digest, text in others:
            find(digest, text, None, 0)

    benchmark(work)
    assert cache.misses and not cache.hits


@pytest.mark.parametrize("side", SIDES)
def test_put_and_evict(benchmark: Any, side: str) -> None:
    cache, _, _ = filled(side, 300)
    number = [0]

    def new() -> tuple[tuple[list[tuple[int, str]]], dict[str, object]]:
        number[0] += 1
        return ([(number[0] << 64 | i, text) for i, text in enumerate(texts(300, number[0] << 20))],), {}

    def work(pairs: list[tuple[int, str]]) -> None:
        put = cache.put
        for digest, text in pairs:
            put(digest, text, None, text, 300, 0, 0)

    benchmark.pedantic(work, setup=new, rounds=300)
    cache.check()
    assert len(cache) == STANDING


@pytest.mark.parametrize("chars", SIZES)
def test_hit_lru(benchmark: Any, chars: int) -> None:
    cache = Recent(STANDING)
    for text in texts(chars, 0):
        cache.put(text, None, text)

    def work(asked: list[str]) -> None:
        find = cache.find
        for text in asked:
            find(text, None)

    benchmark.pedantic(work, setup=lambda: ((texts(chars, 0),), {}), rounds=300)
    assert cache.hits and not cache.misses
