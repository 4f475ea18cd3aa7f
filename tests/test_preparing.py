"""`prepare=`: on helper threads, in the item's own context, beside the running batch; and those threads themselves."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

import relay
from relay import BATCH, REALTIME
from relay.helpers import Helpers

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

who: ContextVar[str] = ContextVar("who", default="nobody")


class Gate:
    """A `prepare` that is held at one item, and records where it runs."""

    def __init__(self, *held: Any) -> None:
        self.held, self.entered, self.go = held, threading.Semaphore(0), threading.Event()
        self.seen: list[Any] = []
        self.threads: set[str] = set()

    def __call__(self, item: Any) -> Any:
        self.seen.append(item)
        self.threads.add(threading.current_thread().name)
        if item in self.held:
            self.entered.release()
            assert self.go.wait(30)
        if isinstance(item, BaseException):
            raise item
        return ("prepared", item)


@pytest.fixture
def gate(lab: Lab) -> Any:
    gates: list[Gate] = []

    def make(*held: Any) -> Gate:
        gates.append(Gate(*held))
        return gates[-1]

    yield make
    for each in gates:
        each.go.set()


def test_the_model_gets_what_was_prepared(lab: Lab, gate: Any) -> None:
    prepare = gate()
    seen: list[Any] = []

    def model(items: list[Any]) -> list[Any]:
        seen.append((items, list(lab.current_batch().items)))
        return [item[1] for item in items]

    r = lab.start(model, prepare=prepare)
    assert r.submit_many([1, 2]).result(30) == [1, 2]
    assert sorted(pair for given, _ in seen for pair in given) == [("prepared", 1), ("prepared", 2)]
    assert sorted(item for _, items in seen for item in items) == [1, 2]  # the callers' own
    assert all(name.startswith("relay-helper") for name in prepare.threads)


def test_c5_in_the_items_own_context(lab: Lab) -> None:
    """Whoever starts the helpers leaves nothing in them, and what a hook sets stays with its item."""

    def prepare(item: Any) -> str:
        name = who.get()
        who.set(f"left by {name}")
        return name

    r = lab.start(lambda items: [(item, who.get()) for item in items], prepare=prepare)

    async def ask(name: str) -> Any:
        who.set(name)
        return await r.run_async(0)

    async def main() -> list[Any]:
        return await asyncio.gather(*(ask(f"task {i}") for i in range(20)))

    who.set("main")
    assert r(0) == ("main", "nobody")
    assert asyncio.run(main()) == [(f"task {i}", "nobody") for i in range(20)]
    assert r.submit_many([0] * 5).result(30) == [("main", "nobody")] * 5
    assert who.get() == "main"
    who.set("nobody")


def test_beside_the_running_batch(lab: Lab, gate: Any) -> None:
    prepare, model = gate(), lab.model(held=True)
    r = lab.start(model, prepare=prepare, max_batch_size=4)
    first = r.submit("first")
    model.wait_until_running()
    rest = [r.submit(i) for i in range(4)]
    lab.wait_until(lambda: r.snapshot().queued == 4)  # all are ready while the model is busy
    assert not first.done() and sorted(prepare.seen[1:]) == [0, 1, 2, 3]  # several helpers take no turns
    model.free()
    assert [ticket.result(30) for ticket in rest] == [("prepared", i) for i in range(4)]
    assert len(model.batches) == 2


def test_d4_an_item_that_fails_fails_alone(lab: Lab, gate: Any) -> None:
    prepare = gate()
    r = lab.start(lab.model(), prepare=prepare)
    errors: list[Any] = [ValueError("bad"), StopIteration(), SystemExit(3), asyncio.CancelledError(), MemoryError()]
    items = [x for pair in zip(range(5), errors, strict=True) for x in pair]
    ends = r.submit_many(items, return_exceptions=True).result(30)
    assert ends[::2] == [("prepared", i) for i in range(5)]
    assert [type(end) for end in ends[1::2]] == [
        ValueError, relay.ModelError, relay.ModelError, relay.ModelError, MemoryError,
    ] or all(isinstance(end, Exception) for end in ends[1::2])  # fmt: skip
    assert repr(ends[1]) == "ValueError('bad')" and ends[1].__traceback__ is not None
    assert r.snapshot().failed == 5 and r.healthy
    lab.idle(r)


def test_cancelled_expired_and_closed_while_it_is_prepared(lab: Lab, gate: Any) -> None:
    clock, prepare, model = lab.clock(), gate("held"), lab.model()
    r = lab.start(model, prepare=prepare, clock=clock, limits=lab.Limits(helper_threads=1))
    held, waits = r.submit("held"), r.submit("waits")
    assert prepare.entered.acquire(timeout=30)
    late = r.submit("late", deadline=1)
    assert held.cancel() and waits.cancel()
    clock.wait_for_sleepers(1)
    clock.advance(1)
    assert isinstance(late.exception(30), relay.DeadlineExceeded)
    assert isinstance(held.exception(0), relay.RequestCancelled)
    fine = r.submit("fine")
    prepare.go.set()
    assert fine.result(30) == ("prepared", "fine")
    lab.wait_until(lambda: r.snapshot().admitted == 0)
    assert prepare.seen == ["held", "fine"] and model.batches == [[("prepared", "fine")]]


def test_close_leaves_nothing_behind(lab: Lab, gate: Any) -> None:
    prepare = gate("held")
    r = lab.start(lab.model(), prepare=prepare, limits=lab.Limits(helper_threads=1))
    tickets = [r.submit("held"), r.submit(1), r.submit_many([2, 3])]
    assert prepare.entered.acquire(timeout=30)
    r.close()
    assert {type(ticket.exception(30)) for ticket in tickets} == {relay.Closed}
    lab.testing.assert_idle(r)  # though the hook has not come back
    prepare.go.set()


def test_closed_just_before_it_is_handed_over(lab: Lab) -> None:
    """The helpers have ended by then, and its place is free all the same."""
    r = lab.start(lab.model(), prepare=str)
    assert r(1) == "1"
    put = r._desk._preparing.put

    def late(ticket: Any) -> None:
        r.close()
        r._desk._preparing.helpers.join(30)
        put(ticket)

    r._desk._preparing.put = late
    assert isinstance(r.submit(2).exception(30), relay.Closed)
    lab.testing.assert_idle(r)


def test_a_merged_request_is_prepared_once_and_for_whoever_is_left(lab: Lab, gate: Any) -> None:
    prepare = gate("plug")
    names: list[str] = []

    def named(item: Any) -> Any:
        if item != "plug":
            names.append(who.get())
        return prepare(item)

    r = lab.start(lab.model(), prepare=named, merge=True, limits=lab.Limits(helper_threads=1))
    r.submit("plug")
    assert prepare.entered.acquire(timeout=30)
    who.set("leader")
    leader = r.submit("x")
    who.set("follower")
    follower = r.submit("x")
    who.set("nobody")
    assert leader.cancel()
    prepare.go.set()
    assert follower.result(30) == ("prepared", "x") and prepare.seen == ["plug", "x"]
    assert names in (["leader"], ["follower"])


def test_urgent_ones_are_prepared_first_and_nobody_starves(lab: Lab, gate: Any) -> None:
    prepare = gate("plug")
    r = lab.start(lab.model(), prepare=prepare, limits=lab.Limits(helper_threads=1))
    r.submit("plug")
    assert prepare.entered.acquire(timeout=30)
    tickets = [r.submit(("bulk", i), priority=BATCH) for i in range(3)]
    tickets += [r.submit(("urgent", i), priority=REALTIME) for i in range(20)]
    prepare.go.set()
    for ticket in tickets:
        ticket.result(30)
    order = [item[0] for item in prepare.seen[1:]]
    assert order[:6] == ["urgent"] * 6 and "bulk" in order[6:8] and order[-1] == "urgent" or order.count("bulk") == 3
    urgent = [item for item in prepare.seen if item[0] == "urgent"]
    assert urgent == sorted(urgent)  # in order of arrival within their tier
    assert order.index("bulk") <= 8


def test_several_helpers_share_what_waits(lab: Lab) -> None:
    """One slow item does not hold up those behind it."""
    entered, go = threading.Event(), threading.Event()

    def prepare(item: Any) -> Any:
        if item == "slow":
            entered.set()
            assert go.wait(30)
        return item

    r = lab.start(lab.model(), prepare=prepare, limits=lab.Limits(helper_threads=2))
    slow, others = r.submit("slow"), [r.submit(i) for i in range(20)]
    assert [ticket.result(30) for ticket in others] == list(range(20))
    assert entered.wait(30) and not slow.done()
    go.set()
    assert slow.result(30) == "slow"


class Letters:
    """A tokenizer that asks for texts: one id a letter."""

    max_length, pad_id, has_segments, fingerprint, vocab_size = 16, 0, False, "letters", 256

    def check(self, item: object) -> None:
        pass

    def reserve(self, item: Any) -> int:
        raise AssertionError("what the item will become is not known yet")

    def encode(self, items: Any) -> list[Any]:
        return [([ord(c) for c in item], -1) if isinstance(item, str) else TypeError("no text") for item in items]


def test_before_a_tokenizer(lab: Lab) -> None:
    def model(batch: Any) -> list[str]:
        return ["".join(map(chr, row[:n])) for row, n in zip(batch.input_ids, batch.lengths, strict=True)]

    r = lab.start(model, tokenizer=Letters(), prepare=lambda item: item["text"])
    items: list[Any] = [{"text": "ab"}, {"text": 7}, {"no": "text"}, {"text": "c" * 16}]
    one, two, three, four = r.submit_many(items, return_exceptions=True).result(30)
    assert (one, four) == ("ab", "c" * 16) and type(two) is TypeError and type(three) is KeyError
    lab.idle(r)


def test_d12_sixteen_helpers_and_tokenizers_of_several_lengths(lab: Lab) -> None:
    """Each relay's rows honour its own settings, though all are encoded at the same time."""

    class Cut(Letters):
        def __init__(self, length: int) -> None:
            self.max_length = length

        def reserve(self, item: Any) -> int:
            return min(len(item), self.max_length)

        def encode(self, items: Any) -> list[Any]:
            return [([ord(c) for c in item][: self.max_length], -1) for item in items]

    def model(batch: Any) -> list[tuple[str, int]]:
        width = batch.input_ids.shape[1]
        return [("".join(map(chr, row[:n])), width) for row, n in zip(batch.input_ids, batch.lengths, strict=True)]

    relays = {
        length: lab.start(model, tokenizer=Cut(length), limits=lab.Limits(helper_threads=16, encode_chunk=3))
        for length in (4, 9, 16)
    }
    texts = ["abcdefghijklmnopqrstuvwxyz"[i % 7 : i % 7 + 3 + i % 15] for i in range(200)]

    def use(length: int) -> None:
        for text, (row, width) in zip(texts, relays[length].map(texts), strict=True):
            assert row == text[:length] and width <= length

    calls = [lab.call(use, length) for length in relays for _ in range(2)]
    for each in calls:
        each.result()
    assert all(r.snapshot().failed == 0 for r in relays.values())


