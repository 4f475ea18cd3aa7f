"""Which request is already here: a keyed 128-bit hash of the content → the handle that carries it.

A `Dedup` owns nothing but pairs of integers. It never sees content: callers keep it in a list indexed by slot and
compare it in full (``==``) before anything is shared, so two contents with one hash cost a missed merge and never a
wrong result. One thread at a time may call one table; whoever shares it brings the lock. Invariant: every slot has at
most one entry, every hash belongs to at most one slot, and what was deleted leaves no trace.

This side hashes with keyed BLAKE2b and keeps a dict; the native side multiplies and folds, and keeps an open-addressed
table. The values of a hash therefore differ between the sides, as they do between processes; all else is the same.
"""

from __future__ import annotations

import hashlib
import os

SLOT_BITS = 22
MAX_SLOTS = 1 << SLOT_BITS
NO_HANDLE = -1

_BUG = "; this is a bug in relay"
_PROCESS_SECRET = os.urandom(32)


class Dedup:
    """A table of fixed capacity from content hashes to handles.

        h = table.hash(text)
        leader = table.find(h)
        if leader != NO_HANDLE and contents[slot_of(leader)] == text:
            ...                               # join the leader
        else:
            table.insert(h, handle)           # lead, if the hash is not taken by other content

    Args:
        capacity: The slots it can have entries for, 1 to 2**22: handles must name slots 0 to ``capacity - 1``.
        secret: The key of the hash, 16 to 64 bytes, for tables that must agree on it. None takes the one drawn for this
            process, so that nobody outside can prepare texts that collide.

    Raises:
        TypeError: ``capacity`` is not an int, or ``secret`` is not bytes.
        ValueError: ``capacity`` or the length of ``secret`` is out of range.
        OverflowError: ``capacity`` does not fit in 64 bits.
    """

    __slots__ = ("_capacity", "_handles", "_hashes", "_secret")

    def __init__(self, capacity: int, secret: bytes | None = None) -> None:
        capacity = _int64(capacity, "capacity")
        if not 1 <= capacity <= MAX_SLOTS:
            raise ValueError(f"capacity {capacity} is out of range: give 1 to {MAX_SLOTS}")
        self._secret = _checked_secret(secret)
        self._capacity = capacity
        self._handles: dict[int, int] = {}  # hash → handle
        self._hashes: list[int | None] = [None] * capacity  # slot → hash of its entry

    @property
    def capacity(self) -> int:
        """The slots it can have entries for; never changes."""
        return self._capacity

    def __len__(self) -> int:
        return len(self._handles)

    def hash(self, data: str | bytes) -> int:
        """Hash content under this table's secret.

        A str is hashed as the characters it holds: equal str have equal hashes, however they were made. A str and a
        bytes object never share one but by chance.

        Args:
            data: What to hash. May be empty.

        Returns:
            A number from 0 to ``2**128 - 1``, the same for equal data in every table of this process with this secret.

        Raises:
            TypeError: ``data`` is neither str nor bytes.
        """
        if isinstance(data, str):
            content, domain = str.encode(data, "utf-8", "surrogatepass"), b"str"
        elif isinstance(data, bytes):
            content, domain = data, b"bytes"
        else:
            raise TypeError(f"data must be str or bytes, got {type(data).__name__}")
        digest = hashlib.blake2b(content, digest_size=16, key=self._secret, person=domain, usedforsecurity=False)
        return int.from_bytes(digest.digest(), "little")

    def insert(self, h: int, handle: int) -> bool:
        """Enter a handle under a hash.

        Args:
            h: The hash, 0 to ``2**128 - 1``.
            handle: The handle; its slot must have no entry.

        Returns:
            True if it was entered. False, with nothing changed, if the hash has an entry already or the table is full.

        Raises:
            TypeError: An argument is not an int.
            OverflowError: ``h`` does not fit in 128 bits, or ``handle`` not in 64.
            ValueError: The handle is negative, names a slot outside the table, or a slot that has an entry.
        """
        h = _int128(h)
        handle = _int64(handle, "handle")
        slot = handle & (MAX_SLOTS - 1)
        if handle < 0:
            raise ValueError(f"handle {handle} is out of range: handles are not negative")
        if slot >= self._capacity:
            raise ValueError(f"handle {handle} names slot {slot}: this table has slots 0 to {self._capacity - 1}")
        if h in self._handles or len(self._handles) == self._capacity:
            return False
        old = self._hashes[slot]
        if old is not None:
            raise ValueError(f"slot {slot} has an entry, of handle {self._handles[old]}: delete that first")
        self._handles[h] = handle
        self._hashes[slot] = h
        return True

    def find(self, h: int) -> int:
        """Return the handle entered under a hash, or -1.

        Args:
            h: The hash, 0 to ``2**128 - 1``.

        Raises:
            TypeError: ``h`` is not an int.
            OverflowError: ``h`` does not fit in 128 bits.
        """
        return self._handles.get(_int128(h), NO_HANDLE)

    def delete(self, handle: int) -> bool:
        """Take out the entry of a handle.

        Args:
            handle: The handle as it was inserted. One of another generation of the slot is not taken for it.

        Returns:
            True if it had an entry.

        Raises:
            TypeError: ``handle`` is not an int.
            OverflowError: ``handle`` does not fit in 64 bits.
        """
        handle = _int64(handle, "handle")
        slot = handle & (MAX_SLOTS - 1)
        if handle < 0 or slot >= self._capacity:
            return False
        h = self._hashes[slot]
        if h is None or self._handles[h] != handle:
            return False
        del self._handles[h]
        self._hashes[slot] = None
        return True

    def check(self) -> None:
        """Recount everything.

        Raises:
            AssertionError: An invariant is broken.
        """
        if len(self._hashes) != self._capacity:
            raise AssertionError(f"dedup has {len(self._hashes)} slots for a capacity of {self._capacity}{_BUG}")
        if sum(h is not None for h in self._hashes) != len(self._handles):
            raise AssertionError(f"dedup counts {len(self._handles)} entries and its slots hold another number{_BUG}")
        for h, handle in self._handles.items():
            slot = handle & (MAX_SLOTS - 1)
            if slot >= self._capacity or self._hashes[slot] != h:
                raise AssertionError(f"dedup finds handle {handle} under a hash its slot does not have{_BUG}")


def _int64(value: int, name: str) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError(f"{name} {value} does not fit in 64 bits")
    return int(value)


def _int128(value: int) -> int:
    if not isinstance(value, int):
        raise TypeError(f"h must be an int, got {type(value).__name__}")
    if not 0 <= value < 1 << 128:
        raise OverflowError(f"h {value} does not fit in 128 bits without a sign")
    return int(value)


def _checked_secret(secret: bytes | None) -> bytes:
    if secret is None:
        return _PROCESS_SECRET
    if not isinstance(secret, bytes):
        raise TypeError(f"secret must be bytes, got {type(secret).__name__}")
    if not 16 <= len(secret) <= 64:
        raise ValueError(f"secret has {len(secret)} bytes: give 16 to 64, as os.urandom(32) does, or leave it out")
    return secret
