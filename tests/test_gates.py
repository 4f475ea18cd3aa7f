"""Threads that wait for answers are woken one after another: all of them are, whoever of them leaves, and when."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Core

import relay

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

    def now_ns(self) -> int:
        return 0

    def park(self, gate: Any, until_ns: int | None) -> bool:
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
        sleepers = Sleepers(tickets, [relay.clock.MONOTONIC] * count)  # type: ignore[attr-defined]
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


def test_a_leaver_passes_on_for_those_behind_it(tickets: Any) -> None:
    """While the first two are held up, the third leaves: the fifth, which it was to wake, is woken."""
    clocks: list[Any] = [Held() for _ in range(7)]
    clocks[2].arrives = False
    sleepers = Sleepers(tickets, clocks)
    sleepers.settle().flush()
    assert clocks[0].opened.wait(30) and clocks[1].opened.wait(30)
    clocks[2].go_on.set()
    assert clocks[4].opened.wait(30)
    for clock in clocks:
        clock.go_on.set()
    sleepers.join()
    assert sleepers.ended == [True] * 7


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
