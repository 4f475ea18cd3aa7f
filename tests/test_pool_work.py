"""Work that a pool runs: the token returns when the work ends, not when its caller leaves."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings

import pytest
from pool_kit import Make, Run, turns

from relay.errors import AcquireTimeout

pytest_plugins = ["pools"]


def test_run(make: Make) -> None:
    pool = make(1, name="gpu")
    me = threading.get_ident()
    assert pool.run(lambda a, b: (a, b, pool.held, threading.get_ident()), 1, 2, priority=0) == (1, 2, 1, me)
    with pytest.raises(ZeroDivisionError):
        pool.run(lambda: 1 // 0)
    with pool.acquire(), pytest.raises(AcquireTimeout):
        pool.run(int, timeout=0)


def test_run_async(make: Make, run: Run) -> None:
    pool = make(2, name="gpu")

    def sync(a: int) -> tuple[int, str]:
        assert pool.held == 1
        return a, threading.current_thread().name

    async def coroutine(a: int) -> tuple[int, int]:
        await turns()
        return a, pool.held

    async def fails() -> None:
        raise KeyError("mine")

    async def main() -> None:
        value, thread = await pool.run_async(sync, 3)
        assert value == 3 and thread.startswith("gpu-worker")
        assert pool.held == 0, "the token came back before the answer"
        assert await pool.run_async(coroutine, 4) == (4, 1) and pool.held == 0
        with pytest.raises(ZeroDivisionError):
            await pool.run_async(lambda: 1 // 0)
        with pytest.raises(KeyError, match="mine"):
            await pool.run_async(fails)
        with pytest.raises(TypeError):
            await pool.run_async(coroutine)
        assert pool.held == 0
        first, second = pool.try_acquire(), pool.try_acquire()
        with pytest.raises(AcquireTimeout):
            await pool.run_async(sync, 1, timeout=0)
        first.release()
        second.release()

    run(main())


@pytest.mark.parametrize("error", [None, KeyError("mine")])
def test_the_token_returns_when_the_work_ends(make: Make, run: Run, error: Exception | None) -> None:
    """A cancelled caller does not free a device that is still computing."""
    pool = make(1)
    go, ended = threading.Event(), list[str]()

    def sync() -> None:
        go.wait(30)
        ended.append("sync")
        if error is not None:
            raise error

    async def main() -> None:
        caller = asyncio.create_task(pool.run_async(sync))
        await turns()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert pool.held == 1 and not ended
        waiter = asyncio.create_task(pool.acquire_async())
        await turns()
        go.set()
        token = await waiter
        assert ended == ["sync"]
        token.release()

        gate = asyncio.Event()

        async def work() -> None:
            await gate.wait()
            ended.append("async")
            if error is not None:
                raise error

        caller = asyncio.create_task(pool.run_async(work))
        await turns()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert pool.held == 1
        gate.set()
        (await pool.acquire_async()).release()
        assert ended == ["sync", "async"]

    run(main())


def test_work_that_is_cancelled_before_its_first_step(make: Make, run: Run) -> None:
    pool = make(1)
    started: list[int] = []

    async def work() -> None:
        started.append(1)

    async def main() -> None:
        caller = asyncio.create_task(pool.run_async(work))
        await turns(1)
        assert pool.held == 1 and not caller.done()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as the end of a run does
            task.cancel()
        await turns()
        assert caller.cancelled() and not started and pool.held == 0

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(main())
        gc.collect()
