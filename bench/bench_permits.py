"""Permits on both sides, and the standard library's limiters beside them; run with pytest-benchmark."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

STEPS = 1_000


class Waiter:
    __slots__ = ("index", "token")

    def __init__(self) -> None:
        self.index = -1
        self.token: Any = None


def made(side: str, floors: tuple[tuple[int, int], ...] = ((0, 1), (2, 1))) -> Any:
    permits = importlib.import_module(f"relay.{side}.permits").Permits(8, floors, 2_000)
    permits.custom = False
    return permits


@pytest.mark.parametrize("floors", [(), ((0, 1), (2, 1))], ids=["plain", "reserved"])
@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_pair(benchmark: Callable[..., object], side: str, floors: tuple[tuple[int, int], ...]) -> None:
    permits = made(side, floors)

    def pairs() -> None:
        take, give = permits.try_acquire, permits.release
        for _ in range(STEPS):
            give(take(1))

    benchmark(pairs)
    permits.check()


@pytest.mark.parametrize("limiter", [threading.Lock, threading.Semaphore], ids=["Lock", "Semaphore"])
def test_pair_of_the_standard_library(benchmark: Callable[..., object], limiter: Callable[[], Any]) -> None:
    made_limiter = limiter()

    def pairs() -> None:
        take, give = made_limiter.acquire, made_limiter.release
        for _ in range(STEPS):
            take()
            give()

    benchmark(pairs)


@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_hand_over(benchmark: Callable[..., object], side: str) -> None:
    """Each release finds a line of 50 and gives the token to the first."""
    permits = made(side, ())
    held = [permits.try_acquire() for _ in range(8)]
    line = [Waiter() for _ in range(50)]
    keys = count()
    for waiter in line:
        permits.acquire_or_join(1, next(keys), waiter)

    def turns() -> None:
        token = held.pop()
        for _ in range(STEPS // 50):
            for waiter in line:
                token.release()
                token, waiter.token = waiter.token, None
                permits.acquire_or_join(1, next(keys), waiter)
        held.append(token)

    benchmark(turns)
    permits.check()


@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_join_and_leave(benchmark: Callable[..., object], side: str) -> None:
    permits = made(side, ())
    held = [permits.try_acquire() for _ in range(8)]
    waiter = Waiter()

    def turns() -> None:
        join, leave = permits.acquire_or_join, permits.leave
        for key in range(STEPS):
            join(1, key, waiter)
            leave(waiter)

    benchmark(turns)
    permits.check()
    assert len(held) == 8


POLICIES: dict[str, dict[str, Any]] = {
    "keys": {},
    "overdue": {"allowance_ns": [1_000_000] * 256, "overdue_every": 8},
    "shares": {"weights": {"tenant 0": 2.0}},
    "caps": {"cap": 1},
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_hand_over_past_a_thousand_tenants(benchmark: Callable[..., object], side: str, policy: str) -> None:
    """Each release finds a line of every tenant. With caps, all but one hold what they may, and are not looked at."""
    woken: list[Waiter] = []

    class Noting(importlib.import_module(f"relay.{side}.permits").Permits):  # type: ignore[misc]
        def _deliver(self, waiter: Waiter) -> bool:
            woken.append(waiter)
            return True

    permits = Noting(8, (), 2_000, 2_000, **POLICIES[policy])
    names = [f"tenant {i}" for i in range(1_000)]
    if policy == "caps":
        permits.resize(1_007)
        held = [permits.try_acquire(1, 1, name) for name in names[1:]] + [permits.try_acquire() for _ in range(8)]
    else:
        held = [permits.try_acquire() for _ in range(8)]
    for name in names:
        permits.acquire_or_join(1, None, Waiter(), 1, name)

    def turns() -> None:
        token = held.pop()
        for _ in range(100):
            token.release()
            waiter = woken.pop()
            token, waiter.token = waiter.token, None
            permits.acquire_or_join(1, None, waiter, 1, token.tenant)
        held.append(token)

    benchmark(turns)
    permits.check()


@pytest.mark.parametrize("limiter", ["Semaphore", "_pure", "_core"])
def test_await_uncontended(benchmark: Callable[..., object], limiter: str) -> None:
    async def relay() -> None:
        take = made(limiter, ()).acquire_async
        for _ in range(STEPS):
            (await take(1)).release()

    async def standard() -> None:
        semaphore = asyncio.Semaphore(8)
        for _ in range(STEPS):
            await semaphore.acquire()
            semaphore.release()

    main = standard if limiter == "Semaphore" else relay
    with asyncio.Runner() as runner:
        benchmark(lambda: runner.run(main()))
