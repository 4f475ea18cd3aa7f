"""The arena on both sides: a lease and its end, a pin, a row of ids; run with pytest-benchmark."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

STEPS = 1000


@pytest.fixture(params=["_pure", "_core"])
def arena(request: pytest.FixtureRequest) -> Any:
    return importlib.import_module(f"relay.{request.param}.arena").Arena(256, 256 * 512, 512)


def lease_release(arena: Any) -> None:
    for _ in range(STEPS):
        arena.release(arena.lease(7, 8, 1, 0, 0, 0, False, True))


def lease_commit_release(arena: Any) -> None:
    for _ in range(STEPS):
        handle = arena.lease(7, 8)
        arena.commit(handle)
        arena.release(handle)


def lease_drop(arena: Any) -> None:
    for _ in range(STEPS):
        arena.drop(arena.lease(7, 8))


def pin_unpin(arena: Any) -> None:
    handle = arena.lease()
    for _ in range(STEPS):
        arena.pin(handle)
        arena.unpin(handle)
    arena.drop(handle)


def row_of_128(arena: Any) -> None:
    ids = list(range(128))
    for _ in range(STEPS):
        handle = arena.lease(7, 8, 1, 0, 0, 160, True)
        arena.write_ids(handle, ids)
        arena.unpin(handle)
        arena.drop(handle)


@pytest.mark.parametrize("task", [lease_release, lease_commit_release, lease_drop, pin_unpin, row_of_128])
def test_thousand(benchmark: Any, arena: Any, task: Callable[[Any], None]) -> None:
    benchmark.group = f"{task.__name__} x {STEPS}"
    benchmark(task, arena)
    assert len(arena) == 0
