"""What a model gives back: rows, errors for single rows, errors for a whole batch, and what is none of these."""

from __future__ import annotations

import asyncio
import math
import sys
import traceback
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relay
from relay.outputs import finite_rows, member_error, non_finite, rows_of

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


class Stubborn(Exception):
    """Cannot be copied: its constructor takes what `args` does not hold, and it looks after itself."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"code {code} at {where}")
        self.code = code


class Broken(Exception):
    """Everything about it raises."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise KeyboardInterrupt

    def __str__(self) -> str:
        raise SystemExit


class BrokenBase(BaseException):
    def __str__(self) -> str:
        raise SystemExit


ORDINARY = [
    ValueError("no", 3),
    MemoryError("not that much"),
    Stubborn(3, where="here"),
    KeyError("k"),
    OSError(2, "not there", "file"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    relay.Overloaded("elsewhere", reason="queue_full", retry_after=3.0),
    ExceptionGroup("two", [ValueError(1), TypeError(2)]),
    ValueError(np.zeros(3)),
]
WRAPPED = [
    StopIteration(3),
    asyncio.CancelledError("x"),
    KeyboardInterrupt(),
    SystemExit(3),
    GeneratorExit(),
]


def kind(error: Any) -> str:
    return error.__name__ if isinstance(error, type) else type(error).__name__


@pytest.mark.parametrize("error", ORDINARY, ids=kind)
def test_d3_a_failing_batch_fails_its_own_members(lab: Lab, error: Exception) -> None:
    model = lab.model()
    r = lab.start(model, name="d3", max_batch_size=4, isolate=False)
    with lab.testing.paused(r, model):
        tickets = [r.submit(i) for i in range(6)]
        model.release()  # of the plug
        first = r.submit("after")
        lab.wait_until(lambda: r.snapshot().batches == 1)
        model.fail_next(error)
    errors = [ticket.exception(30) for ticket in tickets[:4]]
    assert all(type(own) is type(error) and own.args is error.args or own.args == error.args for own in errors)
    assert len({id(own) for own in errors} | {id(error)}) == 5
    assert [ticket.result(30) for ticket in tickets[4:]] == [4, 5]
    assert first.result(30) == "after" and r.healthy
    for own in errors:
        assert own.__notes__ == ["raised for a batch of 4 of relay 'd3'"]
        assert "testing.py" in "".join(traceback.format_tb(own.__traceback__))
        assert vars(own).keys() - {"__notes__"} == vars(error).keys() - {"__notes__"}
        assert str(own) == str(error)


@pytest.mark.parametrize("error", WRAPPED, ids=kind)
def test_d3_errors_that_would_stop_the_waiter_come_wrapped(lab: Lab, error: BaseException) -> None:
    r = lab.start(lab.model())
    r._dispatcher.lanes[0].model.fail_next(error)
    ticket = r.submit(1)
    with pytest.raises(relay.ModelError, match=f"the model raised {type(error).__name__}") as caught:
        ticket.result(30)
    assert caught.value.__cause__ is error

    async def main() -> None:
        r._dispatcher.lanes[0].model.fail_next(error)
        with pytest.raises(relay.ModelError):
            await r.submit(2)
        assert await r.submit(3) == 3

    asyncio.run(main())
    assert r.healthy


def test_errors_own_notes_are_not_mixed() -> None:
    error = ValueError("no")
    error.add_note("the model's own")
    owns = [member_error(error, 3, "r") for _ in range(3)]
    assert all(own.__notes__ == ["the model's own", "raised for a batch of 3 of relay 'r'"] for own in owns)
    assert error.__notes__ == ["the model's own"]


def test_the_cause_is_kept() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as outer:
        own = member_error(outer, 2, "r")
        assert own.__cause__ is outer.__cause__ and own.__context__ is outer.__context__
        assert own.__suppress_context__


@pytest.mark.parametrize("error", [Broken("x"), BrokenBase("x")], ids=kind)
def test_errors_whose_own_code_raises(lab: Lab, error: BaseException) -> None:
    model = lab.model()
    r = lab.start(model, isolate=False)
    with lab.testing.paused(r, model):
        tickets = [r.submit(i) for i in range(3)]
        model.release()
        lab.wait_until(lambda: r.snapshot().batches == 1)
        model.fail_next(error)
    assert {type(ticket.exception(30)) for ticket in tickets} <= {Broken, relay.ModelError}
    assert r(1) == 1


def test_d4_a_row_may_be_an_error(lab: Lab) -> None:
    def row(item: int) -> Any:
        return {3: ValueError("three"), 5: StopIteration(), 6: ValueError}.get(item, item)

    model = lab.model(row)
    r = lab.start(model)
    with lab.testing.paused(r, model):
        tickets = [r.submit(i) for i in range(8)]
    assert [tickets[i].result(30) for i in (0, 1, 2, 4, 7)] == [0, 1, 2, 4, 7]
    with pytest.raises(ValueError, match="three"):
        tickets[3].result(30)
    assert isinstance(tickets[5].exception(30), relay.ModelError)
    assert tickets[6].result(30) is ValueError  # a class is a value
    assert r.snapshot().failed == 2 and r.snapshot().failed_batches == 0


def test_rows_that_lie_about_their_class(lab: Lab) -> None:
    class Liar:
        @property
        def __class__(self) -> Any:
            raise RuntimeError("none of your business")

        @__class__.setter
        def __class__(self, value: Any) -> None: ...

    r = lab.start(lambda items: [Liar() for _ in items])
    assert type(r(1)) is Liar


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ((1, 2), "returned tuple for a batch of 2; return a list, or one array whose first axis is the batch"),
        ({"a": 1}, "returned dict for a batch of 2; return a list with one value for each item; pick the field"),
        ("ab", "returned str for a batch of 2; return a list with one string for each item"),
        (b"ab", "returned bytes for a batch of 2; return a list"),
        ({1, 2}, "returned set for a batch of 2; return a list; a set has no order"),
        (frozenset({1, 2}), "returned frozenset for a batch of 2; return a list; a frozenset has no order"),
        ((i for i in range(2)), r"returned generator for a batch of 2; return a list, for example list\(generator\)"),
        (None, "returned NoneType for a batch of 2; .*may lack its return statement"),
        (7, "returned int for a batch of 2; return a list"),
        (np.float64(7), "returned float64 for a batch of 2"),
        (np.array(7), "returned ndarray for a batch of 2"),
        ([1], "returned 1 rows for a batch of 2; return one row for each item, in the items' order"),
        ([1, 2, 3], "returned 3 rows for a batch of 2"),
        (np.zeros((3, 2)), "returned 3 rows for a batch of 2"),
        ([], "returned 0 rows for a batch of 2"),
    ],
    ids=lambda value: None if isinstance(value, str) and len(value) > 2 else type(value).__name__,
)
def test_bad_outputs(output: Any, text: str) -> None:
    with pytest.raises(relay.BadOutput, match=text):
        rows_of(output, 2)


