"""What sharing may cost: an answer that is kept, a request that finds none, and the memory of an answer.

Texts are of about 64 tokens, 300 characters, and made anew for each request, outside of the time measured: a str keeps
its own hash, and requests never send the same object twice.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter, process_time
from typing import Any

import relay

CHARS = 300
WORDS = "a token is a permit to compute " * 10
HITS_EACH = 2_000
MISSES_EACH = 4_096
ALONE_EACH = 1_500
KEPT = 4_096
MOST_MORE_S = 1.5e-6
MOST_BYTES = 400
ROUNDS = 25


def texts(count: int, first: int = 0) -> list[str]:
    """So many texts, no two of them equal, and none among those of other numbers."""
    return [f"{first + i} {WORDS}"[:CHARS] for i in range(count)]


def echo(items: list[Any]) -> list[Any]:
    """A model that does nothing."""
    return items


def told(items: list[str]) -> list[tuple[str, float]]:
    """A model whose answers are a label and a score of their own."""
    return [("label", float(len(item)) + 0.5 + id(item)) for item in items]


@asynccontextmanager
async def opened(model: Callable[[list[Any]], list[Any]], **options: Any) -> AsyncIterator[Any]:
    """A relay that has begun to work."""
    async with relay.Relay(model, name="floor", **options) as r:
        await r.run_async("the first")
        yield r


def _fresh(text: str, count: int) -> list[str]:
    return [(text + "x")[:CHARS] for _ in range(count)]


async def _asked(ask: Callable[[str], Any], asked: list[str]) -> float:
    begin = perf_counter()
    for text in asked:
        await ask(text)
    return (perf_counter() - begin) / len(asked)


async def _remembered(remember: Callable[[str], str], ready: asyncio.Future[None], asked: list[str]) -> float:
    begin = perf_counter()
    for text in asked:
        remember(text)
        await ready
    return (perf_counter() - begin) / len(asked)


async def _hits(model: Callable[[list[Any]], list[Any]]) -> tuple[float, float, float]:
    """Seconds of a kept answer by `run_async` and by `submit`, and of `lru_cache` and a ready future: each the least of
    alternating rounds."""
    (text,) = texts(1)
    remember = functools.lru_cache(1024)(lambda item: item)
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ready.set_result(None)
    remember(text)
    rows = []
    async with opened(model, cache_bytes=1 << 20) as r:
        await r.run_async(text)
        for _ in range(ROUNDS):
            rows.append(
                (
                    await _asked(r.run_async, _fresh(text, HITS_EACH)),
                    await _asked(r.submit, _fresh(text, HITS_EACH)),
                    await _remembered(remember, ready, _fresh(text, HITS_EACH)),
                )
            )
        sharing = r.snapshot().sharing
        assert (sharing.hits, sharing.misses) == (2 * HITS_EACH * ROUNDS, 2), sharing
    found = tuple(map(min, zip(*rows, strict=True)))
    return found[0], found[1], found[2]


def hit() -> float:
    """Three times what `lru_cache` and a ready future take, over what a kept answer takes."""
    ours, submitted, bare = asyncio.run(_hits(echo))
    pairs, _, _ = asyncio.run(_hits(told))
    print(
        f"a kept answer {ours * 1e6:.2f} us, by submit {submitted * 1e6:.2f} us, a kept tuple {pairs * 1e6:.2f} us; "
        f"lru_cache and a ready future {bare * 1e6:.2f} us: {ours / bare:.2f} times"
    )
    return 3 * bare / ours


async def _missed(r: Any, asked: list[str], tasks: int) -> tuple[float, float]:
    """Seconds of processor time and on the clock of a request, so many in flight."""
    queue = iter(asked)

    async def client() -> None:
        for text in queue:
            await r.run_async(text)

    begin, cpu = perf_counter(), process_time()
    await asyncio.gather(*(client() for _ in range(tasks)))
    return (process_time() - cpu) / len(asked), (perf_counter() - begin) / len(asked)


async def _misses(tasks: int, each: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """As `_missed`, with sharing and without: each the least of alternating rounds. What is kept fills up in the first
    round, so that each answer that comes has another go."""
    shared, plain = [], []
    async with opened(echo, merge=True, cache_bytes=1 << 20) as with_, opened(echo, merge=False) as without:
        for number in range(ROUNDS):
            asked = texts(each, number * each)
            gc.collect()
            shared.append(await _missed(with_, asked, tasks))
            plain.append(await _missed(without, asked, tasks))
        sharing = with_.snapshot().sharing
        assert sharing.misses == ROUNDS * each + 1 and not sharing.hits and sharing.evictions > each, sharing
    one, two = (tuple(map(min, zip(*rows, strict=True))) for rows in (shared, plain))
    return (one[0], one[1]), (two[0], two[1])


def miss(tasks: int, each: int) -> float:
    """What a request costs without sharing, and 1.5 us, over what it costs with: of processor time, for what sharing
    adds is work and not waiting, and on the clock a request alone is mostly two threads that wake each other."""
    (cpu, wall), (plain_cpu, plain_wall) = asyncio.run(_misses(tasks, each))
    print(
        f"{tasks} in flight: {cpu * 1e6:.2f} us of processor time with sharing, {plain_cpu * 1e6:.2f} us without; on "
        f"the clock {wall * 1e6:.2f} and {plain_wall * 1e6:.2f} us"
    )
    return (plain_cpu + MOST_MORE_S) / cpu


async def _memory() -> float:
    limits = relay.Limits(cache_entries=KEPT)
    async with opened(told, cache_bytes=KEPT * 1024, limits=limits) as r:
        r.invalidate()
        gc.collect()
        tracemalloc.start()
        try:
            before, own = tracemalloc.get_traced_memory()[0], 0
            for first in range(0, KEPT, 64):
                asked = texts(64, first)
                own += sum(map(sys.getsizeof, asked))
                await asyncio.gather(*map(r.run_async, asked))
            del asked
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        results = r._desk.results
        assert len(results) == KEPT and not results.evictions
        return float(grown - own + sys.getsizeof(results)) / KEPT


def memory() -> float:
    """400 bytes, over what an answer that is kept takes beyond its text, where every place is taken: the tables, and
    what Python has allocated for answers, as it counts itself."""
    found = asyncio.run(_memory())
    print(f"{found:.0f} bytes for each answer beyond its text")
    return MOST_BYTES / found


FLOORS: list[tuple[str, float, Callable[[], float]]] = [
    ("sharing_hit", 1.0, hit),
    ("sharing_miss_64_in_flight", 1.0, lambda: miss(64, MISSES_EACH)),
    # To be 1. Alone, each request finds the processor's caches cold after two switches of threads, and sharing takes 3
    # to 4 us: 1.4 for finding and binding its run, 0.5 for a look at what is kept, 1.8 for keeping the answer.
    ("sharing_miss_alone", 0.9, lambda: miss(1, ALONE_EACH)),
    ("sharing_memory", 1.0, memory),
]

if __name__ == "__main__":
    for name, floor, measure in FLOORS:
        print(f"{name}: {measure():.2f}, floor {floor:.2f}", flush=True)
