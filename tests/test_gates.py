"""Threads that wait for answers are woken one after another: all of them are, whoever of them leaves, and when."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Core

from relay.clock import MONOTONIC

pytest_plugins = ["both"]

COUNT = 9


@pytest.fixture
def tickets(core: Core) -> Any:
    return core.tickets


class Held:
    """A clock whose waits come back when the test says so, and as it says."""

    def __init__(self) -> None:
        self.parked, self.go_on = threading.Event(), threading.Event()
        self.arrives = True
        self.opened = threading.Event()
        self.gate: Any = None

    def now_ns(self) -> int:
        return 0

    def park(self, gate: Any, until_ns: int | None) -> bool:
        self.gate = gate
        self.parked.set()
        if self.arrives:
            assert gate.acquire(timeout=30)
            self.opened.set()
        assert self.go_on.wait(30)
        return self.arrives


class Sleepers:
    """Threads that wait for one ticket each."""

    def __init__(self, tickets: Any, clocks: list[Any]) -> None:
        self.core = tickets
        owner = SimpleNamespace(open=set(), forked=False)
        self.tickets = [tickets.TicketBase(owner, None, 1, 0) for _ in clocks]
        owner.open.update(self.tickets)
        self.ended: list[Any] = [None] * len(clocks)
        self.threads = []
        for number, clock in enumerate(clocks):
            self.threads.append(threading.Thread(target=self.wait, args=(number, clock), daemon=True))
            self.threads[-1].start()
            if isinstance(clock, Held):
                assert clock.parked.wait(30)

    def wait(self, number: int, clock: Any) -> None:
        try:
            self.ended[number] = self.core.wait(self.tickets[number], clock, None)
        except Exception as error:
            self.ended[number] = error

    def settle(self) -> Any:
        replies = self.core.Replies()
        for number, ticket in enumerate(self.tickets):
            assert self.core.settle(ticket, number, None, replies)
        return replies

    def join(self, *left_out: int) -> None:
        for number, thread in enumerate(self.threads):
            if number not in left_out:
                thread.join(30)
                assert not thread.is_alive(), f"nobody has woken {number}"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 64])
def test_all_are_woken(tickets: Any, count: int) -> None:
    for _ in range(3):
        sleepers = Sleepers(tickets, [MONOTONIC] * count)
        while not all(ticket._waiters for ticket in sleepers.tickets):
            time.sleep(0.001)
        sleepers.settle().flush()
        sleepers.join()
        assert sleepers.ended == [True] * count


@pytest.mark.parametrize("leaver", range(COUNT))
@pytest.mark.parametrize("when", ["before", "settled", "in the row"])
@pytest.mark.parametrize("fails", [False, True])
def test_who_leaves_holds_nobody_up(tickets: Any, leaver: int, when: str, fails: bool) -> None:
    """One leaves before it is answered, between that and the waking, or while it waits for its turn to be woken."""
    clocks: list[Any] = [Held() for _ in range(COUNT)]
    clocks[leaver].arrives = False
    if fails:
        clocks[leaver].park = failing(clocks[leaver].park)
    sleepers = Sleepers(tickets, clocks)

    def leave() -> None:
        clocks[leaver].go_on.set()
        sleepers.threads[leaver].join(30)

    if when == "before":
        leave()
    replies = sleepers.settle()
    if when == "settled":
        leave()
    replies.flush()
    if when == "in the row":
        leave()
    for clock in clocks:
        clock.go_on.set()
    sleepers.join()
    assert not any(ticket._waiters for ticket in sleepers.tickets)
    left = sleepers.ended.pop(leaver)
    assert isinstance(left, KeyError) if fails else left == (when != "before"), "the answer was there already"
    assert sleepers.ended == [True] * (COUNT - 1)


def failing(park: Callable[..., bool]) -> Callable[..., bool]:
    def fail(gate: Any, until_ns: int | None) -> bool:
        park(gate, until_ns)
        raise KeyError("left")

    return fail


def test_a_leaver_passes_on_for_those_behind_it(core: Core, tickets: Any) -> None:
    """While the first two are held up, the third leaves: the fifth, which it was to wake, is woken."""
    clocks: list[Any] = [Held() for _ in range(7)]
    clocks[2].arrives = False
    sleepers = Sleepers(tickets, clocks)
    sleepers.settle().flush()
    assert clocks[0].opened.wait(30) and clocks[1].opened.wait(30)
    if core.side == "native":  # two at a time
        assert not any(clock.opened.is_set() for clock in clocks[3:])
    clocks[2].go_on.set()
    assert clocks[4].opened.wait(30)
    for clock in clocks:
        clock.go_on.set()
    sleepers.join()
    assert sleepers.ended == [True] * 7


@pytest.mark.parametrize("at_once", range(4))
def test_a_clock_may_open_a_gate_as_its_answer_comes(tickets: Any, at_once: int) -> None:
    """As a fake clock does whose time is over in that moment."""
    clocks: list[Any] = [Held() for _ in range(5)]
    clocks[at_once].arrives = False  # it has the gate, and does not go on yet
    sleepers = Sleepers(tickets, clocks)
    clocks[at_once].gate.release()
    sleepers.settle().flush()
    for clock in clocks:
        clock.go_on.set()
    sleepers.join()
    assert sleepers.ended == [True] * 5


HANDLER = """
import os, signal, sys, threading
import relay
from relay.testing import FakeModel

model = FakeModel(held=True)
r = relay.Relay(model, max_batch_size=16)
r.submit("plug")
model.wait_until_running()
workers = [threading.Thread(target=r, args=(number,), daemon=True) for number in range(5)]

def ready(count):
    while r.snapshot().queued < count:
        threading.Event().wait(0.001)

def later():
    ready(1)
    for number, worker in enumerate(workers):
        worker.start()
        ready(number + 2)
    os.kill(os.getpid(), signal.SIGTERM)

def handler(*_):
    model.free()
    for worker in workers:
        worker.join(20)
    print("joined", not any(worker.is_alive() for worker in workers), flush=True)

signal.signal(signal.SIGTERM, handler)
threading.Thread(target=later, daemon=True).start()
print(r("main"))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no signals to oneself on this system")
@pytest.mark.parametrize("side", ["pure", "native"])
def test_the_main_thread_in_a_signal_handler_holds_nobody_up(side: str) -> None:
    environ = {**os.environ, "RELAY_BACKEND": side}
    done = subprocess.run([sys.executable, "-c", HANDLER], env=environ, capture_output=True, text=True, timeout=50)
    assert done.stdout.split("\n")[:2] == ["joined True", "main"], done.stderr


def test_short_waits_among_long_ones(lab: Any, rng: random.Random) -> None:
    """Threads whose waits are over at about the time of the answers: each request is answered, and each wait ends."""
    r = lab.start(lambda items: list(items), max_batch_size=8)
    outcomes = {"answered": 0, "over": 0}

    def client(seed: int) -> None:
        own = random.Random(seed)
        for item in range(150):
            if own.random() < 0.5:
                assert r(item) == item
                continue
            ticket = r.submit(item)
            try:
                assert ticket.result(own.random() * 2e-4) == item
                outcomes["answered"] += 1
            except TimeoutError:
                outcomes["over"] += 1
                assert ticket.result(30) == item

    for call in [lab.call(client, rng.random()) for _ in range(12)]:
        call.result()
    print(outcomes)
    lab.idle(r)
    assert r.snapshot().total_time.count == 12 * 150
