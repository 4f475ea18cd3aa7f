"""What makes two requests the same."""

from __future__ import annotations

import enum
import gc
import itertools
import random
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from near_values import any_value, near, tell

from relay.canonical import canonical
from relay.identity import MAX_CONTENT_BYTES, Params, content_of, intern_params, is_comparable, size_of

ITEMS: list[Any] = [
    "", "a", "b1", "r1", "ra", b"", b"a", b"1", 0, 1, -1, True, False, "1", "True", 2**70, (), [], (1,), [1], (True,),
    (1.0,), ("1",), (b"1",), (None,), ("a", "b"), ("a, b",), ("a', 'b",), (("a",), "b"), ("a", ("b",)), ((1, 2), 3),
    (1, (2, 3)), (0.0,), (-0.0,), np.array([1]), np.array([1], np.int32), np.array([1], np.uint8),
    np.array([], np.int64), np.array([1, 0]), "\ud800", "é", "e\u0301", [1, 2], (1, 2), [1, True], [True, 1],
    (1, 2**63),
    (1, -(2**63)), (1, 2**63 - 1), (2**64 + 1, 2), ("1", 2), ([1, 2],), ((1, 2),), [(1, 2)], [[1, 2]], ([1], 2),
    (1, [2]),
    np.array([1], ">i8"), np.array([256]), np.array([1, 0], "i4"), np.array([1, 2]), (float("inf"),), ("inf",),
    (1e16,),
    ("\ud83d\ude00",), ("\U0001f600",), ("\\ud83d",), ("a'",), ('a"',), ("a\0",), (b"a\0",),
]  # fmt: skip


def test_contents_are_told_apart() -> None:
    contents = [content_of(item) for item in ITEMS]
    assert None not in contents
    for (i, a), (j, b) in itertools.combinations(enumerate(contents), 2):
        assert type(a) is not type(b) or a != b, (ITEMS[i], ITEMS[j])


def test_equal_items_have_equal_contents() -> None:
    for item in ["ab", b"ab", 10**6, (1, "x", (b"y", [3.5, None])), [1, 2]]:
        again = eval(repr(item))
        assert content_of(item) == content_of(again)
    assert content_of(np.arange(4)[::2]) == content_of(np.array([0, 2]))


class Text(str): ...


class Number(int): ...


@pytest.mark.parametrize(
    "item",
    [None, 1.5, {}, {1}, object(), Text("a"), Number(1), (object(),), np.zeros((2, 2), int), np.zeros(2), 10**5000,
     (10**5000,), (Number(1),), ((((((1,),),),),),), bytearray(b"a"), 2**8192, (1, 2**8192), [1, -(2**8192)],
     [1, Number(1)], (1, Text("a")), (float("nan"),), ((1, float("nan")),), np.zeros(2, "m8"), np.array(1),
     np.ma.zeros(1, int),
     np.zeros(1, np.dtype("i8", metadata={"unit": "s"})), [np.int64(1)], (1j,), memoryview(b"a"), frozenset()],
    ids=lambda item: type(item).__name__,
)  # fmt: skip
def test_what_is_never_shared(item: Any) -> None:
    assert content_of(item) is None


LONG = MAX_CONTENT_BYTES + 1


