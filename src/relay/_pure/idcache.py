"""The input ids of texts that were tokenised before, so that the next request for one is a look-up and a copy.

Owns one block of memory of fixed size: an index, and a ring of records, each a text, whose it is, and its ids. Any
thread may call anything. A hash only finds candidates: the text and whose it is are compared in full, so one tenant
never finds what another has put in. Invariants: the records lie in the ring in the order in which they were written,
without a gap but the one at its end; every record is in the index once.

The oldest record makes room for the newest. One that was asked for since it was written is written anew instead, in
front, as long as that stays little work: so many texts that come once push out few that come often (the clock of the
textbooks; "second chance", Corbató 1968).

This side keeps texts and ids in objects and only reckons with the bytes that they take on the native side, so both keep
and drop the same texts at the same moment.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence

from relay._pure._ring import Record, Ring
from relay._pure._rows import as_ids
from relay._pure.arena import Arena
from relay._pure.dedup import Dedup
from relay._pure.state import as_range

__all__ = ["MAX_BYTES", "MAX_CHARS", "MAX_IDS", "MAX_NAME", "MIN_BYTES", "NOT_HERE", "NOT_WRITTEN", "IdCache"]

MAX_BYTES = 1 << 32
MAX_CHARS = 65_536
MAX_IDS = 16_384
MAX_NAME = 1_024
MIN_BYTES = 1_024
NOT_HERE = -1
NOT_WRITTEN = -2

_MAX_ENTRIES = 1 << 28
_BYTES_AN_ENTRY = 128  # of a whole cache, where nobody says how many entries there may be
_CELL, _HEADER, _STEP = 8, 24, 8
_BUG = "; this is a bug in relay"

_Key = tuple[str, str | None]


class IdCache:
    """The ids of one tokenizer's texts.

        length = cache.fetch(arena, handle, text, who)
        if length < 0:
            ids = ...                           # tokenise, and write the row
            cache.put(text, who, ids)

    Args:
        max_bytes: Size of the whole block, index included, `MIN_BYTES` (1,024) to 2**32.
        max_entries: Texts in it at most; None for one in 128 bytes.
        hash_bits: How many bits of the hash find candidates, 0 to 32. Only tests give fewer than 32, so that texts
            collide.

    Raises:
        TypeError: An argument is not an int.
        ValueError: An argument is out of range, or the index of so many entries takes more than half of the block.
        MemoryError: There is no memory for it.
    """

    __slots__ = (
        "_evictions", "_hash", "_hits", "_index", "_lock", "_mask", "_max_bytes", "_max_entries", "_misses", "_nbytes",
        "_ring", "_room",
    )  # fmt: skip

    def __init__(self, max_bytes: int, max_entries: int | None = None, hash_bits: int = 32) -> None:
        self._max_bytes = as_range("max_bytes", max_bytes, MIN_BYTES, MAX_BYTES)
        if max_entries is None:
            max_entries = min(self._max_bytes // _BYTES_AN_ENTRY, _MAX_ENTRIES)
        self._max_entries = as_range("max_entries", max_entries, 1, _MAX_ENTRIES)
        self._mask = (1 << as_range("hash_bits", hash_bits, 0, 32)) - 1
        cells = 2
        while 3 * cells < 4 * self._max_entries:  # an open-addressed index, of which a quarter stays empty
            cells *= 2
        if 2 * _CELL * cells > self._max_bytes:
            raise ValueError(
                f"an index of {self._max_entries} entries takes {_CELL * cells} of {self._max_bytes} bytes, more than "
                "half; give fewer max_entries or more max_bytes"
            )
        self._room = (self._max_bytes - _CELL * cells) // _STEP * _STEP  # bytes of the ring
        self._hash = Dedup(1).hash
        self._lock = threading.RLock()
        self._hits = self._misses = self._evictions = 0
        self._reset()

    def fetch(
        self,
        arena: Arena,
        handle: int,
        text: str,
        who: str | None = None,
        tentative: bool = False,
        most: int = MAX_IDS,
    ) -> int:
        """Copy the ids of a text into the row of a pinned slot.

        Args:
            arena: Where the slot is.
            handle: Its lease.
            text: The text.
            who: Whose it is; None is a name of its own.
            tentative: Whoever asks is going to ask again if the row is not written now; so that is not counted.
            most: Ids that the row may have.

        Returns:
            How many ids the row has now; `NOT_HERE` (-1) if the text is not here; `NOT_WRITTEN` (-2) if it is and the
            row is as before: the lease has ended or was dropped, or so many ids may not be, or find no room.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: The slot is not pinned, or `most` is out of range.
        """
        most = as_range("most", most, 0, 2**31 - 1)
        if not isinstance(arena, Arena):
            raise TypeError(f"arena must be an Arena, got {type(arena).__name__}")
        key = _key(text, who)
        with self._lock:
            record = self._find(key, self._digest(key))
            if record is None:
                self._misses += not tentative
                return NOT_HERE
            length = len(record.ids)
            fits = length <= min(most, arena.max_length)
            if not fits or not arena.write_ids(handle, record.ids.tolist(), record.split):
                self._hits += not tentative
                return NOT_WRITTEN
            record.hit = True
            self._hits += 1
            return length

    def put(self, text: str, who: str | None, ids: Sequence[int], split: int = -1) -> bool:
        """Keep the ids of a text.

        Args:
            text: The text.
            who: Whose it is, as for `fetch`.
            ids: A list or tuple of ints, or a 1-D buffer of int32 or int64; each fits in 32 bits.
            split: Index of the first id of the second segment, or -1 for one segment.

        Returns:
            True if they were put in. False if they are here already, or are not kept at all: the text has more than
            `MAX_CHARS` characters, whose it is more than `MAX_NAME`, or all of it would take more than a quarter of
            the ring.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: More than `MAX_IDS` ids, or a split outside them.
            OverflowError: An id does not fit in 32 bits.
        """
        key, values = _key(text, who), as_ids(ids, MAX_IDS)
        split = as_range("split", split, -1, len(values))
        narrow = not values or 0 <= min(values) and max(values) < 1 << 16
        size = _HEADER + len(values) * (2 if narrow else 4) + _bytes_of(text) + (_bytes_of(who) if who else 0)
        size = -(-size // _STEP) * _STEP
        if len(text) > MAX_CHARS or who is not None and len(who) > MAX_NAME or 4 * size > self._room:
            return False
        digest = self._digest(key)
        with self._lock:
            if self._find(key, digest) is not None:
                return False
            for gone in self._ring.make_room(size):
                self._forget(gone)
            record = Record(key, digest, array("H" if narrow else "i", values), split, size)
            self._ring.append(record)
            self._index.setdefault(digest, []).append(record)
            self._nbytes += size
            return True

    def clear(self) -> None:
        """Drop everything; all of it counts as evicted."""
        with self._lock:
            self._evictions += len(self._ring.records)
            self._reset()

    @property
    def max_bytes(self) -> int:
        """Size of the whole block; never changes."""
        return self._max_bytes

    @property
    def max_entries(self) -> int:
        """Texts in it at most; never changes."""
        return self._max_entries

    @property
    def entries(self) -> int:
        """Texts in it now: those that were put in, less the `evictions`."""
        return len(self._ring.records)

    @property
    def nbytes(self) -> int:
        """Bytes that they take, without the index."""
        return self._nbytes

    @property
    def hits(self) -> int:
        """Fetches that found their text."""
        return self._hits

    @property
    def misses(self) -> int:
        """Fetches that did not."""
        return self._misses

    @property
    def evictions(self) -> int:
        """Texts dropped so far."""
        return self._evictions

    def check(self) -> None:
        """Recounts everything.

        Raises:
            AssertionError: An invariant is broken.
        """
        with self._lock:
            self._ring.check()
            records = self._ring.records
            if any(record not in self._index.get(record.digest, ()) for record in records):
                raise AssertionError(f"a record of the id cache is not in its index{_BUG}")
            if sum(map(len, self._index.values())) != len(records) or len(records) > self._max_entries:
                raise AssertionError(f"the index of the id cache has another number of entries than its ring{_BUG}")
            if sum(record.size for record in records) != self._nbytes:
                raise AssertionError(f"the records of the id cache do not take the bytes that are counted{_BUG}")

    def _reset(self) -> None:
        self._ring = Ring(self._room, self._max_entries)
        self._index: dict[int, list[Record]] = {}
        self._nbytes = 0

    def _forget(self, record: Record) -> None:
        entries = self._index[record.digest]
        entries.remove(record)
        if not entries:
            del self._index[record.digest]
        self._nbytes -= record.size
        self._evictions += 1

    def _digest(self, key: _Key) -> int:
        text, who = key
        if len(text) > MAX_CHARS:
            return 0  # it is not in here; and to hash it may take long
        digest = self._hash(text)
        return (digest if who is None else digest * 3 + self._hash(who)) & self._mask

    def _find(self, key: _Key, digest: int) -> Record | None:
        return next((record for record in self._index.get(digest, ()) if record.key == key), None)


def _key(text: str, who: str | None) -> _Key:
    if type(text) is not str:
        raise TypeError(f"text must be a str, got {type(text).__name__}")
    if who is not None and type(who) is not str:
        raise TypeError(f"who must be a str or None, got {type(who).__name__}")
    return text, who


def _bytes_of(text: str) -> int:
    """The bytes of a str's characters, of which the widest decides."""
    if text.isascii():
        return len(text)
    widest = ord(max(text))
    return len(text) * (1 if widest < 1 << 8 else 2 if widest < 1 << 16 else 4)