def test_a_helper_that_dies_is_replaced_by_itself(lab: Lab) -> None:
    """Only the log can kill one. What waits behind is prepared all the same, without another request."""

    class Kills(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise SystemExit

    entered, go, done = threading.Event(), threading.Event(), threading.Semaphore(0)

    def work(chunk: list[Any]) -> None:
        if chunk == ["bad"]:
            entered.set()
            assert go.wait(30)
            raise ValueError
        done.release()

    helpers, handler = Helpers(1, "h", 1, work, lambda chunk, error: None), Kills()
    hook, threading.excepthook = threading.excepthook, lambda args: None
    logging.getLogger("relay").addHandler(handler)
    try:
        helpers.put("bad")
        assert entered.wait(30)
        helpers.put("behind")
        go.set()
        assert done.acquire(timeout=30) and helpers.healthy
    finally:
        logging.getLogger("relay").removeHandler(handler)
        threading.excepthook = hook
        helpers.stop()
        helpers.join(30)


@pytest.mark.parametrize("option", ["prepare", "size", "group", "key"])
def test_what_cannot_be_a_hook(lab: Lab, option: str) -> None:
    async def coroutine(item: Any) -> Any:
        return item

    def generator(item: Any) -> Any:
        yield item

    with pytest.raises(TypeError, match=f"{option} must be a function of one item, such as .*, got int"):
        lab.Relay(len, **{option: 3})
    for wrong in (coroutine, generator):
        with pytest.raises(TypeError, match=f"{option} must be a plain function of one item"):
            lab.Relay(len, **{option: wrong})
