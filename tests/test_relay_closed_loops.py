"""Event loops that close while an answer or a place is on its way to them."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

Loops = Callable[[], asyncio.AbstractEventLoop]


def test_c2_a_loop_closes_as_its_answer_comes(lab: Lab, loops: Loops) -> None:
    """The answer is dropped and counted; the others in the batch, and the lane, go on."""
    model = lab.model()
    r = lab.start(model)
    rounds = 30
    for n in range(rounds):
        with lab.testing.paused(r, model):
            loop = loops()
            dead = r.submit(("dead", n))
            task = loop.create_task(r.run_async(("dead too", n)))
            waiting = loop.create_task(wait(dead))
            loop.run_until_complete(asyncio.sleep(0))
            alive = r.submit(("alive", n))
            thread = lab.run_thread(alive.result)
            loop.close()
        assert alive.result(30) == ("alive", n)
        thread.join(30)
        assert dead.result(30) == ("dead", n)
        task._log_destroy_pending = waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    lab.wait_until(lambda: r.snapshot().undeliverable == 2 * rounds)
    assert r("after") == "after" and r.healthy
    lab.idle(r)


def test_c2_racing(lab: Lab, loops: Loops, rng: random.Random) -> None:
    model = lab.model(held=True)
    r = lab.start(model)
    for _ in range(100):
        loop = loops()
        task = loop.create_task(wait(r.submit(1)))
        loop.run_until_complete(asyncio.sleep(0))
        model.wait_until_running()
        barrier = threading.Barrier(2)

        def release(barrier: threading.Barrier = barrier) -> None:
            barrier.wait(30)
            model.release()

        thread = lab.run_thread(release)
        barrier.wait(30)
        for _ in range(rng.randrange(50)):
            pass
        loop.close()
        thread.join(30)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        lab.wait_until(lambda: r.snapshot().open == 0)
    model.free()
    assert r("after") == "after" and r.healthy
    assert r.snapshot().undeliverable <= 100


def test_a_loop_closes_while_its_task_waits_for_room(lab: Lab, loops: Loops) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_queue=1)
    lab.fill(r)
    loop = loops()
    task = loop.create_task(r.run_async(1))
    loop.run_until_complete(asyncio.sleep(0))
    assert r.snapshot().waiting == 1
    loop.close()
    thread = lab.run_thread(r, 2)
    lab.in_line(r, 2)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task, loop
    model.free()
    thread.join(30)
    assert not thread.is_alive()  # the place that it was promised went on to the next
    lab.wait_until(lambda: len(r._desk.queue) == 0)
    assert r._desk.queue.free == 1
    lab.idle(r)


def test_a_loop_closes_between_promise_and_waking(lab: Lab, loops: Loops) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_queue=1)
    lab.fill(r)
    model.wait_until_running()
    loop = loops()
    task = loop.create_task(r.run_async(1))
    loop.run_until_complete(asyncio.sleep(0))
    thread = lab.run_thread(r, 2)
    lab.in_line(r, 2)
    model.free()
    lab.wait_until(lambda: r.snapshot().waiting == 1)
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task, loop
    gc.collect()  # the coroutine is thrown away, and gives back what it was promised
    thread.join(30)
    assert not thread.is_alive()
    lab.idle(r)


async def wait(ticket: Any) -> Any:
    return await ticket
