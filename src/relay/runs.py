"""Runs: a ticket that leads one, and the followers that share it.

Functions over the list of followers, which any thread may change: each step is one atomic operation of the list. A
follower enters the list first and looks whether the run is still open second; whoever ends a run closes it first and
empties the list second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relay.ticket import Ticket


def followers(owner: Ticket[Any]) -> tuple[Ticket[Any], ...]:
    """Those who share the run of `owner` now."""
    return tuple(owner._followers) if owner._followers else ()


def wanted(owner: Ticket[Any]) -> bool:
    """True while anyone waits for the run of `owner`."""
    return not owner._done or any(not follower._done for follower in followers(owner))


def all_of(owner: Ticket[Any]) -> Iterator[Ticket[Any]]:
    """All waiters of a run that is closed to joiners; each is taken off the list, and so is the caller's to settle."""
    yield owner
    shared = owner._followers
    while shared:
        try:
            yield shared.pop(0)
        except IndexError:
            return  # it has just left by itself, having seen that the run is closed


def leave(owner: Ticket[Any], ticket: Ticket[Any]) -> None:
    """Take a follower that has ended off the list, so that those who come and go do not pile up there."""
    if owner._followers and ticket is not owner:
        try:
            owner._followers.remove(ticket)
        except ValueError:
            pass  # whoever closes the run has it
