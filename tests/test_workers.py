"""The threads that run a pool's plain functions: how many, what comes back, how they end."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from relay.errors import Closed
from relay.workers import Workers


class Held:
    """A function whose calls wait until they are let go."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.threads: list[str] = []

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        self.threads.append(threading.current_thread().name)
        self.entered.release()
        assert self.go.acquire(timeout=30)
        return args

    def wait(self, calls: int = 1) -> None:
        for _ in range(calls):
            assert self.entered.acquire(timeout=30)


@pytest.fixture
def make() -> Iterator[Callable[[int], Workers]]:
    made: list[Workers] = []

    def start(limit: int) -> Workers:
        made.append(Workers(limit, "pool"))
        return made[-1]

    yield start
    for workers in made:
        workers.stop()
        for thread in list(workers._threads):
            thread.join(30)
        assert not workers._threads and workers._load == 0


def test_nothing_is_started_before_it_is_needed(make: Callable[[int], Workers]) -> None:
    before = set(threading.enumerate())  # some of which may end meanwhile
    workers = make(4)
    assert set(threading.enumerate()) <= before
    assert workers.submit(divmod, 7, 3).result(30) == (2, 1)
    thread = next(iter(workers._threads))
    assert set(threading.enumerate()) - before == {thread}
    assert thread.daemon and thread.name == "pool-worker-0"


def test_an_idle_one_comes_first(make: Callable[[int], Workers]) -> None:
    workers, held = make(4), Held()
    for _ in range(50):
        done = threading.Event()
        workers.submit(threading.get_ident).add_done_callback(lambda future, done=done: done.set())
        assert done.wait(30)
        while workers._load:  # the future is done a moment before its thread is idle
            time.sleep(0)
    assert len(workers._threads) == 1
    for calls in range(1, 5):
        workers.submit(held)
        held.wait()
        assert len(workers._threads) == calls
    held.go.release(4)


def test_never_more_than_the_limit_and_in_order(make: Callable[[int], Workers]) -> None:
    workers, held = make(2), Held()
    futures = [workers.submit(held, i) for i in range(6)]
    held.wait(2)
    assert not held.entered.acquire(blocking=False) and len(workers._threads) == 2
    assert [future.running() for future in futures] == [True] * 2 + [False] * 4
    held.go.release(6)
    assert [future.result(30) for future in futures] == [(i,) for i in range(6)]
    assert len(set(held.threads)) == 2


def test_a_raised_limit_lets_those_that_wait_start(make: Callable[[int], Workers]) -> None:
    workers, held = make(1), Held()
    futures = [workers.submit(held, i) for i in range(5)]
    held.wait(1)
    workers.limit = 3
    held.wait(2)
    assert workers.limit == 3 and len(workers._threads) == 3
    workers.limit = 10
    held.wait(2)
    assert len(workers._threads) == 5  # no more than there is work for
    workers.limit = 1
    held.go.release(5)
    assert [future.result(30) for future in futures] == [(i,) for i in range(5)]
    again = [workers.submit(held) for _ in range(6)]  # those that are there stay
    held.wait(5)
    assert not held.entered.acquire(blocking=False) and len(workers._threads) == 5
    held.go.release(6)
    assert all(future.result(30) == () for future in again)


@pytest.mark.parametrize(
    "error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, CancelledError]
)
def test_whatever_is_raised_is_the_outcome(make: Callable[[int], Workers], error: type[BaseException]) -> None:
    def fail() -> None:
        raise error("mine")

    workers = make(1)
    future = workers.submit(fail)
    assert type(future.exception(30)) is error
    names = [workers.submit(threading.current_thread).result(30).name for _ in range(2)]
    assert names == ["pool-worker-0"] * 2


def test_stop_iteration_reaches_a_coroutine_too(make: Callable[[int], Workers]) -> None:
    workers = make(1)
    with pytest.raises(RuntimeError, match="the function raised StopIteration") as info:
        workers.submit(next, iter(())).result(30)
    assert type(info.value.__cause__) is StopIteration

    async def main() -> None:
        await asyncio.wrap_future(workers.submit(next, iter(())))

    with pytest.raises(RuntimeError, match="the function raised StopIteration"):
        asyncio.run(main())


def test_awaited(make: Callable[[int], Workers]) -> None:
    workers = make(2)

    async def main() -> list[Any]:
        return await asyncio.gather(*(asyncio.wrap_future(workers.submit(pow, i, 2)) for i in range(10)))

    assert asyncio.run(main()) == [i * i for i in range(10)]


def test_one_that_is_cancelled_while_it_waits_is_not_run(make: Callable[[int], Workers]) -> None:
    workers, held = make(1), Held()
    first, second = workers.submit(held), workers.submit(held)
    held.wait()
    assert second.cancel() and not first.cancel()

    async def main() -> None:
        future = asyncio.wrap_future(workers.submit(held))
        await asyncio.sleep(0)
        future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future

    asyncio.run(main())
    held.go.release()
    assert first.result(30) == () and workers.submit(int).result(30) == 0
    assert len(held.threads) == 1


def test_a_callback_that_raises_harms_nobody(make: Callable[[int], Workers], caplog: pytest.LogCaptureFixture) -> None:
    def callback(future: Any) -> None:
        raise SystemExit("from a callback")

    workers, held = make(1), Held()
    future = workers.submit(held, 1)
    future.add_done_callback(callback)
    held.go.release()
    assert future.result(30) == (1,) and workers.submit(int).result(30) == 0
    assert [record.getMessage() for record in caplog.records] == ["relay: a callback of a future failed"]
    assert [thread.name for thread in workers._threads] == ["pool-worker-0"]


