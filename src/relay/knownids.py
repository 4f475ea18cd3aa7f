"""The input ids of texts that one relay has tokenised before: which texts are kept, and for which tokenizer.

Any thread may call anything. What a tokenizer gave is served only while its fingerprint is what it was then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relay._backend import idcache, queue
from relay.limits import Limits
from relay.ticket import Ticket
from relay.tokenizer import Tokenizer


class KnownIds:
    """The cache of one relay's input ids.

    Args:
        tokenizer: Whose ids; None where the model gets the items.
        requests: The queue, which holds the rows.
        limits: Sizes.
    """

    def __init__(self, tokenizer: Tokenizer | None, requests: queue.RequestQueue, limits: Limits) -> None:
        self._tokenizer = tokenizer if limits.ids_cache_bytes else None
        self._fetch = requests.fetch
        self._fetch_all = requests.fetch_all
        self._bytes = limits.ids_cache_bytes
        self._most = min(limits.max_batch_tokens or idcache.MAX_IDS, idcache.MAX_IDS)
        self._current: tuple[str, idcache.IdCache] | None = None

    def cache(self) -> idcache.IdCache | None:
        """What is known of the tokenizer as it is now; None if nothing is kept."""
        if self._tokenizer is None:
            return None
        fingerprint, current = getattr(self._tokenizer, "fingerprint", None), self._current
        if fingerprint is None:
            return None  # nobody could tell when what is known is out of date
        if current is None or current[0] != fingerprint:
            # A new one, for a helper may be about to put into the old one what the tokenizer gave it before.
            self._current = current = (fingerprint, idcache.IdCache(self._bytes))
        return current[1]

    def copy(self, ticket: Ticket[Any], item: Any) -> bool:
        """Write a ticket's row from the cache. False if it is left to the tokenizer, which also knows how to fail; it
        will be asked for once more, so that is not counted.

        Args:
            ticket: Its slot must be pinned.
            item: What would be tokenised.
        """
        tenant = ticket.tenant
        if not is_kept(item, tenant) or (cache := self.cache()) is None:
            return False
        length = self._fetch(cache, ticket._handle, item, tenant, True, self._most)
        if length < 0:
            return False
        ticket.size = length
        return True

    def copy_all(
        self, cache: idcache.IdCache | None, tickets: Sequence[Ticket[Any]], items: list[Any], tentative: bool
    ) -> list[int]:
        """As `copy` for each of several, from a cache as `cache` gave it.

        Args:
            cache: The cache, or None if nothing is kept.
            tickets: As for `copy`.
            items: Likewise, one for each.
            tentative: They will be asked for once more if they are not here.

        Returns:
            For each how many ids it has; or as `RequestQueue.fetch_all`, and it is left to the tokenizer.
        """
        handles, whos = [ticket._handle for ticket in tickets], [ticket.tenant for ticket in tickets]
        lengths = self._fetch_all(cache, handles, items, whos, tentative, self._most)
        for ticket, length in zip(tickets, lengths, strict=True):
            if length >= 0:
                ticket.size = length
        return lengths

    def told(self) -> dict[str, int]:
        """What has been counted, by its name in a `RelaySnapshot`; from 0 again for a tokenizer that has changed."""
        if self._current is None:
            return {}
        cache = self._current[1]
        return {
            "ids_hits": cache.hits,
            "ids_misses": cache.misses,
            "ids_evictions": cache.evictions,
            "ids_bytes": cache.nbytes,
        }


def is_kept(item: Any, tenant: object) -> bool:
    """Whether the ids of an item may be in the cache: a text, and short enough to be hashed on the caller's thread."""
    return type(item) is str and len(item) <= idcache.MAX_CHARS and (tenant is None or type(tenant) is str)
