"""Eight threads at once on a queue, on permits and on a pool: each request ends once, each token has one owner.

Every thread draws its own mix from the test's seed. The interpreter is made to switch threads as often as it can.
"""

from __future__ import annotations

import contextlib
import importlib.util
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Core

from relay.errors import AcquireTimeout

THREADS = 8
SLOT = 2**22 - 1
OPERATIONS = {"native": 200_000, "pure": 40_000}
FREED, DEFERRED = 1, 2


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def race(work: Callable[[int], None]) -> None:
    """Run `work(number)` on eight threads that start together; raise what the first of them raised."""
    barrier = threading.Barrier(THREADS)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Owners:
    """Who holds each slot: set by whoever is given a token, cleared by it before it gives it back."""

    def __init__(self, slots: int) -> None:
        self.slots: list[int] = [-1] * slots

    def take(self, token: Any, me: int) -> None:
        slot = token.handle & SLOT
        assert self.slots[slot] == -1, f"slot {slot} was given to {me} while {self.slots[slot]} held it"
        self.slots[slot] = me

    def give(self, token: Any, me: int) -> None:
        slot = token.handle & SLOT
        assert self.slots[slot] == me and token.held
        self.slots[slot] = -1


def test_queue(core: Core, seed: int) -> None:
    each = OPERATIONS[core.side] // THREADS
    slots = 24
    woken: list[int] = []
    queue = core.watch(core.queue.RequestQueue(slots, slots * 48, 64, woken.append, overdue_every=4))
    admitted: list[list[int]] = [[] for _ in range(THREADS)]
    ended: list[list[int]] = [[] for _ in range(THREADS)]
    pinned: list[list[tuple[int, int]]] = [[] for _ in range(THREADS)]
    recent = [-1] * 64  # handles that anybody may try to end, many of them stale

    def work(me: int) -> None:
        rng = random.Random(f"{seed} {me}")
        mine = pinned[me]
        serial = me
        for now in range(each):
            act = rng.randrange(16)
            if act < 5:
                serial += THREADS
                rows = rng.random() < 0.6
                by = now + rng.randrange(200) if rng.random() < 0.3 else -1
                claim = act == 0 and queue.promise()
                facts = 1 + rng.randrange(3), rng.randrange(2), 40 if rows else -1, claim, rng.randrange(3), now + 20
                handle = queue.admit(serial, rng.randrange(4), now, by, *facts)
                if handle >= 0:
                    admitted[me].append(serial)
                    recent[rng.randrange(64)] = handle
                    if rows:
                        mine.append((handle, serial))
            elif act < 9 and mine:
                handle, owner = mine.pop(rng.randrange(len(mine)))
                if queue.owner(handle) == owner:
                    queue.write(handle, [owner] * rng.randrange(60))
                queue.ready(handle, now)
            elif act == 9:
                target = rng.choice(recent)
                owner = queue.owner(target)
                if queue.cancel(target) in (FREED, DEFERRED):
                    ended[me].append(owner)
            elif act == 10:
                for handle, owner in queue.due(now):
                    if queue.cancel(handle) in (FREED, DEFERRED):
                        ended[me].append(owner)
            elif act == 11:
                target = rng.choice(recent)
                queue.lift(target, rng.randrange(-3, 3), rng.randrange(3), now)
                queue.set_deadline(target, now + 50, now + rng.randrange(50))
                with contextlib.suppress(ValueError):  # it is bound already
                    queue.bind(rng.randrange(8), target)
                queue.find(rng.randrange(8))
            elif act == 12 and queue.promise():
                queue.forgo()
            elif act == 13 and queue.park(me, rng.randrange(1, 4)) and rng.random() < 0.5:
                assert queue.unpark(me) in (me, -1)
            elif act == 14 and rng.random() < 0.2:
                queue.share(rng.choice(recent))
                handle, owner = queue.displace(rng.randrange(3))
                if handle >= 0:
                    ended[me].append(owner)
            else:
                take(me, now)

    def take(me: int, now: int) -> None:
        handles, owners, late = queue.take(4, 0, now, (1.0, 1.0, 1.0, 0.0) if now % 2 else None, now % 3 * 8)[:3]
        ended[me] += late
        for handle, owner in zip(handles, owners, strict=True):
            row = queue.arena.ids(handle)
            assert row == [owner] * len(row), "a row of somebody else"
            assert queue.owner(handle) == owner
            ended[me].append(owner)
        queue.finish(handles)

    race(work)
    queue.check()
    for handle, _ in [pair for pairs in pinned for pair in pairs]:
        queue.ready(handle, 0)
    while queue.queued:
        take(0, 0)
    queue.check()
    assert len(queue) == 0 and queue.free == slots and queue.owners() == [] and queue.next_ns() is None
    counts = Counter(owner for owners in ended for owner in owners)
    assert set(counts.values()) <= {1}, "ended twice"
    assert sorted(counts) == sorted(owner for owners in admitted for owner in owners), "lost"


