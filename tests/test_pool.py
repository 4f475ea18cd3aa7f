"""TokenPool: threads and coroutines that wait, time out, are cancelled, and hand on; over both sides of the core.

The rows of the scenarios that are about pools carry their numbers. Threads line up on a fake clock, so nothing sleeps.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import random
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop
from conftest import Core

import relay._backend
from relay.errors import AcquireTimeout, Closed, Overloaded, StaleToken
from relay.testing import FakeClock

INFINITY, NAN = float("inf"), float("nan")
Run = Callable[[Coroutine[Any, Any, Any]], Any]


def pool_over(core: Core, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A `relay.pool` of its own that stands on this side of the core."""
    for part in ("permits", "timers"):
        monkeypatch.setattr(relay._backend, part, getattr(core, part))
    spec = importlib.util.find_spec("relay.pool")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def module(core: Core, monkeypatch: pytest.MonkeyPatch) -> Any:
    return pool_over(core, monkeypatch)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make(core: Core, module: Any, clock: FakeClock) -> Iterator[Callable[..., Any]]:
    pools: list[Any] = []

    def pool(capacity: int, **options: Any) -> Any:
        options.setdefault("clock", clock)
        pools.append(core.watch(module.TokenPool(capacity, **options)))
        return pools[-1]

    yield pool
    for one in pools:
        assert (one.held, one.waiting) == (0, 0), one
        assert not one._timed and len(one._timers) == 0
        one.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return {"asyncio": asyncio.run, "uvloop": uvloop.run}[request.param]


async def turns(n: int = 3) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


class Thread:
    """A call on a thread of its own; `result()` is what it returned or raises what it raised."""

    def __init__(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.answer: Any = None
        self.error: BaseException | None = None

        def work() -> None:
            try:
                self.answer = call(*args, **kwargs)
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    def result(self) -> Any:
        self.thread.join(30)
        assert not self.thread.is_alive(), "it hangs"
        if self.error is not None:
            raise self.error
        return self.answer


def test_comes_from_its_side(core: Core, make: Callable[..., Any]) -> None:
    pool = make(2, name="gpu")
    assert type(pool).__mro__[1].__module__ == f"{core.package}.permits"
    with pool.try_acquire() as token:
        assert type(token) is core.permits.Token
        assert "1 of 2 held, 0 waiting" in repr(pool) and "'gpu'" in repr(pool)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [((0,), {}), ((2,), {"reserved": {0: 3}}), ((2,), {"reserved": {"urgent": 1}}), ((1,), {"max_waiting": -1}),
     ((4,), {"reserved": {0: 1, "realtime": 1}})],
)  # fmt: skip
def test_refused_at_construction(module: Any, arguments: Any, options: Any) -> None:
    with pytest.raises(ValueError):
        module.TokenPool(*arguments, **options)


def test_names_of_tiers(make: Callable[..., Any]) -> None:
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


def test_threads_are_served_by_priority_then_arrival(make: Callable[..., Any], clock: FakeClock) -> None:
    pool, served = make(1), list[int]()
    token = pool.acquire()
    line = [2, 1, 1, 0, 2, 0]

    def work(index: int) -> None:
        with pool.acquire(line[index], timeout=100):
            served.append(index)

    threads = []
    for index in range(len(line)):
        threads.append(Thread(work, index))
        clock.wait_for_sleepers(index + 1)
    token.release()
    for thread in threads:
        thread.result()
    assert served == [3, 5, 1, 2, 0, 4]
    assert pool.snapshot().granted == 7


def test_coroutines_are_served_by_priority_then_arrival(make: Callable[..., Any], run: Run) -> None:
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


def test_within_a_tier_the_allowance_orders(make: Callable[..., Any], clock: FakeClock, run: Run) -> None:
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


def test_the_releaser_hands_over(make: Callable[..., Any], clock: FakeClock) -> None:
    pool = make(1)
    token = pool.acquire()
    go = threading.Event()

    def work() -> int:
        with pool.acquire(2) as mine:
            go.wait(30)
            return int(mine.handle)

    thread = Thread(work)
    clock.wait_for_sleepers(1)
    token.release()
    for _ in range(3):
        assert pool.try_acquire(0) is None, "nobody slips in between the wake-up and the waking"
    assert pool.waiting == 0 and pool.held == 1
    go.set()
    assert thread.result() > token.handle


