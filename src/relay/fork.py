"""Fork: what was made before it is made new in the child, where only the thread that forked goes on.

Owns the list of what survives a fork, each entry held weakly, and the one hook that the interpreter calls in the child;
the hook is registered by the first entry, so importing relay changes nothing. Any thread may add an entry. The
invariant: in a child every entry starts anew before any other code runs, in the order in which they were added, and
one that fails does not keep the others from it. Where the system has no fork, nothing happens.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import Protocol

log = logging.getLogger("relay")


class Survivor(Protocol):
    """What can be made new in a child."""

    def _after_fork_in_child(self) -> None:
        """Start anew. The threads of the parent are gone, and a lock that one of them held stays locked for ever: no
        old lock may be taken here, only replaced."""


class Survivors:
    """All that must be made new after a fork."""

    def __init__(self) -> None:
        self._survivors: weakref.WeakKeyDictionary[Survivor, None] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._hooked = False

    def add(self, survivor: Survivor) -> None:
        """Have ``survivor._after_fork_in_child()`` called in every child, for as long as it lives. May be repeated."""
        if not self._hooked:
            self._hook()
        self._survivors[survivor] = None

    def _hook(self) -> None:
        with self._lock:
            if not self._hooked:
                if hasattr(os, "register_at_fork"):
                    os.register_at_fork(after_in_child=self._after_fork_in_child)
                self._hooked = True

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        failed: list[tuple[str, BaseException]] = []
        for survivor in list(self._survivors):
            try:
                survivor._after_fork_in_child()
            except BaseException as error:
                failed.append((type(survivor).__name__, error))
        for name, raised in failed:  # last, for a log handler is user code
            log.error("relay: a %s could not be made new after a fork, and is of no use here", name, exc_info=raised)


survivors = Survivors()
