"""What the tests of the engine share: a model as either kind of lane runs it, a tokenizer of one id a letter.

A plugin with the fixture `kind`; test files that ask for it name it in ``pytest_plugins``.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import pytest

KINDS = ["plain", "coroutine"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """What a model is: a plain function, for a lane with a thread of its own, or a coroutine function."""
    return str(request.param)


def made(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A model of one kind that does what a plain function does."""
    if kind == "plain":
        return function

    async def model(batch: Any, **params: Any) -> Any:
        await asyncio.sleep(0)
        return function(batch, **params)

    return model


class Letters:
    """One id a letter. An item that begins with "bad" cannot be encoded."""

    max_length = 64
    pad_id = 0
    has_segments = False
    fingerprint = "letters"
    vocab_size = 1 << 20

    def check(self, item: object) -> None: ...

    def reserve(self, item: str) -> int:
        return len(item)

    def encode(self, items: Sequence[str]) -> list[Any]:
        return [
            ValueError(f"{item!r} has no ids") if item.startswith("bad") else ([ord(each) for each in item], -1)
            for item in items
        ]


def notes(error: BaseException | None) -> list[str]:
    """The notes of an error; there must be one."""
    assert error is not None
    return list(getattr(error, "__notes__", []))


def frames(error: BaseException | None) -> list[str]:
    """The names of the functions that an error came through."""
    assert error is not None
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]