class Waiter:
    __slots__ = ("index", "token")

    def __init__(self) -> None:
        self.index = -1
        self.token: Any = None


def test_permits(core: Core, seed: int) -> None:
    each = OPERATIONS[core.side] // THREADS
    largest = 8
    permits = core.watch(
        core.permits.Permits(
            6, ((0, 1), (2, 1)), 12, largest, overdue_every=8, weights={"a": 2}, caps={"a": 3}, grace_ns=10**12
        )
    )
    owners = Owners(largest)
    released, thrown_away = [0] * THREADS, [0] * THREADS

    def work(me: int) -> None:
        rng = random.Random(f"{seed} {me}")
        waiting: list[Waiter] = []
        held: list[Any] = []

        def keep(token: Any) -> None:
            if token is not None:
                owners.take(token, me)
                held.append(token)

        for _ in range(each):
            act = rng.randrange(12)
            facts = rng.choice((1, 1, 2)), rng.choice((None, "a", "b"))
            if act < 2 and len(held) < 2:
                keep(permits.try_acquire(rng.choice((0, 1, 2, 9)), *facts))
            elif act < 5:
                waiter = Waiter()
                token = permits.acquire_or_join(rng.choice((0, 1, 2, 9)), None, waiter, *facts)
                keep(token)
                if token is None and waiter.index != -2:
                    waiting.append(waiter)
                del token
            elif act < 8 and waiting:
                waiter = waiting.pop(rng.randrange(len(waiting)))
                permits.lift(waiter, rng.randrange(3))
                if act == 7:
                    permits.abandon(waiter)
                else:
                    keep(permits.leave(waiter))
            elif act == 8 and rng.random() < 0.1:
                permits.resize(rng.randint(5, largest))
                permits.expire()
            elif held:
                token = held.pop(rng.randrange(len(held)))
                owners.give(token, me)
                if act == 9:
                    permits.revoke(token)  # the grace time is longer than this test
                    assert token.state == "revoked"
                if act == 10:
                    thrown_away[me] += 1
                    del token
                else:
                    released[me] += 1
                    token.release()
        for waiter in waiting:
            keep(permits.leave(waiter))
        released[me] += len(held)
        while held:
            token = held.pop()
            owners.give(token, me)
            permits.release(token)

    race(work)
    permits.resize(largest)
    permits.check()
    assert (permits.held, permits.free, permits.waiting, len(permits)) == (0, largest, 0, 0)
    assert permits.granted >= permits.ended == sum(released) and owners.slots == [-1] * largest
    assert permits.leaked == sum(thrown_away) and permits.by_tenant() == {} and permits.tokens() == []


@pytest.fixture
def pool_module(core: Core, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`relay.pool` over either core."""
    backend = importlib.import_module("relay._backend")
    for part in ("permits", "timers"):
        monkeypatch.setattr(backend, part, getattr(core, part))
    spec = importlib.util.find_spec("relay.pool")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.core is core.permits
    yield module


def test_pool(core: Core, pool_module: Any, seed: int) -> None:
    each = OPERATIONS[core.side] // THREADS
    capacity = 3
    pool = core.watch(pool_module.TokenPool(capacity, reserved={0: 1}, name="threads"))
    owners = Owners(capacity)
    outcomes = [[0, 0] for _ in range(THREADS)]

    def work(me: int) -> None:
        rng = random.Random(f"{seed} {me}")
        for _ in range(each):
            try:
                token = pool.acquire(rng.choice((0, 1, 2)), timeout=rng.choice((0, 0, 1e-9, 1e-6, 2e-5, None)))
            except AcquireTimeout:
                outcomes[me][1] += 1
                continue
            outcomes[me][0] += 1
            owners.take(token, me)
            owners.give(token, me)
            token.release()

    race(work)
    pool.check()
    state = pool.snapshot()
    assert (state.held, state.free, state.waiting) == (0, capacity, 0) and owners.slots == [-1] * capacity
    # A grant that came too late for its waiter was passed on, and counts as another grant.
    assert state.granted >= sum(taken for taken, _ in outcomes)
    assert state.timed_out == sum(late for _, late in outcomes)
    pool.close()
