"""MiniLM on the CPU over texts of mixed lengths: a relay that sees them as they arrive, beside the offline optimum that
knows them all, sorted by length and cut into the best batches. Run by hand: ``python bench/mixed.py [texts]``.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import sys
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

import relay
from relay.batch import Batch
from relay.models import load
from relay.policy import DynamicPriority
from relay.tuning import SWITCH_INTERVAL_S, cores

TEXTS = Path(os.environ.get("RELAY_SHARED") or Path(__file__).parents[2] / "shared") / "data/texts"
IN_FLIGHT = 256
SIZES = (4, 8, 16, 32, 64)


class Outcome(NamedTuple):
    """What a run over all texts came to: texts a second, the share of padding, the longest wait in seconds."""

    rate: float
    waste: float
    waited: float


def mixed(count: int, seed: int = 7) -> list[str]:
    """So many texts, in the order of their arrival: passages, short questions, and long ones of 200 to 500 tokens made
    of several passages."""
    passages, short = (
        [json.loads(line)["text"] for line in gzip.open(TEXTS / name, "rt", encoding="utf-8")]
        for name in (next(p.name for p in TEXTS.iterdir() if p.name.startswith("miracl")), "banking77.jsonl.gz")
    )
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        kind = rng.randrange(3)
        if kind < 2:
            found.append(rng.choice((passages, short)[kind]))
            continue
        words: list[str] = []
        wanted = rng.randrange(160, 400)  # about 1.25 tokens a word
        while len(words) < wanted:
            words += rng.choice(passages).split()
        found.append(" ".join(words[:wanted]))
    return found


def offline(model: Any, texts: list[str]) -> tuple[float, int]:
    """The most texts a second, tokenised beforehand and sorted by length, and the batch size that gives them."""
    encoded = sorted((one.ids if hasattr(one, "ids") else one[0] for one in model.tokenizer.encode(texts)), key=len)
    best = (0.0, 0)
    for size in SIZES:
        begin = perf_counter()
        for start in range(0, len(encoded), size):
            part = encoded[start : start + size]
            lengths = np.array([len(ids) for ids in part], np.int64)
            shape = len(part), int(lengths.max())
            ids, mask = np.full(shape, model.tokenizer.pad_id, np.int64), np.zeros(shape, np.int64)
            for row, one in enumerate(part):
                ids[row, : len(one)], mask[row, : len(one)] = one, 1
            model(Batch([None] * len(part), ids, mask, np.zeros(shape, np.int64), lengths))
        best = max(best, (len(encoded) / (perf_counter() - begin), size))
    return best


async def in_flight(r: Any, texts: list[str]) -> Outcome:
    """As many requests under way as there may be, until all are answered."""
    queue = iter(texts)

    async def client() -> None:
        for text in queue:
            await r.run_async(text)

    begin = perf_counter()
    await asyncio.gather(*(client() for _ in range(IN_FLIGHT)))
    return Outcome(len(texts) / (perf_counter() - begin), r.snapshot().padding_waste, 0.0)


async def arriving(r: Any, texts: list[str], rate: float, seed: int = 8) -> Outcome:
    """All BATCH, at random moments, so many a second."""
    rng = random.Random(seed)
    tickets, due = [], 0.0
    begin = perf_counter()
    for text in texts:
        due += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, begin + due - perf_counter()))
        tickets.append(r.submit(text, priority=relay.BATCH))
    await asyncio.gather(*tickets)
    waits = [ticket.timing.prepare + ticket.timing.queue for ticket in tickets]
    return Outcome(len(texts) / (perf_counter() - begin), r.snapshot().padding_waste, max(waits))


def main(count: int) -> None:
    if not TEXTS.exists():
        raise SystemExit("no ../shared data; set RELAY_SHARED to the folder that holds data/texts")
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as `relay serve` does
    model = load("minilm", threads=cores(), max_length=512)
    texts = mixed(count)
    lengths = [model.tokenizer.reserve(text) for text in texts]
    print(f"{count} texts of up to {max(lengths)} characters or so; {cores()} threads")
    offline(model, texts[:50])
    optimum, size = offline(model, texts)
    print(f"offline optimum: {optimum:.1f} texts a second, in batches of {size}")

    def run(play: Any, *args: Any) -> Outcome:
        with relay.Relay(model, merge=False, max_queue=8192, name="mixed") as r:
            r.warmup(texts[:64])
            asyncio.run(play(r, texts[:200], *args))  # so that run times are known
        with relay.Relay(model, merge=False, max_queue=8192, name="mixed") as r:
            r.warmup(texts[:64])
            outcome: Outcome = asyncio.run(play(r, texts, *args))
            return outcome

    closed = run(in_flight)
    again, _ = offline(model, texts)
    best = (optimum + again) / 2
    print(
        f"{IN_FLIGHT} in flight: {closed.rate:.1f} texts a second, {closed.rate / best:.2f} of the optimum "
        f"(to be 0.9); padding {closed.waste:.1%} (to be at most 15 %)"
    )
    allowance = DynamicPriority().allowance_ns[relay.BATCH] / 1e9
    opened = run(arriving, 0.85 * closed.rate)
    print(
        f"at 85 % of that, all BATCH: the longest wait {opened.waited:.2f} s (allowance {allowance:g} s), "
        f"padding {opened.waste:.1%}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
