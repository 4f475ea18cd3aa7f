"""Closed loops: so many clients, each asking again as soon as it has its answer. Tasks of one loop, or threads."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any, NamedTuple

from batchers import Ask, Model, Side, SimpleQueueBatcher, on_the_loop, relay_side

import relay

LIMIT = 64
BASE_S, EACH_S = 0.002, 20e-6

Runner = Callable[[Coroutine[Any, Any, Any]], Any]


def sleeping_model(items: list[Any]) -> list[Any]:
    """2 ms and 20 us an item, without the GIL, as a device would take them."""
    sleep(BASE_S + EACH_S * len(items))
    return items


def echo(items: list[Any]) -> list[Any]:
    """A model that does nothing."""
    return items


async def echo_async(items: list[Any]) -> list[Any]:
    """A coroutine model that does nothing."""
    return items


def capacity(seconds: float = 0.3) -> float:
    """Items a second of the sleeping model alone: full batches back to back."""
    items = list(range(LIMIT))
    sleeping_model(items)
    begin, count = perf_counter(), 0
    while perf_counter() - begin < seconds:
        sleeping_model(items)
        count += LIMIT
    return count / (perf_counter() - begin)


class Pace(NamedTuple):
    """What a closed loop came to: answers a second, and seconds of processor time for each."""

    rate: float
    cpu: float


async def _of_tasks(ask: Ask, tasks: int, seconds: float) -> Pace:
    answered = 0
    over = False

    async def client(number: int) -> None:
        nonlocal answered
        while not over:
            if await ask(number) != number:
                raise AssertionError("someone else's answer")
            answered += 1

    clients = [asyncio.ensure_future(client(number)) for number in range(tasks)]
    await asyncio.sleep(0.1 * seconds + tasks / 20_000)  # every client has asked twice or so
    count, begin, cpu = answered, perf_counter(), process_time()
    await asyncio.sleep(seconds)
    count, took, cpu = answered - count, perf_counter() - begin, process_time() - cpu
    over = True
    await asyncio.gather(*clients)
    return Pace(count / took, cpu / max(1, count))


def closed_loop(side: Side, model: Model, tasks: int, seconds: float, run: Runner = asyncio.run) -> Pace:
    """So many tasks on one loop that `run` makes, over one batcher."""

    async def main() -> Pace:
        async with side.open(model, LIMIT) as ask:
            return await _of_tasks(ask, tasks, seconds)

    pace: Pace = run(main())
    return pace


@asynccontextmanager
async def _no_batcher(model: Model, limit: int) -> AsyncIterator[Ask]:
    loop = asyncio.get_running_loop()

    def ask(item: Any) -> asyncio.Future[Any]:
        future = loop.create_future()
        loop.call_soon(future.set_result, item)
        return future

    yield ask


FLOOR = Side("a future by call_soon", _no_batcher)
ON_THE_LOOP = Side("eager, on the loop", on_the_loop)


def runners() -> dict[str, Runner]:
    """The kinds of event loop there are."""
    found: dict[str, Runner] = {"asyncio": asyncio.run}
    try:
        found["uvloop"] = importlib.import_module("uvloop").run
    except ImportError:
        pass
    return found


def coroutines_are_offered() -> bool:
    """Whether a relay takes a coroutine function for a model."""
    try:
        relay.Relay(echo_async).close()
    except TypeError:
        return False
    return True


def overhead(tasks: int, run: Runner, seconds: float = 0.4, rounds: int = 5, model: Any = echo) -> tuple[Pace, Pace]:
    """A relay over a model that does nothing, and the floor: medians of alternating rounds."""
    ours, floor = [], []
    for _ in range(rounds):
        ours.append(closed_loop(relay_side(), model, tasks, seconds, run))
        floor.append(closed_loop(FLOOR, model, tasks, seconds, run))
    return _middle(ours), _middle(floor)


def _middle(paces: list[Pace]) -> Pace:
    return Pace(median(pace.rate for pace in paces), median(pace.cpu for pace in paces))


def of_threads(ask: Callable[[Any], Any], threads: int, seconds: float) -> Pace:
    """As a closed loop of tasks, of threads."""
    answered = [0] * threads
    over = False

    def client(number: int) -> None:
        while not over:
            if ask(number) != number:
                raise AssertionError("someone else's answer")
            answered[number] += 1

    clients = [threading.Thread(target=client, args=(number,)) for number in range(threads)]
    for thread in clients:
        thread.start()
    sleep(0.1 * seconds)
    count, begin, cpu = sum(answered), perf_counter(), process_time()
    sleep(seconds)
    count, took, cpu = sum(answered) - count, perf_counter() - begin, process_time() - cpu
    over = True
    for thread in clients:
        thread.join()
    return Pace(count / took, cpu / max(1, count))


def sixteen_threads(seconds: float = 0.4, rounds: int = 9) -> tuple[Pace, Pace]:
    """16 threads that call a relay over a model that does nothing, and a `SimpleQueueBatcher`: medians."""
    ours, theirs = [], []
    for _ in range(rounds):
        with relay.Relay(echo, name="bench") as r:
            ours.append(of_threads(r, 16, seconds))
        batcher = SimpleQueueBatcher(echo, LIMIT)
        theirs.append(of_threads(batcher, 16, seconds))
        batcher.close()
    return _middle(ours), _middle(theirs)


def batch_of_threads(threads: int = 64, seconds: float = 1.0) -> tuple[float, float]:
    """The mean batch of a relay over the sleeping model that so many threads call, and the answers a second."""
    with relay.Relay(sleeping_model, max_batch_size=LIMIT, name="bench") as r:
        marks: list[Any] = []

        def watch() -> None:
            for delay in (0.1 * seconds, 0.9 * seconds):
                sleep(delay)
                marks.append(r.snapshot())

        watcher = threading.Thread(target=watch)
        watcher.start()
        pace = of_threads(r, threads, seconds)
        watcher.join()
    first, last = marks
    return (last.items - first.items) / max(1, last.batches - first.batches), pace.rate


class _HandOff:
    """One thread that gives back what it is handed: the least that a lane on a thread of its own can cost."""

    def __init__(self) -> None:
        self._there, self._back = threading.Lock(), threading.Lock()
        self._there.acquire()
        self._back.acquire()
        self._item: Any = None
        self._over = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while True:
            self._there.acquire()
            if self._over:
                return
            self._item = echo([self._item])[0]
            self._back.release()

    def __call__(self, item: Any) -> Any:
        self._item = item
        self._there.release()
        self._back.acquire()
        return self._item

    def close(self) -> None:
        self._over = True
        self._there.release()
        self._thread.join()


class _HandOffOfLoop:
    """As `_HandOff`, for a coroutine: there by a lock, back by `call_soon_threadsafe`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._there = threading.Lock()
        self._there.acquire()
        self._request: tuple[Any, asyncio.Future[Any]] | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while True:
            self._there.acquire()
            if self._request is None:
                return
            item, future = self._request
            self._loop.call_soon_threadsafe(future.set_result, echo([item])[0])

    def __call__(self, item: Any) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._request = item, future
        self._there.release()
        return future

    def close(self) -> None:
        self._request = None
        self._there.release()
        self._thread.join()


