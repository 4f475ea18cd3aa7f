"""Isolation through the whole relay: one bad item is its own problem, on both kinds of lane and both backends."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from engine_kit import Letters, frames, made, notes

import relay
from relay.isolation import GROW_AFTER

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both", "engine_kit"]

PLUG = "plug"


class Bad(Exception):
    """An item's own fault."""


def spoiled(*bad: Any, error: Callable[[Any], BaseException] = Bad) -> Callable[[Any], Any]:
    """A row for each item; some items raise."""

    def row(item: Any) -> Any:
        if item in bad:
            raise error(item)
        return f"row {item}"

    return row


def queued(lab: Lab, r: Any, model: Any, items: list[Any], **options: Any) -> list[Any]:
    """Tickets of items that were all queued when the lane became free."""
    with lab.testing.paused(r, model, PLUG):
        return [r.submit(item, **options) for item in items]


@pytest.mark.parametrize(("count", "bad"), [(8, 3), (2, 1), (7, 6), (64, 0)])
def test_only_the_culprit_fails(lab: Lab, kind: str, count: int, bad: int) -> None:
    model = lab.model(spoiled(bad))
    r = lab.start(made(kind, model))
    tickets = queued(lab, r, model, list(range(count)))
    error = tickets[bad].exception(30)
    assert type(error) is Bad and error.args == (bad,) and notes(error) == []
    assert error.__cause__ is None and error.__context__ is None
    assert "row" in frames(error)
    assert [t.result(30) for i, t in enumerate(tickets) if i != bad] == [f"row {i}" for i in range(count) if i != bad]
    lab.idle(r)
    runs = len(model.batches) - 2
    assert 0 < runs <= 2 * (count - 1).bit_length()
    s = r.snapshot()
    assert (s.failed, s.items, s.batches, s.splits) == (1, count + 1, runs + 2, runs)
    assert s.failed_batches == 1 + sum(bad in batch for batch in model.batches[2:])
    assert tickets[bad].timing.batch_size == 1


def test_each_is_run_again_only_until_it_has_its_row(lab: Lab, kind: str) -> None:
    model = lab.model(spoiled(2, 5))
    r = lab.start(made(kind, model))
    tickets = queued(lab, r, model, list(range(8)))
    assert {i for i, ticket in enumerate(tickets) if ticket.exception(30)} == {2, 5}
    succeeded = [batch for batch in model.batches[2:] if not {2, 5} & set(batch)]
    assert sorted(item for batch in succeeded for item in batch) == [0, 1, 3, 4, 6, 7]


def test_timings(lab: Lab, kind: str) -> None:
    clock = lab.clock()
    model = lab.model(spoiled(0))

    def timed(items: list[Any]) -> Any:
        if items != [PLUG]:
            clock.advance(1)
        return model(items)

    r = lab.start(made(kind, timed), clock=clock)
    tickets = queued(lab, r, model, [0, 1, 2, 3])
    assert type(tickets[0].exception(30)) is Bad
    assert [ticket.exception(30) for ticket in tickets[1:]] == [None] * 3
    # 0 1 2 3 | 0 1 | 2 3 | 0 | 1
    assert [ticket.timing.split for ticket in tickets] == [3, 4, 2, 2]
    assert [ticket.timing.run for ticket in tickets] == [1] * 4
    assert [ticket.timing.closed_by for ticket in tickets] == ["idle lane"] * 4
    for ticket in tickets:
        t = ticket.timing
        assert t.total == pytest.approx(t.prepare + t.queue + t.batch + t.copy + t.split + t.run)
    lab.idle(r)


LATER = [
    OSError("no"),
    ConnectionResetError(),
    TimeoutError(),
    relay.Overloaded("elsewhere"),
    relay.RunTimeout(),
    RuntimeError("CUDA error: device-side assert triggered"),
]


