"""Lanes of plain models: several at once, of different speed, woken once for each reason, and their end."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

MS = 1_000_000


def teach(r: Any, lane: int, base_ns: int, each_ns: int) -> None:
    """Have a lane's cost model believe in so much."""
    cost = r._dispatcher.lanes[lane].station.cost
    for n in (1, 2, 4, 8, 1, 2, 4, 8) * 4:
        cost.observe(n, 1, base_ns + n * each_ns)
    assert cost.learned


def asleep(r: Any, clock: Any) -> None:
    """Start the two lanes, and wait until both sleep."""
    r._dispatcher._start()
    clock.wait_for_sleepers(2)


def names(before: set[threading.Thread]) -> list[str]:
    return sorted(thread.name for thread in set(threading.enumerate()) - before)


# Several lanes.


def test_names_of_threads(lab: Lab) -> None:
    before = set(threading.enumerate())
    r = lab.start(lab.model(), name="one")
    assert not names(before)
    assert r(1) == 1
    assert names(before) == ["one-lane"]
    many = lab.start(lab.model(), name="many", lanes=3)
    assert many(1) == 1
    assert names(before) == ["many-lane-0", "many-lane-1", "many-lane-2", "one-lane"]
    assert r.healthy and many.healthy


def test_so_many_batches_at_once(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, lanes=3, max_batch_size=2)
    tickets = [r.submit(i) for i in range(2)]
    lab.wait_until(lambda: sum(map(len, model.batches)) == 2)
    tickets += [r.submit(i) for i in range(2, 12)]
    lab.wait_until(lambda: len(model._running) == 3)
    assert len(model.batches) == 3 and r.snapshot().lanes == 3
    model.free()
    assert [ticket.result(30) for ticket in tickets] == list(range(12))


def test_a_list_of_models(lab: Lab) -> None:
    first, second = lab.model(lambda x: ("first", x), held=True), lab.model(lambda x: ("second", x), held=True)
    r = lab.start([first, second], max_batch_size=1)
    tickets = [r.submit(i) for i in range(2)]
    first.wait_until_running()
    second.wait_until_running()
    first.free()
    second.free()
    assert {ticket.result(30)[0] for ticket in tickets} == {"first", "second"}


def test_a_model_stands_in_for_a_failing_one(lab: Lab) -> None:
    """Lanes of one list learn of faults by themselves."""

    def broken(items: list[Any]) -> list[Any]:
        raise OSError("gone")

    r = lab.start([broken, lab.model()], max_batch_size=1)
    ends = []
    for i in range(20):
        try:
            ends.append(r(i))
        except OSError:
            ends.append(None)
    assert all(end in (i, None) for i, end in enumerate(ends))


# A slower lane leaves what a faster one would finish sooner.


def test_a_slower_lane_leaves_work_to_a_busy_faster_one(lab: Lab) -> None:
    clock = lab.clock()
    fast, slow = lab.model(lambda x: ("fast", x), held=True), lab.model(lambda x: ("slow", x), held=True)
    r = lab.start([fast, slow], max_batch_size=8, clock=clock)
    teach(r, 0, 10 * MS, 0)
    teach(r, 1, 100 * MS, 0)
    asleep(r, clock)
    tickets = [r.submit("a")]
    fast.wait_until_running()
    tickets.append(r.submit("b"))  # in 10 ms the fast one is free, and done 10 ms later
    lab.wait_until(lambda: any(until < 1 << 61 for until, _, _ in clock._sleepers))  # the slow one has looked
    assert not slow.batches
    fast.free()
    assert [ticket.result(30)[0] for ticket in tickets] == ["fast", "fast"]
    assert not slow.batches


def test_a_slower_lane_takes_what_the_faster_one_does_not_get_to(lab: Lab) -> None:
    """The batch takes longer than expected: who has waited for it waits no more."""
    clock = lab.clock()
    fast, slow = lab.model(lambda x: ("fast", x), held=True), lab.model(lambda x: ("slow", x))
    r = lab.start([fast, slow], max_batch_size=8, clock=clock)
    teach(r, 0, 10 * MS, 0)
    teach(r, 1, 100 * MS, 0)
    asleep(r, clock)
    first = r.submit("a")
    fast.wait_until_running()
    second = r.submit("b")
    lab.wait_until(lambda: any(until < 1 << 61 for until, _, _ in clock._sleepers))
    clock.advance(0.02)
    assert second.result(30) == ("slow", "b")
    fast.free()
    assert first.result(30) == ("fast", "a")


