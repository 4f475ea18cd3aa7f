"""From an item to its input ids: what a tokenizer must offer, and the adapter for the fast tokenizers of Hugging Face.

A tokenizer is called from any thread, several at once, and never raises for one bad item: that item's place in the
result holds its exception. The invariant: the ids of an item do not depend on the items beside it, and a truncated text
has exactly the ids that encoding it whole and cutting afterwards would give, whatever its length.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from relay.clipper import Clipper, refuse_surrogates
from relay.errors import TooLarge

Ids: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]
Item: TypeAlias = str | tuple[str, str] | Ids
Encoded: TypeAlias = tuple[Sequence[int], int]

_ALLOWED = "a str, a pair of str, or a sequence of ints (input ids)"
_PAIR_COUNTED = 65_536  # characters; the shorter text of a pair is counted exactly up to here


class Tokenizer(Protocol):
    """What relay asks of a tokenizer.

    Attributes:
        max_length: The most ids an item may have; longer texts are truncated, longer id sequences refused.
        pad_id: The id that fills a row behind its last real id.
        has_segments: Whether pairs are told apart by ``token_type_ids``.
        fingerprint: Equal for two tokenizers only if they give equal ids.
        vocab_size: Ids are in ``range(vocab_size)``.
    """

    max_length: int
    pad_id: int
    has_segments: bool
    fingerprint: str
    vocab_size: int

    def check(self, item: object) -> None:
        """Raises TypeError or ValueError if ``item`` cannot be encoded; quick, called by submit."""

    def reserve(self, item: Item) -> int:
        """An upper bound on the number of ids of ``item``, from its length alone."""

    def encode(self, items: Sequence[Item]) -> list[Encoded | Exception]:
        """For each item its ids and the index of its second segment's first id (-1: none), or its own exception."""


