"""Merged requests: how urgent they are, and when each of their waiters gives up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def test_a_more_urgent_follower_lifts_the_work(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, merge=True, max_batch_size=1)
    with lab.testing.paused(r, model, "plug"):
        for item in "abc":
            r.submit(item, priority=2)
        r.submit("c", priority=0)
        r.submit("b", priority=2)  # no more urgent than it is: stays
    r.drain()
    assert model.batches == [["plug"], ["c"], ["a"], ["b"]]


def test_each_waiter_has_its_own_deadline(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, merge=True, clock=clock)
    r.submit("plug")
    model.wait_until_running()
    limits = [3, 1, 2, 5, None]
    tickets = [r.submit("x", deadline=limit) for limit in limits]
    for now in range(1, 6):
        clock.advance(1)
        for ticket, limit in zip(tickets, limits, strict=True):
            if limit is not None and limit <= now:
                assert isinstance(ticket.exception(), relay.DeadlineExceeded)
        assert sum(ticket.done() for ticket in tickets) == sum(limit is not None and limit <= now for limit in limits)
    assert tickets[4].cancel()
    assert r.snapshot().admitted == 1

    tickets = [r.submit("x", deadline=limit) for limit in (1, 2)]
    clock.advance(2)
    assert all(isinstance(ticket.exception(), relay.DeadlineExceeded) for ticket in tickets)
    lab.wait_until(lambda: r.snapshot().admitted == 1)
    model.free()
    lab.idle(r)
    assert model.batches == [["plug"]]


def test_a_waiter_without_deadline_keeps_the_work(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, merge=True, clock=clock)
    r.submit("plug")
    model.wait_until_running()
    limited, unlimited = r.submit("x", deadline=1), r.submit("x")
    clock.advance(5)
    assert isinstance(limited.exception(), relay.DeadlineExceeded)
    model.free()
    assert unlimited.result() == "x"


def test_joined_in_the_moment_of_being_dropped(lab: Lab) -> None:
    """The lane drops a late request after someone with more time has joined it, and before its times are set anew."""
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, merge=True, clock=clock, max_queue=3)
    desk = r._desk
    desk.arm = desk.deadlines.arm = lambda when_ns: None
    desk.deadlines.extend = lambda leader, handle, deadline_ns: None  # the joiner is held up here
    r.submit("plug")
    model.wait_until_running()
    late = r.submit("x", deadline=1)
    joined, never = r.submit("x", deadline=9), r.submit("x")
    clock.advance(2)
    model.free()
    assert isinstance(late.exception(), relay.DeadlineExceeded)
    assert joined.result() == never.result() == "x"
    del desk.deadlines.extend


def test_joined_in_that_moment_and_the_queue_is_full(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, merge=True, clock=clock, max_queue=2)
    desk = r._desk
    desk.arm = desk.deadlines.arm = lambda when_ns: None
    desk.deadlines.extend = lambda leader, handle, deadline_ns: None
    r.submit("plug")
    model.wait_until_running()
    late = r.submit("x", deadline=1)
    joined = [r.submit("x") for _ in range(4)]
    clock.advance(2)
    model.free()
    assert isinstance(late.exception(), relay.DeadlineExceeded)
    ends = [ticket.exception() for ticket in joined]  # none is forgotten
    assert ends.count(None) == 2 and {type(end) for end in ends} == {type(None), relay.Overloaded}
    del desk.deadlines.extend
