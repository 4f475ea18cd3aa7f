"""`preprocess`: a digest to look a text up by, and the ids that a model takes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="needs the extra hf")

import relay
from relay.canonical import canonical
from relay.modelfolder import find
from relay.preprocess import _Packaged
from relay.tokenizer import FastTokenizer

pytestmark = pytest.mark.hf

LOOK_ALIKE = [
    "caf\u00e9",
    "cafe\u0301",
    "c\u0430f\u00e9",
    "caf\u00e9\u200b",
    "caf\u00e9 ",
    "Caf\u00e9",
    "\uff43af\u00e9",
]


def test_the_pair() -> None:
    digest, input_ids = relay.preprocess("Hello world")
    assert digest == hashlib.blake2b(canonical("Hello world"), digest_size=32).hexdigest()
    assert digest == "28e84e6ed723e0cab70342734aa20409445568fa56cecc9f44a8a7a0be843f9a", "in every version"
    assert (
        type(input_ids) is np.ndarray and input_ids.dtype == np.int64 and input_ids.tolist() == [101, 7592, 2088, 102]
    )


def test_md5_is_that_of_others() -> None:
    digest, input_ids = relay.preprocess("caf\u00e9", "md5")
    assert digest == "07117fe4a1ebd544965dc19573183da2" == hashlib.md5("caf\u00e9".encode()).hexdigest()
    assert input_ids.tolist() == relay.preprocess("caf\u00e9", digest="blake2b")[1].tolist()


@pytest.mark.parametrize("kind", ["blake2b", "md5"])
def test_texts_that_look_alike_differ(kind: Any) -> None:
    assert len({relay.preprocess(text, kind)[0] for text in LOOK_ALIKE}) == len(LOOK_ALIKE)


def test_the_ids_are_those_of_the_packaged_model() -> None:
    own = FastTokenizer(find("minilm") / "tokenizer.json", 256, 0)
    for text in ["", "a", *LOOK_ALIKE, "word " * 1000, "x" * 100_000]:
        (expected,) = own.encode([text])
        assert not isinstance(expected, Exception) and relay.preprocess(text)[1].tolist() == list(expected[0])


def test_it_is_the_tokenizer_that_load_gives() -> None:
    pytest.importorskip("torch", reason="needs the extra hf")
    pytest.importorskip("transformers", reason="needs the extra hf")
    from relay.models import load

    assert _Packaged().get().fingerprint == load("minilm").tokenizer.fingerprint


def test_an_own_tokenizer() -> None:
    short = FastTokenizer(find("minilm") / "tokenizer.json", 4)
    digest, input_ids = relay.preprocess("one two three four", tokenizer=short)
    assert digest == relay.preprocess("one two three four")[0] and input_ids.tolist() == [101, 2028, 2048, 102]


def test_a_text_of_a_class_of_its_own_is_its_text() -> None:
    found, input_ids = relay.preprocess(np.str_("Hello world"))
    assert found == relay.preprocess("Hello world")[0] and input_ids.tolist() == [101, 7592, 2088, 102]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((b"a",), TypeError, "takes one text, a str, got bytes; call it for each text"),
        ((["a", "b"],), TypeError, "takes one text, a str, got list"),
        ((None,), TypeError, "a str, got NoneType"),
        (("a", "sha1"), ValueError, "digest is 'sha1'; allowed: 'blake2b', or 'md5'"),
        (("a", None), ValueError, "digest is None; allowed"),
        (("a\ud800",), ValueError, "surrogate"),
    ],
)
def test_what_is_refused(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        relay.preprocess(*arguments)


@pytest.mark.parametrize("tokenizer", [len, FastTokenizer, object()])
def test_other_tokenizers_are_refused(tokenizer: Any) -> None:
    with pytest.raises(TypeError, match=r"must be one of relay's, such as relay.tokenizer.FastTokenizer\(yours\), got"):
        relay.preprocess("a", tokenizer=tokenizer)


def test_loaded_once_by_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    module = sys.modules[_Packaged.__module__]
    monkeypatch.setattr(module, "FastTokenizer", lambda *args: made.append(FastTokenizer(*args)) or made[-1])
    packaged = _Packaged()
    barrier, found = threading.Barrier(8), []

    def ask() -> None:
        barrier.wait()
        found.append(packaged.get())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and set(map(id, found)) == {id(made[0])} and len(found) == 8


QUIET = """
import sys, threading, relay
before = threading.enumerate()
heavy = {"torch", "transformers", "tokenizers"}
assert not heavy & set(sys.modules)
relay.preprocess("a text")
assert heavy & set(sys.modules) == {"tokenizers"} and threading.enumerate() == before
"""


def test_it_loads_no_more_than_it_needs() -> None:
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"pip install 'relay-inference\[hf\]'"):
        _Packaged().get()
