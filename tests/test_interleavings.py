"""A cancel or an expiry at every step between admission and commit: a stale writer never touches a re-leased row.

On the pure side another actor runs inside the arena's step hook, in the middle of a verb. It ends the request, tries to
have its slot leased to somebody else, and lets the first actor go on. Natively a call is not divisible, so there the
schedules that the hook has found are replayed between calls: what the other actor did inside a step, it does before the
call and, in another run, after it. What must hold is asserted by the content of rows and by `check()`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import Core

from relay._pure import arena as pure_arena

STALE, FREED, DEFERRED, BUSY_DROP = 0, 1, 2, 3
STEPS = ("lease", "pin", "write", "trim", "unpin", "drop", "commit")

MINE = [11] * 40
THEIRS = [77] * 50

Actor = Callable[[], None]
Step = tuple[str, int]  # the name of a step, and which of the steps of that name


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    pure_arena.step = None
    yield
    pure_arena.step = None


class Line:
    """One small queue, its requests, and how each of them ended.

    The first actor admits a request, writes its row, makes it ready, takes it and finishes it. `end` is the other
    actor: it ends that request somewhere in between, and has the room it left leased and written by another one.
    """

    def __init__(self, side: str, slots: int = 1) -> None:
        self.side = side
        self.queue = Core(side).queue.RequestQueue(slots, slots * 64, 64)
        self.handle = -1
        self.other = -1
        self.code: int | None = None
        self.told: list[str] = []  # of whom the dropping actor has heard
        self.ran: list[tuple[str, list[int]]] = []

    # The first actor.

    def admit(self) -> None:
        self.handle = self.queue.admit("mine", 0, 0, 100, 1, 0, 40)

    def write(self) -> None:
        self.queue.write(self.handle, MINE)

    def ready(self) -> None:
        self.queue.ready(self.handle, 1)

    def take(self, now_ns: int = 10) -> None:
        handles, owners, late = self.queue.take(2, 0, now_ns)[:3]
        self.told += late
        rows = self.gathered(handles)
        for handle, owner, row in zip(handles, owners, rows, strict=True):
            assert self.queue.owner(handle) == owner, "whoever is taken is leased, and its owner is its own"
            self.ran.append((owner, row))
        self.queue.finish(handles)

    def gathered(self, handles: list[int]) -> list[list[int]]:
        ids, mask = np.full((2, 64), -1, np.int64), np.full((2, 64), -1, np.int64)
        if handles:
            Core(self.side).batch.gather(self.queue.arena, handles, ids, mask)
        return [row[: length.sum()].tolist() for row, length in zip(ids[: len(handles)], mask, strict=False)]

    calls = ("admit", "write", "ready", "take")

    # The other actor.

    def cancel(self) -> None:
        if self.handle >= 0:
            self.code = self.queue.cancel(self.handle)
            if self.code in (FREED, DEFERRED):
                self.told.append("mine")

    def expire(self) -> None:
        for handle, owner in self.queue.due(100):
            assert owner == "mine"
            if self.queue.cancel(handle) in (FREED, DEFERRED):
                self.told.append(owner)

    def take_late(self) -> None:
        handles, owners, late = self.queue.take(2, 0, 1_000)[:3]
        assert not handles and not owners
        self.told += late

    def lease_again(self) -> None:
        """Someone else comes, and gets the slot if it is free."""
        if self.other < 0:
            self.other = self.queue.admit("other", 0, 2, -1, 1, 0, 50)
            if self.other >= 0:
                assert self.queue.write(self.other, THEIRS)

    def finish_other(self) -> None:
        """Whatever the first actor has done since, the other's row is whole, it runs once, and as itself."""
        if self.other >= 0:
            if self.queue.ready(self.other, 3):
                assert self.queue.arena.ids(self.other) == THEIRS, "a stale writer has touched the row"
            self.take()
            assert self.ran[-1] == ("other", THEIRS) or ("other", THEIRS) in self.ran

    def settled(self) -> None:
        """The first request ended exactly once, nothing is left, and every structure says so."""
        runs = [row for owner, row in self.ran if owner == "mine"]
        assert len(runs) + self.told.count("mine") == (self.handle >= 0), (self.ran, self.told)
        assert runs in ([], [MINE])
        assert [row for owner, row in self.ran if owner == "other"] == ([THEIRS] if self.other >= 0 else [])
        self.queue.check()
        assert len(self.queue) == 0 and self.queue.queued == 0 and self.queue.next_ns() is None
        assert self.queue.owners() == []


ACTORS = ("cancel", "expire", "take_late")


def every_step() -> list[Step]:
    """The steps an undisturbed request goes through; and that it does."""
    line, seen = Line("pure"), []
    pure_arena.step = seen.append
    for call in Line.calls:
        getattr(line, call)()
    pure_arena.step = None
    line.settled()
    counts = {name: itertools.count() for name in STEPS}
    return [(name, next(counts[name])) for name in seen]


