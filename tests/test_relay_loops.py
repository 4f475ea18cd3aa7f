"""Relays and event loops: asyncio and uvloop, one wake-up for each loop and batch, many loops, many tasks."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

Loops = Callable[[], asyncio.AbstractEventLoop]


class Counting:
    """Stands for a loop where it is asked for its wake-ups, and counts them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.calls = 0
        self._loop = loop

    def call_soon_threadsafe(self, *args: Any) -> Any:
        self.calls += 1
        return self._loop.call_soon_threadsafe(*args)


def test_one_wake_up_for_each_batch(lab: Lab, loops: Loops) -> None:
    model = lab.model()
    r = lab.start(model, max_batch_size=16)

    async def main() -> None:
        counting = Counting(asyncio.get_running_loop())
        model.hold()
        r.submit("plug")
        model.wait_until_running()
        tickets = [r.submit(i) for i in range(64)]
        tasks = [asyncio.ensure_future(wait(ticket)) for ticket in tickets]
        group = r.submit_many(range(16))
        tasks.append(asyncio.ensure_future(wait(group)))
        await asyncio.sleep(0)
        for ticket in [*tickets, group]:
            ticket._waiters[:] = [(counting, waiter[1]) for waiter in ticket._waiters]
        model.free()
        assert (await asyncio.gather(*tasks)) == [*range(64), list(range(16))]
        assert counting.calls == 5  # 64 tickets and a group of 16: five batches

    async def wait(ticket: Any) -> Any:
        return await ticket

    lab.run(loops, main())


def test_a_thousand_tasks(lab: Lab, loops: Loops) -> None:
    """Closed loop on a model that does nothing: every answer belongs to its question."""
    r = lab.start(lab.model(lambda x: (x,)), max_queue=1024)
    per_task = 3

    async def client(number: int) -> None:
        for i in range(per_task):
            assert await r.run_async(f"{number} {i}") == (f"{number} {i}",)

    async def main() -> None:
        await asyncio.gather(*(client(number) for number in range(1000)))

    lab.run(loops, main())
    assert r.snapshot().items == 1000 * per_task
    lab.idle(r)


def test_a_thousand_tasks_before_a_small_queue(lab: Lab, loops: Loops) -> None:
    r = lab.start(lab.model(lambda x: (x,)), max_queue=32)

    async def main() -> None:
        answers = await asyncio.gather(*(r.run_async(i, priority=i % 3) for i in range(1000)))
        assert answers == [(i,) for i in range(1000)]
        assert [y async for y in r.map_async(range(100))] == [(i,) for i in range(100)]

    lab.run(loops, main())
    lab.idle(r)


def test_c4_loop_after_loop(lab: Lab, loops: Loops) -> None:
    r = lab.start(lab.model())

    async def main(n: int) -> None:
        assert await r.run_async(n) == n
        assert await r.submit_many(range(n)) == list(range(n))

    for n in range(3):
        lab.run(loops, main(n))


def test_c4_two_loops_in_two_threads(lab: Lab, loops: Loops) -> None:
    model = lab.model()
    r = lab.start(model, merge=True)
    ended: list[Any] = []

    async def main(name: str) -> None:
        answers = await asyncio.gather(*(r.run_async((name, i % 20)) for i in range(200)))
        assert answers == [(name, i % 20) for i in range(200)]
        assert await r.submit("shared") == "shared"
        ended.append(name)

    threads = [lab.run_thread(lab.run, loops, main(name)) for name in "abc"]
    for thread in threads:
        thread.join(30)
    assert sorted(ended) == ["a", "b", "c"]


def test_one_ticket_awaited_on_two_loops_and_a_thread(lab: Lab, loops: Loops) -> None:
    model = lab.model(held=True)
    r = lab.start(model)
    ticket = r.submit("x")
    answers: list[Any] = []

    async def main() -> None:
        answers.append(await ticket)

    threads = [lab.run_thread(lab.run, loops, main()) for _ in range(2)]
    threads.append(lab.run_thread(lambda: answers.append(ticket.result())))
    lab.wait_until(lambda: len(ticket._waiters) == 3)
    model.free()
    for thread in threads:
        thread.join(30)
    assert answers == ["x"] * 3


async def wait(ticket: Any) -> Any:
    return await ticket


def test_d1_many_cancel(lab: Lab, loops: Loops, rng: random.Random) -> None:
    """30 % cancel at once or a few turns later; each gets its own answer or its cancel, and ten more are answered."""
    model = lab.model(lambda x: (x,))
    r = lab.start(model, max_batch_size=8)
    turns = [rng.choice([None, None, None, None, None, None, None, 0, 1, 5]) for _ in range(2000)]
    ends: Counter[str] = Counter()

    async def ask(i: int, after: int | None) -> None:
        task = asyncio.ensure_future(r.run_async(i))
        if after is not None:
            for _ in range(after):
                await asyncio.sleep(0)
            task.cancel()
        try:
            assert await task == (i,)
            ends["answered"] += 1
        except asyncio.CancelledError:
            ends["cancelled"] += 1

    async def main() -> None:
        for start in range(0, 2000, 100):
            await asyncio.gather(*(ask(i, turns[i]) for i in range(start, start + 100)))
        assert await asyncio.gather(*(r.run_async(i) for i in range(10))) == [(i,) for i in range(10)]

    lab.run(loops, main())
    assert ends.total() == 2000 and ends["answered"] >= turns.count(None)
    lab.idle(r)


def test_cancelling_while_answers_come(lab: Lab, loops: Loops) -> None:
    """Row C3, reduced: the lane survives futures that are cancelled while it answers them."""
    r = lab.start(lab.model())

    async def main() -> None:
        for _ in range(50):
            tasks = [asyncio.ensure_future(wait(r.submit(i))) for i in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert ends[1::2] == list(range(1, 20, 2))

    lab.run(loops, main())
    assert r.healthy
    lab.idle(r)


def test_errors_reach_tasks(lab: Lab, loops: Loops) -> None:
    def row(x: int) -> Any:
        raise KeyError(x)

    r = lab.start(lab.model(row))

    async def main() -> None:
        ends = await asyncio.gather(*(r.run_async(i) for i in range(20)), return_exceptions=True)
        assert {type(end) for end in ends} == {KeyError}
        ticket = r.submit(1)
        ticket.cancel()
        with pytest.raises(relay.RequestCancelled):
            await ticket

    lab.run(loops, main())


def test_a_model_sees_an_empty_context(lab: Lab, loops: Loops) -> None:
    """Row C5: what the first caller's context holds is not for the others."""
    from contextvars import ContextVar

    variable: ContextVar[str] = ContextVar("tenant", default="none")
    r = lab.start(lambda items: [variable.get() for _ in items])

    async def main() -> str:
        variable.set("a")
        answer: str = await r.run_async(1)
        return answer

    assert lab.run(loops, main()) == "none"
