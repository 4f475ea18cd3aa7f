"""The tokenizer against the library it adapts: the same ids whatever the text, its length, and the texts beside it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="needs the extra hf")

from tokenizers import Tokenizer as Fast
from tokenizers import models, normalizers, pre_tokenizers, processors

from relay.errors import TooLarge
from relay.modelfolder import find
from relay.tokenizer import FastTokenizer, Item

pytestmark = pytest.mark.hf

FILE = find("minilm") / "tokenizer.json"


def library(max_length: int | None) -> Fast:
    """The tokenizer itself, truncating or not: what every result is compared with."""
    fast = Fast.from_file(str(FILE))
    fast.no_padding()
    fast.no_truncation()
    if max_length is not None:
        fast.enable_truncation(max_length)
    return fast


@pytest.fixture(scope="module")
def tokenizer() -> FastTokenizer:
    return FastTokenizer(FILE, 256)


def ids_of(tokenizer: FastTokenizer, items: Sequence[Item]) -> list[list[int]]:
    results = tokenizer.encode(items)
    assert len(results) == len(items)
    lists = []
    for result in results:
        assert not isinstance(result, Exception), result
        lists.append(list(result[0]))
    return lists


def texts(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def test_importing_it_loads_no_tokenizers() -> None:
    code = (
        "import relay.tokenizer, relay.models, sys; print({'torch', 'transformers', 'tokenizers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.stdout.strip() == "set()", done.stderr


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"pip install 'relay-inference\[hf\]'"):
        FastTokenizer(FILE)


def test_gold_ids(shared: Path) -> None:
    with gzip.open(shared / "data/reference/wordpiece_gold.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    found = ids_of(FastTokenizer(FILE, 100_000), [row["text"] for row in rows])
    wrong = [row["text"] for row, ids in zip(rows, found, strict=True) if ids != row["ids"]]
    assert wrong == []


@pytest.mark.parametrize("name", ["naughty", "tatoeba", "emoji"])
@pytest.mark.parametrize("max_length", [9, 256])
def test_real_texts(shared: Path, name: str, max_length: int) -> None:
    items = texts(shared / f"data/texts/{name}.jsonl.gz")
    tokenizer = FastTokenizer(FILE, max_length)
    found = ids_of(tokenizer, items)
    assert found == [e.ids for e in library(max_length).encode_batch(items)]
    assert all(len(ids) <= tokenizer.reserve(text) for text, ids in zip(items, found, strict=True))
    pairs = [
        pair for pair in zip(items, reversed(items), strict=True) if len(pair[0]) * len(pair[1]) < 50 * max_length**2
    ]
    assert len(pairs) > 100
    wanted = library(max_length).encode_batch(pairs)
    for pair, want, got in zip(pairs, wanted, tokenizer.encode(pairs), strict=True):
        assert not isinstance(got, Exception)
        assert (list(got[0]), got[1]) == (want.ids, want.type_ids.index(1))
        assert len(got[0]) <= tokenizer.reserve(pair)


ODD = {
    "empty": "",
    "nul": "a\0b",
    "special": "what is [SEP] and [CLS][MASK] or [PAD]?",
    "emoji": "👩‍👩‍👧 🇩🇪 ❤️",
    "controls": "\x01\x1f\x7f\u0085\u2028\ufeffx",
    "zalgo": "Z̴̡̛a͠l̵g̶o̷ é e\u0301",
    "widths": "ｆｕｌｌ ﬁ Ⅻ ½ \u3000 x",
    "unassigned": "\u0378 \U000e0fff \uffff \ue000",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_texts(tokenizer: FastTokenizer, name: str) -> None:
    assert ids_of(tokenizer, [ODD[name], "between", ODD[name]])[::2] == [library(256).encode(ODD[name]).ids] * 2


def test_one_bad_item_fails_alone(tokenizer: FastTokenizer) -> None:
    items: list[Any] = [
        "good",
        "bad \ud800 text",
        ("fine", "bad \udfff"),
        7,
        [1, -5],
        ["a", "b"],
        "x" * 9000 + "\udc80",
        "good",
    ]
    results = tokenizer.encode(items)
    good = library(256).encode("good").ids
    assert results[0] == results[7] == (good, -1)
    assert results[5] == tokenizer.encode([("a", "b")])[0]
    for place, text in (
        (1, r"U\+D800\) at character 4,"),
        (2, r"U\+DFFF\) at character 4,"),
        (6, r"U\+DC80\) at character 9000,"),
    ):
        with pytest.raises(ValueError, match=text):
            raise results[place]  # type: ignore[misc]
    assert isinstance(results[3], TypeError) and isinstance(results[4], ValueError)


@pytest.mark.parametrize(
    ("item", "error", "text"),
    [
        (None, TypeError, "the item is a NoneType; allowed: a str, a pair of str, or a sequence of ints"),
        (b"bytes", TypeError, "the item is a bytes; allowed"),
        ({"a": 1}, TypeError, "the item is a dict; allowed"),
        (3.5, TypeError, "the item is a float; allowed"),
        (("a", "b", "c"), TypeError, "the item is a tuple of str; allowed"),
        (("a", 3), TypeError, "the item is a tuple of int, str; allowed"),
        ([1.0, 2.0], TypeError, "the item is a list of float; allowed"),
        ([[1], [2]], TypeError, "the item is a list of nested sequences; allowed"),
        ([[1], [2, 3]], TypeError, "the item is a list of list; allowed"),
        (np.zeros((2, 2), np.int64), TypeError, "the item is a ndarray of nested sequences; allowed"),
        ([], ValueError, "no input ids"),
        ([5, 30_522], ValueError, "input id 30522 is not in the vocabulary; allowed: 0 to 30521"),
        ([-1], ValueError, "input id -1 is not in the vocabulary"),
        ([2**70], TypeError, "allowed"),
        ([1] * 257, TooLarge, "the item has 257 input ids; the limit is max_length=256"),
    ],
)
def test_wrong_items_are_refused(tokenizer: FastTokenizer, item: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        tokenizer.check(item)
    result = tokenizer.encode([item, "good"])
    assert type(result[0]) is error and not isinstance(result[1], Exception)


@pytest.mark.parametrize(
    "item", ["", "text", ("a", "b"), ["a", "b"], [1, 2], (1, 2), range(1, 9), np.arange(1, 5, dtype=np.int32)]
)
def test_right_items_are_taken(tokenizer: FastTokenizer, item: Any) -> None:
    tokenizer.check(item)
    result = tokenizer.encode([item])[0]
    assert not isinstance(result, Exception)
    assert len(result[0]) <= tokenizer.reserve(item) <= 256
    if len(item) and not isinstance(item[0], str):
        assert result == (list(item), -1)


def test_neither_side_changes_the_other() -> None:
    fast = library(7)
    fast.enable_padding(length=50, pad_id=3)
    tokenizer = FastTokenizer(fast, 16)
    text = "one two three four five six seven eight nine"
    assert ids_of(tokenizer, [text]) == [library(16).encode(text).ids]
    fast.enable_truncation(4)
    assert ids_of(tokenizer, [text]) == [library(16).encode(text).ids]
    assert fast.truncation is not None and fast.truncation["max_length"] == 4
    assert fast.padding is not None and fast.padding["length"] == 50
    assert tokenizer.pad_id == 3


def test_sixteen_threads(tokenizer: FastTokenizer) -> None:
    sizes = [4, 8, 16, 33, 64, 128, 200, 256]
    items = [f"thread number {i} asks about {'things ' * (i * 7 % 60)}" for i in range(40)]
    wanted = {size: [e.ids for e in library(size).encode_batch(items)] for size in sizes}
    shared = Fast.from_file(str(FILE))

    def work(i: int) -> bool:
        size = sizes[i % len(sizes)]
        mine = FastTokenizer(shared, size)
        return all(ids_of(mine, items) == wanted[size] and ids_of(tokenizer, items) == wanted[256] for _ in range(3))

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))


def test_fingerprints() -> None:
    first, same, other = FastTokenizer(FILE, 256), FastTokenizer(library(9), 256), FastTokenizer(FILE, 128)
    assert first.fingerprint == same.fingerprint != other.fingerprint
    changed = library(None)
    changed.add_tokens(["relay"])
    assert FastTokenizer(changed, 256).fingerprint != first.fingerprint


def test_facts(tokenizer: FastTokenizer) -> None:
    assert (tokenizer.max_length, tokenizer.pad_id, tokenizer.has_segments, tokenizer.vocab_size) == (
        256,
        0,
        True,
        30_522,
    )
    with pytest.raises(ValueError, match="max_length is 3; the least is 4"):
        FastTokenizer(FILE, 3)


def test_a_tokenizer_of_another_kind() -> None:
    """Bytes of UTF-8 as ids, no segments: nothing may be assumed about where its words end."""
    letters = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    fast = Fast(models.BPE(vocab={**letters, "<s>": 256, "<pad>": 257}, merges=[]))
    fast.normalizer = normalizers.NFKC()
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 256)]
    )
    tokenizer = FastTokenizer(fast, 32)
    assert (tokenizer.has_segments, tokenizer.pad_id, tokenizer.vocab_size) == (False, 257, 258)
    fast.enable_truncation(32)
    for text in ("plain", "größer", "\ufdfa", "中文 " * 400, "x" * 5000):
        assert tokenizer.encode([text]) == [(fast.encode(text).ids, -1)]
        assert len(fast.encode(text).ids) <= tokenizer.reserve(text)
    assert tokenizer.encode([("one", "two")]) == [(fast.encode("one", "two").ids, -1)]
