"""The batchers that a relay is measured beside: two written by hand for asyncio, one for threads, and two packages.

Each is a `Side`: how to open it over a plain model, and whether it holds a batch open for a while (a window). What
opening gives is a function of one item whose result can be awaited. The hand-written ones are what a careful user would
write in an afternoon, as fast as we could make them, with none of a relay's promises: no order, deadline, cancel,
isolation or bound.

A model that blocks runs on one thread of an executor, as users of these batchers would have it.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import relay

Model = Callable[[list[Any]], list[Any]]
Ask = Callable[[Any], Awaitable[Any]]
Opened = AbstractAsyncContextManager[Ask]

WINDOW_S = 0.005
RAY_WINDOW_S = 0.01  # the default of @serve.batch


class Side(NamedTuple):
    """One batcher.

    Attributes:
        name: For the tables.
        open: Makes one over a model, with at most so many members a batch.
        windowed: It waits for companions although it could run.
    """

    name: str
    open: Callable[[Model, int], Opened]
    windowed: bool = False


class HandWritten:
    """A batcher for one event loop. With no window it takes what is there as soon as the worker is free; with one, a
    batch starts when it is full or its first member has waited that long.

    Args:
        model: Runs on `pool`.
        limit: Members of a batch at most.
        window_s: Seconds.
        pool: An executor of one thread; None calls the model on the loop, which only a model that does not block can
            bear.
    """

    def __init__(self, model: Model, limit: int, window_s: float, pool: ThreadPoolExecutor | None) -> None:
        self._model = model
        self._limit = limit
        self._window_s = window_s
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._items: list[Any] = []
        self._futures: list[asyncio.Future[Any]] = []
        self._running = False
        self._due = False
        self._closed = False
        self._timer: asyncio.Handle | None = None

    def close(self) -> None:
        """Start no more batches."""
        self._closed = True

    def __call__(self, item: Any) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._items.append(item)
        self._futures.append(future)
        if self._timer is None and not self._due and (self._window_s or not self._running):
            self._arm()
        if self._window_s and len(self._items) >= self._limit and not self._running:
            self._start()
        return future

    def _arm(self) -> None:
        if self._window_s:
            self._timer = self._loop.call_later(self._window_s, self._ring)
        else:
            self._timer = self._loop.call_soon(self._start)  # so that all who come in this turn of the loop are there

    def _ring(self) -> None:
        self._timer = None
        self._due = True
        if not self._running:
            self._start()

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = False
        limit = self._limit
        items, futures = self._items[:limit], self._futures[:limit]
        del self._items[:limit], self._futures[:limit]
        if not items or self._closed:
            return
        self._running = True
        if self._pool is None:
            self._answer(futures, self._model(items))
            return
        self._loop.run_in_executor(self._pool, self._model, items).add_done_callback(partial(self._done, futures))

    def _done(self, futures: list[asyncio.Future[Any]], outcome: asyncio.Future[list[Any]]) -> None:
        if not outcome.cancelled():
            self._answer(futures, outcome.result())

    def _answer(self, futures: list[asyncio.Future[Any]], rows: list[Any]) -> None:
        self._running = False
        # The next batch first, where one is there: the worker is not to wait for the answers to be handed out.
        if self._items and (not self._window_s or self._due or len(self._items) >= self._limit):
            if self._pool is None:
                self._timer = self._loop.call_soon(self._start)
            else:
                self._start()
        elif self._items and self._timer is None:
            self._arm()
        for future, row in zip(futures, rows, strict=True):
            if not future.done():
                future.set_result(row)


@asynccontextmanager
async def _by_hand(window_s: float, model: Model, limit: int) -> AsyncIterator[Ask]:
    pool = ThreadPoolExecutor(1)
    batcher = HandWritten(model, limit, window_s, pool)
    try:
        yield batcher
    finally:
        batcher.close()
        pool.shutdown(wait=True, cancel_futures=True)


@asynccontextmanager
async def on_the_loop(model: Model, limit: int) -> AsyncIterator[Ask]:
    """The eager batcher over a model that does not block: no thread at all."""
    yield HandWritten(model, limit, 0.0, None)


def _on_a_thread(model: Model, pool: ThreadPoolExecutor) -> Callable[[list[Any]], Awaitable[list[Any]]]:
    async def on_a_thread(items: list[Any]) -> list[Any]:
        return await asyncio.get_running_loop().run_in_executor(pool, model, items)

    return on_a_thread


@asynccontextmanager
async def _batched(window_s: float, model: Model, limit: int) -> AsyncIterator[Ask]:
    pool = ThreadPoolExecutor(1)
    dynamically = importlib.import_module("batched").aio.dynamically
    try:
        yield dynamically(_on_a_thread(model, pool), batch_size=limit, timeout_ms=window_s * 1e3)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _set_up_ray() -> Any:
    """`ray.serve`, ready for @serve.batch in this process without a cluster: the decorator is plain asyncio, and asks
    the replica it runs in only how many requests that may have, to warn of too few. Ray's own unit tests of it set such
    a context up in the same way."""
    from ray import serve
    from ray.serve import context
    from ray.serve._private.common import DeploymentID, ReplicaID
    from ray.serve._private.config import DeploymentConfig

    context._set_internal_replica_context(
        replica_id=ReplicaID(unique_id="bench", deployment_id=DeploymentID(name="bench")),
        servable_object=None,
        _deployment_config=DeploymentConfig(max_ongoing_requests=1_000_000),
    )
    return serve


@asynccontextmanager
async def _ray(window_s: float, model: Model, limit: int) -> AsyncIterator[Ask]:
    pool = ThreadPoolExecutor(1)
    serve = _set_up_ray()
    ask = serve.batch(max_batch_size=limit, batch_wait_timeout_s=window_s)(_on_a_thread(model, pool))
    try:
        yield ask
    finally:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # it logs each cancelled batch
        own = [task for task in asyncio.all_tasks() if "_BatchQueue._process_batch" in repr(task)]
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
        del ask, own
        gc.collect()  # its finaliser wants a loop that runs
        pool.shutdown(wait=True, cancel_futures=True)


@asynccontextmanager
async def _relay(
    options: dict[str, Any], request: dict[str, Any], tickets: bool, model: Model, limit: int
) -> AsyncIterator[Ask]:
    r: relay.Relay[Any, Any] = relay.Relay(model, max_batch_size=limit, name="bench", **options)
    ask = r.submit if tickets else r.run_async
    try:
        yield partial(ask, **request) if request else ask
    finally:
        await r.aclose()


def relay_side(name: str = "relay", deadline: float | None = None, tickets: bool = False, **options: Any) -> Side:
    """A relay.

    Args:
        name: For the tables.
        deadline: By which each request is to be answered, not only begun.
        tickets: Its clients hold tickets and are called back; else they are coroutines.
        **options: For the relay.
    """
    request = {} if deadline is None else {"deadline": deadline}
    if deadline is not None:
        options = {"admit": "predict", **options}
    return Side(name, partial(_relay, options, request, tickets))


EAGER = Side("eager", partial(_by_hand, 0.0))
WINDOW = Side("window 5 ms", partial(_by_hand, WINDOW_S), windowed=True)
BATCHED = Side("batched 0 ms", partial(_batched, 0.0))
BATCHED_WINDOW = Side("batched 5 ms", partial(_batched, WINDOW_S), windowed=True)
RAY = Side("ray 0 ms", partial(_ray, 0.0))
RAY_WINDOW = Side("ray 10 ms", partial(_ray, RAY_WINDOW_S), windowed=True)


def ray_is_there() -> bool:
    """Whether Ray Serve is installed: an optional guest of these benches (``pip install 'ray[serve]'``)."""
    return importlib.util.find_spec("ray") is not None


def rivals() -> list[Side]:
    """All that are installed."""
    return [EAGER, WINDOW, BATCHED, BATCHED_WINDOW] + ([RAY, RAY_WINDOW] if ray_is_there() else [])


class SimpleQueueBatcher:
    """A batcher for threads: a `queue.SimpleQueue`, one worker that takes what is there, a lock for each request."""

    def __init__(self, model: Model, limit: int) -> None:
        self._queue: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._model = model
        self._limit = limit
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def __call__(self, item: Any) -> Any:
        gate = threading.Lock()
        gate.acquire()
        request = [item, gate]
        self._queue.put(request)
        gate.acquire()
        return request[0]

    def _work(self) -> None:
        get, get_nowait, limit = self._queue.get, self._queue.get_nowait, self._limit
        while (first := get()) is not None:
            batch = [first]
            try:
                while len(batch) < limit:
                    request = get_nowait()
                    if request is None:
                        return
                    batch.append(request)
            except queue.Empty:
                pass
            rows = self._model([request[0] for request in batch])
            for request, row in zip(batch, rows, strict=True):
                request[0] = row
                request[1].release()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
