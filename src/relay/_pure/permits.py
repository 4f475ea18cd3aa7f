"""Permits: who holds which token of a pool, and who waits for one.

Owns the token slots, the counters of each tier's floor, and the table of waiters with one heap for each group of tiers
that share a floor. Any thread may call any method; every call is atomic and none waits for user code. The invariant: no
eligible waiter waits while a token is free. A released token goes to the most urgent eligible waiter inside the release
itself, so nobody slips in between the wake-up and the waking.
"""

from __future__ import annotations

import threading
from typing import Any

from relay._pure.arena import Arena
from relay._pure.heap import PriorityHeap
from relay.errors import Closed, StaleToken

MAX_PRIORITY = 255
TIERS = (0, 1, 2)
"""The tiers that have a name of their own."""


def stale_token(action: str) -> StaleToken:
    """The error for any use of a token after its lease has ended."""
    return StaleToken(
        f"cannot {action} this token: its lease has ended (released before, or handed on); acquire a new one"
    )


def check_priority(priority: object) -> int:
    """Return `priority` as an int of 0 to 255.

    Raises:
        TypeError: It is not an int.
        ValueError: It is out of range.
    """
    if not isinstance(priority, int):
        raise TypeError(f"priority must be an int from 0 to 255, got {type(priority).__name__}")
    if not 0 <= priority <= MAX_PRIORITY:
        raise ValueError(f"priority must be from 0 to 255, got {priority}")
    return int(priority)


class Token:
    """A permit to use compute: the lease of one slot of a pool.

    A token is itself a context manager that releases it. Made by a pool, never directly.
    """

    __slots__ = ("_handle", "_permits", "priority")

    priority: int
    """The priority it was acquired at."""

    def __init__(self, permits: Permits, handle: int, priority: int) -> None:
        self._permits = permits
        self._handle = handle
        self.priority = priority

    @property
    def handle(self) -> int:
        """The slot and the lease it was given for, as one int; grows with every lease of a slot."""
        return self._handle

    @property
    def held(self) -> bool:
        """True until the lease ends."""
        return self._permits.holds(self)

    def release(self) -> None:
        """Give the token back. If somebody waits, it is theirs when this returns.

        Raises:
            StaleToken: The lease has ended already.
        """
        self._permits.release(self)

    def __enter__(self) -> Token:
        return self

    def __exit__(self, *exc: object) -> None:
        self._permits.release(self)

    def __repr__(self) -> str:
        return f"<Token priority={self.priority} {'held' if self.held else 'released'}>"


