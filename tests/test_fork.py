"""After a fork the child starts from a fresh state, whatever the parent's threads were doing; the parent goes on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from fork_kit import held_elsewhere, in_child

from relay.errors import Closed, StaleToken

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # that it is risky is what is tested here
]

SLOT_BITS = 22


def double(items: list[Any]) -> list[Any]:
    return [item * 2 for item in items]


def texts(batch: Any) -> list[Any]:
    return [item * 2 for item in batch.items]


class Letters:
    """A tokenizer without locks: an id a character."""

    max_length, pad_id, has_segments, fingerprint, vocab_size = 64, 0, False, "letters", 0x110000

    def check(self, item: Any) -> None:
        pass

    def reserve(self, item: str) -> int:
        return len(item)

    def encode(self, items: Sequence[str]) -> list[Any]:
        return [([ord(char) for char in item], -1) for item in items]


class Gate:
    """A model whose calls wait for a lock that the test holds."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.lock.acquire()
        self.batches: list[list[Any]] = []

    def __call__(self, items: list[Any]) -> list[Any]:
        self.batches.append(items)
        self.entered.release()
        with self.lock:
            return double(items)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    if gate.lock.locked():
        gate.lock.release()


def all_locks(r: Any) -> list[Any]:
    """Whatever a thread of the parent may hold."""
    desk = r._desk
    parts = [*r._dispatcher.lanes, desk, desk.queue, desk.room, desk.counts, desk.deadlines, desk.deadlines.alarm]
    if desk._preparing is not None:
        parts.append(desk._preparing.helpers)
    if hasattr(desk.queue, "_lock"):
        parts.append(desk.queue.arena.word)
    names = ("_lock", "_starting", "_timing", "_start")
    values = [getattr(part, name, None) for part in parts for name in names]
    return [value for value in values if hasattr(value, "acquire")]


def use(r: Any, item: Any = "ab") -> None:
    """All a child may do with a relay."""
    empty = r.snapshot()
    settings = ("name", "backend", "capacity", "limit", "lanes")
    told = {name: getattr(empty, name) for name in empty.__slots__ if name not in settings}
    assert not any(told.pop("sharing").__getstate__())
    assert not {name: value for name, value in told.items() if getattr(value, "count", value)}
    assert empty.capacity == r.limits.max_queue and r.ready and r.healthy
    assert len(threading.enumerate()) == 1
    r.check()
    late = r.submit(item, deadline=60)
    assert r(item) == late.result(10) == item * 2
    assert r.submit_many([item, item]).result(10) == [item * 2] * 2
    assert list(r.map([item] * 3)) == [item * 2] * 3
    assert asyncio.run(r.run_async(item)) == item * 2
    end(r, item)
    assert r.snapshot().failed == 0 and r.snapshot().items > 0


def end(r: Any, item: Any = "ab") -> None:
    r.close()
    assert not r.ready and not r.healthy
    with pytest.raises(Closed):
        r.submit(item)
    r.check()


# The row A11: a parent at work, many children.


def a11(lab: Lab, rounds: int) -> None:
    plain, merged, tokenised = relays = [
        lab.start(double),
        lab.start(double, merge=True, name="merged"),
        lab.start(texts, tokenizer=Letters(), name="tokenised", limits=lab.Limits(helper_threads=2)),
    ]
    stop = threading.Event()
    answers = [0] * len(relays)

    def work() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            for index, r in enumerate(relays):
                tickets = [r.submit(str(turn % 3), deadline=60 if turn % 2 else None) for _ in range(3)]
                if turn % 4 == 0:
                    tickets.pop().cancel()
                answers[index] += sum(ticket.result(30) == str(turn % 3) * 2 for ticket in tickets)

    worker = lab.run_thread(work)
    lab.wait_until(lambda: all(answers))
    try:
        for turn in range(rounds):
            in_child(use, relays[turn % len(relays)])
    finally:
        stop.set()
        worker.join(30)
    for r, answered in zip(relays, answers, strict=True):
        snapshot = r.snapshot()
        assert snapshot.items + snapshot.merged + snapshot.cancelled >= answered > 0
        assert (snapshot.failed, snapshot.expired, snapshot.refused) == (0, 0, 0)
    lab.idle(plain, merged, tokenised)


