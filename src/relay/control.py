"""Control: the loop that lets a controller set a pool's capacity.

One daemon thread, parked on the pool's clock, wakes once a period, and for nothing else. It holds the pool only weakly,
and ends when the pool is closed or gone. Everything here may be called from any thread; no two steps run at once.
Whatever the load, the controller or the pool raises, the capacity stays as it is and the thread lives on. A forked
child's pool is not controlled until it is told to be.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from relay.clock import MONOTONIC, NS, Clock, limit_ns, release_once
from relay.errors import Closed
from relay.fork import survivors
from relay.samples import Controller, Sample, known, whole

log = logging.getLogger("relay")


class Resizable(Protocol):
    """What control needs of a pool. It must be one that weak references can be made to."""

    name: str

    @property
    def max_capacity(self) -> int:
        """The most tokens it can have."""

    def resize(self, n: int) -> None:
        """Set the number of tokens. Raises Closed."""

    def _sample(self) -> tuple[int, int, int, float | None, int, int]:
        """Limit, in use, waiting, latency, completed and dropped, as in `Sample`, since the last call. Raises
        Closed."""


class Control:
    """Drives a pool's capacity; made by `TokenPool.control`.

    The wanted limit is rounded down, for a part of a token cannot be granted and widening takes a whole one, and held
    between 1 and the pool's `max_capacity`.

    Args:
        pool: The pool; not kept alive by this.
        controller: Decides. It serves this pool alone, and is called by one thread at a time.
        load: Utilisation, 0 to 1, called once a period; None, NaN or an exception is unknown. Without it all loads are.
        every: The period in seconds.
        clock: What to wait on.

    Raises:
        ValueError: `every` is not over 0, or is endless.
        TypeError: `controller` has no `update`, or `load` cannot be called.
        Closed: The pool is closed.
    """

    def __init__(
        self,
        pool: Resizable,
        controller: Controller,
        load: Callable[[], float | None] | None = None,
        every: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        period_ns = limit_ns(every, "every")
        if not period_ns:
            raise ValueError(f"every must be a number of seconds over 0 and not endless, got {every!r}")
        if isinstance(controller, type) or not callable(getattr(controller, "update", None)):
            raise TypeError(f"controller must be an object with update(sample), such as Step(), got {controller!r}")
        if load is not None and not callable(load):
            raise TypeError(f"load must be None or a function that returns 0 to 1 or None, got {load!r}")
        self._controller = controller
        self._load = load
        self._period_ns = period_ns
        self._clock = clock or MONOTONIC
        self._name = pool.name
        self._new_locks(pool)
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._failing: set[str] = set()
        self.last: Sample | None = None
        """What the controller was told last."""
        pool._sample()  # what was before is not what this control has to answer for
        survivors.add(self)

    def start(self) -> Self:
        """Start the thread, once."""
        with self._resizing:
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name=f"{self._name}-control", daemon=True)
                self._thread.start()
        return self

    def stop(self) -> None:
        """Leave the pool as it is from now on: once this returns, nothing is resized any more. Does not wait for a load
        or a controller that is being asked."""
        with self._resizing:
            self._stopped = True
        release_once(self._gate)

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def tick(self) -> None:
        """Take one step now: read, ask, resize. Does nothing after `stop`, or while a step is under way."""
        if not self._stepping.acquire(False):
            return
        try:
            pool = self._pool()
            if pool is None:
                self.stop()
            elif not self._stopped:
                self._step(pool)
        except Closed:
            self.stop()
        finally:
            self._stepping.release()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "running" if self.alive else "not started"
        return f"<Control of {self._name!r} by {self._controller!r}, {state}>"

    def _new_locks(self, pool: Resizable | None) -> None:
        gate = threading.Lock()
        gate.acquire()
        self._gate = gate
        self._stepping = threading.Lock()
        self._resizing = threading.RLock()  # a finaliser that runs while the pool resizes may stop us
        if pool is not None:
            # When the pool is gone the thread has nothing to wait for. The callback knows the gate alone.
            self._pool = weakref.ref(pool, lambda _: release_once(gate))

    def _after_fork_in_child(self) -> None:
        self._thread = None
        self._stopped = True
        self._new_locks(None)

    def _step(self, pool: Resizable) -> None:
        load = self._read_load()
        limit, in_use, waiting, latency, completed, dropped = pool._sample()
        now = self._clock.now_ns() / NS
        self.last = sample = Sample(now, limit, in_use, waiting, load, latency, completed, dropped)
        try:
            wanted = float(self._controller.update(sample))
            if wanted != wanted:
                raise ValueError(f"{self._controller!r} wants {wanted}, which is no limit")
        except Exception:
            self._warn("controller", "the controller of %r failed; its capacity stays %d", self._name, limit)
            return
        self._failing.discard("controller")
        n = whole(min(max(wanted, 1), pool.max_capacity))
        with self._resizing:
            if n != limit and not self._stopped:
                pool.resize(n)

    def _read_load(self) -> float | None:
        if self._load is None:
            return None
        try:
            reading = self._load()
            if reading is None:
                return None
            load = known(float(reading))
            if load is None:
                raise ValueError(f"the load is {reading!r}, not 0 to 1")
        except Exception:
            self._warn(
                "load", "the load for %r cannot be read; while it is unknown nothing is widened by it", self._name
            )
            return None
        return load

    def _warn(self, what: str, text: str, *values: object) -> None:
        """Log the present exception, but not in every period."""
        if what not in self._failing:
            self._failing.add(what)
            log.warning(f"relay: {text}", *values, exc_info=True)

    def _run(self) -> None:
        while not self._stopped:
            # From now on, not from when it was due: a machine that has slept makes up for nothing.
            if self._clock.park(self._gate, self._clock.now_ns() + self._period_ns) or self._stopped:
                return
            try:
                self.tick()
            except BaseException:
                self._warn("step", "a step of the control of %r failed; it goes on", self._name)
