"""Where people repeat themselves: recorded chats and searches, and the model is called once for each text of them."""

from __future__ import annotations

import asyncio
import csv
import gzip
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

TURNS = 10_158
QUERIES = 20_000
CACHE_BYTES = 64 << 20  # for all that is answered here


@pytest.fixture(scope="module")
def turns(shared: Path) -> list[str]:
    """What customers typed in service chats, in order."""
    with gzip.open(shared / "data/texts/multidogo.jsonl.gz", "rt", encoding="utf-8") as lines:
        found = [json.loads(line)["text"] for line in lines]
    assert len(found) == TURNS
    return found


@pytest.fixture(scope="module")
def searches(shared: Path) -> tuple[list[str], list[int]]:
    """Web searches, and how popular each was."""
    with gzip.open(shared / "data/texts/bing_covid_jan2020.csv.gz", "rt", encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [row["query"] for row in rows], [int(row["popularity"]) for row in rows]


@pytest.fixture
def texts(turns: list[str], searches: tuple[list[str], list[int]], rng: random.Random) -> list[str]:
    """All turns, and so many searches drawn by popularity. No text is the same object twice, as none is in requests."""
    queries, popularity = searches
    found = turns + rng.choices(queries, popularity, k=QUERIES)
    return ["".join((text[:1], text[1:])) for text in found]


def answer_to(text: str) -> tuple[int, str]:
    return len(text), text[::-1]


def adds_up(lab: Lab, r: Any, model: Any, texts: list[str]) -> None:
    """The model has had each text once, and every request is told of once."""
    ran = [item for batch in model.batches for item in batch]
    assert len(ran) == len(set(ran)) and set(ran) == set(texts)
    now = r.snapshot()
    sharing = now.sharing
    assert now.items == sharing.misses == sharing.entries == len(set(texts)) < len(texts) / 3
    assert sharing.joins == now.merged and sharing.hits + sharing.joins + sharing.misses == len(texts)
    assert sharing.evictions == sharing.expired == 0
    lab.idle(r)


@pytest.mark.parametrize("in_flight", [64, 1000])
def test_asyncio(lab: Lab, loops: Callable[[], asyncio.AbstractEventLoop], texts: list[str], in_flight: int) -> None:
    model = lab.model(answer_to)
    r = lab.start(model, cache_bytes=CACHE_BYTES)
    queue = iter(texts)

    async def client() -> None:
        for text in queue:
            assert await r.run_async(text) == answer_to(text)

    async def main() -> None:
        await asyncio.gather(*(client() for _ in range(in_flight)))

    lab.run(loops, main())
    adds_up(lab, r, model, texts)


def test_threads(lab: Lab, texts: list[str]) -> None:
    model = lab.model(answer_to)
    r = lab.start(model, cache_bytes=CACHE_BYTES)
    queue, lock, wrong = iter(texts), threading.Lock(), []

    def client() -> None:
        while True:
            with lock:  # so that no two threads draw from it at once
                text = next(queue, None)
            if text is None:
                return
            if r(text) != answer_to(text):
                wrong.append(text)

    calls = [lab.call(client) for _ in range(16)]
    for call in calls:
        call.result()
    assert not wrong
    adds_up(lab, r, model, texts)


def test_many_at_once(lab: Lab, texts: list[str]) -> None:
    """In groups, in which a text may come several times, too."""
    model = lab.model(answer_to)
    r = lab.start(model, cache_bytes=CACHE_BYTES)
    for first in range(0, len(texts), 500):
        part = texts[first : first + 500]
        assert r.submit_many(part).result(30) == list(map(answer_to, part))
    adds_up(lab, r, model, texts)


def test_two_tenants_share_nothing(lab: Lab, texts: list[str], rng: random.Random) -> None:
    model = lab.model(answer_to)
    r = lab.start(model, cache_bytes=CACHE_BYTES)
    part = texts[:2000]
    asked = [(text, tenant) for text in part for tenant in ("a", "b")]
    tickets = [r.submit(text, tenant=tenant, priority=rng.randrange(3)) for text, tenant in asked]
    assert [ticket.result(30) for ticket in tickets] == [answer_to(text) for text, _ in asked]
    assert r.snapshot().items == 2 * len(set(part)) < len(asked)
    lab.idle(r)
