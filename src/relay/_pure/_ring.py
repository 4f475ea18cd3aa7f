"""Where an id cache keeps its records: in a ring of bytes, in the order in which they were written.

Owns the records and their places; the cache that is built on it serialises the calls. Invariant: from the oldest to the
newest they lie one behind the other, without a gap but the one at the end of the ring.
"""

from __future__ import annotations

from array import array
from collections import deque

SAVED, SAVED_BYTES = 64, 65_536  # records, and their bytes, that are written anew at most to make room for one

_BUG = "; this is a bug in relay"


class Record:
    """One text.

    Attributes:
        key: The text, and whose it is.
        digest: What the index knows it by.
        ids, split: Its input ids, and the index of the first one of its second segment, or -1.
        size: Bytes that it takes of the ring.
        at: Its place there.
        hit: Whether it has been asked for since it was written.
    """

    __slots__ = ("at", "digest", "hit", "ids", "key", "size", "split")

    def __init__(self, key: tuple[str, str | None], digest: int, ids: array[int], split: int, size: int) -> None:
        self.key, self.digest, self.ids, self.split, self.size = key, digest, ids, split, size
        self.at, self.hit = -1, False


class Ring:
    """A ring of so many bytes.

    Args:
        room: Bytes.
        most: Records in it at most.

    Attributes:
        records: The oldest first.
    """

    __slots__ = ("_end", "_head", "_most", "_room", "_tail", "_wrapped", "records")

    def __init__(self, room: int, most: int) -> None:
        self._room, self._most = room, most
        self.records: deque[Record] = deque()
        # The records lie from tail to head or, once the head has begun anew at 0, from tail to end and from 0 to head.
        self._tail = self._head = self._end = 0
        self._wrapped = False

    def make_room(self, size: int) -> list[Record]:
        """Drop the oldest until one more of `size` bytes finds room at the head: those that were dropped."""
        gone: list[Record] = []
        saved = saved_bytes = 0
        while True:
            full = len(self.records) == self._most
            if not full and (self._tail if self._wrapped else self._room) - self._head >= size:
                return gone
            if not full and not self._wrapped:
                self._wrap()
                continue
            oldest = self.records.popleft()
            save = oldest.hit and saved < SAVED and saved_bytes + oldest.size <= SAVED_BYTES
            if save and not self._wrapped and self._room - self._head < oldest.size:
                self._wrap()
            self._tail += oldest.size
            if save:
                saved, saved_bytes = saved + 1, saved_bytes + oldest.size
                oldest.hit = False
                self.append(oldest)  # over its own old place, at worst
            else:
                gone.append(oldest)
            self._settle()

    def append(self, record: Record) -> None:
        """Write a record at the head, where there is room for it."""
        record.at = self._head
        self._head += record.size
        self.records.append(record)

    def check(self) -> None:
        """Recounts everything.

        Raises:
            AssertionError: An invariant is broken.
        """
        at, wrapped = self._tail, self._wrapped
        for record in self.records:
            if record.at != at:
                raise AssertionError(f"a record of the id cache is not behind the one before it{_BUG}")
            at += record.size
            if wrapped and at == self._end:
                at, wrapped = 0, False
        if at != self._head or wrapped or not 0 <= at <= (self._tail if self._wrapped else self._room):
            raise AssertionError(f"the records of the id cache do not end where the next one begins{_BUG}")

    def _wrap(self) -> None:
        """Begin anew at the start of the ring."""
        self._end, self._head, self._wrapped = self._head, 0, True
        self._settle()

    def _settle(self) -> None:
        """Bring the tail to the start of the ring with the last record before its end."""
        if self._wrapped and self._tail == self._end:
            self._tail, self._wrapped = 0, False
        if not self._wrapped and self._tail == self._head:
            self._tail = self._head = 0
