"""Preparing: what is done to an item on helper threads, before it is ready for a batch.

First the user's own ``prepare``, one item at a time and in the context the item was submitted in; then the tokenizer,
from several items to the rows of their slots. Owns the helper threads, and the cache of input ids: a text that is in it
is ready at once, on the thread that submits it. A slot is pinned from its admission until it is ready; a request that
is cancelled or expires meanwhile is freed by whoever unpins it, here. An item that cannot be prepared fails by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from relay._backend import idcache, queue
from relay.clock import Clock
from relay.errors import Overloaded, TooLarge
from relay.helpers import Helpers
from relay.knownids import KnownIds, is_kept
from relay.limits import Limits
from relay.outputs import member_error
from relay.runs import all_of, followers, wanted
from relay.stats import Counts
from relay.ticket import Replies, Ticket, settle
from relay.tokenizer import Encoded, Tokenizer

log = logging.getLogger("relay")

CHUNK_CHARS = 16_384
"""Texts tokenised together have no more characters than this, but for the last of them."""

_Pair = tuple[Ticket[Any], Any]  # a ticket, and what is tokenised: its item, or what was prepared

LONG = 8_192
"""A text of more characters is tokenised by itself, after the shorter ones of its priority."""


class Preparing:
    """The helper threads of one desk.

    Args:
        prepare: Makes of an item what is tokenised, or what the model gets. None leaves it as it is.
        tokenizer: Turns items into input ids. None where the model gets the items.
        requests: The queue, which holds the rows.
        name: For threads and messages.
        limits: Sizes.
        clock: What all time is read from.
        counts: Where items that fail are counted, and what the cache has counted is told.
        settled: Called after each chunk with those it has ended.
        ready: Called with the priority of each that is ready to run now.
    """

    def __init__(
        self,
        prepare: Callable[[Any], Any] | None,
        tokenizer: Tokenizer | None,
        requests: queue.RequestQueue,
        name: str,
        limits: Limits,
        clock: Clock,
        counts: Counts,
        settled: Callable[[Replies], None],
        ready: Callable[[int], object],
    ) -> None:
        self._prepare = prepare
        self._tokenizer = tokenizer
        self._requests = requests
        self._name = name
        self._most = limits.max_batch_tokens
        self._clock = clock
        self._counts = counts
        self._settled = settled
        self._ready = ready
        self._known = KnownIds(tokenizer, requests, limits)
        self._early = tokenizer is not None and prepare is None
        counts.more = self._known.told
        # Several texts are tokenised faster together; items that are only prepared gain nothing by waiting for others.
        chunk, most = (limits.encode_chunk, CHUNK_CHARS) if tokenizer is not None else (1, 0)
        self.helpers = Helpers(limits.helpers, f"{name}-helper", chunk, self._work, self._failed, most)

    def put(self, ticket: Ticket[Any]) -> None:
        """Have a ticket prepared that has been admitted. Never blocks: a text that is in the cache is ready at once,
        all else is left to the helpers."""
        if self._early and self._known.copy(ticket, ticket._item, True):
            ticket._ready_ns = now_ns = self._clock.now_ns()
            self._requests.ready(ticket._handle, now_ns)
            self._ready(ticket.priority)
        else:
            self._hand_over(ticket)

    def put_all(self, tickets: Sequence[Ticket[Any]]) -> None:
        """As `put`. All rows are written first, for a lane that is woken by the first ought to find the others, too."""
        if len(tickets) == 1:
            self.put(tickets[0])
            return
        known: list[Ticket[Any]] = []
        left: list[Ticket[Any]] = []
        for ticket in tickets:
            (known if self._early and self._known.copy(ticket, ticket._item, True) else left).append(ticket)
        self._all_ready(known)
        for ticket in left:
            self._hand_over(ticket)

    def _hand_over(self, ticket: Ticket[Any]) -> None:
        item = ticket._item
        chars = 0 if self._tokenizer is None else len(item) if type(item) is str else _chars(item)
        self.helpers.put(ticket, 2 * ticket.priority + (chars > LONG), chars)

    def reserve(self, ticket: Ticket[Any]) -> int:
        """How many input ids to reserve room for."""
        if self._tokenizer is None:
            return 0
        return self._tokenizer.reserve(ticket._item) if self._prepare is None else self._tokenizer.max_length

    def _work(self, tickets: list[Ticket[Any]]) -> None:
        replies = Replies()
        live: list[Ticket[Any]] = []
        for ticket in tickets:
            if ticket._done and not wanted(ticket):
                self._requests.unbind(ticket._handle)
                if not wanted(ticket):  # nobody joined before it was closed
                    self._give_up(ticket)
                    continue
            if self._prepare is None or self._prepared(ticket, self._prepare, replies):
                live.append(ticket)
        try:
            if self._tokenizer is not None and live:
                self._tokenise(live, self._tokenizer, replies)
        finally:
            self._settled(replies)

    def _prepared(self, ticket: Ticket[Any], prepare: Callable[[Any], Any], replies: Replies) -> bool:
        """Prepare one item. False if it has failed, or is ready now."""
        try:
            ticket._prepared = _context_of(ticket).run(prepare, ticket._item)
        except BaseException as error:
            self._fail(ticket, error, replies)
            return False
        if self._tokenizer is not None:
            return True
        ticket._ready_ns = now_ns = self._clock.now_ns()
        self._requests.ready(ticket._handle, now_ns)
        self._ready(ticket.priority)
        return False

    def _tokenise(self, tickets: list[Ticket[Any]], tokenizer: Tokenizer, replies: Replies) -> None:
        """Short texts together and first, for nobody is to wait for another's long one."""
        pairs = [(ticket, ticket._item if self._prepare is None else ticket._prepared) for ticket in tickets]
        long = [pair for pair in pairs if _chars(pair[1]) > LONG]
        if long:
            pairs = [pair for pair in pairs if _chars(pair[1]) <= LONG]
        for part in (pairs, *([pair] for pair in long)):
            if part:
                self._tokenise_part(part, tokenizer, replies)

    def _tokenise_part(self, pairs: list[_Pair], tokenizer: Tokenizer, replies: Replies) -> None:
        cache, fingerprint = self._known.cache(), tokenizer.fingerprint
        known: list[Ticket[Any]] = []
        new: list[_Pair] = []
        keys: list[str | None] = []  # for each of `new` its text, if that is to be kept
        same: list[_Pair] = []
        seen: set[str | tuple[str, str]] = set()
        copy = self._known.copy
        for pair in pairs:
            ticket, item = pair
            tenant = ticket.tenant
            if cache is None or not is_kept(item, tenant):
                new.append(pair)
                keys.append(None)
                continue
            key = item if tenant is None else (item, tenant)
            if key in seen:
                same.append(pair)
            elif copy(ticket, item, False, cache):
                known.append(ticket)
            else:
                seen.add(key)  # a burst of one text is encoded once
                new.append(pair)
                keys.append(item)
        self._all_ready(known)
        if not new:
            return
        encoded = self._encoded(new, same, tokenizer, replies)
        if tokenizer.fingerprint != fingerprint:
            cache = None  # nobody can tell which of the two gave these
        ready: list[Ticket[Any]] = []
        for (ticket, _), text, ids in zip(new, keys, encoded, strict=False):
            if self._written(ticket, ids, replies) and not isinstance(ids, Exception):
                ready.append(ticket)
                if cache is not None and text is not None and len(ids[0]) <= idcache.MAX_IDS:
                    cache.put(text, ticket.tenant, *ids)
        left: list[_Pair] = []
        for pair in same if encoded else ():
            ticket, item = pair
            if cache is not None and self._known.copy(ticket, item, False, cache):
                ready.append(ticket)
            else:  # the text is bad, or was not kept, or there is no room for it
                left.append(pair)
        if left:
            again = zip(left, self._encoded(left, [], tokenizer, replies), strict=False)
            ready += [ticket for (ticket, _), ids in again if self._written(ticket, ids, replies)]
        self._all_ready(ready)

    def _encoded(
        self, pairs: list[_Pair], same: list[_Pair], tokenizer: Tokenizer, replies: Replies
    ) -> Sequence[Encoded | Exception]:
        """What the tokenizer makes of items; nothing if it breaks: then they fail, and those that are the same."""
        try:
            encoded = tokenizer.encode([item for _, item in pairs])
            if len(encoded) != len(pairs):
                raise RuntimeError(f"the tokenizer returned {len(encoded)} results for {len(pairs)} items")
            return encoded
        except BaseException as error:  # others of the chunk are ready by now: this is not for `_failed`
            for ticket, _ in (*pairs, *same):
                self._fail(ticket, error, replies)
            log.exception("relay: the tokenizer of %r failed on a chunk of %d items", self._name, len(pairs))
            return ()

    def _written(self, ticket: Ticket[Any], encoded: Encoded | Exception, replies: Replies) -> bool:
        """Write a row. False if the item has failed."""
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

    def _all_ready(self, tickets: Sequence[Ticket[Any]]) -> None:
        """Their rows are written: they may be taken from now on."""
        if tickets:
            now_ns = self._clock.now_ns()
            for ticket in tickets:
                ticket._ready_ns = now_ns
            self._requests.ready_all([ticket._handle for ticket in tickets], now_ns)
            self._ready(min([ticket.priority for ticket in tickets]))

    def _fail(self, ticket: Ticket[Any], error: BaseException, replies: Replies) -> None:
        self._requests.unbind(ticket._handle)
        for member in all_of(ticket):
            if settle(member, None, member_error(error, 1, self._name), replies):
                self._counts.add("failed")
        self._give_up(ticket)

    def _give_up(self, ticket: Ticket[Any]) -> None:
        """Free a pinned slot: mark it dropped, then unpin it."""
        self._requests.cancel(ticket._handle)
        self._requests.ready(ticket._handle, 0)

    def _failed(self, tickets: list[Ticket[Any]], error: BaseException) -> None:
        replies = Replies()
        for ticket in tickets:
            if not ticket._ready_ns:  # nor are those that may be running by now
                self._fail(ticket, error, replies)
        self._settled(replies)


def _chars(item: Any) -> int:
    """Characters of an item that is to be encoded."""
    if isinstance(item, str):
        return len(item)
    if isinstance(item, (tuple, list)) and len(item) == 2:  # noqa: UP038  # a union would take longer
        return sum(len(part) for part in item if isinstance(part, str))
    return 0


def _context_of(owner: Ticket[Any]) -> Context:
    """The context to prepare an item in: that of its first waiter; whoever has ended has dropped his."""
    for ticket in (owner, *followers(owner)):
        if (context := ticket._context) is not None:
            return context
    return Context()
