"""What can be kept of a model's answers: nobody who is given one can change what another is given."""

from __future__ import annotations

import enum
import math
import sys
import threading
from collections import Counter, OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

from relay import keeping
from relay.keeping import DEPTH, MOST_PARTS, Copied, given, kept

Pair = namedtuple("Pair", "a b")


class Color(enum.IntEnum):
    RED = 1


class Text(str):
    pass


class Numbers(np.ndarray[Any, Any]):
    pass


def value_of(row: Any) -> Any:
    found = kept(row)
    assert found is not None, f"{row!r} was not kept"
    assert type(found) is tuple and len(found) == 2 and found[1] > 0
    return found[0]


SHARED: list[Any] = [
    None, True, 0, 2**100, 1.5, -0.0, 1 + 2j, "", "text", "\ud800", b"", b"bytes",
    np.float32(1), np.float64(1), np.float16(1), np.longdouble(1), np.complex64(1), np.int8(1), np.uint64(1),
    np.bool_(True), np.str_("a"), np.bytes_(b"a"), np.datetime64("2020-01-01"), np.timedelta64(1, "s"),
    (), (1, "a", None), (1.5, (2.5, ("a",))), frozenset(), frozenset({1, (2, 3)}), (frozenset({1.5}), np.float32(2)),
]  # fmt: skip


@pytest.mark.parametrize("row", SHARED, ids=repr)
def test_what_cannot_be_changed_is_shared(row: Any) -> None:
    value = value_of(row)
    assert given(value) is given(value)
    assert given(value) == row and type(given(value)) is type(row)
    assert type(row) in (tuple, frozenset) or value is row


ARRAYS: list[Any] = [
    np.arange(384, dtype=np.float32), np.ones((3, 4)), np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(10)[::-2], np.zeros(0), np.zeros((0, 3)), np.array(1.5), np.array([True, False]),
    np.array(["a", "bc"]), np.array([b"a"]), np.array(["2020", "NaT"], dtype="M8[s]"), np.full(9, 1e300),
    np.full(9, 60000, dtype=np.float16), np.arange(4, dtype=">f4"), np.ones(5, dtype=complex),
    np.ones(3, np.longdouble), np.broadcast_to(np.float32(1), (4,)),
]  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("row", ARRAYS, ids=repr)
def test_an_array_is_copied_once_and_cannot_be_written(row: Any) -> None:
    expected = row.copy()
    value = value_of(row)
    if row.flags.writeable and row.size:
        row[...] = row.flat[-1]
    own = given(value)
    assert own is given(value) and type(own) is np.ndarray and (own.dtype, own.shape) == (row.dtype, row.shape)
    np.testing.assert_array_equal(own, expected)
    assert not own.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        own.flags.writeable = True
    with pytest.raises(ValueError, match="WRITEABLE"):
        own.view().flags.writeable = True
    with pytest.raises(ValueError, match="read-only"):
        own[...] = expected


COPIED: list[Any] = [
    [], {}, set(), [1, "a", None], [0.5] * 384, {"label": "a", "score": 0.5}, {1, "a", (2, 3)},
    {1.5: [1], (1, "a"): {2}}, [[1.5, 2.5], [3.5]], ([1],), {"a": {"b": {"c": [1]}}}, [(1, (2, [3]))],
    [{1}, {}, frozenset({1})], (1, ([],)), [1e308, 1e308], [1, 2.5, np.float32(3)],
]  # fmt: skip


def change(value: Any) -> None:
    """Changes all that can be changed."""
    if isinstance(value, (list, tuple)):
        for part in value:
            change(part)
    if isinstance(value, dict):
        for part in value.values():
            change(part)
        value.clear()
        value["changed"] = 1
    if isinstance(value, list):
        value[:] = ["changed"]
    if isinstance(value, set):
        value.add("changed")


@pytest.mark.parametrize("row", COPIED, ids=lambda row: repr(row)[:40])
def test_what_can_be_changed_is_given_as_a_copy(row: Any) -> None:
    expected = repr(row)
    value = value_of(row)
    assert type(value) is Copied
    change(row)
    one, two = given(value), given(value)
    assert repr(one) == repr(two) == expected and type(one) is type(row)
    change(one)
    assert repr(two) == repr(given(value)) == expected


