"""Long and huge texts against the library: the same truncated ids, without the work for the rest."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest

pytest.importorskip("tokenizers", reason="needs the extra hf")

import tokenizers
from tokenizers import Tokenizer as Fast

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


ALPHABETS = {
    "words": ["the ", "relay ", "answers ", "once. "],
    "letters": list("abcdefghij"),
    "marks": ["a", "\u0301", "\u0e34", "\u0e17", "\u302e", "\u200b", "\u0327"],
    "spaces": [" ", "\t", "\n", "\u3000", "\x0b", "\0", "\u200b", "\u2028"],
    "few words": [" ", "\u200b"] + ["\0"] * 40 + ["x" * 90, "\u00a0" * 30],
    "chinese": list("中文字") + ["\ufa0e", "\u0301", " "],
    "korean": list("한국어") + ["\u1100", " "],
    "special": ["[SEP]", "[MASK]", "[", "]", "SEP", "x" * 300, " ", "\u200b"],
    "long": ["x" * 99, "y" * 101, "é" * 60, "\u200b" * 500, " " * 500, "!", "."],
}


@pytest.mark.parametrize("name", ALPHABETS)
def test_long_texts_have_the_librarys_ids(name: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    alphabet = ALPHABETS[name]
    for max_length in (4, 9, 33):
        tokenizer, reference = FastTokenizer(FILE, max_length), library(max_length)
        items: list[str] = []
        for _ in range(25):
            weights = [rng.random() ** 4 for _ in alphabet]
            length = int(10 ** rng.uniform(0, 4.5))
            text = ""
            while len(text) < length:
                text += (
                    "".join(rng.choices(alphabet, weights, k=8)) if rng.random() < 0.9 else rng.choice(alphabet) * 300
                )
            items.append(text[:length])
        for text, ids in zip(items, ids_of(tokenizer, items), strict=True):
            assert ids == reference.encode(text).ids, (len(text), text[:200])
        # The library builds every combination of the pieces that it cuts off, so its pairs must not be too long.
        top = 45 * max_length
        pairs = [
            (a[: rng.randrange(top)], b[: rng.randrange(top)]) for a, b in zip(items, reversed(items), strict=True)
        ]
        for pair, got in zip(pairs, tokenizer.encode(pairs), strict=True):
            want = reference.encode(*pair)
            assert not isinstance(got, Exception)
            assert (list(got[0]), got[1]) == (want.ids, want.type_ids.index(1)), [len(text) for text in pair]


HUGE = {
    "a word": ("x" * 27_000_000, "x" * 500),
    "accents": ("é" * 10_000_000, "é" * 500),
    "thai": ("ที่" * 3_300_000, "ที่" * 200),
    "english": ("all of this, again and again. " * 340_000, "all of this, again and again. " * 200),
    "chinese": ("中" * 10_000_000, "中" * 500),
    "spaces": (" " * 10_000_000 + "end", "end"),
    "nul": ("\0" * 10_000_000 + "end", "end"),
    "nothing": ("\u200b" * 10_000_000 + "end", "end"),
    "punctuation": ("!" * 10_000_000, "!" * 500),
}


@pytest.mark.parametrize("name", HUGE)
def test_huge_texts_take_no_seconds(tokenizer: FastTokenizer, name: str) -> None:
    text, same = HUGE[name]
    start = time.process_time()
    found = ids_of(tokenizer, [text])[0]
    spent = time.process_time() - start
    assert found == library(256).encode(same).ids
    assert spent < 1, f"{spent:.2f} s of CPU; encoding all of it takes 3 to 30 s"


def test_a_huge_pair(tokenizer: FastTokenizer) -> None:
    for first, second in ((HUGE["english"][0], "short"), ("short", HUGE["english"][0]), ("b " * 300, "a " * 5_000_000)):
        want = library(256).encode(first[:20_000], second[:20_000])
        assert tokenizer.encode([(first, second)]) == [(want.ids, want.type_ids.index(1))]
    result = tokenizer.encode([("a " * 5_000_000, "b " * 5_000_001)])[0]
    assert not isinstance(result, Exception) and len(result[0]) == 256


def test_added_tokens_that_could_span_a_cut_switch_clipping_off() -> None:
    for added in ("plain", tokenizers.AddedToken("[X Y]"), tokenizers.AddedToken("[XY]", single_word=True)):
        fast = library(None)
        fast.add_special_tokens([added])
        tokenizer = FastTokenizer(fast, 6)
        assert tokenizer._clipper is None
        fast.enable_truncation(6)
        text = "a" * 300 + "plain [X Y] [XY] b"
        assert ids_of(tokenizer, [text]) == [fast.encode(text).ids]
