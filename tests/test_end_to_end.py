"""Real text through a real tokenizer and transformer, the whole way through a relay, on both sides of the core."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both import Lab
from small_models import BERT, save_small

from relay.errors import RelayError
from relay.modelfolder import find
from relay.models import Encoder, load
from relay.tokenizer import FastTokenizer

pytest_plugins = ["both"]
pytestmark = pytest.mark.hf

DATA = Path(__file__).parent / "data"
CLOSE = 1e-4


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    return load("minilm")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A small one with random weights: its folder, and the network as transformers has it."""
    import transformers

    folder = tmp_path_factory.mktemp("reranker")
    kind, config = transformers.BertForSequenceClassification, transformers.BertConfig
    return folder, save_small(folder, kind, config, num_labels=1, **BERT)


def lines(path: Path, field: str = "text") -> Iterator[Any]:
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8")
    with opened as file:
        for line in file:
            yield json.loads(line)[field]


def test_own_reference(lab: Lab, minilm: Encoder, rng: random.Random) -> None:
    texts, vectors = list(lines(DATA / "sentences.jsonl")), np.load(DATA / "sentences_minilm.npz")["vec"]
    order = rng.sample(range(len(texts)), len(texts))
    r = lab.start(minilm, max_batch_size=13)
    assert np.abs(np.stack(list(r.map([texts[i] for i in order]))) - vectors[order]).max() < CLOSE
    assert np.abs(np.stack(r.submit_many(texts).result()) - vectors).max() < CLOSE
    lab.idle(r)


def test_shared_reference(lab: Lab, minilm: Encoder, shared: Path) -> None:
    texts = list(lines(shared / "data/reference/embeddings_texts.jsonl"))
    vectors = np.load(shared / "data/reference/embeddings_minilm.npz")["vec"]
    r = lab.start(minilm)
    found = np.stack(list(r.map(texts)))
    assert np.abs(found - vectors).max() < CLOSE
    assert r.snapshot().mean_batch_size > 10
    lab.idle(r)


def test_a_classifier_as_reranker(reranker: tuple[Path, Any], lab: Lab, rng: random.Random) -> None:
    import torch
    import transformers

    folder, network = reranker
    words = "the sea was calm until a ship with red sails came home and nobody on the pier knew its name".split()
    pairs = [
        (" ".join(rng.choices(words, k=rng.randint(1, 12))), " ".join(rng.choices(words, k=rng.choice([3, 40, 200]))))
        for _ in range(200)
    ]
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    r = lab.start(load(folder, task="rerank"))
    scores = list(r.map(pairs))
    for pair, score in zip(pairs, scores, strict=True):
        encoded = theirs(*pair, truncation="longest_first", max_length=160, return_tensors="pt")
        with torch.inference_mode():
            assert abs(float(network(**encoded).logits[0, 0]) - float(score)) < CLOSE
    lab.idle(r)


def test_ids_reach_the_model_as_the_tokenizer_made_them(lab: Lab, shared: Path) -> None:
    with gzip.open(shared / "data/reference/wordpiece_gold.jsonl.gz", "rt", encoding="utf-8") as file:
        gold = [json.loads(line) for line in file]
    tokenizer = FastTokenizer(find("minilm") / "tokenizer.json", max_length=4096)

    def echo(batch: Any) -> list[list[int]]:
        return [row[:n].tolist() for row, n in zip(batch.input_ids, batch.lengths, strict=True)]

    r = lab.start(echo, tokenizer=tokenizer, limits=lab.Limits(max_ids=4096 * 64))
    for row, ids in zip(gold, r.map([row["text"] for row in gold]), strict=True):
        assert ids == row["ids"], row["text"][:80]
    assert len(gold) == 1294
    lab.idle(r)


def test_texts_that_break_programs(lab: Lab, minilm: Encoder, shared: Path) -> None:
    naughty = list(lines(shared / "data/texts/naughty.jsonl.gz"))
    tatoeba = list(lines(shared / "data/texts/tatoeba.jsonl.gz"))[::12]
    odd = ["", "\0", "a\0b", "\ud800", "x\udc00y", "word " * 2_000_000, "x" * 10_000_000, "\u0085 \u2028", "🏳️‍🌈"]
    r = lab.start(minilm)
    bad = 0
    alone: dict[str, Any] = {}
    texts = naughty + tatoeba + odd
    for text, vector in zip(texts, r.map(texts, return_exceptions=True), strict=True):
        if isinstance(vector, BaseException):
            bad += 1
            assert isinstance(vector, ValueError | RelayError), repr(vector)
            assert any("\ud800" <= c <= "\udfff" for c in text), text[:40]
        else:
            alone[text] = vector
    assert bad == 2
    for text in [*odd[:3], *naughty[::40], *tatoeba[::30]]:
        # Never another item's answer: the same text alone gives the same vector.
        assert np.abs(r(text) - alone[text]).max() < CLOSE, text[:40]
    lab.idle(r)


def test_sts(lab: Lab, minilm: Encoder, shared: Path) -> None:
    with open(shared / "data/reference/sts_pairs.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["set"] == "sts17_en_en"]
    r = lab.start(minilm)
    first, second = (np.stack(list(r.map([row[name] for row in rows]))) for name in ("sentence1", "sentence2"))
    cosines = (first * second).sum(1)
    assert np.abs(cosines - [float(row["ref_cosine"]) for row in rows]).max() < 1e-4
    lab.idle(r)
