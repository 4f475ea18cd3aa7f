"""A scheduler for tests: actors are threads of which exactly one runs at a time.

They hand on only at the steps of their `Run`, so a run is determined by a list of choices: which of those who could go
on does, at each step where there is more than one. Waits are visible: a blocked actor is never chosen, and if nobody
can go on while somebody is not through, a wake-up is lost. Nothing here sleeps. `schedule_search` makes the lists.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from schedule_actors import Actor, Worker

STEPS = 3_000
"""A run that takes more never ends."""

Event = tuple[str, str]  # who, and what
_events: dict[Event, Event] = {}  # each once, for they are kept by the thousand


class Failed(AssertionError):
    """A run went wrong; says with which choices, and what happened in it."""


class Joined(Exception):
    """A run came to a state that another has been in before; all that can follow is known."""


class Abort(BaseException):
    """Ends an actor whose run is over."""


class Run:
    """One run of some actors.

    Args:
        workers: The threads to use.
        choices: What to choose at the first steps where there is a choice; 0, to go on if that is possible, then.
        bound: Preemptions at most.
        seen: States in which runs have had a choice, and after how many preemptions; this one ends at the first of them
            that it comes to. None to go on.
        script: Events in the order in which they are to happen, instead of choices.

    Attributes:
        events: Who has done what: core calls, in the order in which they took effect, and steps in between.
        exact: The events are those of the script.
    """

    def __init__(
        self, workers: list[Worker], choices: Sequence[int] = (), bound: int = 2,
        seen: dict[object, int] | None = None, script: Sequence[Event] | None = None,
    ) -> None:  # fmt: skip
        self._workers = iter(workers)
        self._prefix, self._bound, self._seen = choices, bound, seen
        self._things: dict[str, int] = {}  # what is shared, and a hash of all that has happened to it
        self._script, self._at = script, 0
        self._home = threading.Lock()
        self._home.acquire()
        self._preemptions = 0
        self.actors: list[Actor] = []
        self.current: Actor | None = None  # None: the test itself, before and after
        self.aborting = self.over = self.joined = False
        self.failure: BaseException | None = None
        self.choices: list[int] = []
        self.widths: list[int] = []
        self.trace: list[Event] = []
        self.events: list[Event] = []
        self.exact = True
        self.watch: Callable[[], None] | None = None  # called at every step
        self.idle: Callable[[], bool] | None = None  # called when nobody can go on; true if it has changed that

    def actor(self, name: str, work: Callable[[], object], *, daemon: bool = False) -> None:
        """Add an actor."""
        self.actors.append(Actor(name, work, daemon, next(self._workers)))

    def play(self) -> None:
        """Let all actors run to their end.

        Raises:
            Failed: One raised, or none could go on.
            Joined: It was ended because it would be the same as another from here on.
        """
        first = self._choose(None, False)
        assert first is not None, "nobody is there"
        self._start(first)
        self._home.acquire()
        self.end()
        if self.failure is not None:
            raise Failed(self.tell(self.failure)) from self.failure
        if self.joined:
            raise Joined

    def tell(self, error: BaseException) -> str:
        """What happened, for whoever reads of a failure."""
        turns: list[list[str]] = []
        last = ""
        for who, what in self.trace:
            if who != last:
                turns.append([f"  {who}:"])
                last = who
            turns[-1].append(what)
        story = "\n".join(f"{turn[0]} {', '.join(turn[1:30])}{' ...' * (len(turn) > 30)}" for turn in turns[:50])
        left = {actor.name for actor in self.actors if not actor.done and not actor.daemon}
        return f"{type(error).__name__}: {error}\nchoices {self.choices}, not through: {left or 'nobody'}\n{story}"

    def step(self, what: str, event: bool = False, *, within: bool = False) -> None:
        """The running actor may be preempted here. An event is something that others can notice. `within` is for steps
        of a core call that has not taken effect yet."""
        me = self.current
        if me is None or self.aborting:
            return
        if not within:
            self.effect()
        self._count(me, what)
        if not (self._preemptions >= self._bound and self._script is None):
            self._switch(me, self._choose(me, True))
        if event:
            self.note(what)

    def block(self, until: Callable[[], bool], what: str) -> None:
        """Wait until something is so."""
        me = self.current
        if me is None or self.aborting:
            if not self.over and not until():
                raise Abort if self.aborting else AssertionError(f"the {what} is held for ever")
            return
        if until():
            return
        self._count(me, what)
        me.until = until
        self._switch(me, self._choose(me, False))
        me.until = None

    def pause(self, what: str) -> None:
        """Wait for something that may come at any moment, whatever the others do: a time limit, or Ctrl-C."""
        me = self.current
        if me is not None and not self.aborting:
            self._count(me, what)
            self._switch(me, self._choose(me, True, willing=True))

    def mark(self, call: str) -> None:
        """A core call begins; it takes effect when it gets hold of the guard, `effect`."""
        if self.current is not None:
            self.effect()
            self.current.call = call

    def effect(self) -> None:
        """The call that was marked takes effect."""
        if self.current is not None and self.current.call is not None:
            self.note(self.current.call)
            self.current.call = None

    def note(self, what: str) -> None:
        """An event."""
        me = self.current
        if me is None or self.aborting:
            return
        event = (me.name, what)
        self.events.append(_events.setdefault(event, event))
        if self._script is not None:
            follows = self._at < len(self._script) and self._script[self._at] == event
            self._at += follows
            self.exact &= follows

    def touch(self, thing: str) -> None:
        """The running actor looks at or changes something that others do, too."""
        me = self.current
        state = self._things.get(thing, 0)
        if me is None:
            self._things[thing] = hash((state, thing))
        else:
            me.past = self._things[thing] = hash((state, me.past, me.name))

    def learn(self, value: int) -> None:
        """The running actor goes by this number."""
        if self.current is not None:
            self.current.past = hash((self.current.past, value))

    def finish(self) -> None:
        """End the run here, with whatever the others are at."""
        self.over = True
        raise Abort

    def _count(self, me: Actor, what: str) -> None:
        self.trace.append((me.name, me.call or what))
        me.steps += 1
        if len(self.trace) > STEPS:
            self.failure = AssertionError("it never ends")
        if self.watch is not None and self.failure is None:
            try:
                self.watch()
            except AssertionError as error:
                self.failure = error
        if self.failure is not None:
            raise Abort  # whoever swallows it, the run has failed

    def _choose(self, me: Actor | None, able: bool, willing: bool = False) -> Actor | None:
        """Who goes on; None if nobody can, or need. One who is willing to wait is not preempted."""
        if self._script is not None:
            return self._follow(me, able)
        others = [actor for actor in self.actors if actor is not me and actor.ready()]
        if able:
            others = [*others, me] if willing else [me, *others]  # type: ignore[list-item]
        if not others:
            return self._choose(None, False) if self._helped() else None
        pick = 0
        if len(others) > 1:
            if len(self.choices) < len(self._prefix):
                pick = self._prefix[len(self.choices)]
            elif self._known(me, able, willing):
                self.joined = True
                return None
            self.choices.append(pick)
            self.widths.append(len(others))
        if able and not willing and pick:
            self._preemptions += 1
        return others[pick]

    def _known(self, me: Actor | None, able: bool, willing: bool) -> bool:
        """Two orders of steps that touch the same things in the same order make the same state."""
        if self._seen is None:
            return False
        actors = tuple((actor.past, actor.steps, actor.done) for actor in self.actors)
        state = (me.name if me is not None and able else "", willing, actors, tuple(sorted(self._things.items())))
        if self._seen.get(state, self._bound + 1) <= self._preemptions:
            return True
        self._seen[state] = self._preemptions
        return False

    def _follow(self, me: Actor | None, able: bool) -> Actor | None:
        """Who goes on by the script."""
        assert self._script is not None
        ready = {actor.name: actor for actor in self.actors if (able if actor is me else actor.ready())}
        while self._at < len(self._script):
            found = ready.get(self._script[self._at][0])
            if found is not None:
                return found
            self.exact = False
            self._at += 1
        if not ready:
            return self._follow(None, False) if self._helped() else None
        return me if able else next(iter(ready.values()))

    def _helped(self) -> bool:
        """Nobody can go on: either the run is over, or the test does something."""
        if all(actor.done or actor.daemon for actor in self.actors):
            return False
        me, self.current = self.current, None
        helped = self.idle is not None and self.idle()
        self.current = me
        if not helped:
            self.failure = AssertionError("nobody can go on: a wake-up is lost")
        return helped

    def _switch(self, me: Actor, to: Actor | None) -> None:
        if to is me:
            return
        if to is None:
            self._home.release()
        else:
            self._start(to)
        me.worker.go.acquire()
        if self.aborting:
            raise Abort

    def _start(self, actor: Actor) -> None:
        self.current = actor
        if not actor.started:
            actor.started = True
            actor.worker.job = lambda: self._work(actor)
        actor.worker.go.release()

    def _work(self, actor: Actor) -> None:
        try:
            actor.work()
            self.effect()
        except Abort:
            pass
        except BaseException as error:
            self.failure = self.failure or error
        actor.done = True
        finished = self.aborting or self.over or self.failure is not None
        to = None if finished else self._choose(actor, False)
        if to is None:
            self._home.release()
        else:
            self._start(to)

    def end(self) -> None:
        """End whoever is left."""
        self.aborting = True
        for actor in self.actors:
            if actor.started and not actor.done:
                self.current = actor
                actor.worker.go.release()
                self._home.acquire()
            actor.work = object  # keeps nothing alive
        self.current = None
        self.over = True
