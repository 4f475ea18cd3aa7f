"""A relay on a stage: actors of a schedule submit the same thing, end its run, cancel, expire, or make all kept answers
void, one step at a time; every ticket ends exactly once, and with an answer that it may have.

No lane runs: one actor takes its steps. What is shared between actors (the queue, the set of open tickets, the lists of
followers, the answers that are kept) stands behind objects that have a step before each use. Natively `enter` and the
lane's own steps are not divisible; the others are, for they are Python.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from schedule import Failed, Joined, Run
from step_parts import StepLock

from relay.errors import DeadlineExceeded, Overloaded, RequestCancelled

Scenario = Callable[["SharingStage"], None]

KEY = "the same"
START_NS = 10**12
DEADLINE_S = 1.0


class Stepping:
    """Stands for a part, with a step before each call."""

    def __init__(self, run: Run, part: Any, thing: str) -> None:
        self._run, self._part, self._thing = run, part, thing

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        return stepping(self._run, found, name, self._thing) if callable(found) and name != "arena" else found

    def __len__(self) -> int:
        return len(self._part)


def stepping(run: Run, call: Callable[..., Any], name: str, thing: str) -> Callable[..., Any]:
    """`call`, with a step before it."""

    def stepped(*args: Any) -> Any:
        run.step(name)
        run.touch(thing)
        run.note(name)
        return call(*args)

    return stepped


class StepSet(set[Any]):
    """The set of open tickets."""

    run: Run

    def _step(self, name: str) -> None:
        self.run.step(name)
        self.run.touch("open")
        self.run.note(name)

    def add(self, ticket: Any) -> None:
        self._step("open")
        super().add(ticket)

    def remove(self, ticket: Any) -> None:
        self._step("settle")
        super().remove(ticket)

    def discard(self, ticket: Any) -> None:
        self._step("forget")
        super().discard(ticket)

    def difference_update(self, *tickets: Any) -> None:
        self._step("withdraw")
        super().difference_update(*tickets)

    def update(self, *tickets: Any) -> None:
        self._step("open all")
        super().update(*tickets)


class StepList(list[Any]):
    """The followers of one ticket."""

    run: Run

    def _step(self, name: str) -> None:
        self.run.step(name)
        self.run.touch("followers")
        self.run.note(name)

    def append(self, ticket: Any) -> None:
        self._step("append")
        super().append(ticket)

    def remove(self, ticket: Any) -> None:
        self._step("leave")
        super().remove(ticket)

    def pop(self, index: Any = -1) -> Any:
        self._step("pop")
        return super().pop(index)


class StageClock:
    """It shows what it is told."""

    def __init__(self) -> None:
        self.time_ns = START_NS

    def now_ns(self) -> int:
        return self.time_ns

    def park(self, gate: threading.Lock, until_ns: int | None) -> bool:
        raise AssertionError("nobody waits here")


class SharingStage:
    """A run of actors around one relay.

    Args:
        run: The run.
        package: The package of one side.
        **options: Of the relay.

    Attributes:
        asked: The tickets by the name of whoever asked, in the order in which they asked.
        endings: How each of them ended: a row, or the name of an error.
        epochs: In which epoch the leader of every run came, by its number.
        mixed: There may be two runs of one thing at a time, for nobody wants one of them, or they are not the same.
    """

    def __init__(self, run: Run, package: ModuleType, **options: Any) -> None:
        self.run = run
        self.pure = package.backend == "pure"
        self.clock = StageClock()
        self.relay: Any = package.Relay(
            lambda items: None, merge=True, clock=self.clock, max_batch_size=1, **{"max_queue": 4, **options}
        )
        self.relay._retire.detach()  # what holds the dispatcher for it would hold all of this stage for ever
        self.desk: Any = self.relay._desk
        self.settle = package.ticket.settle
        self.asked: dict[str, Any] = {}
        self.items: dict[str, str] = {}
        self.endings: dict[str, Any] = {}
        self.epochs: dict[int, int] = {}
        self.handles: list[int] = []  # of all who have had a place
        self.mixed = False
        self.after: list[bool] = []  # for a test's own use
        self.spoilt: list[str] = []  # who has changed his answer
        self._steps(package)

    def _steps(self, package: ModuleType) -> None:
        run, desk = self.run, self.desk
        desk.started, desk._start = True, lambda: None
        desk.deadlines.arm = desk.arm = lambda ns: None
        desk.deadlines._timing = StepLock(run, "timing")
        desk._renewing = StepLock(run, "renewing")
        queue, admit = desk.queue, desk.queue.admit
        stepped: Any = Stepping(run, queue, "queue")

        def admitted(owner: Any, *args: Any) -> Any:
            run.step("admit")
            run.touch("queue")
            run.note("admit")
            if type(owner._followers) is list:
                owner._followers = StepList(owner._followers)
                owner._followers.run = run
            handle = admit(owner, *args)
            if handle >= 0:
                self.handles.append(handle)
                under_way = [each for each in self.handles if queue.owner(each) is not None]
                assert self.mixed or len(under_way) == 1, "two runs of one thing are under way"
            return handle

        stepped.admit = admitted
        desk.queue = desk.deadlines._requests = stepped
        desk._admit = admitted
        keep = stepping(run, package.keeping.kept, "keep", "kept")
        desk.open_sharing(package.identity.content_of, True, desk.results, package.keeping.given, keep)
        desk.find_result = stepping(run, desk.find_result, "look", "kept")
        if self.pure:
            desk.open = StepSet(desk.open)
            desk.open.run = run
            short = desk._short
            desk._short = (short[0], stepped, *short[2:])
            if desk.results is not None:
                desk.results = Stepping(run, desk.results, "kept")

    # What actors do.

    def submit(
        self, name: str, *, item: str = KEY, deadline: float | None = None, priority: int = 1, short: bool = False
    ) -> Any:
        """Ask for the one thing that all ask for, by the long way, or by the short one."""
        if short:
            self.run.step("enter")
            self.run.touch("queue")
            self.run.touch("kept")
            ticket = self.desk.enter(item, priority, deadline)
            if ticket is not None:
                self.asked[name], self.items[name] = ticket, item
                ticket.add_done_callback(lambda ended: self._ended(name))
                return ticket
        ticket = self.relay._ticket(item, priority, deadline)
        ticket.add_done_callback(lambda ended: self._ended(name))
        self.asked[name], self.items[name] = ticket, item
        if not self.relay._place(ticket):
            self.endings[name] = "refused"
        return ticket

    def _ended(self, name: str) -> None:
        assert name not in self.endings, f"{name} has ended twice"
        ticket = self.asked[name]
        assert ticket._done, f"{name} was told too early"
        self.endings[name] = type(ticket._error).__name__ if ticket._error is not None else ticket._value

    def lane(self) -> None:
        """Run one batch, if there is any."""
        lane = self.relay._dispatcher.lanes[0]
        work = lane.pick(self.clock.time_ns)
        if work is None:
            return
        (owner,) = work._owners
        while work.open():
            number = len(self.epochs) + 1
            self.epochs[number] = owner._epoch
            self.run.step("run")
            work.returned([[owner._item, number]])
        lane.done(work)
        work.send()

    def expire(self) -> None:
        """The deadline of those who have one comes."""
        self.clock.time_ns = START_NS + 2 * int(DEADLINE_S * 10**9)
        self.run.touch("time")
        self.desk._expire(self.clock.time_ns)

    def spoil(self, name: str) -> None:
        """Wait until somebody has his answer, and change it."""
        ticket = self.asked[name]
        self.run.block(lambda: ticket._done, "wait")
        if ticket._error is None:
            ticket._value.append("spoilt")
            self.spoilt.append(name)

    def actor(self, name: str, work: Callable[[], object]) -> None:
        """Add an actor."""
        self.run.actor(name, work)

    # The end.

    def settled(self) -> None:
        """Everybody has ended, as he may; nothing is left."""
        desk = self.desk
        for _ in range(len(self.asked)):
            self.lane()
        for name, ticket in self.asked.items():
            assert name in self.endings, f"{name} is left"
            ending = self.endings[name]
            if ending == "refused":
                continue
            assert ticket._done, f"{name} is not done"
            if ticket._error is None:
                assert ending[0] == self.items[name] and ending[1] in self.epochs, f"{name} has {ending}"
                assert len(ending) == 2 + self.spoilt.count(name), f"another has changed what {name} has"
            else:
                assert isinstance(ticket._error, DeadlineExceeded | RequestCancelled | Overloaded), ticket._error
        values = [id(ending) for ending in self.endings.values() if isinstance(ending, list)]
        assert len(set(values)) == len(values), "two have one list"
        assert not desk.open, "tickets are left open"
        assert len(desk.queue) == desk.queue.queued == 0, "places are left"
        self.relay.check()
        assert desk.queue.next_ns() is None

    def outcome(self) -> tuple[Any, ...]:
        """What became of all."""
        told = self.relay.snapshot().sharing
        runs = len(self.epochs)
        ends = tuple((name, str(self.endings[name])) for name in sorted(self.endings))
        return ends, runs, told.hits, told.misses, told.joins


def playing(
    scenario: Scenario, package: ModuleType, then: Callable[[SharingStage], None], outcomes: set[object], **options: Any
) -> Callable[[Run], object]:
    """One run of a scenario; `then` says what else must hold, and `outcomes` gets what came of it."""

    def play(run: Run) -> object:
        stage = SharingStage(run, package, **options)
        scenario(stage)
        try:
            run.play()
            try:
                stage.settled()
                then(stage)
            except AssertionError as error:
                raise Failed(run.tell(error)) from error
            outcomes.add(stage.outcome())
            return None
        finally:
            stage.relay.close()

    return play


__all__ = ["DEADLINE_S", "KEY", "Joined", "Scenario", "SharingStage", "playing"]
