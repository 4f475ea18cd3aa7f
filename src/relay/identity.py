"""When two requests are the same: their content, and the parameters they share a batch by.

Pure functions and interned parameters; any thread may use them. A digest only finds candidates: contents, parameters
and tenant are compared in full before anything is shared.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

_PLAIN = (str, bytes, int, bool, float, type(None))
_ONE = frozenset((int, bool, float, type(None), tuple, list, dict))  # what has no `nbytes`, without a look

MAX_SIZE = 2**31 - 1
"""The largest size that the queue can hold."""


class Params:
    """The keyword arguments of a request; equal ones are one object while any request holds them.

    Attributes:
        keywords: As given to the model.
        group: A number that no other living `Params` has; 0 is kept for requests without any.
    """

    __slots__ = ("__weakref__", "group", "keywords")

    def __init__(self, keywords: dict[str, Any], group: int) -> None:
        self.keywords = keywords
        self.group = group


_living: weakref.WeakValueDictionary[Any, Params] = weakref.WeakValueDictionary()
_taken: weakref.WeakValueDictionary[int, Params | _Group] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def _free_number() -> int:
    """A number of 31 bits that no living group has, and not 0. Requests with parameters of their own (a seed) go round
    all of them in weeks."""
    while not (number := next(_numbers) & 0x7FFFFFFF) or number in _taken:
        pass
    return number


def intern_params(params: Mapping[str, Any] | None) -> Params | None:
    """The `Params` of a request's keyword arguments, or None if it has none.

    Raises:
        TypeError: A name is not a str, or a value is not hashable.
    """
    if not params:
        return None
    if not isinstance(params, Mapping):
        raise TypeError(f"params must be a mapping of names to hashable values, got {type(params).__name__}")
    for name in params:
        if not isinstance(name, str):
            raise TypeError(f"params must be named by str, got {name!r}")
    key = tuple((name, _typed(params[name])) for name in sorted(params))
    try:
        known = _living.get(key)
    except TypeError:
        raise TypeError(
            f"params must have hashable values, for equal ones share a batch; got {dict(params)!r}"
        ) from None
    if known is None:
        new = Params(dict(params), _free_number())
        _taken[new.group] = new
        known = _living.setdefault(key, new)
    return known


class Groups:
    """Which requests of one relay may share a batch: a number for each combination of what must be equal.

    Args:
        mixed: Parameters that may differ within a batch.
        group: What else must be equal, as a hashable value of the item; None for nothing.
    """

    def __init__(self, mixed: tuple[str, ...], group: Callable[[Any], Any] | None) -> None:
        self._mixed = frozenset(mixed)
        self._group = group
        self._numbers: weakref.WeakValueDictionary[Any, _Group] = weakref.WeakValueDictionary()

    def of(self, item: Any, params: Params | None) -> tuple[int, object]:
        """The number of a request's group, and what keeps that number for as long as it is held.

        Raises:
            TypeError: `group` gave something that is not hashable.
        """
        fixed = params
        if params is not None and not self._mixed.isdisjoint(params.keywords):
            fixed = intern_params({name: each for name, each in params.keywords.items() if name not in self._mixed})
        if self._group is None:
            return (fixed.group, fixed) if fixed is not None else (0, None)
        value = self._group(item)
        key = (fixed.group if fixed is not None else 0, type(value), value)
        try:
            found = self._numbers.get(key)
        except TypeError:
            raise TypeError(
                f"group(item) must return a hashable value, for only equal ones share a batch; got {value!r}"
            ) from None
        if found is None:
            new = _Group(_free_number(), fixed)
            _taken[new.number] = new
            found = self._numbers.setdefault(key, new)
        return found.number, found


class _Group:
    """A number that is taken while anybody holds this."""

    __slots__ = ("__weakref__", "fixed", "number")

    def __init__(self, number: int, fixed: Params | None) -> None:
        self.number = number
        self.fixed = fixed  # kept, for its own number is part of the key


def _typed(value: Any) -> Any:
    """A parameter with its types: 1, 1.0 and True are equal, and so are 0.0 and -0.0, but not the same parameter."""
    kind = type(value)
    if kind is tuple:
        return (kind, *map(_typed, value))
    if kind is frozenset:
        return (kind, frozenset(map(_typed, value)))
    return (kind, repr(value) if kind is float else value)


def content_of(item: Any) -> str | bytes | None:
    """The content of an item that may be shared: equal contents mean equal items, types included.

    Returns:
        A str for a str; tagged bytes for bytes, int, tuples of these, and lists or arrays of input ids; None for
        anything else, which is not shared.
    """
    kind = type(item)
    if kind is str:
        return cast(str, item)
    if kind is bytes:
        return b"b" + cast(bytes, item)
    if kind in (int, bool) or kind in (tuple, list) and _is_plain(item, 4):
        try:
            return b"r" + repr(item).encode("utf-8", "surrogatepass")
        except ValueError:
            return None  # an int of thousands of digits, which Python does not print
    if kind is np.ndarray and item.dtype.kind in "iu" and item.ndim == 1:
        return b"a" + cast(bytes, item.dtype.str.encode() + item.tobytes())
    return None


def _is_plain(item: Any, depth: int) -> bool:
    """Whether `repr` tells the whole of a tuple or list."""
    return all(
        type(part) in _PLAIN or depth > 0 and type(part) in (tuple, list) and _is_plain(part, depth - 1)
        for part in item
    )


def size_of(item: Any) -> int:
    """What an item without input ids counts for: its length as str or bytes, its bytes as an array, else 1."""
    kind = type(item)
    if kind in _ONE:
        return 1
    if isinstance(item, (str, bytes)):  # noqa: UP038  # a union would take three times as long
        return len(item) or 1
    nbytes = getattr(item, "nbytes", None)
    return min(max(nbytes, 1), MAX_SIZE) if isinstance(nbytes, int) else 1
