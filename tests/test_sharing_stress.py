"""One leader and fifty followers, from threads and from tasks of event loops, who cancel when they like.

One run of a key at a time; each deadline is its own; an error reaches all, each with a copy of its own, and is not
kept. Everybody draws from the test's seed. The interpreter is made to switch threads very often.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from relay.errors import DeadlineExceeded, RequestCancelled

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

FOLLOWERS = 50
CACHES = pytest.mark.parametrize("cache_bytes", [0, 1 << 20], ids=["merging", "cache"])


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


class Once:
    """A model that says so if it runs a key while it runs it already, and fails for some."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.under_way: set[str] = set()
        self.runs: dict[str, int] = {}
        self.twice: list[str] = []
        self.step = threading.Event()  # never set

    def __call__(self, items: list[str]) -> list[Any]:
        with self.lock:
            self.twice += [item for item in items if item in self.under_way or items.count(item) > 1]
            self.under_way.update(items)
            for item in items:
                self.runs[item] = self.runs.get(item, 0) + 1
        self.step.wait(0.0005)
        with self.lock:
            self.under_way.difference_update(items)
        return [LookupError(item) if item.startswith("bad") else [item] for item in items]


class Round:
    """All ask for one key at once, in a few threads and on two loops."""

    def __init__(self, lab: Lab, r: Any, key: str, seed: str, cancels: float) -> None:
        self.lab, self.relay, self.key, self.seed, self.cancels = lab, r, key, seed, cancels
        self.barrier = threading.Barrier(6)
        self.endings: list[Any] = []

    def in_thread(self, me: int) -> None:
        rng = random.Random(f"{self.seed} {me}")
        self.barrier.wait(30)
        tickets = []
        for _ in range(9):
            tickets.append(self.relay.submit(self.key))
            if rng.random() < self.cancels:
                rng.choice(tickets).cancel()
        for ticket in tickets:
            error = ticket.exception(30)
            self.endings.append(ticket.result() if error is None else error)

    def on_loop(self, me: int) -> None:
        self.barrier.wait(30)
        asyncio.run(self.tasks(random.Random(f"{self.seed} {me}")))

    async def tasks(self, rng: random.Random) -> None:
        async def ask() -> None:
            try:
                self.endings.append(await self.relay.run_async(self.key))
            except Exception as error:
                self.endings.append(error)
            except asyncio.CancelledError:
                self.endings.append(RequestCancelled("with its task"))

        tasks = []
        for _ in range(8):
            tasks.append(asyncio.ensure_future(ask()))
            if rng.random() < 0.5:
                await asyncio.sleep(0)
            if rng.random() < self.cancels:
                rng.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = sum(task.cancelled() for task in tasks)  # before their first step
        self.endings += [RequestCancelled("before it asked")] * cancelled

    def go(self) -> None:
        leader = self.relay.submit(self.key)
        calls = [self.lab.call(self.in_thread, me) for me in range(4)] + [
            self.lab.call(self.on_loop, me) for me in range(4, 6)
        ]
        for call in calls:
            call.result()
        error = leader.exception(30)
        self.endings.append(leader.result() if error is None else error)
        assert len(self.endings) == 4 * 9 + 2 * 8 + 1
        answers = [each for each in self.endings if isinstance(each, list)]
        errors = [each for each in self.endings if isinstance(each, LookupError)]
        assert all(isinstance(each, list | LookupError | RequestCancelled) for each in self.endings), self.endings
        assert all(answer == [self.key] for answer in answers)
        assert not (answers if self.key.startswith("bad") else errors)
        assert len({id(each) for each in answers + errors}) == len(answers + errors), "each has his own"