def test_bad_output_reaches_each_caller(lab: Lab) -> None:
    model = lab.model()
    answers: list[Any] = []
    r = lab.start(lambda items: model(items) and (answers.pop() if answers else items), isolate=False)
    with lab.testing.paused(r, model, "plug"):
        tickets = [r.submit(i) for i in range(2)]
        answers[:] = [{}, ["plug"]]
    assert {type(ticket.exception(30)) for ticket in tickets} == {relay.BadOutput}
    assert tickets[0].exception() is not tickets[1].exception()
    assert r(1) == 1


def test_rows_outlive_a_buffer_that_is_filled_again(lab: Lab) -> None:
    buffer = np.zeros((8, 2))

    def model(items: list[int]) -> Any:
        buffer[: len(items)] = np.array(items)[:, None]
        return buffer[: len(items)]

    r = lab.start(model, max_batch_size=2)
    rows = r.submit_many(range(6)).result(30)
    assert [row.tolist() for row in rows] == [[float(i)] * 2 for i in range(6)]
    assert all(row.base is None for row in rows)


def test_one_dimension(lab: Lab) -> None:
    r = lab.start(lambda items: np.array(items) * 2)
    assert r.submit_many([1, 2]).result(30) == [2, 4]
    things = np.array([{"a": 1}, None], dtype=object)
    assert rows_of(things, 2) == [{"a": 1}, None]


def test_subclasses_of_list() -> None:
    class Rows(list[int]): ...

    assert rows_of(Rows([1, 2]), 2) == [1, 2]


