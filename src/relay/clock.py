"""Time, and waiting for it: the one place that reads a clock, so that tests can replace it.

A clock may be used from any thread. Only the monotonic clock is ever used for waiting. Seconds are floats in the public
API and integer nanoseconds (`_ns`) inside.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("relay")

NS = 1_000_000_000
FOREVER_NS = 1 << 62
"""A time that never comes: 146 years after the machine started. Longer waits are clamped to it."""


class Clock(Protocol):
    """What relay needs of a clock."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary fixed moment; never runs backwards."""

    def park(self, gate: threading.Lock, until_ns: int | None) -> bool:
        """Wait for `gate` (a lock already held) to be released by someone else, until `until_ns`.

        Returns:
            True if the gate was released, False if the time came first.
        """


class MonotonicClock:
    """The machine's own monotonic clock."""

    now_ns = staticmethod(time.monotonic_ns)

    def park(self, gate: threading.Lock, until_ns: int | None) -> bool:
        if until_ns is None:
            return gate.acquire()
        left_ns = until_ns - time.monotonic_ns()
        if left_ns <= 0:
            return gate.acquire(False)
        return gate.acquire(timeout=min(left_ns / NS, threading.TIMEOUT_MAX))


MONOTONIC = MonotonicClock()


def limit_ns(seconds: float | None, what: str) -> int | None:
    """Turn a public time limit into nanoseconds.

    Args:
        seconds: None and infinity mean no limit; 0 means "try once".
        what: The keyword's name, for the error text.

    Returns:
        None for no limit, else a whole number of nanoseconds of at least 0. Anything positive is at least 1.

    Raises:
        ValueError: `seconds` is negative or NaN.
    """
    if seconds is None:
        return None
    try:
        valid = seconds >= 0
    except TypeError:
        raise TypeError(f"{what} must be None or a number of seconds, got {type(seconds).__name__}") from None
    if not valid:
        raise ValueError(f"{what} must be None or a number of seconds of at least 0, got {seconds!r}")
    if seconds * NS >= FOREVER_NS:
        return None
    return max(int(seconds * NS), 1) if seconds else 0


def release_once(gate: threading.Lock) -> None:
    """Open a gate that someone may be parked at, or that may be open already."""
    try:
        gate.release()
    except RecursionError:
        raise  # it is a RuntimeError as well
    except RuntimeError:
        pass


class Alarm:
    """One daemon thread that calls back when the earliest of many deadlines has come.

    The deadlines live elsewhere (a core `Timers`); the alarm only asks for the earliest and sleeps until it. Started by
    the first `arm`.

    Args:
        clock: What to sleep on.
        name: The thread's name.
        next_ns: The earliest deadline, or None. Called from the alarm's thread.
        due: Called from the alarm's thread with the present time when a deadline has come; it must not raise.
    """

    def __init__(self, clock: Clock, name: str, next_ns: Callable[[], int | None], due: Callable[[int], None]) -> None:
        self._clock = clock
        self._name = name
        self._next_ns = next_ns
        self._due = due
        self._stopping = False
        self.reset()

    def reset(self) -> None:
        """Start anew, without a thread, as in a child after a fork, where the old one is not. A stopped alarm stays
        stopped."""
        self._gate = threading.Lock()
        self._gate.acquire()
        self._start = threading.RLock()  # re-entrant, for a signal's handler may come while the thread starts
        self._starting = False
        self._thread: threading.Thread | None = None
        self._armed_ns = FOREVER_NS

    def arm(self, when_ns: int) -> None:
        """Make sure that the alarm is awake by `when_ns`. Cheap when it already will be."""
        if when_ns < self._armed_ns:
            self.start()
            release_once(self._gate)

    def start(self) -> None:
        """Start the thread, if it does not run."""
        if self._thread is None:
            with self._start:
                if self._thread is None and not self._stopping and not self._starting:
                    self._starting = True
                    try:
                        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                        thread.start()
                        self._thread = thread  # not before it runs, for `alive` looks at it
                    finally:
                        self._starting = False

    def poke(self) -> None:
        """Have the thread call back now, if it runs. Does nothing but open a gate, so finalisers may call it."""
        release_once(self._gate)

    def stop(self) -> None:
        """Let the thread end; does not wait for it."""
        self._stopping = True
        release_once(self._gate)

    @property
    def alive(self) -> bool:
        """True if the thread runs, or has not been needed yet."""
        return self._thread is None or self._thread.is_alive()

    def on_own_thread(self) -> bool:
        """True on the alarm's own thread."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        self._thread = me = threading.current_thread()
        while not self._stopping and self._thread is me:  # not so in a child that was forked by what it called
            # FOREVER first, so that a deadline armed between the question and the sleep pokes us.
            self._armed_ns = FOREVER_NS
            when = self._next_ns()
            if when is not None:
                self._armed_ns = when
            if when is None:
                self._gate.acquire()
            elif when > self._clock.now_ns():
                self._clock.park(self._gate, when)
            if self._stopping:
                return
            try:
                self._due(self._clock.now_ns())
            except BaseException:
                log.exception("relay: %s failed, which is a bug in relay; it goes on", self._name)
