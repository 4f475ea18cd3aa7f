"""The controllers as a relay's lanes drive them: how often each is asked, and where batches settle on simulated models.

All in virtual time. Nothing of the core is used, so there is no side to choose here.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest

from relay.clock import NS
from relay.controller import AIMD, PID, Controller, Deadline, Fixed, Gradient, Step
from relay.steering import Steering

MOST = 256


def affine(items: int) -> float:
    """Seconds that a batch takes."""
    return 0.002 + 0.0002 * items


class Lane:
    """One lane in virtual time: a batch, a gap in which the host is busy, the next batch.

    Args:
        steering: Sets the limit.
        run: Seconds that a batch takes.
        gap: Seconds between batches.
        demand: How many items wait whenever the lane is free.
        fails: Whether the next batch fails, which takes 50 microseconds.
    """

    def __init__(
        self,
        steering: Steering,
        run: Callable[[int], float] = affine,
        gap: float = 0.0,
        demand: int = 10_000,
        fails: Callable[[], bool] = lambda: False,
    ) -> None:
        self.steering = steering
        self.run = run
        self.gap = gap
        self.demand = demand
        self.fails = fails
        self.now = 100.0
        self.busy = 0.0
        self.limits: list[int] = []
        self.times: list[float] = []

    def go(self, seconds: float) -> Lane:
        """Go on for so long, and forget what was before."""
        until, self.limits, self.times = self.now + seconds, [], []
        while self.now < until:
            items = min(self.steering.limit, self.demand)
            failed = items if self.fails() else 0
            took = 0.00005 if failed else self.run(items)
            self.now += took + self.gap
            self.busy += took
            self.limits.append(self.steering.limit)
            self.times.append(took)
            self.steering.after_batch(
                int(self.now * NS), items, int(took * NS), failed, self.demand - items, int(self.busy * NS)
            )
        return self


# How often


@pytest.mark.parametrize(
    ("controller", "every"),
    [(Deadline(), None), (Fixed(3), None), (AIMD(0.1), "batch"), (PID(), 0.25), (Gradient(), 0.25), (Step(), 0.25)],
)
def test_how_often_each_is_asked(controller: Controller, every: object) -> None:
    assert getattr(controller, "every", 0.25) == every
    assert Steering(controller, MOST).steady == (every is None)


@pytest.mark.parametrize(("controller", "limit"), [(Deadline(), MOST), (Fixed(3), 3), (Fixed(1000), MOST)])
def test_the_steady_ones(controller: Controller, limit: int) -> None:
    lane = Lane(Steering(controller, MOST, load=lambda: 1.0), fails=lambda: True).go(1)
    assert set(lane.limits) == {limit}


def test_deadline_asks_for_all_there_is() -> None:
    steering = Steering(Deadline(), 10)
    assert steering.last is not None
    assert Deadline().update(steering.last) == math.inf and repr(Deadline()) == "Deadline()"


def test_the_published_rule() -> None:
    rule = AIMD.published(0.1)
    assert repr(rule) == (
        "AIMD(target=0.1, add=0.0, times=1.2, down=0.8, patience=3, below=0.6, low=10, high=200, start=50)"
    )
    assert Steering(rule, MOST).limit == 50 and Steering(AIMD.published(0.1), 8).limit == 8
    assert Steering(AIMD(0.1), MOST).limit == MOST
    with pytest.raises(ValueError, match="^start must be a whole number of at least 1, got 0"):
        AIMD(start=0)


# AIMD by the published rule


def test_it_shrinks_after_three_slow_batches_in_a_row() -> None:
    slow = iter([1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1] + [0] * 1000)
    lane = Lane(Steering(AIMD.published(0.1), MOST), run=lambda items: 0.11 if next(slow) else 0.1).go(1.3)
    assert lane.limits == [50] * 6 + [40] * 6 + [32] * (len(lane.limits) - 12)


@pytest.mark.parametrize("target", [0.005, 0.01, 0.02, 0.03])
def test_it_holds_a_batch_time(target: float) -> None:
    lane = Lane(Steering(AIMD.published(target), MOST, load=lambda: 0.5)).go(30).go(60)
    assert 0.75 * target <= statistics.fmean(lane.times) <= 1.02 * target
    assert max(lane.times) <= 1.2 * target + 0.001
    assert max(lane.limits) <= 200 and min(lane.limits) >= 10
    slow = [took > target + 1e-6 for took in lane.times]
    assert all(sum(slow[i : i + 4]) <= 3 for i in range(len(slow) - 3))  # never longer than it takes to notice


def test_it_follows_a_model_that_changes() -> None:
    speed = 1.0
    lane = Lane(Steering(AIMD.published(0.02), MOST, load=lambda: 0.5), run=lambda n: speed * affine(n)).go(30)
    assert 70 <= statistics.fmean(lane.go(10).limits) <= 95  # 90 fit
    speed = 2.0
    assert 30 <= statistics.fmean(lane.go(5).go(10).limits) <= 45  # 40 fit
    speed = 1.0
    assert 70 <= statistics.fmean(lane.go(10).go(10).limits) <= 95


@pytest.mark.parametrize("most", [1, 8, 64, 1000])
def test_its_bounds(most: int) -> None:
    fast = Lane(Steering(AIMD.published(1.0), most, load=lambda: 0.1)).go(60)
    assert fast.steering.limit == min(most, 200)
    slow = Lane(Steering(AIMD.published(0.001), most, load=lambda: 0.1)).go(60)
    assert slow.steering.limit == min(most, 10)


@pytest.mark.parametrize("load", [None, lambda: None, lambda: math.nan, lambda: 0.6, lambda: 0.95])
def test_a_load_that_is_high_or_unknown_never_widens(load: Callable[[], float | None] | None) -> None:
    lane = Lane(Steering(AIMD.published(0.1), MOST, load=load)).go(60)
    assert set(lane.limits) == {50}


def test_what_is_not_used_does_not_grow() -> None:
    lane = Lane(Steering(AIMD.published(0.1), MOST, load=lambda: 0.1), demand=20).go(60)
    assert set(lane.limits) == {50}


def test_it_grows_no_faster_than_the_load_is_read() -> None:
    lane = Lane(Steering(AIMD.published(1.0), MOST, load=lambda: 0.5), run=lambda _: 0.001).go(1)
    assert 50 < lane.steering.limit <= 50 * 1.2**4


# PID on utilisation. With a host that is busy between batches, larger ones keep the lane busier


def shared(seed: int | None = None) -> Callable[[int], float]:
    """A model's run times, with noise or without."""
    rng = random.Random(seed)
    return affine if seed is None else lambda items: affine(items) * rng.uniform(0.9, 1.1)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize(("target", "fits"), [(0.6, 28), (0.7, 49), (0.8, 90), (0.9, 216)])
