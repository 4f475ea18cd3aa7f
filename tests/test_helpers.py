"""Helper threads, and a relay with a tokenizer: what fails, ends or is given up while it is being tokenised."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import relay
from relay.helpers import Helpers

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


class Letters:
    """A tokenizer: one id a letter; "bad" cannot be encoded, "crash" breaks a whole call, "count" loses a result."""

    def __init__(self, max_length: int = 64, held: bool = False) -> None:
        self.max_length = max_length
        self.pad_id = 0
        self.has_segments = False
        self.fingerprint = "letters"
        self.vocab_size = 256
        self.calls: list[list[str]] = []
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.held = held

    def check(self, item: object) -> None:
        if not isinstance(item, str):
            raise TypeError(f"the item is a {type(item).__name__}; allowed: a str")

    def reserve(self, item: str) -> int:
        return min(len(item), self.max_length)

    def encode(self, items: Sequence[str]) -> list[Any]:
        self.calls.append(list(items))
        self.entered.release()
        if self.held:
            self.go.acquire()
        if "crash" in items:
            raise SystemExit("crash")
        out: list[Any] = [ValueError("bad") if item == "bad" else ([ord(c) for c in item], -1) for item in items]
        return out[:-1] if "count" in items else out

    def free(self) -> None:
        self.held = False
        self.go.release(1000)


def texts(batch: Any) -> list[str]:
    rows = zip(batch.input_ids, batch.lengths, strict=True)
    assert (batch.attention_mask.sum(1) == batch.lengths).all() and batch.token_type_ids is None
    return ["".join(map(chr, row[:n])) for row, n in rows]


@pytest.fixture
def letters(lab: Lab) -> Any:
    made: list[Letters] = []

    def make(**options: Any) -> Letters:
        made.append(Letters(**options))
        return made[-1]

    yield make
    for tokenizer in made:
        tokenizer.free()


def test_batches_of_ids(lab: Lab, letters: Any) -> None:
    seen: list[tuple[int, ...]] = []

    def model(batch: Any) -> list[str]:
        assert isinstance(batch, lab.Batch) and len(batch) == len(batch.items)
        assert batch.input_ids.dtype == np.int64
        seen.append(batch.input_ids.shape)
        return texts(batch)

    r = lab.start(model, tokenizer=letters(), max_batch_size=8)
    items = ["a" * n for n in (1, 5, 3, 64, 2)] + ["", "xyz"]
    assert r.submit_many(items).result(30) == items
    assert all(rows <= 8 for rows, _ in seen)
    group = r.submit_many(items)
    group.result(30)
    assert group.sizes == [1, 5, 3, 64, 2, 0, 3]
    with pytest.raises(TypeError, match="the item is a int; allowed: a str"):
        r.submit(3)


def test_the_models_own_tokenizer(lab: Lab, letters: Any) -> None:
    class Model:
        tokenizer = letters()

        def __call__(self, batch: Any) -> list[str]:
            return texts(batch)

    assert lab.start(Model())("abc") == "abc"


def test_d4_items_that_fail_to_encode(lab: Lab, letters: Any) -> None:
    r = lab.start(texts, tokenizer=letters())
    group = r.submit_many(["a", "bad", "c", "bad"], return_exceptions=True)
    assert [repr(y) for y in group.result(30)] == ["'a'", "ValueError('bad')", "'c'", "ValueError('bad')"]
    one, two = (member.exception() for member in group._members[1::2])
    assert one is not two
    assert r.snapshot().failed == 2


@pytest.mark.parametrize(
    ("item", "error"), [("crash", relay.ModelError), ("count", RuntimeError), ("x" * 65, ValueError)]
)
def test_a_tokenizer_that_breaks(lab: Lab, letters: Any, item: str, error: type[Exception]) -> None:
    """A chunk fails as a whole, its places are free again, and the helpers go on."""
    tokenizer = letters(held=True)
    r = lab.start(texts, tokenizer=tokenizer, limits=lab.Limits(helper_threads=1))
    first = r.submit("first")
    assert tokenizer.entered.acquire(timeout=30)
    tickets = [r.submit("beside"), r.submit(item), r.submit("beside")]
    tokenizer.free()
    assert first.result(30) == "first"
    assert isinstance(tickets[1].exception(30), error)
    if item == "x" * 65:  # only this one is to blame
        assert tickets[0].result(30) == tickets[2].result(30) == "beside"
    else:
        assert {type(ticket.exception(30)) for ticket in tickets} == {error}
    assert r("after") == "after" and r.healthy
    lab.idle(r)


def test_cancelled_and_expired_while_pinned(lab: Lab, letters: Any) -> None:
    clock, tokenizer, model = lab.clock(), letters(held=True), lab.model()
    r = lab.start(model, tokenizer=tokenizer, clock=clock, limits=lab.Limits(helper_threads=1))
    first, doomed = r.submit("first"), None
    assert tokenizer.entered.acquire(timeout=30)  # "first" is in the tokenizer's hands, the others wait for it
    assert first.cancel()
    doomed, fine, cancelled = r.submit("doomed", deadline=1), r.submit("fine"), r.submit("cancelled")
    assert cancelled.cancel()
    clock.wait_for_sleepers(1)
    clock.advance(1)
    assert isinstance(doomed.exception(), relay.DeadlineExceeded)
    assert r.snapshot().admitted == 4  # the rows are still pinned
    tokenizer.free()
    assert fine.result() == "fine"
    lab.wait_until(lambda: r.snapshot().admitted == 0)
    assert tokenizer.calls == [["first"], ["fine"]]  # what nobody wants is not even tokenised
    assert model.batches == [["fine"]]
    lab.idle(r)


def test_merged_while_pinned(lab: Lab, letters: Any) -> None:
    tokenizer, model = letters(held=True), lab.model()
    r = lab.start(model, tokenizer=tokenizer, merge=True, limits=lab.Limits(helper_threads=1))
    plug = r.submit("plug")
    assert tokenizer.entered.acquire(timeout=30)
    leader, follower = r.submit("x"), r.submit("x")
    bad, bad2 = r.submit("bad"), r.submit("bad")
    assert leader.cancel() and plug.cancel()
    tokenizer.free()
    assert follower.result(30) == "x"
    errors = bad.exception(30), bad2.exception(30)
    assert [type(error) for error in errors] == [ValueError] * 2 and errors[0] is not errors[1]
    lab.idle(r)


def test_joined_between_the_look_and_the_drop(lab: Lab, letters: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper finds that nobody wants a request; before it drops it, somebody joins."""
    tokenizer, model = letters(held=True), lab.model()
    r = lab.start(model, tokenizer=tokenizer, merge=True, limits=lab.Limits(helper_threads=1))
    desk = r._desk
    plug = r.submit("plug")
    assert tokenizer.entered.acquire(timeout=30)
    leader = r.submit("x")
    joined: list[Any] = []
    names = type(desk._preparing)._work.__globals__  # of this side's module
    wanted = names["wanted"]
    desk._drop_if_unwanted = lambda owner, handle: None  # the canceller is held up before it drops the request

    def look(owner: Any) -> bool:
        answer: bool = wanted(owner)
        if owner is leader and not answer and not joined and threading.current_thread().name.startswith("relay-helper"):
            joined.append(None)
            joined[0] = r.submit("x")
        return answer

    assert leader.cancel()
    monkeypatch.setitem(names, "wanted", look)
    tokenizer.free()
    assert plug.result(30) == "plug"
    lab.wait_until(lambda: bool(joined and joined[0]))
    assert joined[0].result(30) == "x"
    del desk._drop_if_unwanted
    lab.idle(r)


