"""Helper threads: the work on an item that must not run on the caller's thread or event loop.

Daemon threads, started by the first item. Urgent items come first, but one in eight is the one that has waited longest.
Whatever the work raises, the thread lives on; if one dies all the same, `healthy` says so, and another is started as
soon as there is something to do.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

log = logging.getLogger("relay")

OLDEST_EVERY = 8
"""Of so many items one is the oldest, however urgent the others are."""

BULK = 16
"""Chunks grow once so many of them wait."""


_Entry = tuple[int, Any, int]  # its number in the order they came, the item, its weight


class Helpers:
    """A few threads that take items in chunks.

    Args:
        count: Threads.
        name: Their names' beginning.
        chunk: Items taken at once at most. While there are several threads, none takes more than its share.
        work: Called with each chunk. It handles the errors of single items itself; one that gets out of it goes to
            `failed`.
        failed: Called with a chunk and the error that its work raised.
        most: A chunk ends with the item that makes it weigh more than this. Given this, a chunk may have up to four
            times as many items while very many wait, for to begin one costs the same for all. 0 where each item is
            worked on by itself.
    """

    def __init__(
        self,
        count: int,
        name: str,
        chunk: int,
        work: Callable[[list[Any]], None],
        failed: Callable[[list[Any], BaseException], None],
        most: int = 0,
    ) -> None:
        self._name = name
        self._chunk = chunk
        self._work = work
        self._failed = failed
        self._most = most
        # One line for each priority, and a turn for each item: a thread takes a turn, then the item that is next. There
        # are never fewer items than turns, for an item enters its line first and leaves it last.
        self._lines: dict[int, deque[_Entry]] = {}
        self._levels: list[int] = []  # of the lines, in order; replaced, never changed
        self._turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._serials = itertools.count()
        self._taken = itertools.count(1)
        self._threads: list[threading.Thread | None] = [None] * count
        self._lock = threading.Lock()
        self._started = False
        self._died = False
        self._stopping = False

    def put(self, item: Any, level: int = 0, weight: int = 0) -> None:
        """Hand an item over; those of a smaller level come first. Never blocks."""
        line = self._lines.get(level)
        if line is None:
            line = self._add_line(level)
        line.append((next(self._serials), item, weight))
        self._turns.put(True)
        if not self._started or self._died:
            self.start()

    def put_all(self, items: Sequence[Any], level: int, weights: Sequence[int]) -> None:
        """As `put` for each of several items of one level, which enter their line first, and get their turns then."""
        line = self._lines.get(level)
        if line is None:
            line = self._add_line(level)
        line.extend(zip(self._serials, items, weights, strict=False))
        put = self._turns.put
        for _ in items:
            put(True)
        if not self._started or self._died:
            self.start()

    def _add_line(self, level: int) -> deque[_Entry]:
        with self._lock:
            line = self._lines.setdefault(level, deque())
            self._levels = sorted(self._lines)
        return line

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
            self._turns.put(False)

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
            if self._died and self._turns.qsize():
                self.start()  # there may be no next item that would

    def _serve(self) -> None:
        while self._turns.get():
            waiting = self._turns.qsize() // len(self._threads) + 1
            share = self._chunk
            if self._most:
                share = max(share, min(waiting // BULK, 4 * share))
            chunk = self._chunk_of(min(share, waiting))
            try:
                self._work(chunk)
            except BaseException as error:
                self._fail(chunk, error)
                log.exception("relay: %s failed on a chunk of %d items", self._name, len(chunk))
            del chunk  # keep nothing alive while waiting

    def _chunk_of(self, share: int) -> list[Any]:
        """The item whose turn it is, and as many more as wait, up to `share`."""
        get, lines, most = self._turns.get_nowait, self._lines, self._most
        _, item, weight = self._next()
        chunk = [item]
        while len(chunk) < share and weight <= most:
            try:
                if not get():
                    self._turns.put(False)  # not ours to lose: finish this chunk, then see it again
                    break
            except queue.Empty:
                break
            levels = self._levels
            try:  # the only line, for this is done for each of very many
                _, item, more = lines[levels[0]].popleft() if len(levels) == 1 else self._next()
            except IndexError:  # it has just become one of two
                _, item, more = self._next()
            chunk.append(item)
            weight += more
        return chunk

    def _next(self) -> _Entry:
        """The item whose turn it is. Other threads may change the lines meanwhile, but one item is ours to take."""
        lines = self._lines
        while True:
            levels = self._levels
            if len(levels) > 1 and next(self._taken) % OLDEST_EVERY == 0:
                levels = sorted(levels, key=self._waits)
            for level in levels:
                try:
                    return lines[level].popleft()
                except IndexError:
                    pass  # nobody, or somebody else has just taken it

    def _waits(self, level: int) -> float:
        """The number of the first item in a line; infinite if there is none."""
        try:
            return self._lines[level][0][0]
        except IndexError:
            return float("inf")

    def _fail(self, chunk: list[Any], error: BaseException) -> None:
        try:
            self._failed(chunk, error)
        except BaseException:
            log.exception("relay: %s could not report a failure", self._name)
