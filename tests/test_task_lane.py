"""Coroutine models: on the loop of the first request, with no thread between; and their end with it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

Loops = Callable[[], asyncio.AbstractEventLoop]


class Slow:
    """A coroutine model whose calls wait until they are let go, and that notes where it was called."""

    def __init__(self, held: bool = True) -> None:
        self.held = held
        self.calls: list[tuple[list[Any], asyncio.AbstractEventLoop, threading.Thread]] = []
        self.waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.began = threading.Semaphore(0)
        self.cancelled = 0

    async def __call__(self, items: list[Any]) -> list[Any]:
        loop = asyncio.get_running_loop()
        self.calls.append((list(items), loop, threading.current_thread()))
        future = loop.create_future()
        self.waiting.append((loop, future))
        self.began.release()
        if self.held:
            try:
                await future
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        else:
            await asyncio.sleep(0)
        return items

    def free(self) -> None:
        self.held = False
        for loop, future in self.waiting:
            try:
                loop.call_soon_threadsafe(lambda future=future: future.done() or future.set_result(None))
            except RuntimeError:
                pass

    def wait(self) -> None:
        assert self.began.acquire(timeout=30)


def closed_in(ticket: Any, lab: Lab) -> None:
    with pytest.raises(lab.Closed) as caught:
        ticket.result(30)
    assert caught.value.reason == "loop_closed" and "submit again" in str(caught.value)


# Where it runs.


def test_on_the_callers_loop_with_no_thread(lab: Lab, loops: Loops) -> None:
    model = Slow(held=False)
    r = lab.start(model)
    threads = set(threading.enumerate())

    async def main() -> None:
        assert await asyncio.gather(*(r.run_async(i) for i in range(200))) == list(range(200))
        assert {loop for _, loop, _ in model.calls} == {asyncio.get_running_loop()}
        assert set(threading.enumerate()) == threads

    lab.run(loops, main())
    assert {thread for _, _, thread in model.calls} == {threading.current_thread()}


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_so_many_batches_at_once(lab: Lab, loops: Loops, lanes: int) -> None:
    model = Slow()
    r = lab.start(model, lanes=lanes, max_batch_size=2)

    async def main() -> None:
        tasks = [asyncio.ensure_future(r.run_async(i)) for i in range(12)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert [items for items, _, _ in model.calls] == [[2 * i, 2 * i + 1] for i in range(lanes)]
        model.free()
        assert await asyncio.gather(*tasks) == list(range(12))

    lab.run(loops, main())


def test_others_hop_to_it(lab: Lab, loops: Loops) -> None:
    """Threads and other loops get answers from the loop of the first."""
    model = Slow(held=False)
    r = lab.start(model)
    bound, leave = threading.Event(), threading.Event()

    async def first() -> None:
        assert await r.run_async("first") == "first"
        bound.set()
        await asyncio.to_thread(leave.wait, 30)

    async def second() -> None:
        assert await asyncio.gather(*(r.run_async(i) for i in range(50))) == list(range(50))

    home = lab.call(lab.run, loops, first())
    assert bound.wait(30)
    calls = [lab.call(lab.run, loops, second()) for _ in range(2)] + [lab.call(r, i) for i in range(8)]
    for call in calls:
        call.result()
    leave.set()
    home.result()
    assert {thread for _, _, thread in model.calls} == {home.thread}
    assert len({loop for _, loop, _ in model.calls}) == 1


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_loop_of_its_own(lab: Lab, loops: Loops, lanes: int) -> None:
    """The first request comes from a plain thread: one daemon thread with a loop, whatever the number of lanes."""
    model = Slow(held=False)
    before = set(threading.enumerate())
    r = lab.start(model, name="mine", lanes=lanes, max_batch_size=2)
    assert [ticket.result(30) for ticket in [r.submit(i) for i in range(20)]] == list(range(20))
    assert [thread.name for thread in set(threading.enumerate()) - before] == ["mine-loop"]
    assert all(thread.daemon for thread in set(threading.enumerate()) - before)

    async def main() -> None:
        assert await r.run_async("hop") == "hop"

    lab.run(loops, main())
    assert len({loop for _, loop, _ in model.calls}) == 1
    assert r.healthy
    r.close()
    assert set(threading.enumerate()) == before
    assert model.calls[0][1].is_closed()


def test_close_waits_for_the_batch_on_its_own_loop(lab: Lab) -> None:
    model = Slow()
    r = lab.start(model)
    ticket = r.submit(1)
    model.wait()
    call = lab.call(r.close)
    lab.wait_until(lambda: r._desk.closed)
    assert not ticket.done()
    model.free()
    call.result()
    assert ticket.result(0) == 1


# The loop closes.


def test_loop_after_loop(lab: Lab, loops: Loops) -> None:
    model = Slow(held=False)
    r = lab.start(model, lanes=2)
    before = set(threading.enumerate())

    async def main(n: int) -> None:
        assert await asyncio.gather(*(r.run_async(i) for i in range(n))) == list(range(n))
        assert model.calls[-1][1] is asyncio.get_running_loop()

    for n in range(1, 6):
        lab.run(loops, main(n))
        assert r.healthy and set(threading.enumerate()) == before
    r.close()
    assert set(threading.enumerate()) == before


def test_a_thread_asks_after_the_loop_has_closed(lab: Lab, loops: Loops) -> None:
    r = lab.start(Slow(held=False))

    async def main() -> None:
        assert await r.run_async(1) == 1

    lab.run(loops, main())
    assert r(2) == 2


@pytest.mark.parametrize("lanes", [1, 2])
def test_the_running_batch_is_cancelled_with_its_loop(lab: Lab, loops: Loops, lanes: int) -> None:
    """`asyncio.run` cancels what is left: the batch fails, what is queued is run elsewhere, the next loop is taken."""
    model = Slow()
    r = lab.start(model, lanes=lanes, max_batch_size=1)
    tickets: list[Any] = []

    async def main() -> None:
        tickets.extend(r.submit(i) for i in range(lanes + 2))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(model.calls) == lanes
        model.held = False

    lab.run(loops, main())
    for ticket in tickets[:lanes]:
        closed_in(ticket, lab)
    assert [ticket.result(30) for ticket in tickets[lanes:]] == list(range(lanes, lanes + 2))
    assert model.cancelled == lanes
    lab.wait_until(lambda: not any("loop" in thread.name for thread in threading.enumerate()))

    async def again() -> None:
        assert await r.run_async("again") == "again"
        assert model.calls[-1][1] is asyncio.get_running_loop()

    lab.run(loops, again())
    lab.idle(r)


@pytest.mark.parametrize("lanes", [1, 2])
def test_the_loop_closes_under_the_batch(lab: Lab, loops: Loops, lanes: int) -> None:
    """Nobody is cancelled, nothing more is submitted: the batch fails all the same, and the queued are run."""
    model = Slow()
    r = lab.start(model, lanes=lanes, max_batch_size=1)
    loop = loops()
    tickets: list[Any] = []

    async def main() -> None:
        tickets.extend(r.submit(i) for i in range(lanes + 1))
        for _ in range(20):
            await asyncio.sleep(0)

    loop.run_until_complete(main())
    model.held = False
    loop.close()
    for ticket in tickets[:lanes]:
        closed_in(ticket, lab)
    assert tickets[lanes].result(30) == lanes

    async def again() -> None:
        assert await r.run_async("again") == "again"
        assert model.calls[-1][1] is asyncio.get_running_loop()

    lab.wait_until(lambda: not any("loop" in thread.name for thread in threading.enumerate()))
    lab.run(loops, again())
    model.waiting.clear()
    gc.collect()  # the task that will never go on
    lab.idle(r)


def test_the_loop_closes_before_its_first_turn(lab: Lab, loops: Loops) -> None:
    """The request is in, the lane has not been started: it is run elsewhere."""
    r = lab.start(Slow(held=False))
    loop = loops()
    tickets: list[Any] = []
    loop.call_soon(lambda: (tickets.append(r.submit("x")), loop.stop()))
    loop.run_forever()
    loop.close()
    try:
        assert tickets[0].result(30) == "x"
    except lab.Closed as error:
        assert error.reason == "loop_closed"
    assert r("y") == "y"


def test_the_loop_closes_while_idle_and_the_relay_is_closed(lab: Lab, loops: Loops) -> None:
    r = lab.start(Slow(held=False))
    before = set(threading.enumerate())

    async def main() -> None:
        assert await r.run_async(1) == 1

    lab.run(loops, main())
    r.close()
    assert set(threading.enumerate()) == before and not r.ready


def test_close_from_a_thread_while_the_loop_closes(lab: Lab, loops: Loops) -> None:
    """Who waits for the batch goes on when its loop is gone."""
    model = Slow()
    r = lab.start(model)
    tickets: list[Any] = []
    calls: list[Any] = []

    async def main() -> None:
        tickets.append(r.submit(1))
        while not model.calls:
            await asyncio.sleep(0)
        calls.append(lab.call(r.close))
        while not r._desk.closed:
            await asyncio.sleep(0)

    lab.run(loops, main())
    calls[0].result()
    closed_in(tickets[0], lab)


def test_one_cancels_the_lanes_task(lab: Lab, loops: Loops) -> None:
    """A careless ``for task in all_tasks(): task.cancel()``: that batch fails, the relay goes on, on this loop."""
    model = Slow()
    r = lab.start(model)

    async def main() -> None:
        ticket = r.submit(1)
        while not model.calls:
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(lab.Closed):
            await ticket
        model.held = False
        assert await r.run_async(2) == 2
        assert model.calls[-1][1] is asyncio.get_running_loop()

    lab.run(loops, main())


def test_a_loop_that_rests_is_left_for_one_that_runs(lab: Lab, loops: Loops) -> None:
    r = lab.start(Slow(held=False))
    first, second = loops(), loops()
    assert first.run_until_complete(r.run_async(1)) == 1
    assert second.run_until_complete(asyncio.wait_for(r.run_async(2), 30)) == 2
    first.close()
    assert second.run_until_complete(asyncio.wait_for(r.run_async(3), 30)) == 3
    second.close()
    assert r(4) == 4


def test_c2_racing(lab: Lab, loops: Loops) -> None:
    """The loop closes as a worker finishes: nothing hangs, and each request ends exactly once."""
    gate: list[threading.Barrier] = []

    async def model(items: list[Any]) -> list[Any]:
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def work(barrier: threading.Barrier) -> None:
            barrier.wait(30)
            try:
                loop.call_soon_threadsafe(lambda: future.done() or future.set_result(None))
            except RuntimeError:
                pass

        threading.Thread(target=work, args=(gate[-1],), daemon=True).start()
        await future
        return items

    r = lab.start(model, max_batch_size=2)
    ends = {"answer": 0, "closed": 0}
    for n in range(50):
        barrier = threading.Barrier(2)
        gate.append(barrier)
        loop = loops()
        tickets: list[Any] = []

        async def main(tickets: list[Any] = tickets, n: int = n) -> None:
            tickets.extend(r.submit((n, i)) for i in range(2))
            for _ in range(5):
                await asyncio.sleep(0)

        loop.run_until_complete(main())
        barrier.wait(30)
        if n % 2:
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        for i, ticket in enumerate(tickets):
            try:
                assert ticket.result(30) == (n, i)
                ends["answer"] += 1
            except lab.Closed as error:
                assert error.reason == "loop_closed"
                ends["closed"] += 1
    assert sum(ends.values()) == 100
    gc.collect()
    assert r.snapshot().open == 0 and r.healthy


# Waiting for oneself.


def test_blocking_calls_on_its_own_loop(lab: Lab, loops: Loops) -> None:
    model = Slow()
    r = lab.start(model)

    async def main() -> None:
        with pytest.raises(RuntimeError):
            r(1)
        ticket = r.submit(2)
        while not model.calls:
            await asyncio.sleep(0)
        for call in (r.drain, ticket.result, lambda: r(3)):
            with pytest.raises(RuntimeError):
                call()
        model.free()
        assert await ticket == 2
        await r.aclose()

    lab.run(loops, main())


def test_close_on_its_own_loop(lab: Lab, loops: Loops) -> None:
    model = Slow()
    r = lab.start(model)

    async def main() -> None:
        ticket = r.submit(1)
        while not model.calls:
            await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="aclose"):
            r.close()
        assert not r.ready
        closing = asyncio.ensure_future(r.aclose())
        await asyncio.sleep(0.01)
        assert not closing.done()
        model.free()
        await closing
        assert await ticket == 1

    lab.run(loops, main())


def test_async_with(lab: Lab, loops: Loops) -> None:
    async def main() -> None:
        async with lab.Relay(Slow(held=False)) as r:
            tickets = [r.submit(i) for i in range(10)]
        assert [await ticket for ticket in tickets] == list(range(10))
        with pytest.raises(lab.Closed):
            r.submit(1)

    lab.run(loops, main())


# What the model raises.


class Odd(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize(
    "error",
    [ValueError("v"), Odd("o"), MemoryError("m"), StopIteration("s"), asyncio.CancelledError("c"), GeneratorExit("g")],
    ids=lambda error: type(error).__name__,
)
def test_d3_it_raises_once(lab: Lab, loops: Loops, error: BaseException) -> None:
    """That batch fails, with its own error; the relay goes on, on the same loop."""
    raising = [error]

    async def model(items: list[Any]) -> list[Any]:
        await asyncio.sleep(0)
        if raising:
            raise raising.pop()
        return items

    r = lab.start(model, isolate=False)

    async def main() -> None:
        ends = await asyncio.gather(*(r.run_async(i) for i in range(3)), return_exceptions=True)
        assert all(isinstance(end, BaseException) for end in ends)
        plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
        for end in ends:
            if plain:
                assert type(end) is type(error) and end is not error
            else:
                assert type(end) in (lab.ModelError, RuntimeError)
        assert await asyncio.wait_for(r.run_async("on"), 30) == "on"

    lab.run(loops, main())
    assert r.healthy
    lab.idle(r)


def test_a_model_with_timeouts_and_groups_of_its_own(lab: Lab, loops: Loops) -> None:
    """These cancel the task and take it back: none of it is the loop's end."""

    async def model(items: list[Any]) -> list[Any]:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(30)
        except TimeoutError:
            pass
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0, item)) for item in items]
        return [task.result() for task in tasks]

    r = lab.start(model)

    async def main() -> None:
        for _ in range(3):
            assert await asyncio.gather(*(r.run_async(i) for i in range(3))) == [0, 1, 2]

    lab.run(loops, main())


