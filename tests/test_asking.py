"""The short way of a request with at most a priority and a deadline: when it is taken, and what it is to its caller."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import random
import signal
import sys
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from relay import REALTIME, errors

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

Loops = Callable[[], asyncio.AbstractEventLoop]


def started(lab: Lab, function: Callable[[Any], Any] = lambda item: item, **options: Any) -> tuple[Any, Any]:
    """A relay that has answered, and is held from now on."""
    model = lab.model(function)
    r = lab.start(model, **options)
    assert r("first", priority=REALTIME) == function("first")
    model.hold()
    r.submit("plug")
    model.wait_until_running()
    return r, model


def ran(model: Any) -> list[Any]:
    """What the model was given, in order."""
    return [item for batch in model.batches for item in batch]


async def turns(n: int = 3) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


def test_where_it_comes_from(lab: Lab) -> None:
    asking = lab.package._backend.tickets.Asking
    assert asking.__module__ == ("relay._core.tickets" if lab.backend == "native" else "relay._pure._asking")


def test_taken_for_an_item_alone(lab: Lab, loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    r = lab.start(lambda items: [item * 2 for item in items])
    assert r._desk.enter(1) is None and r.snapshot().items == 0, "nobody has started the lanes"
    assert r(1) == 2

    def refuse(*args: Any) -> None:
        raise AssertionError("the long way")

    monkeypatch.setattr(r._intake, "ticket", refuse)
    monkeypatch.setattr(type(r), "_answer", refuse)
    monkeypatch.setattr(r, "_ticket", refuse)

    async def main() -> None:
        assert await r.run_async(5) == 10
        assert await asyncio.gather(*(r.run_async(i) for i in range(200))) == list(range(0, 400, 2))
        assert await r.submit("ab") == "abab"

    lab.run(loops, main())
    assert r(7) == 14 and r.submit(8).result() == 16
    ticket = r.submit("four")
    assert (ticket.priority, ticket.tenant, ticket.size, ticket._deadline_ns) == (1, None, 4, -1)
    assert ticket.result() == "fourfour" and ticket.timing.queue >= 0


def test_taken_with_a_priority_and_a_deadline(lab: Lab, loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = lab.clock()
    r = lab.start(lambda items: [item * 2 for item in items], clock=clock)
    assert r(1, priority=REALTIME) == 2
    long_way = r._ticket

    def refuse(*args: Any) -> None:
        raise AssertionError("the long way")

    monkeypatch.setattr(r._intake, "ticket", refuse)
    monkeypatch.setattr(type(r), "_answer", refuse)
    monkeypatch.setattr(r, "_ticket", refuse)
    now_ns = clock.now_ns()
    for priority, deadline in ((0, None), (2, 5), ("batch", 0.25), ("realtime", 1e-12), (255, 4e9), (None, 1 / 3)):
        ticket = r.submit("x", priority=priority, deadline=deadline)
        other = long_way("x", priority, deadline)
        assert (ticket.priority, ticket._deadline_ns) == (other.priority, other._deadline_ns)
        assert ticket._deadline_ns == (-1 if deadline is None else now_ns + max(int(deadline * 10**9), 1))
        if deadline != 1e-12:
            assert ticket.result(30) == "xx"

    async def main() -> None:
        assert await r.run_async(5, priority="batch", deadline=9.0) == 10
        assert await asyncio.gather(*(r.run_async(i, deadline=i + 1) for i in range(50))) == list(range(0, 100, 2))

    lab.run(loops, main())
    assert r(7, priority="batch", deadline=3) == 14 and r(8, deadline=2.5) == 16
    for wrong, kind in (
        ({"priority": 256}, ValueError),
        ({"priority": "soon"}, ValueError),
        ({"priority": 1.5}, TypeError),
    ):
        for ask in (r.submit, r, lambda item, **wrong: asyncio.run(r.run_async(item, **wrong))):
            with pytest.raises(kind, match="priority"):
                ask(1, **wrong)


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), float("inf"), 5e9, "soon", True, np.float64(0.5)])
def test_other_deadlines_take_the_long_way(lab: Lab, deadline: Any) -> None:
    r = lab.start(lambda items: items)
    assert r(1, priority=REALTIME) == 1
    assert r._desk.enter(1, None, deadline) is None and r.snapshot().open == 0
    if isinstance(deadline, str) or not deadline > 0:
        with pytest.raises((errors.Expired, ValueError, TypeError)):
            r.submit(1, deadline=deadline)
    else:
        assert r(2, deadline=deadline) == 2


def test_keys_and_order_are_those_of_the_long_way(lab: Lab, rng: random.Random) -> None:
    r, model = started(lab, clock=lab.clock(), max_batch_size=4)
    asked = [(rng.choice([None, 0, 1, 2, 3]), rng.choice([None, 0.2, 0.7, 5, 30.0])) for _ in range(80)]
    for i, (priority, deadline) in enumerate(asked):
        if i % 2:
            r.submit(i, priority=priority, deadline=deadline)
        else:
            assert r._place(r._ticket(i, priority, deadline, None, None))
        r._desk.clock.advance(0.001)
    model.free()
    assert r.drain(30) == 0

    def place(i: int) -> tuple[int, float]:
        priority, deadline = asked[i]
        level = 1 if priority is None else priority
        allowed = {0: 0.05, 1: 0.5}.get(level, 10.0)
        return level, i * 0.001 + min(allowed, deadline if deadline is not None else allowed)

    assert ran(model)[2:] == sorted(range(80), key=place)


def test_a_displaced_one_waits_again_with_what_it_has(lab: Lab, loops: Loops) -> None:
    clock = lab.clock()
    r, model = started(lab, max_queue=2, clock=clock)

    async def main() -> None:
        waiting = asyncio.ensure_future(r.run_async("bulk", priority="batch", deadline=50))
        await turns()
        urgent = r.submit("urgent", priority="realtime")
        await turns()
        assert r.snapshot().displaced == 1 and not waiting.done() and r.snapshot().waiting == 1
        model.free()
        assert await waiting == "bulk" and await urgent == "urgent"

    lab.run(loops, main())
    assert ran(model) == ["first", "plug", "urgent", "bulk"]
    lab.idle(r)


def policy(facts: Any) -> int:
    return int(facts.arrival * 1000)


@pytest.mark.parametrize(
    "options",
    [
        {"prepare": lambda item: item},
        {"group": lambda item: 0},
        {"deadlines": {1: 30.0}},
        {"policy": policy},
    ],
    ids=lambda options: next(iter(options)),
)
def test_not_where_more_is_to_be_done(lab: Lab, options: dict[str, Any]) -> None:
    r = lab.start(lambda items: [item * 2 for item in items], **options)
    assert r("a") == "aa" and r._desk.enter("b") is None and r("b") == "bb"
    assert r.snapshot().items == 2


def test_sizes_count(lab: Lab) -> None:
    r, model = started(lab, size=len, max_batch_tokens=8)
    assert r.submit("abcde").size == 5
    for ask in (r.submit, r, lambda item: asyncio.run(r.run_async(item))):
        with pytest.raises(errors.TooLarge, match="size is 9"):
            ask("nine long")
    for wrong, kind in ((None, TypeError), (3, TypeError)):
        with pytest.raises(kind):
            r.submit(wrong)
    assert r.snapshot().open == 2
    model.free()
    lab.idle(r)


def test_a_full_queue_is_waited_for_in_line(lab: Lab, loops: Loops) -> None:
    r, model = started(lab, max_batch_size=2, max_queue=3)

    async def main() -> None:
        tasks = [asyncio.ensure_future(r.run_async(i)) for i in range(8)]
        await turns()
        assert r.snapshot().waiting == 8 - 2
        with pytest.raises(errors.Overloaded, match="no room for the request"):
            r.submit("more")
        tasks[7].cancel()
        await turns()
        model.free()
        assert await asyncio.gather(*tasks[:7]) == list(range(7))
        assert tasks[7].cancelled()

    lab.run(loops, main())
    assert ran(model)[2:] == list(range(7))


def test_one_that_is_displaced_waits_again(lab: Lab, loops: Loops) -> None:
    r, model = started(lab, max_batch_size=1, max_queue=2)

    async def main() -> None:
        task = asyncio.ensure_future(r.run_async("asked first"))
        await turns()
        urgent = r.submit("urgent", priority=REALTIME)
        await turns()
        assert r.snapshot().displaced == 1 and r.snapshot().waiting == 1 and not task.done()
        model.free()
        assert await task == "asked first" and await urgent == "urgent"

    lab.run(loops, main())
    assert ran(model)[2:] == ["urgent", "asked first"]


def test_cancelling_it_cancels_the_request(lab: Lab, loops: Loops) -> None:
    r, model = started(lab)

    async def main() -> None:
        queued, running = (asyncio.ensure_future(r.run_async(name)) for name in ("queued", "running"))
        await turns()
        queued.cancel()
        await turns()
        assert queued.cancelled() and r.snapshot().cancelled == 1 and r.snapshot().queued == 1
        model.free()
        assert await running == "running"
        model.hold()
        running = asyncio.ensure_future(r.run_async("running"))
        await turns()
        model.wait_until_running()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert r.snapshot().cancelled == 2
        # Cancelled in the moment of the answer: the task ends cancelled, the request has ended.
        model.free()
        await r.run_async("wait")
        late = r.run_async("late")
        late.send(None)
        lab.wait_until(lambda: r.snapshot().open == 0)
        with pytest.raises(asyncio.CancelledError):
            late.throw(asyncio.CancelledError())
        assert r.snapshot().cancelled == 2

    lab.run(loops, main())
    lab.idle(r)


def test_errors_come_as_they_are(lab: Lab, loops: Loops) -> None:
    def spoiled(item: Any) -> Any:
        if item == "bad":
            raise KeyError(item)
        return item

    model = lab.model(spoiled)
    r = lab.start(model)

    async def main() -> None:
        assert await r.run_async("good") == "good"
        with pytest.raises(KeyError) as caught:
            await r.run_async("bad")
        names = [frame.name for frame in caught.traceback]
        assert "main" in names and "spoiled" in names
        answers = await asyncio.gather(*(r.run_async(x) for x in ("a", "bad", "b")), return_exceptions=True)
        assert [answers[0], answers[2]] == ["a", "b"] and isinstance(answers[1], KeyError)

    lab.run(loops, main())
    r.close()
    with pytest.raises(errors.Closed):
        asyncio.run(r.run_async("late"))


def test_it_is_a_coroutine(lab: Lab, loops: Loops) -> None:
    r, model = started(lab)
    assert asyncio.iscoroutinefunction(r.run_async)

    async def main() -> None:
        made = r.run_async(1)
        assert asyncio.iscoroutine(made) and isinstance(made, Coroutine) and inspect.isawaitable(made)
        with pytest.raises(TypeError, match="just-started"):
            made.send(1)
        assert asyncio.isfuture(made.send(None)) and r.snapshot().open == 2, "it can begin still"
        with pytest.raises(asyncio.CancelledError):
            made.throw(asyncio.CancelledError())
        made = r.run_async(1)
        made.close()  # before it has begun: nothing was asked
        with pytest.raises(RuntimeError, match="reuse already awaited"):
            await made
        made = r.run_async(1)
        with pytest.raises(LookupError):
            made.throw(LookupError())
        assert r.snapshot().open == 1
        made = r.run_async("goes on")
        assert asyncio.isfuture(made.send(None)) and r.snapshot().open == 2
        made.close()
        assert r.snapshot().cancelled == 1 and r.snapshot().open == 2
        made = r.run_async("long way", tenant="somebody")
        with pytest.raises(LookupError):
            made.send(None)
            made.throw(LookupError())
        tasks = [asyncio.create_task(r.run_async("task"))]
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            tasks.append(group.create_task(r.run_async("in a group")))
            await turns()
            assert tasks[0].get_stack() is not None
            model.free()
        assert [await task for task in tasks] == ["task", "in a group"]

    lab.run(loops, main())
    assert "goes on" in ran(model)


ANSWERS: list[Any] = [(1, 0.9), (), ((1,),), None, KeyError, [1], Counter(a=1)]


@pytest.mark.parametrize("traced", [False, True])
def test_answers_of_any_kind(lab: Lab, loops: Loops, traced: bool) -> None:
    """A tuple is no list of arguments, whichever way the interpreter goes on with a coroutine."""
    r = lab.start(lambda items: [ANSWERS[item] for item in items])
    assert r(0) == ANSWERS[0]

    async def main() -> None:
        for number, answer in enumerate(ANSWERS):
            assert await r.run_async(number) is answer
            assert await asyncio.create_task(r.run_async(number)) is answer
        made = r.run_async(0)
        future = next(made)
        while not future.done():
            await asyncio.sleep(0)
        with pytest.raises(StopIteration) as caught:
            next(made)
        assert caught.value.value is ANSWERS[0]

    before = sys.gettrace()
    if traced:
        sys.settrace(lambda *args: None)
    try:
        lab.run(loops, main())
    finally:
        sys.settrace(before)


def test_driven_by_hand(lab: Lab, loops: Loops) -> None:
    r, model = started(lab)
    with pytest.raises(RuntimeError, match="no running event loop"):
        r.run_async(1).send(None)
    assert r.snapshot().open == 1, "nothing was asked"

    async def main() -> None:
        # Two tasks wait for one: the first has its answer, the second an error.
        made = r.run_async("two")
        first = asyncio.ensure_future(made)
        await turns()
        second = asyncio.ensure_future(made)
        await turns()
        if lab.backend == "native":  # of Python's own coroutine neither has
            assert isinstance(second.exception(), RuntimeError) and not first.done()
        model.free()
        done = await asyncio.gather(first, second, return_exceptions=True)
        assert isinstance(done[1], RuntimeError) and (done[0] == "two" or lab.backend == "pure")
        model.hold()
        r.submit("plug")
        model.wait_until_running()

        made = r.run_async("set by hand")
        made.send(None).set_result("by hand")
        with pytest.raises(StopIteration, match="by hand"):
            made.send(None)
        made, cancelled = r.run_async("cancelled by hand"), r.snapshot().cancelled
        made.send(None).cancel()
        with pytest.raises(asyncio.CancelledError):
            made.send(None)
        assert r.snapshot().cancelled == cancelled + 1
        for over in (made, r.run_async("closed")):
            over.close()
            for use in (over.send, over.throw):
                with pytest.raises(RuntimeError, match="cannot reuse already awaited"):
                    use(None if use == over.send else KeyError("why"))
        made = r.run_async("held")
        with pytest.raises(TypeError):
            made.throw(5)
        made.close()
        item = type("Item", (), {})()
        alive = weakref.ref(item)
        made = r.run_async(item)
        made.send(None)
        with suppress(asyncio.CancelledError):
            made.throw(asyncio.CancelledError())
        del item
        await turns()
        gc.collect()
        assert alive() is None, "one that is over holds nothing"
        task = asyncio.ensure_future(r.run_async("named"))
        await turns()
        assert "Relay.run_async" in repr(task)
        model.free()
        assert await task == "named"

    lab.run(loops, main())


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGUSR1 on this system")
@pytest.mark.parametrize("way", ["close", "cancel"])
def test_a_settle_in_a_signal_handler_wakes_the_loop(lab: Lab, loops: Loops, way: str) -> None:
    """It comes while the loop sleeps, on the loop's own thread, and in no callback of it."""
    r, model = started(lab)
    before = signal.getsignal(signal.SIGUSR1)

    async def main() -> None:
        ticket = r.submit("ticket")
        task = asyncio.ensure_future(r.run_async("asked") if way == "close" else wait(ticket))
        await turns()
        signal.signal(signal.SIGUSR1, lambda *_: r._desk.close() if way == "close" else ticket.cancel())
        asyncio.get_running_loop().call_soon(lab.run_thread, os.kill, os.getpid(), signal.SIGUSR1)
        with pytest.raises(errors.Closed if way == "close" else errors.RequestCancelled):
            await asyncio.wait_for(task, 30)

    async def wait(ticket: Any) -> Any:
        return await ticket

    begin = time.monotonic()
    try:
        lab.run(loops, main())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert time.monotonic() - begin < 20, "it slept on until something else came"


