"""What a model gave back: one row for each item, or an error for each.

Pure functions, called on the lane's thread.
"""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Sequence
from types import GeneratorType
from typing import Any

import numpy as np

from relay.errors import BadOutput, ModelError

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
            if output.ndim > 1
            else output.tolist()
            if output.dtype == object
            else list(output)
        )
    elif "torch" in sys.modules and isinstance(output, sys.modules["torch"].Tensor) and output.ndim:
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


def member_error(error: BaseException, size: int, name: str) -> BaseException:
    """The error that one member of a failed batch gets: its own copy, so that tracebacks do not mix, with a note naming
    the batch. Never raises, whatever the error's own code does.

    StopIteration ends generators, CancelledError looks like the waiter's own cancel, and KeyboardInterrupt and
    SystemExit would stop the waiter's event loop: raised by a model they are none of that, so they come wrapped in a
    `ModelError`.
    """
    if not isinstance(error, Exception) or isinstance(error, StopIteration | asyncio.CancelledError):
        own: BaseException = ModelError(f"the model raised {type(error).__name__}{_text(error)}")
        own.__cause__ = error
    else:
        own = _copy(error)
    if size > 1 and own is not error:
        own.add_note(f"raised for a batch of {size} of relay {name!r}")
    return own


def _copy(error: Exception) -> Exception:
    """A second object that equals `error`, or `error` itself where none can be made."""
    try:
        own = _twin(error)
    except BaseException:
        return error
    own.__traceback__ = error.__traceback__
    own.__cause__ = error.__cause__
    own.__context__ = error.__context__
    own.__suppress_context__ = error.__suppress_context__
    notes = getattr(error, "__notes__", None)
    if notes is not None:
        own.__notes__ = list(notes)  # the list itself would be shared, and collect the notes of all members
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
