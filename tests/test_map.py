"""map and map_async: lazy, in order, and nothing left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def test_map_is_lazy_and_in_order(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_queue=8)
    read: list[int] = []

    def items() -> Any:
        for i in range(50):
            read.append(i)
            yield i

    answers = r.map(items())
    assert read == [] and r.snapshot().open == 0
    waiting = lab.call(next, answers)
    lab.wait_until(lambda: len(read) == 5)  # the fifth waits in hand
    assert r.snapshot().open == 4  # half the places
    model.free()
    assert waiting.result() == 0
    assert list(answers) == list(range(1, 50))
    assert r.submit(0).priority == relay.INTERACTIVE and r.submit(0, priority="batch").priority == relay.BATCH


def test_map_left_before_its_end(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, max_queue=20, max_batch_size=1)
    answers = r.map(range(100))
    assert next(answers) == 0
    with lab.testing.paused(r, model, "plug"):
        r.submit("last", priority=255)
        answers.close()
        assert r.snapshot().queued <= 1

    async def main() -> None:
        answers = r.map_async(range(100))
        async for y in answers:
            assert y == 0
            break
        await answers.aclose()

    asyncio.run(main())
    lab.idle(r)


def test_map_async_cancelled(lab: Lab) -> None:
    """Also the item that is just awaited is given up."""
    model = lab.model(held=True)
    r = lab.start(model, max_queue=8)

    async def take() -> None:
        async for _ in r.map_async(range(100)):
            raise AssertionError

    async def main() -> None:
        task = asyncio.ensure_future(take())
        await asyncio.sleep(0)
        assert r.snapshot().open == 4
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert r.snapshot().open == 0

    asyncio.run(main())


def test_map_with_errors(lab: Lab) -> None:
    r = lab.start(lab.model(lambda x: ValueError(x) if x % 2 else x), max_batch_size=2)
    answers = r.map(range(4))
    assert next(answers) == 0
    with pytest.raises(ValueError, match="1"):
        next(answers)
    assert [repr(y) for y in r.map(range(4), return_exceptions=True)] == ["0", "ValueError(1)", "2", "ValueError(3)"]

    async def main() -> list[str]:
        return [repr(y) async for y in r.map_async(range(2), return_exceptions=True)]

    assert asyncio.run(main()) == ["0", "ValueError(1)"]
    sized = lab.start(lab.model(), max_batch_tokens=3)
    answers = sized.map(["a", "aaaa", "b"], return_exceptions=True)
    assert [type(y).__name__ for y in answers] == ["str", "TooLarge", "str"]
    lab.idle(r, sized)


def test_map_items_raise(lab: Lab) -> None:
    def items() -> Any:
        yield 1
        raise KeyError("out")

    r = lab.start(lab.model())
    with pytest.raises(KeyError):
        list(r.map(items()))
    lab.idle(r)


def test_map_of_more_than_the_queue_holds(lab: Lab) -> None:
    r = lab.start(lab.model(lambda x: x * 2), max_queue=4, max_batch_size=3)
    maps = [lab.call(lambda: list(r.map(range(300)))) for _ in range(3)]
    assert [m.result() for m in maps] == [[2 * x for x in range(300)]] * 3
    lab.idle(r)


def test_a_queue_of_one(lab: Lab) -> None:
    r = lab.start(lab.model(), max_queue=1)
    assert list(r.map(range(5))) == list(range(5))
    lab.idle(r)