def test_arrays_within_are_shared_and_cannot_be_written() -> None:
    row = {"vector": np.ones(3), "parts": [np.zeros(2), (np.zeros(1),)]}
    value = value_of(row)
    row["vector"][0] = 9  # type: ignore[index]
    one, two = given(value), given(value)
    assert one["vector"] is two["vector"] and one["vector"][0] == 1
    assert one["parts"] is not two["parts"] and one["parts"][1][0] is two["parts"][1][0]
    for array in (one["vector"], one["parts"][0], one["parts"][1][0]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    alone = (np.ones(2), "a")
    assert given(value_of(alone)) is not alone and type(value_of(alone)) is tuple


REFUSED: list[Any] = [
    object(), Exception("x"), ValueError, len, lambda: 1, iter([]), bytearray(b"a"), memoryview(b"a"), range(3), ...,
    Color.RED, Text("a"), Pair(1, 2), OrderedDict(a=1), Counter("a"), np.ones(2).view(Numbers), np.ma.ones(2),
    np.array([None]), np.zeros(2, dtype=[("a", float)]), np.zeros(2, dtype=[("a", object)])[0],
    np.zeros(2, dtype=[("a", float)])[0], np.dtype("f4"), [object()], {"a": object()}, {Text("a"): 1}, {Color.RED},
    (1, bytearray()), [Pair(1, 2)], {frozenset({Pair(1, 2)})}, {(1, (Color.RED,)): 1}, [np.ones(2).view(Numbers)],
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{type(row).__name__}-{row!r}"[:40])
def test_of_anything_else_nothing_is_kept(row: Any) -> None:
    assert kept(row) is None


BAD = [math.nan, math.inf, -math.inf]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", BAD)
def test_nan_and_infinity_are_never_kept(bad: float) -> None:
    rows: list[Any] = [
        bad, complex(0, bad), np.float32(bad), np.float64(bad), np.float16(bad), np.longdouble(bad), np.complex64(bad),
        (1, bad), [1.0, bad], [1, bad], [bad, -bad], {"a": bad}, {bad: 1}, {bad}, {1.5, (2, (bad,))}, frozenset({bad}),
        {(1, bad): 1}, {"a": [(1, {"b": bad})]}, [np.float32(bad)], [1e308, 1e308, bad], [(), (1 + 1j, complex(bad))],
    ]  # fmt: skip
    for dtype in (np.float16, np.float32, np.float64, np.longdouble, np.complex64, np.complex128):
        for shape in ((1,), (9,), (3, 4), ()):
            array = np.ones(shape, dtype)
            array[tuple(-1 for _ in shape)] = bad
            rows += [array, [array], {"a": (array,)}]
    for row in rows:
        assert kept(row) is None, row


def nested(depth: int, kind: type = list) -> Any:
    row: Any = 1
    for _ in range(depth):
        row = {"a": row} if kind is dict else kind([row])
    return row


@pytest.mark.parametrize("kind", [list, dict, tuple, frozenset])
def test_how_deep(kind: type) -> None:
    assert given(value_of(nested(DEPTH, kind))) == nested(DEPTH, kind)
    assert kept(nested(DEPTH + 1, kind)) is None
    assert kept(nested(1000, tuple)) is None


def test_a_row_that_holds_itself_or_too_much() -> None:
    itself: list[Any] = []
    itself.append(itself)
    assert kept(itself) is None
    row: Any = [1] * 1000
    for _ in range(3):
        row = [row] * 1000  # of few objects
    assert kept(row) is None
    assert kept([1] * MOST_PARTS) is not None and kept([1] * (MOST_PARTS + 1)) is None
    one: Any = (1,) * 1000
    assert kept({(one,) * 300}) is None


@pytest.mark.parametrize(
    ("row", "least", "most"),
    [
        ("a" * 1000, 1000, 1100),
        (np.ones(1000), 8000, 8300),
        ([float(i) for i in range(1000)], 32_000, 34_000),
        ({str(i): i for i in range(100)}, 10_000, 18_000),
        ([np.ones(100)] * 10, 10 * 800, 10 * 1100),
        ([["a" * 100] * 10], 1490, 2000),
        ({("a" * 1000, 1)}, 1000, 1600),
    ],
)
def test_what_it_costs(row: Any, least: int, most: int) -> None:
    found = kept(row)
    assert found is not None
    assert least <= found[1] <= most
    assert given(found[0]) is not None


def test_it_never_raises() -> None:
    class Meta(type):
        def __hash__(cls) -> int:
            raise RuntimeError("user code")

        def __eq__(cls, other: object) -> bool:
            raise RuntimeError("user code")

    class Odd(metaclass=Meta):
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("user code")

    for row in (Odd(), [Odd()], (1, Odd()), {"a": Odd()}):
        assert kept(row) is None


def test_a_row_that_others_change_meanwhile() -> None:
    row: list[Any] = [[1, 2], {"a": 1}]
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            row[1]["b"] = [1]
            row[0].append(1)
            row.append(object())
            row.pop()
            row[0].pop()
            del row[1]["b"]

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(2000):
            found = kept(row)
            assert found is None or given(found[0])[0][:2] == [1, 2]
    finally:
        over.set()
        thread.join()


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert keeping._tensor_type() is None and kept(object()) is None and kept([1]) is not None


class TestTensors:
    @pytest.fixture(autouse=True)
    def torch(self) -> Any:
        return pytest.importorskip("torch")

    def test_each_is_given_a_copy(self, torch: Any) -> None:
        for row in (torch.ones(3), torch.arange(6).reshape(2, 3).T, torch.ones(1).expand(4), torch.tensor(1.5)):
            expected = row.clone()
            value = value_of([row] if row.ndim == 2 else row)
            if row.ndim != 1 or row.stride(0):
                row.zero_()
            one, two = given(value), given(value)
            one, two = (one[0], two[0]) if type(one) is list else (one, two)
            one += 5
            assert torch.equal(two, expected) and type(two) is torch.Tensor and two.dtype == row.dtype
            assert not two.requires_grad

    def test_nan_and_infinity_are_never_kept(self, torch: Any) -> None:
        for bad in BAD:
            for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.complex64):
                row = torch.ones(3, dtype=dtype)
                row[1] = bad
                assert kept(row) is None and kept({"a": row}) is None

    @pytest.mark.filterwarnings("ignore:.*quantize_per_tensor:UserWarning")
    def test_others_are_not_kept(self, torch: Any) -> None:
        rows = [torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True), torch.ones(2, device="meta")]
        quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
        rows += [torch.ones(2).to_sparse(), quantized, torch.float32]
        for row in rows:
            assert kept(row) is None and kept([row]) is None

    def test_made_in_inference_mode(self, torch: Any) -> None:
        with torch.inference_mode():
            value = value_of(torch.ones(3))
        given(value).add_(1)
        assert given(value).tolist() == [1, 1, 1]

    def test_what_it_costs(self, torch: Any) -> None:
        found = kept(torch.ones(1).expand(1000))
        assert found is not None and 4000 <= found[1] <= 5000
        found = kept([torch.ones(100, dtype=torch.float64)] * 3)
        assert found is not None and 2400 <= found[1] <= 4500
