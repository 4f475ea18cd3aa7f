"""What comes in between while a request is being let in: a drain, a signal, numbers that no policy should have."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from relay import REALTIME, errors

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


@pytest.mark.parametrize("deadline", [None, 5.0, float("inf")])
def test_a_drain_in_the_middle_of_a_submit(lab: Lab, deadline: float | None) -> None:
    """It has seen that nothing is open: whoever was about to come in is refused."""
    left: list[int] = []

    def size(item: str) -> int:
        if item == "late":
            left.append(r.drain(0))
        return 1

    r = lab.start(lambda items: items, size=size)
    assert r("first", priority=REALTIME) == "first"
    with pytest.raises(errors.Closed):
        r.submit("late", deadline=deadline)
    assert left[0] == 0 and r.snapshot().open == 0 and r.drain(0) == 0
    lab.idle(r)


def test_a_drain_in_the_middle_of_an_admission(lab: Lab) -> None:
    left: list[int] = []

    def order(facts: Any) -> int:
        if facts.tenant == "late":
            left.append(r.drain(0))
        return 1

    r = lab.start(lambda items: items, policy=order)
    assert r("first") == "first"
    with pytest.raises(errors.Closed):
        r.submit(1, tenant="late")
    assert left == [0] and r.snapshot().open == 0
    lab.idle(r)


def test_a_policy_that_names_too_few(lab: Lab) -> None:
    policy = lab.DynamicPriority()
    policy.allowance_ns = policy.allowance_ns[:3]
    with pytest.raises(ValueError, match="must name all 256 priorities, got 3"):
        lab.start(lambda items: items, policy=policy)


def test_times_beyond_64_bits_are_refused(lab: Lab) -> None:
    r = lab.start(lambda items: items, clock=lab.testing.FakeClock(4.7e9))
    assert r(1, priority=REALTIME) == 1
    with pytest.raises(OverflowError):
        r.submit(2, deadline=4.6e9)
    assert r(3, deadline=1.0) == 3
    lab.idle(r)


@pytest.mark.parametrize("of", ["lane", "alarm"])
def test_a_signal_while_a_thread_starts(lab: Lab, monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    """`Thread.start` waits for the thread, and a signal's handler may come then, and ask for something, too."""
    r = lab.start(lambda items: items)
    start, tickets = threading.Thread.start, []

    def interrupted(thread: threading.Thread) -> None:
        if thread.name == f"relay-{of}" and not tickets:
            tickets.append(None)
            tickets.append(r.submit("from the handler", deadline=30.0))
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    assert r("x", deadline=30.0) == "x"
    assert tickets[1].result(30) == "from the handler"
    assert [thread.name for thread in threading.enumerate()].count(f"relay-{of}") <= 1
    lab.idle(r)


def test_an_alarm_that_cannot_be_had_leaves_nobody_behind(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lab.model()
    r = lab.start(model)
    assert r("first", priority=REALTIME) == "first"
    model.hold()
    r.submit("plug")
    model.wait_until_running()

    def refuse(when_ns: int) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(r._desk, "arm", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        r.submit("x", deadline=1.0)
    assert r.snapshot().open == 1 and r.snapshot().queued == 0
    monkeypatch.undo()
    assert not r.submit("y", deadline=30.0).done()
    model.free()
    lab.idle(r)