def at(step: Step, actor: Actor) -> list[Step]:
    """Run `actor` once, at that step. Returns a list that says so when it has run."""
    ran: list[Step] = []
    counts = {name: itertools.count() for name in STEPS}

    def hook(name: str) -> None:
        if (name, next(counts[name])) == step and not ran:
            ran.append(step)
            pure_arena.step = None  # the other actor's own steps are not to be interrupted
            actor()
            pure_arena.step = hook

    pure_arena.step = hook
    return ran


def test_the_steps() -> None:
    names = [name for name, _ in every_step()]
    assert names == ["lease", "write", "trim", "unpin", "commit"]


def disturbed(step: Step, actor: str, slots: int) -> tuple[Line, list[str]]:
    """The first actor's four calls, with the other actor inside one step. Returns also the call that was disturbed."""
    line, during = Line("pure", slots), list[str]()

    def other() -> None:
        during.append(call)
        getattr(line, actor)()
        line.lease_again()

    ran = at(step, other)
    for call in Line.calls:
        getattr(line, call)()
    pure_arena.step = None
    assert ran == [step]
    return line, during


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("actor", ACTORS)
@pytest.mark.parametrize("index", range(5))
def test_at_every_step(index: int, actor: str, slots: int) -> None:
    line, _ = disturbed(every_step()[index], actor, slots)
    line.lease_again()
    line.finish_other()
    line.settled()


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("actor", ACTORS)
@pytest.mark.parametrize("index", range(5))
def test_the_same_schedules_between_calls(core: Core, index: int, actor: str, slots: int) -> None:
    _, during = disturbed(every_step()[index], actor, slots)
    for before in (True, False):
        line = Line(core.side, slots)
        for call in Line.calls:
            if call != during[0] or not before:
                getattr(line, call)()
            if call == during[0]:
                getattr(line, actor)()
                line.lease_again()
                if before:
                    getattr(line, call)()
        line.lease_again()
        if not line.told and not line.ran:  # it was not there yet, or not late: it runs like any other
            line.take()
        line.finish_other()
        line.settled()


@pytest.mark.parametrize("actor", ACTORS)
@pytest.mark.parametrize("second", ["cancel", "expire", "take_late"])
def test_two_endings_meet(actor: str, second: str) -> None:
    """One drop is interrupted by another: one of them ends the request, and the slot is someone else's by then."""
    line = Line("pure")
    for call in ("admit", "write", "ready"):
        getattr(line, call)()

    def other() -> None:
        getattr(line, second)()
        line.lease_again()

    ran = at(("drop", 0), other)
    getattr(line, actor)()
    pure_arena.step = None
    assert ran, "every ending goes through a drop"
    assert line.told.count("mine") <= 1
    if not line.told:
        line.cancel()
    line.lease_again()
    line.finish_other()
    line.settled()


def test_a_taker_is_interrupted_for_each_member() -> None:
    """`take` holds several nodes out of the heap, passed over or about to be committed; any of them may be cancelled,
    lifted, or replaced in its slot meanwhile."""
    names = ["a", "b", "c", "d"]
    lines = [None, (0.0, 1.0, 0.0, 0.0), (50.0, 0.0, 1.0, 0.0)]  # in order, in order, and by size
    for victim, moment, again, line, every in itertools.product(range(4), range(2), [False, True], lines, [0, 2]):
        queue = Core("pure").queue.RequestQueue(4, 4 * 64, 64, overdue_every=every)
        groups = [0] * 4 if line else [0, 1, 0, 1]
        handles = [queue.admit(name, i, 0, -1, 1, groups[i], 8, False, i % 2, 5) for i, name in enumerate(names)]
        for i, handle in enumerate(handles):
            assert queue.write(handle, [i] * (8 + i)) and queue.ready(handle, 0)
        fresh: list[int] = []
        codes: list[int] = []

        def other(
            queue: Any = queue, handle: int = handles[victim], again: bool = again, fresh: list[int] = fresh,
            codes: list[int] = codes,
        ) -> None:  # fmt: skip
            codes.append(queue.cancel(handle))
            if again:
                fresh.append(queue.admit("new", 0, 0, -1, 1, 1, 8))
                if fresh[-1] >= 0:
                    assert queue.write(fresh[-1], [99] * 8) and queue.ready(fresh[-1], 0)

        assert not at(("commit", moment), other)
        ran: list[tuple[str, list[int]]] = []
        for _ in range(4):
            taken, owners, _ = queue.take(4, 0, 9 * every, line)[:3]
            ran += [(owner, queue.arena.ids(handle)) for handle, owner in zip(taken, owners, strict=True)]
            queue.check()
            queue.finish(taken)
        pure_arena.step = None
        expected = {name: [i] * (8 + i) for i, name in enumerate(names) if i != victim or codes != [FREED]}
        if fresh and fresh[0] >= 0:
            expected["new"] = [99] * 8
        assert len(ran) == len(expected) and dict(ran) == expected, (victim, moment, again, line, every)
        queue.check()
        assert len(queue) == 0


