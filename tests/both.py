"""The whole package on either side of the core, in one interpreter: a plugin with the fixture `lab`.

Test files that ask for it say ``pytest_plugins = ["both"]``. The side that was not imported first is loaded a second
time, under the same names, and kept apart; only the core and the errors, which know nothing of a side, are shared.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest

import relay
from relay.errors import Overloaded

_SHARED = ("relay._core", "relay._pure", "relay.errors")
_packages: dict[str, ModuleType] = {}


def package(side: str) -> ModuleType:
    """The package `relay` on one side, with its modules as attributes."""
    if side not in _packages:
        if relay.backend == side:
            importlib.import_module("relay.testing")
            _packages[side] = relay
        else:
            _packages[side] = _load(side)
    return _packages[side]


def _load(side: str) -> ModuleType:
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "relay"}
    forced = os.environ.get("RELAY_BACKEND")
    for name in before:
        if not name.startswith(_SHARED):
            del sys.modules[name]
    os.environ["RELAY_BACKEND"] = side
    try:
        loaded = importlib.import_module("relay")
        importlib.import_module("relay.testing")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "relay"]:
            if not name.startswith(_SHARED):
                del sys.modules[name]
        sys.modules.update(before)
        if forced is None:
            del os.environ["RELAY_BACKEND"]
        else:
            os.environ["RELAY_BACKEND"] = forced
    if loaded.backend != side:
        raise AssertionError(f"asked for the {side} side, got {loaded.backend}")
    return loaded


class Call:
    """A call in a thread of its own, and how it ended."""

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._call = partial(function, *args, **kwargs)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def result(self) -> Any:
        """What it returned, or raises what it raised."""
        self.thread.join(30)
        assert not self.thread.is_alive(), "the call has not come back"
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error


class Lab:
    """One side's package, and what a test makes with it.

    When the test is over, all its models are let go, its relays and pools are closed and recounted, and no thread may
    be left.
    """

    def __init__(self, loaded: ModuleType) -> None:
        self.package: Any = loaded
        self._models: list[Any] = []
        self._relays: list[Any] = []
        self._threads = set(threading.enumerate())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.package, name)

    def clock(self) -> Any:
        """A `FakeClock`."""
        return self.package.testing.FakeClock()

    def model(self, function: Callable[[Any], Any] = lambda item: item, *, held: bool = False) -> Any:
        """A `FakeModel`."""
        self._models.append(self.package.testing.FakeModel(function, held=held))
        return self._models[-1]

    def start(self, model: Any, **options: Any) -> Any:
        """A `Relay`."""
        self._relays.append(self.package.Relay(model, **options))
        return self._relays[-1]

    def pool(self, capacity: int, **options: Any) -> Any:
        """A `TokenPool`."""
        self._relays.append(self.package.TokenPool(capacity, **options))
        return self._relays[-1]

    def idle(self, *relays: Any) -> None:
        """Drain relays and make sure that nothing is left in them."""
        for r in relays:
            assert r.drain(30) == 0
            r.close()
            self.package.testing.assert_idle(r)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
        """A started call, whose `result()` is to be asked for."""
        return Call(function, *args, **kwargs)

    def run_thread(self, function: Callable[..., object], *args: Any) -> threading.Thread:
        """A started thread."""
        thread = threading.Thread(target=function, args=args, daemon=True)
        thread.start()
        return thread

    def fill(self, r: Any, item: Any = "fill") -> list[Any]:
        """Submit until the queue is full."""
        tickets = []
        while True:
            try:
                tickets.append(r.submit(item))
            except Overloaded:
                return tickets

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Look again and again until something is so that other threads bring about."""
        pause = threading.Event()
        for _ in range(30_000):
            if condition():
                return
            pause.wait(0.001)
        raise TimeoutError("it did not come about")

    def in_line(self, r: Any, count: int) -> None:
        """Wait until `count` callers wait for room."""
        self.wait_until(lambda: r.snapshot().waiting == count)

    def run(self, loops: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on a new loop."""
        with asyncio.Runner(loop_factory=loops) as runner:
            return runner.run(main)

    def end(self) -> None:
        for model in self._models:
            model.free()
        while self._relays:
            r = self._relays.pop()
            r.close()
            self.package.testing.assert_idle(r)
        for thread in set(threading.enumerate()) - self._threads:
            thread.join(30)
            assert not thread.is_alive(), f"{thread.name} is left"


@pytest.fixture(params=["pure", "native"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    lab = Lab(package(request.param))
    yield lab
    lab.end()


@pytest.fixture(params=["asyncio", "uvloop"])
def loops(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """Makes event loops of one kind."""
    if request.param == "asyncio":
        return asyncio.new_event_loop
    if sys.platform == "win32":
        pytest.skip("no uvloop for this system")
    import uvloop

    return uvloop.new_event_loop
