"""What the tests of retries share."""

from __future__ import annotations

import threading

from relay.clock import NS
from relay.retry import Retry
from relay.testing import FakeClock

JITTER = ["full", "equal", "none"]
PLAIN = Retry(jitter="none")


class QuickClock(FakeClock):
    """Whoever waits on it moves it on, so that nobody waits.

    Attributes:
        waits: The seconds of every wait.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self.waits: list[float] = []

    def park(self, gate: threading.Lock, until_ns: int | None) -> bool:
        assert gate.locked() and until_ns is not None
        self._pass(until_ns - self.now_ns())
        return False

    async def sleep_async(self, seconds: float) -> None:
        self._pass(round(seconds * NS))

    def _pass(self, wait_ns: int) -> None:
        self.waits.append(wait_ns / NS)
        self._now_ns += wait_ns
