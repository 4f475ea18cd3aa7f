"""What can be kept of a model's answers, and handed out again and again.

Pure functions; any thread may use them. The invariant: nobody who is given an answer can change what another is given.
What cannot be changed is shared. An array is copied once, into memory that nobody can write, and shared. Lists, dicts,
sets, tensors, and tuples that hold any of these, are copied once to be kept, and again for each who asks. Of anything
else, and of NaN and infinity, nothing is kept.
"""

from __future__ import annotations

import cmath
import math
import sys
from typing import Any

import numpy as np

from relay.outputs import non_finite

DEPTH = 4
"""How deep lists, dicts, sets and tuples may lie in each other: as deep as rows are looked into for NaN."""

MOST_PARTS = 1 << 16
"""How many parts a list, dict, set or tuple may have in all: a copy takes its time, and is made for each who asks."""

_ARRAY = 192  # bytes of an array beside its numbers: the object, its shape, and the header of the memory it shows
_TENSOR = 512
_COPIED = sys.getsizeof(None) + 48

# By their exact type: a subclass may hold anything, and change.
_EXACT = frozenset((str, bytes, int, bool, type(None)))
_SCALARS = frozenset(
    kind for kind in np.sctypeDict.values() if issubclass(kind, np.generic) and kind not in (np.void, np.object_)
)
_PLAIN = _EXACT | _SCALARS | {float, complex}
_CONTAINERS = frozenset((list, dict, set, tuple, frozenset))


class Copied:
    """A value of which each who asks is given a copy."""

    __slots__ = ("_flat", "_value")

    def __init__(self, value: Any, flat: bool) -> None:
        self._value = value
        self._flat = flat  # all its parts can be shared

    def fresh(self) -> Any:
        """A new copy."""
        return self._value.copy() if self._flat else _copy(self._value)


def kept(row: Any) -> tuple[Any, int] | None:
    """What to keep of a row, and what it costs.

    Args:
        row: One answer of a model. It is not kept itself where it can be changed; it may be, by somebody else, while
            this looks at it.

    Returns:
        What to keep, to be given out through `given`, and its bytes; None if the row cannot be kept: it is of another
        type than those named above, or of a subclass; it holds NaN or infinity; it is deeper than `DEPTH`, has more
        than `MOST_PARTS` parts, or holds itself; it is a tensor that is not dense, not on the CPU, or part of a graph.
        Never raises.
    """
    kind = type(row)
    try:
        if kind in _EXACT:
            return row, sys.getsizeof(row)
        if kind is np.ndarray:
            own = _array(row)
            return (own, own.nbytes + _ARRAY) if own is not None else None
        if kind in _PLAIN:
            return (row, sys.getsizeof(row)) if _finite(row) else None
        if kind in _CONTAINERS:
            look = _Look()
            own = look.own(row, DEPTH)
            if look.flat and kind in (tuple, frozenset):
                return own, look.nbytes
            return Copied(own, look.flat), look.nbytes + _COPIED
        if kind is _tensor_type():
            tensor = _tensor(row)
            return (Copied(tensor, False), tensor.nbytes + _TENSOR + _COPIED) if tensor is not None else None
    except Exception:
        pass  # whatever there is in a row must not fail the request that has its answer
    return None


def given(value: Any) -> Any:
    """What to hand out of what was kept: itself, or a copy."""
    return value.fresh() if type(value) is Copied else value


def another(row: Any) -> Any:
    """What a second caller is handed out of the answer to both: a copy of what the first may change, NaN included.
    Anything of another type than those named above is shared, and so is what lies deeper than `DEPTH`. Never raises."""
    try:
        return _twin(row, DEPTH)
    except Exception:  # somebody changes it, or it cannot be copied
        return row


def _twin(row: Any, depth: int) -> Any:
    kind = type(row)
    if kind is np.ndarray:
        return row if type(row.base) is bytes else row.copy()  # a view that is read-only may be made writable again
    if kind is bytearray or kind is set:
        return row.copy()
    if kind in _CONTAINERS and depth:
        parts = row.values() if kind is dict else row
        if set(map(type, parts)) <= _PLAIN or kind is frozenset:
            return row if kind is tuple or kind is frozenset else row.copy()
        if kind is dict:
            return {key: _twin(part, depth - 1) for key, part in row.items()}
        return kind([_twin(part, depth - 1) for part in row])
    return row.clone() if kind is _tensor_type() else row


class _Unkept(Exception):
    """A part that cannot be kept."""


