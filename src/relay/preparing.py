"""Preparing: what is done to an item on helper threads, before it is ready for a batch.

First the user's own ``prepare``, one item at a time and in the context the item was submitted in; then the tokenizer,
from several items to the rows of their slots (`tokenising`). Owns the helper threads, and the cache of input ids: a
text that is in it is ready at once, on the thread that submits it. A slot is pinned from its admission until it is
ready; a request that is cancelled or expires meanwhile is freed by whoever unpins it, here. An item that cannot be
prepared fails by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from relay._backend import queue
from relay.clock import Clock
from relay.helpers import Helpers
from relay.knownids import KnownIds
from relay.limits import Limits
from relay.outputs import member_error
from relay.runs import all_of, followers, wanted
from relay.stats import Counts
from relay.ticket import Replies, Ticket, settle
from relay.tokenising import LONG, Tokenising, chars
from relay.tokenizer import Tokenizer

CHUNK_CHARS = 16_384
"""Texts tokenised together have no more characters than this, but for the last of them."""


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
        self._clock = clock
        self._counts = counts
        self._settled = settled
        self._ready = ready
        self._known = KnownIds(tokenizer, requests, limits)
        self._early = tokenizer is not None and prepare is None
        self._tokenising: Tokenising | None = None
        if tokenizer is not None:
            self._tokenising = Tokenising(
                tokenizer, requests, self._known, name, limits.max_batch_tokens, self._all_ready, self._fail
            )
        counts.more = self._known.told
        self._weight = chars if tokenizer is not None else _nothing
        # Several texts are tokenised faster together; items that are only prepared gain nothing by waiting for others.
        chunk, most = (limits.encode_chunk, CHUNK_CHARS) if tokenizer is not None else (1, 0)
        self.helpers = Helpers(limits.helpers, f"{name}-helper", chunk, self._work, self._failed, most)

    def put(self, ticket: Ticket[Any]) -> None:
        """Have a ticket prepared that has been admitted. Never blocks: a text that is in the cache is ready at once,
        all else is left to the helpers."""
        if self._early and self._known.copy(ticket, ticket._item):
            ticket._ready_ns = now_ns = self._clock.now_ns()
            self._requests.ready(ticket._handle, now_ns)
            self._ready(ticket.priority)
        else:
            self._hand_over(ticket)

    def put_all(self, tickets: Sequence[Ticket[Any]]) -> None:
        """As `put`, for tickets of one priority. All rows are written first, for a lane that is woken by the first
        ought to find the others, too."""
        left = tickets
        if self._early:
            lengths = self._known.copy_all(self._known.cache(), tickets, [ticket._item for ticket in tickets], True)
            self._all_ready([ticket for ticket, length in zip(tickets, lengths, strict=True) if length >= 0])
            left = [ticket for ticket, length in zip(tickets, lengths, strict=True) if length < 0]
        weights = [self._weight(ticket._item) for ticket in left]
        if weights and max(weights) <= LONG:
            self.helpers.put_all(left, 2 * left[0].priority, weights)
        else:
            for ticket in left:
                self._hand_over(ticket)

    def _hand_over(self, ticket: Ticket[Any]) -> None:
        weight = self._weight(ticket._item)
        self.helpers.put(ticket, 2 * ticket.priority + (weight > LONG), weight)

    def reserve(self, ticket: Ticket[Any]) -> int:
        """How many input ids to reserve room for."""
        if self._tokenizer is None:
            return 0
        return self._tokenizer.reserve(ticket._item) if self._prepare is None else self._tokenizer.max_length

    def reserve_all(self, tickets: Sequence[Ticket[Any]]) -> list[int]:
        """As `reserve` for each of several."""
        if self._tokenizer is None or self._prepare is not None:
            return [self.reserve(ticket) for ticket in tickets]
        reserve = self._tokenizer.reserve
        return [reserve(ticket._item) for ticket in tickets]

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
            if self._tokenising is not None and live:
                items = [ticket._item if self._prepare is None else ticket._prepared for ticket in live]
                self._tokenising.tokenise(live, items, replies)
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


def _nothing(item: object) -> int:
    return 0


def _context_of(owner: Ticket[Any]) -> Context:
    """The context to prepare an item in: that of its first waiter; whoever has ended has dropped his."""
    for ticket in (owner, *followers(owner)):
        if (context := ticket._context) is not None:
            return context
    return Context()
