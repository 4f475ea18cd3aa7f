"""Who runs what a pool is given to run, and when its token returns; callers that leave are in test_pool_work.py."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Loops, turns

from relay.errors import Closed

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]

PLACE: ContextVar[str] = ContextVar("place", default="nowhere")


def test_plain_functions_run_on_the_pools_own_threads(lab: Lab, loops: Loops) -> None:
    pool = lab.pool(2, name="gpu")
    names, together = set[str](), threading.Barrier(2)

    def work() -> None:
        together.wait(30)
        names.add(threading.current_thread().name)

    async def main() -> None:
        await asyncio.gather(*(pool.run_async(work) for _ in range(20)))

    lab.run(loops, main())
    assert names == {"gpu-worker-0", "gpu-worker-1"}, "as many as there are tokens, and no more"
    pool.guard(lambda: names.add(threading.current_thread().name))()
    assert threading.current_thread().name in names, "a plain guard runs on its caller's"


@pytest.mark.parametrize("form", ["def", "async def"])
def test_who_is_cancelled_in_line_leaves_it_and_nothing_runs(lab: Lab, loops: Loops, form: str) -> None:
    pool = lab.pool(1)
    ran: list[int] = []

    async def coroutine() -> None:
        ran.append(1)

    async def main() -> None:
        token = pool.try_acquire()
        work = partial(ran.append, 1) if form == "def" else coroutine
        calls = [asyncio.create_task(pool.run_async(work)) for _ in range(3)]
        await turns()
        assert pool.waiting == 3
        calls[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[1]
        assert pool.waiting == 2 and not ran
        token.release()
        await asyncio.gather(calls[0], calls[2])

    lab.run(loops, main())
    assert ran == [1, 1]


@pytest.mark.parametrize("end", ["run", "close"])
def test_a_loop_that_closes_while_a_function_runs(
    lab: Lab, loops: Loops, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The token is the work's: it returns when the function is through, and nobody complains."""
    pool = lab.pool(1)
    started, go = threading.Event(), threading.Event()

    def work() -> int:
        started.set()
        go.wait(30)
        return 1

    async def main() -> None:
        call = asyncio.create_task(pool.run_async(work))
        while not started.is_set():
            await asyncio.sleep(0)
        if end == "close":
            call._log_destroy_pending = False  # type: ignore[attr-defined]

    if end == "run":
        lab.run(loops, main())  # which cancels what is left
    else:
        loop = loops()
        loop.run_until_complete(main())
        loop.close()
    assert pool.held == 1
    waiter = lab.call(pool.acquire)
    lab.in_line(pool, 1)
    with caplog.at_level(logging.DEBUG):
        go.set()
        waiter.result().release()
        pool.close()
        for thread in pool._workers._threads.copy():
            thread.join(30)
        gc.collect()
    assert not caplog.records


@pytest.mark.parametrize("end", ["run", "close"])
def test_a_loop_that_closes_while_a_coroutine_runs(lab: Lab, loops: Loops, end: str) -> None:
    pool = lab.pool(1)

    async def work() -> None:
        await asyncio.Event().wait()

    async def main() -> asyncio.Task[Any]:
        call = asyncio.create_task(pool.run_async(work))
        await turns()
        assert pool.held == 1
        if end == "close":
            for task in asyncio.all_tasks():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        return call

    if end == "run":
        lab.run(loops, main())
    else:
        loop = loops()
        call = loop.run_until_complete(main())
        loop.close()
        assert pool.held == 1
        del call, loop
        gc.collect()
    assert pool.held == 0


def test_a_pool_that_closes_as_the_token_is_given(lab: Lab, loops: Loops) -> None:
    pool = lab.pool(1)
    ran: list[int] = []

    async def main() -> None:
        token = pool.try_acquire()
        call = asyncio.create_task(pool.run_async(ran.append, 1))
        await turns()
        token.release()
        pool.close()
        assert pool.held == 1, "it has been given already"
        with pytest.raises(Closed, match="take no more work"):
            await call
        assert pool.held == 0 and not ran

    lab.run(loops, main())


def test_closing_lets_work_come_to_its_end(lab: Lab, loops: Loops) -> None:
    pool = lab.pool(2)
    started, go = threading.Barrier(2), threading.Event()

    def work() -> str:
        started.wait(30)
        go.wait(30)
        return "done"

    async def main() -> None:
        call = asyncio.create_task(pool.run_async(work))
        await asyncio.to_thread(started.wait, 30)
        pool.close()
        assert pool.held == 1
        go.set()
        assert await call == "done" and pool.held == 0

    lab.run(loops, main())


def test_work_sees_its_callers_context(lab: Lab, loops: Loops) -> None:
    pool = lab.pool(1)

    def work() -> str:
        seen = PLACE.get()
        PLACE.set("inside")
        return seen

    async def work_async() -> str:
        await turns(1)
        return work()

    async def main() -> None:
        PLACE.set("outside")
        for call in (partial(pool.run_async, work), pool.guard(work_async), partial(pool.run_async, work_async)):
            assert await call() == "outside"
            assert PLACE.get() == "outside", "a copy of it"

    lab.run(loops, main())

    def here() -> None:
        PLACE.set("outside")
        assert pool.guard(work)() == "outside" and PLACE.get() == "inside", "a plain call is a plain call"

    copy_context().run(here)


def test_two_may_not_share_a_lease(lab: Lab, loops: Loops) -> None:
    pool = lab.pool(1)
    lease = pool.lease()

    async def use() -> None:
        async with lease:
            await turns(1)

    async def main() -> None:
        token = pool.try_acquire()
        first = asyncio.create_task(use())
        await turns()
        with pytest.raises(RuntimeError, match="this lease is in use"):
            await use()  # while the first still waits for its token
        assert pool.waiting == 1
        token.release()
        await first
        first = asyncio.create_task(use())
        first.cancel()
        await turns()
        await use()  # whoever is done with it may use it again
        with pytest.raises(RuntimeError, match="this lease is in use"):
            async with lease:
                with lease:
                    pass
        assert pool.held == 0

    lab.run(loops, main())
