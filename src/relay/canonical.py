"""One form in bytes for each value, and a keyed digest of it: what stands for a request outside of this process.

Pure functions; any thread may use them. The invariant: two different values never have the same form, and equal values
of the same types always have; of processes, machines with the same byte order, and versions of relay the form does not
depend. Text is taken as it is: nothing is normalised, so texts that look alike and are spelt differently differ.

A form is a tag of one byte, the length of the payload in bytes as 8 bytes (unsigned, lowest byte first), the payload:

    ========== === ==========================================================================================
    None       N   nothing
    bool       ?   one byte, 0 or 1
    int        i   two's complement, lowest byte first, in n // 8 + 1 bytes, n being the bits of its absolute value
    float      f   the 8 bytes of IEEE 754, lowest first: 0.0 and -0.0 differ, and a NaN is its bits
    str        s   UTF-8; a lone surrogate is encoded by the same rule, in 3 bytes
    bytes      b   themselves
    tuple      t   the forms of its values, one behind the other
    list       l   the same
    dict       d   for each key its form and that of its value; these pairs in order of their bytes
    frozenset  z   the forms of its values, in order of their bytes
    set        y   the same
    array      a   the forms of its dtype (a str, such as "<i8") and its shape (a tuple), then its values in C order
    ========== === ==========================================================================================

As each form says where it ends, no boundary between two values can be moved: ("ab", "c") is not ("a", "bc").
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

MAX_DEPTH = 64
"""Containers within containers at most."""

MAX_PAYLOAD_BYTES = 16 << 20
"""What a container may hold, in bytes of its form: one that holds the same list many times over, which holds another so
many times, is small in memory and would be endless here."""

DIGEST_BYTES = 32

_length = struct.Struct("<cQ").pack
_float = struct.Struct("<d").pack
_PERSON = b"relay request v1"
_WAY_OUT = "give it as a str, bytes, int, float, tuple, list, dict, set, or an array of integers or floats"


def canonical(value: Any) -> bytes:
    """The one form of a value, as described above.

    Args:
        value: None, a bool, int, float, str or bytes, a numpy array of integers, bools or floats of up to 8 bytes, or a
            tuple, list, dict, set or frozenset of these. Exactly of these types: what is derived from one of them may
            mean something else.

    Raises:
        TypeError: It is, or holds, anything else.
        ValueError: It nests deeper than `MAX_DEPTH`, or a container holds more than `MAX_PAYLOAD_BYTES`.
    """
    return _form(value, MAX_DEPTH)


def digest(key: bytes, /, **fields: Any) -> bytes:
    """The keyed BLAKE2b-256 of a request: of the canonical form of its fields, as a dict.

        digest(secret, model="minilm", version=3, tenant=None, item="a text", params={"top_k": 5})

    Nobody who lacks the key can tell from digests what was asked, nor make two requests that share one. A field that is
    left out is not the same as one that is None.

    Args:
        key: The secret of all who must agree, 16 to 64 bytes, as ``os.urandom(32)`` makes.
        **fields: Whatever the answer depends on. Their order does not matter.

    Returns:
        32 bytes.

    Raises:
        TypeError: The key is not bytes, or a field has no canonical form.
        ValueError: The key is too short or too long, there are no fields, or one is too deep or too long.
    """
    if not isinstance(key, bytes):
        raise TypeError(f"key must be bytes, got {type(key).__name__}; os.urandom(32) makes one")
    if not 16 <= len(key) <= 64:
        raise ValueError(f"key has {len(key)} bytes: give 16 to 64, as os.urandom(32) does")
    if not fields:
        raise ValueError("a digest needs at least one field, such as item=text: without any, all requests are the same")
    pairs = [_of_name(name) + _form(value, MAX_DEPTH - 1) for name, value in fields.items()]
    pairs.sort()  # the form of a dict, made here to save time
    form = _framed(b"d", b"".join(pairs))
    return blake2b(form, digest_size=DIGEST_BYTES, key=key, person=_PERSON).digest()


def _form(value: Any, depth: int) -> bytes:
    kind = type(value)
    if kind is str:
        return _framed(b"s", value.encode("utf-8", "surrogatepass"))
    if value is None:
        return _NONE
    if kind is int:
        return _framed(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    tagged = _TAGGED.get(kind)
    if tagged is None or tagged[0] is not kind:  # whatever its metaclass says
        raise TypeError(f"a {kind.__name__} has no canonical form; {_WAY_OUT}")
    _, tag, payload_of = tagged
    if not depth and tag in _CONTAINERS:
        raise ValueError(f"the value nests deeper than {MAX_DEPTH} levels; flatten it, or give it as a str or bytes")
    return _framed(tag, payload_of(value, depth - 1))


def _framed(tag: bytes, payload: bytes) -> bytes:
    return _length(tag, len(payload)) + payload


@lru_cache(256, typed=True)  # a str of another class is no name, whatever it says it is equal to
def _of_name(name: str) -> bytes:
    return _form(name, 0)


def _joined(forms: list[bytes]) -> bytes:
    payload = b"".join(forms)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"the parts of a container come to {len(payload)} bytes, the limit is {MAX_PAYLOAD_BYTES}; "
            "give a digest of your own in its place"
        )
    return payload


def _sequence(value: Any, depth: int) -> bytes:
    return _joined([_form(part, depth) for part in value])


def _pairs(value: Any, depth: int) -> bytes:
    return _joined(sorted([_form(key, depth) + _form(part, depth) for key, part in value.items()]))


def _unordered(value: Any, depth: int) -> bytes:
    return _joined(sorted([_form(part, depth) for part in value]))


def _array(value: Any, depth: int) -> bytes:
    if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
        raise TypeError(f"an array of {value.dtype} has no canonical form; {_WAY_OUT}")
    return _form(value.dtype.str, depth) + _form(value.shape, MAX_DEPTH) + bytes(value.tobytes())


_NONE: bytes = _length(b"N", 0)
_TAGGED: dict[type, tuple[type, bytes, Callable[[Any, int], bytes]]] = {
    kind: (kind, tag, payload_of)
    for kind, tag, payload_of in (
        (bool, b"?", lambda value, _: b"\1" if value else b"\0"),
        (float, b"f", lambda value, _: _float(value)),
        (bytes, b"b", lambda value, _: value),
        (tuple, b"t", _sequence),
        (list, b"l", _sequence),
        (dict, b"d", _pairs),
        (frozenset, b"z", _unordered),
        (set, b"y", _unordered),
        (np.ndarray, b"a", _array),
    )
}
_CONTAINERS = b"tldzy"