def test_children_of_a_busy_parent(lab: Lab) -> None:
    a11(lab, 40)


@pytest.mark.long
def test_children_of_a_busy_parent_200(lab: Lab) -> None:
    a11(lab, 200)


def pool_in_child(pool: Any, capacity: int) -> None:
    empty = pool.snapshot()
    assert (empty.capacity, empty.held, empty.waiting, empty.granted) == (capacity, 0, 0, 0)
    tokens = [pool.acquire(0, timeout=10) for _ in range(capacity)]
    assert pool.try_acquire() is None and pool.snapshot().held == capacity
    for token in tokens:
        token.release()
    pool.check()
    pool.close()
    with pytest.raises(Closed):
        pool.acquire(0)


def test_children_of_a_busy_pool(lab: Lab) -> None:
    pool = lab.TokenPool(2)
    stop = threading.Event()
    turns = [0]

    def work() -> None:
        while not stop.is_set():
            with pool.acquire(0, timeout=30):
                turns[0] += 1

    worker = lab.run_thread(work)
    lab.wait_until(lambda: turns[0] > 0)
    kept = pool.acquire(0)

    def child() -> None:
        with pytest.raises(StaleToken):
            kept.release()
        pool_in_child(pool, 2)

    try:
        for _ in range(40):
            in_child(child)
    finally:
        stop.set()
        worker.join(30)
    kept.release()
    assert turns[0] == pool.snapshot().granted - 1 > 0
    lab.testing.assert_idle(pool)
    pool.close()


# What the child finds.


@pytest.mark.parametrize("kind", ["plain", "merged", "tokenised"])
def test_a_lock_that_another_thread_holds(lab: Lab, kind: str) -> None:
    options: dict[str, Any] = {"merged": {"merge": True}, "tokenised": {"tokenizer": Letters()}}.get(kind, {})
    r = lab.start(texts if kind == "tokenised" else double, **options)
    r.submit("ab", deadline=60).result(30)  # all threads run
    locks = all_locks(r)
    assert len(locks) == 5 + 3 * (lab.backend == "pure") + (kind == "tokenised")
    with held_elsewhere(*locks):
        in_child(use, r)
    lab.idle(r)


def test_tickets_of_the_parent_end_in_the_child(lab: Lab, gate: Gate) -> None:
    r = lab.start(gate, max_batch_size=1, merge=True)
    called: list[Any] = []
    done = lab.start(double).submit("done")
    assert done.result(30) == "donedone"
    running = r.submit("running")
    assert gate.entered.acquire(timeout=30)
    queued, follower = r.submit("queued", deadline=60), r.submit("queued")
    group = r.submit_many(["x", "y"])
    quiet = r.submit_many(["x", "z"], return_exceptions=True)
    left = [running, queued, follower, group]
    for ticket in left:
        ticket.add_done_callback(called.append)

    def child() -> None:
        for ticket in left:
            assert ticket.done() and not ticket.cancel() and ticket.timing is None
            with pytest.raises(Closed, match="has forked since the request was submitted, and only the parent") as info:
                ticket.result()
            assert info.value.reason == "forked" and ticket.exception() is info.value

            async def main(ticket: Any = ticket) -> None:
                await ticket

            with pytest.raises(Closed, match="has forked"):
                asyncio.run(main())
        assert len({id(ticket.exception()) for ticket in (running, queued, follower)}) == 3
        assert [error.reason for error in quiet.result()] == ["forked"] * 2
        assert done.result() == "donedone" and called == []
        gate.lock.release()
        again = r.submit("queued")
        assert again.result(10) == "queued" * 2
        assert again._handle >> SLOT_BITS > max(ticket._handle >> SLOT_BITS for ticket in (running, queued))
        late: list[Any] = []
        queued.add_done_callback(late.append)
        assert late == [queued]
        assert gate.batches == [["running"], ["queued"]]  # what was queued in the parent is not run here
        r.close()

    in_child(child)
    assert r.snapshot().open == 9 and not called
    gate.lock.release()
    assert running.result(30) == "running" * 2 and queued.result(30) == follower.result(30) == "queued" * 2
    assert group.result(30) == ["xx", "yy"] and quiet.result(30) == ["xx", "zz"]
    lab.wait_until(lambda: len(called) == 4)
    lab.idle(r)


