"""Rows C2, C3 and D4 of the scenarios in full; what is marked long is as much as the rows ask for."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from both import Lab
from engine_kit import made

import relay.testing

pytest_plugins = ["both", "engine_kit", "pools"]

Loop = asyncio.AbstractEventLoop
Loops = Callable[[], Loop]


@pytest.fixture
def living(loops: Loops) -> Iterator[Loop]:
    """A loop that runs on a thread of its own until the test is over."""
    loop = loops()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


# C2: loops that close as an answer is about to be handed to them.

ROUNDS = pytest.mark.parametrize("rounds", [50, pytest.param(1_000, marks=pytest.mark.long)])


class Meeting:
    """Between a worker that has found a loop and is about to call it, and whoever closes that loop."""

    def __init__(self, loop: Loop, closed_first: bool, turns: int) -> None:
        self.barrier, self.closed_first, self.turns = threading.Barrier(2), closed_first, turns
        self.late = False  # whether the call came too late
        self._call, loop.call_soon_threadsafe = loop.call_soon_threadsafe, self.call  # type: ignore[method-assign]

    def call(self, *args: Any, **options: Any) -> Any:
        for _ in range(1 + self.closed_first):
            self.barrier.wait(30)
        sum(0 for _ in range(self.turns))
        try:
            return self._call(*args, **options)
        except RuntimeError:
            self.late = True
            raise

    def close(self, loop: Loop, turns: int) -> None:
        self.barrier.wait(30)
        sum(0 for _ in range(turns))
        loop.close()
        if self.closed_first:
            self.barrier.wait(30)


@ROUNDS
@pytest.mark.parametrize("closed_first", [True, False], ids=["closed first", "racing"])
@pytest.mark.usefixtures("switching")
def test_c2_a_callers_loop_closes_as_the_worker_calls_it(
    lab: Lab, loops: Loops, living: Loop, kind: str, closed_first: bool, rounds: int, rng: random.Random
) -> None:
    """What is handed over too late is dropped and counted; the third in each batch, on another loop, is served."""
    model = lab.model(lambda item: ("row of", item))
    r = lab.start(made(kind, model))
    assert r("first") == ("row of", "first")
    lane = r._dispatcher.lanes[0]
    worker = lane.thread if kind == "plain" else lane._home.own._thread
    late = 0
    for n in range(rounds):
        loop = loops()
        with lab.testing.paused(r, model, "plug"):
            dead = r.submit(("dead", n))
            tasks = [asyncio.ensure_future(dead, loop=loop), loop.create_task(r.run_async(("dead too", n)))]
            loop.run_until_complete(asyncio.sleep(0))
            alive = asyncio.run_coroutine_threadsafe(r.run_async(("alive", n)), living)
            lab.wait_until(lambda: r.snapshot().queued == 3)
            meeting = Meeting(loop, closed_first, rng.randrange(60))
        meeting.close(loop, rng.randrange(60))
        assert alive.result(30) == ("row of", ("alive", n))
        assert dead.result(30) == ("row of", ("dead", n)) and len(model.batches[-1]) == 3
        late += meeting.late  # known by now: answers go out loop by loop
        lab.wait_until(lambda late=late: r.snapshot().undeliverable == 2 * late)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
    print(f"{late} of {rounds} calls came too late")
    assert r("after") == ("row of", "after") and r.healthy and worker.is_alive()
    assert worker is (lane.thread if kind == "plain" else lane._home.own._thread)
    s = r.snapshot()
    assert late == rounds or not closed_first
    assert (s.undeliverable, s.total_time.count, s.items) == (2 * late, 4 * rounds + 2, 4 * rounds + 2)
    assert s.failed == s.cancelled == s.open == 0
    lab.idle(r)


@ROUNDS
@pytest.mark.usefixtures("switching")
def test_c2_a_models_own_loop_closes_as_its_work_ends(lab: Lab, loops: Loops, rounds: int, rng: random.Random) -> None:
    """The thread that a coroutine model waits for ends just as their loop closes. Each request ends once, with its
    answer or as its loop did, and the next one is served on another loop."""
    meetings: dict[Loop, Meeting] = {}

    async def model(items: list[Any]) -> list[Any]:
        if (loop := asyncio.get_running_loop()) is dying[-1]:
            future = loop.create_future()
            meetings[loop] = meeting = Meeting(loop, False, rng.randrange(60))
            del loop.call_soon_threadsafe  # nobody else is to meet there
            lab.call(meeting.call, lambda: future.done() or future.set_result(None))
            await future
        return [("row of", item) for item in items]

    async def main(n: int) -> list[Any]:
        tickets = [r.submit(("dead", n, i)) for i in range(2)]
        # A makeshift loop that nobody has left yet may serve them as well.
        while dying[-1] not in meetings and not all(ticket.done() for ticket in tickets):
            await asyncio.sleep(0)
        return tickets

    r = lab.start(model, max_batch_size=2)
    ends: Counter[str] = Counter()
    other, dying = loops(), [loops()]
    for n in range(rounds):
        loop = dying[-1]
        tickets = loop.run_until_complete(main(n))
        meeting = meetings.pop(loop, None)
        if meeting is not None and n % 4:
            meeting.close(loop, rng.randrange(60))
        else:  # right after the answer
            if meeting is not None:
                meeting.barrier.wait(30)
                ends["met after the answer"] += 1
            loop.run_until_complete(tickets[1])
            loop.close()
        dying.append(loops())
        for i, ticket in enumerate(tickets):
            error = ticket.exception(30)
            assert ticket.result() == ("row of", ("dead", n, i)) if error is None else error.reason == "loop_closed"
            ends["answered" if error is None else "failed"] += 1
        assert other.run_until_complete(r.run_async(("other", n))) == ("row of", ("other", n))
    other.close()
    dying.pop().close()
    print(dict(ends))
    s = r.snapshot()
    assert ends["met after the answer"] > 0
    assert ends["answered"] + ends["failed"] == 2 * rounds
    assert (s.failed, s.total_time.count) == (ends["failed"], ends["answered"] + rounds)
    assert s.open == s.cancelled == s.undeliverable == 0 and r.healthy
    lab.idle(r)


# C3: waiters that are cancelled on their own loop while results come.

WIDTH = 500
PURE_LIMIT_S = 60.0  # the long form asks the pure side for as many as fit into this time, and prints how many did


def look(item: int, end: Any) -> str:
    if item % 97:
        assert end == (item, ~item)
        return "answered"
    assert type(end) is LookupError and end.args == (item,)
    return "failed"


async def storm(r: Any, way: str, rng: random.Random, count: int, until: float) -> Counter[str]:
    """Ask until so many results have been seen, or it has taken too long; how each request ended for its waiter. Three
    in ten waiters are cancelled: after a few turns, or by another one that ends as they are given their answer."""
    ends: Counter[str] = Counter()

    async def one_round(items: range) -> None:
        tickets = {}

        async def submit(item: int) -> Any:
            tickets[item] = ticket = r.submit(item)
            if item % 250 == 0:
                ticket.add_done_callback(lambda _: 1 / 0)
            return await ticket

        ask = submit if way == "submit" else r.run_async
        tasks = [asyncio.get_running_loop().create_task(ask(item)) for item in items]
        victims = rng.sample(tasks, WIDTH * 3 // 10)
        for task in victims[::2]:
            rng.choice(tasks).add_done_callback(lambda _, task=task: task.cancel())
        left, doomed = victims[1::2], set(victims)
        while left:
            await asyncio.sleep(0)  # the first time: until all have begun
            for _ in range(min(len(left), rng.randrange(1, 100))):
                left.pop().cancel()
        for item, task, end in zip(items, tasks, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
            ends["cancelled" if task.cancelled() and task in doomed else look(item, end)] += 1
        for item, ticket in tickets.items():  # all: where only the waiter was cancelled, the request goes on
            if not ticket.done():
                await asyncio.gather(ticket, return_exceptions=True)
            look(item, ticket.exception() or ticket.result())

    while ends["answered"] + ends["failed"] < count and time.monotonic() < until:
        first = ends.total()
        await asyncio.gather(*(one_round(range(at, at + WIDTH)) for at in (first, first + WIDTH)))
    return ends


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("way", ["submit", "run_async"])
def test_c3_waiters_are_cancelled_while_results_come(
    lab: Lab, loops: Loops, kind: str, way: str, count: int, rng: random.Random, caplog: pytest.LogCaptureFixture
) -> None:
    r = lab.start(made(kind, lambda items: [(item, ~item) if item % 97 else LookupError(item) for item in items]))
    started = time.monotonic()
    whole = r.backend == "native" or count < 1_000_000
    ends = lab.run(loops, storm(r, way, rng, count, float("inf") if whole else started + PURE_LIMIT_S))
    asked = ends.total()
    bad = len(range(0, asked, 97))
    print(f"{asked} asked: {dict(ends)}, in {time.monotonic() - started:.1f} s")
    assert ends["cancelled"] > asked // 20 and (ends["answered"] + ends["failed"] >= count or not whole)
    assert r.healthy and r._dispatcher.alive and r(1) == (1, ~1)
    lab.idle(r)
    s = r.snapshot()
    answered = s.total_time.count - 1
    assert answered + s.failed + s.cancelled == asked, "each has ended once"
    if way == "submit":  # a waiter's cancel leaves the request alone
        assert (answered, s.failed, s.cancelled, s.items) == (asked - bad, bad, 0, asked + 1)
    else:  # who is cancelled as its answer comes has not seen it; it was given all the same, if need be to all of them
        assert answered >= ends["answered"] and s.failed >= ends["failed"] and s.cancelled <= ends["cancelled"]
    assert s.undeliverable == s.refused == s.expired == s.displaced == s.failed_batches == 0
    raising = asked // 250 if way == "submit" else 0
    assert [record.msg for record in caplog.records] == ["relay: a ticket's callback failed"] * raising


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_c3_a_lane_that_dies_is_seen_and_revived(
    lab: Lab, kind: str, living: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rest(now_ns: int) -> Any:
        raise MemoryError("no memory")

    r = lab.start(made(kind, lambda items: items))
    assert asyncio.run_coroutine_threadsafe(r.run_async(1), living).result(30) == 1 and r.healthy
    with monkeypatch.context() as patch:
        patch.setattr(r._dispatcher.lanes[0], "rest", rest)
        ticket = r.submit(2)
        lab.wait_until(lambda: not r.healthy)
    assert ticket.result(30) == 2 and r(3) == 3 and r.healthy


def test_c3_nor_does_one_that_fails_as_answers_go_out(
    lab: Lab, kind: str, living: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = lab.start(made(kind, lambda items: items))
    assert asyncio.run_coroutine_threadsafe(r.run_async(1), living).result(30) == 1
    looks: list[int] = []
    room = r._desk.room

    class NoRoom:
        def __getattr__(self, name: str) -> Any:
            if name == "waiting":
                looks.append(1)
                if len(looks) == 2:  # the first was the request's own, and the second is for those whose turn it is now
                    raise MemoryError("no memory")
            return getattr(room, name)

    monkeypatch.setattr(r._desk, "room", NoRoom())
    assert r.submit(2).result(30) == 2
    assert asyncio.run_coroutine_threadsafe(r.run_async(3), living).result(30) == 3 and len(looks) > 2 and r.healthy


# D4: the row of the third of eight cannot be encoded for its client.

MESSAGES = {"non_finite_output": "NaN or infinity", "bad_output": "no vector", None: "see the server's log"}


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize(
    ("check_finite", "third", "code"),
    [
        *((True, row, "non_finite_output") for row in ([1.0, np.nan], [-np.inf, 1.0], np.array([1.0, np.inf]))),
        *((False, row, "non_finite_output") for row in ([1.0, np.nan], [np.inf, 1.0], [1.0, 1e300], [1.0, None])),
        *((check, row, "bad_output") for check in (True, False) for row in (None, 1.0, [[1.0, 0.5]])),
        *((check, row, None) for check in (True, False) for row in ("text", {"a": 1}, [1.0, [2.0]], [1j, 1.0])),
    ],
    ids=repr,
)
def test_d4_a_row_that_cannot_be_encoded(
    check_finite: bool, third: Any, code: str | None, encoding: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Eight clients share a batch: one gets an error that says of what kind it is, and that is in the log."""
    from test_server import running

    def post(*items: str) -> Any:
        return server.post({"input": items, "encoding_format": encoding})[:2]

    model: Any = relay.testing.FakeModel(lambda item: third if item == "item 3" else [float(item[-1]), 0.5])
    model.check_finite = check_finite
    with running(model) as server, ThreadPoolExecutor(8) as clients:
        with relay.testing.paused(server.relay, model, "plug 0"):
            asked = [clients.submit(post, f"item {n}") for n in range(8)]
            while server.relay.snapshot().queued < 8:
                os.sched_yield()
        assert [each.result(30)[0] for each in asked] == [200, 200, 200, 500, 200, 200, 200, 200]
        assert [len(batch) for batch in model.batches] == [1, 8]
        for n in (0, 1, 2, 4, 5, 6, 7):
            row = asked[n].result()[1]["data"][0]["embedding"]
            assert (row if encoding == "float" else [*np.frombuffer(base64.b64decode(row), "<f4")]) == [n, 0.5]
        error = asked[3].result()[1]["error"]
        assert (error["type"], error["code"]) == ("server_error", code)
        assert MESSAGES[code] in error["message"]
        assert [bool(record.exc_info) for record in caplog.records if record.name == "relay.server"] == [True]
        status, body = post("item 2", "item 3")  # the inputs of one request have one answer, so they fail together
        assert status == 500 and body["error"]["code"] == code
        assert post("item 4")[0] == 200 and server.relay.healthy
        s = server.relay.snapshot()
        seen = 2 if check_finite and code == "non_finite_output" else 0
        assert (s.failed_batches, s.failed, s.non_finite) == (0, seen, seen), "the rest is not the model's failure"
