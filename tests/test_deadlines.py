"""Deadlines of requests: on time while the model is busy, and nothing starts after its own."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def test_d5_expired_while_the_model_is_busy(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, clock=clock)
    events: list[str] = []
    busy = r.submit("busy")
    busy.add_done_callback(lambda ticket: events.append("answered"))
    model.wait_until_running()
    queued, later = r.submit("queued", deadline=0.1), r.submit("later", deadline=20)
    queued.add_done_callback(lambda ticket: events.append("expired"))
    clock.wait_for_sleepers(1)
    clock.advance(0.099)
    assert not queued.done()
    clock.advance(0.001)
    with pytest.raises(relay.DeadlineExceeded, match="still queued at its deadline, 0.1 s after submit"):
        queued.result()
    assert r.snapshot().admitted == 2  # its place is free again, though the model has not come back
    lab.wait_until(lambda: events == ["expired"])  # it is told by the alarm's thread
    clock.advance(9.9)
    model.free()
    assert busy.result() == "busy" and later.result() == "later"
    assert events == ["expired", "answered"]
    assert r.snapshot().expired == 1
    lab.idle(r)
    assert model.batches == [["busy"], ["later"]]


def test_nothing_starts_after_its_deadline(lab: Lab) -> None:
    """Even where the alarm has not rung, the lane drops what is late when it would take it."""
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, clock=clock)
    r._desk.arm = r._desk.deadlines.arm = lambda when_ns: None
    busy = r.submit("busy")
    model.wait_until_running()
    late, fine = r.submit("late", deadline=1), r.submit("fine", deadline=1.001)
    clock.advance(1)
    model.free()
    assert busy.result() == "busy" and fine.result() == "fine"
    assert isinstance(late.exception(), relay.DeadlineExceeded)
    assert model.batches == [["busy"], ["fine"]]


def test_a_deadline_is_for_the_start(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, clock=clock)
    ticket = r.submit(1, deadline=1)
    model.wait_until_running()
    clock.advance(100)
    model.free()
    assert ticket.result() == 1


def test_many_deadlines_in_order(lab: Lab, rng: random.Random) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, clock=clock)
    r.submit("busy")
    model.wait_until_running()
    limits = [rng.randrange(1, 50) for _ in range(200)]
    tickets = [r.submit(i, deadline=limit) for i, limit in enumerate(limits)]
    for now in range(1, 51):
        clock.advance(1)
        due = [ticket for ticket, limit in zip(tickets, limits, strict=True) if limit <= now]
        assert all(isinstance(ticket.exception(), relay.DeadlineExceeded) for ticket in due)
        assert sum(ticket.done() for ticket in tickets) == len(due)
    assert r.snapshot().admitted == 1
