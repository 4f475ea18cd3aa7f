"""Scenarios A7 and A10: an error in the middle of a wake-up, and finalisers that run in the middle of anything."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Loops, Make, Run, turns

from relay.errors import StaleToken

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools", "collecting"]


class Fault:
    """Raises an error in one of the calls that come to `at`, before or after they do what they are for."""

    def __init__(self, error: type[BaseException], which: int, after: bool = False) -> None:
        self.error, self.which, self.after = error, which, after
        self.calls = 0

    def at(self, call: Callable[..., Any], *args: Any) -> Any:
        self.calls += 1
        if self.calls != self.which:
            return call(*args)
        if self.after:
            call(*args)
        if self.error is KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)  # it is raised between the steps of whoever runs here
        raise self.error


FAULTS = [
    pytest.param(error, which, after, id=f"{error.__name__}-{which}-{'after' if after else 'before'}")
    for error in (MemoryError, KeyboardInterrupt, ZeroDivisionError)
    for which in (1, 2, 3)
    for after in (False, True)
]


@pytest.mark.parametrize(("error", "which", "after"), FAULTS)
def test_a7_later_releases_wake_the_rest(
    lab: Lab, make: Make, clock: Any, monkeypatch: pytest.MonkeyPatch, error: Any, which: int, after: bool
) -> None:
    pool, fault = make(3, max_capacity=6), Fault(error, which, after)
    held = [pool.acquire() for _ in range(3)]
    threads = []
    for number in range(5):
        threads.append(lab.call(pool.acquire))
        clock.wait_for_sleepers(number + 1)
    wake = lab.package.waiter.Waiter.wake
    monkeypatch.setattr(lab.package.waiter.Waiter, "wake", lambda waiter: fault.at(wake, waiter))
    with pytest.raises(error):
        pool.resize(6)  # wakes three
    assert (pool.held, pool.waiting) == (6, 2) and fault.calls == which
    held.pop().release()
    held.pop().release()
    held += [thread.result() for thread in threads]
    assert (len(held), pool.held, pool.waiting) == (6, 6, 0)
    for token in held:
        token.release()


@pytest.mark.parametrize(("error", "which", "after"), FAULTS)
def test_a7_of_coroutines(lab: Lab, make: Make, loops: Loops, error: Any, which: int, after: bool) -> None:
    """Their loop stands still meanwhile: it would see to the rest as soon as the first of them goes on."""
    pool, fault = make(3, max_capacity=6), Fault(error, which, after)
    still, go = threading.Event(), threading.Event()

    plain = loops()
    plain.close()

    def loop() -> Any:
        class Loop(type(plain)):  # type: ignore[misc]
            def call_soon_threadsafe(self, callback: Any, *args: Any, **kwargs: Any) -> Any:
                call = super().call_soon_threadsafe
                if still.is_set() and not go.is_set():
                    return fault.at(call, callback, *args)
                return call(callback, *args, **kwargs)

        return Loop()

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(pool.acquire_async()) for _ in range(5)]
        await turns()
        still.set()
        assert go.wait(30)
        return list(await asyncio.gather(*tasks))

    held = [pool.acquire() for _ in range(3)]
    tasks = lab.call(lab.run, loop, main())
    assert still.wait(30) and pool.waiting == 5
    with pytest.raises(error):
        pool.resize(6)
    assert (pool.held, pool.waiting) == (6, 2) and fault.calls == which
    held.pop().release()
    held.pop().release()
    go.set()
    held += tasks.result()
    assert (len(held), pool.held, pool.waiting) == (6, 6, 0)
    for token in held:
        token.release()


def test_a7_callbacks_that_raise(lab: Lab, make: Make, clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []

    def on_revoke(token: Any) -> None:
        told.append(token.handle)
        raise KeyError("mine")

    def policy(facts: Any) -> int:
        if facts.tenant == "bad":
            raise KeyError("mine")
        return 0

    pool = make(2, policy=policy, on_revoke=on_revoke, heartbeat=1, load=lambda: 1 / 0)
    held = [pool.acquire(), pool.acquire()]
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            pool.acquire(tenant="bad")
    assert pool.waiting == 0
    thread = lab.call(pool.acquire, heartbeat=1_000)
    lab.wait_until(lambda: pool.waiting == 1)
    clock.advance(1)
    lab.wait_until(lambda: caplog.text.count("on_revoke of 'pool' failed") == 2)
    assert told == [token.handle for token in held]
    clock.advance(1)
    thread.result().release()
    lab.wait_until(lambda: pool.held == 0)
    for token in held:
        with pytest.raises(StaleToken):
            token.release()


class Ring:
    """Something that only the collector finds."""

    def __init__(self, thing: Any) -> None:
        self.thing, self.ring = thing, self


class Releasing(Ring):
    """Releases its token when it is found."""

    def __del__(self) -> None:
        with suppress(StaleToken):  # the collector may have found the token first
            self.thing.release()


def operations(native: int, pure: int) -> Any:
    """Parametrises a test by its operations: fewer on the pure side, where they take longer, but for the long test."""
    long = pytest.param({"native": native, "pure": native}, marks=pytest.mark.long)
    return pytest.mark.parametrize("operations", [{"native": native, "pure": pure}, long], ids=["short", "long"])


@operations(100_000, 20_000)
@pytest.mark.filterwarnings("ignore:a token of 'pool' was thrown away:ResourceWarning")
def test_a10_of_threads(lab: Lab, make: Make, seed: int, collecting: None, operations: dict[str, int]) -> None:
    """Two threads, whose finalisers release tokens and leave tokens behind in the middle of each other's calls."""
    pool = make(8)

    def work(number: int) -> int:
        rng, had, leaked = random.Random(f"{seed} {number}"), 0, 0
        # A quarter: as many tries come back with nothing, for a collection of the other thread's bars one's own.
        while had < operations[lab.backend] // 4:
            token = pool.try_acquire(rng.randrange(3))
            if token is None:
                gc.collect()
                continue
            had += 1
            end = rng.randrange(3)
            if end == 0:
                Releasing(token)
            elif end == 1:
                Ring(token)
                leaked += 1
            else:
                token.release()
        return leaked

    calls = [lab.call(work, number) for number in range(2)]
    for call in calls:
        call.thread.join(800)
    leaked = sum(call.result() for call in calls)
    gc.collect()
    pool.collect()
    state = pool.snapshot()
    assert state.leaked >= leaked and state.held == 0
    assert leaked > state.granted / 10