@pytest.mark.parametrize("error", LATER, ids=lambda error: type(error).__name__)
def test_what_no_split_can_help_is_not_split(lab: Lab, kind: str, error: Exception) -> None:
    model = lab.model(spoiled(3, error=lambda _: error))
    r = lab.start(made(kind, model), name="whole")
    tickets = queued(lab, r, model, list(range(8)))
    errors = [ticket.exception(30) for ticket in tickets]
    assert {type(own) for own in errors} == {type(error)} and len({id(own) for own in errors}) == 8
    assert all(notes(own) == ["raised for a batch of 8 of relay 'whole'"] for own in errors)
    assert len(model.batches) == 2
    assert r(9) == "row 9" and r.healthy
    s = r.snapshot()
    assert (s.failed, s.failed_batches, s.splits, s.expired) == (8, 1, 0, 0)


@pytest.mark.parametrize("options", [{"isolate": False}, {"idempotent": False}], ids=str)
@pytest.mark.parametrize("error", [Bad, MemoryError])
def test_nor_what_must_not_be_run_again(lab: Lab, kind: str, options: dict[str, bool], error: type[Exception]) -> None:
    model = lab.model(spoiled(3, error=error))
    r = lab.start(made(kind, model), **options)
    tickets = queued(lab, r, model, list(range(8)))
    assert {type(ticket.exception(30)) for ticket in tickets} == {error}
    assert len(model.batches) == 2


def test_a_model_at_fault_is_found_out_and_forgiven(lab: Lab, kind: str) -> None:
    broken: set[Any] = set(range(8))

    def row(item: Any) -> Any:
        if item in broken:
            raise Bad(item)
        return item

    model = lab.model(row)
    r = lab.start(made(kind, model))
    tickets = queued(lab, r, model, list(range(8)))
    assert {type(ticket.exception(30)) for ticket in tickets} == {Bad}
    assert len(model.batches) == 2 + 2 * 3, "2 * log2(n) runs without a success"
    # The plug of `queued` would be a success.
    model.hold()
    first = r.submit(0)
    model.wait_until_running()
    tickets = [r.submit(item) for item in range(1, 5)]
    before = len(model.batches)
    model.free()
    assert all(type(ticket.exception(30)) is Bad for ticket in (first, *tickets))
    assert len(model.batches) == before + 1, "nothing is split"
    assert r(9) == 9
    broken.clear()
    broken.add(2)
    tickets = queued(lab, r, model, list(range(4)))
    assert [type(ticket.exception(30)) for ticket in tickets] == [type(None), type(None), Bad, type(None)]


def test_a_deadline_that_comes_while_the_batch_is_split(lab: Lab, kind: str) -> None:
    clock = lab.clock()
    model = lab.model(spoiled("bad"))

    def timed(items: list[Any]) -> Any:
        if items != [PLUG]:
            clock.advance(1)
        return model(items)

    r = lab.start(made(kind, timed), clock=clock)
    with lab.testing.paused(r, model, PLUG):
        culprit = r.submit("bad")
        tickets = [r.submit(item, deadline=time) for item, time in (("a", 2.5), ("late", 1.5), ("b", 9))]
    # bad a late b | bad a | b | and then a is late, too: bad
    late = tickets[1].exception(30)
    assert type(late) is relay.DeadlineExceeded and notes(late) == [] and type(late.__cause__) is Bad
    assert tickets[2].result(30) == "row b" and type(culprit.exception(30)) is Bad
    assert type(tickets[0].exception(30)) is relay.DeadlineExceeded
    assert model.batches[1:] == [["bad", "a", "late", "b"], ["bad", "a"], ["b"], ["bad"]]
    lab.idle(r)
    s = r.snapshot()
    assert (s.expired, s.failed, s.cancelled, s.items) == (2, 1, 0, 5)


