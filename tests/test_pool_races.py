"""A token is released in the moment in which the waiter who gets it is cancelled, or its time runs out; scenario A4.

An episode is one such waiter. Episodes come in rounds of `WIDTH`, on one pool: as many tokens are released by a thread
while the waiters' own loop cancels them, or an alarm wakes them. The interpreter switches threads as often as it can.
In all, a side goes through 50,000 episodes, and through a million with `-m long`. After each round all is counted.
"""

from __future__ import annotations

import asyncio
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Make, Run

from relay.errors import AcquireTimeout

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]

WIDTH = 50
LONG = 20
"""How many times as many episodes the long tests go through."""


def scales(episodes: int) -> Any:
    """Parametrises a test by its episodes, short and long."""
    long = pytest.param(episodes * LONG, marks=pytest.mark.long)
    return pytest.mark.parametrize("episodes", [episodes, long], ids=["short", "long"])


class Releaser:
    """A thread that releases tokens, one after the other."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    async def release(self, tokens: list[Any]) -> None:
        """Begin."""
        self._orders.put(tokens)

    async def wait(self) -> None:
        """Wait for the end, and keep the loop from running."""
        error = self._done.get(timeout=30)
        if error is not None:
            raise error

    def stop(self) -> None:
        self._orders.put(None)
        self._thread.join(30)

    def _run(self) -> None:
        while (tokens := self._orders.get()) is not None:
            try:
                for token in tokens:
                    token.release()
                self._done.put(None)
            except BaseException as error:
                self._done.put(error)


@pytest.fixture
def releaser() -> Iterator[Releaser]:
    releaser = Releaser()
    yield releaser
    releaser.stop()


async def rounds(pool: Any, releaser: Releaser, episodes: int, timeout: float | None, end: Any, rng: Any) -> Any:
    """Rounds of episodes, ended by ``end(tasks)``: how often a waiter kept its token, and how often it went on."""
    ends: Counter[str] = Counter()
    held = [await pool.acquire_async() for _ in range(WIDTH)]
    for _ in range(episodes // WIDTH):
        first = [asyncio.create_task(pool.acquire_async(timeout=timeout)) for _ in range(WIDTH)]
        second = [asyncio.create_task(pool.acquire_async()) for _ in range(WIDTH)]
        await asyncio.sleep(0)
        assert pool.waiting == 2 * WIDTH
        early, late = ([held.pop() for _ in range(rng.randrange(3))] for _ in range(2))
        for token in early:
            token.release()
        race = [end(first), releaser.release(held)]
        rng.shuffle(race)
        for actor in race:
            await actor
        answers = await asyncio.gather(*first, return_exceptions=True)
        await releaser.wait()
        for token in late:
            token.release()
        kept = [answer for answer in answers if not isinstance(answer, BaseException)]
        assert all(isinstance(answer, (asyncio.CancelledError, AcquireTimeout)) or answer.held for answer in answers)
        assert pool.held == WIDTH and pool.waiting == len(kept), "each token is with one of those who stay"
        for token in kept:
            token.release()
        held = await asyncio.gather(*second)
        assert len({token.handle for token in held}) == WIDTH == pool.held and pool.waiting == 0
        ends["kept"] += len(kept)
        ends["went on"] += WIDTH - len(kept)
        pool.check()
    for token in held:
        token.release()
    return ends


@pytest.mark.usefixtures("switching")
@scales(10_000)
def test_release_against_cancel(make: Make, run: Run, releaser: Releaser, rng: random.Random, episodes: int) -> None:
    pool = make(WIDTH)

    async def cancel(tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
            if rng.random() < 0.1:
                await asyncio.sleep(0)

    ends = run(rounds(pool, releaser, episodes, None, cancel, rng))
    assert ends.total() == episodes
    state = pool.snapshot()
    # Whoever was cancelled had a token already, or had none yet; each was counted, and no token twice.
    passed_on = state.granted - (WIDTH + episodes + ends["kept"])
    assert state.cancelled == ends["went on"] and 0 <= passed_on <= ends["went on"]
    print(f"{ends}, {passed_on} of them with a token in hand")
    assert passed_on > 0


@pytest.mark.usefixtures("switching")
@scales(5_000)
def test_release_against_time(make: Make, clock: Any, run: Run, releaser: Releaser, rng: Any, episodes: int) -> None:
    pool = make(WIDTH)

    async def advance(tasks: list[asyncio.Task[Any]]) -> None:
        clock.advance(1)

    ends = run(rounds(pool, releaser, episodes, 1, advance, rng))
    print(ends)
    state = pool.snapshot()
    assert ends.total() == episodes and ends["kept"] > 0 and ends["went on"] > 0
    assert (state.timed_out, state.cancelled) == (ends["went on"], 0)
    assert state.granted == WIDTH + episodes + ends["kept"], "who is late and has a token keeps it"


class Impatient:
    """A clock on which everybody's time is over at once, or in a moment; all others may run meanwhile."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._mine = threading.local()

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def park(self, gate: threading.Lock, until_ns: int | None) -> bool:
        rng = self._mine.__dict__.setdefault("rng", random.Random(f"{self._seed} {threading.get_native_id()}"))
        for _ in range(rng.randrange(4)):
            if gate.acquire(False):
                return True
            time.sleep(0)
        return False


