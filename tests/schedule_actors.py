"""The threads of a schedule: an actor of one run, and the workers that play the actors of one run after another."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Actor:
    """One thread of a run."""

    def __init__(self, name: str, work: Callable[[], object], daemon: bool, worker: Worker) -> None:
        self.name = name
        self.work = work
        self.daemon = daemon  # the run may end without it
        self.worker = worker
        self.until: Callable[[], bool] | None = None  # what it waits for
        self.started = self.done = False
        self.call: str | None = None  # the core call it is about to make
        self.steps = self.past = 0  # how many, and a hash of all it has seen

    def ready(self) -> bool:
        return not self.done and (self.until is None or self.until())


class Worker:
    """A thread that is used again by many runs."""

    def __init__(self) -> None:
        self.go = threading.Lock()
        self.go.acquire()
        self.job: Callable[[], object] | None = None
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            self.go.acquire()
            if self.job is None:
                return
            self.job()


@contextmanager
def crew(size: int) -> Iterator[list[Worker]]:
    """So many workers; all on one processor, where handing on costs half as much."""
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    if processors:
        os.sched_setaffinity(0, {sorted(processors)[os.getpid() % len(processors)]})
    workers = [Worker() for _ in range(size)]
    try:
        yield workers
    finally:
        if processors:
            os.sched_setaffinity(0, processors)
        for worker in workers:
            worker.job = None
            worker.go.release()
            worker.thread.join(30)
            assert not worker.thread.is_alive(), "an actor is left"