class FastTokenizer:
    """Adapts a tokenizer of the ``tokenizers`` package.

    The tokenizer is copied, so later changes to the original (padding, truncation) do not reach it. Texts are truncated
    on the right to ``max_length`` ids, of a pair the longer text first. Encoding runs without the GIL.

    Args:
        tokenizer: A ``tokenizers.Tokenizer``, a fast tokenizer of transformers, or the path of a ``tokenizer.json``.
        max_length: The most ids an item may have, special tokens included.
        pad_id: The padding id; by default what the tokenizer names, else 0.

    Raises:
        ImportError: The ``tokenizers`` package is missing.
        ValueError: ``max_length`` leaves no room beside the special tokens, or the segments of a pair are not 0s
            followed by 1s.
    """

    def __init__(self, tokenizer: Any, max_length: int = 512, pad_id: int | None = None) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise ImportError("FastTokenizer needs tokenizers: pip install 'relay-inference[hf]'") from error
        if isinstance(tokenizer, (str, os.PathLike)):
            tokenizer = tokenizers.Tokenizer.from_file(os.fspath(tokenizer))
        tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        padding = tokenizer.padding
        full = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        full.encode_special_tokens = tokenizer.encode_special_tokens  # not part of the serialised form
        full.no_padding()
        full.no_truncation()
        text = full.to_str()
        # Texts are cut, and special tokens put around what is left, in `_one` and `_joined`: the library keeps what it
        # cuts off, in pieces of max_length, and for a pair every combination of such pieces.
        self._frame = _frame(full, ("a",))
        self._pair_frame = _frame(full, ("a", "b"))
        self._room = max_length - sum(map(len, self._frame))
        self._pair_room = max_length - sum(map(len, self._pair_frame))
        if self._pair_room < 1:
            least = max_length - self._pair_room + 1
            raise ValueError(f"max_length is {max_length}; the least is {least}, one id beside the special tokens")
        if pad_id is None and padding is not None:
            pad_id = int(padding["pad_id"])
        if pad_id is None:
            found = (full.token_to_id(name) for name in ("[PAD]", "<pad>"))
            pad_id = next((i for i in found if i is not None), 0)
        segments = full.encode("a", "b").type_ids
        if segments != sorted(segments) or segments[-1] > 1:
            raise ValueError(f"the segments of a pair are {segments}; relay can only write 0s followed by 1s")
        # How many of the special tokens between two texts belong to the first segment.
        self._before_split = segments.index(1) - len(self._pair_frame[0]) - 1 if 1 in segments else -1
        self.max_length = max_length
        self.pad_id = pad_id
        self.has_segments = 1 in segments
        self.vocab_size = int(full.get_vocab_size(True))
        salt = f"{max_length} {full.encode_special_tokens} "
        self.fingerprint = hashlib.sha256((salt + text).encode()).hexdigest()
        # Without offsets into the text, which nobody asks for; older versions always find them.
        self._encode_batch = getattr(full, "encode_batch_fast", full.encode_batch)
        self._clipper = Clipper.of(full, json.loads(text))

    def __repr__(self) -> str:
        return f"FastTokenizer(max_length={self.max_length}, vocab_size={self.vocab_size})"

    def check(self, item: object) -> None:
        """Refuses what can never be encoded.

        Raises:
            TypeError: ``item`` is not a str, a pair of str, or a sequence of ints.
            ValueError: An id sequence is empty or holds an id outside the vocabulary.
            TooLarge: An id sequence is longer than ``max_length``.
        """
        if not isinstance(item, str) and not _is_pair(item):
            self._checked_ids(item)

    def reserve(self, item: Item) -> int:
        """An upper bound on the number of ids of ``item``, at most ``max_length``."""
        if isinstance(item, str):
            bound = self.max_length - self._room + (len(item) + 1 if item.isascii() else self._bound(item))
        elif _is_pair(item):
            bound = self.max_length - self._pair_room + self._bound(item[0]) + self._bound(item[1])
        else:
            bound = len(item)
        return min(bound, self.max_length)

    def encode(self, items: Sequence[Item]) -> list[Encoded | Exception]:
        """Encodes each item by itself.

        Returns:
            In the order of ``items``: ``(ids, split)``, where ``split`` is the index of the first id of a pair's second
            text and -1 otherwise; or the exception that this item alone causes.
        """
        if set(map(type, items)) == {str}:
            return self._encode_texts(items)  # type: ignore[arg-type]
        out: list[Encoded | Exception] = [((), -1)] * len(items)
        texts: list[str] = []  # the texts of all items, one behind the other
        ends: list[tuple[int, int]] = []  # for each item of text its place in `items` and the end of its texts
        for place, item in enumerate(items):
            try:
                if isinstance(item, str):
                    texts.append(self._short(item))
                elif _is_pair(item):
                    texts.extend(self._short_pair(*item))
                else:
                    out[place] = (self._checked_ids(item).tolist(), -1)
                    continue
                ends.append((place, len(texts)))
            except Exception as error:
                out[place] = error
        found: Sequence[Any]
        try:
            found = self._encode_batch(texts, add_special_tokens=False) if texts else ()
        except BaseException as error:  # a panic in the library is no Exception
            _raise_if_ours(error)
            found = [self._encode_one(text) for text in texts]
        start = 0
        for place, end in ends:
            parts = found[start:end]
            bad = [part for part in parts if isinstance(part, Exception)]
            out[place] = bad[0] if bad else self._joined(parts)
            start = end
        return out

    def _encode_texts(self, items: Sequence[str]) -> list[Encoded | Exception]:
        """As `encode`, with the special tokens put around each text by the library, for most need not be cut."""
        longest = 32 * self._room if self._clipper is not None else max(map(len, items), default=0)
        texts: list[Any] = [item if len(item) <= longest else self._clipped(item) for item in items]
        try:
            found = self._encode_batch(texts, add_special_tokens=True)
        except BaseException as error:  # also because one of `texts` is an exception
            _raise_if_ours(error)
            found = [self._encode_one(text, True) for text in texts]
        return [self._one(part) for part in found]

    def _one(self, part: Any) -> Encoded | Exception:
        if isinstance(part, Exception):
            return part
        ids, after = part.ids, self._frame[1]
        return (ids if len(ids) <= self.max_length else ids[: self.max_length - len(after)] + after), -1

    def _clipped(self, text: str) -> str | Exception:
        try:
            return self._short(text)
        except Exception as error:
            return error

    def _encode_one(self, text: str | Exception, special: bool = False) -> Any:
        if isinstance(text, Exception):
            return text
        try:
            refuse_surrogates(text)
            return self._encode_batch([text], add_special_tokens=special)[0]
        except BaseException as error:
            _raise_if_ours(error)
            return error if isinstance(error, ValueError) else ValueError(f"the tokenizer refused the text: {error}")

    def _joined(self, parts: Sequence[Any]) -> Encoded:
        """The ids of one item from those of its texts, truncated, with the special tokens around them."""
        if len(parts) == 1:
            before, after = self._frame
            return [*before, *parts[0].ids[: self._room], *after], -1
        first, second = (part.ids for part in parts)
        shorter, longer = sorted((len(first), len(second)))
        if shorter + longer > self._pair_room:
            # The longer is cut to the shorter's length at most; then both equally, but the longer keeps an odd id.
            longer = max(shorter, self._pair_room - shorter)
            if shorter + longer > self._pair_room:
                shorter, longer = self._pair_room // 2, self._pair_room - self._pair_room // 2
            first, second = (
                (first[:longer], second[:shorter]) if len(first) > len(second) else (first[:shorter], second[:longer])
            )
        before, between, after = self._pair_frame
        split = len(before) + len(first) + self._before_split if self.has_segments else -1
        return [*before, *first, *between, *second, *after], split

    def _bound(self, text: str) -> int:
        # A character may decompose into 3 jamo, or elsewhere into 18 characters of 4 bytes, each with an id of its own.
        if text.isascii():
            return len(text) + 1
        return len(text) * (3 if self._clipper is not None else 72) + 1

    def _short(self, text: str) -> str:
        """The text, or if it is far too long a short one of the same truncated ids."""
        if self._clipper is None or len(text) <= 32 * self._room:
            return text
        return self._clipper.clip(text, self._room)

    def _short_pair(self, first: str, second: str) -> tuple[str, str]:
        clipper, room = self._clipper, self._pair_room
        if clipper is None or max(len(first), len(second)) <= 32 * room:
            return first, second
        # Which of two texts keeps an odd id depends on which has more ids, so the longer one must stay the longer one.
        swap = len(first) < len(second)
        longer, shorter = (second, first) if swap else (first, second)
        if len(shorter) > _PAIR_COUNTED:
            shorter = clipper.clip(shorter, room)
        longer = clipper.clip(longer, max(room, clipper.count(shorter)) + 1)
        return (shorter, longer) if swap else (longer, shorter)

    def _checked_ids(self, item: object) -> npt.NDArray[np.integer[Any]]:
        if not isinstance(item, (Sequence, np.ndarray)) or isinstance(item, (bytes, bytearray, memoryview)):
            raise TypeError(f"the item is a {type(item).__name__}; allowed: {_ALLOWED}")
        if len(item) == 0:
            raise ValueError("the item has no input ids; at least one is needed")
        if len(item) > self.max_length:
            raise TooLarge(f"the item has {len(item)} input ids; the limit is max_length={self.max_length}; shorten it")
        try:
            ids = np.asarray(item)
        except (ValueError, OverflowError):
            ids = np.empty(0, dtype=object)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            inner = ", ".join(sorted({type(x).__name__ for x in item})) if ids.ndim <= 1 else "nested sequences"
            raise TypeError(f"the item is a {type(item).__name__} of {inner}; allowed: {_ALLOWED}")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            raise ValueError(f"input id {wrong} is not in the vocabulary; allowed: 0 to {self.vocab_size - 1}")
        return ids


def _is_pair(item: object) -> TypeGuard[tuple[str, str]]:
    return isinstance(item, (tuple, list)) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], str)


def _raise_if_ours(error: BaseException) -> None:
    if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
        raise error


def _frame(full: Any, texts: tuple[str, ...]) -> tuple[list[int], ...]:
    """The special ids before, between and after texts."""
    encoding = full.encode(*texts)
    owners = encoding.sequence_ids
    frame: list[list[int]] = [[]]
    for owner, run in itertools.groupby(zip(owners, encoding.ids, strict=True), lambda pair: pair[0]):
        if owner is None:
            frame[-1] += [i for _, i in run]
        elif owner == len(frame) - 1:
            frame.append([])
        else:
            raise ValueError("the tokenizer does not put its texts one behind the other; relay cannot truncate that")
    if len(frame) != len(texts) + 1:
        raise ValueError(f"the tokenizer makes no ids of {texts}; it cannot be used")
    return tuple(frame)