def test_a_slower_lane_helps_where_it_is_sooner(lab: Lab) -> None:
    clock = lab.clock()
    fast, slow = lab.model(lambda x: ("fast", x), held=True), lab.model(lambda x: ("slow", x))
    r = lab.start([fast, slow], max_batch_size=8, clock=clock)
    teach(r, 0, 60 * MS, 0)
    teach(r, 1, 100 * MS, 0)
    asleep(r, clock)
    first = r.submit("a")
    fast.wait_until_running()
    assert r.submit("b").result(30) == ("slow", "b")  # 100 ms from now; the fast one needs 60 and 60 more
    fast.free()
    assert first.result(30) == ("fast", "a")


@pytest.mark.parametrize("order", [0, 1], ids=["fast first", "slow first"])
def test_the_faster_of_two_that_sleep(lab: Lab, order: int) -> None:
    """In whatever order they are listed."""
    models = [lab.model(lambda x: ("fast", x)), lab.model(lambda x: ("slow", x))]
    if order:
        models.reverse()
    clock = lab.clock()
    r = lab.start(models, max_batch_size=8, clock=clock)
    teach(r, order, 10 * MS, 0)
    teach(r, 1 - order, 100 * MS, 0)
    asleep(r, clock)
    for i in range(10):
        clock.wait_for_sleepers(2)
        assert r.submit(i).result(30) == ("fast", i)


# Wake-ups.


def test_hammering(lab: Lab) -> None:
    """Eight threads, three lanes: nobody is left asleep while there is work, and no answer is another's."""
    r = lab.start(lambda items: [(item,) for item in items], lanes=3, max_batch_size=4)
    each = 2_500

    def client(number: int) -> None:
        for start in range(0, each, 50):
            tickets = [r.submit((number, i)) for i in range(start, start + 50)]
            for i, ticket in enumerate(tickets, start):
                assert ticket.result(30) == ((number, i),)

    calls = [lab.call(client, number) for number in range(8)]
    for call in calls:
        call.result()
    assert r.snapshot().items == 8 * each
    lab.idle(r)


def test_one_at_a_time(lab: Lab) -> None:
    """Each wakes a lane that has just gone to sleep, or is about to."""
    r = lab.start(lambda items: items, lanes=2)
    for i in range(2_000):
        assert r.submit(i).result(30) == i
    lab.idle(r)


def test_a_clock_and_a_request_wake_it_at_once(lab: Lab, rng: random.Random) -> None:
    """However the time's end and the wake-up meet, the lane goes on, and the submit is not disturbed."""
    clock = lab.clock()
    r = lab.start(lab.model(), linger=0.01, max_batch_size=2, clock=clock)
    for i in range(300):
        first = r.submit(i)
        clock.wait_for_sleepers(1)
        barrier = threading.Barrier(2)

        def advance(barrier: threading.Barrier = barrier, spin: int = rng.randrange(60)) -> None:
            barrier.wait(30)
            for _ in range(spin):
                pass
            clock.advance(0.02)

        call = lab.call(advance)
        barrier.wait(30)
        for _ in range(rng.randrange(60)):
            pass
        second = r.submit(-i)
        call.result()
        assert first.result(30) == i
        while not second.done():
            clock.advance(0.02)
        assert second.result(30) == -i


def test_idle_lanes_are_parked_without_a_time(lab: Lab) -> None:
    """Row of the engine: an idle relay uses no processor. Nobody sleeps until a time."""
    clock = lab.clock()
    r = lab.start(lab.model(), lanes=3, clock=clock)
    assert r.submit_many(range(200)).result(30) == list(range(200))
    lab.wait_until(lambda: len(clock._sleepers) == 3)
    assert all(until == 1 << 62 for until, _, _ in clock._sleepers)


# The end.


def test_close_while_parked(lab: Lab) -> None:
    before = set(threading.enumerate())
    r = lab.start(lab.model(), lanes=3)
    assert r(1) == 1
    r.close()
    r.close()
    assert not names(before)


def test_close_before_the_first_request(lab: Lab) -> None:
    before = set(threading.enumerate())
    r = lab.start(lab.model(), lanes=3)
    r.close()
    assert not names(before)
    with pytest.raises(lab.Closed):
        r.submit(1)


def test_close_while_running(lab: Lab) -> None:
    before = set(threading.enumerate())
    model = lab.model(held=True)
    r = lab.start(model, lanes=2, max_batch_size=1)
    tickets = [r.submit(i) for i in range(5)]
    lab.wait_until(lambda: len(model._running) == 2)
    call = lab.call(r.close)
    for ticket in tickets[2:]:
        with pytest.raises(lab.Closed):
            ticket.result(30)
    assert not tickets[0].done() and not tickets[1].done()
    model.free()
    call.result()
    assert [ticket.result(0) for ticket in tickets[:2]] == [0, 1]
    assert not names(before)


