"""Where the time went: every ticket's timing, and the same in the snapshot."""

from __future__ import annotations

import contextvars
import threading
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def add_up(timing: Any) -> None:
    parts = timing.prepare + timing.queue + timing.batch + timing.split + timing.run
    assert parts == pytest.approx(timing.total) and timing.copy <= timing.batch
    assert all(getattr(timing, each.name) >= 0 for each in fields(timing) if each.name != "closed_by")


def test_queue_and_run(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, clock=clock)
    first = r.submit(1)
    model.wait_until_running()
    clock.advance(2)
    second, third = r.submit(2), r.submit(3)
    clock.advance(1)
    model.release()
    lab.wait_until(lambda: len(model.batches) == 2)
    clock.advance(4)
    model.free()
    assert first.result(30) == 1 and [second.result(30), third.result(30)] == [2, 3]
    assert (first.timing.queue, first.timing.run, first.timing.total, first.timing.batch_size) == (0, 3, 3, 1)
    assert (second.timing.queue, second.timing.run, second.timing.total, second.timing.batch_size) == (1, 4, 5, 2)
    for ticket in (first, second, third):
        assert (ticket.timing.prepare, ticket.timing.split, ticket.timing.copy) == (0, 0, 0)
        add_up(ticket.timing)
    lab.idle(r)
    s = r.snapshot()
    assert (s.run_time.count, s.run_time.mean, s.run_time.max) == (2, 3.5, 4)
    assert (s.queue_time.count, s.queue_time.max, s.total_time.max) == (3, 1, 5)
    assert s.queue_time.mean == pytest.approx(2 / 3) and s.queue_time.p50 == pytest.approx(1, rel=0.04)
    assert (s.batch_size.count, s.batch_size.mean, s.batch_size.max) == (2, 1.5, 2)
    assert s.busy == 7 and s.utilisation == pytest.approx(1)
    assert s.closed_by == {"idle lane": 2} and s.lanes == 1 and s.limit >= 2
    clock.advance(7)
    assert r.snapshot().utilisation == pytest.approx(0.5)


def test_none_before_a_run(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model)
    with lab.testing.paused(r, model):
        ticket = r.submit(1)
        assert ticket.timing is None
        ticket.cancel()
    assert ticket.timing is None
    s = r.snapshot()
    assert s.queue_time.count == s.prepare_time.count


def test_a_snapshot_of_nothing(lab: Lab) -> None:
    s = lab.start(lab.model()).snapshot()
    assert s.run_time == s.total_time == s.batch_size == type(s.run_time)()
    assert (s.padding_waste, s.utilisation, s.closed_by, s.prediction_error) == (0, 0, {}, None)


def test_preparing(lab: Lab) -> None:
    clock, entered, go = lab.clock(), threading.Event(), threading.Event()

    def prepare(item: int) -> int:
        entered.set()
        assert go.wait(30)
        return item * 10

    r = lab.start(lab.model(), prepare=prepare, clock=clock)
    ticket = r.submit(1)
    assert entered.wait(30)
    clock.advance(3)
    go.set()
    assert ticket.result(30) == 10
    assert (ticket.timing.prepare, ticket.timing.total) == (3, 3)
    add_up(ticket.timing)
    assert r.snapshot().prepare_time.max == 3


def test_splitting(lab: Lab) -> None:
    """Each call takes a second; 7 fails whatever it is with."""
    clock = lab.clock()

    def model(items: list[Any]) -> list[Any]:
        if items == ["plug"]:
            plugged.set()
            assert go.wait(30)
            return items
        clock.advance(1)
        if 7 in items:
            raise ValueError(items)
        return items

    plugged, go = threading.Event(), threading.Event()
    r = lab.start(model, clock=clock)
    r.submit("plug")
    assert plugged.wait(30)
    tickets = [r.submit(item) for item in (7, 1, 2, 3)]
    go.set()
    for ticket, item in zip(tickets[1:], (1, 2, 3), strict=True):
        assert ticket.result(30) == item
    with pytest.raises(ValueError, match="7"):
        tickets[0].result(30)
    # 7 1 2 3 | 7 1 | 2 3 | 7 | 1
    assert [ticket.timing.split for ticket in tickets] == [3, 4, 2, 2]
    assert [ticket.timing.batch_size for ticket in tickets] == [1, 1, 2, 2]
    for ticket in tickets:
        assert ticket.timing.run == 1
        add_up(ticket.timing)
    lab.idle(r)
    s = r.snapshot()
    assert (s.batches, s.failed_batches, s.splits, s.items, s.failed, s.busy) == (6, 3, 4, 5, 1, 5)
    assert sum(s.closed_by.values()) == 2 and s.run_time.count == 6


