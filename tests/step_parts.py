"""What actors of a schedule wait at: locks, gates, a clock and event loops whose waits the scheduler sees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from schedule import Run
from schedule_actors import Actor


class StepLock:
    """A lock, re-entrant, whose waits are seen.

    Args:
        run: The run.
        inside: There is a step inside it as well.
        effect: Core calls take effect when they get it.
        news: After it has been left there is something to do, which others might do, too.
    """

    def __init__(
        self, run: Run, what: str, *, inside: bool = False, effect: bool = False,
        news: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._run = run
        self._what = what
        self._inside = inside
        self._effect = effect
        self._news = news
        self._owner: Actor | None = None
        self._depth = 0

    def _free(self) -> bool:
        return not self._depth

    def acquire(self) -> bool:
        run = self._run
        if not self._depth or (self._owner is not run.current and not run.over):
            run.step(self._what, within=True)
            run.block(self._free, self._what)
            self._owner = run.current
            run.touch(self._what)
            if self._effect:
                run.effect()
            self._depth = 1
            if self._inside:
                run.step("inside " + self._what)
        else:
            self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth and self._news():
            self._run.step("out of " + self._what)
            self._run.touch(self._what)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class StepLoop(asyncio.SelectorEventLoop):
    """An event loop whose turns are steps of the actor that runs it, and whose waits are seen. It has no timers."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._poked = False
        super().__init__(_Turns(self))  # type: ignore[arg-type]

    def _make_self_pipe(self) -> None:
        pass

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        self._poked = True

    def call_soon_threadsafe(self, callback: Any, *args: Any, **keywords: Any) -> asyncio.Handle:
        self._run.step("poke", event=True)
        self._run.touch("loop")
        return super().call_soon_threadsafe(callback, *args, **keywords)

    def select(self, timeout: float | None) -> list[object]:
        if timeout == 0:
            self._run.step("turn")
        else:
            self._run.block(lambda: self._poked, "sleep")
        self._run.note("turn")
        self._run.touch("loop")
        self._poked = False
        return []


class _Turns:
    """The selector of a `StepLoop`."""

    def __init__(self, loop: StepLoop) -> None:
        self.select = loop.select

    def close(self) -> None:
        pass


class StepGate:
    """A lock as one sleeps at until another opens it, whoever locked it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._locked = True

    def acquire(self, blocking: bool = True) -> bool:
        if blocking:
            self._run.block(lambda: not self._locked, "sleep")
        elif self._locked:
            return False
        self._locked = True
        self._run.touch("alarm")
        return True

    def locked(self) -> bool:
        return self._locked

    def release(self) -> None:
        self._run.touch("alarm")
        if not self._locked:
            raise RuntimeError("release unlocked lock")
        self._locked = False


class Cancelled(KeyboardInterrupt):
    """Ctrl-C."""


class StepClock:
    """A clock that stands still until somebody who waits for a time is chosen: then it is that time.

    Args:
        run: The run.
        steps: There is a step before each look at it.
    """

    def __init__(self, run: Run, steps: bool) -> None:
        self._run = run
        self._steps = steps
        self._now_ns = 10**12
        self.interrupted: set[str] = set()  # actors to whom Ctrl-C comes while they are parked

    def now_ns(self) -> int:
        if self._steps:
            self._run.step("clock", within=True)
            self._run.effect()
        self._run.learn(self._now_ns)
        return self._now_ns

    def park(self, gate: threading.Lock | StepGate, until_ns: int | None) -> bool:
        run = self._run
        run.effect()
        if run.current is not None and run.current.name in self.interrupted:
            run.pause("park")
            run.touch("gates")
            run.note("interrupted")
            raise Cancelled
        if until_ns is None:
            run.block(lambda: not gate.locked(), "park")  # type: ignore[union-attr]
        else:
            run.pause("park")
        opened = gate.acquire(False)
        if not opened:
            assert until_ns is not None
            self._now_ns = max(self._now_ns, until_ns)
            run.touch("time")
        run.touch("gates")
        run.note("woken" if opened else "late")
        return opened
