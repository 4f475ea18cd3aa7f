"""The sleeping model behind all batchers in turn, round by round, so that all see the same weather."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from arrivals import ARRIVALS, GOOD_S, Outcome, open_loop
from batchers import Side
from closed_loops import LIMIT, capacity, closed_loop, sleeping_model

Tell = Callable[[str], object]


def _nothing(text: str) -> None:
    pass


class Row(NamedTuple):
    """One side at one load: medians over the rounds that count.

    Attributes:
        outcome: What came of it.
        rounds: How many rounds count.
        void: How many do not, for the requests were not sent in time.
    """

    outcome: Outcome
    rounds: int
    void: int


def shares(sides: Sequence[Side], tasks: int, seconds: float, rounds: int = 5, tell: Tell = _nothing) -> list[float]:
    """Answers a second in a closed loop, as shares of the model's capacity, side by side: medians."""
    found: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        able = capacity()
        for side, row in zip(sides, found, strict=True):
            tell(f"closed loop of {tasks} tasks, round {number + 1} of {rounds}: {side.name}")
            row.append(closed_loop(side, sleeping_model, tasks, seconds).rate / able)
    return [median(row) for row in found]


def at_load(
    sides: Sequence[Side], arrivals: str, load: float, seconds: float, rounds: int = 5, tell: Tell = _nothing
) -> dict[str, Row]:
    """Every side at one load, in an open loop.

    Args:
        sides: The batchers.
        arrivals: A key of `ARRIVALS`.
        load: Of the model's capacity, which is measured anew in each round.
        seconds: Of each round of each side.
        rounds: How many.
        tell: Gets a line of progress.
    """
    found: dict[str, list[Outcome]] = {side.name: [] for side in sides}
    for number in range(rounds):
        due = ARRIVALS[arrivals](capacity() * load, seconds, number)
        for turn in range(len(sides)):
            side = sides[(number + turn) % len(sides)]  # nobody always comes first
            tell(f"{arrivals} at {load:.0%}, round {number + 1} of {rounds}: {side.name}")
            found[side.name].append(open_loop(side, sleeping_model, LIMIT, due, good_only=load > 1))
    return {name: _row(outcomes) for name, outcomes in found.items()}


def _row(outcomes: list[Outcome]) -> Row:
    counting = [outcome for outcome in outcomes if not outcome.void]
    columns = zip(*(counting or outcomes), strict=True)
    return Row(Outcome(*(float(np.median(column)) for column in columns)), len(counting), len(outcomes) - len(counting))


__all__ = ["GOOD_S", "Row", "at_load", "shares"]
