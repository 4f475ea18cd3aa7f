"""Everything at once: merging, tokenising, deadlines, cancels, groups, refusals; each ticket ends once, and rightly."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

ENDS = (type(None), relay.RequestCancelled, relay.DeadlineExceeded, relay.Overloaded, ValueError)


class Letters:
    """A tokenizer: one id a letter; what begins with "bad" cannot be encoded."""

    max_length, pad_id, has_segments, fingerprint, vocab_size = 16, 0, False, "letters", 256

    def check(self, item: object) -> None: ...

    def reserve(self, item: str) -> int:
        return len(item)

    def encode(self, items: Sequence[str]) -> list[Any]:
        return [ValueError(item) if item.startswith("bad") else ([ord(c) for c in item], -1) for item in items]


def answer(item: str) -> Any:
    return ValueError(item) if item.startswith("row") else f"answer to {item}"


def right(item: str, ticket: Any) -> bool:
    error = ticket.exception()
    if error is None:
        return bool(ticket.result() == f"answer to {item}")
    if type(error) is ValueError:
        return error.args == (item,) and item.startswith(("bad", "row"))
    return isinstance(error, ENDS)


@pytest.fixture(params=[0.005, 1e-5], ids=["usual", "hasty"])
def turns(request: pytest.FixtureRequest) -> Iterator[None]:
    """How long a thread keeps the interpreter: some races need it to be taken away in the middle."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(request.param)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("turns")
@pytest.mark.parametrize("tokenizer", [None, Letters()], ids=["plain", "tokenizer"])
def test_everything_at_once(lab: Lab, rng: random.Random, tokenizer: Any) -> None:
    clock, model = lab.clock(), lab.model(answer, held=True)
    limits = lab.Limits(helper_threads=2, encode_chunk=3, max_followers=5)
    options = {"max_queue": 16, "max_batch_size": 5, "merge": True, "limits": limits}
    r = lab.start(model, clock=clock, tokenizer=tokenizer, **options)
    items = ["a", "b", "c", "d", "ee", "fff", "bad 1", "row 1", "row 2"]
    told: Counter[Any] = Counter()
    wrong: list[Any] = []
    over = threading.Event()
    lock = threading.Lock()

    def count(ticket: Any) -> None:
        with lock:
            told[ticket] += 1

    def ask(own: random.Random) -> None:
        pending: list[tuple[list[str], Any]] = []
        for _ in range(300):
            request: dict[str, Any] = {"priority": own.randrange(4), "deadline": own.choice([None, None, 0.5, 1, 2])}
            request["tenant"] = own.choice([None, None, "t"])
            asked = [own.choice(items) for _ in range(own.choice([1, 1, 2, 4]))]
            try:
                if len(asked) == 1:
                    ticket = r.submit(asked[0], **request)
                else:
                    ticket = r.submit_many(asked, return_exceptions=True, **request)
            except relay.Overloaded:
                for _, ticket in pending:
                    ticket.exception()
                continue
            ticket.add_done_callback(count)
            pending.append((asked, ticket))
            if own.random() < 0.3:
                own.choice(pending)[1].cancel()
            if len(pending) > 8:
                look(*pending.pop(0))
        for asked, ticket in pending:
            look(asked, ticket)

    def look(asked: list[str], ticket: Any) -> None:
        ticket.exception()
        members = [ticket] if len(asked) == 1 else ticket._members
        for item, member in zip(asked, members, strict=True):
            if not member.done() or not right(item, member):
                wrong.append((item, member, member._error, member._value))
        if len(asked) > 1 and ticket.result() != [m._value if m._error is None else m._error for m in members]:
            wrong.append((asked, ticket))

    def pass_time() -> None:
        while not over.is_set():
            clock.advance(rng.choice([0, 0.1, 0.4]))
            model.release()
            over.wait(0.0005)

    seeds = [rng.randrange(2**32) for _ in range(4)]
    threads = [lab.run_thread(ask, random.Random(seed)) for seed in seeds]
    timing = lab.run_thread(pass_time)
    for thread in threads:
        thread.join(45)
        assert not thread.is_alive()
    assert not wrong
    assert r.drain() == 0
    over.set()
    timing.join(30)
    model.free()
    lab.wait_until(lambda: len(r._desk.queue) == 0)
    assert set(told.values()) == {1}
    ends = Counter(type(ticket.exception()) for ticket in told)
    print(ends, r.snapshot())
    assert ends[type(None)] > len(told) // 5
    lab.idle(r)
