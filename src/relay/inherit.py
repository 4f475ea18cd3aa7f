"""Priority inheritance between pools, one level deep.

Who holds a token of one pool and waits in another's line stands there as urgently as the most urgent who waits for the
first pool, for as long as that one waits. Kept only while there are two pools or more, and only for those who wait.
Any thread may call anything here; what is noted may lag behind the lines by a moment, and a lift that comes too late is
refused by the core. A finaliser may call `left` while its thread is inside a pool, so `left` never waits for the lock:
what it cannot do itself is done by whoever holds it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from relay._backend import permits as core
from relay.fork import survivors

if TYPE_CHECKING:
    from relay.waiting import Waiting


class _Wait:
    """Somebody's wait in a pool's line."""

    __slots__ = ("holds", "key", "level", "lifted", "pool", "waiter")

    def __init__(self, pool: Waiting, waiter: Any, level: int) -> None:
        self.pool = pool
        self.waiter = weakref.ref(waiter)  # once it has left the line, only its own coroutine or thread keeps it
        self.key = id(waiter)
        self.level = level  # its own
        self.lifted = level  # where it stands
        self.holds: list[Waiting] = []

    def stands(self) -> bool:
        """True while it stands in line."""
        waiter = self.waiter()
        return waiter is not None and waiter.index >= 0


class Inheritance:
    """Who waits where, and holds what meanwhile."""

    def __init__(self) -> None:
        self._pools: list[weakref.ref[Waiting]] = []
        self._after_fork_in_child()

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self._gone: deque[_Wait] = deque()  # those that have left, and are to be taken out
        self._waits: dict[int, dict[int, _Wait]] = {}  # by the pool's id, then the waiter's
        self._holders: dict[int, list[_Wait]] = {}  # by the id of the pool they hold a token of

    def add(self, pool: Waiting) -> None:
        """A pool has been made."""
        with self._lock:
            self._tell([*self._pools, weakref.ref(pool)])
        survivors.add(self)
        self._take_out()

    def remove(self, pool: Waiting) -> None:
        """A pool has been closed."""
        with self._lock:
            self._tell([found for found in self._pools if found() is not pool])
        self._take_out()

    def _tell(self, found: list[weakref.ref[Waiting]]) -> None:
        """These are the pools there are; waits are noted from the second one on."""
        pools = [pool for each in found if (pool := each()) is not None]
        self._pools = [weakref.ref(pool) for pool in pools]
        for pool in pools:
            pool.note_waits(len(pools) > 1)
        if len(pools) < 2:
            self._waits.clear()
            self._holders.clear()

    def joined(self, pool: Waiting, waiter: Any, level: int) -> None:
        """Somebody stands in a pool's line. Called by the thread, or in the task, that waits."""
        me = core.owner()
        wait = _Wait(pool, waiter, level)
        with self._lock:
            if len(self._pools) < 2:
                return  # the other has just been closed, and nobody would take this wait out again
            self._waits.setdefault(id(pool), {})[wait.key] = wait
            for found in self._pools:
                other = found()
                if other is not None and other is not pool and other.held and other.owned(me):
                    wait.holds.append(other)
                    self._holders.setdefault(id(other), []).append(wait)
            if wait.holds:
                self._adjust(wait)
            self._adjust_holders(pool)
        self._take_out()

    def left(self, pool: Waiting, waiter: Any) -> None:
        """Somebody who may have stood in a pool's line does so no more."""
        wait = self._waits.get(id(pool), {}).get(id(waiter))
        if wait is not None:
            self._gone.append(wait)
            self._take_out()

    def _take_out(self) -> None:
        while self._gone and self._lock.acquire(blocking=False):
            try:
                while self._gone:
                    self._take_out_one(self._gone.popleft())
            finally:
                self._lock.release()

    def _take_out_one(self, wait: _Wait) -> None:
        waits = self._waits.get(id(wait.pool), {})
        if waits.get(wait.key) is wait:
            del waits[wait.key]
        if not waits:
            self._waits.pop(id(wait.pool), None)
        for other in wait.holds:
            holders = self._holders.get(id(other), [])
            if wait in holders:
                holders.remove(wait)
            if not holders:
                self._holders.pop(id(other), None)
        self._adjust_holders(wait.pool)

    def _adjust_holders(self, pool: Waiting) -> None:
        for holder in self._holders.get(id(pool), ()):
            self._adjust(holder)

    def _adjust(self, wait: _Wait) -> None:
        others = (other for pool in wait.holds for other in self._waits.get(id(pool), {}).values())
        causes = (other.level for other in others if other.stands())
        wanted = min(causes, default=wait.level)
        wanted = min(wanted, wait.level)
        if wanted != wait.lifted:
            wait.lifted = wanted
            waiter = wait.waiter()
            if waiter is not None:
                wait.pool.lift_waiter(waiter, wanted)


inheritance = Inheritance()