def test_close_at_any_moment(lab: Lab, rng: random.Random) -> None:
    """Each request ends in an answer or in Closed, and no thread is left."""
    before = set(threading.enumerate())
    for n in range(60):
        r = lab.start(lambda items: items, lanes=1 + n % 3, max_batch_size=2, linger=0.0005 * (n % 2))
        ends: list[Any] = []

        def client(r: Any = r, ends: list[Any] = ends) -> None:
            for i in range(100):
                try:
                    ends.append(r.submit(i))
                except lab.Closed:
                    return

        calls = [lab.call(client) for _ in range(3)]
        for _ in range(rng.randrange(3_000)):
            pass
        r.close()
        for call in calls:
            call.result()
        for ticket in ends:
            assert ticket.done() or ticket.result(30) is not None
            assert ticket.exception(0) is None or isinstance(ticket.exception(0), lab.Closed)
        assert r.snapshot().open == 0
        # One that was being started in that moment ends by itself.
        lab.wait_until(lambda: names(before) == sorted(call.thread.name for call in calls if call.thread.is_alive()))  # noqa: B023


def test_b4_all_who_wait_are_sent_away(lab: Lab, loops: Callable[[], Any]) -> None:
    """Row B4: a full queue; threads in r(x) and map, tasks in run_async and map_async; close()."""
    import asyncio

    before = set(threading.enumerate())
    model = lab.model(held=True)
    r = lab.start(model, max_queue=4, max_batch_size=1)
    queued = lab.fill(r)
    model.wait_until_running()
    seen: list[BaseException] = []

    async def each_async() -> None:
        async for _ in r.map_async(range(3)):
            pass

    async def main() -> None:
        ends = await asyncio.gather(r.run_async(1), r.run_async(2), each_async(), each_async(), return_exceptions=True)
        seen.extend(end for end in ends if end is not None)

    waiting = [lab.call(r, 1), lab.call(r, 2)]
    waiting += [lab.call(lambda n=n: list(r.map(range(n)))) for n in (1, 3)]
    tasks = lab.call(lab.run, loops, main())
    lab.in_line(r, 8)
    closing = lab.call(r.close)
    for call in waiting:
        with pytest.raises(lab.Closed):
            call.result()
    tasks.result()
    assert [type(end) for end in seen] == [lab.Closed] * 4
    model.free()
    closing.result()
    assert sum(ticket.exception(0) is None for ticket in queued) == 1
    assert not names(before)


# What can go wrong.


class Odd(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("v"), Odd("o"), MemoryError("m"), StopIteration("s"), SystemExit("e"), KeyboardInterrupt("k"),
        GeneratorExit("g"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_d3_it_raises_once(lab: Lab, error: BaseException) -> None:
    raising = [error]

    def model(items: list[Any]) -> list[Any]:
        if raising:
            raise raising.pop()
        return items

    r = lab.start(model, isolate=False)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        r(1)
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        assert type(caught.value) is type(error)
    else:
        assert type(caught.value) is lab.ModelError and caught.value.__cause__ is error
    assert r(2) == 2 and r.healthy
    lab.idle(r)


def test_d3_cancelled_error(lab: Lab) -> None:
    import asyncio

    raising = [asyncio.CancelledError()]

    def model(items: list[Any]) -> list[Any]:
        if raising:
            raise raising.pop()
        return items

    r = lab.start(model, isolate=False)
    with pytest.raises(lab.ModelError):
        r(1)
    assert r(2) == 2
    lab.idle(r)


def test_a_lane_that_dies_is_seen(lab: Lab) -> None:
    r = lab.start(lab.model())
    assert r(1) == 1 and r.healthy
    lane = r._dispatcher.lanes[0]
    dead = threading.Thread(target=int)
    dead.start()
    dead.join()
    thread, lane.thread = lane.thread, dead
    assert not r.healthy
    lane.thread = thread
    assert r.healthy


FORKS = """
import os, relay
pids = []
def model(items):
    if items == ["fork"]:
        pid = os.fork()
        if pid == 0:
            return items  # the child's copy of the lane ends by itself, and the process with it
        pids.append(pid)
    return items
pool = relay.TokenPool(1)
for options in ({}, {"pool": pool}):
    with relay.Relay(model, **options) as r:
        assert r("before") == "before"
        assert r("fork") == "fork"
        assert r("after") == "after"
        assert os.waitpid(pids.pop(), 0)[1] == 0
assert pool.snapshot().held == 0
print("the parent goes on")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_model_that_forks(lab: Lab) -> None:
    """The child ends without answering; the parent's relay goes on. In a process of its own: what other tests have
    loaded into this one may not outlive the end of a forked thread."""
    environ = {**os.environ, "RELAY_BACKEND": lab.backend}
    done = subprocess.run([sys.executable, "-c", FORKS], env=environ, capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.returncode) == ("the parent goes on\n", 0), done.stderr
