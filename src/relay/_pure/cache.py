"""The answers of earlier requests, kept for those that ask the same again.

A `ResultCache` owns its entries, bounded by number and by bytes; each holds a strong reference to its content, to what
it belongs to, and to its answer. Any thread may call any method, and each call is one step for all others. It reads no
clock. Invariants: an answer is given only for content that is equal in full and for the very same `who`, whatever the
digests are; after each call both bounds hold; what was put under an earlier epoch is never found.

Which entries go when there is no room is told in `_shelf`: a text that comes once displaces none that is asked for
again and again. What is let go is dropped when all is done and the lock is open, for finalisers may run anything. Where
the collector runs one in the middle of a call, and it calls the same cache, it finds nothing there and nothing is kept
of what it puts; neither is counted.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from relay._pure._shelf import NEVER_NS, SHARE, Shelf
from relay._pure.state import as_int64, as_range

__all__ = ["ABSENT", "ENTRY_BYTES", "MAX_BYTES", "MAX_ENTRIES", "MIN_BYTES", "ResultCache"]

MAX_ENTRIES = 1 << 21
MAX_BYTES = 1 << 62
ENTRY_BYTES = 148
"""What an entry costs beside content and answer, at most, in the tables of the native side: 24 for its digest and 24
for that of one that has left, 43 for finding both, 32 for its fields, 24 for three references. The lists and dicts of
this side cost more; it counts the same, for both sides are to keep the same answers."""

MIN_BYTES = SHARE * ENTRY_BYTES
"""With less room, no entry would be small enough to be kept."""


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""What `ResultCache.find` answers where it has nothing: itself and nothing else, for None may be an answer."""