@pytest.mark.parametrize("lab", ["native"], indirect=True)  # the pure side may break in the middle of a call
def test_near_the_recursion_limit_one_request_fails_and_no_other(lab: Lab) -> None:
    """Wherever there is no stack left: in the call, in the wake-up, or in what follows it."""
    r = lab.start(lambda items: items)
    assert r(0) == 0
    failed = 0

    def walk(depth: int) -> Any:
        return r.submit(depth) if not depth else walk(depth - 1)

    for depth in range(sys.getrecursionlimit() - 120, sys.getrecursionlimit()):
        try:
            ticket = walk(depth)
        except RecursionError:
            failed += 1
        else:
            assert ticket.result(30) == 0
        assert r(1) == 1, "the lane was woken"
    assert failed
    lab.idle(r)


class Lazy:
    """Hands the steps of another awaitable through."""

    def __init__(self, awaitable: Any) -> None:
        self.awaitable = awaitable

    def __await__(self) -> Any:
        return (yield from self.awaitable.__await__())


class PlainTask(asyncio.tasks._PyTask):  # type: ignore[name-defined,misc]
    """Python's own tasks in place of C's."""


FACTORIES: list[Any] = [None, lambda loop, coroutine, **options: PlainTask(coroutine, loop=loop, **options)]
if sys.version_info >= (3, 12):
    FACTORIES.append(asyncio.eager_task_factory)  # whose tasks begin at once


