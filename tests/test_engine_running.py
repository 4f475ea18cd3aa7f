"""Batches that take too long, that never end, and what is learned from those that do: both kinds of lane, both
backends."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from engine_kit import Letters, made, notes

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both", "engine_kit"]

PLUG = "plug"


class Held:
    """A model whose calls wait to be let go where they have an item of `slow`, without blocking a loop."""

    def __init__(self, slow: set[Any], function: Callable[[Any], Any] = lambda item: f"row {item}") -> None:
        self.slow = slow
        self.batches: list[list[Any]] = []
        self.entered = threading.Semaphore(0)
        self._go = threading.Semaphore(0)
        self._function = function

    def free(self) -> None:
        self._go.release(1000)

    def go(self) -> None:
        self._go.release()

    def plain(self, items: list[Any]) -> list[Any]:
        self.batches.append(list(items))
        if self.slow & set(items):
            self.entered.release()
            assert self._go.acquire(timeout=30)
        return [self._function(item) for item in items]

    async def coroutine(self, items: list[Any]) -> list[Any]:
        self.batches.append(list(items))
        if self.slow & set(items):
            self.entered.release()
            assert await asyncio.get_running_loop().run_in_executor(None, self._go.acquire, True, 30)
        return [self._function(item) for item in items]


def test_a_call_that_takes_too_long(lab: Lab, kind: str) -> None:
    clock, model = lab.clock(), Held({"slow"})
    r = lab.start(getattr(model, kind), clock=clock, timeout_run=1.5, max_batch_size=2)
    first = r.submit("slow")
    assert model.entered.acquire(timeout=30)
    following = [r.submit(item) for item in "abc"]
    clock.advance(1.4)
    assert not first.done()
    clock.advance(0.2)
    error = first.exception(30)
    assert type(error) is relay.RunTimeout and "timeout_run=1.5 s" in str(error) and notes(error) == []
    assert first.timing.run == pytest.approx(1.6) and first.timing.batch_size == 1
    s = r.snapshot()
    assert (s.run_timeouts, s.admitted, s.failed, s.batches) == (1, 4, 0, 0), "the call goes on, and its slot is taken"
    assert not any(ticket.done() for ticket in following), "the lane is taken"
    model.go()
    assert [ticket.result(30) for ticket in following] == ["row a", "row b", "row c"]
    assert type(first.exception()) is relay.RunTimeout, "the late row is dropped"
    lab.idle(r)
    s = r.snapshot()
    assert (s.run_timeouts, s.failed, s.failed_batches, s.expired, s.items) == (1, 0, 0, 0, 4)


def test_by_the_real_clock(lab: Lab, kind: str) -> None:
    model = Held({"slow"})
    r = lab.start(getattr(model, kind), timeout_run=0.05)
    assert type(r.submit("slow").exception(30)) is relay.RunTimeout
    waiting = r.submit("a")
    model.go()
    assert waiting.result(30) == "row a"
    lab.idle(r)
    assert r.snapshot().run_timeouts == 1


def test_the_alarm_sleeps_while_the_call_goes_on(lab: Lab, kind: str) -> None:
    model = Held({"slow"})
    r = lab.start(getattr(model, kind), timeout_run=0.02)
    asked: list[int] = []
    deadlines = r._desk.deadlines
    next_ns = deadlines._next_run_ns
    deadlines._next_run_ns = lambda: asked.append(1) or next_ns()
    assert type(r.submit("slow").exception(30)) is relay.RunTimeout
    # It has been armed for a time that has passed, and the call is not over; another deadline comes and goes.
    assert type(r.submit("a", deadline=0.05).exception(30)) is relay.DeadlineExceeded
    assert len(asked) < 20
    model.go()
    lab.idle(r)


def rows_but_of(bad: str) -> Callable[[Any], str]:
    """A model's function that fails on one item."""

    def row(item: Any) -> str:
        if item == bad:
            raise ValueError(item)
        return f"row {item}"

    return row