class ResultCache:
    """Keeps answers by their content.

        value = cache.find(digest, content, who, now_ns)
        if value is ABSENT:
            epoch = cache.epoch             # before the work, so that an answer of the old model is not kept
            value = ...
            cache.put(digest, content, who, value, nbytes, epoch, now_ns)

    Two contents with one digest are never both here: the later one takes the place of the earlier. The tables for all
    entries are made at once.

    Args:
        max_entries: How many answers it keeps, 1 to `MAX_ENTRIES`.
        max_bytes: What they may cost together, `ENTRY_BYTES` for each included; `MIN_BYTES` to `MAX_BYTES`. One that
            costs more than a tenth of it is not kept.
        ttl_ns: How long an answer may be given after it was put, in ns; 0 for no limit.

    Raises:
        TypeError: An argument is not an int.
        ValueError: An argument is out of range.
        OverflowError: An argument does not fit in 64 bits.
    """

    __slots__ = (
        "_epoch", "_hits", "_inside", "_limit", "_lock", "_misses", "_rejected", "_shelf", "_spoilt", "_ttl_ns",
    )  # fmt: skip

    def __init__(self, max_entries: int, max_bytes: int, ttl_ns: int = 0) -> None:
        max_entries = as_range("max_entries", max_entries, 1, MAX_ENTRIES)
        max_bytes = as_range("max_bytes", max_bytes, MIN_BYTES, MAX_BYTES)
        self._ttl_ns = as_range("ttl_ns", ttl_ns, 0, NEVER_NS)
        self._shelf = Shelf(max_entries, max_bytes)
        self._limit = max_bytes // SHARE
        self._epoch = self._hits = self._misses = self._rejected = 0
        # Re-entrant, for a finaliser that runs inside a call may call again; `_inside` tells it to keep off.
        self._lock = threading.RLock()
        self._inside = self._spoilt = False

    def find(self, digest: int, content: str | bytes, who: object | None, now_ns: int) -> Any:
        """The answer that is kept for a content, or `ABSENT`.

        One whose time is over is let go, and not given.

        Args:
            digest: A number that is the same for equal contents, as `Dedup.hash` gives; 0 to ``2**128 - 1``. It only
                finds candidates.
            content: What is asked; compared in full, types included.
            who: What else must be the same, by identity: an object that stands for parameters and tenant, or None.
            now_ns: The time.

        Raises:
            TypeError: `digest` or `now_ns` is not an int, or `content` neither a str nor bytes; no subclass of these.
            OverflowError: `digest` does not fit in 128 bits, or `now_ns` not in 64.
        """
        digest, now_ns = _digest_of(digest, content, who), as_int64("now_ns", now_ns)
        gone: list[object] = []
        with self._lock:
            if self._inside:
                return ABSENT
            self._inside = True
            try:
                shelf = self._shelf
                slot = shelf.look(digest, content, who)
                if slot >= 0 and shelf.is_over(slot, now_ns):
                    shelf.expired += 1
                    shelf.remove(slot, gone)
                    slot = -1
                if slot < 0:
                    self._misses += 1
                    return ABSENT
                self._hits += 1
                shelf.touch(slot)
                return shelf.values[slot]
            finally:
                self._leave(gone)

    def put(
        self,
        digest: int,
        content: str | bytes,
        who: object | None,
        value: object,
        nbytes: int,
        epoch: int,
        now_ns: int,
    ) -> bool:
        """Keep an answer, in place of an earlier one to the same.

        Args:
            digest: As for `find`.
            content: As for `find`.
            who: As for `find`.
            value: The answer; it is given out as it is, so nobody may change it.
            nbytes: What content and value cost, in bytes; 0 to `MAX_BYTES`.
            epoch: What `epoch` was before the work began.
            now_ns: The time.

        Returns:
            Whether it is kept. False, with nothing changed, if the epoch is over, or if with `ENTRY_BYTES` it costs
            more than a tenth of `max_bytes`.

        Raises:
            TypeError: As for `find`, or `nbytes` or `epoch` is not an int.
            OverflowError: As for `find`, or `nbytes` or `epoch` does not fit in 64 bits.
            ValueError: `nbytes` is out of range.
        """
        digest = _digest_of(digest, content, who)
        cost = as_range("nbytes", nbytes, 0, MAX_BYTES) + ENTRY_BYTES
        epoch, now_ns = as_int64("epoch", epoch), as_int64("now_ns", now_ns)
        due_ns = NEVER_NS if not self._ttl_ns else min(now_ns + self._ttl_ns, NEVER_NS)
        gone: list[object] = []
        with self._lock:
            if self._inside:
                return False
            self._inside = True
            try:
                if epoch != self._epoch or cost > self._limit:
                    self._rejected += 1
                    return False
                self._shelf.place(digest, content, who, value, cost, due_ns, now_ns, gone)
                return True
            finally:
                self._leave(gone)

    def invalidate(self) -> None:
        """Begin the next epoch: all answers go, and those that are on their way are not kept when they come."""
        gone: list[object] = []
        with self._lock:
            self._epoch += 1
            self._spoilt = True
            if not self._inside:
                self._inside = True
                self._leave(gone)

    def _leave(self, gone: list[object]) -> None:
        if self._spoilt:
            self._spoilt = False
            self._shelf.clear(gone)
        self._inside = False

    @property
    def epoch(self) -> int:
        """How often it was invalidated."""
        return self._epoch

    @property
    def hits(self) -> int:
        """How often `find` found an answer."""
        return self._hits

    @property
    def misses(self) -> int:
        """How often it found none."""
        return self._misses

    @property
    def evictions(self) -> int:
        """Answers that went to make room for others."""
        return self._shelf.evictions

    @property
    def rejected(self) -> int:
        """Answers that `put` did not keep: too large, or of an epoch that is over."""
        return self._rejected

    @property
    def expired(self) -> int:
        """Answers that went because their time was over: noticed when they were asked for, or when room was made."""
        return self._shelf.expired

    @property
    def nbytes(self) -> int:
        """What all answers cost now, `ENTRY_BYTES` for each included."""
        return self._shelf.nbytes

    @property
    def max_entries(self) -> int:
        """How many answers it keeps; never changes."""
        return self._shelf.max_entries

    @property
    def max_bytes(self) -> int:
        """What they may cost together; never changes."""
        return self._shelf.max_bytes

    @property
    def ttl_ns(self) -> int:
        """How long an answer may be given, or 0; never changes."""
        return self._ttl_ns

    def __len__(self) -> int:
        """How many answers it has, those included whose time is over unnoticed."""
        return len(self._shelf)

    def check(self) -> None:
        """Recount everything.

        Raises:
            AssertionError: An invariant is broken.
        """
        with self._lock:
            self._shelf.check()


def _digest_of(digest: int, content: str | bytes, who: object | None) -> int:
    """What an entry is looked for by: one content may have an answer for each `who`, so each has a digest of its own.
    The object cannot be another's while an entry holds it."""
    if not isinstance(digest, int):
        raise TypeError(f"digest must be an int, got {type(digest).__name__}")
    if not 0 <= digest < 1 << 128:
        raise OverflowError(f"digest {digest} does not fit in 128 bits without a sign")
    if type(content) not in (str, bytes):
        raise TypeError(f"content must be a str or bytes, got {type(content).__name__}")
    return int(digest) ^ id(who)
