"""When two requests are the same: their content, and the parameters they share a batch by.

Pure functions and interned parameters; any thread may use them. A digest only finds candidates: contents are compared
in full, and all else must be one and the same object (see `alike`), before anything is shared.
"""

from __future__ import annotations

import itertools
import weakref
from array import array
from collections.abc import Callable, Mapping
from operator import is_
from typing import Any, cast

import numpy as np

from relay.typed import typed

_ONE = frozenset((int, bool, float, type(None), tuple, list, dict))  # what has no `nbytes`, without a look

MAX_SIZE = 2**31 - 1
"""The largest size that the queue can hold."""

MAX_CONTENT_BYTES = 1 << 20
"""Longer items are not shared: to hash and compare 27 MB would hold up an event loop for milliseconds, each time. Of a
str it is characters, which are counted already."""

_PART_BYTES = 64  # a part of a tuple or list takes as long to look at as so many bytes of text take to hash
_MAX_PARTS = MAX_CONTENT_BYTES // _PART_BYTES
_MAX_INT_BITS = 8192  # printing takes the square of it
_UNTOLD = 1 << 60
_all_int = itertools.repeat(int)  # which never ends, so that all may use one


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
        ValueError: A value nests too deep.
    """
    if not params:
        return None
    if not isinstance(params, Mapping):
        raise TypeError(f"params must be a mapping of names to hashable values, got {type(params).__name__}")
    keywords = params
    for name in params:
        if type(name) is not str:
            keywords = {_name(each): value for each, value in params.items()}
            break
    try:
        key = tuple([(name, typed(keywords[name])) for name in sorted(keywords)])
        known = _living.get(key)
    except TypeError:
        raise TypeError(
            f"params must have hashable values, for equal ones share a batch; got {dict(params)!r}"
        ) from None
    except RecursionError:
        raise ValueError("params hold a value that nests too deep to be compared; give it as a str or bytes") from None
    if known is None:
        new = Params(dict(keywords), _free_number())
        _taken[new.group] = new
        known = _living.setdefault(key, new)
    return known


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"params must be named by str, got {name!r}")
    return str.__str__(name)  # the text alone: a class of its own may say anything of what is equal to it


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


def content_of(item: Any) -> str | bytes | None:
    """The content of an item that may be shared: equal contents mean equal items, types included.

    Returns:
        A str for a str; tagged bytes for bytes, int, tuples of these, and lists or arrays of input ids; None for
        anything else, and for what is longer than `MAX_CONTENT_BYTES`, which is not shared.
    """
    kind = type(item)
    if kind is str:
        return cast(str, item) if len(item) <= MAX_CONTENT_BYTES else None
    if kind is bytes:
        return b"b" + cast(bytes, item) if len(item) <= MAX_CONTENT_BYTES else None
    if kind is tuple or kind is list:
        if item and type(item[0]) is int and len(item) <= _MAX_PARTS and all(map(is_, map(type, item), _all_int)):
            try:
                return (b"q(" if kind is tuple else b"q[") + array("q", item).tobytes()
            except OverflowError:
                pass
        return _told(item) if _weight(item, 4) <= MAX_CONTENT_BYTES else None
    if kind is int or kind is bool:
        return _told(item) if item.bit_length() <= _MAX_INT_BITS else None
    if kind is np.ndarray and item.ndim == 1 and item.nbytes <= MAX_CONTENT_BYTES:
        if item.dtype.kind in "iu" and item.dtype.metadata is None:
            return b"a" + cast(bytes, item.dtype.str.encode() + item.tobytes())
    return None


def frozen(item: Any) -> Any:
    """An item that has a content, as nobody else can change it: lists, arrays, and what is in them, are copied."""
    kind = type(item)
    if kind is np.ndarray:
        return item.copy()
    if kind is list or kind is tuple:
        parts = [frozen(part) if type(part) in (list, tuple) else part for part in item]
        return parts if kind is list else tuple(parts)
    return item


def is_comparable(item: Any) -> bool:
    """Whether an item is of a kind that is shared, if perhaps too long for it: what ``key=`` may return."""
    kind = type(item)
    if kind is tuple or kind is list:
        return _weight(item, 4) < _UNTOLD
    return kind in (str, bytes, int, bool) or (kind is np.ndarray and item.ndim == 1 and item.dtype.kind in "iu")


def _told(item: Any) -> bytes | None:
    try:
        return b"r" + repr(item).encode("utf-8", "surrogatepass")
    except ValueError:
        return None  # an int of more digits than Python has been told to print


def _weight(item: Any, depth: int) -> int:
    """What it takes to tell and compare a tuple or list, as so many bytes of text; `_UNTOLD` or more if `repr` does not
    tell the whole of it. Looks no further once it is too much."""
    weight = _PART_BYTES * len(item)
    if weight > MAX_CONTENT_BYTES:
        return weight
    for part in item:
        kind = type(part)
        if kind is str or kind is bytes:
            weight += len(part)
        elif kind is int:
            bits = part.bit_length()
            weight += bits if bits <= _MAX_INT_BITS else MAX_CONTENT_BYTES
        elif kind is tuple or kind is list:
            weight += _weight(part, depth - 1) if depth else _UNTOLD
        elif part is not None and kind is not bool and (kind is not float or part != part):
            return _UNTOLD  # one word stands for all NaN, which differ
        if weight > MAX_CONTENT_BYTES:
            break
    return weight


def size_of(item: Any) -> int:
    """What an item without input ids counts for: its length as str or bytes, its bytes as an array, else 1."""
    kind = type(item)
    if kind in _ONE:
        return 1
    if isinstance(item, (str, bytes)):  # noqa: UP038  # a union would take three times as long
        return len(item) or 1
    nbytes = getattr(item, "nbytes", None)
    return min(max(nbytes, 1), MAX_SIZE) if isinstance(nbytes, int) else 1