def test_the_releaser_hands_over_to_a_coroutine(make: Callable[..., Any], run: Run) -> None:
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
        Thread(token.release).result()
        assert pool.try_acquire(0) is None
        (await waiter).release()

    run(main())


def test_a1_a_cancelled_waiter_passes_its_token_on(make: Callable[..., Any], run: Run) -> None:
    async def main(end: Callable[[asyncio.Task[Any]], object]) -> None:
        pool = make(1)
        token = await pool.acquire_async()
        first, second = (asyncio.create_task(pool.acquire_async(timeout=9)) for _ in range(2))
        await turns()
        assert pool.waiting == 2
        token.release()
        end(first)
        await turns(3)
        assert second.done() and first.cancelled()
        assert (pool.held, pool.free, pool.waiting) == (1, 0, 0)
        second.result().release()

    run(main(lambda task: task.cancel()))
    run(main(lambda task: (task.cancel(), task.cancel())))


def test_a1_from_other_doors(make: Callable[..., Any], clock: FakeClock, run: Run) -> None:
    """The chosen waiter is cancelled before it was chosen, by a time limit around it, or times out as it is chosen."""
    pool = make(1)

    async def main() -> None:
        token = await pool.acquire_async()
        first, second = (asyncio.create_task(pool.acquire_async()) for _ in range(2))
        await turns()
        first.cancel()
        token.release()
        await turns(3)
        token = second.result()

        inner, outer = asyncio.create_task(pool.acquire_async()), asyncio.create_task(pool.acquire_async())
        await turns()
        token.release()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(inner, 0)
        await turns(3)
        token = outer.result()

        late, last = asyncio.create_task(pool.acquire_async(timeout=1)), asyncio.create_task(pool.acquire_async())
        await turns()
        clock.advance(1)
        with pytest.raises(AcquireTimeout):
            await late
        token.release()
        await turns(3)
        last.result().release()

    run(main())


def test_a2_short_timeouts_lose_nothing(make: Callable[..., Any], run: Run, rng: random.Random) -> None:
    pool = make(4, clock=None)
    ends = {"served": 0, "late": 0}

    async def client() -> None:
        for _ in range(20):
            try:
                async with pool.lease(rng.randrange(3), timeout=rng.random() * 0.002):
                    ends["served"] += 1
                    await asyncio.sleep(0)
                    assert pool.held <= 4
            except AcquireTimeout:
                ends["late"] += 1

    async def main() -> None:
        await asyncio.gather(*(client() for _ in range(60)))

    run(main())
    assert ends["served"] + ends["late"] == 1_200 and ends["served"] > 0
    assert (pool.waiting, pool.free) == (0, 4)


def test_a5_disconnected_callers_leave_no_trace(make: Callable[..., Any], clock: FakeClock, run: Run) -> None:
    async def main(leave: str) -> None:
        pool = make(1, max_waiting=5)
        token = await pool.acquire_async()
        limit = 1 if leave == "timeout" else None
        callers = [asyncio.create_task(pool.acquire_async(timeout=limit)) for _ in range(5)]
        await turns()
        assert pool.snapshot().waiting == 5
        with pytest.raises(Overloaded, match="5 callers already wait") as refused:
            await pool.acquire_async()
        assert refused.value.reason == "queue_full" and refused.value.http_status == 429
        for caller in callers:
            if leave == "cancel":
                caller.cancel()
        if leave == "timeout":
            clock.advance(1)
        await asyncio.gather(*callers, return_exceptions=True)
        assert pool.snapshot().waiting == 0
        sixth = asyncio.create_task(pool.acquire_async())
        await turns()
        assert pool.snapshot().waiting == 1
        token.release()
        (await sixth).release()
        state = pool.snapshot()
        assert (state.waiting, state.held, state.granted, state.refused) == (0, 0, 2, 1)
        assert state.timed_out == (5 if leave == "timeout" else 0)

    run(main("cancel"))
    run(main("timeout"))