@pytest.mark.parametrize(
    ("options", "requests", "why"),
    [
        ({"max_batch_size": 2}, [("a", None)] * 4, "size"),
        ({"max_batch_tokens": 6}, [("abc", None)] * 4, "tokens"),
        ({}, [("a", {"k": 1}), ("a", {"k": 1}), ("a", {"k": 2})], "params"),
        ({"group": len}, [("a", None), ("a", None), ("ab", None)], "group"),
        ({}, [("a", None), ("a", None)], "idle lane"),
    ],
)
def test_closed_by(lab: Lab, options: dict[str, Any], requests: list[Any], why: str) -> None:
    model = lab.model()

    def called(items: list[Any], **params: Any) -> list[Any]:
        return list(model(items))

    r = lab.start(called, **options)
    with lab.testing.paused(r, model, "p"):
        tickets = [r.submit(item, params=params) for item, params in requests]
    for ticket in tickets:
        ticket.result(30)
    assert (tickets[0].timing.closed_by, tickets[0].timing.batch_size) == (why, 2)
    assert r.snapshot().closed_by[why] >= 1


def test_padding(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, size=len, max_batch_tokens=100)
    with lab.testing.paused(r, model, "xxxx"):
        tickets = [r.submit("x" * size) for size in (4, 3, 2)]
    for ticket in tickets:
        ticket.result(30)
    lab.idle(r)
    s = r.snapshot()
    assert s.batches == 2
    assert s.padding_waste == pytest.approx(1 - (4 + 4 + 3 + 2) / (4 + 3 * 4))


def test_each_lane_sees_the_requests_own_context(lab: Lab) -> None:
    """C5: the first caller starts the threads, and none of its context is seen by what is done for the second."""
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")
    model = lab.model()
    seen: list[Any] = []
    prepared: list[Any] = []

    def handler(items: list[Any]) -> list[Any]:
        batch = lab.package.current.current_batch()
        whose = zip(batch.contexts, batch.tenants, strict=True)
        seen.extend((tenant.get("none"), context[tenant], name) for context, name in whose)
        return list(model(items))

    def prepare(item: Any) -> Any:
        prepared.append((item, tenant.get("none")))
        return item

    r = lab.start(handler, prepare=prepare)
    for name in ("a", "b"):
        contextvars.copy_context().run(lambda name=name: (tenant.set(name), r.submit(name, tenant=name).result(30)))
    assert seen == [("none", "a", "a"), ("none", "b", "b")]
    assert prepared == [("a", "a"), ("b", "b")]


def test_counts_by_themselves(lab: Lab) -> None:
    """The counters, without a relay."""
    counts, Run = lab.package.stats.Counts(), lab.package.ticket.Run
    run = Run(1_000, 4, 1, 10, 30)
    run.started_ns, run.ended_ns = 2_000, 5_000
    counts.batch(run, 4, 1)
    again = Run(1_000, 2, 1, 10, 20)
    again.first_ns, again.started_ns, again.ended_ns, again.raised = 2_000, 6_000, 7_000, True
    counts.batch(again, 2, 2, True)
    counts.add("displaced", 3)
    told = counts.told(9_000, lanes=2, running_ns=1_000)
    assert {name: told[name] for name in ("batches", "items", "failed", "failed_batches", "splits", "displaced")} == {
        "batches": 2, "items": 6, "failed": 3, "failed_batches": 1, "splits": 1, "displaced": 3,
    }  # fmt: skip
    assert told["closed_by"] == {"size": 1} and told["mean_batch_size"] == 3
    assert told["batch_time"].count == 1 and told["run_time"].count == 2 and told["run_time"].max == 3e-6
    assert told["padding_waste"] == pytest.approx(1 - 50 / 60)
    assert told["utilisation"] == pytest.approx(5_000 / 8_000 / 2)
    assert told["mean_run"] == pytest.approx(3e-6 + 0.1 * (1e-6 - 3e-6))
