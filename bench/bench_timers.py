"""Timers on both sides; run with pytest-benchmark."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any

import pytest

SIZES = [100, 10_000]
STEPS = 1000


def armed(side: str, size: int) -> Any:
    rng = random.Random(1)
    timers = importlib.import_module(f"relay.{side}.timers").Timers(size)
    for slot in range(size):
        timers.arm(slot, 10**15 + rng.randrange(10**9))
    return timers


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_arm_and_disarm(benchmark: Callable[..., object], side: str, size: int) -> None:
    """A request with a deadline that is answered in time: its timer is set and taken away again."""
    timers = armed(side, size)
    whens = [10**15 + when for when in random.Random(2).sample(range(10**9), STEPS)]

    def arm_and_disarm() -> None:
        arm, disarm = timers.arm, timers.disarm
        for when_ns in whens:
            disarm(0)
            arm(0, when_ns)

    benchmark(arm_and_disarm)
    timers.check()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_beat(benchmark: Callable[..., object], side: str, size: int) -> None:
    """A heartbeat: the holder's timer moves behind all others."""
    timers = armed(side, size)
    late = 10**15 + 10**9

    def beat() -> None:
        arm = timers.arm
        for step in range(STEPS):
            arm(step % size, late + step)

    benchmark(beat)
    timers.check()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("side", ["_pure", "_core"])
def test_due_none(benchmark: Callable[..., object], side: str, size: int) -> None:
    timers = armed(side, size)
    assert benchmark(lambda: [timers.due(0) for _ in range(STEPS)])[0] == []  # type: ignore[index]
