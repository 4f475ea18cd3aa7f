"""Where tokens were acquired: the places in the callers' code, for reports of what was left or thrown away."""

from __future__ import annotations

import sys

from relay._backend import permits as core
from relay._backend import state


class Places:
    """The place where each token of a pool was acquired last. Any thread may call anything.

    Args:
        slots: How many tokens there can be.
    """

    def __init__(self, slots: int) -> None:
        self._places: list[tuple[int, str] | None] = [None] * slots

    def note(self, token: core.Token) -> None:
        """Remember who has called into relay for this token."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("relay.", "asyncio.")):
            frame = frame.f_back
        place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        self._places[state.slot_of(token.handle)] = (token.handle, place)

    def find(self, token: core.Token) -> str | None:
        """``"file:line in function"``, or None if it was not noted."""
        found = self._places[state.slot_of(token.handle)]
        return found[1] if found is not None and found[0] == token.handle else None