@pytest.mark.hf
def test_tensors(lab: Lab) -> None:
    import torch

    buffer = torch.zeros(4, 2)
    grad: list[bool] = []

    def model(items: list[int]) -> Any:
        grad.append(torch.is_grad_enabled())
        return buffer[: len(items)].fill_(items[0])

    r = lab.start(model, max_batch_size=1)
    first, second = r.submit_many([1, 2]).result(30)
    assert first.tolist() == [1, 1] and second.tolist() == [2, 2]
    assert grad == [False, False] and torch.is_grad_enabled()
    assert "torch" in sys.modules
    with pytest.raises(relay.BadOutput, match="returned Tensor"):
        rows_of(torch.tensor(3), 1)


NAN, INF = float("nan"), float("inf")


class NamedRow(NamedTuple):
    label: int
    score: float


def test_a_coroutine_model_runs_without_gradients_and_nobody_else(lab: Lab) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra hf")
    seen: list[tuple[str, bool]] = []
    stops: list[BaseException] = []

    async def model(items: list[Any]) -> list[Any]:
        seen.append(("model", torch.is_grad_enabled()))
        with torch.enable_grad():  # what it sets for itself holds
            await asyncio.sleep(0)
            assert torch.is_grad_enabled()
        try:
            await asyncio.sleep(0)
            seen.append(("model", torch.is_grad_enabled()))
            if items == ["bad"]:
                raise KeyError("bad")
            async with asyncio.timeout(30):
                await asyncio.sleep(0)
        except BaseException as error:
            stops.append(error)
            raise
        finally:
            seen.append(("model", torch.is_grad_enabled()))
        return [torch.ones(2, requires_grad=True) * item for item in items]

    async def main() -> None:
        async def other() -> None:
            while True:
                seen.append(("other", torch.is_grad_enabled()))
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        r = lab.start(model)
        row = await r.run_async(3)
        assert row.tolist() == [3.0, 3.0] and not row.requires_grad
        with pytest.raises(KeyError):
            await r.run_async("bad")
        task.cancel()
        assert torch.is_grad_enabled()
        await r.aclose()

    asyncio.run(main())
    assert {enabled for who, enabled in seen if who == "model"} == {False}
    assert {enabled for who, enabled in seen if who == "other"} == {True}
    assert [type(error) for error in stops] == [KeyError]


def test_rows_of_records_are_copied(lab: Lab) -> None:
    buffer = np.zeros(8, dtype=[("id", "i8"), ("score", "f4")])

    def model(items: list[int]) -> Any:
        for row, item in enumerate(items):
            buffer[row] = (item, item / 2)
        return buffer[: len(items)]

    r = lab.start(model)
    first, second = r(1), r(2)
    assert (first["id"], second["id"], first["score"]) == (1, 2, 0.5)


def broken(shape: tuple[int, ...], dtype: str, at: dict[int, Any]) -> Any:
    array = np.ones(shape, dtype)
    for row, value in at.items():
        array[row].flat[-1] = value
    return array


