"""Permits: who holds which token of a pool, and who waits for one.

Owns the token slots, the counters of each tier's floor, and the table of waiters with one heap for each group of tiers
that share a floor. Any thread may call any method; every call is atomic and none waits for user code. The invariant: no
eligible waiter waits while a token is free. A released token goes to the most urgent eligible waiter inside the release
itself, so nobody slips in between the wake-up and the waking.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from relay._pure.arena import Arena
from relay._pure.heap import PriorityHeap
from relay._pure.state import MAX_SLOTS, as_int64
from relay.errors import Closed, StaleToken

__all__ = ["MAX_PRIORITY", "NAMES", "NO_PLACE", "TIERS", "Permits", "Token", "check_priority", "stale_token"]

MAX_PRIORITY = 255
TIERS = (0, 1, 2)
"""The tiers that have a name of their own."""
NAMES = {"realtime": 0, "interactive": 1, "batch": 2}
NO_PLACE = -2
"""The index of a waiter who found too many in line."""

_BUG = "; this is a bug in relay"


def stale_token(action: str) -> StaleToken:
    """The error for any use of a token after its lease has ended."""
    return StaleToken(
        f"cannot {action} this token: its lease has ended (released before, or handed on); acquire a new one"
    )


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
    if not isinstance(priority, int):
        raise TypeError(f"priority must be an int from 0 to 255 or a name, got {type(priority).__name__}")
    if not 0 <= priority <= MAX_PRIORITY:
        raise ValueError(f"priority must be from 0 to {MAX_PRIORITY}, got {priority}")
    return int(priority)


def _size(name: str, value: int, least: int) -> int:
    value = as_int64(name, value)
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if value > MAX_SLOTS:
        raise ValueError(f"{name} must be at most {MAX_SLOTS}, got {value}")
    return value


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
        if not self.held:
            raise stale_token("use")
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
        ValueError: A size is out of range, the floors exceed the capacity, or name one tier twice.
    """

    __slots__ = (
        "_arena", "_call", "_floor", "_group", "_heaps", "_held", "_idle_waiters", "_parked", "_unfilled",
        "_unfilled_total", "capacity", "closed", "granted", "max_waiting", "waiting",
    )  # fmt: skip

    def __init__(self, capacity: int, floors: tuple[tuple[int, int], ...] = (), max_waiting: int = 10_000) -> None:
        capacity, max_waiting = _size("capacity", capacity, 1), _size("max_waiting", max_waiting, 0)
        named = sorted((check_priority(tier), _size("a reserved count", count, 0)) for tier, count in floors)
        reserved = sum(count for _, count in named)
        if reserved > capacity:
            raise ValueError(
                f"reserved tokens come to {reserved}, but the pool has only {capacity}; "
                "reserve fewer or raise the capacity"
            )
        if len(dict(named)) < len(named):
            raise ValueError("tokens are reserved twice for one priority; name each priority once")
        self._group = [0] * (MAX_PRIORITY + 1)
        for index, (tier, _) in enumerate(named, start=1):
            above = [other for other in (*TIERS, *dict(named)) if other > tier]
            for priority in range(tier, min(above, default=MAX_PRIORITY + 1)):
                self._group[priority] = index
        self._floor = [0] + [count for _, count in named]
        self._held = [0] * len(self._floor)
        self._unfilled = list(self._floor)
        self._unfilled_total = reserved
        self._arena = Arena(capacity)
        self._heaps = [PriorityHeap(max(max_waiting, 1)) for _ in self._floor]
        self._parked: list[Any] = [None] * max_waiting
        self._idle_waiters = list(range(max_waiting))
        self._call = _Call(self)
        self.capacity = capacity
        self.max_waiting = max_waiting
        self.waiting = 0
        self.granted = 0
        self.closed = False

    def try_acquire(self, priority: int | str = 1) -> Token | None:
        """Take a token if one is free for this priority, else return None at once.

        Args:
            priority: 0 is the most urgent, 255 the least; or the name of a tier.

        Raises:
            TypeError: `priority` is neither an int nor a name.
            ValueError: `priority` is out of range.
            Closed: The pool is closed.
        """
        priority = check_priority(priority)
        with self._call:
            if self.closed:
                raise Closed("the pool is closed; no more tokens are given out")
            return self._take(priority)

    def acquire_or_join(self, priority: int | str, key: int, waiter: Any) -> Token | None:
        """Take a token, or stand in line as `waiter`, in one step.

        Args:
            priority: As for `try_acquire`.
            key: The order among waiters; smaller first, equal keys of tiers that share a floor in order of arrival.
            waiter: Any object with the attributes ``index`` and ``priority``, set here, and ``token``, None until one
                is granted. ``_deliver(waiter)`` of the pool is called after the grant, outside the lock.

        Returns:
            The token, which ``waiter.token`` is too, or None: then ``waiter.index`` is its place while it stands in
            line, -1 from then on, and `NO_PLACE` if too many wait already.

        Raises:
            TypeError, ValueError, OverflowError, Closed: As `try_acquire`; `key` is an int of 64 bits.
        """
        priority, key = check_priority(priority), as_int64("key", key)
        waiter.priority = priority
        with self._call:
            if self.closed:
                raise Closed("the pool is closed; no more tokens are given out")
            token = self._take(priority)
            if token is not None:
                waiter.token = token
                return token
            if not self._idle_waiters:
                waiter.index = NO_PLACE
                return None
            waiter.index = index = self._idle_waiters.pop()
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
        with self._call:
            if waiter.index >= 0:
                self._remove(waiter)
            token: Token | None = waiter.token
            return token

    def release(self, token: Token) -> None:
        """Take `token` back and hand it to the most urgent eligible waiter, if there is one.

        Raises:
            StaleToken: Its lease has ended.
            TypeError: It is no token.
            ValueError: It belongs to another pool.
        """
        if not isinstance(token, Token):
            raise TypeError(f"token must be a Token, got {type(token).__name__}")
        if token._permits is not self:
            raise ValueError("this token belongs to another pool; call token.release(), which knows its own")
        with self._call:
            if not self._arena.live(token._handle):
                raise stale_token("release")
            if self._call.depth > 1:
                self._call.late.append(token)
                return
            waiter = self._take_back(token)
        self._pass_on(waiter)

    def holds(self, token: Token) -> bool:
        """True while the lease of `token`, one of this pool's, lasts."""
        if not isinstance(token, Token):
            raise TypeError(f"token must be a Token, got {type(token).__name__}")
        with self._call:
            return token._permits is self and self._arena.live(token._handle)

    def shut(self) -> list[Any]:
        """Refuse all further calls and return those who waited; tokens already held stay valid."""
        with self._call:
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
        with self._call:
            self._arena.check()
            for heap in self._heaps:
                heap.check()
            waiting = [w for w in self._parked if w is not None]
            unfilled = [max(0, floor - held) for floor, held in zip(self._floor, self._held, strict=True)]
            if unfilled != self._unfilled or sum(unfilled) != self._unfilled_total or self.free < sum(unfilled):
                raise AssertionError("reserved tokens miscounted" + _BUG)
            if sum(self._held) != len(self._arena):
                raise AssertionError("held tokens miscounted" + _BUG)
            if not len(waiting) == self.waiting == sum(len(heap) for heap in self._heaps):
                raise AssertionError("waiters miscounted" + _BUG)
            if self.waiting + len(self._idle_waiters) != self.max_waiting:
                raise AssertionError("waiter places miscounted" + _BUG)
            if self._next_waiter(self.free) >= 0:
                raise AssertionError("an eligible waiter waits beside a free token" + _BUG)

    def _deliver(self, waiter: Any) -> bool:
        """Wake a waiter that has just been granted a token; the pool overrides this. False if it will never wake."""
        return True

    def _take_back(self, token: Token) -> Any:
        """End a lease; the waiter who has been given the token, or None."""
        self._count(token.priority, -1)
        index = self._next_waiter(self.free + 1)
        if index < 0:
            self._arena.release(token._handle)
            return None
        waiter = self._parked[index]
        self._remove(waiter)
        waiter.token = self._give(self._arena.hand_over(token._handle), waiter.priority)
        return waiter

    def _pass_on(self, waiter: Any) -> None:
        """Wake the one who has been given a token; if it never will, the next gets it."""
        while waiter is not None and not self._deliver(waiter):
            with self._call:
                if not self._arena.live(waiter.token._handle):
                    return  # it has been finalised meanwhile, and has released the token itself
                waiter = self._take_back(waiter.token)

    def _take(self, priority: int) -> Token | None:
        if not self._eligible(self._group[priority], self.free):
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


class _Call:
    """Lets one call at a time, and one thread, change a pool.

    A finaliser may run in the middle of a call, on the same thread, and release a token: that waits in `late` until the
    call ends.
    """

    __slots__ = ("_lock", "_permits", "depth", "late")

    def __init__(self, permits: Permits) -> None:
        self._permits = permits
        self._lock = threading.RLock()
        self.depth = 0
        self.late: list[Token] = []

    def __enter__(self) -> None:
        self._lock.acquire()
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1
        late: list[Token] = []
        if self.late and not self.depth:
            late, self.late = self.late, late
        self._lock.release()
        for token in late:
            with contextlib.suppress(StaleToken):
                self._permits.release(token)
