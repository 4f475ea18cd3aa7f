"""What lets one call at a time change the books of a pool, and tells its consequences afterwards.

Owns the lock, and what is to be told: a hook that has not been called because another one raised is called at the end
of a later call. The invariant: no hook is called, and nobody is woken, while the books are being changed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from relay._pure._acquire import Acquire
from relay._pure._token import UNUSED, Token
from relay._pure.state import slot_of

if TYPE_CHECKING:
    from relay._pure._ledger import Ledger


class Guard:
    """Lets one thread, and one call at a time, change the books. When it is through, its consequences are told.

    A finaliser may run in the middle of a call, on the same thread, and release a token, throw one away, or give up
    waiting: that stands in `late` until the call ends, as a handle, its complement, or the waiter.
    """

    __slots__ = ("_ledger", "_lock", "armed", "depth", "freed", "late", "leaks", "unserved")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.RLock()
        self.depth = 0
        self.armed = self.freed = False
        self.unserved = False  # somebody who could be served may wait, because one before has failed to take its token
        self.late: list[Any] = []
        self.leaks: list[Token] = []

    def __enter__(self) -> None:
        self._lock.acquire()
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        outermost = self.depth == 1
        try:
            if outermost and (self.late or self.unserved):
                self._settle_late()
        finally:
            self.depth -= 1
            self._lock.release()
        if outermost:
            self._tell()

    def _tell(self) -> None:
        """Tell all consequences. What is not told, because a hook raises, is told at the end of a later call."""
        ledger = self._ledger
        while True:
            if ledger._to_wake:
                self._wake()
            if self.armed:
                self.armed = False
                try:
                    ledger._lease_armed()
                except BaseException:
                    self.armed = True
                    raise
            if self.freed:
                self.freed = False
                try:
                    ledger._freed()
                except BaseException:
                    self.freed = True
                    raise
            while self.leaks:
                try:
                    token = self.leaks.pop(0)
                except IndexError:
                    break  # another thread has told it
                ledger._leaked(token)
            if not self.late:
                return
            with self._lock:  # what came while the call was ending
                self.depth += 1
                try:
                    self._settle_late()
                finally:
                    self.depth -= 1

    def _settle_late(self) -> None:
        ledger = self._ledger
        while self.late:
            handle = self.late.pop()
            if not isinstance(handle, int):
                ledger._give_up(handle)
                continue
            thrown_away = handle < 0
            handle = ~handle if thrown_away else handle
            if ledger._arena.live(handle):
                if thrown_away:
                    self.leaks.append(ledger._view(handle))
                    ledger.leaked += 1
                    ledger._arena.arrival_ns[slot_of(handle)] = UNUSED
                ledger._end(handle)
                ledger._serve()
        if self.unserved:
            self.unserved = False
            ledger._serve()

    def _wake(self) -> None:
        """Wake all who are to be woken; whoever is not, because this is interrupted, is at the end of a later call."""
        ledger = self._ledger
        line = ledger._to_wake
        while line:
            try:
                waiter = line[0]
            except IndexError:
                return  # another thread has woken it
            arrives = waiter.wake() if isinstance(waiter, Acquire) else ledger._deliver(waiter)
            with self._lock:
                if not line or line[0] is not waiter:
                    continue  # another thread has woken it as well, and sees to the rest
                self.depth += 1
                try:
                    del line[0]
                    if not arrives:
                        ledger._give_up(waiter)  # it will never take the token, so the next one gets it
                finally:
                    self.depth -= 1