@pytest.mark.parametrize("factory", FACTORIES)
def test_loops_that_make_other_tasks(lab: Lab, factory: Any) -> None:
    async def model(items: list[Any]) -> list[Any]:
        return items

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(factory)
        r = lab.start(model)
        for number in range(5):
            assert await asyncio.wait_for(r.run_async(number), 30) == number
        assert await asyncio.gather(*(asyncio.create_task(r.run_async(i)) for i in range(300))) == list(range(300))
        await r.aclose()

    asyncio.run(main())


def test_its_steps_may_be_handed_through(lab: Lab, loops: Loops) -> None:
    r, pool = lab.start(lambda items: items), lab.pool(1)

    async def main() -> None:
        assert await r.run_async(0) == 0
        assert await Lazy(r.run_async(1)) == 1 and await Lazy(r.run_async(2, tenant="x")) == 2
        (await Lazy(pool.acquire_async())).release()

    lab.run(loops, main())


def test_nobody_awaits_it(lab: Lab) -> None:
    r = lab.start(lambda items: items)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        r.run_async(1)
        gc.collect()
    assert [str(one.message) for one in told if "Relay.run_async" in str(one.message)] == [
        "coroutine 'Relay.run_async' was never awaited"
    ]


def test_it_holds_its_relay(lab: Lab, loops: Loops) -> None:
    lab.run(loops, lab.Relay(lambda items: items).run_async(1))
    assert lab.run(loops, lab.Relay(lambda items: items).run_async(2)) == 2
    pool = lab.pool(1)

    async def main() -> None:
        r = lab.Relay(lambda items: items)
        assert await r.run_async(0) == 0
        asked = r.run_async("kept")
        del r
        gc.collect()
        assert await asked == "kept"
        guarded = pool.guard(lab.start(lambda items: items).run_async)
        assert await guarded("guarded") == "guarded" and pool.held == 0

    lab.run(loops, main())


