"""Scenarios B1, B2, C1 and J1: what passes through a pool is counted, and is as much at the end as at the start."""

from __future__ import annotations

import asyncio
import gc
import queue
import random
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pool_kit import Make, Run, turns

from relay.errors import AcquireTimeout

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]


class Nasty:
    """Cannot be compared, hashed, or told from true."""

    def _fail(self, *_: object) -> Any:
        raise AssertionError("compared")

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __bool__ = _fail  # type: ignore[assignment]


PAYLOADS = [lambda i: {"number": i}, lambda i: np.arange(i % 7), lambda i: Nasty(), lambda i: [Nasty(), i]]


def test_b1_payloads_are_never_compared(make: Make, run: Run) -> None:
    """A thousand calls of equal keys, for the clock stands still: in order of arrival."""
    pool, served = make(1), list[Any]()
    payloads = [PAYLOADS[i % len(PAYLOADS)](i) for i in range(1_000)]

    async def main() -> None:
        token = await pool.acquire_async()
        calls = [asyncio.create_task(pool.run_async(served.append, payload)) for payload in payloads]
        await turns()
        assert pool.waiting == 1_000
        token.release()
        await asyncio.gather(*calls)

    run(main())
    assert len(served) == 1_000 and all(mine is payload for mine, payload in zip(served, payloads, strict=True))


def test_b1_nor_are_waiters(make: Make) -> None:
    class Waiter(Nasty):
        index, token = -1, None

        def wake(self) -> bool:
            served.append(id(self))
            return True

    pool, served = make(1), list[int]()
    token = pool.acquire()
    waiters = [Waiter() for _ in range(1_000)]
    for waiter in waiters:
        assert pool.acquire_or_join(1, 5, waiter) is None
    for waiter in waiters[::10]:
        assert pool.leave(waiter) is None
    left = [waiter for number, waiter in enumerate(waiters) if number % 10]
    for waiter in left:
        token.release()
        token, waiter.token = waiter.token, None
    token.release()
    assert served == [id(waiter) for waiter in left]


