"""The doors of `Permits` that wait: `acquire`, and the coroutine `Acquire`, however it ends."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from conftest import Core
from permits_kit import NO_PLACE, Clock

from relay.errors import Closed, Overloaded

pytest_plugins = ["both"]

Loops = Callable[[], asyncio.AbstractEventLoop]
Run = Callable[[Awaitable[Any]], Any]


@pytest.fixture
def make(core: Core) -> Callable[..., Any]:
    class Pool(core.permits.Permits):  # type: ignore[name-defined, misc]
        """Timeouts are ns; its hooks note what they are told."""

        def _deliver(self, waiter: Any) -> bool:
            return bool(waiter.wake())

        def _wait(self, *arguments: Any) -> Any:
            self.seen.append(("wait", *arguments))
            return "waited"

        def _wait_async(self, *arguments: Any) -> Any:
            self.seen.append(("wait async", *arguments))
            return "a coroutine"

        def _limit_ns(self, timeout: float | None) -> int:
            if timeout is not None and timeout < 0:
                raise ValueError("no such timeout")
            return -1 if timeout is None else int(timeout)

        def _beats_ns(self, heartbeat: float | None) -> int:
            return -1 if heartbeat is None else int(heartbeat)

        def _arm(self, waiter: Any, limit_ns: int) -> None:
            self.armed.append((waiter, limit_ns))

        def _left(self, waiter: Any) -> None:
            self.left.append(waiter)

        def _refuse(self, priority: int, cost: int) -> None:
            raise Overloaded(f"full {priority} {cost}")

        def _empty_handed(self, priority: Any, timeout: Any) -> Exception:
            return TimeoutError(f"{priority} {timeout}")

        def _trace(self, token: Any) -> None:
            self.seen.append(("trace", token.handle))

    def made(*arguments: Any, custom: bool = False, **keywords: Any) -> Any:
        clock = Clock()
        pool = core.watch(Pool(*arguments, now_ns=clock, **keywords))
        pool.clock, pool.seen, pool.armed, pool.left = clock, [], [], []  # type: ignore[attr-defined]
        pool.custom = custom  # type: ignore[attr-defined]
        return pool

    return made


@pytest.fixture
def run(loops: Loops) -> Run:
    def run(main: Awaitable[Any]) -> Any:
        with asyncio.Runner(loop_factory=loops) as runner:
            return runner.run(main)  # type: ignore[arg-type]

    return run


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_acquire_goes_the_short_way_where_it_can(make: Callable[..., Any]) -> None:
    pool = make(3)
    tokens = [pool.acquire(), pool.acquire("realtime", timeout=0), pool.acquire(2, timeout=1.5, cost=1, tenant="a")]
    assert [(token.priority, token.tenant) for token in tokens] == [(1, None), (0, None), (2, "a")]
    assert pool.seen == [] and pool.held == 3
    assert pool.acquire(0, timeout=2, cost=3, tenant="b") == "waited"
    tokens.pop().release()
    for keywords in ({"timeout": -1}, {"timeout": float("nan")}, {"timeout": "1"}, {"heartbeat": 1.0}, {"retry": 5}):
        assert pool.acquire(**keywords) == "waited", "whatever is odd is looked at by the hook"
    assert pool.seen[:2] == [("wait", 0, 2, 3, "b", None, None), ("wait", 1, -1, 1, None, None, None)]
    assert pool.seen[-2:] == [("wait", 1, None, 1, None, 1.0, None), ("wait", 1, None, 1, None, None, 5)]
    assert pool.acquire_async(0, timeout=1, cost=2, tenant="a", heartbeat=3, retry=4) == "a coroutine"
    assert pool.seen[-1] == ("wait async", 0, 1, 2, "a", 3, 4) and pool.waiting == 0
    pool.seal()
    with pytest.raises(Closed):
        pool.acquire()


def test_a_token_at_once(make: Callable[..., Any], core: Core, run: Run) -> None:
    pool = make(2)

    async def main() -> None:
        acquire = pool.acquire_async(0, cost=2, tenant="a", timeout=5)
        assert isinstance(acquire, core.permits.Acquire) and asyncio.iscoroutine(acquire)
        token = await acquire
        assert (token.priority, token.cost, token.tenant) == (0, 2, "a") and pool.armed == []
        with pytest.raises(TimeoutError, match="1 0"):
            await pool.acquire_async(timeout=0)
        token.release()
        with await asyncio.create_task(pool.acquire_async(heartbeat=50)) as token:
            assert pool.next_lease_ns() == pool.clock.now_ns + 50
        with pytest.raises(ValueError, match="no such timeout"):
            await pool.acquire_async(timeout=-1)
        with pytest.raises(ValueError, match="priority must be from 0 to 255"):
            await pool.acquire_async(256)
        pool.acquire_async().close()
        assert pool.held == 0 == pool.waiting == pool.abandoned

    run(main())


def test_a1_a_wake_up_of_one_who_dies_goes_to_the_next(make: Callable[..., Any], run: Run) -> None:
    pool = make(1)

    async def main() -> None:
        token = await pool.acquire_async()
        first, second = (asyncio.create_task(pool.acquire_async(timeout=None)) for _ in range(2))
        await turns(1)
        assert pool.waiting == 2
        token.release()
        first.cancel()
        await turns()
        assert second.done() and second.result().held and first.cancelled()
        assert (pool.held, pool.free, pool.waiting, pool.abandoned) == (1, 0, 0, 1)
        second.result().release()

    run(main())


def test_all_ways_out_of_a_wait(make: Callable[..., Any], run: Run) -> None:
    async def main(custom: bool) -> None:
        pool = make(1, (), 2, custom=custom)
        token = await pool.acquire_async()
        waiting = [asyncio.create_task(pool.acquire_async(timeout=limit)) for limit in (7, None)]
        await turns(1)
        assert [limit for _, limit in pool.armed] == [7] and pool.waiting == 2
        with pytest.raises(Overloaded, match="full 2 1"):
            await pool.acquire_async(2)
        waiting[0].cancel()
        await turns(2)
        assert pool.waiting == 1 and pool.left[-1] is pool.armed[0][0]
        late = asyncio.create_task(pool.acquire_async("batch", timeout=9))
        await turns(1)
        waiter = pool.armed[-1][0]
        assert waiter.index >= 0 and pool.leave(waiter) is None and waiter.wake()
        with pytest.raises(TimeoutError, match="batch 9"):
            await late
        pool.traced = True
        token.release()
        given = await waiting[1]
        assert pool.seen[-1] == ("trace", given.handle)
        for ending in ("close", "throw"):
            acquire = pool.acquire_async(timeout=3)
            future = acquire.send(None)
            assert asyncio.isfuture(future) and pool.waiting == 1
            if ending == "close":
                acquire.close()
            else:
                with pytest.raises(KeyError):
                    acquire.throw(KeyError("why"))
            assert pool.waiting == 0
        assert len(pool.left) == 4 or custom, "those that were armed"
        given.release()
        assert pool.held == 0 and pool.leaked == 0

    run(main(custom=False))
    run(main(custom=True))


def test_a_token_that_comes_with_the_cancellation_goes_on(make: Callable[..., Any], run: Run) -> None:
    async def main() -> None:
        pool = make(1)
        token = await pool.acquire_async()
        acquire = pool.acquire_async()
        acquire.send(None)
        token.release()
        assert acquire.token.held and pool.waiting == 0
        with pytest.raises(asyncio.CancelledError):
            acquire.throw(asyncio.CancelledError())
        assert pool.held == 0 and pool.abandoned == 1
        parked = pool.acquire_async()
        token = await pool.acquire_async()
        parked.send(None)
        assert pool.waiting == 1
        del parked
        token.release()
        gc.collect()
        pool.collect()
        assert pool.waiting == 0 == pool.held, "one that nobody has does not keep its token either"

    run(main())


def test_shut_wakes_those_who_wait(make: Callable[..., Any], run: Run) -> None:
    async def main() -> None:
        pool = make(1)
        token = await pool.acquire_async()
        tasks = [asyncio.create_task(pool.acquire_async()) for _ in range(3)]
        await turns(1)
        pool.shut()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers] == [TimeoutError] * 3
        with pytest.raises(Closed):
            await pool.acquire_async()
        token.release()

    run(main())


def test_a_release_on_another_thread_wakes(make: Callable[..., Any], run: Run) -> None:
    async def main() -> None:
        pool = make(1)
        for _ in range(50):
            token = await pool.acquire_async()
            task = asyncio.create_task(pool.acquire_async())
            await turns(1)
            thread = threading.Thread(target=token.release)
            thread.start()
            (await task).release()
            thread.join()
        assert pool.held == 0 and pool.granted == 100

    run(main())


def test_the_token_of_a_closed_loop_goes_on(make: Callable[..., Any], loops: Loops) -> None:
    pool = make(1)
    token = pool.acquire()
    loop = loops()

    async def start() -> Any:
        acquire = pool.acquire_async()
        acquire.send(None)
        return acquire

    acquire = loop.run_until_complete(start())
    loop.close()
    assert pool.waiting == 1
    token.release()
    assert pool.held == 0 and not acquire.wake() and acquire.index == -1 != NO_PLACE
    acquire.close()


def test_j1_counts_return_to_the_start(make: Callable[..., Any], run: Run) -> None:
    pool = make(2)

    async def deep(level: int) -> Any:
        return await (deep(level - 1) if level else pool.acquire_async())

    async def work() -> None:
        with await deep(6):
            await turns(1)

    async def main(rounds: int) -> None:
        for number in range(rounds):
            tasks = [asyncio.create_task(work()) for _ in range(6)]
            await turns(number % 5)
            for task in tasks[number % 3 :: 2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert pool.held == pool.waiting == 0

    run(main(20))
    gc.collect()
    before = sys.getrefcount(pool), sys.getrefcount(None)
    run(main(300))
    gc.collect()
    assert sys.getrefcount(pool) == before[0] and abs(sys.getrefcount(None) - before[1]) < 300
    assert pool.leaked == 0
