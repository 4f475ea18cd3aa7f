"""RetryBudget: how often callers may try again, counted over all of them.

It owns two counts for each tenth of its window. Any thread may call any method.
"""

from __future__ import annotations

import math
import threading
from numbers import Real

from relay.clock import FOREVER_NS, MONOTONIC, NS, Clock
from relay.fork import survivors

_SLOTS = 10


class RetryBudget:
    """Bounds the retries of many callers together, so that retrying cannot keep an overload alive.

    In `window` seconds at most ``ratio * first tries + min_per_second * window`` retries are let through. Callers share
    it by using one `Retry`, or several that hold the same budget. A forked child starts with an empty window.

    Args:
        ratio: Retries for each first try.
        min_per_second: Retries that are let through however little there is to do.
        window: For how long tries and retries count, in seconds; they are forgotten in steps of a tenth of it.
        clock: What the window is read from; for tests.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(
        self, ratio: float = 0.1, min_per_second: float = 10.0, window: float = 10.0, *, clock: Clock | None = None
    ) -> None:
        self.ratio = finite(ratio, "ratio", 0.0)
        self.min_per_second = finite(min_per_second, "min_per_second", 0.0)
        self.window = finite(window, "window", 0.001)
        self._floor = self.min_per_second * self.window
        self._clock = clock or MONOTONIC
        self._step_ns = int(min(self.window * NS, FOREVER_NS)) // _SLOTS
        self._after_fork_in_child()
        survivors.add(self)

    def deposit(self) -> None:
        """Count a first try."""
        tick = self._clock.now_ns() // self._step_ns
        with self._lock:
            self._firsts[self._slot(tick)] += 1

    def withdraw(self) -> bool:
        """Ask for one retry. Returns False, and counts nothing, if the budget is spent."""
        tick = self._clock.now_ns() // self._step_ns
        with self._lock:
            slot = self._slot(tick)
            allowed = self._left() >= 1
            self._retries[slot] += allowed
            return allowed

    @property
    def balance(self) -> int:
        """Retries that would be let through now."""
        tick = self._clock.now_ns() // self._step_ns
        with self._lock:
            self._slot(tick)
            return int(min(max(self._left(), 0.0), 1e15))

    def __repr__(self) -> str:
        return (
            f"RetryBudget(ratio={self.ratio:g}, min_per_second={self.min_per_second:g}, window={self.window:g}): "
            f"{self.balance} left"
        )

    def _after_fork_in_child(self) -> None:
        # Re-entrant: a finaliser or a signal's handler that runs in here may retry something of its own.
        self._lock = threading.RLock()
        self._tick = 0
        self._ticks = [-1] * _SLOTS  # which step each slot counts
        self._firsts = [0] * _SLOTS
        self._retries = [0] * _SLOTS

    def _slot(self, tick: int) -> int:
        """The slot of this step, emptied if it last counted another one. The lock is held."""
        self._tick = tick = max(tick, self._tick)  # who read the clock first may come last
        slot = tick % _SLOTS
        if self._ticks[slot] != tick:
            self._firsts[slot] = self._retries[slot] = 0
            self._ticks[slot] = tick
        return slot

    def _left(self) -> float:
        firsts = retries = 0
        for slot in range(_SLOTS):
            if self._ticks[slot] > self._tick - _SLOTS:
                firsts += self._firsts[slot]
                retries += self._retries[slot]
        return self.ratio * firsts + self._floor - retries + 1e-9  # 0.29 * 100 is to be 29


def finite(value: object, what: str, least: float) -> float:
    """The number as a float.

    Raises:
        ValueError: It is no number, less than `least`, infinite or NaN.
    """
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf
    if not least <= number < math.inf:
        raise ValueError(f"{what} must be a finite number of at least {least:g}, got {value!r}")
    return number
