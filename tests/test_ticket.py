"""Tickets: waiting, cancelling, callbacks, and one outcome each."""

from __future__ import annotations

import asyncio
import random
import threading
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def test_result_twice_and_from_everywhere(lab: Lab) -> None:
    r = lab.start(lab.model())
    ticket = r.submit(5)
    assert ticket.result(30) == ticket.result() == 5
    assert ticket.done() and ticket.exception() is None

    async def main() -> list[int]:
        return [await ticket, await ticket, *await asyncio.gather(*(asyncio.ensure_future(wait()) for _ in range(3)))]

    async def wait() -> int:
        return await ticket  # type: ignore[no-any-return]

    assert asyncio.run(main()) == [5] * 5
    assert repr(ticket) == "<Ticket done priority=1>"


def test_running_out_of_time_leaves_the_work_alone(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model)
    ticket = r.submit(1)
    with pytest.raises(TimeoutError, match="the request goes on") as caught:
        ticket.result(0)
    assert not isinstance(caught.value, relay.RelayError)
    with pytest.raises(TimeoutError):
        ticket.exception(0.01)
    assert ticket._waiters == []  # whoever gave up has left
    assert "pending" in repr(ticket)
    model.free()
    assert ticket.result(30) == 1


def test_result_timeout_on_a_fake_clock(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, clock=clock)
    ticket, raised = r.submit(1), threading.Event()

    def wait() -> None:
        with pytest.raises(TimeoutError):
            ticket.result(10)
        raised.set()

    thread = lab.run_thread(wait)
    clock.wait_for_sleepers(1)
    clock.advance(9.9)
    assert not raised.is_set()
    clock.advance(0.1)
    thread.join(30)
    assert raised.is_set()


def test_cancel_while_queued(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model)
    with lab.testing.paused(r, model, "plug"):
        ticket = r.submit(1)
        assert ticket.cancel()
        assert not ticket.cancel()
        with pytest.raises(relay.RequestCancelled, match="cancelled through its ticket"):
            ticket.result(30)
        assert r.snapshot().admitted == 1
    r.drain()
    assert model.batches == [["plug"]]
    assert repr(ticket) == "<Ticket failed priority=1>"


def test_cancel_while_running(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model)
    ticket = r.submit(1)
    model.wait_until_running()
    assert ticket.cancel()  # at once: the model is still busy
    assert isinstance(ticket.exception(0), relay.RequestCancelled)
    assert r.snapshot().admitted == 1
    model.free()
    lab.idle(r)
    assert isinstance(ticket.exception(0), relay.RequestCancelled)


def test_cancel_after_the_end(lab: Lab) -> None:
    ticket = lab.start(lab.model()).submit(1)
    assert ticket.result(30) == 1
    assert not ticket.cancel()
    assert ticket.result() == 1


def test_cancelling_the_task_leaves_the_request(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model)

    async def main() -> None:
        ticket = r.submit(1)
        task = asyncio.ensure_future(ticket)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not ticket.done()
        model.free()
        assert await ticket == 1

    asyncio.run(main())


def test_run_async_takes_its_request_with_it(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model)

    async def main() -> None:
        task = asyncio.ensure_future(r.run_async(1))
        await asyncio.sleep(0)
        assert r.snapshot().open == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert r.snapshot().open == 0

    asyncio.run(main())


def test_callbacks(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """Each is called once; what one of them raises keeps no other from being told."""
    model = lab.model()
    r = lab.start(model)
    told: list[Any] = []
    errors = [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration()]

    def raising(error: BaseException) -> Any:
        def callback(ticket: Any) -> None:
            told.append(type(error))
            raise error

        return callback

    with lab.testing.paused(r, model):
        tickets = [r.submit(i) for i in range(len(errors))]
        for ticket, error in zip(tickets, errors, strict=True):
            ticket.add_done_callback(raising(error))
        last = r.submit("last")
        last.add_done_callback(told.append)
        waiting = lab.run_thread(last.result)
    waiting.join(30)
    assert not waiting.is_alive()
    lab.wait_until(lambda: len(told) == 6)
    assert told == [*map(type, errors), last]
    last.add_done_callback(told.append)
    assert told[-1] is last and len(told) == 7
    assert r(1) == 1 and r.healthy
    assert len([record for record in caplog.records if "callback failed" in record.message]) == 5


def test_callbacks_may_use_the_relay(lab: Lab) -> None:
    r = lab.start(lab.model(lambda x: x + 1))
    chain: list[Any] = []
    ended = threading.Event()

    def step(ticket: Any) -> None:
        chain.append(ticket.result())
        if len(chain) < 10:
            r.submit(chain[-1]).add_done_callback(step)
        else:
            ended.set()

    r.submit(0).add_done_callback(step)
    assert ended.wait(30)
    assert chain == list(range(1, 11))


def test_blocking_on_a_loop_warns_once_for_each_place(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_queue=1)
    ticket = r.submit(1)

    async def main() -> list[warnings.WarningMessage]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    ticket.result(0.001)
            for _ in range(3):
                with pytest.raises(relay.Overloaded):
                    r(2, timeout=0.001)
            model.free()
            await ticket
            for _ in range(2):
                r.drain()
        return seen

    seen = asyncio.run(main())
    assert [str(warning.message) for warning in seen] == [
        "Ticket.result() blocks the running event loop; await the ticket instead",
        "waiting for room in 'relay' blocks the running event loop; use run_async() or map_async()",
        "Relay.drain() blocks the running event loop; use drain_async()",
    ]
    assert {(warning.category, warning.filename) for warning in seen} == {(RuntimeWarning, __file__)}


@pytest.mark.parametrize("merge", [False, True])
def test_each_ends_once_whoever_cancels(lab: Lab, rng: random.Random, merge: bool) -> None:
    """Threads cancel while the lane answers: every ticket has one outcome, told once, and no place is lost."""
    r = lab.start(lab.model(), max_queue=64, max_batch_size=8, merge=merge)
    told: Counter[Any] = Counter()
    lock = threading.Lock()
    tickets: list[Any] = []
    cancelled: list[Any] = []
    barrier = threading.Barrier(3)
    rounds = 150
    order = [[rng.sample(range(16), 16) for _ in range(rounds)] for _ in range(2)]

    def count(ticket: Any) -> None:
        with lock:
            told[ticket] += 1

    def cancel(orders: list[list[int]]) -> None:
        for numbers in orders:
            barrier.wait(30)
            cancelled.extend(ticket for ticket in [tickets[n] for n in numbers] if ticket.cancel())
            barrier.wait(30)

    threads = [lab.run_thread(cancel, orders) for orders in order]
    ended: list[Any] = []
    for _ in range(rounds):
        tickets[:] = [r.submit(i // 2) for i in range(16)]
        for ticket in tickets:
            ticket.add_done_callback(count)
        barrier.wait(30)
        barrier.wait(30)
        for i, ticket in enumerate(tickets):
            error = ticket.exception(30)
            assert error is None and ticket.result() == i // 2 or isinstance(error, relay.RequestCancelled)
            ended.append(ticket)
    for thread in threads:
        thread.join(30)
    assert r.drain() == 0
    lab.wait_until(lambda: len(told) == len(ended))
    assert set(told.values()) == {1}
    failed = {ticket for ticket in ended if ticket.exception() is not None}
    assert len(cancelled) == len(set(cancelled)) and set(cancelled) == failed
    lab.idle(r)
