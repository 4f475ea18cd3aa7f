"""For tests of code that uses relay: a clock that moves when told, a model that runs when told, and checks that nothing
is left behind.

Nothing here sleeps. Everything may be used from any thread. In the child of a fork clocks and models are as they were,
but that nobody is parked on them or in a call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from relay.clock import NS, release_once
from relay.fork import survivors
from relay.pool import TokenPool
from relay.relay import Relay

_Sleeper = tuple[int, threading.Lock, threading.Event]
"""Until when it sleeps, what it is parked at, and whether its time has come."""


class FakeClock:
    """A clock that stands still until `advance`.

    Args:
        start: The time it shows at first, in seconds.
    """

    def __init__(self, start: float = 1_000.0) -> None:
        self._now_ns = int(start * NS)
        self._start_empty()
        survivors.add(self)

    def _start_empty(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._parked: set[_Sleeper] = set()  # all who have not gone on yet
        self._sleepers: list[_Sleeper] = []  # those of them whose time has not come

    _after_fork_in_child = _start_empty

    def now_ns(self) -> int:
        """The time it shows, in nanoseconds."""
        return self._now_ns

    def park(self, gate: threading.Lock, until_ns: int | None) -> bool:
        """Wait for the gate, or until somebody has advanced the clock to `until_ns`."""
        timed_out = threading.Event()
        entry = (until_ns if until_ns is not None else 1 << 62, gate, timed_out)
        with self._changed:
            if until_ns is not None and until_ns <= self._now_ns:
                return gate.acquire(False)
            self._sleepers.append(entry)
            self._parked.add(entry)
            self._changed.notify_all()
        try:
            gate.acquire()
        finally:
            with self._changed:
                self._parked.discard(entry)
                if entry in self._sleepers:
                    self._sleepers.remove(entry)
        return not timed_out.is_set()

    def advance(self, seconds: float) -> None:
        """Move on, waking all whose time has come."""
        with self._changed:
            self._now_ns += int(seconds * NS)
            due = [entry for entry in self._sleepers if entry[0] <= self._now_ns]
            for entry in due:
                self._sleepers.remove(entry)
                entry[2].set()
        for _, gate, _ in due:
            release_once(gate)

    def wait_for_sleepers(self, count: int, timeout: float = 30.0) -> None:
        """Wait until `count` threads are parked on this clock.

        Raises:
            TimeoutError: They did not come within `timeout` real seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._parked) >= count, timeout):
                raise TimeoutError(
                    f"{len(self._parked)} threads are parked on the clock, not {count}, after {timeout} s"
                )


class FakeModel:
    """A model that records its batches, and runs them at once or when told.

    Args:
        function: Gets one item, gives one row.
        held: Start with calls held: each waits for `release`.

    Attributes:
        batches: The items of every batch, in the order of the calls.
    """

    def __init__(self, function: Callable[[Any], Any] = lambda item: item, *, held: bool = False) -> None:
        self._function = function
        self._held = held
        self._permits = 0
        self._error: BaseException | None = None
        self.batches: list[list[Any]] = []
        self._start_idle()
        survivors.add(self)

    def _start_idle(self) -> None:
        self._state = threading.Condition()
        self._running: set[object] = set()

    _after_fork_in_child = _start_idle

    def __call__(self, batch: Any, **params: Any) -> list[Any]:
        items = list(batch) if isinstance(batch, list) else list(batch.items)
        call = object()
        with self._state:
            self.batches.append(items)
            self._running.add(call)
            self._state.notify_all()
        try:
            with self._state:
                self._state.wait_for(lambda: not self._held or self._permits > 0)
                self._permits -= self._held
                error, self._error = self._error, None
            if error is not None:
                raise error
            return [self._function(item) for item in items]
        finally:
            with self._state:
                self._running.discard(call)
                self._state.notify_all()

    def hold(self) -> None:
        """From the next call on, wait for `release`."""
        with self._state:
            self._held, self._permits = True, 0

    def release(self, calls: int = 1) -> None:
        """Let this many held calls go on."""
        with self._state:
            self._permits += calls
            self._state.notify_all()

    def free(self) -> None:
        """Hold no more calls, and let those go that are held."""
        with self._state:
            self._held = False
            self._state.notify_all()

    def fail_next(self, error: BaseException) -> None:
        """Raise `error` from the next call that goes on."""
        with self._state:
            self._error = error

    def wait_until_running(self, timeout: float = 30.0) -> None:
        """Wait until a call is under way.

        Raises:
            TimeoutError: None came within `timeout` real seconds.
        """
        with self._state:
            if not self._state.wait_for(lambda: bool(self._running), timeout):
                raise TimeoutError(f"the model was not called within {timeout} s")


@contextmanager
def paused(relay: Relay[Any, Any], model: FakeModel, plug: Any = None) -> Iterator[None]:
    """Keep a relay's lane busy for the length of the block, so that what is submitted inside stays queued.

    Args:
        relay: The relay.
        model: Its model.
        plug: The item that keeps the lane busy.
    """
    model.hold()
    ticket = relay.submit(plug)
    model.wait_until_running()
    try:
        yield
    finally:
        model.free()
        ticket.result(30)


def assert_idle(*parts: Relay[Any, Any] | TokenPool) -> None:
    """Recount relays and pools and make sure that nothing is held, queued or waiting.

    Raises:
        AssertionError: Something is.
    """
    for part in parts:
        part.check()
        snapshot = part.snapshot()
        fields: Sequence[str] = (
            ("held", "waiting") if isinstance(part, TokenPool) else ("admitted", "queued", "waiting", "open")
        )
        left = {name: getattr(snapshot, name) for name in fields if getattr(snapshot, name)}
        if left:
            raise AssertionError(f"{part!r} is not idle: {left}")
