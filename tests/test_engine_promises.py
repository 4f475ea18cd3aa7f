"""Scenarios B4, D1, D2, D6 and D8 through the whole relay: bounded waits, bounded batches, one end for each request."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


@pytest.mark.parametrize("kind", ["plain", "prepared", "merged"])
def test_b4_closed_at_once(lab: Lab, kind: str) -> None:
    before = set(threading.enumerate())
    options: dict[str, Any] = {"prepared": {"prepare": str}, "merged": {"merge": True}}.get(kind, {})
    model = lab.model(held=True)
    r = lab.start(model, max_queue=4, **options)
    filled = [r.submit(("fill", i)) for i in range(4)]
    model.wait_until_running()

    def mapped(item: Any) -> Any:
        return list(r.map([item]))

    async def mapped_async(item: Any) -> Any:
        return [y async for y in r.map_async([item])]

    async def main() -> list[Any]:
        tasks = [r.run_async(1), mapped_async(2), r.run_async(3), mapped_async(4)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    threads = [lab.call(r, 5), lab.call(mapped, 6), lab.call(r, 7), lab.call(mapped, 8)]
    tasks = lab.call(asyncio.run, main())
    lab.in_line(r, 8)
    closing = lab.run_thread(r.close)
    for each in threads:
        with pytest.raises(relay.Closed):
            each.result()
    assert [type(error) for error in tasks.result()] == [relay.Closed] * 4
    assert r.snapshot().waiting == 0
    assert closing.is_alive()  # the model has not come back
    model.free()
    closing.join(30)
    assert {type(ticket.exception(0)) for ticket in filled} <= {type(None), relay.Closed}
    lab.wait_until(lambda: set(threading.enumerate()) <= before)


def test_d1_cancelled_ones_leave_before_they_run(lab: Lab, rng: random.Random) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, max_batch_size=8, clock=clock)
    r.submit("plug")
    model.wait_until_running()
    tickets = [(i, r.submit(i)) for i in range(1000)]
    gone = {i for i, ticket in tickets if rng.random() < 0.3 and ticket.cancel()}
    last = [r.submit(("last", i)) for i in range(10)]
    model.free()
    assert [ticket.result(30) for ticket in last] == [("last", i) for i in range(10)]
    ran = {item for batch in model.batches[1:] for item in batch}
    assert not ran & gone and len(ran) == 1010 - len(gone)
    lab.idle(r)


@pytest.mark.parametrize("linger", [0.0, 5.0])
def test_d2_one_more_than_a_batch(lab: Lab, linger: float) -> None:
    """The last one runs without another arrival: at once, or when the time that the user has set is over."""
    clock, model = lab.clock(), lab.model()
    r = lab.start(model, max_batch_size=4, linger=linger, clock=clock)
    tickets = r.submit_many(range(4)), r.submit(4)
    assert tickets[0].result(30) == [0, 1, 2, 3]
    if linger:
        lab.wait_until(lambda: r.snapshot().queued == 1)
        clock.wait_for_sleepers(1)
        assert not tickets[1].done()
        clock.advance(linger)
    assert tickets[1].result(30) == 4 and sorted(map(len, model.batches)) == [1, 4]


def test_d6_lists_are_split_and_joined_in_order(lab: Lab) -> None:
    model = lab.model(lambda item: item * 2, held=True)
    r = lab.start(model, max_batch_size=8, max_batch_tokens=4096)
    r.submit("plug")
    model.wait_until_running()
    lists = [[f"{n}-{i}" + "x" * 700 for i in range(n)] for n in (5, 5, 3, 20)]
    tickets = [r.submit_many(items) for items in lists]
    model.free()
    for items, ticket in zip(lists, tickets, strict=True):
        assert ticket.result(30) == [item * 2 for item in items]
    for batch in model.batches:
        assert len(batch) <= 8 and len(batch) * max(map(len, batch)) <= 4096
    lab.idle(r)


def test_d8_what_does_not_fit_is_refused_and_the_rest_answered(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_queue=25, max_batch_size=5)
    started, tickets, refused = threading.Barrier(25), [], []

    def client(number: int) -> None:
        items = [(number, i) for i in range(5)]
        started.wait(30)
        try:
            tickets.append((items, r.submit_many(items)))
        except relay.Overloaded as error:
            refused.append(error)

    for each in [lab.call(client, number) for number in range(25)]:
        each.result()
    assert len(tickets) == 5 and len(refused) == 20
    assert {(error.reason, error.http_status) for error in refused} == {("queue_full", 429)}
    assert all(error.retry_after > 0 for error in refused)
    model.free()
    for items, ticket in tickets:
        assert ticket.result(30) == items
    assert r.snapshot().refused == 100
    lab.idle(r)


def test_c1_numbered_items_come_out_once_each(lab: Lab) -> None:
    """Through a small queue, from threads and tasks, with short waits for room: none lost, none twice."""
    seen: list[Any] = []

    def model(items: list[Any]) -> list[Any]:
        seen.extend(items)
        return items

    r = lab.start(model, max_queue=8, max_batch_size=4)
    answered: list[Any] = []

    def thread(number: int) -> None:
        for i in range(200):
            while True:
                try:
                    answered.append(r((number, i), timeout=0.001))
                    break
                except relay.Overloaded:
                    pass

    async def task(number: int) -> None:
        for i in range(50):
            while True:
                try:
                    answered.append(await r.run_async((number, i), timeout=0.001))
                    break
                except relay.Overloaded:
                    pass

    async def main() -> None:
        await asyncio.gather(*(task(100 + number) for number in range(20)))

    calls = [lab.call(thread, number) for number in range(6)] + [lab.call(asyncio.run, main())]
    for each in calls:
        each.result()
    assert len(seen) == len(set(seen)) == len(answered) == len(set(answered)) == 6 * 200 + 20 * 50
    lab.idle(r)
