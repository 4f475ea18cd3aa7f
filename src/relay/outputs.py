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
    the batch.

    StopIteration ends generators, CancelledError looks like the waiter's own cancel, and KeyboardInterrupt and
    SystemExit would stop the waiter's
    event loop: raised by a model they are none of that, so they come wrapped in a `ModelError`.
    """
    if isinstance(error, StopIteration | asyncio.CancelledError) or not isinstance(error, Exception):
        own: BaseException = ModelError(f"the model raised {type(error).__name__}: {error}")
        own.__cause__ = error
    else:
        try:
            own = copy.copy(error)
        except Exception:
            own = error
        if type(own) is not type(error) or own.args != error.args:
            own = error
        own.__traceback__ = error.__traceback__
        own.__cause__ = error.__cause__
        own.__suppress_context__ = error.__suppress_context__
    if size > 1 and own is not error:
        own.add_note(f"raised for a batch of {size} of relay {name!r}")
    return own
