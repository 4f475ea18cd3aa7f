"""What a value is, to the last bit: stands for it where equal values are looked up.

Python's ``==`` takes 1, 1.0 and True for one value, so 0.0 and -0.0, and ``Decimal("1.0")`` and ``Decimal("1.00")``; a
model may well answer them differently. Pure functions; any thread may use them.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

_two_floats = struct.Struct("dd").pack
_one_float = struct.Struct("d").pack


def typed(value: Any) -> Any:
    """Something that is equal for two values only if they are of one type and alike in every part, types included.

    The parts are those of tuples, frozensets, named tuples, dataclasses, numpy's scalars, and of all that derives from
    a number or text. Floats are their bits, so a NaN is like itself. Other values are alike if their type, which must
    be one and the same, says so by ``==``: with such a type its author decides.

    Returns:
        Something that is hashable if the value is.

    Raises:
        RecursionError: It nests too deep.
        TypeError: A part that must be hashed cannot be.
    """
    kind = type(value)
    if kind is str or value is None:
        return value
    if kind is int or kind is bool or kind is bytes:  # by `is` alone: a metaclass may say of its types what it likes
        return kind, value
    if kind is float:
        return kind, _one_float(value)
    if kind is tuple:
        return (kind, *map(typed, value))
    # The type by its number, for the same reason; the value keeps it alive.
    parts = _parts(kind, value)
    return (id(kind), parts) if kind in _TOLD else (id(kind), parts, value)


def _parts(kind: type, value: Any) -> Any:
    """What ``==`` of such a type overlooks."""
    for base, told in _BASES:
        if issubclass(kind, base):  # the true type, whatever it says of itself
            return told(value)
    if dataclasses.is_dataclass(kind):
        parts = tuple(
            typed(getattr(value, field.name))
            for field in dataclasses.fields(kind)
            if field.compare and field.hash is None
        )
        try:
            hash(parts)
        except TypeError:
            return ()  # it hashes itself by other means
        return parts
    return ()


_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (enum.Enum, id),
    (np.generic, lambda value: (value.dtype.str, value.tobytes())),
    (float, _one_float),
    (complex, lambda value: _two_floats(value.real, value.imag)),
    (Decimal, Decimal.as_tuple),
    (tuple, lambda value: tuple(map(typed, tuple.__iter__(value)))),
    (frozenset, lambda value: (frozenset.__len__(value), frozenset(map(typed, frozenset.__iter__(value))))),
    (int, int.__index__),
    (str, str.__str__),
    (bytes, lambda value: b"".join((value,))),
    (datetime.datetime, lambda value: (value.fold, typed(value.tzinfo))),
    (datetime.time, lambda value: (value.fold, typed(value.tzinfo))),
    (range, lambda value: (value.start, value.stop, value.step)),
)
_TOLD = frozenset((float, complex, Decimal, frozenset, range))  # of which the parts are all there is