class Permits:
    """The core of a token pool.

    Args:
        capacity: Tokens in all.
        floors: For each tier with reserved tokens ``(tier, count)``: that many tokens are kept for requests of that
            tier. A priority that is neither named here nor one of 0, 1 and 2 belongs to the nearest of these below it.
        max_waiting: How many may wait at once.

    Raises:
        ValueError: A size is below 1, or the floors exceed the capacity.
    """

    def __init__(self, capacity: int, floors: tuple[tuple[int, int], ...] = (), max_waiting: int = 10_000) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        if max_waiting < 0:
            raise ValueError(f"max_waiting must be at least 0, got {max_waiting}")
        if sum(count for _, count in floors) > capacity:
            raise ValueError(
                f"reserved tokens come to {sum(count for _, count in floors)}, but the pool has only {capacity}; "
                "reserve fewer or raise the capacity"
            )
        named = sorted(floors)
        self._group = [0] * (MAX_PRIORITY + 1)
        for index, (tier, count) in enumerate(named, start=1):
            if check_priority(tier) != tier or count < 0:
                raise ValueError(f"a reserved count must be at least 0, got {count} for priority {tier}")
            above = [other for other in (*TIERS, *(other for other, _ in named)) if other > tier]
            for priority in range(tier, min(above, default=MAX_PRIORITY + 1)):
                self._group[priority] = index
        self._floor = [0] + [count for _, count in named]
        self._held = [0] * len(self._floor)
        self._unfilled = list(self._floor)
        self._unfilled_total = sum(self._floor)
        self._arena = Arena(capacity)
        self._heaps = [PriorityHeap(max(max_waiting, 1)) for _ in self._floor]
        self._parked: list[Any] = [None] * max_waiting
        self._idle_waiters = list(range(max_waiting))
        self._lock = threading.Lock()
        self.capacity = capacity
        self.max_waiting = max_waiting
        self.waiting = 0
        self.granted = 0
        self.closed = False

    def try_acquire(self, priority: int = 1) -> Token | None:
        """Take a token if one is free for this priority, else return None at once.

        Args:
            priority: 0 is the most urgent, 255 the least.

        Raises:
            TypeError: `priority` is not an int.
            ValueError: `priority` is out of range.
            Closed: The pool is closed.
        """
        priority = check_priority(priority)
        with self._lock:
            if self.closed:
                raise Closed("the pool is closed; no more tokens are given out")
            return self._take(priority)

    def acquire_or_join(self, priority: int, key: int, waiter: Any) -> Token | None:
        """Take a token, or stand in line as `waiter`, in one step.

        Args:
            priority: 0 to 255.
            key: The order among waiters; smaller first, equal keys in order of arrival.
            waiter: Any object with the attributes ``index``, set here, and ``token``, set when one is granted.
                ``_deliver(waiter)`` of the pool is called after the grant, outside the lock.

        Returns:
            The token, or None: then ``waiter.index`` is its place, or -1 if too many wait already.

        Raises:
            TypeError, ValueError, Closed: As `try_acquire`.
        """
        priority = check_priority(priority)
        with self._lock:
            if self.closed:
                raise Closed("the pool is closed; no more tokens are given out")
            token = self._take(priority)
            if token is not None:
                return token
            if not self._idle_waiters:
                waiter.index = -1
                return None
            index = self._idle_waiters.pop()
            waiter.index = index
            waiter.priority = priority
            self._parked[index] = waiter
            self._heaps[self._group[priority]].push(key, index)
            self.waiting += 1
            return None

    def leave(self, waiter: Any) -> Token | None:
        """Leave the line.

        Returns:
            None if the waiter left empty-handed, else the token it had been granted meanwhile; the caller must keep it
            or release it.
        """
        with self._lock:
            if waiter.index >= 0:
                self._remove(waiter)
            token: Token | None = waiter.token
            return token

    def release(self, token: Token) -> None:
        """Take `token` back and hand it to the most urgent eligible waiter, if there is one.

        Raises:
            StaleToken: Its lease has ended.
        """
        with self._lock:
            handle = token._handle
            if not self._arena.live(handle):
                raise stale_token("release")
            self._count(token.priority, -1)
            index = self._next_waiter(self.capacity - len(self._arena) + 1)
            if index < 0:
                self._arena.release(handle)
                return
            waiter = self._parked[index]
            self._remove(waiter)
            waiter.token = self._give(self._arena.hand_over(handle), waiter.priority)
        self._deliver(waiter)

    def holds(self, token: Token) -> bool:
        """True while the lease of `token` lasts."""
        with self._lock:
            return self._arena.live(token._handle)

    def shut(self) -> list[Any]:
        """Refuse all further calls and return those who waited; tokens already held stay valid."""
        with self._lock:
            self.closed = True
            left = [waiter for waiter in self._parked if waiter is not None]
            for waiter in left:
                self._remove(waiter)
            return left

    @property
    def held(self) -> int:
        """Tokens held now."""
        return len(self._arena)

    @property
    def free(self) -> int:
        """Tokens free now, reserved ones included."""
        return self.capacity - len(self._arena)

    def __len__(self) -> int:
        """Tokens held now."""
        return len(self._arena)

    def check(self) -> None:
        """Recount everything.

        Raises:
            AssertionError: An invariant is broken, which is a bug in relay.
        """
        with self._lock:
            self._arena.check()
            for heap in self._heaps:
                heap.check()
            waiting = [w for w in self._parked if w is not None]
            bug = "; this is a bug in relay"
            assert len(waiting) == self.waiting == sum(len(heap) for heap in self._heaps), "waiters miscounted" + bug
            assert self.waiting + len(self._idle_waiters) == self.max_waiting, "waiter places miscounted" + bug
            assert sum(self._held) == len(self._arena), "held tokens miscounted" + bug
            unfilled = [max(0, floor - held) for floor, held in zip(self._floor, self._held, strict=True)]
            assert unfilled == self._unfilled and sum(unfilled) == self._unfilled_total, (
                "reserved tokens miscounted" + bug
            )
            assert self._next_waiter(self.capacity - len(self._arena)) < 0, (
                "an eligible waiter waits beside a free token" + bug
            )

    def _deliver(self, waiter: Any) -> None:
        """Wake a waiter that has just been granted a token; the pool overrides this."""

    def _take(self, priority: int) -> Token | None:
        if not self._eligible(self._group[priority], self.capacity - len(self._arena)):
            return None
        return self._give(self._arena.lease(busy=True), priority)

    def _give(self, handle: int, priority: int) -> Token:
        self._count(priority, 1)
        self.granted += 1
        return Token(self, handle, priority)

    def _eligible(self, group: int, free: int) -> bool:
        return free - (self._unfilled_total - self._unfilled[group]) > 0

    def _count(self, priority: int, by: int) -> None:
        group = self._group[priority]
        self._held[group] += by
        unfilled = max(0, self._floor[group] - self._held[group])
        self._unfilled_total += unfilled - self._unfilled[group]
        self._unfilled[group] = unfilled

    def _next_waiter(self, free: int) -> int:
        """The most urgent waiter who may take one of `free` tokens, or -1."""
        best, best_key = -1, 0
        if not self.waiting:
            return best
        for group, heap in enumerate(self._heaps):
            if len(heap) and self._eligible(group, free):
                index = heap.peek()
                key = heap.key_of(index)
                if best < 0 or key < best_key:
                    best, best_key = index, key
        return best

    def _remove(self, waiter: Any) -> None:
        index = waiter.index
        self._heaps[self._group[waiter.priority]].remove(index)
        self._parked[index] = None
        self._idle_waiters.append(index)
        waiter.index = -1
        self.waiting -= 1
