"""How fast texts become rows: beside one call of the library over all of them, and beside a tokenizer as it is commonly
called where the text has been seen before. Ratios only, each measured in one process, in alternating rounds.

Every text under ../shared/data/texts, in the order in which they lie there, each as often as it is there. The path is
what the helpers do with texts that have been admitted, until their rows are ready, with an empty cache; and beside it
is told what becomes of it when the submission, on another thread, counts as well. Both get something for the texts that
come more than once (two in five do), which the library encodes each time; what is left without that is told, too.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

import relay
from relay._backend import arena, idcache
from relay.modelfolder import find
from relay.tokenizer import FastTokenizer

TEXTS = Path(os.environ.get("RELAY_SHARED") or Path(__file__).parents[2] / "shared") / "data/texts"
TEXT = "How do I track the card you sent me two weeks ago, and what can I do if it still has not arrived?"
ROUNDS = 3


def all_texts() -> list[str]:
    texts: list[str] = []
    for source in sorted(TEXTS.iterdir()):
        with gzip.open(source, "rt", encoding="utf-8", newline="") as lines:
            if ".csv" in source.name:
                texts += [row["query"] for row in csv.DictReader(lines)]
            else:
                texts += [json.loads(line)["text"] for line in lines]
    return texts


class Held:
    """A relay whose model waits, so that whatever is submitted becomes ready and stays."""

    def __init__(self, tokenizer: FastTokenizer, room: int) -> None:
        self.go, self.running = threading.Event(), threading.Event()
        limits = relay.Limits(max_queue=room, max_ids=64 * room)
        self.relay: relay.Relay[Any, Any] = relay.Relay(self._model, tokenizer=tokenizer, limits=limits)
        self.relay.submit("the model begins with this one")
        self.running.wait()

    def _model(self, batch: Any) -> list[int]:
        self.running.set()
        self.go.wait()
        return [0] * len(batch.items)

    def ready(self) -> int:
        return self.relay._desk.queue.queued  # a whole snapshot would take its share of what is measured

    def close(self) -> None:
        self.go.set()
        self.relay.close()


class Gated(FastTokenizer):
    """A tokenizer that waits before its first text until it is let go."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.go = threading.Event()

    def encode(self, items: Any) -> Any:
        self.go.wait()
        return super().encode(items)


def path_beside_the_library(submission: bool = False, once: bool = False, group: int = 1024) -> float:
    """Time of one `encode_batch_fast` over all texts, over the time until the rows of all are ready.

    Args:
        submission: Whether that time begins with the first submission, or when all texts have been admitted.
        once: Leave out the texts that have come before.
        group: How many are submitted together.
    """
    import tokenizers

    file = find("minilm") / "tokenizer.json"
    library = tokenizers.Tokenizer.from_file(str(file))
    library.no_padding()
    library.no_truncation()
    adapter = Gated(file, 256)
    texts = list(dict.fromkeys(all_texts())) if once else all_texts()
    library_ns = path_ns = 1 << 62
    for _ in range(ROUNDS):
        began = perf_counter_ns()
        library.encode_batch_fast(texts)
        library_ns = min(library_ns, perf_counter_ns() - began)
        adapter.go.set()  # for the text that the model begins with
        held = Held(adapter, len(texts) + 1)
        if not submission:
            adapter.go.clear()
        began = perf_counter_ns()
        for start in range(0, len(texts), group):
            held.relay.submit_many(texts[start : start + group])
        if not submission:
            began = perf_counter_ns()
            adapter.go.set()
        while held.ready() < len(texts):
            sleep(0.001)
        path_ns = min(path_ns, perf_counter_ns() - began)
        held.close()
    return library_ns / path_ns


def _common() -> Callable[[], object]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(find("minilm"))
    return lambda: tokenizer(TEXT, return_tensors="pt")


def _fastest(work: Callable[[], object], times: int) -> float:
    """Nanoseconds of one call, of so many."""
    began = perf_counter_ns()
    for _ in range(times):
        work()
    return (perf_counter_ns() - began) / times


def fetch_beside_transformers(rounds: int = 30) -> float:
    common = _common()
    cache, table = idcache.IdCache(1 << 20), arena.Arena(1, 512)
    handle = table.lease(pinned=True)
    adapter = FastTokenizer(find("minilm") / "tokenizer.json", 256)
    encoded = adapter.encode([TEXT])[0]
    assert not isinstance(encoded, Exception)
    assert cache.put(TEXT, None, *encoded)
    common_ns = fetch_ns = float("inf")
    for _ in range(rounds):
        common_ns = min(common_ns, _fastest(common, 20))
        fetch_ns = min(fetch_ns, _fastest(lambda: cache.fetch(table, handle, TEXT), 1000))
    return common_ns / fetch_ns


def admission_beside_transformers(rounds: int = 30) -> float:
    """The whole of `submit` for a text that is in the cache: its row is written and it is ready when that returns."""
    common = _common()
    held = Held(FastTokenizer(find("minilm") / "tokenizer.json", 256), rounds * 200 + 10)
    held.relay.submit(TEXT)
    while held.ready() < 1:
        sleep(0.001)
    common_ns = submit_ns = float("inf")
    for number in range(rounds):
        common_ns = min(common_ns, _fastest(common, 20))
        submit_ns = min(submit_ns, _fastest(lambda: held.relay.submit(TEXT), 200))
        assert held.ready() == 1 + 200 * (number + 1)
    held.close()
    return common_ns / submit_ns


FLOORS: list[tuple[str, float, Callable[[], float]]] = [
    ("tokenise_path_over_library", 0.9, path_beside_the_library),
    ("tokenise_path_with_submission_over_library", 0.6, lambda: path_beside_the_library(submission=True)),
    ("tokenise_path_of_texts_once_over_library", 0.6, lambda: path_beside_the_library(once=True)),
    ("idcache_fetch_over_transformers", 50.0, fetch_beside_transformers),
    ("cached_admission_over_transformers", 20.0, admission_beside_transformers),
]

if __name__ == "__main__":
    for name, floor, measure in FLOORS:
        print(f"{name}: {measure():.2f}x, floor {floor}x")
