"""Texts of 27 MB, as a client may send by mistake: the event loop they are submitted on goes on turning.

How long the loop stands still is set against what a single look at so many characters takes, and against what the
same loop shows while short texts are submitted; of several rounds, the one that was disturbed least counts.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("tokenizers", reason="needs the extra hf")

from relay.modelfolder import find

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]
pytestmark = pytest.mark.hf

CHARS = 27_000_000
ROUNDS = 4
UNITS = {"words": "hello world ", "one word": "x", "spaces": " ", "chinese": "日本", "long words": "y" * 300 + " "}


@pytest.fixture(params=[0.005, 0.0002], ids=["usual-interval", "short-interval"])
def interval(request: pytest.FixtureRequest) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(request.param)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module", params=UNITS)
def text(request: pytest.FixtureRequest) -> str:
    unit = UNITS[request.param]
    return unit * (CHARS // len(unit))


async def longest_stop(r: Any, texts: list[str]) -> float:
    """For how long the loop did not turn at worst, in seconds, while texts were submitted one after the other."""
    worst, last, over = 0.0, time.perf_counter(), False

    async def tick() -> None:
        nonlocal worst, last
        while not over:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            worst, last = max(worst, now - last - 0.001), now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    for each in texts:
        assert await r.run_async(each) == 0
        await r.submit(each)
    over = True
    await ticking
    return worst


def test_the_loop_goes_on(lab: Lab, text: str, interval: None) -> None:
    def model(batch: Any) -> list[int]:
        return [0] * len(batch.items)

    tokenizer = importlib.import_module("relay.tokenizer").FastTokenizer(find("minilm") / "tokenizer.json", 256)
    r = lab.start(model, tokenizer=tokenizer)
    assert r("first") == 0
    one_look = min(_one_look() for _ in range(3))
    huge, control = [], []
    for number in range(ROUNDS):
        control.append(asyncio.run(longest_stop(r, [f"{number} {i} short " * 6 for i in range(20)])))
        huge.append(asyncio.run(longest_stop(r, [text, text])))
    print(f"\nstops {min(huge) * 1e3:.2f} ms, control {min(control) * 1e3:.2f} ms, one look {one_look * 1e3:.2f} ms")
    assert min(huge) < min(control) + one_look / 6
    lab.idle(r)


def _one_look() -> float:
    """How long it takes to look at as many characters once, in a way that is common: to hash them."""
    began = time.perf_counter()
    hashlib.blake2b(bytes(CHARS))
    return time.perf_counter() - began
