"""The ends of a relay: drain, close, with, and all of them from inside its own model and callbacks."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def test_drain_answers_what_was_taken(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_batch_size=2)
    tickets = [r.submit(i) for i in range(5)]
    assert r.drain(timeout=0.001) == 5
    assert not r.ready and r.healthy
    with pytest.raises(relay.Closed):
        r.submit(1)
    model.free()
    assert r.drain() == 0
    assert [ticket.result(0) for ticket in tickets] == list(range(5))
    assert r._desk._idle_watchers == []
    assert r.drain(0) == 0


def test_drain_on_a_fake_clock(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, clock=clock)
    r.submit(1)
    left: list[int] = []
    thread = lab.run_thread(lambda: left.append(r.drain(5)))
    clock.wait_for_sleepers(1)
    clock.advance(5)
    thread.join(30)
    assert left == [1]


def test_drain_async(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model)

    async def main() -> None:
        ticket = r.submit(1)
        assert await r.drain_async(0.001) == 1
        waiting = asyncio.ensure_future(r.drain_async())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert r._desk._idle_watchers == []
        waiting = asyncio.ensure_future(r.drain_async(float("inf")))
        await asyncio.sleep(0)
        model.free()
        assert await waiting == 0 and await ticket == 1
        for bad in (-1, float("nan")):
            with pytest.raises(ValueError, match="timeout"):
                await r.drain_async(bad)

    asyncio.run(main())


def test_a_loop_that_closes_while_it_drains(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model)
    r.submit(1)
    loop = asyncio.new_event_loop()
    task = loop.create_task(r.drain_async())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    left: list[int] = []
    thread = lab.run_thread(lambda: left.append(r.drain()))
    lab.wait_until(lambda: len(r._desk._idle_watchers) == 2)
    model.free()
    thread.join(30)
    assert left == [0] and r.healthy
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_refused_group_does_not_hold_up_a_drain(lab: Lab) -> None:
    r = lab.start(lab.model())
    left: list[int] = []
    place_all = r._intake.place_all
    threads: list[threading.Thread] = []

    def late(tickets: Any) -> Any:
        threads.append(lab.run_thread(lambda: left.append(r.drain())))
        lab.wait_until(lambda: bool(r._desk._idle_watchers))  # it has seen the group as open
        return place_all(tickets)

    r._intake.place_all = late
    with pytest.raises(relay.Closed):
        r.submit_many([1, 2])
    threads[0].join(30)
    assert left == [0]


def test_close_sends_the_queued_away_and_waits_for_the_running(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, merge=True)
    running = r.submit("running")
    model.wait_until_running()
    queued = [r.submit("queued"), r.submit("queued"), r.submit_many(["a", "b"])]
    closing = lab.run_thread(r.close)
    assert {type(ticket.exception(30)) for ticket in queued} == {relay.Closed}
    assert closing.is_alive() and not running.done()
    model.free()
    closing.join(30)
    assert running.result(0) == "running"
    assert model.batches == [["running"]] and not r.healthy
    r.close()


def test_aclose_does_not_block_the_loop(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model)

    async def main() -> None:
        running = r.submit("running")
        model.wait_until_running()
        queued = r.submit("queued")
        closing = asyncio.ensure_future(r.aclose())
        with pytest.raises(relay.Closed):
            await queued
        assert not closing.done()
        model.free()
        await closing
        assert await running == "running"

    asyncio.run(main())


def test_with(lab: Lab) -> None:
    model = lab.model()
    with lab.Relay(model) as r:
        ticket = r.submit(1)
    assert ticket.result(0) == 1 and not r.healthy

    held = lab.model(held=True)
    with pytest.raises(KeyError), lab.Relay(held) as r:
        running = r.submit(1)
        held.wait_until_running()
        queued = r.submit(2)
        threading.Thread(target=lambda: queued.exception() and held.free()).start()
        raise KeyError
    assert running.result(0) == 1 and isinstance(queued.exception(0), relay.Closed)


def test_async_with(lab: Lab) -> None:
    model = lab.model()

    async def main() -> None:
        async with lab.Relay(model) as r:
            ticket = r.submit(1)
        assert await ticket == 1 and not r.healthy
        with pytest.raises(KeyError):
            async with lab.Relay(model) as r:
                raise KeyError
        assert not r.healthy

    asyncio.run(main())


def test_async_with_cancelled_while_it_drains(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model)

    async def use() -> None:
        async with r:
            r.submit(1)

    async def main() -> None:
        task = asyncio.ensure_future(use())
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        model.free()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not r.healthy  # closed all the same

    asyncio.run(main())


@pytest.mark.parametrize("how", ["close", "drain", "with"])
@pytest.mark.parametrize("where", ["model", "callback"])
def test_from_inside(lab: Lab, how: str, where: str) -> None:
    relays: list[Any] = []
    raised: list[BaseException] = []

    def end(_: Any = None) -> None:
        try:
            if how == "close":
                relays[0].close()
            elif how == "drain":
                relays[0].drain()
            else:
                with relays[0]:
                    pass
        except RuntimeError as error:
            raised.append(error)

    held = lab.model(held=True)

    def model(items: list[int]) -> Any:
        if where == "model":
            end()
        return held(items)

    relays.append(lab.start(model))
    ticket = relays[0].submit(1)
    if where == "callback":
        ticket.add_done_callback(end)
    held.free()
    assert ticket.result(30) == 1
    lab.wait_until(lambda: bool(raised) or how == "close")
    assert len(raised) == (how != "close")
    assert all("drain() was called from the relay's own model or callback" in str(error) for error in raised)
    if how != "drain":
        lab.wait_until(lambda: not relays[0]._dispatcher.lanes[0].thread.is_alive())
        with pytest.raises(relay.Closed):
            relays[0].submit(2)


def test_drain_from_an_expired_requests_callback(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, clock=clock)
    r.submit("busy")
    model.wait_until_running()
    ticket = r.submit(1, deadline=1)
    errors: list[Any] = []

    def drain(_: Any) -> None:
        try:
            r.drain()
        except RuntimeError as error:
            errors.append(error)

    ticket.add_done_callback(drain)
    clock.wait_for_sleepers(1)
    clock.advance(1)
    lab.wait_until(lambda: len(errors) == 1)


def test_waiting_for_itself_is_refused(lab: Lab) -> None:
    """A model or a callback that waits for its own relay would wait for ever."""
    inner: list[Any] = []

    def model(items: list[Any]) -> list[Any]:
        return [r(item - 1) if item else 0 for item in items]

    r = lab.start(model)
    with pytest.raises(RuntimeError, match="would wait for itself"):
        r.submit(3).result(30)
    assert r.submit(0).result(30) == 0

    def callback(ticket: Any) -> None:
        assert ticket.result() == 0  # it has ended, so this does not wait
        try:
            r.submit(0).result()
        except RuntimeError as error:
            inner.append(error)

    done = threading.Event()
    ticket = r.submit(0)
    ticket.add_done_callback(callback)
    ticket.add_done_callback(lambda _: done.set())
    assert done.wait(30)
    lab.idle(r)