class _Look:
    """A walk through a row: copies what can be changed, and counts."""

    __slots__ = ("_parts", "flat", "nbytes")

    def __init__(self) -> None:
        self.flat = True  # nothing below the outermost needs a copy for each who asks
        self.nbytes = 0
        self._parts = 0

    def own(self, row: Any, depth: int) -> Any:
        """Our own copy of a list, dict, set, tuple or frozenset, and of what is in it.

        Args:
            row: What to copy.
            depth: How deep it may be.
        """
        kind = type(row)
        mine = row if kind in (tuple, frozenset) else row.copy()  # before a look: another thread may change the row
        self._enter(mine, depth)
        if kind is list or kind is tuple:
            if not self._all_plain(mine):
                parts = [self._part(part, depth) for part in mine]
                mine = parts if kind is list else tuple(parts)
            return mine
        keys = list(mine)
        if not self._all_plain(keys):
            for key in keys:
                self._frozen(key, depth)
        if kind is dict and not self._all_plain(list(mine.values())):
            for key, part in mine.items():
                mine[key] = self._part(part, depth)
        return mine

    def _enter(self, container: Any, depth: int) -> None:
        self._parts += len(container)
        if not depth or self._parts > MOST_PARTS:
            raise _Unkept
        self.nbytes += sys.getsizeof(container)

    def _all_plain(self, parts: list[Any] | tuple[Any, ...]) -> bool:
        """Whether all parts can be shared as they are; counts them if so."""
        kinds = set(map(type, parts))
        if not kinds <= _PLAIN:
            return False
        if kinds == {float}:
            # The sum is finite only if all are. It may be infinite where large ones meet, so then each is looked at.
            finite = math.isfinite(sum(parts)) or all(map(math.isfinite, parts))
            self.nbytes += len(parts) * sys.getsizeof(0.0)
        else:
            finite = kinds <= _EXACT or all(map(_finite, parts))
            self.nbytes += sum(map(sys.getsizeof, parts))
        if not finite:
            raise _Unkept
        return True

    def _frozen(self, part: Any, depth: int) -> None:
        """Count a key, or a member of a set: it can be shared, or the row cannot be kept."""
        kind = type(part)
        if kind in _PLAIN:
            self._plain(part)
            return
        if kind is not tuple and kind is not frozenset:
            raise _Unkept
        self._enter(part, depth - 1)
        for each in part:
            self._frozen(each, depth - 1)

    def _plain(self, part: Any) -> None:
        if not _finite(part):
            raise _Unkept
        self.nbytes += sys.getsizeof(part)

    def _part(self, part: Any, depth: int) -> Any:
        kind = type(part)
        if kind in _PLAIN:
            self._plain(part)
            return part
        own: Any = None
        if kind is np.ndarray:
            own = _array(part)
            self.nbytes += part.nbytes + _ARRAY
        elif kind in _CONTAINERS:
            own = self.own(part, depth - 1)
            if kind is not tuple and kind is not frozenset:
                self.flat = False  # as a tuple is not, if it holds one that is none
        elif kind is _tensor_type():
            own = _tensor(part)
            self.nbytes += part.nbytes + _TENSOR
            self.flat = False
        if own is None:
            raise _Unkept
        return own


def _copy(value: Any) -> Any:
    """A copy of what a `_Look` has made, or of a tensor."""
    kind = type(value)
    if kind is list:
        return [part if type(part) in _PLAIN else _copy(part) for part in value]
    if kind is dict:
        return {key: part if type(part) in _PLAIN else _copy(part) for key, part in value.items()}
    if kind is tuple:
        return tuple(part if type(part) in _PLAIN else _copy(part) for part in value)
    if kind is set:
        return value.copy()
    if kind is np.ndarray or kind in _PLAIN or kind is frozenset:
        return value
    return value.clone()


def _finite(part: Any) -> bool:
    kind = type(part)
    if kind in _EXACT:
        return True
    if kind is float or kind is np.float32 or kind is np.float64:
        return math.isfinite(part)
    if kind is complex:
        return cmath.isfinite(part)
    return part.dtype.kind not in "fc" or bool(np.isfinite(part))


def _array(row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """A copy that cannot be written, nor be made writable again: it shows the memory of a bytes object."""
    dtype = row.dtype
    kind = dtype.kind
    if kind == "O" or kind == "V":
        return None
    own: np.ndarray[Any, Any] = np.ndarray(row.shape, dtype, row.tobytes())
    # Bytes are searched faster than numpy does `all`.
    if (kind == "f" or kind == "c") and 0 in np.isfinite(own).tobytes():
        return None
    return own


def _tensor_type() -> Any:
    torch = sys.modules.get("torch")
    return getattr(torch, "Tensor", None) if torch is not None else None


def _tensor(row: Any) -> Any:
    """A copy of a plain, dense tensor on the CPU; None if it is something else, or holds NaN or infinity."""
    torch = sys.modules["torch"]
    if row.device.type != "cpu" or row.layout != torch.strided or row.requires_grad or row.is_quantized:
        return None
    own = row.detach().clone(memory_format=torch.contiguous_format)
    return own if not non_finite(own.reshape(1, -1)) else None