def test_close_while_tokenising(lab: Lab, letters: Any) -> None:
    tokenizer = letters(held=True)
    r = lab.start(texts, tokenizer=tokenizer)
    tickets = [r.submit(str(i)) for i in range(5)]
    assert tokenizer.entered.acquire(timeout=30)
    r.close()
    assert {type(ticket.exception(30)) for ticket in tickets} == {relay.Closed}
    tokenizer.free()
    lab.wait_until(lambda: r.snapshot().admitted == 0)


def test_no_room_for_ids(lab: Lab, letters: Any) -> None:
    with pytest.raises(ValueError, match="max_ids must be at least 64, one row of max_length ids, got 63"):
        lab.Relay(texts, tokenizer=letters(), limits=lab.Limits(max_ids=63))
    model = lab.model()
    r = lab.start(model, tokenizer=letters(), limits=lab.Limits(max_ids=128))
    with lab.testing.paused(r, model, "p"):
        tickets = lab.fill(r, "x" * 32)
        assert 0 < len(tickets) <= 4
        waiting = lab.run_thread(r, "y" * 64)
        lab.in_line(r, 1)
    waiting.join(30)
    assert not waiting.is_alive()
    assert "y" * 64 in [item for batch in model.batches for item in batch]
    lab.idle(r)


