"""All schedules of a scenario with at most so many preemptions, and the same ones on the other side of the core.

A preemption takes the turn from an actor that could have gone on; most bugs need no more than two. A schedule is
replayed by its list of choices or, where the steps are others, by the order of its events. Orders of steps that touch
the same things in the same order are played once.

Source: Musuvathi, Qadeer, Ball, Basler, Nainar and Neamtiu, "Finding and reproducing Heisenbugs in concurrent
programs", OSDI 2008.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from schedule import Event, Failed, Joined, Run
from schedule_actors import Worker, crew


class Found(NamedTuple):
    """What a search has found."""

    runs: int
    """Runs that came to their end."""
    joined: int
    """Runs that came to a state from where all was known."""
    scripts: dict[tuple[Event, ...], object]
    """Each order of events that occurred, and what came of it."""


def search(play: Callable[[Run], object], size: int, bound: int = 2, *, all_orders: bool = False) -> Found:
    """Play a scenario in every way there is.

    Args:
        play: Adds actors to a run, plays it, and says what came of it.
        size: How many actors.
        bound: Preemptions at most.
        all_orders: Play also what differs only in the order of steps that have nothing to do with each other.

    Raises:
        Failed: A run went wrong; of all such one with the fewest preemptions.
    """
    with crew(size) as workers, no_collection() as collect:
        try:
            return _search(play, workers, bound, all_orders, collect)
        except Failed:
            for fewer in range(bound):
                _search(play, workers, fewer, all_orders, collect)
            raise


def _search(
    play: Callable[[Run], object], workers: list[Worker], bound: int, all_orders: bool, collect: Callable[[], None]
) -> Found:
    runs = joined = 0
    scripts: dict[tuple[Event, ...], object] = {}
    choices: list[int] = []
    seen: dict[object, int] | None = None if all_orders else {}
    while True:
        run = Run(workers, choices, bound, seen)
        try:
            outcome = play(run)
            runs += 1
            assert scripts.setdefault(tuple(run.events), outcome) == outcome, run.tell(AssertionError("it depends"))
        except Joined:
            joined += 1
        choices = run.choices
        while choices and choices[-1] + 1 >= run.widths[len(choices) - 1]:
            choices.pop()
        if not choices:
            return Found(runs, joined, scripts)
        choices[-1] += 1
        del run
        collect()


def replay(
    play: Callable[[Run], object], size: int, scripts: Iterable[Sequence[Event]]
) -> Iterator[tuple[Run, object]]:
    """Play a scenario so that events come in given orders, as far as they can; `exact` says whether they did."""
    with crew(size) as workers, no_collection() as collect:
        for script in scripts:
            run = Run(workers, script=script)
            yield run, play(run)
            collect()


@contextmanager
def no_collection() -> Iterator[Callable[[], None]]:
    """The collector would finalise things at moments of its own; here it runs between runs, now and then."""
    enabled, count = gc.isenabled(), 0

    def collect() -> None:
        nonlocal count
        count += 1
        if count % 256 == 0:
            gc.collect()
            gc.freeze()  # what is kept need not be looked at again

    gc.freeze()
    gc.disable()
    try:
        yield collect
    finally:
        gc.collect()
        gc.unfreeze()
        if enabled:
            gc.enable()