LIMITS: list[Any] = [None, 0, 1e-9, 4294967.296, 1e10, INFINITY]


@pytest.mark.parametrize("timeout", [-1, -1e-9, NAN, -INFINITY])
def test_a9_a_time_limit_that_is_none(make: Callable[..., Any], run: Run, timeout: float) -> None:
    pool = make(1)
    text = f"timeout must be None or a number of seconds of at least 0, got {timeout!r}"
    for held in (False, True):
        token = pool.try_acquire() if held else None
        for call in (pool.acquire, pool.lease(timeout=timeout).__enter__, lambda **_: pool.run(int, timeout=timeout)):
            with pytest.raises(ValueError) as refused:
                call(**({"timeout": timeout} if call == pool.acquire else {}))
            assert str(refused.value) == text
        for work in (pool.acquire_async(timeout=timeout), pool.run_async(int, timeout=timeout)):
            with pytest.raises(ValueError) as refused:
                run(work)
            assert str(refused.value) == text
        if token is not None:
            token.release()


@pytest.mark.parametrize("timeout", LIMITS)
def test_a9_time_limits_of_threads(make: Callable[..., Any], clock: FakeClock, timeout: Any) -> None:
    pool = make(1)
    token = pool.acquire(timeout=timeout)
    thread = Thread(pool.acquire, timeout=timeout)
    if timeout == 0:
        with pytest.raises(AcquireTimeout, match="timeout=0 does not wait"):
            thread.result()
    elif timeout == 1e-9:
        clock.wait_for_sleepers(1)
        clock.advance(1e-6)
        with pytest.raises(AcquireTimeout, match="became free within timeout=1e-09 s"):
            thread.result()
    else:
        clock.wait_for_sleepers(1)
        clock.advance(4294967)
        assert pool.waiting == 1
        token.release()
        token = thread.result()
    token.release()


@pytest.mark.parametrize("timeout", LIMITS)
def test_a9_time_limits_of_coroutines(make: Callable[..., Any], clock: FakeClock, run: Run, timeout: Any) -> None:
    pool = make(1)

    async def main() -> None:
        token = await pool.acquire_async(timeout=timeout)
        task = asyncio.create_task(pool.acquire_async(timeout=timeout))
        await turns(1)
        if timeout in (0, 1e-9):
            clock.advance(1e-6)
            with pytest.raises(AcquireTimeout):
                await task
        else:
            assert pool.waiting == 1
            clock.advance(4294967)
            await turns()
            assert pool.waiting == 1
            token.release()
            token = await task
        token.release()

    run(main())


@pytest.mark.parametrize("timeout", [1e-9, 1e-4])
def test_a9_on_the_machines_own_clock(make: Callable[..., Any], run: Run, timeout: float) -> None:
    pool = make(1, clock=None)
    with pool.acquire():
        with pytest.raises(AcquireTimeout):
            pool.acquire(timeout=timeout)
        with pytest.raises(AcquireTimeout):
            run(pool.acquire_async(timeout=timeout))
        thread = Thread(pool.acquire, timeout=1e10)
        while not pool.waiting:
            pass
    thread.result().release()


def test_each_waiter_has_its_own_time(make: Callable[..., Any], clock: FakeClock, run: Run) -> None:
    pool = make(1)

    async def main() -> None:
        token = await pool.acquire_async()
        limits = [5, 3, None, 1, 4]
        tasks = [asyncio.create_task(pool.acquire_async(timeout=limit)) for limit in limits]
        await turns()
        for now, late in [(1, 3), (3, 1), (4, 4)]:
            clock.advance(now - (clock.now_ns() / 1e9 - 1000))
            with pytest.raises(AcquireTimeout):
                await tasks[late]
            assert sum(task.done() for task in tasks) == {1: 1, 3: 2, 4: 3}[now]
        token.release()
        token = await tasks[0]
        assert not pool._timed, "its timer went with it"
        token.release()
        (await tasks[2]).release()

    run(main())


