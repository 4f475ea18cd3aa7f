"""Values that are easily taken for each other, and what tells them apart by other means than relay's own."""

from __future__ import annotations

import math
import random
import unicodedata
from typing import Any

import numpy as np

LOOKS: list[tuple[str, str]] = [
    ("e\u0301", "\u00e9"), ("a", "\u0430"), ("o", "\u03bf"), ("A", "\uff21"), ("", "\u200b"), ("", "\ufeff"), ("", " "),
    ("", "\0"), ("s", "\u017f"), ("K", "\u212a"), ("fi", "\ufb01"), ("\n", "\r\n"), ("1", "\u0661"), ("-", "\u2212"),
    ("\U0001f600", "\ud83d\ude00"), ("\ud800", "\udc00"),
]  # fmt: skip
WORDS = [
    "",
    "a",
    "ab",
    "b",
    "abc",
    "c",
    "1",
    "True",
    "None",
    "e\u0301",
    "caf\u00e9",
    "Kelvin",
    "fi",
    "o1",
    "\U0001f600",
    "x\n",
]
NUMBERS: list[Any] = [
    0,
    1,
    -1,
    255,
    256,
    -128,
    -129,
    2**31,
    2**63,
    -(2**63),
    2**64,
    10**30,
    True,
    False,
    0.0,
    -0.0,
    1.0,
]
NUMBERS += [0.1, 1e300, float("inf"), float("-inf"), float("nan"), 5e-324]


