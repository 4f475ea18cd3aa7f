"""What a pool hands out, and the checks on what it is asked for."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from relay._pure._budget import MAX_PRIORITY
from relay._pure.state import MAX_SLOTS, as_int64, whole
from relay.errors import StaleToken, TokenRevoked

NAMES = {"realtime": 0, "interactive": 1, "batch": 2}

FAILED, UNUSED = -2, -3
"""In place of the time when a token was granted: its work has failed; it says nothing about how long work takes."""


def owner() -> int:
    """Who runs now, as an int: the task, on a running event loop, else the thread."""
    if asyncio._get_running_loop() is None:
        return threading.get_ident()
    task = asyncio.current_task()
    return threading.get_ident() if task is None else id(task)


def stale_token(action: str) -> StaleToken:
    """The error for any use of a token after its lease has ended."""
    return StaleToken(
        f"cannot {action} this token: its lease has ended (released before, or taken back); acquire a new one"
    )


def revoked_token() -> TokenRevoked:
    """The error for a beat that comes when the token has been asked back."""
    return TokenRevoked("this token has been revoked: stop the work and release() it before its grace time is over")


def check_priority(priority: object) -> int:
    """Return a priority, given as an int of 0 to 255 or by name, as an int.

    Raises:
        TypeError: It is neither an int nor a str.
        ValueError: It is out of range, or no name of a tier.
    """
    if isinstance(priority, str):
        if priority.lower() not in NAMES:
            raise ValueError(
                f"unknown priority {priority!r}; use one of {', '.join(NAMES)}, or a number from 0 to {MAX_PRIORITY}"
            )
        return NAMES[priority.lower()]
    level = whole(priority)
    if level is None:
        raise TypeError(f"priority must be an int from 0 to 255 or a name, got {type(priority).__name__}")
    if not 0 <= level <= MAX_PRIORITY:
        raise ValueError(f"priority must be from 0 to {MAX_PRIORITY}, got {level}")
    return level


def check_size(name: str, value: int, least: int) -> int:
    """Return a number of units, tokens or waiters.

    Raises:
        TypeError: It is not an int.
        ValueError: It is less than `least`, or more than there can be slots.
    """
    value = as_int64(name, value)
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if value > MAX_SLOTS:
        raise ValueError(f"{name} must be at most {MAX_SLOTS}, got {value}")
    return value


def check_tenant(tenant: object) -> str | None:
    """Return a tenant's name, as a plain str whatever its class, or None.

    Raises:
        TypeError: It is neither a str nor None.
    """
    if tenant is None:
        return None
    if not isinstance(tenant, str):
        raise TypeError(f"tenant must be a str or None, got {type(tenant).__name__}")
    return str.__str__(tenant)


class Token:
    """A permit to use compute: the lease of one slot of a pool.

    A token is itself a context manager that releases it. Made by a pool, never directly. One that is dropped without
    being released goes back to its pool.
    """

    __slots__ = ("_handle", "_owns", "_permits", "cost", "epoch", "priority", "tenant")

    priority: int
    """The priority it was acquired at."""
    cost: int
    """The units it holds."""
    tenant: str | None
    """Whose it is."""
    epoch: int
    """The pool's epoch when it was granted."""

    def __init__(
        self, permits: Any, handle: int, priority: int, cost: int = 1, tenant: str | None = None, epoch: int = 0
    ) -> None:
        self._permits = permits
        self._handle = handle
        self._owns = False
        self.priority = priority
        self.cost = cost
        self.tenant = tenant
        self.epoch = epoch

    @property
    def handle(self) -> int:
        """The slot and the lease it was given for, as one int; grows with every lease of a slot."""
        return self._handle

    @property
    def held(self) -> bool:
        """True until the lease ends."""
        return bool(self._permits.holds(self))

    @property
    def state(self) -> str:
        """``"busy"``; ``"revoked"`` when it has been asked back; ``"released"`` when the lease has ended."""
        return str(self._permits.state_of(self))

    def release(self) -> None:
        """Give the token back. If somebody waits, it is theirs when this returns.

        Raises:
            StaleToken: The lease has ended already.
        """
        self._permits.release(self)

    def heartbeat(self) -> None:
        """Say that the holder is alive; needed only where the lease was asked for with ``heartbeat=``.

        Raises:
            TokenRevoked: The token has been asked back.
            StaleToken: The lease has ended already.
        """
        self._permits.beat(self)

    def __enter__(self) -> Token:
        if not self.held:
            raise stale_token("use")
        return self

    def __exit__(self, *error: Any) -> None:
        self._permits.exit(self, error[0] if error else None)

    def __del__(self) -> None:
        if getattr(self, "_owns", False):
            self._permits.drop(self._handle)

    def __repr__(self) -> str:
        return f"<Token priority={self.priority} {self.state}>"
