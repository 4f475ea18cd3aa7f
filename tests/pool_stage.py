"""A pool on a stage: actors of a schedule acquire and release its tokens, and nothing may be lost or owned twice."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Coroutine, Generator
from types import ModuleType
from typing import Any

from schedule import Failed, Joined, Run
from step_parts import Cancelled, StepClock, StepGate, StepLock, StepLoop
from stepped_pool import Timers, stepped

from relay.errors import AcquireTimeout, Closed, StaleToken, TokenRevoked

SLOT = (1 << 22) - 1

Scenario = Callable[["Stage"], None]


class Bystander:
    """Stands in line, and is nobody's actor: it keeps what it is given until the run is over."""

    def __init__(self) -> None:
        self.index = self.place = -1
        self.token: Any = None
        self.woken = 0

    def wake(self) -> bool:
        self.woken += 1
        return True


class Stage:
    """A run of actors around one pool.

    Args:
        run: The run.
        package: The package of one side.
        inside: Actors may be preempted inside the guard, where nothing but a fork looks at what they are doing.
        clock: Actors may be preempted when they read the clock: natively it is the one thing that a core call asks for.
    """

    def __init__(self, run: Run, package: ModuleType, *, inside: bool = False, clock: bool = False) -> None:
        self.run = run
        self.package = package
        self.atomic = package.backend == "native"
        self.clock = StepClock(run, clock)
        self.pool_: Any = None
        self.endings: dict[str, str] = {}
        self.hands: dict[str, Any] = {}  # who owns what
        self.served: list[str] = []
        self.mine: list[Any] = []  # the test's own
        self.bystanders: list[Bystander] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.loops: list[StepLoop] = []
        self._inside = inside
        self._clock_steps = clock
        self._granted = 0

    def call(self, name: str) -> None:
        """A core call comes next."""
        if self.atomic:
            self.run.step(name)
        self.run.mark(name)
        if self.atomic and not self._clock_steps:
            self.run.effect()

    def pool(self, capacity: int, *, held: tuple[int, ...] = (1,), timers: bool = False, **options: Any) -> Any:
        """Make the pool, with some tokens held by the test already, of these priorities. `timers` says that time limits
        are set by one actor and looked at by another."""
        made, policy = stepped(self.package)
        self.pool_ = pool = made(capacity, policy=policy, clock=self.clock, max_waiting=4, **options)
        pool.stage = self
        if not self.atomic:
            guard = pool._guard
            guard._lock = StepLock(
                self.run, "guard", inside=self._inside, effect=True,
                news=lambda: bool(pool._to_wake or guard.armed or guard.freed or guard.late or guard.leaks),
            )  # fmt: skip
        if timers:
            pool._timer_lock = StepLock(self.run, "timer lock", inside=self._inside)
            pool._timers = Timers(self.run, pool._timers)
        pool._alarm._thread = True  # it need not be started
        pool._alarm._gate = StepGate(self.run)
        pool._alarm.arm = functools.partial(self._arm, pool._alarm.arm)
        self.mine += [pool.try_acquire(priority) for priority in held]
        self._granted = pool.granted
        self.run.watch = self._watch
        self.run.idle = self._pass_on
        return pool

    def bystander(self, priority: int) -> None:
        """Somebody waits from the start."""
        bystander = Bystander()
        assert self.pool_.acquire_or_join(priority, None, bystander) is None
        self.bystanders.append(bystander)

    # Actors.

    def acquire(self, name: str, *, cancelled: bool = False, **options: Any) -> None:
        """A thread acquires a token, and releases it."""
        if cancelled:
            self.clock.interrupted.add(name)
        self.run.actor(name, lambda: self._take(name, {"heartbeat": math.inf, **options}))

    def acquire_async(self, loop: str, options: dict[str, dict[str, Any]]) -> None:
        """Tasks of one event loop, an actor, acquire a token each, and release it."""
        made = StepLoop(self.run)
        self.loops.append(made)
        for name, each in options.items():
            self.tasks[name] = made.create_task(self._take_async(name, {"heartbeat": math.inf, **each}))
        tasks = [self.tasks[name] for name in options]
        all_done = asyncio.gather(*tasks)
        self.run.actor(loop, lambda: made.run_until_complete(all_done))

    def cancel_tasks(self, name: str, *tasks: str) -> None:
        """A thread cancels tasks."""

        def work() -> None:
            for task in tasks:
                self.tasks[task].get_loop().call_soon_threadsafe(self.tasks[task].cancel)

        self.run.actor(name, work)

    def alarm(self) -> None:
        """The pool's own thread."""
        self.run.actor("alarm", self.pool_._alarm._run, daemon=True)

    def release(self, name: str = "R") -> None:
        """A thread releases a token of the test's."""
        token = self.mine.pop(0)
        self.run.actor(name, lambda: self.pool_.release(token))

    def _take(self, name: str, options: dict[str, Any]) -> None:
        try:
            if options["heartbeat"] is None:
                self.call("acquire")
            token = self.pool_.acquire(options.pop("priority", 1), **options)
        except (AcquireTimeout, Closed, Cancelled) as error:
            self.ends(name, {AcquireTimeout: "late", Closed: "closed", Cancelled: "cancelled"}[type(error)])
        else:
            self._use(name, token)

    async def _take_async(self, name: str, options: dict[str, Any]) -> None:
        try:
            token = await _Steps(self, name, self.pool_.acquire_async(options.pop("priority", 1), **options))
        except (AcquireTimeout, Closed, asyncio.CancelledError) as error:
            endings = {AcquireTimeout: "late", Closed: "closed", asyncio.CancelledError: "cancelled"}
            self.ends(name, endings[type(error)])
        else:
            self._use(name, token)

    def _use(self, name: str, token: Any) -> None:
        self.gain(name, token)
        del self.hands[name]
        self.pool_.release(token)
        self.ends(name, "token")

    def gain(self, name: str, token: Any) -> None:
        """An actor owns a token from now on."""
        held = [other for other in self.hands.values() if other.held]
        assert token.handle & SLOT not in [other.handle & SLOT for other in held], "a token has two owners"
        assert sum(other.cost for other in held) + token.cost <= self.pool_.held, "a token in use is not counted"
        self.hands[name] = token
        self.served.append(name)

    def ends(self, name: str, ending: str) -> None:
        """Each actor ends once."""
        assert name not in self.endings, f"{name} ended twice"
        self.endings[name] = ending
        self.run.learn(hash(ending))

    # The end.

    def play(self) -> None:
        """Let all actors run; then recount, give everything back, and make sure that nothing is lost."""
        pool = self.pool_
        self.run.play()
        if pool.held or pool.waiting:
            pool.check()
        counts = (pool.granted, pool.held, pool.waiting, pool.abandoned, pool.revoked, pool.capacity)
        self.outcome = dict(sorted(self.endings.items())), tuple(self.served), counts
        while self._pass_on() or self.mine:
            if self.mine:
                pool.release(self.mine.pop())
        assert all(bystander.woken and bystander.index == -1 for bystander in self.bystanders), "a waiter was forgotten"
        pool.check()
        assert (pool.held, pool.waiting, pool.free) == (0, 0, pool.capacity), "tokens are lost, or too many"
        assert not pool.leaked, "a token was thrown away"
        assert not pool._timed and not len(pool._timers), "a timer is left"

    def end(self) -> None:
        """Tidy up, whatever has happened."""
        if self.pool_ is None:
            return
        alarm = self.pool_._alarm
        alarm._stopping = True
        self.package.inherit.inheritance.remove(self.pool_)
        for survivor in (self.pool_, self.pool_._workers):  # no child of a later run has to make it new
            self.package.fork.survivors._survivors.pop(survivor, None)
        self.run.end()
        alarm.reset()
        alarm._clock = self.package.clock.MONOTONIC
        del alarm.arm  # the interpreter keeps every alarm until its pool is gone, so it must keep nothing of this
        del self.pool_.stage  # and native tokens are not looked at by the collector
        self.mine.clear()
        self.hands.clear()
        for task in self.tasks.values():
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                task.get_coro().close()  # type: ignore[union-attr]
        for loop in self.loops:
            loop.close()

    def _arm(self, arm: Callable[[int], None], when_ns: int) -> None:
        self.run.touch("alarm")
        arm(when_ns)

    def _pass_on(self) -> bool:
        """A bystander has had its token for long enough."""
        for bystander in self.bystanders:
            token, bystander.token = bystander.token, None
            if token is not None:
                self.pool_.release(token)
                return True
        return False

    def _watch(self) -> None:
        granted = self.pool_.granted
        if granted != self._granted:
            self._granted = granted
            assert self.pool_.held <= self.pool_.capacity, "more is granted than there is"


class _Steps:
    """A wait for a token, with a step before each of its own."""

    def __init__(self, stage: Stage, name: str, wait: Coroutine[Any, Any, Any]) -> None:
        self._stage = stage
        self._name = name
        self._wait = wait

    def __await__(self) -> Generator[Any, None, Any]:
        while True:
            self._stage.call(f"send {self._name}")
            try:
                future = self._wait.send(None)
            except StopIteration as end:
                return end.value
            try:
                yield future
            except BaseException as error:
                self._stage.call(f"throw {self._name}")
                self._wait.throw(error)
                raise


def playing(scenario: Scenario, package: ModuleType, **options: bool) -> Callable[[Run], Any]:
    """A scenario, to be searched or replayed; what it returns is the outcome. The options are those of `Stage`."""

    def play(run: Run) -> Any:
        stage = Stage(run, package, **options)
        try:
            scenario(stage)
            return stage.outcome
        except (Failed, Joined):
            raise
        except (AssertionError, StaleToken, TokenRevoked) as error:
            raise Failed(run.tell(error)) from error
        finally:
            stage.end()

    return play
