"""Sharing: what a request that comes may have of those before it: the answer that is kept, or a place in their run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from relay._pure.cache import ABSENT, ResultCache

__all__ = ["SharingBase"]


class SharingBase:
    """What a desk knows of requests that are the same.

    Attributes:
        results: The answers that are kept; None where none are.
        kept: What to keep of an answer.
        epoch: The number of what answers now; requests of different epochs are different.
        misses: Requests that could have been shared and lead a run of their own.
    """

    __slots__ = ("_content_of", "_given", "_lock", "_texts", "epoch", "kept", "misses", "results")

    def __init__(self) -> None:
        self.results: ResultCache | None = None
        self.epoch = self.misses = 0
        self._content_of: Callable[[Any], str | bytes | None] | None = None
        self._texts = False
        self._given: Callable[[Any], Any] = bool
        self.kept: Callable[[Any], tuple[Any, int] | None] | None = None
        self._lock = threading.RLock()  # of what is counted; a signal's handler may count, too

    def open_sharing(
        self,
        content_of: Callable[[Any], str | bytes | None],
        texts: bool,
        results: ResultCache | None,
        given: Callable[[Any], Any],
        kept: Callable[[Any], tuple[Any, int] | None],
    ) -> None:
        """Have `enter` look for requests that are the same.

        Args:
            content_of: What stands for an item when requests are compared; None if it is not shared.
            texts: Whether items stand for themselves.
            results: The answers that are kept.
            given: What to hand out of a kept answer.
            kept: What to keep of an answer, and its bytes; None if it cannot be kept. Never raises.
        """
        self._content_of, self._texts, self.results, self._given, self.kept = content_of, texts, results, given, kept

    def led(self, count: int = 1) -> None:
        """Count those who could have been shared and lead runs of their own."""
        with self._lock:
            self.misses += count

    def find_result(self, digest: int, content: str | bytes, who: object, now_ns: int) -> tuple[Any, int] | None:
        """What to hand out of a kept answer, and the size of the request that it was the first answer to; or None."""
        if self.results is None or (pair := self.results.find(digest, content, who, now_ns)) is ABSENT:
            return None
        value, size = pair
        return self._given(value), size

    def find_leader(self, queue: Any, digest: int, content: str | bytes, who: object, epoch: int) -> tuple[int, Any]:
        """The handle and the ticket of the one whose run may be joined, or ``(-1, None)``."""
        handle, leader = queue.find(digest)
        # `_who` first: it is let go last.
        if leader is None or leader._who is not who or leader._content != content or leader._epoch != epoch:
            return -1, None
        return handle, leader