def test_a_cancel_that_comes_while_the_batch_is_split(lab: Lab, kind: str) -> None:
    tickets: dict[str, Any] = {}
    model = lab.model(spoiled("bad"))

    def cancelling(items: list[Any]) -> Any:
        if items == ["bad", "a"]:
            assert tickets["c"].cancel() and tickets["bad"].cancel()
        return model(items)

    r = lab.start(made(kind, cancelling))
    with lab.testing.paused(r, model, PLUG):
        for item in ("bad", "a", "b", "c"):
            tickets[item] = r.submit(item)
    assert [tickets[item].result(30) for item in "ab"] == ["row a", "row b"]
    for item in ("bad", "c"):
        error = tickets[item].exception(30)
        assert type(error) is relay.RequestCancelled and notes(error) == []
    lab.idle(r)
    assert model.batches[1:] == [["bad", "a", "b", "c"], ["bad", "a"], ["b"], ["a"]]
    s = r.snapshot()
    assert (s.cancelled, s.failed, s.expired) == (2, 0, 0)


def test_those_who_share_a_run_share_its_end(lab: Lab, kind: str) -> None:
    model = lab.model(spoiled("bad"))
    r = lab.start(made(kind, model), merge=True)
    tickets = queued(lab, r, model, ["bad", "a", "bad", "b", "a", "bad", "c"])
    errors = [tickets[index].exception(30) for index in (0, 2, 5)]
    assert all(type(error) is Bad and notes(error) == [] for error in errors)
    assert len({id(error) for error in errors}) == 3
    assert [tickets[index].result(30) for index in (1, 3, 4, 6)] == ["row a", "row b", "row a", "row c"]
    lab.idle(r)
    s = r.snapshot()
    assert (s.merged, s.failed, s.items) == (3, 3, 5)
    assert s.total_time.count == 5  # those answered, the plug included


def test_a_leaders_cancel_leaves_the_others_of_its_run_alone(lab: Lab, kind: str) -> None:
    tickets: list[Any] = []
    model = lab.model(spoiled("bad"))

    def cancelling(items: list[Any]) -> Any:
        if items == ["bad", "a", "b"]:
            assert tickets[0].cancel() and tickets[1].cancel()
        if items == ["bad", "a"]:  # joins what is being split
            tickets.append(r.submit("b"))
        return model(items)

    r = lab.start(made(kind, cancelling), merge=True)
    with lab.testing.paused(r, model, PLUG):
        tickets += [r.submit(item) for item in ("bad", "a", "b", "bad", "a")]
    for index, end in enumerate((relay.RequestCancelled, relay.RequestCancelled, None, Bad, None)):
        error = tickets[index].exception(30)
        assert type(error) is end if end else error is None
    assert tickets[5].result(30) == "row b"
    assert sum("b" in batch for batch in model.batches) == 2


