"""@relay.batched: a function over a list as a function of one item."""

from __future__ import annotations

import asyncio
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
    assert (f.__name__, f.__doc__, f.__wrapped__) == ("double", "Doubles.", double)
    answers: list[int] = []
    threads = [lab.run_thread(lambda i=i: answers.append(f(i))) for i in range(10)]
    model.wait_until_running()
    lab.wait_until(lambda: f.relay.snapshot().open == 10)
    model.free()
    for thread in threads:
        thread.join(30)
    assert sorted(answers) == [2 * i for i in range(10)]
    assert len(model.batches) < 10
    assert repr(f) == f"<batched <Relay 'double' {lab.backend} 0 open>>"
    f.relay.close()


def test_options_and_submits(lab: Lab) -> None:
    @lab.batched(max_batch_size=3, max_queue=16, name="mine")  # type: ignore[untyped-decorator]
    def f(items: list[int]) -> list[int]:
        assert len(items) <= 3
        return [x + 1 for x in items]

    assert f.relay.name == "mine" and f.relay.limits.max_queue == 16
    assert f.submit(1).result(30) == 2
    assert f.submit_many(range(10)).result(30) == list(range(1, 11))

    async def main() -> list[int]:
        return [await f.submit(1), await f.relay.run_async(2)]

    assert asyncio.run(main()) == [2, 3]
    f.relay.close()


def test_parameters(lab: Lab) -> None:
    @lab.batched  # type: ignore[untyped-decorator]
    def power(items: list[int], *, exponent: int = 1) -> list[int]:
        return [x**exponent for x in items]

    assert [power(3), power(3, exponent=2), power(3, exponent=3)] == [3, 9, 27]
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        power(3, other=1)
    power.relay.close()


def test_errors(lab: Lab) -> None:
    @lab.batched  # type: ignore[untyped-decorator]
    def f(items: list[int]) -> list[Any]:
        return [ValueError(x) if x < 0 else x for x in items]

    assert f(1) == 1
    with pytest.raises(ValueError, match="-1"):
        f(-1)
    f.relay.close()


def test_what_it_does_not_do_yet(lab: Lab) -> None:
    with pytest.raises((TypeError, RuntimeError)) as caught:

        class Service:
            @lab.batched  # type: ignore[untyped-decorator]
            def embed(self, items: list[int]) -> list[int]:
                return items

    error = caught.value if isinstance(caught.value, TypeError) else caught.value.__cause__
    assert "works on functions, not yet on methods; in Service.__init__ write self.embed = relay.Relay" in str(error)
    with pytest.raises(TypeError, match="coroutine models are not supported yet"):

        @lab.batched  # type: ignore[untyped-decorator]
        async def f(items: list[int]) -> list[int]:
            return items


def test_nothing_starts_at_decoration() -> None:
    before = threading.active_count()

    @relay.batched
    def f(items: list[int]) -> list[int]:
        return items

    assert threading.active_count() == before
