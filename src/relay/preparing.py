"""Preparing: what is done to an item on helper threads, before it is ready for a batch.

First the user's own ``prepare``, one item at a time and in the context the item was submitted in; then the tokenizer,
from several items to the rows of their slots. Owns the helper threads. A slot is pinned from its admission until it is
ready; a request that is cancelled or expires meanwhile is freed by whoever unpins it, here. An item that cannot be
prepared fails by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from relay._backend import queue
from relay.clock import Clock
from relay.errors import Overloaded, TooLarge
from relay.helpers import Helpers
from relay.limits import Limits
from relay.outputs import member_error
from relay.runs import all_of, followers, wanted
from relay.stats import Counts
from relay.ticket import Replies, Ticket, settle
from relay.tokenizer import Tokenizer


class Preparing:
    """The helper threads of one desk.

    Args:
        prepare: Makes of an item what is tokenised, or what the model gets. None leaves it as it is.
        tokenizer: Turns items into input ids. None where the model gets the items.
        requests: The queue, which holds the rows.
        name: For threads and messages.
        limits: Sizes.
        clock: What all time is read from.
        counts: Where items that fail are counted.
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
        # Several texts are tokenised faster together; items that are only prepared gain nothing by waiting for others.
        chunk = limits.encode_chunk if tokenizer is not None else 1
        self.helpers = Helpers(limits.helpers, f"{name}-helper", chunk, self._work, self._failed)

    def put(self, ticket: Ticket[Any]) -> None:
        """Have a ticket prepared that has been admitted. Never blocks."""
        self.helpers.put(ticket, ticket.priority)

    def reserve(self, ticket: Ticket[Any]) -> int:
        """How many input ids to reserve room for."""
        if self._tokenizer is None:
            return 0
        return self._tokenizer.reserve(ticket._item) if self._prepare is None else self._tokenizer.max_length

    def _work(self, tickets: list[Ticket[Any]]) -> None:
        replies = Replies()
        live: list[Ticket[Any]] = []
        for ticket in tickets:
            if not wanted(ticket):
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
        items = [ticket._item if self._prepare is None else ticket._prepared for ticket in tickets]
        encoded = tokenizer.encode(items)
        if len(encoded) != len(items):
            raise RuntimeError(f"the tokenizer returned {len(encoded)} results for {len(items)} items")
        now_ns = self._clock.now_ns()
        for ticket, ids in zip(tickets, encoded, strict=True):
            try:
                if isinstance(ids, BaseException):
                    raise ids
                self._write(ticket, *ids, now_ns)
            except BaseException as error:
                self._fail(ticket, error, replies)

    def _write(self, ticket: Ticket[Any], ids: Sequence[int], split: int, now_ns: int) -> None:
        if self._most is not None and len(ids) > self._most:
            raise TooLarge(
                f"the item has {len(ids)} input ids, but a batch may have at most max_batch_tokens={self._most}; "
                "shorten it"
            )
        ticket.size = len(ids)
        ticket._ready_ns = now_ns
        if not self._requests.write(ticket._handle, ids, split) and wanted(ticket):
            raise Overloaded(
                f"no room for {len(ids)} input ids beside those of the requests in the queue of {self._name!r}; "
                "retry later or raise Limits.max_ids",
                reason="queue_full",
            )
        self._requests.ready(ticket._handle, now_ns)
        self._ready(ticket.priority)

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
            self._fail(ticket, error, replies)
        self._settled(replies)


def _context_of(owner: Ticket[Any]) -> Context:
    """The context to prepare an item in: that of its first waiter; whoever has ended has dropped his."""
    for ticket in (owner, *followers(owner)):
        if (context := ticket._context) is not None:
            return context
    return Context()
