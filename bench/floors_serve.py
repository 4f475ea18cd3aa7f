"""How much a busy Python thread may slow the model down, in a process set up as `relay serve` sets its own up.

The model's time is that of one batch of 64 texts, as the tickets tell it; a ratio of 1 would mean that the busy thread
is not felt at all.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import relay
from relay.tuning import SWITCH_INTERVAL_S, cores

ROUNDS = 7
SENTENCES = Path(__file__).parents[1] / "tests/data/sentences.jsonl"


def _busy(stop: threading.Event) -> None:
    number = 0
    while not stop.is_set():
        for _ in range(1_000):
            number = (number * 31 + 7) % 1_000_003


def idle_over_busy() -> float:
    """The model's time in an idle process over its time beside a thread that never rests: medians of alternating
    rounds."""
    from relay.models import load

    with open(SENTENCES, encoding="utf-8") as lines:
        texts = [text for line in lines if len(text := json.loads(line)["text"]) <= 80]
    texts = (texts * 64)[:64]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    idle: list[float] = []
    busy: list[float] = []
    try:
        with relay.Relay(load("minilm", threads=max(1, cores() - 1)), merge=False, name="floor") as embedder:

            def model_time() -> float:
                before = embedder.snapshot().busy
                embedder.submit_many(texts).result()
                return embedder.snapshot().busy - before

            for _ in range(2):
                model_time()
            for _ in range(ROUNDS):
                idle.append(model_time())
                stop = threading.Event()
                thread = threading.Thread(target=_busy, args=(stop,), daemon=True)
                thread.start()
                busy.append(model_time())
                stop.set()
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    rest, work = statistics.median(idle), statistics.median(busy)
    print(f"model time of a batch: {rest * 1e3:.0f} ms idle, {work * 1e3:.0f} ms beside a busy thread")
    return rest / work


FLOORS: list[tuple[str, float, Callable[[], float]]] = [("model_beside_a_busy_thread", 1 / 1.3, idle_over_busy)]

if __name__ == "__main__":
    for name, floor, measure in FLOORS:
        print(f"{name}: {measure():.2f}, floor {floor:.2f}")