@pytest.mark.parametrize("lab", ["pure"], indirect=True)  # on the native side it is one step
def test_one_that_a_lost_thread_was_about_to_end(lab: Lab, gate: Gate) -> None:
    """A thread may be switched away between the two steps of ending a ticket."""
    r = lab.start(gate)
    first, second = r.submit("first"), r.submit("second")
    for ticket in (first, second):
        r._desk.open.remove(ticket)

    def child() -> None:
        assert not first.done()
        with pytest.raises(Closed, match="has forked"):
            first.result()
        with pytest.raises(Closed, match="has forked"):
            asyncio.run(asyncio.wait_for(second, 10))

    in_child(child)
    r._desk.open.update((first, second))
    gate.lock.release()
    assert first.result(30) == "first" * 2 and second.result(30) == "second" * 2


def test_one_on_its_way_to_another_slot(lab: Lab) -> None:
    r = lab.start(double)
    ticket = r.submit("x")
    ticket.result(30)
    moving = r._intake.ticket("moving")
    r._desk._between.update((moving, ticket))

    def child() -> None:
        with pytest.raises(Closed, match="has forked"):
            moving.result(10)
        assert ticket.result() == "xx"

    in_child(child)
    r._desk._between.clear()


def test_generations_go_on_from_child_to_grandchild(lab: Lab) -> None:
    r = lab.start(double, max_queue=4)
    for _ in range(10):
        r("x")
    mine = r.submit("x")
    mine.result(30)

    def child(above: int) -> None:
        for _ in range(5):
            ticket = r.submit("x")
            assert ticket.result(10) == "xx" and ticket._handle >> SLOT_BITS > above
            above = ticket._handle >> SLOT_BITS

    def parent_of_another() -> None:
        child(mine._handle >> SLOT_BITS)
        last = r.submit("x")
        last.result(10)
        in_child(child, last._handle >> SLOT_BITS)
        r.close()

    in_child(parent_of_another)
    lab.idle(r)


def test_closed_stays_closed_and_draining_stays_so(lab: Lab, gate: Gate) -> None:
    closed, draining = lab.start(double), lab.start(gate)
    closed.close()
    ticket = draining.submit("x")
    assert draining.drain(0) == 1

    def child() -> None:
        for r in (closed, draining):
            assert not r.ready and r.healthy == (r is draining) and len(r._desk.open) == 0
            for ask in (r.submit, r):
                with pytest.raises(Closed, match="takes no more"):
                    ask("x")
            assert r.drain(10) == 0
            end(r)

    with held_elsewhere(*all_locks(closed), *all_locks(draining)):
        in_child(child)
    gate.lock.release()
    assert ticket.result(30) == "xx"


def test_a_batched_function(lab: Lab) -> None:
    function = lab.batched(double)
    assert function("x") == "xx"

    def child() -> None:
        assert function("y") == "yy" and function.submit("z").result(10) == "zz"
        assert function.submit_many(["a", "b"]).result(10) == ["aa", "bb"]
        function.relay.close()

    in_child(child)
    assert function("x") == "xx"
    function.relay.close()


def test_a_relay_that_was_dropped(lab: Lab, gate: Gate) -> None:
    """Its requests are still under way in the parent; in the child there is nobody to answer them."""
    ticket = lab.Relay(gate).submit("x")
    dispatcher = weakref.ref(ticket._desk._start.__self__)
    assert gate.entered.acquire(timeout=30)

    def child() -> None:
        with pytest.raises(Closed, match="has forked"):
            ticket.result()
        assert dispatcher() not in lab.package.dispatcher._living

    in_child(child)
    gate.lock.release()
    assert ticket.result(30) == "xx"