@pytest.mark.parametrize(
    ("output", "bad"),
    [
        (broken((5, 4), "f4", {2: NAN}), [2]),
        (broken((5, 4), "f4", {0: INF, 4: -INF}), [0, 4]),
        (broken((5, 3, 2), "f2", {1: NAN}), [1]),
        (broken((5, 3, 2), "f8", {3: INF}), [3]),
        (broken((3, 2), "c8", {1: complex(0, NAN)}), [1]),
        (np.array([1.0, NAN, INF]), [1, 2]),
        (broken((4, 4), "f4", {1: NAN})[::2], []),
        (broken((4, 4), "f4", {1: NAN}).T[3:], [0]),
        (np.full((4, 600), 3e38, "f4"), []),  # whose sum is infinite
        (np.full((4, 600), 6e4, "f2"), []),
        (np.ones((4, 2), "i8"), []),
        (np.array([["a"], ["b"]]), []),
        (np.ones((3, 0), "f4"), []),
        (np.array([1.0, NAN, "x", None], object), [1]),
        (np.array(["2020", "NaT"], "M8[D]"), []),
        ([1.0, NAN, -INF, 2], [1, 2]),
        ([1j, complex(NAN, 0), complex(0, INF)], [1, 2]),
        ([np.float32("nan"), np.float64(1), np.float64("inf"), np.int8(1), np.complex64(NAN)], [0, 2, 4]),
        ([broken((3,), "f4", {}), np.array([1, NAN]), np.array(["x"]), np.ones(0), np.array(NAN)], [1, 4]),
        ([[1.0, 2.0], [1.0, NAN], [INF, -INF], [1e308, 1e308], [], (1.0, NAN)], [1, 2, 5]),
        ([[1, NAN], [None, NAN], ["x", INF], [1.0, "x"], [1.0, 10**400], [1.0, None, NAN]], [0, 1, 2, 5]),
        ([[[1.0], [NAN]], [np.ones(2), np.array([INF])], [[[[1.0]]]]], [0, 1]),
        ([{"label": "a", "score": NAN}, {"at": [1.0, {"x": INF}]}, {}, {NAN: "x", "y": 1.0}], [0, 1]),
        ([OrderedDict(a=NAN), Counter(b=INF), NamedRow(1, NAN), NamedRow(1, 2.0)], [0, 1, 2]),
        ([None, "nan", b"", ValueError(NAN), float, object(), True, 10**400, {NAN}], []),
        ([], []),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("error")
def test_d9_non_finite_rows_are_found(output: Any, bad: list[int]) -> None:
    assert non_finite(output) == bad


def test_d9_only_the_bad_rows_fail() -> None:
    output = broken((5, 4), "f4", {2: NAN})
    rows = finite_rows(output, rows_of(output, 5))
    assert [type(row) for row in rows] == [np.ndarray] * 2 + [relay.NonFiniteOutput] + [np.ndarray] * 2
    with pytest.raises(relay.NonFiniteOutput, match="NaN or infinity for this item; look at the item, .*check_finite"):
        raise rows[2]
    own = [1.0, NAN, INF]  # the model's list is not touched, and each row has an error of its own
    rows = finite_rows(own, rows_of(own, 3))
    assert rows[1] is not rows[2] and own[2] == INF
    fine = [1.0, 2.0]
    assert finite_rows(fine, fine) is fine


def test_rows_that_lie_are_left_alone() -> None:
    class Liar:
        @property
        def __class__(self) -> Any:
            raise RuntimeError("none of your business")

        @__class__.setter
        def __class__(self, value: Any) -> None: ...

        def __add__(self, other: Any) -> Any:
            raise ValueError

        __radd__ = __add__

    endless: list[Any] = [1]
    endless.append(endless)
    assert non_finite([Liar(), [Liar()], endless, [1.0, Liar()]]) == []


@given(st.lists(st.lists(st.floats(width=32), min_size=3, max_size=3), min_size=1, max_size=9))
def test_all_forms_agree(values: list[list[float]]) -> None:
    bad = [i for i, row in enumerate(values) if not all(map(math.isfinite, row))]
    array = np.array(values, "f4")
    assert non_finite(array) == non_finite(values) == non_finite(list(array)) == non_finite(array.astype(object)) == bad


@pytest.mark.hf
def test_d9_tensors() -> None:
    import torch

    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64):
        values = torch.ones(5, 3, 2, dtype=dtype)
        assert non_finite(values) == [] == non_finite(list(values))
        values[1, 2, 0] = NAN
        values[4, 0, 1] = INF
        assert non_finite(values) == [1, 4] == non_finite(list(values))
        assert non_finite(values[::2]) == [2] and non_finite(values.permute(2, 1, 0)) == [0, 1]
        rows = finite_rows(values, rows_of(values, 5))
        assert [type(row) is relay.NonFiniteOutput for row in rows] == [False, True, False, False, True]
    assert non_finite(torch.full((4, 600), 3e38)) == []
    assert non_finite(torch.ones(4, 2, dtype=torch.int64)) == [] == non_finite(torch.ones(3, 0))
    assert non_finite(torch.tensor([1.0, NAN])) == [1] == non_finite([torch.tensor(1.0), torch.tensor(NAN)])
    assert non_finite(torch.tensor([[1.0], [NAN]], requires_grad=True)) == [1]
    assert non_finite(torch.tensor([[1.0], [NAN]]).to(torch.float8_e5m2)) == [1]
    assert non_finite(torch.ones(2, 2).to_sparse()) == []
