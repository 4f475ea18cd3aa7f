"""What a model gave back: one row for each item, or an error for each.

Pure functions, called on the lane's thread.
"""

from __future__ import annotations

import asyncio
import copy
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from types import GeneratorType
from typing import Any, cast

import numpy as np

from relay.errors import BadOutput, ModelError, NonFiniteOutput

_FIX: dict[type, str] = {
    tuple: "return a list, or one array whose first axis is the batch",
    dict: "return a list with one value for each item; pick the field that callers want",
    str: "return a list with one string for each item",
    bytes: "return a list with one value for each item",
    set: "return a list; a set has no order to match rows to items by",
    frozenset: "return a list; a frozenset has no order to match rows to items by",
    GeneratorType: "return a list, for example list(generator); streams are not supported",
    type(None): "return a list with one value for each item; the function may lack its return statement",
}


def rows_of(output: Any, count: int) -> Sequence[Any]:
    """Check a model's output and give its rows, safe to keep after the batch.

    Args:
        output: A list, or an array or tensor whose first axis is the batch. Arrays and tensors are copied row by row,
            for they may be reused.
        count: Items in the batch.

    Raises:
        BadOutput: Another type, or another number of rows; the text names the fix.
    """
    if type(output) is list:
        rows: Sequence[Any] = output
    elif isinstance(output, np.ndarray) and output.ndim:
        rows = (
            [row.copy() for row in output]
            if output.ndim > 1 or output.dtype.kind == "V"  # whose scalars are views
            else output.tolist()
            if output.dtype == object
            else list(output)
        )
    elif _is_tensor(type(output)) and output.ndim:
        rows = [row.clone() for row in output.detach().cpu()]
    elif isinstance(output, list):
        rows = list(output)
    else:
        fix = next((text for kind, text in _FIX.items() if isinstance(output, kind)), _FIX[tuple])
        raise BadOutput(f"the model returned {type(output).__name__} for a batch of {count}; {fix}")
    if len(rows) != count:
        raise BadOutput(
            f"the model returned {len(rows)} rows for a batch of {count}; "
            "return one row for each item, in the items' order"
        )
    return rows


def finite_rows(output: Any, rows: Sequence[Any]) -> Sequence[Any]:
    """The rows, with a `NonFiniteOutput` in the place of each that holds NaN or infinity.

    Args:
        output: What the model gave back, after `rows_of` has found it good.
        rows: What `rows_of` made of it; given back as it is where nothing is wrong, and never changed.
    """
    bad = non_finite(output)
    if not bad:
        return rows
    marked = list(rows)
    for index in bad:
        marked[index] = NonFiniteOutput(
            "the model returned NaN or infinity for this item; look at the item, or run the model in a wider float "
            "type; check_finite=False lets such rows through"
        )
    return marked


def non_finite(output: Any) -> list[int]:
    """The indices of the rows that hold NaN or infinity. Whole arrays and tensors are looked at in one pass.

    Rows are floats, complex numbers, arrays, tensors, and lists, tuples or dicts of these, `_DEPTH` deep at most;
    whatever else there is, errors included, is left alone.
    """
    kind = type(output)
    if issubclass(kind, np.ndarray):
        if output.dtype.kind in "fc":
            return _in_array(output)
        if output.dtype.kind != "O":
            return []
    elif _is_tensor(kind):
        return _in_tensor(output)
    return [index for index, row in enumerate(output) if not _finite(row, _DEPTH)]


_DEPTH = 4
"""How deep rows are looked into: tokens, dimensions, and some."""

_PLAIN = frozenset((str, bytes, int, bool, type(None)))


def _in_array(output: np.ndarray[Any, Any]) -> list[int]:
    finite = np.isfinite(output)
    if finite.all():
        return []
    return [int(index) for index in np.flatnonzero(~np.asarray(finite).reshape(len(output), -1).all(axis=1))]


def _in_tensor(output: Any) -> list[int]:
    torch = sys.modules["torch"]
    if not (output.is_floating_point() or output.is_complex()) or output.layout != torch.strided or not output.numel():
        return []
    # One sum takes a fraction of the time of a look at each number, and cannot hide NaN or infinity. It may be infinite
    # where large numbers meet, so then each is looked at.
    values = output.detach()
    if values.element_size() == 1:
        values = values.float()  # there are no sums of float8
    if torch.isfinite(values.sum()):
        return []
    bad = ~torch.isfinite(values).reshape(len(values), -1).all(dim=1)
    return [int(index) for index in bad.nonzero().flatten().tolist()]


