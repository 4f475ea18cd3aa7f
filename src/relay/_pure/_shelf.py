"""The entries of a result cache: where they stand, and which of them go when there is no room.

Owns a fixed number of slots, two lines of them, and the digests of entries that left lately. It takes no lock: the
cache lets one call in at a time. It runs no code of anybody: what is let go is put into a list of the caller's, who
drops it when all is done. Invariants: a slot is free, or in one line; a digest belongs to one slot, or is remembered in
one place; neither the entries nor their bytes are ever more than was allowed.

Who goes is chosen as S3-FIFO does (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction",
SOSP 2023). A new entry enters a small line, of a tenth of the room. At its end it goes on to the main line if it was
found meanwhile, and else leaves, and its digest is remembered for as long as it takes as many others to leave as there
are slots; one that is put again within that time enters the main line. There, an entry that was found since it was last
looked at goes round once more, for each of up to three finds. So texts that come once, however many, pass through the
small line and touch nothing else. Unlike the paper, one find is enough to leave the small line for the main one (it
asks for two), and no entry makes more than `MOST_TURNS` others go round, so that a call never takes long.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

MOST_HITS = 3
MOST_TURNS = 256
SHARE = 10  # the small line is for one in so many of the slots, and of the bytes
NEVER_NS = 2**63 - 1

_BUG = "; this is a bug in relay"


def same(a: object, b: object) -> bool:
    """Whether two contents, each a str or bytes, are equal, types included."""
    return type(a) is type(b) and a == b


class Shelf:
    """The entries of a cache.

    Attributes:
        nbytes: What the entries cost together.
        evictions: Entries that went to make room.
        expired: Entries that went because their time was over.

    Args:
        max_entries: Slots.
        max_bytes: What the entries may cost together.
    """

    __slots__ = (
        "_cost", "_digests", "_due_ns", "_free", "_hits", "_main", "_next", "_slots", "_small", "_small_bytes",
        "_small_entries", "_small_nbytes", "contents", "evictions", "expired", "max_bytes", "max_entries", "nbytes",
        "values", "whos",
    )  # fmt: skip

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self.max_entries, self.max_bytes = max_entries, max_bytes
        self._small_entries, self._small_bytes = max(max_entries // SHARE, 1), max_bytes // SHARE
        self.evictions = self.expired = 0
        self._start()

    def _start(self) -> None:
        n = self.max_entries
        self.contents: list[Any] = [None] * n
        self.whos: list[Any] = [None] * n
        self.values: list[Any] = [None] * n
        self._cost, self._due_ns, self._hits = [0] * n, [0] * n, [0] * n
        self._free = list(range(n))
        self._slots: dict[int, int] = {}  # digest → slot of its entry, or n and more: where it is remembered
        self._digests: list[int | None] = [None] * (2 * n)
        self._next = 0  # of the places for digests of entries that have left, the one that is used next
        self._small: OrderedDict[int, None] = OrderedDict()  # slots, the oldest first
        self._main: OrderedDict[int, None] = OrderedDict()
        self.nbytes = self._small_nbytes = 0

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def look(self, digest: int, content: str | bytes, who: object | None) -> int:
        """The slot of an entry, or -1. A digest finds it; its content and its `who` decide."""
        slot = self._slots.get(digest, -1)
        if 0 <= slot < self.max_entries and self.whos[slot] is who and same(self.contents[slot], content):
            return slot
        return -1

    def is_over(self, slot: int, now_ns: int) -> bool:
        """Whether the time of an entry is over."""
        return self._due_ns[slot] <= now_ns and self._due_ns[slot] != NEVER_NS

    def touch(self, slot: int) -> None:
        """Note that an entry was found."""
        if self._hits[slot] < MOST_HITS:
            self._hits[slot] += 1

    def place(
        self,
        digest: int,
        content: str | bytes,
        who: object | None,
        value: object,
        cost: int,
        due_ns: int,
        now_ns: int,
        gone: list[object],
    ) -> None:
        """Enter a value, in place of what stands under its digest, and after making room for it.

        Args:
            digest: What finds it.
            content: What it is the answer to.
            who: What else must be the same.
            value: The answer.
            cost: In bytes; no more than the share of the small line.
            due_ns: When its time is over; `NEVER_NS` for no limit.
            now_ns: The time.
            gone: Takes what is let go.
        """
        slot = self._slots.get(digest, -1)
        main, hits = False, 0
        if slot >= self.max_entries:
            self._digests[slot] = None
            del self._slots[digest]
            main = True
        elif slot >= 0:
            if self.look(digest, content, who) >= 0:
                main, hits = slot in self._main, self._hits[slot]
            else:
                self.evictions += 1
            self.remove(slot, gone)
        self._make_room(cost, now_ns, gone)
        slot = self._free.pop()
        self._slots[digest], self._digests[slot] = slot, digest
        self._cost[slot], self._due_ns[slot], self._hits[slot] = cost, due_ns, hits
        self.contents[slot], self.whos[slot], self.values[slot] = content, who, value
        self.nbytes += cost
        if main:
            self._main[slot] = None
        else:
            self._small[slot] = None
            self._small_nbytes += cost

    def remove(self, slot: int, gone: list[object]) -> None:
        """Take out an entry."""
        gone.append(self.contents[slot])
        gone.append(self.whos[slot])
        gone.append(self.values[slot])
        digest = self._digests[slot]
        assert digest is not None
        del self._slots[digest]
        self._digests[slot] = None
        self.contents[slot] = self.whos[slot] = self.values[slot] = None
        self.nbytes -= self._cost[slot]
        if slot in self._small:
            del self._small[slot]
            self._small_nbytes -= self._cost[slot]
        else:
            del self._main[slot]
        self._free.append(slot)

    def clear(self, gone: list[object]) -> None:
        """Take out all entries, and forget who has left."""
        gone += (self.contents, self.whos, self.values)
        self._start()

    def _make_room(self, cost: int, now_ns: int, gone: list[object]) -> None:
        turns = MOST_TURNS
        while len(self) == self.max_entries or self.nbytes + cost > self.max_bytes:
            full = len(self._small) >= self._small_entries or self._small_nbytes + cost > self._small_bytes
            from_small = bool(self._small) and (full or not self._main)
            line = self._small if from_small else self._main
            slot = next(iter(line))
            if self.is_over(slot, now_ns):
                self.expired += 1
                self.remove(slot, gone)
            elif self._hits[slot] and turns:
                turns -= 1
                if from_small:
                    del self._small[slot]
                    self._small_nbytes -= self._cost[slot]
                    self._main[slot] = None
                    self._hits[slot] = 0
                else:
                    self._main.move_to_end(slot)
                    self._hits[slot] -= 1
            else:
                turns = MOST_TURNS
                digest = self._digests[slot]
                assert digest is not None
                self.evictions += 1
                self.remove(slot, gone)
                if from_small:
                    self._remember(digest)

    def _remember(self, digest: int) -> None:
        place = self.max_entries + self._next
        oldest = self._digests[place]
        if oldest is not None:
            del self._slots[oldest]
        self._slots[digest], self._digests[place] = place, digest
        self._next = (self._next + 1) % self.max_entries

    def check(self) -> None:
        """Recount everything.

        Raises:
            AssertionError: An invariant is broken.
        """
        n = self.max_entries
        lined = [*self._small, *self._main]
        if sorted([*lined, *self._free]) != list(range(n)):
            raise AssertionError(f"cache: a slot is in two lines, or in none{_BUG}")
        if sum(self._cost[slot] for slot in self._small) != self._small_nbytes:
            raise AssertionError(f"cache: the bytes of the small line are miscounted{_BUG}")
        if sum(self._cost[slot] for slot in lined) != self.nbytes or self.nbytes > self.max_bytes:
            raise AssertionError(f"cache: the bytes are miscounted, or too many{_BUG}")
        if any(self._digests[slot] is None or type(self.contents[slot]) not in (str, bytes) for slot in lined):
            raise AssertionError(f"cache: an entry has no digest, or no content{_BUG}")
        for held in (self._digests, self.contents, self.whos, self.values):
            if any(held[slot] is not None for slot in self._free):
                raise AssertionError(f"cache: a free slot holds something{_BUG}")
        known = {digest: place for place, digest in enumerate(self._digests) if digest is not None}
        if known != self._slots or any(not 0 <= self._hits[slot] <= MOST_HITS for slot in lined):
            raise AssertionError(f"cache: a digest does not find its entry{_BUG}")
