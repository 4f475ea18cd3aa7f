"""When two requests are the same: their content, and the parameters they share a batch by.

Pure functions and interned parameters; any thread may use them. A digest only finds candidates: contents, parameters
and tenant are compared in full before anything is shared.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

_PLAIN = (str, bytes, int, bool, float, type(None))


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
_numbers = itertools.count(1)


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
        known = _living.setdefault(key, Params(dict(params), next(_numbers) & 0x7FFFFFFF))
    return known


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
    if isinstance(item, str | bytes):
        return max(len(item), 1)
    nbytes = getattr(item, "nbytes", None)
    return max(nbytes, 1) if isinstance(nbytes, int) else 1