def tell(value: Any) -> Any:
    """Equal for two values exactly if they are one to the last bit, their types included."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        return kind, value.dtype.str, value.shape, repr(value.tolist())
    if isinstance(value, float):
        return kind, value.hex(), math.copysign(1, value)
    if isinstance(value, list | tuple):
        return kind, [tell(part) for part in value]
    if isinstance(value, set | frozenset):
        return kind, sorted(repr(tell(part)) for part in value)
    if isinstance(value, dict):
        return kind, sorted((repr(tell(key)), repr(tell(part))) for key, part in value.items())
    return kind, ascii(value)


def any_value(rng: random.Random, depth: int = 2, *, hashable: bool = False) -> Any:
    """A value that `canonical` takes."""
    kind = rng.randrange(9 if depth else 5)
    if kind < 2:
        return "".join(rng.choices(WORDS, k=rng.randrange(4)))
    if kind == 2:
        return rng.choice(NUMBERS)
    if kind == 3:
        return rng.choice([None, "".join(rng.choices("ab1", k=rng.randrange(4))).encode(), rng.randrange(-300, 300)])
    if kind == 4 and not hashable:
        return np.array(rng.choices(range(3), k=rng.randrange(4)), rng.choice(["<i8", "<i4", ">i4", "u1", "<f4"]))
    parts = [any_value(rng, max(depth - 1, 0), hashable=hashable) for _ in range(rng.randrange(4))]
    if kind in (4, 5, 6) or hashable:
        return frozenset(parts) if hashable and kind == 8 else tuple(parts)
    if kind == 7:
        return parts
    return {any_value(rng, 0, hashable=True): part for part in parts}


def near(rng: random.Random, value: Any, *, hashable: bool = False) -> Any:
    """Another value that might be taken for this one; now and then this one, made anew."""
    if rng.random() < 0.05:
        return again(value)
    other = _near(rng, value, hashable)
    if hashable:
        try:
            hash(other)
        except TypeError:
            return value, None
    return other


def _near(rng: random.Random, value: Any, hashable: bool) -> Any:
    if rng.random() < 0.1:
        return rng.choice([(value,), (value, None), ((value,),), [value], [[value]], frozenset((0,))])
    if isinstance(value, str):
        return _near_text(rng, value)
    if isinstance(value, bytes):
        return rng.choice([value.decode("latin-1"), value + b"\0", value[1:], repr(value), list(value)])
    if isinstance(value, bool | int | float):
        return _near_number(rng, value)
    if isinstance(value, np.ndarray):
        kinds = [value.astype("<i8"), value.astype(">i4"), value[::-1].copy(), value.tolist(), tuple(value.tolist())]
        return rng.choice([*kinds, value.reshape(1, -1), value.reshape(-1, 1), value.tobytes(), value.view("u1")])
    if isinstance(value, tuple | list):
        return _near_sequence(rng, value, hashable)
    if isinstance(value, frozenset):
        return rng.choice([tuple(value), value | {None}, value | {""}, frozenset(list(value)[1:])])
    if isinstance(value, dict):
        return _near_dict(rng, value)
    return rng.choice(["None", "", 0, False, b"", (), (None,)])


def again(value: Any) -> Any:
    """An equal value that shares nothing with this one, as far as Python lets it."""
    if isinstance(value, tuple | list | set | frozenset):
        return type(value)([again(part) for part in value])
    if isinstance(value, dict):
        return {again(key): again(part) for key, part in reversed(value.items())}
    if isinstance(value, str):
        return "".join(list(value))
    return value.copy() if isinstance(value, np.ndarray) else value


def _near_text(rng: random.Random, value: str) -> Any:
    how = rng.randrange(7)
    if how < 3:
        plain, like = rng.choice(LOOKS)
        place = rng.randrange(len(value) + 1)
        plain, like = rng.choice([(plain, like), (like, plain)])
        return value[:place] + value[place:].replace(plain, like, 1) if plain else value[:place] + like + value[place:]
    if how == 3:
        return unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKC", "NFKD"]), value)
    return rng.choice([value.encode("utf-8", "surrogatepass"), value.swapcase(), value + " ", repr(value), list(value)])


def _near_number(rng: random.Random, value: Any) -> Any:
    others: list[Any] = [str(value), str(value).encode(), -value, not value, value + 1, np.array([0])]
    if not isinstance(value, float):
        others += [int(value), float(value), value + 256, value ^ (1 << 64), bool(value)]
    elif math.isfinite(value):
        others += [int(value), math.nextafter(value, math.inf), value.hex()]
    return rng.choice(others)


def _near_sequence(rng: random.Random, value: Any, hashable: bool) -> Any:
    kind, parts = type(value), list(value)
    how = rng.randrange(8)
    if how == 0:
        return tuple(parts) if kind is list or hashable else parts
    if how == 1:
        return kind([*parts, rng.choice([None, "", 0, ()])])
    if not parts:
        return rng.choice([None, "", b"", (None,), ("",), frozenset()])
    i = rng.randrange(len(parts))
    if how == 2:
        return kind(parts[:i] + parts[i + 1 :])
    if how == 3 and len(parts) > 1:
        j = rng.randrange(len(parts))
        parts[i], parts[j] = parts[j], parts[i]
        return kind(parts)
    if how == 4:
        return kind([tuple(parts[:i]), *parts[i:]])
    if how == 5 and i and all(isinstance(part, str) for part in parts[i - 1 : i + 1]):
        both, cut = parts[i - 1] + parts[i], rng.randrange(len(parts[i - 1]) + len(parts[i]) + 1)
        return kind([*parts[: i - 1], both[:cut], both[cut:], *parts[i + 1 :]])  # the boundary moves
    if how == 6 and all(isinstance(part, str) for part in parts):
        return rng.choice([kind([",".join(parts)]), "".join(parts), kind(["', '".join(parts)])])
    parts[i] = near(rng, parts[i], hashable=hashable)
    return kind(parts)


def _near_dict(rng: random.Random, value: dict[Any, Any]) -> Any:
    keys = list(value)
    how = rng.randrange(5)
    if how == 0 or not keys:
        return {**value, rng.choice(["", None, "k", 0]): rng.choice([None, ""])}
    first, second = rng.choice(keys), rng.choice(keys)
    if how == 1:
        return {**value, first: value[second], second: value[first]}
    if how == 2:
        return {key: part for key, part in value.items() if key is not first}
    if how == 3:
        return list(value.items())
    return {(near(rng, key, hashable=True) if key is first else key): part for key, part in value.items()}
