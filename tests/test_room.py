"""Waiting for room: r(x) and run_async before a full queue."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def test_waits_for_room_by_priority(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_queue=1)
    lab.fill(r)
    waiting = []
    for n, (name, priority) in enumerate([("c", 2), ("b", 1), ("b2", 1), ("a", 0)]):
        waiting.append(lab.call(r, name, priority=priority))
        lab.in_line(r, n + 1)
    model.free()
    assert [w.result() for w in waiting] == ["c", "b", "b2", "a"]
    assert model.batches == [["fill"], ["a"], ["b"], ["b2"], ["c"]]
    lab.idle(r)


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_timeout(lab: Lab, timeout: float) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_queue=1)
    lab.fill(r)
    with pytest.raises(relay.Overloaded, match="no room") as caught:
        r(1, timeout=timeout)
    assert caught.value.__notes__ == [f"waited for room for timeout={timeout} s"]
    with pytest.raises(relay.Overloaded):
        list(r.map([1], timeout=timeout))

    async def main() -> None:
        with pytest.raises(relay.Overloaded):
            await r.run_async(1, timeout=timeout)
        with pytest.raises(relay.Overloaded):
            [y async for y in r.map_async([1], timeout=timeout)]

    asyncio.run(main())
    assert r.snapshot().waiting == 0 and r._desk.queue.free == 0
    model.free()
    assert r(2) == 2


def test_timeout_on_a_fake_clock(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, max_queue=1, clock=clock)
    lab.fill(r)
    waiting = lab.call(r, 1, timeout=5)
    clock.wait_for_sleepers(1)
    clock.advance(4.9)
    lab.in_line(r, 1)
    clock.advance(0.1)
    with pytest.raises(relay.Overloaded):
        waiting.result()
    assert r.snapshot().waiting == 0


def test_drain_sends_those_in_line_away_and_answers_the_others(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_queue=2)
    tickets = lab.fill(r)
    waiting = lab.call(r, 1)
    lab.in_line(r, 1)
    draining = lab.call(r.drain)
    with pytest.raises(relay.Closed):
        waiting.result()
    model.free()
    assert draining.result() == 0
    assert [ticket.result(0) for ticket in tickets] == ["fill"] * 2


def test_nobody_slips_in(lab: Lab) -> None:
    """A place that becomes free belongs to those in line, from the moment on when it becomes free."""
    model = lab.model(held=True)
    r = lab.start(model, max_queue=1)
    ticket = r.submit("first")
    model.wait_until_running()
    tried: list[Any] = []

    def try_to_slip_in(_: Any) -> None:  # runs on the lane, after the place is free and before the line is looked at
        for call in (partial(r.submit, "slip"), partial(r.submit_many, ["slip"])):
            with pytest.raises(relay.Overloaded):
                call()
            tried.append(r._desk.queue.free)

    waiting = lab.call(r, "patient")
    lab.in_line(r, 1)
    ticket.add_done_callback(try_to_slip_in)
    model.free()
    assert waiting.result() == "patient"
    assert len(tried) == 2
    assert model.batches == [["first"], ["patient"]]
    assert r("later") == "later"


def test_cancelled_while_waiting(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_queue=1)
    lab.fill(r)

    async def main() -> None:
        tasks = [asyncio.ensure_future(r.run_async(i)) for i in range(5)]
        await asyncio.sleep(0)
        assert r.snapshot().waiting == 5
        for task in tasks[:4]:
            task.cancel()
        await asyncio.gather(*tasks[:4], return_exceptions=True)
        assert r.snapshot().waiting == 1
        model.free()
        assert await tasks[4] == 4

    asyncio.run(main())
    lab.idle(r)


def test_cancelled_together_with_the_promise(lab: Lab) -> None:
    """The place is promised and the task cancelled in one turn of the loop: the cancel counts, the place goes on."""
    model = lab.model(held=True)
    r = lab.start(model, max_queue=1)
    first = r.submit("first")
    model.wait_until_running()

    async def main() -> None:
        one, two = asyncio.ensure_future(r.run_async(1)), asyncio.ensure_future(r.run_async(2))
        await asyncio.sleep(0)
        model.release()
        lab.wait_until(lambda: r.snapshot().waiting == 1)  # blocks the loop, so that the task cannot run
        one.cancel()
        model.free()
        with pytest.raises(asyncio.CancelledError):
            await one
        assert await two == 2

    asyncio.run(main())
    assert first.result(0) == "first"
    assert model.batches == [["first"], [2]]
    lab.idle(r)


def test_promises_do_not_leak(lab: Lab, rng: random.Random) -> None:
    """Waiters of all kinds give up, by time and by cancel, while places come and go."""
    r = lab.start(lab.model(), max_queue=3, max_batch_size=2)
    plans = [[rng.choice([None, 0, 1e-6, 1e-4]) for _ in range(150)] for _ in range(6)]
    seed = rng.randrange(2**32)
    answered: list[int] = []

    def threads(plan: list[float | None]) -> None:
        for i, timeout in enumerate(plan):
            try:
                assert r(i, timeout=timeout) == i
                answered.append(i)
            except relay.Overloaded:
                pass

    async def tasks() -> None:
        own = random.Random(seed)

        async def ask(i: int) -> None:
            try:
                assert await asyncio.wait_for(r.run_async(i), own.choice([None, 1e-6, 1e-3])) == i
                answered.append(i)
            except (relay.Overloaded, TimeoutError):
                pass

        for _ in range(10):
            await asyncio.gather(*(ask(i) for i in range(20)))

    running = [lab.run_thread(threads, plan) for plan in plans[:4]] + [lab.run_thread(asyncio.run, tasks())]
    for thread in running:
        thread.join(50)
        assert not thread.is_alive()
    assert answered and r.snapshot().waiting == 0
    lab.wait_until(lambda: len(r._desk.queue) == 0)
    assert r._desk.queue.free == 3
    lab.idle(r)
