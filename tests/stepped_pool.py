"""`TokenPool` with steps for a schedule, put there by overriding; the package itself knows nothing of them.

On the pure side there are steps where the core's guard is taken, and where it has been left and there is something to
tell. Natively a call is not divisible, so the steps are before the calls. On both sides there are steps before a waiter
is woken, in the middle of setting its timer, and wherever somebody waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from schedule import Abort, Run

CALLS = ("acquire_or_join", "leave", "abandon", "release", "resize", "shut", "expire", "beat", "collect")
"""Methods of the core that take the guard once."""


class _Nowhere:
    """The stage of a pool that is being made."""

    run = Run([])

    def call(self, name: str) -> None:
        pass


@functools.cache
def stepped(package: ModuleType) -> Any:
    """`TokenPool` of one side, with steps, and a policy for it."""
    base = package.TokenPool
    acquire = package._backend.permits.Acquire

    class Pool(base):  # type: ignore[misc, valid-type]
        stage: Any = _Nowhere()

        def note_waits(self, *several: bool) -> None:
            """Other runs' pools are none of this one's business."""

        def _get_ready(self) -> None:
            self.ready = True  # the alarm is an actor, or is not needed

        def next_lease_ns(self) -> Any:
            self.stage.call("next_lease_ns")
            return super().next_lease_ns()

        def _deliver(self, waiter: Any) -> Any:
            # Natively a coroutine is told without this hook; but its loop is poked on both sides.
            event = not isinstance(waiter, acquire)
            self.stage.run.step("deliver", event)
            self.stage.run.touch("gates")
            try:
                return super()._deliver(waiter)
            finally:
                if event:
                    self.stage.call("delivered")

        def _next_alarm_ns(self) -> Any:
            run = self.stage.run
            run.touch("alarm")
            when_ns = super()._next_alarm_ns()
            run.step("asked", event=True)
            run.touch("alarm")
            return when_ns

        def _ring(self, now_ns: int) -> None:
            try:
                super()._ring(now_ns)
            except BaseException as error:  # the alarm swallows it
                if not isinstance(error, Abort):
                    self.stage.run.failure = self.stage.run.failure or error
                raise

    def wrapped(name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **keywords: Any) -> Any:
            if not (args and isinstance(args[-1 if name != "acquire_or_join" else 2], acquire)):
                self.stage.call(name)
            return getattr(base, name)(self, *args, **keywords)

        return method

    for name in CALLS:
        setattr(Pool, name, wrapped(name))
    policy = package.policy.StrictPriority()
    policy.allowance_ns = []  # none: it makes pools four times faster
    return Pool, policy


class Timers:
    """A pool's timers, whose uses are events."""

    def __init__(self, run: Run, timers: Any) -> None:
        self._run = run
        self._timers = timers

    def __len__(self) -> int:
        return len(self._timers)

    def _use(self, what: str) -> None:
        self._run.note(what)
        self._run.touch("timers")

    def arm(self, place: int, when_ns: int) -> None:
        self._run.step("arm timer")  # whoever it is for may be woken just now
        self._use("arm timer")
        self._timers.arm(place, when_ns)

    def disarm(self, place: int) -> None:
        self._use("disarm timer")
        self._timers.disarm(place)

    def due(self, now_ns: int) -> Any:
        self._use("due timers")
        return self._timers.due(now_ns)

    def next_ns(self) -> Any:
        self._use("next timer")
        return self._timers.next_ns()
