"""Tokenising: on helper threads, from items to the rows of their slots.

Owns the helper threads. A slot is pinned from its admission until its row is written; a request that is cancelled or
expires meanwhile is freed by whoever unpins it, here. An item that cannot be encoded fails by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relay._backend import queue
from relay.clock import Clock
from relay.errors import Overloaded, TooLarge
from relay.helpers import Helpers
from relay.limits import Limits
from relay.outputs import member_error
from relay.runs import all_of, wanted
from relay.stats import Counts
from relay.ticket import Replies, Ticket, settle
from relay.tokenizer import Tokenizer


class Tokenising:
    """The helper threads of one desk.

    Args:
        tokenizer: Turns items into input ids.
        requests: The queue, which holds the rows.
        name: For threads and messages.
        limits: Sizes.
        clock: What all time is read from.
        counts: Where items that fail are counted.
        settled: Called after each chunk with those it has ended.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        requests: queue.RequestQueue,
        name: str,
        limits: Limits,
        clock: Clock,
        counts: Counts,
        settled: Callable[[Replies], None],
    ) -> None:
        self._tokenizer = tokenizer
        self._requests = requests
        self._name = name
        self._most = limits.max_batch_tokens
        self._clock = clock
        self._counts = counts
        self._settled = settled
        self.helpers = Helpers(limits.helpers, f"{name}-helper", limits.encode_chunk, self._work, self._failed)
        self.put = self.helpers.put

    def reserve(self, ticket: Ticket[Any]) -> int:
        """How many input ids to reserve room for."""
        return self._tokenizer.reserve(ticket._item)

    def _work(self, tickets: list[Ticket[Any]]) -> None:
        live = []
        for ticket in tickets:
            if not wanted(ticket):
                self._requests.unbind(ticket._handle)
                if not wanted(ticket):  # nobody joined before it was closed
                    self._give_up(ticket)
                    continue
            live.append(ticket)
        encoded = self._tokenizer.encode([ticket._item for ticket in live])
        if len(encoded) != len(live):
            raise RuntimeError(f"the tokenizer returned {len(encoded)} results for {len(live)} items")
        now_ns = self._clock.now_ns()
        replies = Replies()
        for ticket, ids in zip(live, encoded, strict=True):
            try:
                if isinstance(ids, BaseException):
                    raise ids
                self._write(ticket, *ids, now_ns)
            except BaseException as error:
                self._fail(ticket, error, replies)
        self._settled(replies)

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