def storm(lab: Lab, pool: Any, threads: int, acquires: int) -> tuple[int, int]:
    """Acquires by many threads that may run out of time: how many were served, and how many were late."""
    owners: list[Any] = [None] * pool.capacity
    barrier = threading.Barrier(threads)

    def work(number: int) -> int:
        served = 0
        barrier.wait()
        for _ in range(acquires // threads):
            try:
                token = pool.acquire(timeout=1)
            except AcquireTimeout:
                continue
            slot = token.handle & 2**22 - 1
            assert owners[slot] is None, "it has two owners"
            owners[slot] = number
            if served % 4 == 0:
                time.sleep(0)
            assert owners[slot] == number
            owners[slot] = None
            token.release()
            served += 1
        return served

    calls = [lab.call(work, number) for number in range(threads)]
    for call in calls:
        call.thread.join()
    served = sum(call.result() for call in calls)
    return served, acquires // threads * threads - served


@pytest.mark.usefixtures("switching")
@scales(20_000)
def test_release_against_time_of_threads(lab: Lab, make: Make, seed: int, episodes: int) -> None:
    pool = make(1, clock=Impatient(seed))
    served = late = waited = 0
    while waited < episodes:  # not each of them had to wait
        now_served, now_late = storm(lab, pool, 4, 4_000)
        served, late = served + now_served, late + now_late
        state = pool.snapshot()
        assert (state.granted, state.timed_out, state.held, state.waiting) == (served, late, 0, 0)
        waited = pool.waits.count + late
        pool.check()
    print(f"{waited} waited, {served} served, {late} late")
    assert served > 0 and late > 0


@pytest.mark.parametrize("acquires", [50_000, pytest.param(10_000_000, marks=pytest.mark.long)], ids=["short", "long"])
def test_a4_time_is_over_and_the_token_comes(lab: Lab, make: Make, seed: int, acquires: int) -> None:
    """Ten million acquires, or as many as the time of a long test allows."""
    pool = make(8, clock=Impatient(seed))
    served = late = 0
    until = time.monotonic() + 700
    while served + late < acquires and time.monotonic() < until:
        now_served, now_late = storm(lab, pool, 32, 50_016)
        served, late = served + now_served, late + now_late
        state = pool.snapshot()
        assert (state.granted, state.timed_out) == (served, late) and served > 0 and late > 0
        assert (state.held, state.free, state.waiting) == (0, 8, 0)
        pool.check()
    print(f"{served} served, {late} late")
