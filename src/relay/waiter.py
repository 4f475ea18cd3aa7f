"""One who waits: a thread behind a lock, or a coroutine behind a future."""

from __future__ import annotations

import asyncio
import threading

from relay._backend import permits as core


class Waiter:
    """Somebody who waits for a token, for a pool to empty, or for room in a queue.

    Args:
        loop: The loop of a coroutine; None for a thread, which parks at `gate`.

    Attributes:
        index: Its place in the line, or -1: written by who keeps the line.
        token: What it was given: written by the core.
        place: Where its time limit is noted: written by the pool.
    """

    __slots__ = ("future", "gate", "index", "loop", "place", "token", "__weakref__")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.index = self.place = -1
        self.token: core.Token | None = None
        self.loop = loop
        if loop is None:
            self.gate = threading.Lock()
            self.gate.acquire()
        else:
            self.future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> bool:
        """Let it go on, from any thread; may be repeated. False if its loop is closed, so that it never will."""
        if self.loop is None:
            try:
                self.gate.release()
            except RuntimeError:
                pass  # a clock has opened it at the same moment
            return True
        try:
            self.loop.call_soon_threadsafe(self._finish)
        except RuntimeError:
            return False
        return True

    def _finish(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
