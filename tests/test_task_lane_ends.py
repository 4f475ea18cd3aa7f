"""Coroutine models whose loop ends while others wait for them, and what is not the model's to keep: Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

Loops = Callable[[], asyncio.AbstractEventLoop]


class Held:
    """A coroutine model whose calls wait on the first loop, and on no other."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.first: asyncio.AbstractEventLoop | None = None

    async def __call__(self, items: list[Any]) -> list[Any]:
        self.calls.append(list(items))
        loop = asyncio.get_running_loop()
        if self.first is None:
            self.first = loop
        if loop is self.first:
            await asyncio.sleep(3600)
        await asyncio.sleep(0)
        return items


# A loop ends under others.


def test_the_token_comes_back(lab: Lab, loops: Loops) -> None:
    """The batch fails with the loop that it ran on, and its token is free for the next."""
    pool, model = lab.pool(1), Held()
    r = lab.start(model, pool=pool)
    tickets: list[Any] = []

    async def main() -> None:
        tickets.append(r.submit("lost"))
        while not model.calls:
            await asyncio.sleep(0.001)

    lab.run(loops, main())
    assert type(tickets[0].exception(30)) is lab.Closed and tickets[0].exception().reason == "loop_closed"
    assert r("on") == "on" and r.healthy
    lab.wait_until(lambda: pool.snapshot().held == 0)
    lab.idle(r)


def test_a_model_that_cancels_itself(lab: Lab, loops: Loops) -> None:
    """It is not the loop's end, and looks like it: that batch fails, and the lane goes on."""
    calls = []

    async def model(items: list[Any]) -> list[Any]:
        calls.append(items)
        if items == ["bad"]:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(0)
        return items

    r = lab.start(model)

    async def main() -> None:
        with pytest.raises(lab.Closed):
            await r.run_async("bad")
        assert await r.run_async("on") == "on"

    lab.run(loops, main())
    assert calls == [["bad"], ["on"]]


def test_cancelled_before_its_first_turn(lab: Lab, loops: Loops) -> None:
    """The batch fails, as any whose loop ends; and the lane is not stuck."""
    calls = []

    async def model(items: list[Any]) -> list[Any]:
        calls.append(items)
        await asyncio.sleep(0)
        return items

    r = lab.start(model)

    async def main() -> None:
        assert await r.run_async("first") == "first"
        me, cut = asyncio.current_task(), []
        ticket = r.submit("second")
        for _ in range(9):
            await asyncio.sleep(0)
            cut = [task for task in asyncio.all_tasks() if task is not me]
            if cut:
                break
        for task in cut:
            task.cancel()
        assert len(calls) == 1, "its task has not begun"
        with pytest.raises(lab.Closed):
            await asyncio.wait_for(ticket, 30)
        assert await asyncio.wait_for(r.run_async("third"), 30) == "third"

    lab.run(loops, main())
    assert calls == [["first"], ["third"]]
    lab.idle(r)


@pytest.mark.parametrize("lanes", [1, 3])
def test_short_lived_loops_in_many_threads(lab: Lab, lanes: int) -> None:
    async def model(items: list[Any]) -> list[Any]:
        await asyncio.sleep(0.001)
        return items

    r = lab.start(model, lanes=lanes, max_batch_size=4)
    ends: Counter[str] = Counter()

    def ask(thread: int) -> None:
        for n in range(60):
            try:
                assert asyncio.run(asyncio.wait_for(r.run_async((thread, n)), 20)) == (thread, n)
                ends["answer"] += 1
            except lab.Closed as error:
                ends[error.reason] += 1

    threads = [lab.run_thread(ask, thread) for thread in range(8)]
    for thread in threads:
        thread.join(60)
    assert ends.total() == 480 and set(ends) <= {"answer", "loop_closed"} and ends["answer"] > 240, ends
    lab.idle(r)