def _finite(row: Any, depth: int) -> bool:
    kind = type(row)  # not isinstance(), which would run a row's own __class__
    if kind in _PLAIN:
        return True
    if issubclass(kind, float):
        return math.isfinite(row)
    if issubclass(kind, complex):
        return math.isfinite(row.real) and math.isfinite(row.imag)
    if issubclass(kind, np.ndarray | np.generic):
        if row.dtype.kind == "O":
            return not row.ndim or not depth or all(_finite(each, depth - 1) for each in row)
        return row.dtype.kind not in "fc" or bool(np.isfinite(row).all())
    if issubclass(kind, dict):
        return not depth or all(_finite(each, depth - 1) for each in row.values())
    if kind is list or issubclass(kind, tuple):
        if not row or not depth:
            return True
        if type(row[0]) is float:
            try:
                if math.isfinite(sum(row)):
                    return True
            except Exception:
                pass  # not all are numbers, or some are too large to be floats
        return all(_finite(each, depth - 1) for each in row)
    return not _is_tensor(kind) or not _in_tensor(row.reshape(1, -1))


def _is_tensor(kind: type) -> bool:
    tensor = _of_torch("Tensor")
    return tensor is not None and issubclass(kind, tensor)


def _of_torch(name: str) -> Any:
    """Something of torch; None where nobody has imported it, or another thread is in the middle of that."""
    torch = sys.modules.get("torch")
    return getattr(torch, name, None) if torch is not None else None


def leave_out_grad() -> None:
    """Have torch record no gradients on this thread, unless a loop runs here: a loop's thread is not the lane's alone.
    Called for each batch, for the thread may have met torch only now."""
    set_grad_enabled = _of_torch("set_grad_enabled")
    if set_grad_enabled is not None and asyncio._get_running_loop() is None:
        set_grad_enabled(False)


async def without_grad(awaitable: Awaitable[Any]) -> Any:
    """Await what a coroutine model has returned, and have torch record no gradients in each of its steps: between them,
    others run on the same thread."""
    if _of_torch("set_grad_enabled") is None:
        return await awaitable
    return await _Stepwise(_awaited(awaitable))


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class _Stepwise:
    """A coroutine whose steps each run without gradients."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        set_grad_enabled, is_grad_enabled = _of_torch("set_grad_enabled"), _of_torch("is_grad_enabled")
        step: Callable[[Any], Any] = self._coroutine.send
        given: Any = None
        own = False  # the coroutine's own setting, which it may change
        while True:
            before = is_grad_enabled()
            set_grad_enabled(own)
            try:
                wanted = step(given)
            except StopIteration as over:
                return over.value
            finally:
                own = is_grad_enabled()
                set_grad_enabled(before)
            try:
                step, given = self._coroutine.send, (yield wanted)
            except BaseException as error:
                step, given = self._coroutine.throw, error


def member_error(error: BaseException, size: int, name: str) -> BaseException:
    """The error that one member of a failed batch gets: its own copy, so that tracebacks do not mix, with a note naming
    the batch. Never raises, whatever the error's own code does.

    StopIteration ends generators, CancelledError looks like the waiter's own cancel, and KeyboardInterrupt and
    SystemExit would stop the waiter's event loop: raised by a model they are none of that, so they come wrapped in a
    `ModelError`.
    """
    kind = type(error)  # not isinstance(), which would run the error's own __class__
    if not issubclass(kind, Exception) or issubclass(kind, StopIteration | asyncio.CancelledError):
        own: BaseException = ModelError(f"the model raised {kind.__name__}{_text(error)}")
        own.__cause__ = error
    else:
        own = _copy(cast("Exception", error))
    if size > 1 and own is not error:
        BaseException.add_note(own, f"raised for a batch of {size} of relay {name!r}")
    return own


def _copy(error: Exception) -> Exception:
    """A second object that equals `error`, or `error` itself where none can be made."""
    try:
        own = _twin(error)
        own.__traceback__ = error.__traceback__
        own.__cause__ = error.__cause__
        own.__context__ = error.__context__
        own.__suppress_context__ = error.__suppress_context__
        notes = getattr(error, "__notes__", None)
        if notes is not None:
            own.__notes__ = list(notes)  # the list itself would be shared, and collect the notes of all members
    except BaseException:
        return error
    return own


def _twin(error: Exception) -> Exception:
    kind = type(error)
    try:
        own = copy.copy(error)
        if own is not error and type(own) is kind and own.args == error.args:
            return own
    except Exception:
        pass
    # Its constructor takes something else than `args`. All that a plain exception is lies in its args and its dict.
    base = next(known for known in kind.__mro__ if known.__module__ == "builtins")
    if base.__basicsize__ != BaseException.__basicsize__:
        return error
    own = kind.__new__(kind, *error.args)
    own.args = error.args
    own.__dict__.update(error.__dict__)
    return own


def _text(error: BaseException) -> str:
    try:
        return f": {error}"
    except BaseException:
        return ""
