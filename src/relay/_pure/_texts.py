"""How the rows of requests that wait for their ids are written: from a tokenizer, or from a cache of what it gave.

Any thread may call any method; each row is looked for and written in one step. The invariant: a request counts for as
many as its row has ids, but for 1 at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relay._pure._requests import Requests
from relay._pure.idcache import MAX_CHARS, MAX_IDS, NOT_WRITTEN, IdCache
from relay._pure.state import as_int64, as_range, slot_of

NOT_KEPT = -3
SEEN = -4


class Texts(Requests):
    """What `RequestQueue` is built on: the rows of requests that are not ready yet."""

    __slots__ = ()

    def write(self, handle: int, ids: Sequence[int], split: int = -1) -> bool:
        """Writes a pinned slot's input ids, as `Arena.write_ids`; their number becomes its cost."""
        with self._lock:
            if not self.arena.write_ids(handle, ids, split):
                return False
            slot = slot_of(handle)
            self.arena.cost[slot] = max(self.arena.length[slot], 1)
            return True

    def write_all(
        self,
        cache: IdCache | None,
        handles: Sequence[int],
        rows: Sequence[Any],
        texts: Sequence[Any],
        whos: Sequence[Any],
        most: int = MAX_IDS,
    ) -> list[int]:
        """Writes what a tokenizer gave into several pinned slots, as `write`, and keeps it in a cache.

        What is kept is kept whatever becomes of the row: its slot may have been given up meanwhile.

        Args:
            cache: Where it is kept, or None.
            handles: The slots.
            rows: For each a tuple of its ids and its split; anything else, such as an error, is not written.
            texts: For each what its ids were made of. Only what `fetch_all` may find is kept.
            whos: For each whose it is, as for `fetch_all`.
            most: Ids that a row may have; longer ones are neither written nor kept.

        Returns:
            For each how many ids it has now; or `NOT_WRITTEN` (-2), and the row is as before: `write` says why.

        Raises:
            TypeError: `cache` is no `IdCache`, or a handle is not an int.
            ValueError: There are not as many of one thing as of another, or `most` is out of range.
        """
        _check(cache, most, len(handles), rows=rows, texts=texts, whos=whos)
        return [
            self._write_one(cache, as_int64("handle", handle), row, text, who, most)
            for handle, row, text, who in zip(handles, rows, texts, whos, strict=True)
        ]

    def _write_one(self, cache: IdCache | None, handle: int, row: Any, text: Any, who: Any, most: int) -> int:
        if type(row) is not tuple or len(row) != 2:
            return NOT_WRITTEN
        ids, split = row
        with self._lock:
            try:
                written = len(ids) <= most and self.write(handle, ids, split)
            except Exception:
                return NOT_WRITTEN
            if cache is not None and len(ids) <= min(most, MAX_IDS) and _is_kept(text, who):
                cache.put(text, who, ids, split)
            return len(ids) if written else NOT_WRITTEN

    def fetch(
        self,
        cache: IdCache,
        handle: int,
        text: str,
        who: str | None = None,
        tentative: bool = False,
        most: int = MAX_IDS,
    ) -> int:
        """Writes a pinned slot's input ids from a cache, as `IdCache.fetch`; their number becomes its cost."""
        _check(cache, most)
        if cache is None:
            raise TypeError("cache must be an IdCache, got NoneType")
        with self._lock:
            length = cache.fetch(self.arena, handle, text, who, tentative, most)
            if length >= 0:
                self.arena.cost[slot_of(handle)] = max(length, 1)
            return length

    def fetch_all(
        self,
        cache: IdCache | None,
        handles: Sequence[int],
        texts: Sequence[Any],
        whos: Sequence[Any],
        tentative: bool = False,
        most: int = MAX_IDS,
    ) -> list[int]:
        """As `fetch` for each of several, but that what cannot be in a cache is let through.

        Args:
            cache: The cache, or None for one in which nothing can be.
            handles: The slots.
            texts: For each what its ids are made of. Only a plain str of at most `MAX_CHARS` characters can be in a
                cache.
            whos: For each whose it is: None or a plain str, or it cannot be in a cache either.
            tentative, most: As for `fetch`.

        Returns:
            For each what `fetch` would have returned; or `NOT_KEPT` (-3) if it cannot be in a cache; or `SEEN` (-4) if
            the same text of the same name stands before it among `texts` and did not come from the cache. Neither is
            counted.

        Raises:
            TypeError: `cache` is no `IdCache`, or the handle of a text that is in it not an int.
            ValueError: As for `write_all`, or the slot of a text that is in the cache is not pinned.
        """
        _check(cache, most, len(handles), texts=texts, whos=whos)
        seen: set[tuple[str, str | None]] = set()
        lengths = []
        for handle, text, who in zip(handles, texts, whos, strict=True):
            if cache is None or not _is_kept(text, who):
                length = NOT_KEPT
            elif (text, who) in seen:
                length = SEEN
            elif (length := self.fetch(cache, handle, text, who, tentative, most)) < 0:
                seen.add((text, who))
            lengths.append(length)
        return lengths


def _is_kept(text: Any, who: Any) -> bool:
    """Whether the ids of a text may be in a cache: it is short enough to be hashed while somebody waits."""
    return type(text) is str and len(text) <= MAX_CHARS and (who is None or type(who) is str)


def _check(cache: Any, most: int, count: int = 0, **lists: Sequence[Any]) -> None:
    as_range("most", most, 0, 2**31 - 1)
    if cache is not None and not isinstance(cache, IdCache):
        raise TypeError(f"cache must be an IdCache, got {type(cache).__name__}")
    for name, each in lists.items():
        if len(each) != count:
            raise ValueError(f"{len(each)} {name} were given for {count} handles; give one for each")
