"""What is known of a text before any model has seen it: a digest to look it up by, and its input ids.

Any thread may use this. The packaged tokenizer is loaded by the first call that needs it, once in a process.
"""

from __future__ import annotations

import hashlib
import json
import threading
from types import SimpleNamespace
from typing import Literal

import numpy as np
import numpy.typing as npt

from relay.canonical import canonical
from relay.fork import survivors
from relay.modelfolder import find, longest
from relay.tokenizer import FastTokenizer, Tokenizer


def preprocess(
    text: str, digest: Literal["blake2b", "md5"] = "blake2b", *, tokenizer: Tokenizer | None = None
) -> tuple[str, npt.NDArray[np.int64]]:
    """The digest and the input ids of a text: what a table of known texts is searched by, and what a model takes.

        seen: dict[str, Any] = {}
        digest, input_ids = relay.preprocess(text)
        if digest not in seen: ...

    Args:
        text: One text. Nothing in it is normalised.
        digest: ``"blake2b"`` is BLAKE2b of 32 bytes, without a key, of the text's canonical form (see
            `relay.canonical`): the same in every process and version. ``"md5"`` is MD5 of the text in UTF-8, for tables
            that others have made: whoever wants to can make two texts with one MD5. Relay itself decides by neither.
        tokenizer: What makes the ids; None takes that of the packaged all-MiniLM-L6-v2.

    Returns:
        The digest in lower-case hexadecimal digits (64, or 32 for MD5), and the ids as an array of one dimension,
        special ones included, truncated to the tokenizer's ``max_length``.

    Raises:
        TypeError: `text` is not a str, or `tokenizer` is none of ours.
        ValueError: There is no such digest, or the text cannot be encoded.
        ImportError: The packages of the extra ``hf`` are missing.
        LoadFailed: The packaged model is not installed.
    """
    if not isinstance(text, str):
        raise TypeError(f"preprocess takes one text, a str, got {type(text).__name__}; call it for each text")
    if digest not in ("blake2b", "md5"):
        raise ValueError(f"digest is {digest!r}; allowed: 'blake2b', or 'md5' for tables that others have made")
    if tokenizer is None:
        tokenizer = _packaged.get()
    elif isinstance(tokenizer, type) or not hasattr(tokenizer, "encode") or not hasattr(tokenizer, "reserve"):
        raise TypeError(
            f"tokenizer must be one of relay's, such as relay.tokenizer.FastTokenizer(yours), got {tokenizer!r}"
        )
    text = str.__str__(text)  # numpy's texts, for one, are of a class of their own
    encoded = tokenizer.encode([text])[0]
    if isinstance(encoded, Exception):
        raise encoded
    if digest == "md5":
        found = hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
    else:
        found = hashlib.blake2b(canonical(text), digest_size=32).hexdigest()
    return found, np.array(encoded[0], dtype=np.int64)


class _Packaged:
    """The tokenizer of the packaged model, the same that `relay.models.load` gives it."""

    def __init__(self) -> None:
        self._tokenizer: FastTokenizer | None = None
        self._lock = threading.Lock()

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()

    def get(self) -> FastTokenizer:
        """Load it, if that has not been done.

        Raises:
            ImportError, LoadFailed: It is not installed.
        """
        if self._tokenizer is None:
            survivors.add(self)
            with self._lock:
                if self._tokenizer is None:
                    folder = find("minilm")
                    # Read here, for transformers would take seconds to come up.
                    config = SimpleNamespace(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
                    limit = longest(folder, config, None)
                    self._tokenizer = FastTokenizer(folder / "tokenizer.json", limit, config.pad_token_id)
        return self._tokenizer


_packaged = _Packaged()
