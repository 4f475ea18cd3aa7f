"""Many threads ask one relay that keeps answers: every answer is right, the bounds hold, and each request is counted.

Rounds of a fixed number of calls; between two of them nobody calls, and everything is recounted. Every thread draws its
own calls from the test's seed. The interpreter is made to switch threads very often.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from crowd import KEYS, THREADS, Crowd, switching_every

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

ENTRIES = 128
CACHE_BYTES = ENTRIES * 600
EACH = 40  # calls of each thread in a round


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    with switching_every(1e-5):
        yield


def asked(number: int) -> Any:
    """An item of one of three kinds: by the short way, by the long way, and one that its caller may change."""
    if number % 7 == 0:
        return (number, f"text {number}")
    return [number] * (number % 40 + 1) if number % 7 == 1 else f"text {number}"


class Race(Crowd):
    """The threads, their relay, and what they count."""

    def __init__(self, lab: Lab, seed: int, seconds: float) -> None:
        super().__init__(seed, seconds)
        self.ran = [0]
        self.relay: Any = lab.start(
            self.model, cache_bytes=CACHE_BYTES, limits=lab.Limits(cache_entries=ENTRIES), max_queue=256
        )
        self.calls = [0] * THREADS

    def model(self, items: list[Any]) -> list[Any]:
        self.ran[0] += len(items)
        return [[repr(item)] * 3 for item in items]

    def recount(self) -> None:
        self.relay.check()
        told = self.relay.snapshot()
        shared = told.sharing
        assert shared.hits + shared.misses + shared.joins == sum(self.calls), (shared, sum(self.calls))
        assert shared.misses == self.ran[0], (shared, self.ran)
        assert shared.entries <= ENTRIES and shared.nbytes <= CACHE_BYTES
        assert told.open == told.admitted == 0

    def work(self, me: int, rng: random.Random) -> None:
        for number in rng.choices(range(KEYS), self.weights, k=EACH):
            item = asked(number)
            expected = [repr(item)] * 3
            way = rng.randrange(4)
            self.calls[me] += 1 if way else 3
            if way == 0:
                several = self.relay.submit_many([item, f"text {KEYS + me}", item]).result(30)
                assert several == [expected, [repr(f"text {KEYS + me}")] * 3, expected], several
                answer = several[rng.choice([0, 2])]
            else:
                answer = self.relay(item) if way == 1 else self.relay.submit(item).result(30)
                assert answer == expected, f"asked for {number}, got {answer}"
            answer.append("changed by one who has it")
            if type(item) is list:
                item.clear()
        if not rng.randrange(100):
            self.relay.invalidate()

    def go(self) -> None:
        super().go()
        shared = self.relay.snapshot().sharing
        print(f"{self.rounds} rounds, {shared}")
        assert min(shared.hits, shared.misses, shared.joins, shared.evictions) > 10


def test_e6_threads(lab: Lab, seed: int) -> None:
    Race(lab, seed, 3).go()


@pytest.mark.long
def test_e6_threads_long(lab: Lab, seed: int) -> None:
    Race(lab, seed, 30).go()