@operations(100_000, 20_000)
@pytest.mark.filterwarnings("ignore:a token of 'pool' was thrown away:ResourceWarning")
def test_a10_of_coroutines(
    lab: Lab, make: Make, run: Run, rng: random.Random, collecting: None, operations: dict[str, int]
) -> None:
    """As with threads; and the collector ends coroutines that stand in line, or have been given a token meanwhile."""
    pool = make(4)

    async def main() -> None:
        waiting = 0
        for count in range(operations[lab.backend] // 2):
            if pool.free or waiting > 20:
                token = await pool.acquire_async(rng.randrange(3))
                (Releasing, Ring, lambda token: token.release())[rng.randrange(3)](token)
                waiting = 0
            else:
                wait = pool.acquire_async(rng.randrange(3))
                wait.send(None)  # stands in line, and is forgotten there
                Ring(wait)
                del wait
                waiting += 1
            if count % 100 == 0:
                await turns(1)

    run(main())
    gc.collect()
    pool.collect()
    assert (pool.held, pool.waiting) == (0, 0)
    assert pool.snapshot().leaked > 0


class Interrupts:
    """A clock that lets an interrupt come to the main thread where it waits; `armed` lets it come anywhere."""

    now_ns = staticmethod(time.monotonic_ns)

    def __init__(self) -> None:
        self.armed = False

    def raise_one(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def park(self, gate: threading.Lock, until_ns: int | None) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return gate.acquire()
        self.armed = True
        try:
            return gate.acquire()
        finally:
            self.armed = False


def test_a7_interrupted_at_random(lab: Lab, make: Make, switching: None) -> None:
    """While it waits; on the native side, where a call is not divisible, anywhere in `acquire` and `release`."""
    interrupts = Interrupts()
    pool, hits, over = make(1, clock=interrupts), 0, False

    def work() -> None:
        while not over:
            with pool.acquire():
                time.sleep(0)

    old = signal.signal(signal.SIGVTALRM, interrupts.raise_one)
    threads = [lab.call(work) for _ in range(3)]
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005, 0.0005)
    try:
        while hits < 100:
            try:
                interrupts.armed = lab.backend == "native"
                with pool.acquire():
                    pass
                interrupts.armed = False
            except KeyboardInterrupt:
                hits += 1
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)
        over = True
    for thread in threads:
        thread.result()
    gc.collect()
    pool.collect()
    assert (pool.held, pool.waiting) == (0, 0)
