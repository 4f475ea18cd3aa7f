"""Lanes that take a token of a shared pool for each batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

Loops = Callable[[], asyncio.AbstractEventLoop]


def waiting(lab: Lab, pool: Any, count: int) -> None:
    lab.wait_until(lambda: pool.snapshot().waiting == count)


def levels(pool: Any) -> dict[int, int]:
    """How many wait, by tier."""
    return {level: tier.waiting for level, tier in pool.snapshot().tiers.items() if tier.waiting}


@pytest.fixture(params=["thread", "task"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


def as_kind(kind: str, model: Callable[[Any], Any]) -> Any:
    """A plain model, or the same one as a coroutine function that blocks no loop."""
    if kind == "thread":
        return model

    async def coroutine(items: list[Any]) -> list[Any]:
        rows: list[Any] = await asyncio.to_thread(model, items)
        return rows

    return coroutine


# One token for each batch.


def test_one_token_for_each_batch(lab: Lab, kind: str) -> None:
    pool = lab.pool(2)
    held: list[int] = []

    def model(items: list[Any]) -> list[Any]:
        held.append(pool.snapshot().held)
        return items

    r = lab.start(as_kind(kind, model), pool=pool, max_batch_size=4)
    assert r.submit_many(range(20)).result(30) == list(range(20))
    assert held == [1] * len(held)
    lab.wait_until(lambda: pool.snapshot().held == 0)
    assert pool.snapshot().granted >= len(held) == 5
    lab.idle(r)


def test_two_lanes_on_a_pool_of_one(lab: Lab, kind: str) -> None:
    pool = lab.pool(1)
    running: list[int] = []
    most: list[int] = []

    def model(items: list[Any]) -> list[Any]:
        running.append(1)
        most.append(len(running))
        threading.Event().wait(0.001)
        running.pop()
        return items

    r = lab.start(as_kind(kind, model), pool=pool, lanes=2, max_batch_size=2)
    calls = [lab.call(lambda n=n: [r((n, i)) for i in range(20)]) for n in range(6)]
    for n, call in enumerate(calls):
        assert call.result() == [(n, i) for i in range(20)]
    assert max(most) == 1
    lab.wait_until(lambda: pool.snapshot().held == 0)
    lab.idle(r)


def test_members_are_chosen_once_the_token_is_there(lab: Lab, kind: str) -> None:
    pool = lab.pool(1)
    model = lab.model()
    r = lab.start(as_kind(kind, model), pool=pool)
    token = pool.acquire(0)
    tickets = [r.submit(1, priority="batch")]
    waiting(lab, pool, 1)
    tickets += [r.submit(2), r.submit(3, priority="realtime"), r.submit(4)]
    gone = r.submit(5)
    assert gone.cancel()
    token.release()
    assert [ticket.result(30) for ticket in tickets] == [1, 2, 3, 4]
    assert model.batches == [[3, 2, 4, 1]]


# How urgently it waits.


def test_it_waits_as_its_most_urgent_request(lab: Lab, kind: str) -> None:
    pool = lab.pool(1)
    r = lab.start(as_kind(kind, lab.model()), pool=pool)
    token = pool.acquire(0)
    tickets = [r.submit(1, priority="batch")]
    waiting(lab, pool, 1)
    assert levels(pool) == {2: 1}
    tickets.append(r.submit(2, priority="interactive"))
    assert levels(pool) == {1: 1}
    tickets.append(r.submit(3, priority="batch"))
    assert levels(pool) == {1: 1}
    tickets.append(r.submit(4, priority="realtime"))
    assert levels(pool) == {0: 1}
    token.release()
    assert [ticket.result(30) for ticket in tickets] == [1, 2, 3, 4]


def test_a_merged_request_lifts_it(lab: Lab, kind: str) -> None:
    pool = lab.pool(1)
    r = lab.start(as_kind(kind, lab.model()), pool=pool, merge=True)
    token = pool.acquire(0)
    tickets = [r.submit("x", priority="batch")]
    waiting(lab, pool, 1)
    tickets.append(r.submit("x", priority="realtime"))
    assert levels(pool) == {0: 1}
    token.release()
    assert [ticket.result(30) for ticket in tickets] == ["x", "x"]


def test_many_lift_it_at_once(lab: Lab) -> None:
    """In whatever order they come, it waits as the most urgent of them."""
    pool = lab.pool(1)
    r = lab.start(lab.model(), pool=pool)
    for _ in range(50):
        token = pool.acquire(0)
        tickets = [r.submit(255, priority=255)]
        waiting(lab, pool, 1)
        barrier = threading.Barrier(4)

        def submit(level: int, barrier: threading.Barrier = barrier) -> Any:
            barrier.wait(30)
            return r.submit(level, priority=level)

        calls = [lab.call(submit, level) for level in (0, 1, 2, 3)]
        tickets += [call.result() for call in calls]
        assert levels(pool) == {0: 1}
        token.release()
        for ticket in tickets:
            ticket.result(30)


def test_two_relays_on_one_pool(lab: Lab, kind: str) -> None:
    """The urgent one is next, however much the other has in line."""
    pool = lab.pool(1)
    order: list[str] = []
    heavy = lab.model(held=True)

    def light(items: list[Any]) -> list[Any]:
        order.append("urgent")
        return items

    def bulk(items: list[Any]) -> list[Any]:
        order.append("bulk")
        rows: list[Any] = heavy(items)
        return rows

    slow = lab.start(as_kind(kind, bulk), pool=pool, max_batch_size=1, name="slow")
    fast = lab.start(as_kind(kind, light), pool=pool, name="fast")
    queued = [slow.submit(i, priority="batch") for i in range(5)]
    heavy.wait_until_running()
    urgent = fast.submit("now", priority="realtime")
    waiting(lab, pool, 1)
    heavy.release()
    assert urgent.result(30) == "now"
    assert order[:2] == ["bulk", "urgent"]
    heavy.free()
    assert [ticket.result(30) for ticket in queued] == list(range(5))
    lab.wait_until(lambda: pool.snapshot().held == 0)


def test_it_does_not_stand_in_line_for_nothing(lab: Lab) -> None:
    """What another lane has taken, or nobody waits for any more, needs no token at the front of the line."""
    pool = lab.pool(1)
    r = lab.start(lab.model(), pool=pool)
    token = pool.acquire(0)
    ticket = r.submit(1, priority="batch")
    waiting(lab, pool, 1)
    assert ticket.cancel()
    token.release()
    lab.wait_until(lambda: pool.snapshot().held == 0 and pool.snapshot().waiting == 0)
    assert r(2) == 2
    lab.idle(r)


# The token always comes back.


class Odd(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize("error", [ValueError("v"), Odd("o"), StopIteration("s")], ids=lambda e: type(e).__name__)
def test_after_an_error(lab: Lab, kind: str, error: BaseException) -> None:
    pool = lab.pool(1)
    raising = [error]

    def plain(items: list[Any]) -> list[Any]:
        if raising:
            raise raising.pop()
        return items

    async def coroutine(items: list[Any]) -> list[Any]:
        await asyncio.sleep(0)
        return plain(items)

    r = lab.start(plain if kind == "thread" else coroutine, pool=pool, isolate=False)
    with pytest.raises(Exception):  # noqa: B017, PT011
        r(1)
    assert r(2) == 2
    lab.wait_until(lambda: pool.snapshot().held == 0)
    lab.idle(r)


def test_after_its_loop_has_closed(lab: Lab, loops: Loops) -> None:
    pool = lab.pool(1)
    calls: list[Any] = []

    async def model(items: list[Any]) -> list[Any]:
        calls.append(items)
        if items == ["stuck"]:
            await asyncio.get_running_loop().create_future()
        return items

    r = lab.start(model, pool=pool)
    loop = loops()
    tickets: list[Any] = []

    async def main() -> None:
        tickets.append(r.submit("stuck"))
        while not calls:
            await asyncio.sleep(0)

    loop.run_until_complete(main())
    assert pool.snapshot().held == 1
    loop.close()
    with pytest.raises(lab.Closed):
        tickets[0].result(30)
    lab.wait_until(lambda: pool.snapshot().held == 0)
    assert r("on") == "on"
    lab.wait_until(lambda: pool.snapshot().held == 0)
    lab.idle(r)


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_the_loop_closes_while_it_waits_for_a_token(lab: Lab, loops: Loops, how: str) -> None:
    """It stands in line no more; what is queued goes on elsewhere, and gets the token when that is free."""
    pool = lab.pool(1)

    async def model(items: list[Any]) -> list[Any]:
        return items

    r = lab.start(model, pool=pool)
    token = pool.acquire(0)
    loop = loops()
    tickets: list[Any] = []

    async def main() -> None:
        tickets.append(r.submit("x"))
        while not pool.snapshot().waiting:
            await asyncio.sleep(0)

    if how == "close":
        loop.run_until_complete(main())
        loop.close()
    else:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main())
    lab.wait_until(lambda: r._dispatcher.lanes[0].loop not in (None, loop))
    waiting(lab, pool, 1)
    token.release()
    assert tickets[0].result(30) == "x"
    lab.wait_until(lambda: pool.snapshot().held == 0)
    lab.idle(r)


def test_the_pools_heartbeat_is_not_for_lanes(lab: Lab) -> None:
    clock = lab.clock()
    pool = lab.pool(1, heartbeat=1.0, grace=0.5, clock=clock)
    model = lab.model(held=True)
    r = lab.start(model, pool=pool)
    ticket = r.submit(1)
    model.wait_until_running()
    clock.advance(100.0)
    assert pool.snapshot().held == 1 and pool.snapshot().revoked == 0
    model.free()
    assert ticket.result(30) == 1
    lab.wait_until(lambda: pool.snapshot().held == 0)


# The end.


def test_closing_the_relay_while_it_waits(lab: Lab, kind: str) -> None:
    pool = lab.pool(1)
    model = lab.model()
    before = set(threading.enumerate())
    r = lab.start(as_kind(kind, model), pool=pool, lanes=2)
    token = pool.acquire(0)
    tickets = [r.submit(i) for i in range(3)]
    lab.wait_until(lambda: pool.snapshot().waiting >= 1)
    r.close()
    for ticket in tickets:
        with pytest.raises(lab.Closed):
            ticket.result(30)
    assert not model.batches and pool.snapshot().waiting == 0
    assert not {thread for thread in set(threading.enumerate()) - before if "alarm" not in thread.name}
    token.release()
    assert pool.snapshot().held == 0


def test_closing_the_pool_while_it_waits(lab: Lab, kind: str) -> None:
    """What waits, and what comes after, is told so; the relay itself goes on."""
    pool = lab.pool(1, name="gpu")
    r = lab.start(as_kind(kind, lab.model()), pool=pool, name="model")
    token = pool.acquire(0)
    ticket = r.submit(1)
    waiting(lab, pool, 1)
    pool.close()
    for each in (ticket, r.submit(2)):
        with pytest.raises(lab.Closed, match="pool"):
            each.result(30)
    assert r.healthy and r.snapshot().open == 0
    token.release()
    r.close()


def test_too_many_in_the_pools_line(lab: Lab, kind: str) -> None:
    pool = lab.pool(1, max_waiting=1)
    r = lab.start(as_kind(kind, lab.model()), pool=pool)
    token = pool.acquire(0)
    other = lab.call(pool.acquire, 0)
    waiting(lab, pool, 1)
    with pytest.raises(lab.Overloaded):
        r.submit(1).result(30)
    token.release()
    other.result().release()
    assert r(2) == 2
    lab.wait_until(lambda: pool.snapshot().held == 0)
    lab.idle(r)


def test_closing_at_any_moment(lab: Lab, kind: str) -> None:
    pool = lab.pool(2)
    for n in range(30):
        r = lab.start(as_kind(kind, lambda items: items), pool=pool, lanes=3, max_batch_size=1)
        other = lab.start(lambda items: items, pool=pool)
        tickets = [each.submit(i, priority=i % 3) for i in range(6) for each in (r, other)]
        if n % 3:
            tickets[n % 4].result(30)
        r.close()
        for ticket in tickets:
            try:
                ticket.result(30)
            except lab.Closed:
                pass
        other.close()
        lab.wait_until(lambda: pool.snapshot().held == 0 and pool.snapshot().waiting == 0)
