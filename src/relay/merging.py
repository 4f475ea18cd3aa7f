"""Merging: identical requests that are under way together share one run.

A follower is a ticket without a slot, on the list of the ticket that leads. The order of two steps carries it all: a
follower enters the list first and looks whether the run is still open second; whoever ends a run closes it first and
reads the list second. So nobody is missed, and nobody waits for a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relay.desk import Desk
from relay.identity import content_of
from relay.room import closed_error
from relay.ticket import Ticket


class Merger:
    """Finds the run that a request may share.

    Args:
        desk: Where the others are.
        key: Stands for an item when requests are compared; None compares the items.
    """

    def __init__(self, desk: Desk, key: Callable[[Any], Any] | None) -> None:
        self._desk = desk
        self._key = key

    def place(self, ticket: Ticket[Any]) -> bool:
        """Let `ticket` share a run, or give it a place of its own. False if there is no room for it.

        Raises:
            Closed: The relay takes no more.
            TypeError: `key` gave something that cannot be compared.
        """
        content = self._content(ticket)
        if content is None:
            return self._desk.admit(ticket)
        if self._desk.refusing:
            raise closed_error()
        digest = self._digest(content, ticket)
        if self._share(content, digest, ticket):
            return True
        ticket._content, ticket._followers = content, []
        if not self._desk.admit(ticket):
            return False
        self._desk.queue.bind(digest, ticket._handle)
        return True

    def place_all(self, tickets: Sequence[Ticket[Any]]) -> bool:
        """As `place`, for all of `tickets` or none of them; equal ones among them share one run, too."""
        desk = self._desk
        if desk.refusing:
            raise closed_error()
        contents = [self._content(ticket) for ticket in tickets]  # first of all, for it may raise
        leaders: list[Ticket[Any]] = []
        joined: list[Ticket[Any]] = []  # of runs under way
        inner: list[Ticket[Any]] = []  # of runs that others among `tickets` lead
        digests: dict[int, Ticket[Any]] = {}
        for ticket, content in zip(tickets, contents, strict=True):
            if content is None:
                leaders.append(ticket)
                continue
            digest = self._digest(content, ticket)
            first = digests.get(digest)
            followers = first._followers if first is not None and first._content == content else None
            if followers is not None and len(followers) < desk.limits.max_followers:
                followers.append(ticket)
                inner.append(ticket)
            elif self._share(content, digest, ticket):
                joined.append(ticket)
            else:
                ticket._content, ticket._followers = content, []
                leaders.append(ticket)
                digests.setdefault(digest, ticket)
        desk.open.update(inner)  # and never those who joined a run, for it may have ended
        admitted = False
        try:
            admitted = not leaders or desk.admit_all(leaders)
        finally:
            if not admitted:
                for ticket in joined + inner:
                    desk.cancel(ticket)
        if not admitted:
            return False
        for digest, leader in digests.items():
            desk.queue.bind(digest, leader._handle)
            if leader._followers:
                desk.queue.share(leader._handle)  # never displaced
            for follower in tuple(leader._followers or ()):
                follower._handle = leader._handle
        desk.counts.add("merged", len(inner))
        return True

    def _content(self, ticket: Ticket[Any]) -> str | bytes | None:
        if self._key is None:
            return content_of(ticket._item)
        content = content_of(self._key(ticket._item))
        if content is None:
            raise TypeError(
                "key(item) must return a str, bytes, int, or a tuple of these, so that requests can be compared by it"
            )
        return content

    def _digest(self, content: str | bytes, ticket: Ticket[Any]) -> int:
        digest = self._desk.queue.digest(content)
        if ticket._params is not None or ticket.tenant is not None:
            params = ticket._params.group if ticket._params is not None else 0  # those of `mixed=` included
            digest ^= hash((params, ticket.tenant)) & 0xFFFFFFFFFFFFFFFF
        return digest

    def _share(self, content: str | bytes, digest: int, ticket: Ticket[Any]) -> bool:
        handle, leader = self._desk.queue.find(digest)
        return (
            leader is not None
            and leader._content == content
            and leader._params is ticket._params
            and leader.tenant == ticket.tenant
            and self._desk.join(leader, handle, digest, ticket)
        )
