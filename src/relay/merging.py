"""Merging: identical requests share one answer, that of a run under way or one that is kept.

A follower is a ticket without a slot, on the list of the ticket that leads. The order of two steps carries it all: a
follower enters the list first and looks whether the run is still open second; whoever ends a run closes it first and
reads the list second. So nobody is missed, and nobody waits for a lock. An answer is kept before its run is closed: who
does not find the run any more, and looks for the answer second, finds that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relay._backend import cache
from relay.alike import Identities
from relay.desk import Desk
from relay.identity import content_of, frozen, is_comparable
from relay.keeping import given, kept
from relay.room import closed_error
from relay.ticket import Replies, Ticket, let_go, settle

_OPEN = (list, tuple, np.ndarray)  # may be changed, or hold what may be


class Merger:
    """Finds the answer that a request may share.

    Args:
        desk: Where the others are.
        key: Stands for an item when requests are compared; None compares the items.
        identities: What else makes requests the same.
        results: The answers that are kept; None if none are.
    """

    def __init__(
        self,
        desk: Desk,
        key: Callable[[Any], Any] | None,
        identities: Identities,
        results: cache.ResultCache | None,
    ) -> None:
        self._desk = desk
        self._key = key
        self._identities = identities
        desk.open_sharing(content_of if key is None else self._content, key is None, results, given, kept)

    def place(self, ticket: Ticket[Any]) -> bool | None:
        """Give `ticket` the answer of another, let it share a run, or give it a place of its own. False if there is no
        room for it.

        Raises:
            Closed: The relay takes no more.
            TypeError: `key` gave something that cannot be compared.
        """
        desk = self._desk
        content = self._compared(ticket)
        if content is None:
            return desk.admit(ticket)
        if desk.refusing:
            raise closed_error()
        self._know(ticket, content)
        before = -1
        while True:
            if self._share(ticket):
                return True
            found = desk.find_result(ticket._digest, content, ticket._who, ticket._arrival_ns)
            if found is not None:
                self._answer([(ticket, *found)])
                return True
            ticket._followers = []
            admitted = desk.admit(ticket, digest=ticket._digest)
            if admitted is not None:
                break
            taken = desk.queue.find(ticket._digest)[0]  # by somebody who came a moment ago, whose run may have ended
            if taken >= 0 and taken == before:  # or who has other content, or enough followers
                admitted = desk.admit(ticket)
                break
            before = taken
        if admitted:
            desk.led()
        return admitted

    def place_all(self, tickets: Sequence[Ticket[Any]]) -> bool:
        """As `place`, for all of `tickets` or none of them; equal ones among them share one run, too."""
        desk = self._desk
        if desk.refusing:
            raise closed_error()
        contents = [self._compared(ticket) for ticket in tickets]  # first of all, for it may raise
        leaders: list[Ticket[Any]] = []
        answered: list[tuple[Ticket[Any], Any, int]] = []
        joined: list[Ticket[Any]] = []  # of runs under way
        inner: list[Ticket[Any]] = []  # of runs that others among `tickets` lead
        digests: dict[int, Ticket[Any]] = {}
        for ticket, content in zip(tickets, contents, strict=True):
            if content is None:
                leaders.append(ticket)
                continue
            self._know(ticket, content)
            first = digests.get(ticket._digest)
            if first is not None and _alike(first, ticket):
                followers = first._followers
                if followers is not None and len(followers) < desk.limits.max_followers:
                    followers.append(ticket)
                    inner.append(ticket)
                    continue
            if self._share(ticket):
                joined.append(ticket)
                continue
            found = desk.find_result(ticket._digest, content, ticket._who, ticket._arrival_ns)
            if found is not None:
                answered.append((ticket, *found))
                continue
            ticket._followers = []
            leaders.append(ticket)
            digests.setdefault(ticket._digest, ticket)
        admitted = False
        try:
            desk.open.update(inner)  # and never those who joined a run, for it may have ended
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
        desk.led(sum(leader._followers is not None for leader in leaders))
        self._answer(answered)
        return True

    def _compared(self, ticket: Ticket[Any]) -> str | bytes | None:
        """What a ticket is compared by, which is what is run, whatever its caller does to his item meanwhile."""
        content = self._content(ticket._item)
        if content is None or self._key is not None or type(ticket._item) not in _OPEN:
            return content
        ticket._item = frozen(ticket._item)
        return content_of(ticket._item)

    def _content(self, item: Any) -> str | bytes | None:
        """What stands for an item when requests are compared; None if it is not shared."""
        if self._key is None:
            return content_of(item)
        value = self._key(item)
        content = content_of(value)
        if content is None and not is_comparable(value):
            raise TypeError(
                "key(item) must return a str, bytes, int, or a tuple of these, so that requests can be compared by it"
            )
        return content

    def _know(self, ticket: Ticket[Any], content: str | bytes) -> None:
        """Tell a ticket what makes it the same as others."""
        who = None
        if ticket._params is not None or ticket.tenant is not None:
            who = self._identities.of(ticket._params, ticket.tenant)  # of the parameters, those of `mixed=` included
        epoch = self._desk.epoch
        ticket._content, ticket._who, ticket._epoch = content, who, epoch
        ticket._digest = self._desk.queue.digest(content, 0 if who is None else who.number, epoch)

    def _share(self, ticket: Ticket[Any]) -> bool:
        """Let a ticket join a run. False if there is none that it may join."""
        desk, content = self._desk, ticket._content
        assert content is not None
        handle, leader = desk.find_leader(desk.queue, ticket._digest, content, ticket._who, ticket._epoch)
        if leader is None or not desk.join(leader, handle, ticket._digest, ticket):
            return False
        ticket._content = ticket._who = ticket._followers = None  # it leads nobody
        return True

    def _answer(self, answered: Sequence[tuple[Ticket[Any], Any, int]]) -> None:
        """End tickets with answers that were kept."""
        if not answered:
            return
        replies = Replies()
        tickets = [ticket for ticket, _, _ in answered]
        try:
            self._desk.open.update(tickets)
            for ticket, value, size in answered:
                ticket.size = size
                settle(ticket, value, None, replies)
                let_go(ticket)
        except BaseException:
            self._desk.withdraw(tickets)  # nobody else would end them
            raise
        self._desk.flush(replies)


def _alike(first: Ticket[Any], second: Ticket[Any]) -> bool:
    return (
        first._content == second._content
        and type(first._content) is type(second._content)
        and first._who is second._who
        and first._epoch == second._epoch
    )
