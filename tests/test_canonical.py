"""The canonical form: one for each value, and no two values with one."""

from __future__ import annotations

import enum
import hashlib
import os
import random
import struct
import subprocess
import sys
from collections import OrderedDict, namedtuple
from decimal import Decimal
from itertools import combinations
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from near_values import again, any_value, near, tell

from relay.canonical import DIGEST_BYTES, MAX_DEPTH, MAX_PAYLOAD_BYTES, canonical, digest

KEY = b"0123456789abcdef"
PAIRS = 100_000


def form(tag: str, payload: bytes) -> bytes:
    return tag.encode() + struct.pack("<Q", len(payload)) + payload


TEXT_A, TEXT_B, ONE = form("s", b"a"), form("s", b"b"), form("i", b"\1")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, form("N", b"")),
        (False, form("?", b"\0")),
        (True, form("?", b"\1")),
        (0, form("i", b"\0")),
        (1, ONE),
        (-1, form("i", b"\xff")),
        (127, form("i", b"\x7f")),
        (128, form("i", b"\x80\0")),
        (-129, form("i", b"\x7f\xff")),
        (1 << 64, form("i", bytes(8) + b"\1")),
        (1.5, form("f", struct.pack("<d", 1.5))),
        (-0.0, form("f", bytes(7) + b"\x80")),
        ("", form("s", b"")),
        ("\u00e9", form("s", b"\xc3\xa9")),
        ("\ud800", form("s", b"\xed\xa0\x80")),
        (b"a\0", form("b", b"a\0")),
        ((), form("t", b"")),
        (("a", "b"), form("t", TEXT_A + TEXT_B)),
        (["a", ("b",)], form("l", TEXT_A + form("t", TEXT_B))),
        ({"b": 1, "a": None}, form("d", TEXT_A + form("N", b"") + TEXT_B + ONE)),
        ({"bb": 1, "b": 1}, form("d", TEXT_B + ONE + form("s", b"bb") + ONE)),
        (frozenset(("b", "a")), form("z", TEXT_A + TEXT_B)),
        ({"b", "a"}, form("y", TEXT_A + TEXT_B)),
        (np.array([1, -1], "<i2"), form("a", form("s", b"<i2") + form("t", form("i", b"\2")) + b"\1\0\xff\xff")),
        (np.zeros((), "|b1"), form("a", form("s", b"|b1") + form("t", b"") + b"\0")),
    ],
    ids=ascii,
)
def test_the_form_byte_by_byte(value: Any, expected: bytes) -> None:
    assert canonical(value) == expected == canonical(again(value))


VALUES: list[Any] = [
    None, True, False, 1, 0, -1, 1.0, 0.0, -0.0, "1", "0", b"1", "True", "None", "", b"", (), [], {}, set(),
    frozenset(),
    (1,), [1], {1}, frozenset((1,)), {1: 1}, {1: True}, {True: 1}, {1.0: 1}, {"1": 1}, (True,), (1.0,), ("1",),
    ((1,),), ([1],),
    ("ab", "c"), ("a", "bc"), ("abc",), ("", "abc"), ("abc", ""), (("a", "b"), "c"), ("a", ("b", "c")), ("a", "b", "c"),
    [("a", 1)], {"a": 1}, (("a", 1),), ("a", 1), {"a": {"b": 1}}, {"a": 1, "b": 1}, {"b": 1}, {"a": None}, {None: "a"},
    float("nan"), -float("nan"), float("inf"), "nan", 2**63, -(2**63), 2**64, 10**5000, "\u00e9", "e\u0301",
    "a", "\u0430",
    "a\u200b", "\uff41", "\ud83d\ude00", "\U0001f600", "a\0", b"a\0", np.array([1]), np.array([1], "i4"),
    np.array([1], ">i8"),
    np.array([1], "u8"), np.array([[1]]), np.array(1), np.array([1.0]), np.array([True]), np.array([0.0]),
    np.array([-0.0]),
    np.array([], "i8"), np.array([], "i4"), np.zeros((0, 2)), np.zeros((2, 0)), canonical(1), canonical("a"),
]  # fmt: skip


def test_what_is_alike_only_at_first_sight_is_told_apart() -> None:
    forms = [canonical(value) for value in VALUES]
    digests = [digest(KEY, item=value) for value in VALUES]
    for (i, a), (j, b) in combinations(enumerate(forms), 2):
        assert a != b and digests[i] != digests[j], (VALUES[i], VALUES[j])
    assert forms == [canonical(again(value)) for value in VALUES]


def test_a_hundred_thousand_pairs(rng: random.Random) -> None:
    different = equal = 0
    while different < PAIRS:
        one = any_value(rng)
        two = near(rng, one)
        same = tell(one) == tell(two)
        assert (canonical(one) == canonical(two)) == same, (one, two)
        different, equal = different + (not same), equal + same
    assert equal > PAIRS / 50


def a_request(rng: random.Random) -> dict[str, Any]:
    names = {name: any_value(rng, 0, hashable=True) for name in rng.sample(["n", "top_k", "seed", "user", "stop"], 2)}
    return {
        "model": rng.choice(["minilm", "MiniLM", "minilm2", ""]),
        "version": rng.choice([None, 0, 1, True, "1"]),
        "tenant": rng.choice([None, "", "a", "b", "\u0430"]),
        "item": any_value(rng),
        "params": rng.choice([None, {}, names]),
    }


