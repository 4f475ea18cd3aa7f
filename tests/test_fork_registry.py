"""The list of what survives a fork, and the alarm by itself, for whatever else is built on it."""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING

import pytest
from fork_kit import held_elsewhere, in_child

from relay.fork import Survivors

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # that it is risky is what is tested here
]


def test_an_alarm_starts_anew(lab: Lab) -> None:
    clock = lab.package.clock
    armed: list[int] = []
    rung = threading.Event()
    now = clock.MONOTONIC.now_ns

    def due(at_ns: int) -> None:
        armed.clear()
        rung.set()

    def arm(in_s: float) -> None:
        armed[:] = [now() + int(in_s * clock.NS)]
        alarm.arm(armed[0])

    alarm = clock.Alarm(clock.MONOTONIC, "bell", lambda: min(armed, default=None), due)
    arm(3600)

    def child() -> None:
        alarm.reset()
        assert alarm.alive and not alarm.on_own_thread()
        arm(0)
        assert rung.wait(10) and len(threading.enumerate()) == 2
        alarm.stop()
        threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
        threads[0].join(10)
        alarm.reset()
        rung.clear()
        arm(0)
        assert len(threading.enumerate()) == 1  # stopped is stopped

    with held_elsewhere(alarm._start):
        in_child(child)
    arm(0)
    assert rung.wait(30)
    alarm.stop()


# The registry.


class Thing:
    def __init__(self, name: str, calls: list[str], error: BaseException | None = None) -> None:
        self.name, self.calls, self.error = name, calls, error

    def _after_fork_in_child(self) -> None:
        self.calls.append(self.name)
        if self.error is not None:
            raise self.error


def test_one_that_fails_does_not_stop_the_others() -> None:
    calls: list[str] = []
    survivors = Survivors()
    things = [
        Thing("first", calls),
        Thing("bad", calls, ValueError("no")),
        Thing("worse", calls, SystemExit("never")),
        Thing("last", calls),
    ]
    for thing in (*things, things[0]):
        survivors.add(thing)

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            calls.append(record.getMessage().partition("be")[0])
            raise ValueError

    def child() -> None:
        assert calls == ["first", "bad", "worse", "last", "relay: a Thing could not "]
        assert survivors._lock.acquire(timeout=10)

    logging.getLogger("relay").addHandler(handler := Broken())
    unraisable, sys.unraisablehook = sys.unraisablehook, lambda args: None
    try:
        with held_elsewhere(survivors._lock):
            in_child(child)
    finally:
        logging.getLogger("relay").removeHandler(handler)
        sys.unraisablehook = unraisable
    assert calls == []


def test_they_are_held_weakly() -> None:
    survivors, calls = Survivors(), list[str]()
    thing = Thing("gone", calls)
    forgotten = weakref.ref(thing)
    survivors.add(thing)
    del thing
    assert forgotten() is None
    survivors._after_fork_in_child()
    assert calls == []


def test_a_system_without_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "register_at_fork")
    Survivors().add(Thing("alone", []))
