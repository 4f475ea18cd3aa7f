"""Many threads at once on one result cache: nobody is given another's answer, each find is counted, the bounds hold.

Rounds of a fixed number of calls; between two of them nobody calls, and everything is recounted. Every thread draws its
own calls from the test's seed. The interpreter is made to switch threads as often as it can.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Core
from crowd import KEYS, THREADS, Crowd, switching_every

CAPACITY = 128
EACH = 500  # calls of each thread in a round


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    with switching_every(1e-6):
        yield


class Race(Crowd):
    """The threads, their keys, and what they count."""

    def __init__(self, core: Core, seed: int, seconds: float) -> None:
        super().__init__(seed, seconds)
        self.cache = core.watch(core.cache.ResultCache(CAPACITY, CAPACITY * 600, 300))
        self.absent = core.cache.ABSENT
        rng = random.Random(seed)
        self.keys = [(rng.getrandbits(128) if i % 8 else i % 64, f"text {i}") for i in range(KEYS)]
        self.finds = [0] * THREADS

    def recount(self) -> None:
        cache = self.cache
        cache.check()
        assert cache.hits + cache.misses == sum(self.finds)
        assert len(cache) <= CAPACITY and cache.nbytes <= cache.max_bytes

    def work(self, me: int, rng: random.Random) -> None:
        cache, absent = self.cache, self.absent
        numbers = rng.choices(range(KEYS), self.weights, k=EACH)
        for number in numbers:
            digest, text = self.keys[number]
            now = self.rounds * 100
            epoch = cache.epoch
            found: Any = cache.find(digest, text, None, now)
            self.finds[me] += 1
            if found is absent:
                cache.put(digest, text, None, (number, epoch), rng.randrange(800), epoch, now)
            elif found[0] != number or found[1] < epoch:
                raise AssertionError(f"asked for {number} of epoch {epoch}, got {found}")
        if not rng.randrange(200):
            cache.invalidate()

    def go(self) -> None:
        super().go()
        cache = self.cache
        print(f"{self.rounds} rounds, {cache.hits} hits, {cache.misses} misses, {cache.evictions} evictions")
        assert min(cache.hits, cache.misses, cache.evictions) > 100


def test_threads(core: Core, seed: int) -> None:
    Race(core, seed, 3).go()


@pytest.mark.long
def test_threads_long(core: Core, seed: int) -> None:
    race = Race(core, seed, 30)
    race.go()
    assert min(race.cache.expired, race.cache.epoch) > 0
