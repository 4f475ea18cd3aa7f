"""What subclasses of `Permits` override: how its callers wait, and what is told to whom.

Called on the thread whose call brought it about, outside the guard, never in the middle of a change; but a
finaliser may call `_nudge` at any moment.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from relay._pure._token import Token


class Hooks:
    """What a pool's core asks of those who build on it, and what each does where it is not overridden."""

    __slots__ = ("ready",)

    ready: bool
    """`_get_ready` need not be called before somebody waits."""

    def _deliver(self, waiter: Any) -> bool:
        """Wake a waiter that has been granted a token or sent away; may be called twice. False if it never wakes.

        Not called for an `Acquire`, which wakes without being asked.
        """
        return True

    def _freed(self) -> None:
        """A token has come back, or a waiter has gone, while `watched` is set."""

    def _lease_armed(self) -> None:
        """`next_lease_ns` may be earlier than before."""

    def _leaked(self, token: Token) -> None:
        """A token was thrown away without being released; its lease is over already."""

    def _wait(
        self, priority: int | str, timeout: float | None, cost: int, tenant: str | None, heartbeat: float | None,
        retry: Any,
    ) -> Token:  # fmt: skip
        """Wait for a token on this thread, or with retries."""
        raise NotImplementedError

    def _wait_async(
        self, priority: int | str, timeout: float | None, cost: int, tenant: str | None, heartbeat: float | None,
        retry: Any,
    ) -> Coroutine[Any, Any, Token]:  # fmt: skip
        """Wait for a token on a loop, with retries."""
        raise NotImplementedError

    def _limit_ns(self, timeout: float | None) -> int:
        """A time limit in ns, -1 for none; ValueError."""
        raise NotImplementedError

    def _beats_ns(self, heartbeat: float | None) -> int:
        """A heartbeat in ns, -1 for the pool's own; ValueError."""
        raise NotImplementedError

    def _get_ready(self) -> None:
        """Somebody may be about to wait, and `ready` is not set."""
        self.ready = True

    def _arm(self, waiter: Any, limit_ns: int) -> None:
        """Wake a waiter so many ns from now."""
        raise NotImplementedError

    def _left(self, waiter: Any) -> None:
        """A waiter has left the line; called where it was armed, or `custom` is set."""
        raise NotImplementedError

    def _refuse(self, priority: int, cost: int) -> None:
        """Raise for one who found too many in line."""
        raise NotImplementedError

    def _empty_handed(self, priority: int | str, timeout: float | None) -> Exception:
        """The error for one who has waited in vain."""
        raise NotImplementedError

    def _trace(self, token: Token) -> None:
        """A token has been granted, while `traced` is set."""

    def _nudge(self) -> None:
        """Something has been thrown away: see to it that `collect` is called soon. Called from finalisers."""
