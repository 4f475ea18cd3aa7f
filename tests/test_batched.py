"""@relay.batched: a function over a list as a function of one item."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def test_calls_share_batches(lab: Lab) -> None:
    model = lab.model(lambda x: x * 2, held=True)

    def double(items: list[int]) -> list[int]:
        """Doubles."""
        return list(model(items))

    f = lab.batched(double)
    assert (f.__name__, f.__doc__, f.__wrapped__, f.function) == ("double", "Doubles.", double, double)
    answers: list[int] = []
    threads = [lab.run_thread(lambda i=i: answers.append(f(i))) for i in range(10)]
    model.wait_until_running()
    lab.wait_until(lambda: f.relay.snapshot().open == 10)
    model.free()
    for thread in threads:
        thread.join(30)
    assert sorted(answers) == [2 * i for i in range(10)]
    assert len(model.batches) < 10
    name = "test_calls_share_batches.<locals>.double"
    assert f.relay.name == name and repr(f) == f"<batched <Relay {name!r} {lab.backend} 0 open>>"
    f.close()
    with pytest.raises(relay.Closed):
        f(1)


def test_options_and_submits(lab: Lab) -> None:
    @lab.batched(max_batch_size=3, max_queue=16, name="mine")  # type: ignore[untyped-decorator]
    def f(items: list[int]) -> list[int]:
        assert len(items) <= 3
        return [x + 1 for x in items]

    assert f.relay.name == "mine" and f.relay.limits.max_queue == 16
    assert f.submit(1).result(30) == 2
    assert f.submit_many(range(10)).result(30) == list(range(1, 11))
    assert list(f.map(range(40))) == list(range(1, 41))

    async def main() -> list[int]:
        first = [await f.submit(1), await f.relay.run_async(2)]
        return first + [y async for y in f.map_async([3, 4])]

    assert asyncio.run(main()) == [2, 3, 4, 5]
    asyncio.run(f.aclose())
    with pytest.raises(TypeError, match="unexpected keyword argument 'size_of_a_batch'"):
        lab.batched(size_of_a_batch=3)(lambda items: items)


def test_parameters(lab: Lab) -> None:
    @lab.batched  # type: ignore[untyped-decorator]
    def power(items: list[int], exponent: int = 1, *, plus: int = 0) -> list[int]:
        return [x**exponent + plus for x in items]

    assert [power(3), power(3, exponent=2), power(3, 3), power(3, 2, plus=1)] == [3, 9, 27, 10]
    for call, text in (
        (lambda: power(3, other=1), r"power\(\) got an unexpected keyword argument 'other'"),
        (lambda: power(3, 1, 2), "takes one item, and exponent, but got 3 arguments; for several items use map"),
        (lambda: power(3, 1, exponent=2), "multiple values for argument 'exponent'"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=text):
            call()
    assert power.relay.snapshot().batches == 4  # the wrong ones never came so far
    power.close()


def test_parameters_that_must_be_given(lab: Lab) -> None:
    def top(items: list[int], *, k: int) -> list[int]:
        return [x + k for x in items]

    def mixed(items: list[int], *, k: list[int | None]) -> list[int]:
        return [x + (n or 0) for x, n in zip(items, k, strict=True)]

    f, g = lab.batched(top), lab.batched(mixed=("k",))(mixed)
    with pytest.raises(TypeError, match=r"top\(\) misses the argument 'k'"):
        f(1)
    assert f(1, k=2) == 3
    assert [g(1, k=2), g(1)] == [3, 1]
    f.close()
    g.close()


def test_keywords_of_any_kind(lab: Lab) -> None:
    def f(items: list[int], **keywords: int) -> list[Any]:
        return [sorted(keywords.items())] * len(items)

    g = lab.batched(f)
    assert g(1, timeout=3, priority=2) == [("priority", 2), ("timeout", 3)]  # the function's, not the relay's
    g.close()
    with pytest.raises(TypeError, match="must take a list of items"):
        lab.batched(lambda: [])
    with pytest.raises(TypeError, match="positional-only parameters after its items"):
        lab.batched(lambda items, n, /: items)


def test_errors(lab: Lab) -> None:
    @lab.batched  # type: ignore[untyped-decorator]
    def f(items: list[int]) -> list[Any]:
        return [ValueError(x) if x < 0 else x for x in items]

    assert f(1) == 1
    with pytest.raises(ValueError, match="-1"):
        f(-1)
    assert [type(y) for y in f.map([1, -1], return_exceptions=True)] == [int, ValueError]
    f.close()


def test_key_shares_runs(lab: Lab) -> None:
    model = lab.model(held=True)

    def f(items: list[dict[str, int]]) -> list[int]:
        return [each["n"] for each in model(items)]

    g = lab.batched(key=lambda item: item["n"])(f)
    plug = g.submit({"n": 0})
    model.wait_until_running()
    tickets = [g.submit({"n": 1}) for _ in range(5)]
    model.free()
    assert [ticket.result(30) for ticket in (plug, *tickets)] == [0, 1, 1, 1, 1, 1]
    assert g.relay.snapshot().merged == 4
    g.close()


def test_a_coroutine_function(lab: Lab) -> None:
    seen: list[Any] = []

    @lab.batched(max_batch_size=8)  # type: ignore[untyped-decorator]
    async def f(items: list[int], *, plus: int = 1) -> list[int]:
        seen.append((len(items), asyncio.get_running_loop()))
        await asyncio.sleep(0)
        return [x + plus for x in items]

    assert inspect.iscoroutinefunction(f) and asyncio.iscoroutinefunction(f)
    assert inspect.iscoroutinefunction(functools.partial(f, plus=2))

    async def main() -> None:
        waiting = f(1)
        assert asyncio.iscoroutine(waiting) and inspect.isawaitable(waiting)
        assert await waiting == 2
        assert await asyncio.gather(*(f(i, plus=2) for i in range(16))) == list(range(2, 18))
        assert await f.submit(5) == 6 and await asyncio.create_task(f(6)) == 7
        with pytest.raises(TypeError, match="unexpected keyword"):
            f(1, other=2)
        with pytest.raises(RuntimeError, match="Ticket.result"):
            f.submit(1).result()
        assert {loop for _, loop in seen} == {asyncio.get_running_loop()}
        assert max(count for count, _ in seen) == 8
        await f.aclose()

    asyncio.run(main())


def test_cancelling_a_coroutine_call(lab: Lab) -> None:
    async def main() -> None:
        entered, go = asyncio.Event(), asyncio.Event()

        @lab.batched  # type: ignore[untyped-decorator]
        async def f(items: list[int]) -> list[int]:
            entered.set()
            await go.wait()
            return items

        first = asyncio.create_task(f(1))
        await entered.wait()
        second = asyncio.create_task(f(2))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert f.relay.snapshot().cancelled == 1
        go.set()
        assert await first == 1
        await f.aclose()

    asyncio.run(main())


def test_objects_and_partials(lab: Lab) -> None:
    class Adder:
        def __init__(self, n: int) -> None:
            self.n = n

        def __call__(self, items: list[int]) -> list[int]:
            return [x + self.n for x in items]

    class Later(Adder):
        async def __call__(self, items: list[int]) -> list[int]:  # type: ignore[override]
            return [x + self.n for x in items]

    f, g = lab.batched(Adder(3)), lab.batched(Later(4))
    h = lab.batched(functools.partial(lambda n, items: [x + n for x in items], 5))
    assert (f(1), asyncio.run(g(1)), h(1)) == (4, 5, 6)
    assert inspect.iscoroutinefunction(g) and not inspect.iscoroutinefunction(f)
    assert f.relay.name.endswith("Adder") and h.relay.name == "partial"
    f.close()
    g.close()
    h.close()


def test_what_cannot_be_batched(lab: Lab) -> None:
    def stream(items: list[int]) -> Any:
        yield from items

    def method(self: Any, items: list[int]) -> Any:
        yield from items

    for function in (stream, method, 3):
        with pytest.raises(TypeError, match="cannot be a model|must be callable"):
            lab.batched(function)
    with pytest.raises(ValueError, match="max_batch_size must be at least 1"):
        lab.batched(max_batch_size=0)(lambda items: items)


def test_not_pickled_but_shared(lab: Lab) -> None:
    f = lab.batched(len_of)
    with pytest.raises(
        TypeError, match="the batched len_of cannot be pickled, for its queue and its threads belong to"
    ):
        pickle.dumps(f)
    assert copy.copy(f) is f and copy.deepcopy([f])[0] is f
    assert pickle.loads(pickle.dumps(f.function)) is len_of


def len_of(items: list[str]) -> list[int]:
    return [len(item) for item in items]


def test_nothing_starts_at_decoration() -> None:
    before = set(threading.enumerate())

    @relay.batched
    def f(items: list[int]) -> list[int]:
        return items

    assert set(threading.enumerate()) <= before  # one that another test has left may end meanwhile