def test_each_runs_in_a_copy_of_its_callers_context(make: Callable[[int], Workers]) -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    def swap(value: str) -> str:
        before = variable.get()
        variable.set(value)
        return before

    workers = make(1)
    variable.set("caller's")
    assert workers.submit(swap, "changed").result(30) == "caller's"
    assert workers.submit(variable.get).result(30) == variable.get() == "caller's"
    assert contextvars.Context().run(workers.submit, variable.get).result(30) == "unset"


def test_nothing_is_kept_alive(make: Callable[[int], Workers]) -> None:
    class Big:
        def fail(self) -> None:
            raise ValueError

    workers = make(1)
    big, gone = Big(), []
    for function in (repr, Big.fail):
        future = workers.submit(function, big)
        future.exception(30)
        gone.append(weakref.ref(future))
        del future
    gone.append(weakref.ref(big))
    workers.submit(int).result(30)
    gc.disable()
    try:
        del big
        assert [forgotten() for forgotten in gone] == [None] * 3
    finally:
        gc.enable()


def test_stop_lets_finish_what_was_handed_over(make: Callable[[int], Workers]) -> None:
    workers, held = make(2), Held()
    futures = [workers.submit(held, i) for i in range(5)]
    held.wait(2)
    threads = list(workers._threads)
    workers.stop()
    workers.stop()
    with pytest.raises(Closed, match="the threads of 'pool' were stopped and take no more work"):
        workers.submit(int)
    workers.limit = 9  # starts no more
    held.go.release(5)
    assert [future.result(30) for future in futures] == [(i,) for i in range(5)]
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_dropped_ones_finish_what_was_handed_over_and_end() -> None:
    workers, held = Workers(2, "pool"), Held()
    futures = [workers.submit(held, i) for i in range(5)]
    held.wait(2)
    threads, forgotten = list(workers._threads), weakref.ref(workers)
    del workers
    assert forgotten() is None
    held.go.release(5)
    assert [future.result(30) for future in futures] == [(i,) for i in range(5)]
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_stopped_before_it_began(make: Callable[[int], Workers]) -> None:
    workers = make(1)
    workers.stop()
    with pytest.raises(Closed):
        workers.submit(int)


def test_its_own_threads_are_known(make: Callable[[int], Workers]) -> None:
    workers = make(1)
    assert workers.submit(workers.on_own_thread).result(30) and not workers.on_own_thread()


def test_from_many_threads(make: Callable[[int], Workers]) -> None:
    workers = make(3)
    done: list[int] = []

    def many(base: int) -> None:
        futures = [workers.submit(done.append, base + i) for i in range(200)]
        for future in futures:
            future.result(30)

    threads = [threading.Thread(target=many, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(done) == [1000 * n + i for n in range(4) for i in range(200)]
    assert len(workers._threads) <= 3


def test_when_no_thread_can_be_had(make: Callable[[int], Workers], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers, held = make(2), Held()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            workers.submit(held)
    first = workers.submit(held)
    held.wait()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        second = workers.submit(held)  # waits for the one there is
    held.go.release(2)
    assert first.result(30) == second.result(30) == ()
    assert len(held.threads) == 2 and len(set(held.threads)) == 1


def test_a_start_that_was_interrupted(make: Callable[[int], Workers], monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(self: threading.Thread) -> None:
        start(self)
        raise KeyboardInterrupt

    workers = make(1)
    ran: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            workers.submit(ran.append, 1)
    assert workers.submit(ran.append, 2).result(30) is None
    assert ran == [2] and len(workers._threads) == 1


FORK = """
import os, threading, relay.workers
workers = relay.workers.Workers(2, "pool")
gate, entered = threading.Lock(), threading.Semaphore(0)
gate.acquire()
def held():
    entered.release()
    with gate:
        return os.getpid()
first, second, third = (workers.submit(held) for _ in range(3))
entered.acquire()
entered.acquire()
def hold():
    with workers._lock:
        entered.release()
        ended.acquire()
ended = threading.Lock()
ended.acquire()
threading.Thread(target=hold, daemon=True).start()
entered.acquire()
pid = os.fork()
if pid == 0:
    import signal
    signal.alarm(10)
    assert workers.limit == 2 and not workers._threads and threading.active_count() == 1
    gate.release()
    assert workers.submit(held).result() == os.getpid() and threading.active_count() == 2
    assert not first.done() and not third.running()
    workers.stop()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
ended.release()
gate.release()
assert [each.result(10) for each in (first, second, third)] == [os.getpid()] * 3

def fork():
    pid = os.fork()
    return pid and os.waitpid(pid, 0)[1]
assert workers.submit(fork).result(10) == 0  # the child's only thread comes to its end with the function
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_starts_empty() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")


EXIT = """
import atexit, sys, threading, time
atexit.register(lambda: print(time.monotonic() - begun < 4))
atexit.register(lambda: print(finished))  # these two run after what relay registers
import relay.workers
entered = threading.Semaphore(0)
def work(wait):
    entered.release()
    threading.Event().wait(wait)
    finished.append(wait)
grace, wait = (eval(word) for word in sys.argv[1:])
relay.workers.EXIT_GRACE_S = grace or relay.workers.EXIT_GRACE_S
finished = []
workers = relay.workers.Workers(4, "pool"), relay.workers.Workers(4, "other")
for each in workers:
    for _ in range(4):
        each.submit(work, wait)
for _ in range(8):
    entered.acquire()
begun = time.monotonic()
"""


@pytest.mark.parametrize(("grace", "wait", "said"), [("30", "0.2", [[0.2] * 8]), ("None", "None", [[], True])])
def test_exit_waits_for_what_runs_but_not_for_ever(grace: str, wait: str, said: list[Any]) -> None:
    """All eight of them share one second."""
    command = [sys.executable, "-c", EXIT, grace, wait]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.split("\n")[: len(said)] == [str(each) for each in said]