def test_a_passed_one_is_lifted_meanwhile() -> None:
    queue = Core("pure").queue.RequestQueue(4)
    queue.admit("first", 0, 0, group=1)
    passed = [queue.admit(name, 5, 0, group=2) for name in "ab"]
    queue.admit("last", 6, 0, group=1)
    ran = at(("commit", 1), lambda: queue.lift(passed[1], 3))
    assert queue.take(4, 0, 0)[1] == ["first", "last"] and ran
    pure_arena.step = None
    queue.check()
    assert queue.take(4, 0, 0)[1] == ["b", "a"]


def test_a_row_that_is_being_read_is_not_given_away(core: Core) -> None:
    """Finished while its row is pinned by a reader: nobody can join or end it any more, and the slot waits."""
    line = Line(core.side)
    for call in ("admit", "write", "ready"):
        getattr(line, call)()
    (handle,) = line.queue.take(1, 0, 0)[0]
    assert line.queue.bind(1, handle) and line.queue.arena.pin(handle)
    assert line.queue.cancel(handle) == BUSY_DROP and not line.queue.ready(handle, 0)
    line.queue.finish([handle])
    line.queue.check()
    line.lease_again()
    assert line.other < 0 and line.queue.find(1) == (-1, None) and not line.queue.bind(1, handle)
    assert line.queue.arena.ids(handle) == MINE and not line.queue.arena.unpin(handle)
    line.lease_again()
    line.told.append("mine")
    line.finish_other()
    line.settled()


def test_random_schedules(core: Core, rng: random.Random) -> None:
    """Two requests, their actors and the endings in every order that random draws find; natively too."""
    for _ in range(1_500):
        queue = core.queue.RequestQueue(2, 2 * 64, 64)
        live: dict[str, int] = {}
        ended: dict[str, list[str]] = {}
        rows: dict[str, list[int]] = {}
        stale: list[tuple[str, int]] = []
        for turn in range(14):
            act = rng.choice(("admit", "write", "ready") * 2 + ("cancel", "expire", "take", "stale"))
            name = rng.choice(list(live)) if live else ""
            if act == "admit":
                name = f"r{turn}"
                deadline = turn + rng.randrange(6)
                handle = queue.admit(name, rng.randrange(3), turn, deadline, 1, rng.randrange(2), 40)
                if handle >= 0:
                    live[name], ended[name], rows[name] = handle, [], []
            elif act in ("write", "ready", "cancel") and name:
                handle = live[name]
                pinned = queue.arena.facts(handle)["flags"] & 4 if queue.arena.live(handle) else 0
                if act == "write" and pinned and not ended[name]:
                    rows[name] = [turn + 100] * rng.randrange(65)
                    assert queue.write(handle, rows[name])
                elif act == "ready" and pinned:
                    assert queue.ready(handle, turn) == (not ended[name])
                    if ended[name]:
                        stale.append((name, live.pop(name)))
                elif act == "cancel" and queue.cancel(handle) in (FREED, DEFERRED):
                    ended[name].append("cancelled")
                    if not queue.arena.live(handle):
                        stale.append((name, live.pop(name)))
            elif act == "expire":
                for handle, owner in queue.due(turn):
                    if queue.cancel(handle) in (FREED, DEFERRED):
                        ended[owner].append("expired")
                        if not queue.arena.live(handle):
                            stale.append((owner, live.pop(owner)))
            elif act == "take":
                taken, owners, late = queue.take(2, 0, turn)[:3]
                for owner in late:
                    ended[owner].append("late")
                    stale.append((owner, live.pop(owner)))
                for handle, owner in zip(taken, owners, strict=True):
                    assert live[owner] == handle and queue.arena.ids(handle) == rows[owner] and not ended[owner]
                    ended[owner].append("ran")
                queue.finish(taken)
                for owner in owners:
                    stale.append((owner, live.pop(owner)))
            elif act == "stale" and stale:
                name, handle = rng.choice(stale)
                assert not queue.write(handle, [666] * 64) and not queue.ready(handle, turn)
                assert queue.cancel(handle) == STALE and not queue.lift(handle, -9) and queue.owner(handle) is None
                assert not queue.set_deadline(handle, 0, 0) and not queue.bind(turn, handle)
            for name, handle in live.items():
                assert queue.arena.ids(handle) == rows[name], "a stale writer has touched the row"
            queue.check()
        assert all(len(how) <= 1 for how in ended.values())
