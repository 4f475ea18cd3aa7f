"""What sharing is worth where people really repeat themselves: turns of service chats in the order they came, then web
searches drawn by their popularity, through MiniLM on the CPU, with answers kept and without.

Run by hand, on a machine that does nothing else. Both sides have the same model and take turns, slice by slice; the
side that shares keeps its answers from slice to slice. It must call the model with exactly one item for each distinct
text, and is to come to 0.8 of what sharing could give if it cost nothing and the model took the same for each input id:
the other side's requests a second, times all ids over those of distinct texts. It may come to more than that, for a
text takes its time beside that of its ids, and to less, for fewer requests are left to fill batches.

With ``--sample`` the other side runs a random part of each slice only. Its rate is then that of its ids over the mean
ids of all requests, so that a sample of shorter texts does not flatter it.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import gzip
import json
import os
import random
import sys
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import relay
from relay.models import load
from relay.tuning import SWITCH_INTERVAL_S, cores

TEXTS = Path(os.environ.get("RELAY_SHARED") or Path(__file__).parents[2] / "shared") / "data/texts"
TURNS = "multidogo.jsonl.gz"
QUERIES = "bing_covid_jan2020.csv.gz"
CACHE_BYTES = 256 << 20  # for every answer there is
GOAL = 0.8

EXAMPLES = """examples:
  python bench/replay.py                                 everything, about two minutes on two cores
  python bench/replay.py --turns 3000 --queries 3000     a first look
  python bench/replay.py --sample 0.25 --in-flight 256   the side without sharing runs a quarter of the requests
"""


class Played(NamedTuple):
    """Requests, their input ids, and the seconds they took."""

    requests: int = 0
    ids: int = 0
    seconds: float = 0.0

    def and_(self, other: Played) -> Played:
        return Played(self.requests + other.requests, self.ids + other.ids, self.seconds + other.seconds)


def turns(count: int | None = None) -> list[str]:
    """Turns of chats, in order."""
    with gzip.open(TEXTS / TURNS, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines][:count]


def queries(count: int, seed: int) -> list[str]:
    """Searches drawn by how popular they were."""
    with gzip.open(TEXTS / QUERIES, "rt", encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    weights = [int(row["popularity"]) for row in rows]
    return random.Random(seed).choices([row["query"] for row in rows], weights, k=count)


def ids_of(model: Any, texts: list[str]) -> dict[str, int]:
    """How many input ids each text has."""
    distinct = list(dict.fromkeys(texts))
    return dict(zip(distinct, (len(encoded[0]) for encoded in model.tokenizer.encode(distinct)), strict=True))


async def play(r: Any, texts: list[str], in_flight: int, ids: dict[str, int]) -> Played:
    """So many requests under way as there may be, until all are answered."""
    queue = iter(texts)

    async def client() -> None:
        for text in queue:
            await r.run_async(text)

    begin = perf_counter()
    await asyncio.gather(*(client() for _ in range(in_flight)))
    return Played(len(texts), sum(ids[text] for text in texts), perf_counter() - begin)


def tell(text: str) -> None:
    """One line of progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def replay(model: Any, name: str, texts: list[str], options: argparse.Namespace) -> bool:
    """Play texts on both sides, and say what came of it. Whether it is what it is to be."""
    ids = ids_of(model, texts)
    rng = random.Random(options.seed)
    size = -(-len(texts) // options.slices)
    on = off = Played()
    with (
        relay.Relay(model, merge=True, cache_bytes=CACHE_BYTES, name="sharing") as sharing,
        relay.Relay(model, merge=False, name="alone") as alone,
    ):
        for r in (sharing, alone):
            r.warmup(texts[:64])
        before = sharing.snapshot()
        for first in range(0, len(texts), size):
            part = texts[first : first + size]
            tell(f"{name}: {first} of {len(texts)}, sharing")
            on = on.and_(asyncio.run(play(sharing, part, options.in_flight, ids)))
            tell(f"{name}: {first} of {len(texts)}, alone")
            if options.sample < 1:
                part = rng.sample(part, max(1, round(len(part) * options.sample)))
            off = off.and_(asyncio.run(play(alone, part, options.in_flight, ids)))
        tell("")
        after, ran = sharing.snapshot(), alone.snapshot()
    items, seen = after.items - before.items, after.sharing
    if items != len(ids):
        raise AssertionError(f"the model was called with {items} items for {len(ids)} distinct texts")
    if not seen.evictions == seen.expired == 0:
        raise AssertionError("answers were let go: the cache is too small for this")
    hits, joins = seen.hits - before.sharing.hits, after.merged - before.merged
    if hits + joins + len(ids) != len(texts):
        raise AssertionError(f"{hits} hits, {joins} joins and {len(ids)} runs are not {len(texts)} requests")
    mean_ids = on.ids / on.requests
    rate, plain = on.requests / on.seconds, off.ids / off.seconds / mean_ids
    possible = on.ids / sum(ids.values())
    share = rate / plain / possible
    sampled = f" ({off.requests} of them run)" if off.requests < on.requests else ""
    print(
        f"{name}: {on.requests} requests, {len(ids)} distinct texts, {items} items run; {hits} answers were kept "
        f"ones, {joins} joined a run\n"
        f"  {rate:.0f} requests a second with sharing, {plain:.0f} without{sampled}: {rate / plain:.2f} times; by ids "
        f"it could be {possible:.2f} times\n"
        f"  {share:.2f} of that (to be {GOAL}); mean batch {after.mean_batch_size:.1f} with, {ran.mean_batch_size:.1f} "
        f"without; {seen.nbytes / len(ids):.0f} bytes for each answer",
        flush=True,
    )
    return share >= GOAL


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python bench/replay.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--turns", type=int, help="how many, from the first on (default: all)")
    parser.add_argument("--queries", type=int, default=20_000, help="how many are drawn (default: %(default)s)")
    parser.add_argument("--in-flight", type=int, default=64, help="requests under way at once (default: %(default)s)")
    parser.add_argument("--slices", type=int, default=10, help="how often the sides take turns (default: %(default)s)")
    parser.add_argument("--sample", type=float, default=1.0, help="of the requests, without sharing (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (default: %(default)s)")
    options = parser.parse_args()
    if not 0 < options.sample <= 1:
        parser.error("--sample must be more than 0 and at most 1")
    if min(options.in_flight, options.slices) < 1:
        parser.error("--in-flight and --slices must be at least 1")
    if not TEXTS.exists():
        raise SystemExit("no ../shared data; set RELAY_SHARED to the folder that holds data/texts")
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as `relay serve` does
    model = load("minilm", threads=cores())
    print(f"relay {relay.__version__}, {relay.backend} backend; {options.in_flight} in flight, {cores()} threads")
    played = {"chats": turns(options.turns), "searches": queries(options.queries, options.seed)}
    reached = [replay(model, name, texts, options) for name, texts in played.items() if texts]
    if not all(reached):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
