"""How many answers are found: beside one that lets go of the least recently used, on a scan and on recorded texts."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Core

ROOM = 1 << 40
CAPACITY = 128


class Recent:
    """Keeps the most recently used, and nothing else."""

    def __init__(self, capacity: int) -> None:
        self._keys: OrderedDict[Hashable, None] = OrderedDict()
        self._capacity = capacity

    def ask(self, key: Hashable) -> bool:
        """Whether it is here; it is afterwards."""
        found = key in self._keys
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._capacity:
            self._keys.popitem(last=False)
        return found


class Ours:
    """The same, of a `ResultCache`. Digests are drawn, once for each content."""

    def __init__(self, core: Core, capacity: int, rng: random.Random, max_bytes: int = ROOM) -> None:
        self.cache: Any = core.watch(core.cache.ResultCache(capacity, max_bytes))
        self._absent = core.cache.ABSENT
        self._rng = rng
        self._digests: dict[str, int] = {}

    def ask(self, key: str) -> bool:
        if key not in self._digests:
            self._digests[key] = self._rng.getrandbits(128)
        digest = self._digests[key]
        if self.cache.find(digest, key, None, 0) is not self._absent:
            return True
        self.cache.put(digest, key, None, key, len(key), self.cache.epoch, 0)
        return False

    def has(self, key: str) -> bool:
        return self.cache.find(self._digests[key], key, None, 0) is not self._absent


def zipf(prefix: str, keys: int, draws: int, rng: random.Random) -> list[str]:
    ranks = [1 / (rank + 1) for rank in range(keys)]
    return [f"{prefix} {number}" for number in rng.choices(range(keys), ranks, k=draws)]


def rate(cache: Any, keys: Sequence[str]) -> float:
    return sum(cache.ask(key) for key in keys) / len(keys)


@pytest.mark.parametrize("bound", ["entries", "bytes"])
@pytest.mark.parametrize("capacity", [16, CAPACITY, 1000])
def test_a_scan_leaves_the_hot_ones_where_they_are(core: Core, capacity: int, bound: str, rng: random.Random) -> None:
    size = core.cache.ENTRY_BYTES + 6
    sizes = {"entries": (capacity, ROOM), "bytes": (8 * capacity, capacity * size)}
    # A second one that is led the same way: to look at what there is would make it last longer.
    ours, looked_at = (Ours(core, sizes[bound][0], rng, sizes[bound][1]) for _ in range(2))
    lru = Recent(capacity)
    hot = zipf("h", capacity * 9 // 10, 20 * capacity, rng)
    for cache in (ours, looked_at, lru):
        rate(cache, hot)
    there = sorted({key for key in hot if looked_at.has(key)})
    assert len(there) >= 0.85 * len(set(hot))
    for number in range(10 * capacity):
        key = f"once {number}"
        assert not ours.ask(key) and not lru.ask(key)
    left = sum(map(ours.has, there)) / len(there)
    again = zipf("h", capacity * 9 // 10, 2 * capacity, rng)
    after = rate(ours, again), rate(lru, again)
    print(f"{left:.3f} of the hot are left; found again: ours {after[0]:.3f}, least recently used {after[1]:.3f}")
    assert left >= 0.9 and after[0] > after[1]


def test_what_was_hot_makes_room_for_what_is(core: Core, rng: random.Random) -> None:
    ours, lru = Ours(core, CAPACITY, rng), Recent(CAPACITY)
    for cache in (ours, lru):
        rate(cache, zipf("old", 1000, 5000, rng))
    new = zipf("new", 1000, 4000, rng)
    first = rate(ours, new[:1000]), rate(lru, new[:1000])
    then = rate(ours, new[1000:]), rate(lru, new[1000:])
    print(f"first ours {first[0]:.3f}, least recently used {first[1]:.3f}; then {then[0]:.3f}, {then[1]:.3f}")
    assert first[0] > first[1] - 0.15 and then[0] > then[1]


def chats(shared: Path) -> list[str]:
    with gzip.open(shared / "data" / "texts" / "multidogo.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def searches(shared: Path) -> list[str]:
    with gzip.open(shared / "data" / "texts" / "bing_covid_jan2020.csv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    weights = [float(row["popularity"]) for row in rows]
    return random.Random(1).choices([row["query"] for row in rows], weights, k=20_000)


@pytest.mark.parametrize("capacity", [32, CAPACITY, 1024])
@pytest.mark.parametrize("texts", [chats, searches])
def test_recorded_texts(core: Core, shared: Path, texts: Any, capacity: int, rng: random.Random) -> None:
    keys = texts(shared)
    ours, lru = rate(Ours(core, capacity, rng), keys), rate(Recent(capacity), keys)
    print(f"{texts.__name__}, {capacity} entries: ours {ours:.3f}, least recently used {lru:.3f}")
    assert ours >= lru - 0.005
