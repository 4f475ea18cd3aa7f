"""What the tests of pools share beside the fixtures of `pools`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Make = Callable[..., Any]
Run = Callable[[Coroutine[Any, Any, Any]], Any]
Loops = Callable[[], asyncio.AbstractEventLoop]


async def turns(n: int = 3) -> None:
    """Let the loop go round so many times."""
    for _ in range(n):
        await asyncio.sleep(0)
