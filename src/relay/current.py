"""What a model may ask about the batch it is called with.

Set for the length of one call, in the call's own context; everything is read from the tickets when it is asked for, so
that a model which asks for nothing costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Context, ContextVar
from typing import Any

from relay._backend import lanes
from relay.runs import followers, wanted
from relay.ticket import Ticket


class CurrentBatch(lanes.BatchView):
    """The batch that is being run; see `current_batch`.

    Attributes:
        params: The keyword arguments of the call.
        version: The version of the model that runs it.
    """

    __slots__ = ()

    _items: list[Any]
    _owners: Sequence[Ticket[Any]]
    params: dict[str, Any]
    version: int

    @property
    def items(self) -> list[Any]:
        """The callers' items, in batch order."""
        return list(self._items)

    @property
    def tenants(self) -> list[str | None]:
        """Whom each item is for."""
        return [owner.tenant for owner in self._owners]

    @property
    def contexts(self) -> list[Context | None]:
        """The context that each item was submitted in: ``contexts[i].get(variable)``, or ``contexts[i][variable]``.

        None only for a request that was ended meanwhile.
        """
        return [owner._context for owner in self._owners]

    @property
    def cancelled(self) -> list[bool]:
        """For each item, True once nobody waits for it any more: its work may be skipped, and any row given for it."""
        return [not wanted(owner) for owner in self._owners]

    @property
    def waiters(self) -> list[int]:
        """How many still wait for each item; more than one where requests were merged."""
        return [sum(not ticket._done for ticket in (owner, *followers(owner))) for owner in self._owners]

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"<CurrentBatch of {len(self)}>"


def mixed_keywords(owners: Sequence[Ticket[Any]], keywords: dict[str, Any], mixed: Sequence[str]) -> dict[str, Any]:
    """The keywords of a call, with a list for each parameter that may differ."""
    each_has = [owner._params.keywords if owner._params is not None else {} for owner in owners]
    fixed = {name: value for name, value in keywords.items() if name not in mixed}
    return fixed | {name: [each.get(name) for each in each_has] for name in mixed}


batch_variable: ContextVar[CurrentBatch] = ContextVar("relay.current_batch")


def current_batch() -> CurrentBatch:
    """The batch that the running model was called with, from inside the model.

    Returns:
        A view that is valid during the call: items, tenants, contexts, params, version, cancelled.

    Raises:
        RuntimeError: No model of a relay is running here. A thread that a model starts has a context of its own: hand
            the batch over, or start the thread with ``contextvars.copy_context().run``.
    """
    batch = batch_variable.get(None)
    if batch is None:
        raise RuntimeError(
            "current_batch() was called outside of a model's call; call it in the model, and hand its result to any "
            "threads the model starts"
        )
    return batch