def test_each_part_of_a_batch_has_its_own_time(lab: Lab, kind: str) -> None:
    clock, model = lab.clock(), Held({PLUG, "slow"})
    model._function = rows_but_of("bad")
    r = lab.start(getattr(model, kind), clock=clock, timeout_run=1.0)
    plug = r.submit(PLUG)
    assert model.entered.acquire(timeout=30)
    tickets = {item: r.submit(item) for item in ("bad", "a", "slow", "b")}
    model.go()
    assert plug.result(30) == "row plug"
    assert model.entered.acquire(timeout=30)  # bad a slow b
    clock.advance(0.9)
    assert not any(ticket.done() for ticket in tickets.values())
    model.go()
    assert model.entered.acquire(timeout=30)  # slow b, after bad a
    clock.advance(0.9)
    assert not tickets["slow"].done(), "the time is that of one call"
    clock.advance(0.2)
    for item in ("slow", "b"):
        assert type(tickets[item].exception(30)) is relay.RunTimeout
    assert not tickets["a"].done()
    model.go()
    assert tickets["a"].result(30) == "row a"
    assert type(tickets["bad"].exception(30)) is ValueError
    lab.idle(r)
    assert model.batches[1:] == [["bad", "a", "slow", "b"], ["bad", "a"], ["slow", "b"], ["bad"], ["a"]]
    s = r.snapshot()
    assert (s.run_timeouts, s.failed, s.expired, s.cancelled, s.items) == (2, 1, 0, 0, 5)


def test_those_who_were_ended_are_not_run_again(lab: Lab, kind: str) -> None:
    clock, model = lab.clock(), Held({PLUG, "slow"})
    model._function = rows_but_of("slow")
    r = lab.start(getattr(model, kind), clock=clock, timeout_run=1.0)
    plug = r.submit(PLUG)
    assert model.entered.acquire(timeout=30)
    tickets = [r.submit(item) for item in ("slow", "a", "b")]
    model.go()
    assert plug.result(30) == "row plug" and model.entered.acquire(timeout=30)
    clock.advance(2)
    assert {type(ticket.exception(30)) for ticket in tickets} == {relay.RunTimeout}
    after = r.submit("c")
    model.go()
    assert after.result(30) == "row c"
    assert model.batches == [[PLUG], ["slow", "a", "b"], ["c"]]
    lab.idle(r)
    s = r.snapshot()
    assert (s.run_timeouts, s.failed, s.cancelled, s.failed_batches) == (3, 0, 0, 1)


def test_an_equal_request_does_not_join_what_has_taken_too_long(lab: Lab, kind: str) -> None:
    clock, model = lab.clock(), Held({"slow"})
    r = lab.start(getattr(model, kind), clock=clock, timeout_run=1.0, merge=True)
    leader = r.submit("slow")
    assert model.entered.acquire(timeout=30)
    follower = r.submit("slow")
    clock.advance(1.5)
    assert type(leader.exception(30)) is relay.RunTimeout and type(follower.exception(30)) is relay.RunTimeout
    assert leader.exception() is not follower.exception()
    lab.wait_until(lambda: r.snapshot().run_timeouts == 2)
    model.slow.clear()
    later = r.submit("slow")
    assert r.snapshot().merged == 1 and not later.done()
    model.go()
    assert later.result(30) == "row slow"
    assert model.batches == [["slow"], ["slow"]]
    lab.idle(r)


def test_a_cancel_during_the_run(lab: Lab, kind: str) -> None:
    model = Held({"slow"})
    r = lab.start(getattr(model, kind))
    ticket = r.submit("slow")
    assert model.entered.acquire(timeout=30)
    assert ticket.cancel() and type(ticket.exception()) is relay.RequestCancelled
    assert r.snapshot().admitted == 1
    model.go()
    lab.idle(r)
    assert (r.snapshot().cancelled, r.snapshot().items) == (1, 1)


def test_a_batch_may_be_abandoned_by_any_thread_at_any_time(lab: Lab) -> None:
    """Each ends once, each slot is free once, whoever is in the middle of answering."""
    model = lab.model(held=True)
    r = lab.start(model, merge=True)
    lane = r._dispatcher.lanes[0]
    r.submit(PLUG)
    model.wait_until_running()
    tickets = [r.submit(item) for item in ("a", "b", "a")]
    model.release()
    lab.wait_until(lambda: len(model.batches) == 2)
    work = lane.busy
    model.wait_until_running()
    gate = threading.Barrier(4)

    def abandon() -> None:
        gate.wait(30)
        work.abandon(relay.Closed("gone"))

    for call in [lab.call(abandon) for _ in range(4)]:
        call.result()
    for ticket in tickets:
        error = ticket.exception(30)
        assert type(error) is relay.Closed and notes(error) == []
    s = r.snapshot()
    assert (s.failed, s.admitted, s.open) == (3, 0, 0)
    model.free()
    assert r.submit("c").result(30) == "c"
    lab.idle(r)
    assert r.snapshot().failed == 3


