"""Tokenising: from the items of some requests to the rows of their slots, on a helper thread.

Called from several threads at once, each with requests of its own, whose slots are pinned. Every request given is
either handed on as ready, or fails by itself. What a tokenizer gave is kept for the next request of the same text, and
a burst of one text is encoded once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from relay._backend import idcache, queue
from relay.errors import Overloaded, TooLarge
from relay.knownids import KnownIds
from relay.runs import wanted
from relay.ticket import Replies, Ticket
from relay.tokenizer import Encoded, Tokenizer

log = logging.getLogger("relay")

LONG = 8_192
"""A text of more characters is tokenised by itself, after the shorter ones of its priority."""

_ANY = 2**31 - 1


class Tokenising:
    """What one desk's helpers do with a tokenizer.

    Args:
        tokenizer: Turns items into input ids.
        requests: The queue, which holds the rows.
        known: The ids of texts that were tokenised before.
        name: For messages.
        most: Ids that a row may have; None for any number.
        ready: Called with those whose rows are written, several times.
        fail: Called with one that has failed, its error, and the replies.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        requests: queue.RequestQueue,
        known: KnownIds,
        name: str,
        most: int | None,
        ready: Callable[[Sequence[Ticket[Any]]], None],
        fail: Callable[[Ticket[Any], BaseException, Replies], None],
    ) -> None:
        self._tokenizer = tokenizer
        self._requests = requests
        self._known = known
        self._name = name
        self._most = most
        self._ready = ready
        self._fail = fail

    def tokenise(self, tickets: list[Ticket[Any]], items: list[Any], replies: Replies) -> None:
        """Write the row of each of `tickets` from its one of `items`. Short texts together and first, for nobody is to
        wait for another's long one."""
        lengths = list(map(chars, items))
        if max(lengths) <= LONG:
            self._part(tickets, items, replies)
            return
        short = [place for place, length in enumerate(lengths) if length <= LONG]
        if short:
            self._part([tickets[place] for place in short], [items[place] for place in short], replies)
        for ticket, item, length in zip(tickets, items, lengths, strict=True):
            if length > LONG:
                self._part([ticket], [item], replies)

    def _part(self, tickets: list[Ticket[Any]], items: list[Any], replies: Replies) -> None:
        cache = self._known.cache()
        known: list[Ticket[Any]] = []
        new: list[Ticket[Any]] = []
        texts: list[Any] = []  # of `new`
        same: list[Ticket[Any]] = []
        again: list[Any] = []  # the texts of `same`
        for ticket, item, length in zip(
            tickets, items, self._known.copy_all(cache, tickets, items, False), strict=True
        ):
            if length >= 0:
                known.append(ticket)
            elif length == queue.SEEN:  # a burst of one text is encoded once
                same.append(ticket)
                again.append(item)
            else:
                new.append(ticket)
                texts.append(item)
        self._ready(known)
        if not new or (encoded := self._encoded(new, texts, same, replies)) is None:
            return
        if self._known.cache() is not cache:  # the tokenizer has changed:
            cache = None  # nobody can tell whether it was the old one or the new one that gave these
        ready = self._written(cache, new, texts, encoded, replies)
        if same:
            ready += self._copied(cache, same, again, replies)
        self._ready(ready)

    def _copied(
        self, cache: idcache.IdCache | None, tickets: list[Ticket[Any]], items: list[Any], replies: Replies
    ) -> list[Ticket[Any]]:
        """Write the rows of those whose texts have just been kept. The text of another is bad, or was not kept, or
        there is no room for it: that one is encoded by itself."""
        lengths = self._known.copy_all(cache, tickets, items, False)
        ready = [ticket for ticket, length in zip(tickets, lengths, strict=True) if length >= 0]
        if len(ready) < len(tickets):
            places = [place for place, length in enumerate(lengths) if length < 0]
            left, texts = [tickets[place] for place in places], [items[place] for place in places]
            encoded = self._encoded(left, texts, (), replies)
            if encoded is not None:
                ready += self._written(None, left, texts, encoded, replies)
        return ready

    def _encoded(
        self, tickets: Sequence[Ticket[Any]], items: list[Any], same: Sequence[Ticket[Any]], replies: Replies
    ) -> Sequence[Encoded | Exception] | None:
        """What the tokenizer makes of items; None if it breaks: then they fail, and those that are the same."""
        try:
            encoded = self._tokenizer.encode(items)
            if len(encoded) != len(items):
                raise RuntimeError(f"the tokenizer returned {len(encoded)} results for {len(items)} items")
            return encoded
        except BaseException as error:  # others of the chunk are ready by now: this is no error of theirs
            for ticket in (*tickets, *same):
                self._fail(ticket, error, replies)
            log.exception("relay: the tokenizer of %r failed on a chunk of %d items", self._name, len(items))
            return None

    def _written(
        self,
        cache: idcache.IdCache | None,
        tickets: list[Ticket[Any]],
        items: list[Any],
        encoded: Sequence[Encoded | Exception],
        replies: Replies,
    ) -> list[Ticket[Any]]:
        """Write the rows, and keep them. Those that are ready; the others have failed."""
        lengths = self._requests.write_all(
            cache,
            [ticket._handle for ticket in tickets],
            encoded,
            items,
            [ticket.tenant for ticket in tickets],
            _ANY if self._most is None else self._most,
        )
        ready: list[Ticket[Any]] = []
        for ticket, length, ids in zip(tickets, lengths, encoded, strict=True):
            if length >= 0:
                ticket.size = length
                ready.append(ticket)
            elif self._written_at_last(ticket, ids, replies):
                ready.append(ticket)
        return ready

    def _written_at_last(self, ticket: Ticket[Any], encoded: Encoded | Exception, replies: Replies) -> bool:
        """Write a row by itself, for `write_all` did not. False if the item has failed."""
        try:
            if isinstance(encoded, BaseException):
                raise encoded
            ids, split = encoded
            if self._most is not None and len(ids) > self._most:
                raise TooLarge(
                    f"the item has {len(ids)} input ids, but a batch may have at most max_batch_tokens={self._most}; "
                    "shorten it"
                )
            ticket.size = len(ids)
            if not self._requests.write(ticket._handle, ids, split) and wanted(ticket):
                raise Overloaded(
                    f"no room for {len(ids)} input ids beside those of the requests in the queue of {self._name!r}; "
                    "retry later or raise Limits.max_ids",
                    reason="queue_full",
                )
        except BaseException as error:
            self._fail(ticket, error, replies)
            return False
        return True


def chars(item: Any) -> int:
    """Characters of an item that is to be encoded."""
    if isinstance(item, str):
        return len(item)
    if isinstance(item, (tuple, list)) and len(item) == 2:  # noqa: UP038  # a union would take longer
        return sum(len(part) for part in item if isinstance(part, str))
    return 0