def test_its_loop_closes_first(lab: Lab, loops: Loops) -> None:
    r, model = started(lab)

    async def main() -> None:
        main.task = asyncio.ensure_future(r.run_async("unanswered"))  # type: ignore[attr-defined]
        await turns()

    loop = loops()
    loop.run_until_complete(main())
    main.task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    model.free()
    lab.wait_until(lambda: r.snapshot().open == 0)
    lab.wait_until(lambda: r.snapshot().undeliverable == 1)
    assert r("after") == "after"


def test_many_loops_and_threads(lab: Lab, loops: Loops) -> None:
    r = lab.start(lambda items: [item + 1 for item in items])

    async def main(base: int) -> None:
        async def client(number: int) -> None:
            for i in range(20):
                assert await r.run_async(base + 100 * number + i) == base + 100 * number + i + 1

        await asyncio.gather(*(client(number) for number in range(10)))

    calls = [lab.call(lab.run, loops, main(10_000 * i)) for i in range(4)]
    calls += [lab.call(lambda base=10_000 * i: [r(base + j) for j in range(100)]) for i in range(4, 8)]
    for call in calls[:4]:
        call.result()
    for number, call in enumerate(calls[4:], 4):
        assert call.result() == [10_000 * number + j + 1 for j in range(100)]
    lab.idle(r)
    assert r.snapshot().items == 4 * 200 + 4 * 100