def test_an_interrupt_in_the_middle_of_the_answers(lab: Lab, kind: str) -> None:
    """As Ctrl-C may come at any step of a lane on the main thread's loop: the others end too, and no slot is lost."""

    class Interrupt:
        def count_down(self, replies: Any) -> None:
            raise KeyboardInterrupt

    model = lab.model()
    r = lab.start(made(kind, model))
    with lab.testing.paused(r, model, PLUG):
        tickets = [r.submit(item) for item in ("a", "b", "c")]
        tickets[0]._waiters.append(lab.package.ticket.Member(Interrupt()))
    for ticket in tickets[1:]:
        error = ticket.exception(30)
        assert type(error) is relay.ModelError and type(error.__cause__) is KeyboardInterrupt
    assert tickets[0].done() and tickets[0].result() == "a"
    assert r("d") == "d" and r.healthy
    lab.idle(r)


def test_parameters_that_a_model_changes_are_its_own(lab: Lab, kind: str) -> None:
    seen: list[Any] = []

    def called(batch: Any, **params: Any) -> list[Any]:
        seen.append(dict(batch.params))
        batch.params.clear()
        lab.package.current.current_batch().params.clear()
        return list(batch.items)

    r = lab.start(made(kind, called), tokenizer=Letters())
    tickets = []  # which keep the parameters that they share
    for _ in range(2):
        tickets.append(r.submit("a", params={"k": 1}))
        assert tickets[-1].result(30) == "a"
    assert seen == [{"k": 1}, {"k": 1}]


def test_only_runs_that_succeed_teach_the_cost_model(lab: Lab, kind: str) -> None:
    def row(item: Any) -> Any:
        if item == "bad":
            raise ValueError(item)
        return item

    model = lab.model(row)
    r = lab.start(made(kind, model), size=len)
    station = r._dispatcher.lanes[0].station
    runs: list[tuple[int, int, int]] = []
    ran = station.ran
    station.ran = lambda items, width, real, ns: (runs.append((items, width, real)), ran(items, width, real, ns))
    with lab.testing.paused(r, model, "p"):
        tickets = [r.submit(item) for item in ("bad", "a", "abcd", "ab")]
    assert [type(ticket.exception(30)) for ticket in tickets] == [ValueError] + [type(None)] * 3
    lab.idle(r)
    # p, and of bad a abcd ab | bad a | abcd ab | bad | a those that ran.
    assert runs == [(1, 1, 1), (2, 4, 6), (1, 1, 1)]
    assert station.cost.runs == 3


def test_widths_are_those_of_the_ids(lab: Lab, kind: str) -> None:
    model = lab.model()
    r = lab.start(made(kind, model), tokenizer=Letters(), prepare=lambda item: item * 2)
    station = r._dispatcher.lanes[0].station
    runs: list[tuple[int, int, int]] = []
    station.ran = lambda items, width, real, ns: runs.append((items, width, real))
    model.hold()
    plug = r.submit("p")
    model.wait_until_running()
    tickets = [r.submit(item) for item in ("abc", "a", "ab")]
    lab.wait_until(lambda: r.snapshot().queued == 3)
    model.free()
    assert plug.result(30) == "pp" and [ticket.result(30) for ticket in tickets] == ["abcabc", "aa", "abab"]
    lab.idle(r)
    assert runs == [(1, 2, 2), (3, 6, 12)]


def test_warmup_teaches_it(lab: Lab, kind: str) -> None:
    clock = lab.clock()

    def called(items: list[Any]) -> list[Any]:
        clock.advance(0.002 + 0.001 * len(items))
        return list(items)

    r = lab.start(made(kind, called), clock=clock, max_batch_size=16)
    cost = r._dispatcher.lanes[0].station.cost
    assert not cost.learned
    r.warmup(["a", "b"])
    assert cost.learned
    mean, upper = cost.predict(8, 1)
    assert mean == pytest.approx(10e6, rel=0.1) and mean <= upper < 2 * mean
    assert r.snapshot().prediction_error is None or r.snapshot().prediction_error < 0.5
    lab.idle(r)


def test_the_mean_size_of_requests(lab: Lab, kind: str) -> None:
    model = lab.model()
    r = lab.start(made(kind, model), size=len)
    station = r._dispatcher.lanes[0].station
    r("abc")
    assert station.mean_width == 3
    for _ in range(100):
        r("a" * 40)
    assert 38 <= station.mean_width <= 40


@pytest.mark.hf
def test_a_users_loop_keeps_its_gradients(lab: Lab) -> None:
    import torch

    async def model(items: list[Any]) -> list[Any]:
        return items

    async def main() -> None:
        r = lab.start(model)
        assert await r.run_async(1) == 1
        assert torch.is_grad_enabled()
        await r.aclose()

    asyncio.run(main())
    assert torch.is_grad_enabled()


def test_torch_in_the_middle_of_its_import(lab: Lab, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    r = lab.start(made(kind, lambda items: tuple(items) if items == [2] else items))
    assert r(1) == 1
    assert type(r.submit(2).exception(30)) is relay.BadOutput
