"""Ten ways to break a token pool, on the pure side, each found by a test of this suite that is named with it.

A mutant is put in place by patching, the test's own function is called, and must fail; without the mutant it passes.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import test_pool_schedules as schedules
from both import package
from test_pool_schedules import quiet, sides

from relay._pure import _ledger, _token, permits
from relay._pure._budget import Budget
from relay._pure._ledger import Ledger, Trier
from relay._pure._lines import Lines, Place
from relay._pure.permits import Permits
from relay.errors import RelayError

__all__ = ["quiet"]

Patch = pytest.MonkeyPatch
SLOT = (1 << 22) - 1


# Two tests that need no schedules.


@sides
def test_nan_is_no_priority(side: str) -> None:
    """Nothing can be compared to it, so it must not get into any order: neither as a tier nor as a policy's key."""
    nan = float("nan")
    pool = package(side).TokenPool(1)
    with pool.acquire(0):
        for call in (pool.try_acquire, partial(pool.acquire, timeout=0), lambda tier: pool.lease(tier).__enter__()):
            with pytest.raises(TypeError, match="priority must be an int"):
                call(nan)
        with pytest.raises(TypeError, match="priority must be an int"):
            asyncio.run(_acquired(pool, nan))
    pool.close()
    pool = package(side).TokenPool(1, policy=lambda facts: nan)
    with pytest.raises(TypeError, match="must return an int"):
        pool.acquire(0, timeout=1, heartbeat=9)
    pool.check()
    pool.close()


async def _acquired(pool: Any, priority: Any) -> None:
    (await pool.acquire_async(priority)).release()


@sides
def test_the_wall_clock_may_jump(side: str) -> None:
    """By two hours at every look at it: who waits for an hour at most goes on waiting."""
    clock = package(side).clock.MonotonicClock
    held: list[Any] = []

    class Gate:
        """While its owner waits at it, somebody releases the token."""

        def __init__(self, gate: Any) -> None:
            self.gate = gate

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if blocking:
                held.pop().release()
            return bool(self.gate.acquire(blocking, timeout))

    class Watched(clock):  # type: ignore[misc, valid-type]
        def park(self, gate: Any, until_ns: int | None) -> bool:
            return bool(super().park(Gate(gate), until_ns))

    hours = itertools.count(0, 2 * 3600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: float(next(hours)))
        patch.setattr(time, "time_ns", lambda: next(hours) * 10**9)
        pool = package(side).TokenPool(1, clock=Watched())
        held.append(pool.try_acquire())
        pool.acquire(timeout=3600).release()
        pool.close()


# The mutants.


def no_rewake_on_cancel(patch: Patch) -> None:
    def give_up(self: Any, waiter: Any) -> None:
        if waiter.index >= 0:
            self._step_out(waiter)
        elif waiter.token is not None and self._arena.live(waiter.token._handle):
            self._end(waiter.token._handle)

    patch.setattr(Ledger, "_give_up", give_up)


def grant_at_resume(patch: Patch) -> None:
    """A waiter is woken, and takes the token itself if it is still there."""
    woken: dict[int, Place] = {}
    leave = Permits.leave

    def serve(self: Any) -> None:
        free = self._budget.free
        while self.waiting and free > 0 and (place := self._lines.choose(self._budget, self._now_ns())) is not None:
            self._remove(place.waiter.index)
            free -= place.cost
            if isinstance(place.waiter, Trier):
                place.waiter.token = self._give(place.level, place.priority, place.tenant, place.cost, 0, -1, 0)
            else:
                woken[id(place.waiter)] = place
                self._to_wake.append(place.waiter)

    def take_then_leave(self: Any, waiter: Any) -> Any:
        place = woken.pop(id(waiter), None)
        if place is not None:
            with self._guard:
                waiter.token = self._take(place.priority, place.cost, None, 0)
        return leave(self, waiter)

    patch.setattr(Ledger, "_serve", serve)
    patch.setattr(Permits, "leave", take_then_leave)


def timeout_without_give_back(patch: Patch) -> None:
    waiting = package("pure").waiting

    def wait_once(
        self: Any, priority: Any, timeout: Any, cost: int, tenant: Any, heartbeat: Any, arrival_ns: int
    ) -> Any:
        waiter, limit = waiting.Waiter(), self._limit_ns(timeout)
        token = self._join(waiter, priority, cost, tenant, self._beats_ns(heartbeat), arrival_ns)
        if token is None:
            if not self._clock.park(waiter.gate, None if limit < 0 else self._clock.now_ns() + limit):
                raise self._empty_handed(priority, timeout)
            token = self.leave(waiter)
        return token

    patch.setattr(waiting.Waiting, "_wait_once", wait_once)


class DeltaBudget(Budget):
    """Counts what is free, and a resize changes that by what it changes the capacity by."""

    left: int | None = None

    @property
    def free(self) -> int:
        return self.left or 0

    def resize(self, capacity: int) -> None:
        self.left = capacity if self.left is None else max(0, self.left + capacity - self.capacity)
        super().resize(capacity)

    def count(self, level: int, tenant: Any, units: int) -> None:
        super().count(level, tenant, units)
        self.left = self.free - units