def alone_on_a_thread(times: int = 400, rounds: int = 25) -> tuple[float, float]:
    """Seconds that a lone request takes through a relay, and through a bare hand-off to a thread and back: medians."""

    def once(ask: Callable[[Any], Any]) -> float:
        begin = perf_counter()
        for number in range(times):
            ask(number)
        return (perf_counter() - begin) / times

    bare = _HandOff()
    with relay.Relay(echo, name="bench") as r:
        rows = [(once(r), once(bare)) for _ in range(rounds)]
    bare.close()
    return median(row[0] for row in rows), median(row[1] for row in rows)


def alone_on_a_loop(run: Runner, times: int = 400, rounds: int = 25) -> tuple[float, float]:
    """As `alone_on_a_thread`, for a coroutine."""

    async def once(ask: Ask) -> float:
        begin = perf_counter()
        for number in range(times):
            await ask(number)
        return (perf_counter() - begin) / times

    async def main() -> list[tuple[float, float]]:
        bare = _HandOffOfLoop(asyncio.get_running_loop())
        async with relay.Relay(echo, name="bench") as r:
            rows = [(await once(r.run_async), await once(bare)) for _ in range(rounds)]
        bare.close()
        return rows

    rows = run(main())
    return median(row[0] for row in rows), median(row[1] for row in rows)