def near_request(rng: random.Random, request: dict[str, Any]) -> dict[str, Any]:
    other = dict(reversed(request.items()))
    one, two = rng.sample(list(request), 2)
    how = rng.randrange(5)
    if how == 0:
        other[one], other[two] = other[two], other[one]
    elif how == 1:
        del other[one]
    elif how == 2:
        other["params"] = {**(request["params"] or {}), one: request[one]}
        del other[one]
    elif how == 3 and isinstance(request[one], str) and isinstance(request[two], str):
        both, cut = request[one] + request[two], rng.randrange(3)
        other[one], other[two] = both[:cut], both[cut:]
    else:
        other[one] = near(rng, request[one])
    return other


def test_pairs_of_requests(rng: random.Random) -> None:
    different = 0
    while different < PAIRS // 4:
        one = a_request(rng)
        two = near_request(rng, one)
        same = tell(one) == tell(two)
        assert (digest(KEY, **one) == digest(KEY, **two)) == same, (one, two)
        different += not same


def test_a_digest_is_of_the_form_of_its_fields() -> None:
    fields = {"model": "minilm", "item": "a text", "tenant": None, "params": {"top_k": 5}}
    found = digest(KEY, **fields)
    expected = hashlib.blake2b(canonical(fields), digest_size=32, key=KEY, person=b"relay request v1")
    assert found == expected.digest() == digest(KEY, **dict(reversed(fields.items()))) and len(found) == DIGEST_BYTES
    assert found != digest(KEY + b"0", **fields)
    assert digest(KEY, key=1) != digest(KEY, self=1), "every name can be that of a field"


GOLDEN = "249cd2d2268d7eb2dd16278fd83a976e5a820cf2ed052501d56a0a3fe7eb3315"
SCRIPT = f"""
from relay.canonical import digest
fields = dict(model="minilm", item="a text", tenant=None, params={{"top_k": 5}}, tags=frozenset(("a", "b", "c")))
assert digest({KEY!r}, **fields).hex() == {GOLDEN!r}, digest({KEY!r}, **fields).hex()
"""


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_it_is_the_same_in_every_process_and_version(seed: str) -> None:
    subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONHASHSEED": seed},
        check=True,
        timeout=50,
    )


class Text(str): ...


class Colour(enum.IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (object(), "object"), (Text("a"), "Text"), (Colour.RED, "Colour"), (Point(1, 2), "Point"), (1j, "complex"),
        (Decimal(1), "Decimal"), (np.int64(1), "int64"), (np.float64(1), "float64"), (bytearray(b"a"), "bytearray"),
        (memoryview(b"a"), "memoryview"), (OrderedDict(a=1), "OrderedDict"), (MappingProxyType({}), "mappingproxy"),
        (range(2), "range"), (len, "builtin_function_or_method"), ({"a": [(object(),)]}, "object"),
        (np.array(["a"]), "array of <U1"), (np.array([None]), "array of object"),
        (np.zeros(1, "M8[s]"), "array of datetime64"),
        (np.zeros(1, "c16"), "array of complex128"), (np.zeros(1, [("x", "i4")]), "array of"),
        (np.ma.zeros(1), "MaskedArray"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_has_no_form(value: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"an? {name}.* has no canonical form; give it as a str, bytes, int"):
        canonical(value)
    with pytest.raises(TypeError, match="has no canonical form"):
        digest(KEY, item=value)


class Liar(str):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("item")


def test_the_name_of_a_field_is_a_plain_str() -> None:
    digest(KEY, item=1)  # its name is known from now on
    with pytest.raises(TypeError, match="a Liar has no canonical form"):
        digest(KEY, **{Liar("other"): 1})


@pytest.mark.parametrize("kind", [tuple, list, frozenset, lambda parts: {"k": parts[0]}])
def test_depth(kind: Any) -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = kind([value]) if not isinstance(value, dict) else {"k": value}
    assert len(canonical(value)) > 9 * MAX_DEPTH
    for deeper in ([value], {"k": value}, (value,)):
        with pytest.raises(ValueError, match="nests deeper than 64 levels; flatten it"):
            canonical(deeper)
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    with pytest.raises(ValueError, match="nests deeper"):
        canonical(cyclic)


def test_a_small_value_of_endless_form_is_refused() -> None:
    value: list[Any] = ["x" * 1000]
    for _ in range(50):
        value = [value, value]
    with pytest.raises(
        ValueError, match=f"the parts of a container come to .* bytes, the limit is {MAX_PAYLOAD_BYTES}"
    ):
        canonical(value)
    assert len(canonical("x" * (MAX_PAYLOAD_BYTES + 1))) == MAX_PAYLOAD_BYTES + 10, "a text alone may be of any length"


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        ("0123456789abcdef", TypeError, "key must be bytes, got str; os.urandom"),
        (b"short", ValueError, "key has 5 bytes: give 16 to 64"),
        (bytes(65), ValueError, "key has 65 bytes: give 16 to 64"),
    ],
)
def test_bad_keys(key: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        digest(key, item=1)


def test_a_digest_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one field, such as item=text"):
        digest(KEY)
