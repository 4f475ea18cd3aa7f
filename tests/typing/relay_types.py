"""What type checkers see of a relay, its tickets, and batched functions. Checked, never run."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import relay
from relay import Batch, Relay, Ticket


def lengths(items: list[str]) -> list[int]:
    return [len(item) for item in items]


def pooled(batch: Batch[str]) -> list[float]:
    assert_type(batch.items, list[str])
    assert_type(len(batch), int)
    assert_type(batch.params, dict[str, Any])
    return [float(n) for n in batch.lengths]


r: Relay[str, int] = Relay(lengths, max_batch_size=8, limits=relay.Limits(max_followers=3))
assert_type(Relay[str, float](pooled), Relay[str, float])

assert_type(r.submit("x"), Ticket[int])
assert_type(r.submit("x", priority="realtime", deadline=1, tenant="t", params={"k": 1}), Ticket[int])
assert_type(r.submit_many(["x"]), Ticket[list[int]])
assert_type(r("x"), int)
assert_type(r("x", timeout=1.0, priority=0), int)
assert_type(r.map(["x"]), Iterator[int])
assert_type(r.map_async(["x"]), AsyncIterator[int])
assert_type(r.drain(), int)
assert_type(r.snapshot(), relay.RelaySnapshot)
assert_type(r.snapshot().open, int)
assert_type(r.backend, str)
r.submit(3)  # type: ignore[arg-type]
r.submit("x", priority=1.5)  # type: ignore[arg-type]
r.submit("x", 1)  # type: ignore[call-arg]
Relay("no model")  # type: ignore[arg-type]

assert_type(relay.preprocess("x"), tuple[str, npt.NDArray[np.int64]])
relay.preprocess("x", "sha1")  # type: ignore[arg-type]
relay.preprocess(b"x")  # type: ignore[arg-type]

ticket = r.submit("x")
assert_type(ticket.result(), int)
assert_type(ticket.result(timeout=1), int)
assert_type(ticket.exception(), BaseException | None)
assert_type(ticket.cancel(), bool)
assert_type(ticket.done(), bool)
assert_type(ticket.timing, relay.Timing | None)
assert_type(ticket.size, int)


def told(ticket: Ticket[int]) -> None: ...


ticket.add_done_callback(told)


async def main() -> None:
    assert_type(await r.submit("x"), int)
    assert_type(await r.submit_many(["x"]), list[int])
    assert_type(await r.run_async("x", timeout=1), int)
    assert_type([y async for y in r.map_async(["x"])], list[int])
    assert_type(await r.drain_async(), int)
    async with r as same:
        assert_type(same, Relay[str, int])


with r as same:
    assert_type(same, Relay[str, int])