def resize_by_delta(patch: Patch) -> None:
    patch.setattr(_ledger, "Budget", DeltaBudget)


def stale_generation_accepted(patch: Patch) -> None:
    def release(self: Any, token: Any) -> None:
        with self._guard:
            handle = self._handle(token._handle & SLOT)
            if not self._arena.live(handle):
                raise permits.stale_token("release")
            self._end(handle)
            self._serve()

    patch.setattr(Permits, "release", release)


def lease_refreshed_by_the_pool(patch: Patch) -> None:
    expire = Permits.expire

    def refresh_then_expire(self: Any, stretch: float = 1.0) -> Any:
        for handle in self._handles():
            self._arena.ready_ns[handle & SLOT] = self._now_ns()
        return expire(self, stretch)

    patch.setattr(Permits, "expire", refresh_then_expire)


def lifo_ties(patch: Patch) -> None:
    def join(self: Any, place: Place) -> None:
        self._next_seq -= 1
        place.seq = self._next_seq
        self._enter(place)

    patch.setattr(Lines, "join", join)


def nan_priority_accepted(patch: Patch) -> None:
    """The check asks whether it is too small or too large."""
    check = _token.check_priority

    def lax(priority: Any) -> int:
        if isinstance(priority, float):
            if priority < 0 or priority > 255:
                raise ValueError("priority must be from 0 to 255")
            return int(priority) if priority == priority else 255
        return check(priority)

    for module in (_ledger, permits, package("pure").waiting, package("pure").pool):
        patch.setattr(module, "check_priority" if hasattr(module, "check_priority") else "tier", lax)


def lost_reserved_count(patch: Patch) -> None:
    """A reserved unit that a cancelled waiter hands back is not kept for its tier any more."""

    def give_up(self: Any, waiter: Any) -> None:
        self.abandoned += waiter.index >= 0 or waiter.token is not None
        if waiter.index >= 0:
            self._step_out(waiter)
        elif waiter.token is not None and self._arena.live(waiter.token._handle):
            budget = self._budget
            unfilled, total = list(budget.unfilled), budget.unfilled_total
            self._end(waiter.token._handle)
            budget.unfilled, budget.unfilled_total = unfilled, total
            self._serve()

    patch.setattr(Ledger, "_give_up", give_up)


def wall_clock(patch: Patch) -> None:
    clock = package("pure").clock.MonotonicClock

    def park(self: Any, gate: Any, until_ns: int | None) -> bool:
        if until_ns is None:
            return bool(gate.acquire())
        left_ns = until_ns - time.time_ns()
        return bool(gate.acquire(timeout=left_ns / 10**9) if left_ns > 0 else gate.acquire(False))

    patch.setattr(clock, "now_ns", staticmethod(lambda: time.time_ns()))
    patch.setattr(clock, "park", park)


MUTANTS: list[tuple[Callable[[Patch], None], Callable[..., None], tuple[object, ...], str]] = [
    (no_rewake_on_cancel, schedules.test_grant_v_cancel, ("threads",), "a wake-up is lost"),
    (grant_at_resume, schedules.test_nobody_slips_in, (), "N. ended in token"),
    (timeout_without_give_back, schedules.test_grant_v_timeout, (), "a token was thrown away"),
    (resize_by_delta, schedules.test_resize_v_acquire_v_release, ("threads",), "tokens are lost, or too many"),
    (stale_generation_accepted, schedules.test_revoke_v_beat_v_release, ("threads", 1), "in use is not counted"),
    (lease_refreshed_by_the_pool, schedules.test_revoke_v_beat, (1,), "it never ends"),
    (lifo_ties, schedules.test_ties_in_order, (), "came .*, were served"),
    (nan_priority_accepted, test_nan_is_no_priority, (), "DID NOT RAISE"),
    (lost_reserved_count, schedules.test_two_cancels_v_release, ("threads",), "units miscounted"),
    (wall_clock, test_the_wall_clock_may_jump, (), "no token of 'pool' became free"),
]

FAILS = (AssertionError, RelayError, pytest.fail.Exception)


@pytest.mark.parametrize(
    ("mutant", "test", "arguments", "says"), MUTANTS, ids=[f"{each[0].__name__}-{each[1].__name__}" for each in MUTANTS]
)
def test_killed(
    mutant: Callable[[Patch], None], test: Callable[..., None], arguments: tuple[object, ...], says: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedules, "searched", schedules.searched.__wrapped__)  # knows nothing of the sound pool
        mutant(patch)
        with pytest.raises(FAILS, match=says) as found:
            test("pure", *arguments)
        print(f"{mutant.__name__} is killed by {test.__name__}:\n{found.value}")
    test("pure", *arguments)  # and passes without


def test_there_are_ten() -> None:
    assert len({mutant[0].__name__ for mutant in MUTANTS}) == len(MUTANTS) == 10