def test_a_relay_dropped_in_the_child(lab: Lab, gate: Gate) -> None:
    """Neither the old part nor the new one waits for a thread that is gone."""
    relays = [lab.Relay(gate)]
    ticket = relays[0].submit("x")
    assert gate.entered.acquire(timeout=30)

    def child() -> None:
        relays[0].snapshot()
        relays.clear()
        with pytest.raises(Closed, match="has forked"):
            ticket.result()

    with held_elsewhere(*all_locks(relays[0])):
        in_child(child)
    gate.lock.release()
    assert ticket.result(30) == "xx"
    relays.pop().close()


def test_an_iterator_that_was_begun(lab: Lab) -> None:
    r = lab.start(double, max_queue=4, max_batch_size=1)
    begun, tolerant = r.map("abcdef"), r.map("abcdef", return_exceptions=True)
    assert next(begun) == next(tolerant) == "aa"

    def child() -> None:
        for iterator in (begun, tolerant):
            with pytest.raises(Closed):
                list(iterator)

    in_child(child)
    assert list(begun) == list(tolerant) == ["bb", "cc", "dd", "ee", "ff"]
    lab.idle(r)


def test_coroutines_that_wait_for_room_are_thrown_away(lab: Lab, gate: Gate) -> None:
    r = lab.start(gate, max_queue=2)
    first = r.submit("first")
    assert gate.entered.acquire(timeout=30)
    r.submit("second")

    async def main() -> None:
        tasks = [asyncio.ensure_future(r.run_async(str(i))) for i in range(3)]
        await asyncio.sleep(0)
        lab.in_line(r, 3)
        coroutines = [task.get_coro() for task in tasks]

        def child() -> None:
            assert r.snapshot().waiting == 0
            for coroutine in coroutines:
                coroutine.close()
            gate.lock.release()
            use(r)

        with held_elsewhere(*all_locks(r)):
            in_child(child)
        gate.lock.release()
        assert await asyncio.gather(*tasks) == ["00", "11", "22"]

    asyncio.run(main())
    assert first.result(30) == "first" * 2
    lab.idle(r)


# How a child may end.


EXIT = """
import os, signal, sys, threading, relay
gate = threading.Lock()
gate.acquire()
entered = threading.Semaphore(0)
def model(items):
    entered.release()
    with gate:
        return items
r, dropped = relay.Relay(model), relay.Relay(model)
tickets = [r.submit(1), dropped.submit(2)]
del dropped
entered.acquire()
entered.acquire()
pid = os.fork()
if pid == 0:
    signal.alarm(10)
    gate.release()
    assert r(3) == 3
    print("child", tickets[1].exception().reason, flush=True)
    sys.exit()
print("parent", os.waitpid(pid, 0)[1], flush=True)
gate.release()
print([ticket.result(10) for ticket in tickets])
"""

FORKING_MODEL = """
import os, threading, relay
submitted = threading.Event()
def model(items):
    submitted.wait()
    if items == [1]:
        pid = os.fork()
        if pid:
            print("child ended with", os.waitpid(pid, 0)[1], flush=True)
    print(items, flush=True)
    return items
r = relay.Relay(model, max_batch_size=1)
tickets = [r.submit(i) for i in (1, 2, 3)]
submitted.set()
print([ticket.result(10) for ticket in tickets])
"""

HOOKS = """
import os
hooks = []
os.register_at_fork = lambda **hook: hooks.extend(hook.values())
def ours():
    return [hook for hook in hooks if str(hook.__module__).startswith("relay")]
import relay, relay.testing
assert ours() == []
relays = [relay.Relay(len) for _ in range(3)]
assert len(ours()) == 1, ours()
"""


@pytest.mark.parametrize("side", ["pure", "native"])
@pytest.mark.parametrize(
    ("script", "said"),
    [
        (EXIT, "child forked\nparent 0\n[1, 2]\n"),
        # Two print the item that forked, only one goes on.
        (FORKING_MODEL, "[1]\nchild ended with 0\n[1]\n[2]\n[3]\n[1, 2, 3]\n"),
        (HOOKS, ""),
    ],
    ids=["through exit", "in a model that forked", "no hook before the first relay"],
)
def test_a_process(side: str, script: str, said: str) -> None:
    environ = {**os.environ, "RELAY_BACKEND": side, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", said)