def test_a_caller_is_cancelled(lab: Lab, loops: Loops) -> None:
    """Its request ends; the batch, and the others in it, go on."""
    model = Slow()
    r = lab.start(model)
    seen: list[Any] = []

    async def main() -> None:
        tasks = [asyncio.ensure_future(r.run_async(i)) for i in range(3)]
        while not model.calls:
            await asyncio.sleep(0)
        queued = asyncio.ensure_future(r.run_async("queued"))
        await asyncio.sleep(0)
        tasks[1].cancel()
        queued.cancel()
        for task in (tasks[1], queued):
            with pytest.raises(asyncio.CancelledError):
                await task
        seen.append(r.snapshot().queued)
        model.free()
        assert await tasks[0] == 0 and await tasks[2] == 2

    lab.run(loops, main())
    assert seen == [0] and len(model.calls) == 1
    lab.idle(r)


def test_a_model_that_swallows_its_cancel(lab: Lab, loops: Loops) -> None:
    async def model(items: list[Any]) -> list[Any]:
        if items == ["stubborn"]:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                pass
        return items

    r = lab.start(model)
    tickets: list[Any] = []

    async def main() -> None:
        tickets.append(r.submit("stubborn"))
        for _ in range(10):
            await asyncio.sleep(0)

    lab.run(loops, main())
    assert tickets[0].result(30) == "stubborn"  # it has an answer after all
    assert r("next") == "next"


def test_c3_futures_cancelled_while_answers_come(lab: Lab, loops: Loops) -> None:
    r = lab.start(Slow(held=False), max_batch_size=16)

    async def wait(ticket: Any) -> Any:
        return await ticket

    async def main() -> None:
        for n in range(100):
            tasks = [asyncio.ensure_future(wait(r.submit(i))) for i in range(20)]
            for _ in range(n % 7):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert ends[1::2] == list(range(1, 20, 2))

    lab.run(loops, main())
    assert r.healthy
    lab.idle(r)