def test_pid_settles(target: float, fits: int, seed: int | None) -> None:
    lane = Lane(Steering(PID(target, low=1), MOST, load="busy"), run=shared(seed), gap=0.005).go(120).go(60)
    assert statistics.fmean(lane.limits) == pytest.approx(fits, rel=0.1)
    assert max(lane.limits) - min(lane.limits) <= max(2, 0.15 * fits)
    busy = sum(lane.times) / (sum(lane.times) + 0.005 * len(lane.times))
    assert busy == pytest.approx(target, abs=0.02)


def test_pid_is_clamped_and_winds_nothing_up() -> None:
    gap = 0.005
    steering = Steering(PID(0.9, low=20), 64, load="busy")
    lane = Lane(steering, gap=gap).go(600)  # 216 would fit, 64 may
    assert steering.limit == 64
    lane.gap = 0.0  # now it is far too busy
    assert lane.go(3).limits[-1] < 64  # what it wanted for ten minutes is not made up for first
    assert lane.go(120).limits[-1] == 20
    lane.gap = gap
    assert lane.go(3).limits[-1] > 20
    assert lane.go(120).limits[-1] == 64


@pytest.mark.parametrize("load", [None, lambda: None, lambda: math.nan])
@pytest.mark.parametrize("controller", [PID(), Step()])
def test_without_a_load_nothing_moves(controller: Controller, load: Callable[[], float | None] | None) -> None:
    assert set(Lane(Steering(Start(controller, 50), MOST, load=load)).go(60).limits) == {50}


class Start:
    """A controller that begins in the middle."""

    def __init__(self, controller: Controller, start: int) -> None:
        self.update = controller.update
        self.start = start
        self.every = getattr(controller, "every", 0.25)


# Gradient


@pytest.mark.parametrize("fits", [16, 64])
def test_gradient_finds_where_a_model_is_full(fits: int) -> None:
    lane = Lane(Steering(Gradient(), MOST), run=lambda items: 0.01 * max(1.0, items / fits)).go(120).go(60)
    assert fits <= statistics.median(lane.limits) <= 2 * fits


# Failing models (G1)


def by_turns() -> Callable[[], bool]:
    state = [False]

    def fails() -> bool:
        state[0] = not state[0]
        return state[0]

    return fails


def by_chance(seed: int) -> Callable[[], bool]:
    rng = random.Random(seed)
    return lambda: rng.random() < 0.5


@pytest.mark.parametrize("run", [affine, lambda items: 0.4], ids=["fast", "slow"])
@pytest.mark.parametrize("fails", [by_turns(), by_chance(1), by_chance(2), by_chance(3)], ids=["turns", "1", "2", "3"])
@pytest.mark.parametrize(
    "make",
    [lambda: AIMD.published(0.5), lambda: AIMD(0.5), AIMD, lambda: PID(0.8), Gradient, lambda: Step(0.1)],
    ids=["published", "aimd", "drops", "pid", "gradient", "step"],
)
def test_a_model_of_which_half_fails_at_once_does_not_grow(
    make: Callable[[], Controller], fails: Callable[[], bool], run: Callable[[int], float]
) -> None:
    controller = make()
    steering = Steering(Start(controller, 50), MOST, load=lambda: 0.2 if not isinstance(controller, Step) else 0.9)
    lane = Lane(steering, run=run, gap=0.005, fails=fails).go(60)
    assert max(lane.limits) == 50
    assert len(lane.limits) >= 100 and steering.last is not None


@pytest.mark.parametrize("make", [lambda: AIMD.published(0.5), Gradient], ids=["published", "gradient"])
def test_where_all_fails_it_shrinks(make: Callable[[], Controller]) -> None:
    lane = Lane(Steering(Start(make(), 50), MOST, load=lambda: 0.2), fails=lambda: True, gap=0.005).go(60)
    assert lane.limits[-1] <= 10 and lane.limits == sorted(lane.limits, reverse=True)
