"""Helper threads: the work on an item that must not run on the caller's thread or event loop.

Daemon threads, started by the first item. Whatever the work raises, the thread lives on; if one dies all the same,
`healthy` says so and the next item starts another.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger("relay")


class Helpers:
    """A few threads that take items in chunks.

    Args:
        count: Threads.
        name: Their names' beginning.
        chunk: Items taken at once at most.
        work: Called with each chunk. It handles the errors of single items itself; one that gets out of it goes to
            `failed`.
        failed: Called with a chunk and the error that its work raised.
    """

    def __init__(
        self,
        count: int,
        name: str,
        chunk: int,
        work: Callable[[list[Any]], None],
        failed: Callable[[list[Any], BaseException], None],
    ) -> None:
        self._name = name
        self._chunk = chunk
        self._work = work
        self._failed = failed
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads: list[threading.Thread | None] = [None] * count
        self._lock = threading.Lock()
        self._started = False
        self._died = False
        self._stopping = False

    def put(self, item: Any) -> None:
        """Hand an item over. Never blocks."""
        self._items.put(item)
        if not self._started or self._died:
            self.start()

    def start(self) -> None:
        """Start the threads that do not run."""
        with self._lock:
            if self._stopping:
                return
            for index, thread in enumerate(self._threads):
                if thread is None or not thread.is_alive():
                    name = f"{self._name}-{index}"
                    thread = threading.Thread(target=self._run, args=(index,), name=name, daemon=True)
                    self._threads[index] = thread
                    thread.start()
            self._started = True
            self._died = False

    def stop(self) -> None:
        """Let the threads end when everything handed over is done; does not wait."""
        with self._lock:
            self._stopping = True
        for _ in self._threads:
            self._items.put(None)

    def join(self, timeout: float | None) -> None:
        """Wait for the threads to end."""
        for thread in self._threads:
            if thread is not None and thread is not threading.current_thread():
                thread.join(timeout)

    def on_own_thread(self) -> bool:
        """True on one of the threads."""
        return threading.current_thread() in self._threads

    @property
    def healthy(self) -> bool:
        """False if a thread has died."""
        return not self._started or all(thread is not None and thread.is_alive() for thread in self._threads)

    def _run(self, index: int) -> None:
        try:
            self._serve()
        finally:
            with self._lock:
                if not self._stopping:
                    self._threads[index] = None
                    self._died = True

    def _serve(self) -> None:
        while True:
            item = self._items.get()
            if item is None:
                return
            chunk = [item]
            while len(chunk) < self._chunk:
                try:
                    item = self._items.get_nowait()
                except queue.Empty:
                    break
                if item is None:
                    self._items.put(None)  # not ours to lose: finish this chunk, then see it again
                    break
                chunk.append(item)
            try:
                self._work(chunk)
            except BaseException as error:
                self._fail(chunk, error)
                log.exception("relay: %s failed on a chunk of %d items", self._name, len(chunk))
            del item, chunk  # keep nothing alive while waiting

    def _fail(self, chunk: list[Any], error: BaseException) -> None:
        try:
            self._failed(chunk, error)
        except BaseException:
            log.exception("relay: %s could not report a failure", self._name)
