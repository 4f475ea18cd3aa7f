"""TokenPool: who is served and in which order, what is refused, leases, and the end.

Threads line up on a fake clock, so nothing sleeps.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Make, Run, turns

from relay.errors import AcquireTimeout, Closed, StaleToken

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]


def test_comes_from_its_side(lab: Lab, make: Make) -> None:
    pool = make(2, name="gpu")
    side = {"pure": "relay._pure", "native": "relay._core"}[lab.backend]
    assert any(base.__module__ == f"{side}.permits" for base in type(pool).__mro__)
    with pool.try_acquire() as token:
        assert type(token) is lab.Token
        assert "1 of 2 held, 0 waiting" in repr(pool) and "'gpu'" in repr(pool)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [((0,), {}), ((2,), {"reserved": {0: 3}}), ((2,), {"reserved": {"urgent": 1}}), ((1,), {"max_waiting": -1}),
     ((4,), {"reserved": {0: 1, "realtime": 1}})],
)  # fmt: skip
def test_refused_at_construction(lab: Lab, arguments: Any, options: Any) -> None:
    with pytest.raises(ValueError):
        lab.TokenPool(*arguments, **options)


def test_names_of_tiers(make: Make) -> None:
    pool = make(1, reserved={"realtime": 1})
    assert pool.try_acquire("batch") is None
    with pool.acquire("Realtime") as token, pytest.raises(AcquireTimeout):
        assert token.priority == 0
        pool.acquire("batch", timeout=0)
    for wrong in ("urgent", 256, -1):
        with pytest.raises(ValueError, match="priority"):
            pool.acquire(wrong)
        with pytest.raises(ValueError, match="priority"):
            pool.try_acquire(wrong)


def test_threads_are_served_by_priority_then_arrival(lab: Lab, make: Make, clock: Any) -> None:
    pool, served = make(1), list[int]()
    token = pool.acquire()
    line = [2, 1, 1, 0, 2, 0]

    def work(index: int) -> None:
        with pool.acquire(line[index], timeout=100):
            served.append(index)

    threads = []
    for index in range(len(line)):
        threads.append(lab.call(work, index))
        clock.wait_for_sleepers(index + 1)
    token.release()
    for thread in threads:
        thread.result()
    assert served == [3, 5, 1, 2, 0, 4]
    assert pool.snapshot().granted == 7


def test_coroutines_are_served_by_priority_then_arrival(make: Make, run: Run) -> None:
    pool, served = make(1), list[int]()
    line = [2, 1, 1, 0, 2, 0]

    async def work(index: int) -> None:
        async with pool.lease(line[index], timeout=5):
            served.append(index)

    async def main() -> None:
        token = await pool.acquire_async()
        tasks = [asyncio.create_task(work(index)) for index in range(len(line))]
        await turns(1)
        assert pool.waiting == len(line)
        token.release()
        await asyncio.gather(*tasks)

    run(main())
    assert served == [3, 5, 1, 2, 0, 4]


def test_within_a_tier_the_allowance_orders(make: Make, clock: Any, run: Run) -> None:
    """Tier 3 takes the settings of tier 2, and stands behind it whenever it came."""
    pool = make(1)

    async def main() -> list[int]:
        served: list[int] = []

        async def work(priority: int) -> None:
            async with pool.lease(priority):
                served.append(priority)

        token = await pool.acquire_async()
        tasks = []
        for priority in (255, 3, 2, 3):
            tasks.append(asyncio.create_task(work(priority)))
            await turns(1)
            clock.advance(1)
        token.release()
        await asyncio.gather(*tasks)
        return served

    assert run(main()) == [2, 3, 3, 255]


def test_the_releaser_hands_over(lab: Lab, make: Make, clock: Any) -> None:
    pool = make(1)
    token = pool.acquire()
    go = threading.Event()

    def work() -> int:
        with pool.acquire(2) as mine:
            go.wait(30)
            return int(mine.handle)

    thread = lab.call(work)
    clock.wait_for_sleepers(1)
    token.release()
    for _ in range(3):
        assert pool.try_acquire(0) is None, "nobody slips in between the wake-up and the waking"
    assert pool.waiting == 0 and pool.held == 1
    go.set()
    assert thread.result() > token.handle


def test_the_releaser_hands_over_to_a_coroutine(lab: Lab, make: Make, run: Run) -> None:
    pool = make(1)

    async def main() -> None:
        token = await pool.acquire_async()
        waiter = asyncio.create_task(pool.acquire_async(2))
        await turns(1)
        token.release()
        assert pool.try_acquire(0) is None
        with pytest.raises(AcquireTimeout):
            await pool.acquire_async(0, timeout=0)
        (await waiter).release()
        # From another thread.
        token = await pool.acquire_async()
        waiter = asyncio.create_task(pool.acquire_async(2))
        await turns(1)
        lab.call(token.release).result()
        assert pool.try_acquire(0) is None
        (await waiter).release()

    run(main())


def test_floors_and_waiters(make: Make, clock: Any, run: Run) -> None:
    pool = make(2, reserved={0: 1})

    async def main() -> None:
        plain = await pool.acquire_async(1)
        with pytest.raises(AcquireTimeout):
            await pool.acquire_async(1, timeout=0)
        waiter = asyncio.create_task(pool.acquire_async(1))
        await turns()
        urgent = await pool.acquire_async(0, timeout=0)
        assert pool.waiting == 1
        urgent.release()
        await turns()
        assert not waiter.done() and pool.free == 1, "a floor is kept, not lent"
        plain.release()
        (await waiter).release()

    run(main())


def test_stale_tokens(make: Make) -> None:
    pool, other = make(1), make(1)
    token = pool.acquire()
    with pytest.raises(ValueError, match="another pool"):
        other.release(token)
    pool.release(token)
    again = pool.acquire()
    for use in (token.release, lambda: pool.release(token)):
        with pytest.raises(StaleToken):
            use()
    assert again.held and not token.held
    with pytest.raises(StaleToken), again:
        again.release()


def test_leases(make: Make, run: Run) -> None:
    pool = make(2)
    lease = pool.lease(2, timeout=1)
    for _ in range(2):
        with lease as token:
            assert token.held and token.priority == 2
            with pytest.raises(RuntimeError, match="this lease is in use"):
                lease.__enter__()
        assert not token.held and pool.held == 0
    with pytest.raises(KeyError), pool.lease() as token:
        raise KeyError
    assert not token.held

    async def main() -> None:
        shared = pool.lease()
        async with shared as token:
            assert token.held
            with pytest.raises(RuntimeError, match="this lease is in use"):
                await shared.__aenter__()
        assert not token.held
        with pytest.raises(KeyError):
            async with pool.lease() as token:
                raise KeyError

    run(main())
    blocked = pool.lease(timeout=0)
    with pool.acquire(), pool.acquire(), pytest.raises(AcquireTimeout), blocked:
        pass
    with blocked:
        pass


def test_blocking_on_a_loop_warns(lab: Lab, make: Make, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.package.ticket, "_warned", set())  # it warns once for each place
    pool = make(1, clock=None)

    async def main() -> None:
        with pool.acquire():  # does not block
            with pytest.warns(RuntimeWarning, match=r"use acquire_async\(\)"):
                with pytest.raises(AcquireTimeout):
                    pool.acquire(timeout=1e-6)

    run(main())


def test_close_sends_everybody_away(lab: Lab, make: Make, clock: Any, run: Run) -> None:
    pool = make(1)
    token = pool.acquire()
    threads = []
    for index in range(4):
        threads.append(lab.call(pool.acquire, timeout=(None, 50)[index % 2]))
        clock.wait_for_sleepers(index + 1)

    async def main() -> None:
        tasks = [asyncio.create_task(pool.acquire_async(timeout=(None, 50)[i % 2])) for i in range(4)]
        await turns()
        assert pool.waiting == 8
        pool.close()
        for task in tasks:
            with pytest.raises(Closed, match="was closed while waiting"):
                await task
        with pytest.raises(Closed):
            await pool.acquire_async()
        with pytest.raises(Closed):
            await pool.run_async(int)

    run(main())
    for thread in threads:
        with pytest.raises(Closed, match="was closed while waiting"):
            thread.result()
    for call in (pool.acquire, pool.try_acquire, pool.lease().__enter__):
        with pytest.raises(Closed):
            call()
    assert token.held and pool.held == 1, "who holds a token may finish"
    token.release()
    pool.close()


def test_a_pool_is_a_context_manager(make: Make) -> None:
    with make(1) as pool:
        pool.acquire().release()
    with pytest.raises(Closed):
        pool.acquire()


def test_snapshot(make: Make) -> None:
    pool = make(3, name="gpu", reserved={0: 1})
    token = pool.acquire()
    state = pool.snapshot()
    assert (state.name, state.capacity, state.held, state.free, state.waiting, state.granted) == ("gpu", 3, 1, 2, 0, 1)
    assert (state.timed_out, state.refused) == (0, 0)
    token.release()
    assert state.held == 1, "a snapshot does not move"