@pytest.mark.parametrize("looks", [1, 2])
def test_who_joins_when_nobody_wants_it_any_more_is_not_cancelled_with_it(
    lab: Lab, kind: str, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """E4: between a look whether anybody waits and the end of the run."""
    joined: list[Any] = []
    left = [looks]
    module = lab.package.running
    wanted = module.wanted

    def joining(owner: Any) -> bool:
        answer: bool = wanted(owner)
        if not answer:
            left[0] -= 1
            if not left[0]:
                joined.append(r.submit(owner._item))
        return answer

    monkeypatch.setattr(module, "wanted", joining)
    tickets: dict[str, Any] = {}
    model = lab.model(spoiled("bad"))

    def cancelling(items: list[Any]) -> Any:
        if items == ["bad", "a", "b", "c"]:
            # All that another thread's cancel() has done so far.
            replies = module.Replies()
            module.settle(tickets["c"], None, relay.RequestCancelled(), replies)
            replies.flush()
        return model(items)

    r = lab.start(made(kind, cancelling), merge=True)
    with lab.testing.paused(r, model, PLUG):
        tickets |= {item: r.submit(item) for item in ("bad", "a", "b", "c")}
    assert type(tickets["c"].exception(30)) is relay.RequestCancelled
    assert tickets["a"].result(30) == "row a"
    assert joined[0].result(30) == "row c"


ALL_KINDS: list[BaseException] = [
    ValueError("x"),
    BaseException("x"),
    MemoryError("x"),
    StopIteration(3),
    StopAsyncIteration(3),
    asyncio.CancelledError("x"),
    asyncio.InvalidStateError("x"),
    KeyboardInterrupt(),
    SystemExit(3),
    GeneratorExit(),
    RecursionError("x"),
    BaseExceptionGroup("two", [KeyboardInterrupt(), ValueError()]),
]


@pytest.mark.parametrize("error", ALL_KINDS, ids=lambda error: type(error).__name__)
def test_d3_errors_of_every_kind(lab: Lab, kind: str, error: BaseException) -> None:
    model = lab.model()
    r = lab.start(made(kind, model))
    with lab.testing.paused(r, model, PLUG):
        tickets = [r.submit(i) for i in range(4)]
        model.release()
        lab.wait_until(lambda: r.snapshot().batches == 1)
        model.fail_next(error)
    ends = [ticket.exception(30) for ticket in tickets]
    for end in ends:
        assert end is None or isinstance(end, Exception) and not isinstance(end, StopIteration)
        assert not isinstance(end, asyncio.CancelledError)
    assert r(1) == 1 and r.healthy
    lab.idle(r)


def test_d4_the_third_item_fails(lab: Lab, kind: str) -> None:
    def row(item: str) -> Any:
        return Bad(item) if item == "row3" else item.upper()

    def prepare(item: str) -> str:
        if item == "pre3":
            raise Bad(item)
        return item

    model = lab.model(row)
    r = lab.start(made(kind, model), tokenizer=Letters(), prepare=prepare)
    for third, end in (("row3", Bad), ("pre3", Bad), ("bad3", ValueError)):
        items = ["a", "b", "c", third, "d", "e", "f", "g"]
        tickets = [r.submit(item) for item in items]
        assert type(tickets[3].exception(30)) is end and notes(tickets[3].exception()) == []
        assert [ticket.result(30) for ticket in tickets if ticket is not tickets[3]] == list("ABCDEFG")
    lab.idle(r)
    assert r.snapshot().failed == 3 and r.snapshot().failed_batches == 0


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_d9_a_row_that_is_not_finite(lab: Lab, kind: str, value: float) -> None:
    def called(items: list[Any]) -> Any:
        model(items)
        return np.array([[1.0, value if item == 2 else 0.0] for item in items])

    model = lab.model()
    r = lab.start(made(kind, called), check_finite=True, merge=True)
    tickets = queued(lab, r, model, [0, 1, 2, 3, 4, 2])
    for index in (2, 5):
        assert type(tickets[index].exception(30)) is relay.NonFiniteOutput and notes(tickets[index].exception()) == []
    assert all(tickets[index].result(30).tolist() == [1, 0] for index in (0, 1, 3, 4))
    assert type(r.submit(2).exception(30)) is relay.NonFiniteOutput, "it is not kept"
    lab.idle(r)
    s = r.snapshot()
    assert (s.non_finite, s.failed, s.failed_batches, s.splits) == (3, 3, 0, 0)


@pytest.mark.parametrize(("says", "asked", "checks"), [(True, None, True), (True, False, False), (None, None, False)])
def test_d9_the_model_says_whether_rows_are_checked(
    lab: Lab, kind: str, says: bool | None, asked: bool | None, checks: bool
) -> None:
    model = made(kind, lambda items: [float("nan")] * len(items))
    if says is not None:
        model.check_finite = says  # type: ignore[attr-defined]
    r = lab.start(model, check_finite=asked)
    assert (type(r.submit(1).exception(30)) is relay.NonFiniteOutput) == checks


def test_d10_many_lanes_and_every_answer_in_its_place(lab: Lab, kind: str, rng: random.Random) -> None:
    running, most, sizes = [0], [0], []
    pauses = [rng.random() * 0.003 for _ in range(10_000)]
    lock, together = threading.Lock(), threading.Event()  # the first waits for another one beside it

    def begin(items: list[int]) -> float:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
            if running[0] > 1:
                together.set()
            sizes.append(len(items))
            return pauses[len(sizes)]

    def plain(items: list[int]) -> list[Any]:
        time.sleep(begin(items))
        assert together.wait(30)
        with lock:
            running[0] -= 1
        return [(item, -item) for item in items]

    async def coroutine(items: list[int]) -> list[Any]:
        await asyncio.sleep(begin(items))
        while not together.is_set():
            await asyncio.sleep(0.001)
        with lock:
            running[0] -= 1
        return [(item, -item) for item in items]

    r = lab.start({"plain": plain, "coroutine": coroutine}[kind], max_batch_size=256, lanes=4, max_queue=4096)
    assert list(r.map(range(7_207))) == [(i, -i) for i in range(7_207)]
    assert 1 < most[0] <= 4 and max(sizes) <= 256 and sum(sizes) == 7_207
    lab.idle(r)
    assert r.snapshot().items == 7_207 and r.snapshot().lanes == 4


def fitting(most: int) -> Callable[[list[str]], list[str]]:
    """A model that runs out of memory where the padded length of a batch is over `most`."""

    def called(items: list[str]) -> list[str]:
        if len(items) * max(map(len, items)) > most:
            raise MemoryError("no room")
        return [item.upper() for item in items]

    return called


def test_d11_out_of_memory(lab: Lab, kind: str) -> None:
    fits, model = fitting(96), lab.model()

    def called(items: list[str]) -> list[str]:
        model(items)
        return fits(items)

    r = lab.start(made(kind, called))
    memory = r._dispatcher.lanes[0].station.memory
    items = ["abcd", "efgh"] * 32
    tickets = queued(lab, r, model, items)
    assert [ticket.result(30) for ticket in tickets] == [item.upper() for item in items]
    assert memory.limit and memory.limit <= 96, "it adapts"
    sizes = [len(batch) for batch in model.batches[1:]]
    assert sizes[:2] == [64, 32] and min(sizes) >= 8

    before = len(model.batches)
    tickets = queued(lab, r, model, items)
    assert [ticket.result(30) for ticket in tickets] == [item.upper() for item in items]
    assert all(len(batch) * 4 <= memory.limit for batch in model.batches[before + 1 :]), "none is tried that is larger"
    assert r.snapshot().failed == 0

    # One that is wider than the limit is run alone, and fails only if it cannot be run even so.
    wide, wider = "w" * (memory.limit + 1), "w" * 97
    before = len(model.batches)
    tickets = queued(lab, r, model, ["abcd", wide, wider, "efgh"])
    assert [tickets[index].result(30) for index in (0, 1, 3)] == ["ABCD", wide.upper(), "EFGH"]
    assert type(tickets[2].exception(30)) is MemoryError
    assert [wide] in model.batches[before:] and model.batches[before:].count([wider]) == 1

    # It recovers, slowly.
    limit = memory.limit
    for _ in range(GROW_AFTER):  # queued beforehand, so that each fills the limit however fast the machine is
        for ticket in queued(lab, r, model, ["abcd"] * (4 * (limit // 4))):
            ticket.result(30)
    lab.idle(r)
    assert memory.limit == 0 or memory.limit > limit


@pytest.mark.parametrize("wrong", [1, -1, None])
def test_a_wrong_count_is_the_fault_of_whose_it_is(lab: Lab, kind: str, wrong: int | None) -> None:
    def called(items: list[Any]) -> Any:
        model(items)
        if 3 not in items:
            return list(items)
        return {1: [*items, 0], -1: items[1:], None: None}[wrong]

    model = lab.model()
    r = lab.start(made(kind, called))
    tickets = queued(lab, r, model, list(range(8)))
    assert type(tickets[3].exception(30)) is relay.BadOutput
    assert [ticket.result(30) for i, ticket in enumerate(tickets) if i != 3] == [0, 1, 2, 4, 5, 6, 7]
    lab.idle(r)
    assert r.snapshot().failed == 1


def test_lanes_of_one_model_share_what_they_know_of_it(lab: Lab, kind: str) -> None:
    model = made(kind, lambda items: items)
    other = made(kind, lambda items: list(items))
    r = lab.start([model, model, other])
    first, second, third = (lane.station for lane in r._dispatcher.lanes)
    assert first.memory is second.memory and first.health is second.health and first.cost is second.cost
    assert first.memory is not third.memory and first.health is not third.health and first.cost is not third.cost