def test_b2_eight_read_while_eight_take(lab: Lab, make: Make, seed: int, switching: None) -> None:
    pool = make(4, max_capacity=6, reserved={0: 1}, tenant_caps=3, clock=None)

    barrier = threading.Barrier(16)

    def take(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        barrier.wait()
        while any(reader.thread.is_alive() for reader in readers):
            try:
                with pool.acquire(rng.randrange(3), tenant=rng.choice("abc"), timeout=rng.choice((None, 0, 1e-4))):
                    if number == 0:
                        pool.resize(rng.randint(3, 6))
            except AcquireTimeout:
                pass

    def read() -> None:
        barrier.wait()
        for _ in range(50):
            by_tier, by_tenant, tokens, state = pool.by_tier(), pool.by_tenant(), pool.tokens(), pool.snapshot()
            for counts in (by_tier.values(), by_tenant.values()):
                assert 0 <= sum(held for held, _, _ in counts) <= 6 and sum(line for _, line, _ in counts) <= 8
            assert len(tokens) <= 6 and all(token.tenant in "abc" and token.priority < 3 for token in tokens)
            assert 0 <= state.held <= 6 and 0 <= state.waiting <= 8 and 0 <= state.free <= 6
            assert pool.most_urgent() in (-1, 0, 1, 2) and "TokenPool" in repr(pool)
            pool.check()

    readers = [lab.call(read) for _ in range(8)]
    takers = [lab.call(take, number) for number in range(8)]
    for call in readers + takers:
        call.result()
    assert pool.snapshot().granted > 0


def operations(native: int, pure: int) -> Any:
    """Parametrises a test by its operations: fewer on the pure side, where they take longer, but for the long test."""
    long = pytest.param({"native": native, "pure": native}, marks=pytest.mark.long)
    return pytest.mark.parametrize("operations", [{"native": native, "pure": pure}, long], ids=["short", "long"])


def stock(pool: Any) -> queue.SimpleQueue[Any]:
    """All tokens of a pool. Those who take a token put it here, and the producer takes it from here."""
    back: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(pool.capacity):
        back.put(pool.acquire())
    return back


def produce(back: queue.SimpleQueue[Any], puts: int) -> None:
    """Puts tokens into the pool, one by one; each will be taken as a new lease, whose handle is its number."""
    for _ in range(puts):
        back.get(timeout=30).release()


@operations(100_000, 20_000)
def test_c1_each_token_is_delivered_once(lab: Lab, make: Make, rng: random.Random, operations: dict[str, int]) -> None:
    """A producer, and four threads that take with limits of up to 1 ms: none is lost, none comes twice."""
    pool, puts = make(16, clock=None), operations[lab.backend]
    back = stock(pool)
    over = False

    def consume(limits: list[float]) -> list[int]:
        taken: list[int] = []
        while not over:
            try:
                token = pool.acquire(timeout=limits[len(taken) % len(limits)])
            except AcquireTimeout:
                continue
            taken.append(token.handle)
            back.put(token)
        return taken

    consumers = [lab.call(consume, [rng.uniform(0, 0.001) for _ in range(100)]) for _ in range(4)]
    producer = lab.call(produce, back, puts)
    producer.thread.join(800)
    over = True
    taken = sum((consumer.result() for consumer in consumers), [])
    producer.result()
    account(pool, puts, taken, back)


@operations(100_000, 20_000)
def test_c1_of_coroutines(lab: Lab, make: Make, run: Run, rng: random.Random, operations: dict[str, int]) -> None:
    pool, puts = make(16, clock=None), operations[lab.backend]
    back = stock(pool)

    async def consume(producer: Any) -> list[int]:
        taken: list[int] = []
        while producer.thread.is_alive():
            try:
                token = await pool.acquire_async(timeout=rng.uniform(0, 0.001))
            except AcquireTimeout:
                continue
            taken.append(token.handle)
            back.put(token)
            if rng.random() < 0.1:
                await turns(1)
        return taken

    async def main() -> list[int]:
        producer = lab.call(produce, back, puts)
        taken = await asyncio.gather(*(consume(producer) for _ in range(8)))
        producer.result()
        return sum(taken, [])

    account(pool, puts, run(main()), back)


def account(pool: Any, puts: int, taken: list[int], back: queue.SimpleQueue[Any]) -> None:
    """What was put in was taken once, or is still there."""
    assert len(set(taken)) == len(taken)
    assert (puts - len(taken), back.qsize()) == (pool.free, pool.held)
    while not back.empty():
        back.get().release()


class Counted:
    """What a chain of coroutines returns."""

    live = 0

    def __init__(self, token: Any) -> None:
        self.token = token
        Counted.live += 1

    def __del__(self) -> None:
        Counted.live -= 1


async def chain(pool: Any, depth: int) -> Counted:
    return await chain(pool, depth - 1) if depth else Counted(await pool.acquire_async())


@operations(100_000, 20_000)
def test_j1_awaited_acquires_leave_nothing(
    lab: Lab, make: Make, run: Run, rng: random.Random, operations: dict[str, int]
) -> None:
    pool, tasks = make(4), 20

    async def work(count: int) -> None:
        for _ in range(count):
            found = Counted(await pool.acquire_async(rng.randrange(3)))
            if rng.random() < 0.3:
                await turns(1)  # so that others wait
            found.token.release()

    async def main(count: int) -> None:
        await asyncio.gather(*(work(count // tasks) for _ in range(tasks)))

    counts = []
    for count in (2_000, operations[lab.backend]):  # the first fills the lists of things kept to be used again
        run(main(count))
        gc.collect()
        counts.append((sys.getrefcount(pool), Counted.live, sys.getallocatedblocks()))
    assert counts[0][:2] == counts[1][:2] and counts[1][1] == 0
    assert counts[1][2] - counts[0][2] < 1_000


@operations(20_000, 5_000)
def test_j1_chains_cancelled_anywhere(
    lab: Lab, make: Make, run: Run, rng: random.Random, operations: dict[str, int]
) -> None:
    """Six coroutines deep; cancelled before the first step, in line, and when the token has been given already."""
    pool = make(3)
    ends = {"served": 0, "cancelled": 0}

    def give_back(tasks: list[asyncio.Task[Counted]]) -> None:
        for task in [task for task in tasks if task.done()]:
            tasks.remove(task)
            ends["cancelled" if task.cancelled() else "served"] += 1
            if not task.cancelled():
                task.result().token.release()

    async def main(count: int) -> None:
        for _ in range(count // 10):
            tasks: list[asyncio.Task[Counted]] = []
            for _ in range(10):
                tasks.append(asyncio.create_task(chain(pool, 6)))
                await turns(rng.randrange(2))
                if rng.random() < 0.5:
                    rng.choice(tasks).cancel()
                give_back(tasks)
            while tasks:
                await turns(1)
                give_back(tasks)
            assert (pool.held, pool.waiting) == (0, 0)

    counts = set()
    for count in (1_000, operations[lab.backend]):
        run(main(count))
        gc.collect()
        counts.add((sys.getrefcount(pool), Counted.live))
    assert len(counts) == 1 and min(ends.values()) > operations[lab.backend] / 10, (counts, ends)
    assert Counted.live == 0