def race(lab: Lab, seed: int, rounds: int, cache_bytes: int) -> None:
    model = Once()
    r = lab.start(model, merge=True, cache_bytes=cache_bytes)
    for i in range(rounds):
        Round(lab, r, f"{'bad' if i % 3 == 2 else 'key'} {i}", f"{seed} {i}", (0.0, 0.3, 0.9)[i % 3]).go()
        r.check()
    assert r.drain(30) == 0
    told = r.snapshot().sharing
    print(f"{rounds} rounds, {told}, {sum(model.runs.values())} runs")
    if cache_bytes:
        # With nobody cancelled and no error, nobody is run again: an answer is kept before its run is closed.
        assert all(model.runs[f"key {i}"] == 1 for i in range(0, rounds, 3)), model.runs
    assert told.misses >= sum(model.runs.values()), "one that is cancelled in time is not run"
    # A run that nobody wants any more is not joined, and the next who comes has another; else there is one at a time.
    assert not [key for key in model.twice if int(key.split()[1]) % 3 == 0], model.twice
    lab.idle(r)


@CACHES
def test_followers_who_cancel(lab: Lab, seed: int, cache_bytes: int) -> None:
    race(lab, seed, 60, cache_bytes)


@pytest.mark.long
@CACHES
def test_followers_who_cancel_long(lab: Lab, seed: int, cache_bytes: int) -> None:
    race(lab, seed, 600, cache_bytes)


@CACHES
def test_each_deadline_is_its_own(lab: Lab, rng: random.Random, cache_bytes: int) -> None:
    clock, model = lab.clock(), lab.model(lambda item: [item])
    r = lab.start(model, merge=True, cache_bytes=cache_bytes, clock=clock)
    with lab.testing.paused(r, model, "plug"):
        asked = []
        for _ in range(FOLLOWERS + 1):
            deadline = rng.choice([None, 1.0, 2.0, 3.0, 4.0])
            asked.append((deadline, r.submit("x", deadline=deadline)))
        asked.append((None, r.submit("x")))
        cancelled = {index for index in range(FOLLOWERS) if rng.random() < 0.2}
        for index in cancelled:
            assert asked[index][1].cancel()
        for now in (1, 2, 3):
            clock.advance(1.0)
            late = [
                ticket
                for i, (deadline, ticket) in enumerate(asked)
                if i not in cancelled and deadline is not None and deadline <= now
            ]
            for ticket in late:
                assert isinstance(ticket.exception(30), DeadlineExceeded)
            assert sum(ticket.done() for _, ticket in asked) == len(late) + len(cancelled)
    for index, (deadline, ticket) in enumerate(asked):
        if index in cancelled:
            assert isinstance(ticket.exception(30), RequestCancelled)
        elif deadline is None or deadline > 3:
            assert ticket.result(30) == ["x"]
    assert model.batches == [["plug"], ["x"]]
    lab.idle(r)


def test_a_deadline_of_all_drops_the_work(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model()
    r = lab.start(model, merge=True, clock=clock)
    with lab.testing.paused(r, model, "plug"):
        tickets = [r.submit("x", deadline=1.0 + i % 2) for i in range(FOLLOWERS)]
        clock.advance(1.0)
        assert all(isinstance(ticket.exception(30), DeadlineExceeded) for ticket in tickets[::2])
        assert not any(ticket.done() for ticket in tickets[1::2])
        clock.advance(1.0)
        assert all(isinstance(ticket.exception(30), DeadlineExceeded) for ticket in tickets[1::2])
        lab.wait_until(lambda: r.snapshot().admitted == 1)
    assert model.batches == [["plug"]]
    lab.idle(r)


@CACHES
def test_an_error_reaches_all_and_is_not_kept(lab: Lab, cache_bytes: int) -> None:
    model = lab.model(lambda item: [item])
    r = lab.start(model, merge=True, cache_bytes=cache_bytes)
    with lab.testing.paused(r, model, "plug"):
        tickets = [r.submit("x") for _ in range(FOLLOWERS + 1)]
        model.release()
        lab.wait_until(lambda: r.snapshot().batches == 1)
        model.fail_next(LookupError("no"))
    depths = []
    for ticket in tickets:
        with pytest.raises(LookupError, match="no") as found:
            ticket.result(30)
        depths.append(len(found.traceback))
    assert len(set(depths)) == 1, "one's traceback grows with the next one's"
    assert len({id(ticket.exception()) for ticket in tickets}) == FOLLOWERS + 1
    assert r("x") == ["x"] and r.snapshot().sharing.misses == 3
    lab.idle(r)
