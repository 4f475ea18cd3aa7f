"""`relay embed` over every text under ../shared/data/texts, beside a hand-written loop over length-sorted batches.

Run by hand, for it takes minutes: ``python bench/embed_all.py [every-nth]``. Both sides run the same model with the
same threads in this process, read the same file and write an .npy; the loop knows all texts beforehand and sorts them,
which a service never can.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from relay.cli import main
from relay.modelfolder import find
from relay.tuning import cores

TEXTS = Path(os.environ.get("RELAY_SHARED") or Path(__file__).parents[2] / "shared") / "data/texts"


def write_input(path: Path, every: int) -> int:
    """All texts, one JSON object a line. Returns how many."""
    count = 0
    with open(path, "w", encoding="utf-8") as out:
        for source in sorted(TEXTS.iterdir()):
            with gzip.open(source, "rt", encoding="utf-8", newline="") as lines:
                rows = csv.DictReader(lines) if ".csv" in source.name else map(json.loads, lines)
                for number, row in enumerate(rows):
                    if number % every == 0:
                        out.write(json.dumps({"text": row["query" if ".csv" in source.name else "text"]}) + "\n")
                        count += 1
    return count


def by_hand(path: Path, output: Path) -> None:
    """What one would write with transformers alone."""
    import torch
    import transformers

    torch.set_num_threads(cores())
    tokenizer = transformers.AutoTokenizer.from_pretrained(find("minilm"))
    model = transformers.AutoModel.from_pretrained(find("minilm")).eval()
    with open(path, encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    lengths = [len(ids) for ids in tokenizer(texts, truncation=True, max_length=256)["input_ids"]]
    order = sorted(range(len(texts)), key=lengths.__getitem__)
    vectors = np.empty((len(texts), 384), np.float32)
    with torch.inference_mode():
        for start in range(0, len(order), 64):
            part = order[start : start + 64]
            batch = tokenizer(
                [texts[i] for i in part], padding=True, truncation=True, max_length=256, return_tensors="pt"
            )
            mask = batch["attention_mask"].unsqueeze(-1).float()
            rows = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
            vectors[part] = torch.nn.functional.normalize(rows, dim=1).numpy()
    np.save(output, vectors)


def by_relay(path: Path, output: Path) -> None:
    if main(["embed", str(path), "-o", str(output), "--no-progress", "--force"]):
        raise SystemExit("relay embed failed")


def run(every: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, ours, theirs = Path(folder, "texts.jsonl"), Path(folder, "ours.npy"), Path(folder, "theirs.npy")
        count = write_input(source, every)
        few = Path(folder, "few.jsonl")
        few.write_text('{"text": "first"}\n', encoding="utf-8")
        by_relay(few, ours)  # so that neither side pays for the imports
        by_hand(few, theirs)
        start = perf_counter()
        by_relay(source, ours)
        middle = perf_counter()
        by_hand(source, theirs)
        end = perf_counter()
        difference = np.abs(np.load(ours) - np.load(theirs)).max()
    print(f"{count} texts: relay embed {middle - start:.1f} s, by hand {end - middle:.1f} s")
    print(f"ratio {(middle - start) / (end - middle):.2f} (at most 1.15), largest difference {difference:.1e}")


if __name__ == "__main__":
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
