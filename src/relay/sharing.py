"""Sharing: what a user says of requests that are the same, checked once, and what a relay makes of it.

What is kept belongs to one process: a child after a fork begins with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from relay._backend import cache, state
from relay.alike import Identities, as_share_ignore
from relay.clock import limit_ns
from relay.desk import Desk
from relay.limits import Limits
from relay.merging import Merger

BYTES_AN_ENTRY = 512
"""For each so many bytes one answer may be kept, unless told otherwise: a short text and its answer take about that."""


class Sharing(NamedTuple):
    """What requests share.

    Attributes:
        merge: Whether they share anything.
        key: Stands for an item when requests are compared; None compares the items.
        share_ignore: Parameters that may differ.
        share_across_tenants: Whether tenants may.
        entries, nbytes, ttl_ns: As for `cache.ResultCache`; `nbytes` 0 keeps nothing.
    """

    merge: bool
    key: Callable[[Any], Any] | None
    share_ignore: tuple[str, ...]
    share_across_tenants: bool
    entries: int
    nbytes: int
    ttl_ns: int

    def merger(self, desk: Desk) -> Merger | None:
        """What finds the answers that requests of this desk share; None if they share nothing."""
        if not self.merge:
            return None
        results = cache.ResultCache(self.entries, self.nbytes, self.ttl_ns) if self.nbytes else None
        return Merger(desk, self.key, Identities(self.share_ignore, self.share_across_tenants), results)


def as_sharing(
    model: Callable[..., Any],
    *,
    merge: bool | None,
    key: Callable[[Any], Any] | None,
    share_ignore: Sequence[str],
    share_across_tenants: bool,
    cache_bytes: int,
    cache_ttl: float | None,
    limits: Limits,
) -> Sharing:
    """What requests to a model share.

    Raises:
        TypeError: A number is none, or `share_ignore` is one name.
        ValueError: A number is out of range, or answers are to be kept that may not be shared.
    """
    given = state.whole(cache_bytes)
    if given is None or isinstance(cache_bytes, bool):
        raise TypeError(f"cache_bytes must be a whole number of bytes, such as 64 << 20, got {cache_bytes!r}")
    if given and not cache.MIN_BYTES <= given <= cache.MAX_BYTES:
        raise ValueError(f"cache_bytes must be 0, or {cache.MIN_BYTES} to {cache.MAX_BYTES}, got {cache_bytes}")
    ttl_ns = limit_ns(cache_ttl, "cache_ttl")
    if ttl_ns == 0:
        raise ValueError("cache_ttl must be more than 0 seconds, or None for no limit; cache_bytes=0 keeps nothing")
    if ttl_ns is not None and not given:
        raise ValueError("cache_ttl says how long answers are kept, but cache_bytes=0 keeps none; give cache_bytes")
    if given and merge is False:
        raise ValueError("cache_bytes keeps answers for others, which merge=False forbids; leave one of them out")
    if merge is None:
        merge = bool(given) or key is not None or getattr(model, "deterministic", False) is True
    entries = limits.cache_entries or min(max(given // BYTES_AN_ENTRY, 1), cache.MAX_ENTRIES)
    return Sharing(merge, key, as_share_ignore(share_ignore), share_across_tenants, entries, given, ttl_ns or 0)
