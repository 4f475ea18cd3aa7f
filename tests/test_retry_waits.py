"""Threads and coroutines that wait for their next try, on clocks and with pools."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pytest
from pool_kit import Loops
from retry_kit import PLAIN, QuickClock

from relay.clock import MONOTONIC, NS
from relay.errors import AcquireTimeout, Overloaded
from relay.retry import Retry, run_with_retry, run_with_retry_async
from relay.testing import FakeClock

pytest_plugins = ["both"]


# Waits


class Flaky:
    """Fails a number of times; threads or tasks may call it."""

    def __init__(self, failures: int) -> None:
        self.left = failures

    def __call__(self, timeout: float | None) -> str:
        self.left -= 1
        if self.left >= 0:
            raise Overloaded("full")
        return "value"

    async def coroutine(self, timeout: float | None) -> str:
        return self(timeout)


def waiting() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "relay-retry"]


def test_a_thread_parks_on_the_clock(lab: Any) -> None:
    clock, flaky = lab.clock(), Flaky(2)
    call = lab.call(run_with_retry, Retry(base=10.0, cap=10.0, factor=1, jitter="none"), flaky, clock)
    for left in (1, 0):
        lab.wait_until(lambda left=left: flaky.left == left)
        clock.wait_for_sleepers(1)
        clock.advance(9.0)
        assert flaky.left == left and call.thread.is_alive()
        clock.advance(1.0)
    assert call.result() == "value"


@pytest.mark.skipif(os.name != "posix", reason="no POSIX signals on this system")
@pytest.mark.parametrize("clock", [FakeClock(), MONOTONIC])
def test_ctrl_c_ends_a_wait(clock: Any) -> None:
    parked = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def attempt(timeout: float | None) -> str:
        parked.set()
        raise Overloaded("full")

    def interrupt() -> None:
        parked.wait()
        signal.pthread_kill(main, signal.SIGINT)  # one that comes just before the wait ends the call just as well
        while not ended.wait(5):  # and one that is swallowed inside a collection does not
            signal.pthread_kill(main, signal.SIGINT)

    ended = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            try:
                run_with_retry(Retry(base=1000.0, cap=1000.0, jitter="none"), attempt, clock)
            finally:
                ended.set()
    finally:
        ended.set()
        thread.join()


def test_a_coroutine_waits_on_a_fake_clock_too(lab: Any, loops: Loops) -> None:
    clock, flaky = lab.clock(), Flaky(2)

    async def main() -> None:
        retry = Retry(base=10.0, cap=10.0, factor=1, jitter="none")
        task = asyncio.ensure_future(run_with_retry_async(retry, flaky.coroutine, clock))
        for left in (1, 0):
            while flaky.left != left:
                await asyncio.sleep(0)
            clock.wait_for_sleepers(1)
            clock.advance(9.0)
            assert flaky.left == left
            clock.advance(1.0)
        assert await task == "value"

    lab.run(loops, main())


@pytest.mark.parametrize("fake", [True, False])
def test_a_cancelled_wait_leaves_nothing(lab: Any, loops: Loops, fake: bool) -> None:
    flaky = Flaky(9)
    clock: Any = lab.clock() if fake else MONOTONIC

    async def main() -> None:
        retry = Retry(base=1000.0, cap=1000.0, jitter="none")
        task = asyncio.ensure_future(run_with_retry_async(retry, flaky.coroutine, clock))
        while flaky.left == 9:
            await asyncio.sleep(0)
        if fake:
            clock.wait_for_sleepers(1)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        lab.wait_until(lambda: not waiting())
        await asyncio.sleep(0)  # what the thread has left to the loop

    failures: list[object] = []
    lab.run(loops, main())
    assert flaky.left == 8 and failures == []


def test_a_cancelled_try_is_not_retried(lab: Any, loops: Loops) -> None:
    made = []

    async def attempt(timeout: float | None) -> None:
        made.append(timeout)
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        task = asyncio.ensure_future(run_with_retry_async(Retry(), attempt, lab.clock()))
        while not made:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    lab.run(loops, main())
    assert made == [None]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_may_close_while_a_coroutine_waits(lab: Any) -> None:
    clock, flaky = lab.clock(), Flaky(9)
    loop = asyncio.new_event_loop()
    task = loop.create_task(run_with_retry_async(Retry(base=10.0, cap=10.0), flaky.coroutine, clock))
    loop.run_until_complete(asyncio.sleep(0))
    clock.wait_for_sleepers(1)
    loop.close()
    clock.advance(10.0)
    lab.wait_until(lambda: not waiting())
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="closed"):
        task.get_coro().throw(RuntimeError("closed"))


def test_a_wait_on_a_loop_is_never_short(lab: Any, loops: Loops) -> None:
    async def main() -> None:
        for wait in (0.0002, 0.0014, 0.003, 0.0101):
            start_ns = MONOTONIC.now_ns()
            retry = Retry(1, wait, jitter="none")
            assert await run_with_retry_async(retry, Flaky(1).coroutine) == "value"
            assert MONOTONIC.now_ns() - start_ns >= wait * NS

    for _ in range(5):
        lab.run(loops, main())


def test_a_coroutine_that_does_not_wait_lets_others_run(lab: Any, loops: Loops) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        task = asyncio.ensure_future(other())
        await run_with_retry_async(Retry(20, base=0), Flaky(20).coroutine)
        task.cancel()

    lab.run(loops, main())
    assert turns >= 19


def test_waiting_on_a_running_loop_warns() -> None:
    async def main() -> object:
        return run_with_retry(PLAIN, Flaky(2), QuickClock())

    with pytest.warns(RuntimeWarning, match="waiting for the next try blocks the running event loop") as caught:
        assert asyncio.run(main()) == "value"
    assert len(caught) == 1


# With a pool


def test_a_token_on_the_second_try(lab: Any) -> None:
    clock = lab.clock()
    pool = lab.TokenPool(1, clock=clock)
    held = pool.acquire()
    retry = Retry(base=1.0, jitter="none")
    call = lab.call(run_with_retry, retry, lambda left: pool.acquire(0, timeout=left), clock, timeout=5.0)
    clock.wait_for_sleepers(1)
    assert pool.waiting == 1
    clock.advance(5.0)
    lab.wait_until(lambda: pool.snapshot().timed_out == 1)
    clock.wait_for_sleepers(1)
    held.release()  # nobody stands in line between two tries
    assert pool.free == 1
    clock.advance(1.0)
    call.result().release()
    lab.testing.assert_idle(pool)
    pool.close()


def test_a_pool_that_stays_busy_is_given_up(lab: Any) -> None:
    clock = lab.clock()
    pool = lab.TokenPool(1, clock=clock)
    held = pool.acquire()
    retry = Retry(base=1.0, factor=1, jitter="none", total=4.0)
    call = lab.call(run_with_retry, retry, lambda left: pool.acquire(0, timeout=left), clock, timeout=2.0)
    clock.wait_for_sleepers(1)
    clock.advance(2.0)
    lab.wait_until(lambda: pool.snapshot().timed_out == 1)
    clock.wait_for_sleepers(1)
    clock.advance(1.0)
    lab.wait_until(lambda: pool.waiting == 1)  # the second try, which gets what is left
    clock.wait_for_sleepers(1)
    clock.advance(1.0)
    with pytest.raises(AcquireTimeout, match="timeout=1.0 s") as caught:
        call.result()
    assert caught.value.__notes__[0].startswith("relay gave up after 2 tries in 4.000 s: the next would be 1.000 s")
    held.release()
    lab.testing.assert_idle(pool)
    pool.close()


def test_coroutines_retry_a_full_line(lab: Any, loops: Loops) -> None:
    clock = QuickClock()
    pool = lab.TokenPool(1, max_waiting=0)
    retry = Retry(max_retries=40, base=0.1, cap=0.1)
    order: list[int] = []

    async def one(i: int) -> None:
        token = await run_with_retry_async(
            retry, lambda left: pool.acquire_async(0, timeout=left), clock, sleep_async=sleep
        )
        with token:
            order.append(i)
            await asyncio.sleep(0)

    async def sleep(seconds: float) -> None:
        await clock.sleep_async(seconds)
        await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(one(i) for i in range(20)))

    lab.run(loops, main())
    assert sorted(order) == list(range(20)) and clock.waits
    assert pool.snapshot().refused == len(clock.waits)
    lab.testing.assert_idle(pool)
    pool.close()