def test_too_many_ids_for_a_batch(lab: Lab, letters: Any) -> None:
    r = lab.start(texts, tokenizer=letters(), max_batch_tokens=10)
    long, short = r.submit("x" * 11), r.submit("x" * 10)
    with pytest.raises(relay.TooLarge, match="11 input ids, but a batch may have at most max_batch_tokens=10"):
        long.result(30)
    assert short.result(30) == "x" * 10
    lab.idle(r)


class Raises(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise SystemExit("from the log")


def test_they_survive_anything() -> None:
    done: list[Any] = []
    ended = threading.Event()

    def work(chunk: list[Any]) -> None:
        for item in chunk:
            if isinstance(item, BaseException):
                raise item
        done.extend(chunk)
        if "last" in chunk:
            ended.set()

    def failed(chunk: list[Any], error: BaseException) -> None:
        done.append(error)
        raise error

    errors = [ValueError(), SystemExit(), KeyboardInterrupt(), MemoryError(), GeneratorExit(), StopIteration()]
    helpers = Helpers(1, "h", 1, work, failed)
    assert helpers.healthy
    for error in errors:
        helpers.put(error)
    helpers.put("last")
    assert ended.wait(30)
    assert done == [*errors, "last"] and helpers.healthy
    helpers.stop()
    helpers.join(30)


def test_one_that_dies_is_seen_and_replaced() -> None:
    """Only the log itself can kill one. Its chunk has been answered before, and the next item starts another."""
    handler, ended, died = Raises(), threading.Event(), threading.Event()
    failures: list[Any] = []
    hook, threading.excepthook = threading.excepthook, lambda args: died.set()
    logging.getLogger("relay").addHandler(handler)
    work: Any = lambda chunk: 1 / 0 if chunk == ["bad"] else ended.set()  # noqa: E731
    helpers = Helpers(1, "h", 1, work, lambda chunk, error: failures.append(chunk))
    try:
        helpers.put("bad")
        assert died.wait(30)
        assert not helpers.healthy and failures == [["bad"]]
        helpers.put("good")
        assert ended.wait(30) and helpers.healthy
    finally:
        logging.getLogger("relay").removeHandler(handler)
        threading.excepthook = hook
        helpers.stop()
        helpers.join(30)


def test_all_that_was_handed_over_is_done_before_the_end() -> None:
    done: list[int] = []
    helpers = Helpers(3, "h", 7, done.extend, lambda chunk, error: None)
    for i in range(1000):
        helpers.put(i)
    helpers.stop()
    helpers.join(30)
    assert sorted(done) == list(range(1000))


def test_many_are_handed_over_in_one_go() -> None:
    """In their order, behind those of their level that came before; and nobody is left without a turn."""
    done: list[Any] = []
    entered, go, ended = threading.Event(), threading.Event(), threading.Event()

    def work(chunk: list[Any]) -> None:
        entered.set()
        assert go.wait(30)
        done.append(chunk)
        if sum(map(len, done)) == 1 + 1 + 20 + 3:
            ended.set()

    helpers = Helpers(1, "h", 8, work, lambda chunk, error: None, 100)
    helpers.put_all(["plug"], 0, [0])
    assert entered.wait(30)
    helpers.put("first", 2, 1)
    helpers.put_all(list(range(20)), 2, [10] * 10 + [60] * 10)
    helpers.put_all(["urgent"] * 3, 0, [0] * 3)
    helpers.put_all([], 5, [])
    go.set()
    assert ended.wait(30)
    flat = [item for chunk in done for item in chunk]
    assert flat[0] == "plug" and [item for item in flat if isinstance(item, int)] == list(range(20))
    assert flat.index("first") < flat.index(0) and flat[1:4] == ["urgent"] * 3
    weights = {**dict.fromkeys(range(10), 10), **dict.fromkeys(range(10, 20), 60), "first": 1}
    assert all(len(chunk) <= 8 and sum(weights.get(item, 0) for item in chunk[:-1]) <= 100 for chunk in done)
    helpers.stop()
    helpers.join(30)