def test_time_and_release_at_the_same_moment(make: Callable[..., Any], clock: FakeClock) -> None:
    """The clock opens the waiter's gate, and the releaser would too, before the waiter runs: it has the token."""
    pool = make(1)
    interval = sys.getswitchinterval()
    for _ in range(20):
        token = pool.acquire()
        thread = Thread(pool.acquire, timeout=1)
        clock.wait_for_sleepers(1)
        sys.setswitchinterval(5)
        try:
            clock.advance(1)
            token.release()
        finally:
            sys.setswitchinterval(interval)
        try:
            given = thread.result()
        except AcquireTimeout:
            assert pool.held == 0
        else:
            assert given.held and pool.held == 1
            given.release()


def test_granted_before_its_timer_is_set(make: Callable[..., Any], clock: FakeClock, run: Run) -> None:
    """Another thread may release between standing in line and setting the timer; its place may be taken again, too."""
    pool = make(1)
    plain = clock.now_ns
    joined: list[Any] = []

    async def main() -> None:
        token = await pool.acquire_async()
        calls: list[int] = []
        other: list[Thread] = []

        def now_ns() -> int:
            calls.append(1)
            if len(calls) == 2:  # the first is for its key, before it stands in line
                clock.now_ns = plain  # type: ignore[method-assign]
                joined.append(pool.waiting)
                token.release()
                other.append(Thread(pool.acquire, timeout=50))
                clock.wait_for_sleepers(1)
            return plain()

        clock.now_ns = now_ns  # type: ignore[method-assign]
        mine = await pool.acquire_async(timeout=10)
        assert joined == [1] and mine.held and not pool._timed
        mine.release()
        other[0].result().release()

    run(main())


def test_floors_and_waiters(make: Callable[..., Any], clock: FakeClock, run: Run) -> None:
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


def test_stale_tokens(make: Callable[..., Any]) -> None:
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


def test_leases(make: Callable[..., Any], run: Run) -> None:
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