def test_woken_on_another_loop_while_at_work(lab: Lab, loops: Loops) -> None:
    """The loop that it works on closes, although it has been told to go on elsewhere."""
    model = Held()
    r = lab.start(model)
    loop = loops()
    loop.call_soon(r.submit, "lost")
    while not model.calls:
        loop.run_until_complete(asyncio.sleep(0.001))
    lane = r._dispatcher.lanes[0]
    lane._home.leave(loop)
    ticket = r.submit("queued")  # wakes it on a loop of its own, where it finds itself at work
    lab.wait_until(lambda: lane.loop is not loop)
    loop.close()
    assert ticket.result(30) == "queued" and r.healthy
    lab.idle(r)


# What stops the loop.


def run(loops: Loops, main: Any, error: type[BaseException]) -> asyncio.AbstractEventLoop:
    loop = loops()
    with pytest.raises(error):
        loop.run_until_complete(main)
    return loop


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_stops_the_loop_stops_it(lab: Lab, loops: Loops, error: type[BaseException]) -> None:
    """As in any task. The batch ends, and the relay goes on where it can."""
    raising, calls = [error()], []

    async def model(items: list[Any]) -> list[Any]:
        calls.append(items)
        await asyncio.sleep(0)
        if raising:
            raise raising.pop()
        return items

    r = lab.start(model)
    tickets: list[Any] = []

    async def main() -> None:
        tickets.extend(r.submit(i) for i in range(4))
        await asyncio.sleep(30)

    loop = run(loops, main(), error)
    for ticket in tickets:
        end = ticket.exception(30)
        assert type(end) is lab.ModelError and type(end.__cause__) is error
    assert calls == [[0, 1, 2, 3]], "nothing is split, for it is not the model's"
    assert loop.run_until_complete(asyncio.wait_for(r.run_async("on"), 30)) == "on"
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert r("off") == "off" and r.healthy
    lab.idle(r)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such signals here")
def test_a_signal_while_the_model_runs(lab: Lab, loops: Loops) -> None:
    """Ctrl-C, or a handler of SIGTERM that calls ``sys.exit()``."""

    async def model(items: list[Any]) -> list[Any]:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            threading.Event().wait(0.001)
        return items

    r = lab.start(model)
    tickets: list[Any] = []

    async def main() -> None:
        tickets.append(r.submit(1))
        await asyncio.sleep(30)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        loop = run(loops, main(), KeyboardInterrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert type(tickets[0].exception(30)) is lab.ModelError
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    lab.idle(r)


def test_ctrl_c_after_the_model(lab: Lab, loops: Loops) -> None:
    """It comes up in what the lane does afterwards: those who are answered stay so, and whoever waits is told."""

    async def model(items: list[Any]) -> list[Any]:
        return items

    r = lab.start(model)
    lane = r._dispatcher.lanes[0]
    errors = [KeyboardInterrupt()]
    ticket: list[Any] = []
    done = lane.done

    def interrupted(work: Any) -> None:
        done(work)
        if errors:
            raise errors.pop()

    async def main() -> None:
        assert await r.run_async("first") == "first"
        lane.done = interrupted
        ticket.append(r.submit("second"))
        await asyncio.sleep(30)

    loop = run(loops, main(), KeyboardInterrupt)
    assert ticket[0].result(30) == "second"
    assert loop.run_until_complete(asyncio.wait_for(r.run_async("on"), 30)) == "on"
    del lane.done
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    lab.idle(r)


def test_elsewhere_it_is_the_models(lab: Lab) -> None:
    """No signal comes to another thread: there it can only be what the model has raised."""

    async def model(items: list[Any]) -> list[Any]:
        if items == ["bad"]:
            raise SystemExit("of the model")
        return items

    r = lab.start(model)
    ticket = r.submit("bad")
    assert type(ticket.exception(30)) is lab.ModelError
    assert r("on") == "on" and r.healthy
    lab.idle(r)
