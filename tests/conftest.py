"""Fixtures shared by all tests: the side of the core, seeds, reference data, and what a hung test leaves behind."""

from __future__ import annotations

import faulthandler
import importlib
import os
import random
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import TextIO, TypeVar

import hypothesis
import pytest

# Before any test imports one of them, for pytest cannot rewrite what is loaded already.
pytest.register_assert_rewrite("both", "pools", "collecting", "engine_kit")

T = TypeVar("T")

LIMIT_S = 60.0
LONG_LIMIT_S = 900.0
HANG_GRACE_S = 20.0  # past its limit a test that holds the GIL, or spins without it, is not reached by a signal

# No example is too slow: how long one takes to be drawn says more of what else the machine does.
hypothesis.settings.register_profile(
    "relay", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "relay"))

_seed = int(os.environ.get("RELAY_SEED") or random.SystemRandom().randrange(2**32))
_stderr: TextIO | None = None


class Core:
    """One side of the core: `core.heap` is the module `relay._<side>.heap`."""

    def __init__(self, side: str) -> None:
        self.side = side
        self.package = {"pure": "relay._pure", "native": "relay._core"}[side]
        self._watched: list[object] = []

    def __getattr__(self, part: str) -> ModuleType:
        try:
            return importlib.import_module(f"{self.package}.{part}")
        except ModuleNotFoundError as error:
            # Skip only on "not there": an extension that is there, for whatever interpreter, must load.
            if self.side == "pure" or error.name != f"{self.package}.{part}" or _extensions(part):
                raise
            pytest.skip(f"no native build of {part}")

    def watch(self, part: T) -> T:
        """Has `part.check()` called once more when the test is over; returns the part."""
        self._watched.append(part)
        return part

    def check(self) -> None:
        while self._watched:
            self._watched.pop().check()  # type: ignore[attr-defined]


def _extensions(part: str) -> list[Path]:
    folders = importlib.import_module("relay._core").__path__
    return [file for folder in folders for file in Path(folder).glob(f"{part}.*") if file.suffix in (".so", ".pyd")]


@pytest.fixture(params=["pure", "native"])
def core(request: pytest.FixtureRequest) -> Iterator[Core]:
    side = Core(request.param)
    yield side
    side.check()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number of this test's own, shown when it fails; RELAY_SEED repeats the run's."""
    number = random.Random(f"{_seed} {request.node.nodeid}").randrange(2**32)
    print(f"seed {number} (of RELAY_SEED={_seed})")
    return number


@pytest.fixture
def rng(seed: int) -> random.Random:
    return random.Random(seed)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data and recorded traces that lies next to the checkout."""
    folder = Path(os.environ.get("RELAY_SHARED") or Path(__file__).parents[2] / "shared")
    if not folder.is_dir():
        pytest.skip("no ../shared data")
    return folder


def pytest_report_header(config: pytest.Config) -> str:
    import relay

    forced = os.environ.get("RELAY_BACKEND", "")
    return f"relay: {Path(relay.__file__).parent}, RELAY_BACKEND={forced}, RELAY_SEED={_seed}"


def pytest_configure(config: pytest.Config) -> None:
    global _stderr
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background by a script, as a check may be: the tests of Ctrl-C need it all the same.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _stderr = os.fdopen(os.dup(2), "w")  # the real one: while tests run, descriptor 2 is captured


def pytest_unconfigure(config: pytest.Config) -> None:
    if _stderr is not None:
        _stderr.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_LIMIT_S if item.get_closest_marker("long") else LIMIT_S))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        torch = importlib.import_module("torch")
        if not torch.cuda.is_available():
            pytest.skip("no GPU")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """pytest-timeout fails a slow test; this ends, with all threads' stacks, one that cannot even be interrupted."""
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0] if marker is not None and marker.args else LIMIT_S)
    if limit and _stderr is not None:
        faulthandler.dump_traceback_later(limit + HANG_GRACE_S, exit=True, file=_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
