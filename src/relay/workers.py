"""Workers: threads that run a pool's plain functions.

Owns the threads, and the queue of what waits for one. Any thread may call any method. The invariant: a new thread is
started only while every other has work, so idle ones are used first, and there are never more than `limit`.

The threads are daemons, for an interpreter must be able to end while a function never returns. At its exit, what runs
gets a second in all to come to its end; a `concurrent.futures.ThreadPoolExecutor` would wait for ever.
"""

from __future__ import annotations

import atexit
import contextvars
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from relay.errors import Closed
from relay.fork import survivors

log = logging.getLogger("relay")

T = TypeVar("T")

_Items = queue.SimpleQueue[tuple["Future[Any]", Callable[[], Any]] | None]

EXIT_GRACE_S = 1.0
"""How long the interpreter's exit waits for what runs, over all workers together."""


class Workers:
    """Up to `limit` threads, started when they are needed and kept until `stop`, or until nobody holds the workers.

    Args:
        limit: Threads at most.
        name: Their names' beginning.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._name = name
        self._limit = limit
        self._stopping = False
        self._start_empty()
        _living.add(self)
        survivors.add(self)

    def _start_empty(self) -> None:
        self._lock = threading.RLock()  # re-entrant, for a finaliser may hand something over
        self._items: _Items = queue.SimpleQueue()
        self._me = weakref.ref(self, partial(_end, self._items))  # all that the threads have of us
        self._threads: set[threading.Thread] = set()
        self._started = 0  # so far, for their names
        self._load = 0  # items that run or wait

    @property
    def limit(self) -> int:
        """Threads at most. Raising it lets waiting items start at once; lowering it ends no thread."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._lock:
            self._limit = limit
            self._start_missing()

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Have ``function(*args)`` run on a thread, in a copy of the caller's context. Never blocks.

        Returns:
            A future for its outcome; `asyncio.wrap_future` makes it awaitable. Whatever the function raises is the
            outcome, but for StopIteration, which no coroutine can raise: it comes as the cause of a RuntimeError.
            While the item waits for a thread it can be cancelled, and is then never run.

        Raises:
            Closed: `stop` was called.
            RuntimeError: There is no thread yet, and none can be started.
        """
        future: Future[T] = Future()
        item = future, partial(contextvars.copy_context().run, function, *args)
        with self._lock:
            if self._stopping:
                raise Closed(f"the threads of {self._name!r} were stopped and take no more work; make a new pool")
            self._load += 1
            try:
                self._start_missing()
            except BaseException as error:
                if not self._threads or not isinstance(error, RuntimeError):
                    self._load -= 1
                    raise
                # The system gives no more threads: those that run come to this item, and the next one tries again.
            self._items.put(item)
        return future

    def stop(self) -> None:
        """Take no more; the threads end when everything handed over is done. Does not wait."""
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._items.put(None)

    def on_own_thread(self) -> bool:
        """True on one of the threads."""
        return threading.current_thread() in self._threads

    def _start_missing(self) -> None:
        while len(self._threads) < min(self._limit, self._load) and not self._stopping:
            name = f"{self._name}-worker-{self._started}"
            thread = threading.Thread(target=_serve, args=(self._me, self._items), name=name, daemon=True)
            self._threads.add(thread)
            try:
                thread.start()
            except BaseException:
                self._threads.discard(thread)
                raise
            self._started += 1

    def _entered(self, thread: threading.Thread) -> bool:
        with self._lock:
            return thread in self._threads

    def _done(self, items: _Items) -> bool:
        """Count an item as done. False in a child that it forked, where the thread that ran it serves nobody."""
        if self._items is not items:
            return False
        with self._lock:
            self._load -= 1
        return True

    def _left(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads.discard(thread)

    def _after_fork_in_child(self) -> None:
        """Start empty: what ran or waited is the parent's, and its futures do not end here."""
        self._start_empty()


def _serve(owner: weakref.ref[Workers], items: _Items) -> None:
    """What a thread does. It holds its workers only for moments, so that they can be dropped."""
    me = threading.current_thread()
    workers = owner()
    if workers is not None and not workers._entered(me):
        return  # whoever started it was interrupted, and does not count on it
    del workers
    while (item := items.get()) is not None:
        _run(*item)
        del item  # keep nothing alive while waiting
        if (workers := owner()) is not None and not workers._done(items):
            return
        del workers
    _end(items)  # and so do the others
    if (workers := owner()) is not None:
        workers._left(me)


def _end(items: _Items, _: object = None) -> None:
    """Have one thread end when all before it is done; it passes this on. Takes no lock, for finalisers call it."""
    items.put(None)


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    """Run one item. Whatever it raises is its outcome, and what a callback of its future raises is logged."""
    try:
        if future.set_running_or_notify_cancel():
            try:
                value = call()
            except BaseException as error:
                future.set_exception(_outcome(error))
            else:
                future.set_result(value)
    except BaseException:
        log.exception("relay: a callback of a future failed")
    finally:
        del future, call  # the error's traceback holds this frame


def _outcome(error: BaseException) -> BaseException:
    """An error as a coroutine may raise it."""
    if not isinstance(error, StopIteration):
        return error
    stopped = RuntimeError("the function raised StopIteration")
    stopped.__cause__ = error
    return stopped


_living: weakref.WeakSet[Workers] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """At the interpreter's exit: let what runs come to its end, for a second in all."""
    until = time.monotonic() + EXIT_GRACE_S
    workers = list(_living)
    for each in workers:
        each.stop()
    for each in workers:
        for thread in list(each._threads):
            thread.join(max(0.0, until - time.monotonic()))