@pytest.mark.parametrize(
    ("item", "longer"),
    [
        ("x" * MAX_CONTENT_BYTES, "x" * LONG),
        (bytes(MAX_CONTENT_BYTES), bytes(LONG)),
        (np.zeros(MAX_CONTENT_BYTES // 8, int), np.zeros(MAX_CONTENT_BYTES // 8 + 1, int)),
        ([5] * (MAX_CONTENT_BYTES // 64), [5] * (MAX_CONTENT_BYTES // 64 + 1)),
        (("x" * (LONG // 2), "y" * (LONG // 3)), ("x" * (LONG // 2), "y" * (LONG // 2))),
        ((("x",) * 8_000,), (("x",) * 8_000, ("x",) * 8_200)),
        (1, 1 << 8192),
    ],
    ids=["str", "bytes", "array", "ids", "texts", "parts", "int"],
)
def test_what_is_too_long_is_not_shared_but_may_be_compared(item: Any, longer: Any) -> None:
    assert content_of(item) is not None and content_of(longer) is None
    assert is_comparable(item) and is_comparable(longer)


@pytest.mark.parametrize("item", [1.5, None, {}, object(), Text("a"), (object(),), (1, float("nan")), np.zeros(2)])
def test_what_may_not_be_compared(item: Any) -> None:
    assert not is_comparable(item)


def test_a_long_item_is_not_read() -> None:
    """The time is that of a look at its length: in the same process a copy of it takes a thousand times as long."""
    text, parts = "x" * 27_000_000, [1] * 3_000_000
    for item in (text, text.encode(), parts, (text, text), [parts, parts]):
        assert content_of(item) is None
    looks, copies = [], []
    for _ in range(9):
        began = time.perf_counter_ns()
        content_of(text), content_of(parts), content_of((text, text))
        looks.append(time.perf_counter_ns() - began)
        began = time.perf_counter_ns()
        text.encode(), list(parts)
        copies.append(time.perf_counter_ns() - began)
    assert min(looks) * 50 < min(copies), (looks, copies)


def test_a_small_item_of_endless_content_is_not_told() -> None:
    item: list[Any] = [1, "a"] * 4_000
    for _ in range(4):
        item = [item] * 8_000
    assert content_of(item) is None
    item.append(item)
    assert content_of(item) is None


def test_near_items_are_told_apart(rng: random.Random) -> None:
    shared = different = 0
    while different < 20_000:
        one = any_value(rng)
        two = near(rng, one)
        contents = content_of(one), content_of(two)
        same = tell(one) == tell(two)
        if None not in contents:
            assert (contents[0] == contents[1]) == same, (one, two)
            shared += 1
        different += not same
    assert shared > 5_000


def test_equal_params_are_one_object() -> None:
    first = intern_params({"a": 1, "b": "x"})
    assert first is intern_params({"b": "x", "a": 1})
    assert first is not None and first.keywords == {"a": 1, "b": "x"} and first.group > 0
    assert intern_params(None) is intern_params({}) is None


class Other(int): ...


class Colour(enum.IntEnum):
    RED = 1


class Shade(enum.IntEnum):
    RED = 1


class Plain(enum.Enum):
    RED = 1


class Named(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Frozen:
    x: Any


class Liar:
    """Says that it is whatever it is compared with."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7


class Fellow(Liar): ...


class AlsoLying(type):
    """Makes types that say that they are one."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(int)


class Cheat(str, metaclass=AlsoLying):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7


class Thief(Liar, metaclass=AlsoLying):
    def __index__(self) -> int:
        return 1

    def __hash__(self) -> int:
        return 1


UTC_NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)  # noqa: UP017
LATE = datetime(2026, 10, 25, 2, 30)

VALUES: list[Any] = [
    1, True, 1.0, "1", b"1", None, 0, False, 0.0, -0.0, "", (), (1,), (True,), (1.0,), ((1,),), ((True,),),
    frozenset({1}), frozenset({True}), frozenset({1.0}), float("inf"), -float("nan"), frozenset({(1, 0.0)}),
    frozenset({(1, -0.0)}), Text("a"), "a", Number(1), Other(1), Number(2), Colour.RED, Shade.RED, Plain.RED,
    Named(1, 2),
    Named(True, 2), Named(1.0, 2), (1, 2), Named((1, 0.0), 2), Named((1, -0.0), 2), Frozen(1), Frozen(True),
    Frozen(1.0),
    Frozen(Frozen(1)), Frozen(Frozen(1.0)), Decimal(1), Decimal("1.0"), Decimal("1.00"), Decimal("NaN"),
    Decimal("-0"),
    Decimal(0), Fraction(1), 1j, complex(0.0, 0.0), complex(-0.0, 0.0), complex(0.0, -0.0), np.float64(1),
    np.float32(1),
    np.int64(1), np.int32(1), np.bool_(True), np.float64(0.0), np.float64(-0.0), np.str_("a"), range(0), range(1, 1),
    range(0, 3, 2), range(0, 4, 2), UTC_NOON, UTC_NOON.astimezone(timezone(timedelta(hours=1))), LATE,
    LATE.replace(fold=1),
    Liar(), Fellow(), Cheat("Thief"), Thief(), int, float, float("nan"),
]  # fmt: skip


def test_params_are_told_apart() -> None:
    made = [intern_params({"k": value}) for value in VALUES]
    groups = [params.group for params in made if params is not None]
    assert len(set(groups)) == len(VALUES)
    assert intern_params({"k": float("nan")}) is made[-1]
    for value, params in zip(VALUES, made, strict=True):
        assert params is not None and repr(params.keywords["k"]) == repr(value)


def test_equal_values_of_any_type_are_one(rng: random.Random) -> None:
    again = {Text: "a", Number: 1, Named: (1, 0.0), Frozen: (1, 2.0), Decimal: "1.00", Fraction: "1/3", np.float64: 1.5}
    for kind, given in again.items():
        one, two = (kind(*given) if kind is Named else kind(given) for _ in range(2))
        assert one is not two and intern_params({"k": one}) is not None
        held = intern_params({"k": one})
        assert intern_params({"k": two}) is held, kind
    zone = [datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1))) for _ in range(2)]
    held = intern_params({"k": zone[0]})
    assert intern_params({"k": zone[1]}) is held
    assert intern_params({"k": Colour(1)}) is intern_params({"k": Colour.RED})


def test_near_params_are_told_apart(rng: random.Random) -> None:
    different = 0
    while different < 20_000:
        one = any_value(rng, hashable=True)
        two = near(rng, one, hashable=True)
        same = tell(one) == tell(two)
        first, second = intern_params({"k": one}), intern_params({"k": two})
        assert (first is second) == same, (one, two)
        different += not same


@dataclass(frozen=True)
class Odd:
    """Hashable although it holds a list; the cache does not count."""

    x: int
    parts: list[int] = field(default_factory=list, hash=False)
    cache: Any = field(default=None, compare=False)


class Lazy:
    """Equal by its number alone, and not to be looked into."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lazy) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)


def test_a_type_of_the_users_own_says_what_is_equal() -> None:
    held = intern_params({"k": Odd(1, [1], cache=3)})
    assert intern_params({"k": Odd(1, [1])}) is held and intern_params({"k": Odd(1, [2])}) is not held
    lazy = intern_params({"k": Lazy(1)})
    assert intern_params({"k": Lazy(1)}) is lazy and intern_params({"k": Lazy(2)}) is not lazy


def test_no_type_gets_in_by_what_its_metaclass_says() -> None:
    assert type(Thief()) == int and hash(type(Thief())) == hash(int)  # noqa: E721
    assert content_of(Thief()) is None is content_of([1, Thief()]) is content_of((1, (Thief(),)))
    number = intern_params({"k": 1})
    assert intern_params({"k": Thief()}) is not number
    with pytest.raises(TypeError, match="a Thief has no canonical form"):
        canonical([Thief()])


def test_the_name_of_a_parameter_is_its_text() -> None:
    held = intern_params({"a": 1})
    assert intern_params({Text("a"): 1}) is held
    other = intern_params({Cheat("b"): 1})
    assert other is not None and other is not held and [*map(type, other.keywords)] == [str]


def test_deep_parameters_are_refused() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = (deep,)
    with pytest.raises(ValueError, match="nests too deep to be compared; give it as a str or bytes"):
        intern_params({"k": deep})
    while deep != 1:  # one by one, for Python lets go of deep ones by recursion
        (deep,) = deep


def test_params_are_forgotten() -> None:
    params = intern_params({"forgotten": 1})
    assert params is not None
    group = params.group
    del params
    gc.collect()
    again = intern_params({"forgotten": 1})
    assert again is not None and again.group != group


@pytest.mark.parametrize(
    ("params", "text"),
    [([("a", 1)], "mapping of names"), ({1: 2}, "named by str, got 1"), ({"a": []}, "hashable values"), (3, "mapping")],
)
def test_bad_params(params: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        intern_params(params)


def test_interning_from_many_threads(rng: random.Random) -> None:
    """Equal ones have equal keywords, and while one is held its group is nobody else's."""
    wrong: list[Any] = []
    held: list[list[Params]] = [[] for _ in range(4)]

    def run(mine: list[Params], numbers: list[int]) -> None:
        for number in numbers:
            params = intern_params({"n": number})
            assert params is not None
            if params.keywords != {"n": number}:
                wrong.append(params)
            mine.append(params)

    plans = [[rng.randrange(50) for _ in range(2_000)] for _ in held]
    threads = [threading.Thread(target=run, args=args) for args in zip(held, plans, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    by_group = {params.group: params.keywords["n"] for mine in held for params in mine}
    assert all(by_group[params.group] == params.keywords["n"] for mine in held for params in mine)


@pytest.mark.parametrize(
    ("item", "size"),
    [("", 1), ("abc", 3), (b"ab", 2), (7, 1), (None, 1), ([1, 2, 3], 1), (np.zeros(4), 32), (np.zeros(0), 1)],
)
def test_sizes(item: Any, size: int) -> None:
    assert size_of(item) == size
