"""What relay.testing offers: a clock and a model that do as they are told, and a check that nothing is left behind."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest
from fork_kit import held_elsewhere, in_child

import relay
from relay.clock import NS

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


def test_clock(lab: Lab) -> None:
    clock = lab.testing.FakeClock(5)
    assert clock.now_ns() == 5 * NS == clock.now_ns()
    clock.advance(0.5)
    assert clock.now_ns() == 5.5 * NS


def test_parking(lab: Lab) -> None:
    clock = lab.clock()
    now = clock.now_ns()
    ends: list[bool] = []
    gates = [threading.Lock() for _ in range(3)]
    for gate in gates:
        gate.acquire()
    untils = [now + 1, now + 2, None]
    threads = [
        lab.run_thread(lambda gate=gate, until=until: ends.append(clock.park(gate, until)))
        for gate, until in zip(gates, untils, strict=True)
    ]
    clock.wait_for_sleepers(3)
    clock.advance(1e-9)
    threads[0].join(30)
    assert ends == [False]
    gates[1].release()
    threads[1].join(30)
    assert ends == [False, True]
    gates[2].release()
    threads[2].join(30)
    assert ends == [False, True, True]
    assert not clock.park(gates[0], now)
    gates[0].release()
    assert clock.park(gates[0], now)
    with pytest.raises(TimeoutError, match="0 threads are parked on the clock, not 1"):
        clock.wait_for_sleepers(1, timeout=0)


def test_model(lab: Lab) -> None:
    model = lab.testing.FakeModel(lambda x: x + 1)
    assert model([1, 2]) == [2, 3] and model.batches == [[1, 2]]
    model.fail_next(KeyError("k"))
    with pytest.raises(KeyError):
        model([1])
    assert model([1]) == [2]
    with pytest.raises(TimeoutError, match="the model was not called"):
        model.wait_until_running(0)


def test_holding_again_and_again(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model)
    for round in range(3):
        with lab.testing.paused(r, model, "plug"):
            tickets = [r.submit((round, i)) for i in range(3)]
            assert r.snapshot().queued == 3
        assert [ticket.result(30) for ticket in tickets] == [(round, i) for i in range(3)]
    assert model.batches == [batch for n in range(3) for batch in (["plug"], [(n, i) for i in range(3)])]


def test_releasing_call_by_call(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_batch_size=1)
    tickets = [r.submit(i) for i in range(4)]
    model.release()
    assert tickets[0].result(30) == 0
    model.release(2)
    assert tickets[2].result(30) == 2
    model.wait_until_running()
    assert not tickets[3].done()


def test_idle(lab: Lab) -> None:
    model = lab.model()
    r, pool = lab.start(model, name="busy"), lab.TokenPool(1)
    lab.testing.assert_idle(r, pool)
    with lab.testing.paused(r, model), pytest.raises(AssertionError, match="'busy' .* is not idle: {'admitted': 1"):
        lab.testing.assert_idle(r)
    with pool.acquire(), pytest.raises(AssertionError, match="is not idle: {'held': 1}"):
        lab.testing.assert_idle(pool)
    lab.idle(r)
    assert relay.testing is not None if lab.package is relay else True


@needs_fork
def test_a_clock_in_a_child(lab: Lab) -> None:
    clock = lab.clock()
    gates = [threading.Lock(), threading.Lock()]
    for gate in gates:
        gate.acquire()
    parked = lab.run_thread(clock.park, gates[0], clock.now_ns() + NS)
    clock.wait_for_sleepers(1)

    def child() -> None:
        with pytest.raises(TimeoutError, match="0 threads are parked on the clock, not 1"):
            clock.wait_for_sleepers(1, timeout=0)
        now = clock.now_ns()
        sleeper = lab.call(clock.park, gates[1], now + 2 * NS)
        clock.wait_for_sleepers(1)
        clock.advance(2)
        assert not sleeper.result() and clock.now_ns() == now + 2 * NS
        assert gates[0].locked()  # the parent's sleeper is not woken here

    with held_elsewhere(clock._changed):
        in_child(child)
    clock.advance(1)
    parked.join(30)
    assert not parked.is_alive()


@needs_fork
def test_a_model_in_a_child(lab: Lab) -> None:
    model = lab.model(held=True)
    running = lab.call(model, ["parent"])
    model.wait_until_running()

    def child() -> None:
        with pytest.raises(TimeoutError, match="the model was not called"):
            model.wait_until_running(0)
        call = lab.call(model, ["child"])
        model.wait_until_running()
        model.release()
        assert call.result() == ["child"] and model.batches == [["parent"], ["child"]]

    with held_elsewhere(model._state):
        in_child(child)
    model.release()
    assert running.result() == ["parent"] and model.batches == [["parent"]]


@needs_fork
def test_a_model_that_forks(lab: Lab) -> None:
    """In the child, too, its call comes to an end."""
    children: list[int] = []

    def fork(item: str) -> str:
        children.append(os.fork())
        return item

    model = lab.model(fork)
    ended = False
    try:
        ended = model(["item"]) == ["item"] and not model._running
    finally:
        if children == [0]:
            os._exit(0 if ended else 1)
    assert ended and os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
