"""How much faster the native result cache must be than what one would write without it. Ratios only, each measured in
one run.

Beside it stands an `OrderedDict` under a lock that lets go of the least recently used; its key is a tuple of content
and parameters. It counts hits and misses too, and has no time limit, no epochs and no bound on bytes. Ours is asked
with a digest, so hashing the content is part of what is measured. Contents are built anew for every round, outside the
time measured, because a str keeps its own hash and requests never send the same object twice.
"""

from __future__ import annotations

import importlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

STANDING = 1000
ASKED = 64
EPOCH = 0


class Recent:
    """Keeps the most recently used."""

    def __init__(self, capacity: int) -> None:
        self._values: OrderedDict[tuple[str, object], object] = OrderedDict()
        self._lock = threading.Lock()
        self._capacity = capacity
        self.hits = self.misses = 0

    def find(self, content: str, who: object) -> object:
        key = content, who
        with self._lock:
            try:
                self._values.move_to_end(key)
            except KeyError:
                self.misses += 1
                return self
            self.hits += 1
            return self._values[key]

    def put(self, content: str, who: object, value: object) -> None:
        key = content, who
        gone = None
        with self._lock:
            self._values[key] = value
            if len(self._values) > self._capacity:
                gone = self._values.popitem(last=False)
        del gone


def texts(chars: int, first: int) -> list[str]:
    """New str objects, equal for equal numbers."""
    return [f"{first + i} ".ljust(chars, "x") for i in range(ASKED)]


def _lru_find(cache: Recent, asked: list[str]) -> int:
    find = cache.find
    began = perf_counter_ns()
    for text in asked:
        find(text, None)
    return perf_counter_ns() - began


def _find(cache: Any, table: Any, asked: list[str]) -> int:
    find, hash_ = cache.find, table.hash
    began = perf_counter_ns()
    for text in asked:
        find(hash_(text), text, None, 0)
    return perf_counter_ns() - began


def _lru_put(cache: Recent, asked: list[str]) -> int:
    put = cache.put
    began = perf_counter_ns()
    for text in asked:
        put(text, None, text)
    return perf_counter_ns() - began


def _put(cache: Any, table: Any, asked: list[str]) -> int:
    put, hash_ = cache.put, table.hash
    began = perf_counter_ns()
    for text in asked:
        put(hash_(text), text, None, text, 300, EPOCH, 0)
    return perf_counter_ns() - began


def times_faster_than_lru(what: str, chars: int, rounds: int = 100) -> float:
    """Time of the `OrderedDict` over that of the native cache, each the least of alternating rounds.

    Args:
        what: "hit", "miss", or "put": of a text that is not there, so that another goes.
        chars: The length of the texts.
        rounds: How many.
    """
    ours = importlib.import_module("relay._core.cache").ResultCache(STANDING, 1 << 30)
    table = importlib.import_module("relay._core.dedup").Dedup(1)
    lru = Recent(STANDING)
    for first in range(0, STANDING, ASKED):
        for text in texts(chars, first)[: STANDING - first]:
            ours.put(table.hash(text), text, None, text, 300, EPOCH, 0)
            lru.put(text, None, text)
    assert len(ours) == STANDING
    ours_ns = lru_ns = 1 << 62
    for number in range(rounds):
        first = number % (STANDING // ASKED) * ASKED if what == "hit" else STANDING + number * ASKED
        if what == "put":
            lru_ns = min(lru_ns, _lru_put(lru, texts(chars, first)))
            ours_ns = min(ours_ns, _put(ours, table, texts(chars, first)))
        else:
            lru_ns = min(lru_ns, _lru_find(lru, texts(chars, first)))
            ours_ns = min(ours_ns, _find(ours, table, texts(chars, first)))
    found = ours.hits, lru.hits
    assert found == ((rounds * ASKED,) * 2 if what == "hit" else (0, 0))
    return lru_ns / ours_ns


FLOORS: list[tuple[str, float, Callable[[], float]]] = [
    ("cache_hit_300_chars", 3.0, lambda: times_faster_than_lru("hit", 300)),
    ("cache_hit_8192_chars", 2.0, lambda: times_faster_than_lru("hit", 8192)),
    ("cache_miss_300_chars", 4.0, lambda: times_faster_than_lru("miss", 300)),
    ("cache_put_300_chars", 1.5, lambda: times_faster_than_lru("put", 300)),
]

if __name__ == "__main__":
    for name, floor, measure in FLOORS:
        print(f"{name}: {measure():.2f}x, floor {floor}x")
