"""Retries of whoever asks a pool for a token, by whichever door it comes in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Loops, turns

from relay.errors import AcquireTimeout, Closed, Overloaded, TooLarge

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]

DOORS = ["acquire", "lease", "run", "guard"]


def door(pool: Any, name: str, priority: int, **options: Any) -> Any:
    """Calls with a token, on this thread, in one of the ways there are; says which priority it held."""

    def work() -> Any:
        (token,) = pool.tokens()
        return token.priority, token.cost

    if name == "acquire":
        with pool.acquire(priority, **options):
            return work()
    if name == "lease":
        with pool.lease(priority, **options):
            return work()
    if name == "run":
        return pool.run(work, priority=priority, **options)
    return pool.guard(priority=priority, **options)(work)()


async def async_door(pool: Any, name: str, priority: int, **options: Any) -> Any:
    """The same for coroutines."""

    async def work() -> Any:
        (token,) = pool.tokens()
        return token.priority, token.cost

    if name == "acquire":
        with await pool.acquire_async(priority, **options):
            return await work()
    if name == "lease":
        async with pool.lease(priority, **options):
            return await work()
    if name == "run":
        return await pool.run_async(work, priority=priority, **options)
    return await pool.guard(priority=priority, **options)(work)()


def any_door(lab: Lab, loops: Loops, where: str) -> Callable[..., Any]:
    """Either of them, in a thread of its own."""
    if where == "thread":
        return lambda *args, **options: lab.call(door, *args, **options)
    return lambda *args, **options: lab.call(lambda: lab.run(loops, async_door(*args, **options)))


@pytest.fixture(params=["thread", "coroutine"])
def enter(request: pytest.FixtureRequest, lab: Lab) -> Callable[..., Any]:
    """Starts a call through a door, of a thread's or of a coroutine's kind."""
    return any_door(lab, asyncio.new_event_loop, request.param)


@pytest.mark.parametrize("name", DOORS)
def test_the_next_try_keeps_the_first_ones_place(lab: Lab, enter: Callable[..., Any], name: str) -> None:
    """Who has come first is served first, even if it stood in no line meanwhile."""
    clock = lab.clock()
    pool = lab.pool(2, clock=clock)
    token = pool.acquire(cost=2)
    retry = lab.Retry(max_retries=1, base=4.0, jitter="none", cap=9)
    go = threading.Event()

    early = enter(pool, name, 2, timeout=1, cost=2, retry=retry)
    lab.in_line(pool, 1)
    clock.wait_for_sleepers(1)
    clock.advance(0.5)

    def stand() -> None:
        with pool.acquire(2, cost=2):
            go.wait(30)

    late = lab.call(stand)
    lab.in_line(pool, 2)
    clock.wait_for_sleepers(2)
    clock.advance(0.5)
    lab.wait_until(lambda: pool.snapshot().timed_out == 1)
    clock.wait_for_sleepers(2)
    assert pool.waiting == 1
    clock.advance(4.0)
    lab.in_line(pool, 2)
    token.release()
    assert early.result() == (2, 2)
    assert not go.is_set() and late.thread.is_alive(), "it came later, and is served later"
    go.set()
    late.result()
    assert pool.snapshot().p99_wait == pytest.approx(clock.now_ns() / 1e9 - 1000, rel=0.04), "counted from its arrival"


@pytest.mark.parametrize("name", DOORS)
def test_tries_end_with_the_total(lab: Lab, enter: Callable[..., Any], name: str) -> None:
    clock = lab.clock()
    pool = lab.pool(1, clock=clock)
    retry = lab.Retry(max_retries=9, base=1.0, factor=1, jitter="none", total=4.0)
    with pool.acquire():
        call = enter(pool, name, 1, timeout=2, retry=retry)
        lab.in_line(pool, 1)
        clock.wait_for_sleepers(1)
        clock.advance(2)
        lab.wait_until(lambda: pool.snapshot().timed_out == 1)
        clock.wait_for_sleepers(1)
        clock.advance(1)
        lab.in_line(pool, 1)
        clock.wait_for_sleepers(1)
        clock.advance(1)
        with pytest.raises(AcquireTimeout, match="no token") as raised:
            call.result()
    assert clock.now_ns() == 1004e9, "the second try had what was left"
    assert "relay gave up after 2 tries in 4.000 s: the next would be 1.000 s later, past total=4.0 s" in str(
        raised.value.__notes__
    )


@pytest.mark.parametrize("name", DOORS)
def test_tries_end_with_the_budget(lab: Lab, enter: Callable[..., Any], name: str) -> None:
    clock = lab.clock()
    pool = lab.pool(1, clock=clock, max_waiting=0)
    budget = lab.RetryBudget(ratio=0, min_per_second=0.2, window=10, clock=clock)
    retry = lab.Retry(max_retries=9, base=0, jitter="none", budget=budget)
    with pool.acquire():
        with pytest.raises(Overloaded, match="max_waiting") as refused:
            enter(pool, name, 0, retry=retry).result()
        assert (
            "after 3 tries" in refused.value.__notes__[0] and "the retry budget is spent" in refused.value.__notes__[0]
        )
        with pytest.raises(AcquireTimeout) as raised:
            enter(pool, name, 0, timeout=0, retry=retry).result()
        assert "after 1 try" in raised.value.__notes__[0]
    assert budget.balance == 0 and pool.snapshot().refused == 3
    assert enter(pool, name, 0, retry=retry).result() == (0, 1), "a first try costs nothing"


@pytest.mark.parametrize("name", DOORS)
def test_what_no_later_try_gets_over(lab: Lab, enter: Callable[..., Any], name: str) -> None:
    clock = lab.clock()
    pool = lab.pool(1, clock=clock)
    retry = lab.Retry(max_retries=9, base=100)
    with pytest.raises(TooLarge):
        enter(pool, name, 1, cost=2, retry=retry).result()
    with pytest.raises(TypeError, match=r"retry must be a relay.Retry"):
        enter(pool, name, 1, retry=3).result()
    pool.close()
    with pytest.raises(Closed):
        enter(pool, name, 1, retry=retry).result()


def test_work_is_not_tried_again(lab: Lab, loops: Loops) -> None:
    """A retry is for the token: what the work raises is its own, even if it looks like the pool's."""
    pool = lab.pool(1)
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        raise AcquireTimeout("of another pool")

    retry = lab.Retry(base=0)
    with pytest.raises(AcquireTimeout, match="of another pool"):
        pool.run(work, retry=retry)
    with pytest.raises(AcquireTimeout, match="of another pool"):
        lab.run(loops, pool.run_async(work, retry=retry))
    assert calls == [1, 1]


def test_who_is_cancelled_between_tries_leaves_nothing(lab: Lab, loops: Loops) -> None:
    clock = lab.clock()
    pool = lab.pool(1, clock=clock)

    async def main() -> None:
        with pool.acquire():
            retry = lab.Retry(base=5.0, jitter="none", cap=5)
            call = asyncio.create_task(pool.run_async(int, timeout=0, retry=retry))
            await turns()
            clock.wait_for_sleepers(1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert (pool.held, pool.waiting) == (0, 0)

    lab.run(loops, main())
    clock.advance(5)
