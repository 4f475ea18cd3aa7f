"""What makes two requests the same."""

from __future__ import annotations

import gc
import itertools
import random
import threading
from typing import Any

import numpy as np
import pytest

from relay.identity import Params, content_of, intern_params, size_of

ITEMS: list[Any] = [
    "", "a", "b1", "r1", "ra", b"", b"a", b"1", 0, 1, -1, True, False, "1", "True", 2**70, (), [], (1,), [1], (True,),
    (1.0,), ("1",), (b"1",), (None,), ("a", "b"), ("a, b",), ("a', 'b",), (("a",), "b"), ("a", ("b",)), ((1, 2), 3),
    (1, (2, 3)), (0.0,), (-0.0,), np.array([1]), np.array([1], np.int32), np.array([1], np.uint8),
    np.array([], np.int64), np.array([1, 0]), "\ud800", "é", "e\u0301",
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
     (10**5000,), (Number(1),), ((((((1,),),),),),), bytearray(b"a")],
    ids=lambda item: type(item).__name__,
)  # fmt: skip
def test_what_is_never_shared(item: Any) -> None:
    assert content_of(item) is None


def test_equal_params_are_one_object() -> None:
    first = intern_params({"a": 1, "b": "x"})
    assert first is intern_params({"b": "x", "a": 1})
    assert first is not None and first.keywords == {"a": 1, "b": "x"} and first.group > 0
    assert intern_params(None) is intern_params({}) is None


VALUES: list[Any] = [
    1, True, 1.0, "1", b"1", None, 0, False, 0.0, -0.0, "", (), (1,), (True,), (1.0,), ((1,),), ((True,),),
    frozenset({1}), frozenset({True}), frozenset({1.0}), float("inf"), float("nan"),
]  # fmt: skip


def test_params_are_told_apart() -> None:
    made = [intern_params({"k": value}) for value in VALUES]
    groups = [params.group for params in made if params is not None]
    assert len(set(groups)) == len(VALUES)
    assert intern_params({"k": float("nan")}) is made[-1]
    for value, params in zip(VALUES, made, strict=True):
        assert params is not None and params.keywords["k"] is value


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