def test_run(make: Callable[..., Any]) -> None:
    pool = make(1, name="gpu")
    me = threading.get_ident()
    assert pool.run(lambda a, b: (a, b, pool.held, threading.get_ident()), 1, 2, priority=0) == (1, 2, 1, me)
    with pytest.raises(ZeroDivisionError):
        pool.run(lambda: 1 // 0)
    with pool.acquire(), pytest.raises(AcquireTimeout):
        pool.run(int, timeout=0)


def test_run_async(make: Callable[..., Any], run: Run) -> None:
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
def test_the_token_returns_when_the_work_ends(make: Callable[..., Any], run: Run, error: Exception | None) -> None:
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


def test_work_that_is_cancelled_before_its_first_step(make: Callable[..., Any], run: Run) -> None:
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


def test_blocking_on_a_loop_warns(make: Callable[..., Any], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.ticket._warned", set())  # it warns once for each place
    pool = make(1, clock=None)

    async def main() -> None:
        with pool.acquire():  # does not block
            with pytest.warns(RuntimeWarning, match=r"use acquire_async\(\)"):
                with pytest.raises(AcquireTimeout):
                    pool.acquire(timeout=1e-6)

    run(main())


def test_close_sends_everybody_away(make: Callable[..., Any], clock: FakeClock, run: Run) -> None:
    pool = make(1)
    token = pool.acquire()
    threads = []
    for index in range(4):
        threads.append(Thread(pool.acquire, timeout=(None, 50)[index % 2]))
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


def test_a_pool_is_a_context_manager(make: Callable[..., Any]) -> None:
    with make(1) as pool:
        pool.acquire().release()
    with pytest.raises(Closed):
        pool.acquire()


def abandoned(pool: Any, run: Run, waiters: int) -> list[Any]:
    """A closed loop with tasks that still stand in line; nobody has cancelled them."""
    loop = (asyncio if run is asyncio.run else uvloop).new_event_loop()
    tasks = [loop.create_task(pool.acquire_async(timeout=(None, 9)[i % 2])) for i in range(waiters)]
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.run_until_complete(turns())
    assert pool.waiting >= waiters
    loop.close()
    return tasks


def test_a_closed_loop_swallows_no_token(make: Callable[..., Any], clock: FakeClock, run: Run) -> None:
    pool = make(1)
    token = pool.acquire()
    tasks = abandoned(pool, run, 3_000)
    thread = Thread(pool.acquire)
    while pool.waiting < 3_001:
        pass
    token.release()
    token = thread.result()
    assert token.held and pool.waiting == 0
    token.release()
    assert pool.held == 0
    tasks.clear()
    gc.collect()  # the coroutines leave the line once more, with tokens that have gone on
    assert pool.held == 0
    token = pool.acquire()
    tasks = abandoned(pool, run, 3)
    tasks.clear()
    clock.advance(20)
    pool.check()
    token.release()
    assert pool.held == 0
    gc.collect()
    assert not pool._timed


def test_c2_a_loop_closes_as_the_token_is_given(make: Callable[..., Any], run: Run) -> None:
    """Given to a coroutine whose loop has closed before it could run: it comes back when the coroutine goes."""
    pools = [make(1) for _ in range(100)]
    for pool in pools:
        loop = (asyncio if run is asyncio.run else uvloop).new_event_loop()
        token = pool.acquire()
        task = loop.create_task(pool.acquire_async())
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(turns())
        barrier = threading.Barrier(2)

        def give(token: Any = token, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            token.release()

        thread = Thread(give)
        barrier.wait()
        loop.close()
        thread.result()
        del task, loop
    gc.collect()
    assert all(pool.held == 0 and pool.waiting == 0 for pool in pools)


def test_c4_loops_come_and_go(make: Callable[..., Any], run: Run) -> None:
    """One pool, three loops one after the other and then two at the same time; each leaves tasks behind, inside and in
    line, for the end of its run to cancel."""
    pool = make(1)
    served: list[int] = []

    async def work(length: int = 1) -> None:
        async with pool.lease():
            await turns(length)
            served.append(1)

    async def main() -> None:
        await asyncio.gather(*(work() for _ in range(20)))
        left = [asyncio.create_task(work(1_000_000)) for _ in range(3)]
        await turns(1)
        assert not any(task.done() for task in left) and pool.held == 1

    for number in range(3):
        run(main())
        assert (pool.held, pool.waiting, len(served)) == (0, 0, 20 * number + 20)
    threads = [Thread(run, main()) for _ in range(2)]
    for thread in threads:
        thread.result()
    assert (pool.held, pool.waiting, len(served)) == (0, 0, 100)


def test_threads_and_loops_at_once(make: Callable[..., Any], run: Run, seed: int) -> None:
    pool = make(2, reserved={0: 1}, clock=None)
    inside: list[int] = []
    served: list[int] = []

    def holding() -> None:
        inside.append(1)
        assert len(inside) <= 2
        inside.pop()
        served.append(1)

    def thread(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        for _ in range(150):
            try:
                with pool.acquire(rng.randrange(3), timeout=rng.choice((None, 0, 1e-4))):
                    holding()
            except AcquireTimeout:
                pass

    async def client(rng: random.Random) -> None:
        for _ in range(15):
            work = asyncio.ensure_future(pool.acquire_async(rng.randrange(3), timeout=rng.choice((None, 0, 1e-3))))
            if rng.random() < 0.3:
                await turns(rng.randrange(3))
                work.cancel()
            try:
                token = await work
            except (AcquireTimeout, asyncio.CancelledError):
                continue
            holding()
            await turns(rng.randrange(2))
            token.release()

    async def main(number: int) -> None:
        rng = random.Random(f"{seed} loop {number}")
        await asyncio.gather(*(client(rng) for _ in range(20)))

    works = [Thread(thread, number) for number in range(4)] + [Thread(run, main(number)) for number in range(2)]
    for work in works:
        work.result()
    assert (pool.held, pool.waiting) == (0, 0) and len(served) > 100


def test_snapshot(make: Callable[..., Any]) -> None:
    pool = make(3, name="gpu", reserved={0: 1})
    token = pool.acquire()
    state = pool.snapshot()
    assert (state.name, state.capacity, state.held, state.free, state.waiting, state.granted) == ("gpu", 3, 1, 2, 0, 1)
    assert (state.timed_out, state.refused) == (0, 0)
    token.release()
    assert state.held == 1, "a snapshot does not move"
