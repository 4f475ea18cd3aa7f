"""Pools on either side of the core: a plugin with the fixtures `make`, `clock` and `run`.

Test files that ask for them say ``pytest_plugins = ["pools"]``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Loops, Make, Run

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


@pytest.fixture
def clock(lab: Lab) -> Any:
    """The `FakeClock` of the pools of this test."""
    return lab.clock()


@pytest.fixture
def make(lab: Lab, clock: Any) -> Iterator[Make]:
    """Makes pools; when the test is over they must be empty, and are recounted and closed."""
    pools: list[Any] = []

    def pool(capacity: int, **options: Any) -> Any:
        options.setdefault("clock", clock)
        pools.append(lab.TokenPool(capacity, **options))
        return pools[-1]

    yield pool
    for one in pools:
        one.check()
        assert (one.held, one.waiting) == (0, 0), one
        assert not one._timed and len(one._timers) == 0
        one.close()


@pytest.fixture
def run(lab: Lab, loops: Loops) -> Run:
    """Runs a coroutine on a new loop, of either kind."""
    return lambda main: lab.run(loops, main)


@pytest.fixture
def switching() -> Iterator[None]:
    """The interpreter switches threads as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
