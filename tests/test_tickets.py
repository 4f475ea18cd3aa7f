"""The core of tickets on both sides: settled once, every waiter woken, with one call for each loop."""

from __future__ import annotations

import asyncio
import random
import threading
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Core


@pytest.fixture
def tickets(core: Core) -> Any:
    return core.tickets


def desk() -> Any:
    return SimpleNamespace(open=set(), forked=False)


def opened(tickets: Any, owner: Any, item: Any = None) -> Any:
    ticket = tickets.TicketBase(owner, item, 1, 5)
    owner.open.add(ticket)
    return ticket


def test_where_it_comes_from(core: Core) -> None:
    file = core.tickets.__file__ or ""
    assert core.tickets.TicketBase.__module__ == f"{core.package}.tickets"
    assert file.endswith(".py") == (core.side == "pure")


def test_what_a_new_one_holds(tickets: Any) -> None:
    owner = desk()
    ticket = tickets.TicketBase(owner, "item", 2, 7)
    assert (ticket._desk, ticket._item, ticket.priority, ticket._arrival_ns) == (owner, "item", 2, 7)
    assert (ticket.tenant, ticket.size, ticket._deadline_ns, ticket._handle, ticket._group) == (None, 1, -1, -1, 0)
    assert ticket._done is False and ticket._value is ticket._error is ticket._run is None
    for wrong, kind, text in ((1.0, TypeError, "must be an int"), (2**63, OverflowError, "does not fit in 64 bits")):
        with pytest.raises(kind, match=text):
            tickets.TicketBase(owner, None, wrong, 0)
        with pytest.raises(kind, match=text):
            tickets.TicketBase(owner, None, 0, wrong)


def test_settled_once(tickets: Any) -> None:
    ticket, replies = opened(tickets, desk()), tickets.Replies()
    assert tickets.settle(ticket, "first", None, replies, "run")
    assert not tickets.settle(ticket, "second", ValueError(), replies)
    assert (ticket._done, ticket._value, ticket._error, ticket._run) == (True, "first", None, "run")


@pytest.mark.parametrize("elsewhere", [True, False])
def test_one_call_for_each_loop(tickets: Any, elsewhere: bool) -> None:
    owner, replies = desk(), tickets.Replies()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        calls: list[Any] = []
        real = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args: (calls.append(args), real(*args))[1]  # type: ignore
        waiting = [opened(tickets, owner, i) for i in range(50)]
        tasks = [asyncio.ensure_future(ticket) for ticket in waiting]
        await asyncio.sleep(0)
        for number, ticket in enumerate(waiting):
            error = KeyError(number) if number % 7 == 3 else None
            assert tickets.settle(ticket, number, error, replies)
        if elsewhere:
            thread = threading.Thread(target=replies.flush)
            thread.start()
            thread.join()
        else:
            replies.flush(loop)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert len(calls) == elsewhere and replies.undeliverable == 0
        for number, answer in enumerate(answers):
            assert isinstance(answer, KeyError) if number % 7 == 3 else answer == number
        assert await waiting[0] == 0  # once more, after the end

    asyncio.run(main())
    assert not owner.open


def test_a_closed_loop_is_counted_and_the_others_are_served(tickets: Any) -> None:
    owner, replies = desk(), tickets.Replies()
    ticket = opened(tickets, owner)
    loop = asyncio.new_event_loop()
    ticket._attach((loop, loop.create_future()))
    loop.close()
    heard: list[int] = []
    for number in range(3):
        ticket._attach(lambda number=number: heard.append(number))
    tickets.settle(ticket, 1, None, replies)
    replies.flush()
    assert replies.undeliverable == 1 and heard == [0, 1, 2]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), asyncio.CancelledError(), KeyboardInterrupt()])
def test_a_waiter_that_raises_harms_nobody(tickets: Any, error: BaseException) -> None:
    ticket, replies = opened(tickets, desk()), tickets.Replies()

    def bad() -> None:
        raise error

    heard: list[int] = []
    ticket._attach(bad)
    ticket._attach(lambda: heard.append(1))
    tickets.settle(ticket, 1, None, replies)
    replies.flush()
    ticket._attach(bad)
    ticket._attach(lambda: heard.append(2))
    assert heard == [1, 2]


def test_detach(tickets: Any) -> None:
    ticket, replies = opened(tickets, desk()), tickets.Replies()
    heard: list[int] = []
    waiter = lambda: heard.append(1)  # noqa: E731
    ticket._attach(waiter)
    assert ticket._detach(waiter) and not ticket._detach(waiter)
    tickets.settle(ticket, 1, None, replies)
    replies.flush()
    assert heard == []


def test_answer_all_leaves_errors_and_shared_runs(tickets: Any) -> None:
    owner, replies = desk(), tickets.Replies()
    members = [opened(tickets, owner, f"item {i}") for i in range(5)]
    members[1]._followers = [opened(tickets, owner)]
    members[2]._followers = []

    class Odd:
        @property
        def __class__(self) -> Any:
            raise RuntimeError("must not be asked")

    rows = ["a", "b", Odd(), ValueError("d"), StopIteration()]
    assert tickets.answer_all(members, rows, "run", replies) == [1, 3, 4]
    assert [member._done for member in members] == [True, False, True, False, False]
    assert members[0]._value == "a" and members[0]._item is None and members[1]._item == "item 1"


def test_answer_all_lets_go_of_what_only_the_work_needed(tickets: Any) -> None:
    owner, replies = desk(), tickets.Replies()
    members = [opened(tickets, owner, "item") for _ in range(3)]
    for member in members:
        member._content = member._prepared = member._kept = "kept"
    members[2]._followers = [opened(tickets, owner)]
    tickets.answer_all(members, ["a", ValueError(), "c"], None, replies)

    def held(ticket: Any) -> list[Any]:
        return [ticket._item, ticket._content, ticket._prepared, ticket._kept, ticket._context]

    assert held(members[0]) == [None] * 5
    assert all(each is not None for member in members[1:] for each in held(member))
    tickets.let_go(members[2])
    assert held(members[2]) == [None] * 5


def test_a_ticket_has_the_context_it_was_made_in(tickets: Any) -> None:
    variable: ContextVar[str] = ContextVar("variable")
    variable.set("before")
    owner = desk()
    lone, shared = opened(tickets, owner), opened(tickets, owner)
    variable.set("after")
    assert lone._context[variable] == "before" and lone._context is not shared._context
    shared._followers = [opened(tickets, owner)]
    for ticket in (lone, shared):
        tickets.settle(ticket, None, ValueError(), tickets.Replies())
    assert lone._context is None  # nobody needs it
    assert shared._context[variable] == "before"  # the work goes on


def test_what_a_run_holds(tickets: Any) -> None:
    run = tickets.Run(5, 3)
    assert (run.committed_ns, run.started_ns, run.ended_ns, run.first_ns) == (5, 5, 5, 0)
    assert (run.size, run.why, run.width, run.real, run.raised) == (3, 0, 1, 0, False)
    run = tickets.Run(5, 3, 2, 10, 24)
    assert (run.why, run.width, run.real) == (2, 10, 24)
    with pytest.raises(TypeError, match="committed_ns must be an int"):
        tickets.Run(5.0, 3)


def test_waits_are_recorded_for_those_answered(tickets: Any) -> None:
    owner, replies, waits = desk(), tickets.Replies(), tickets.Waits()
    run = tickets.Run(100, 6)
    run.started_ns, run.ended_ns = 110, 150
    # Made at 5: never pinned; ready at 40; joined under way; an error; shared; ended already.
    members = [opened(tickets, owner) for _ in range(6)]
    members[1]._ready_ns = 40
    members[2]._arrival_ns = 120
    members[4]._followers = [opened(tickets, owner)]
    tickets.settle(members[5], None, ValueError(), replies)
    assert tickets.answer_all(members, [1, 2, 3, ValueError(), 5, 6], run, replies, waits) == [3, 4]
    prepare, queue, total = waits.read()
    assert [each.count for each in (prepare, queue, total)] == [3, 3, 3]
    assert (prepare.total_ns, queue.total_ns, total.total_ns) == (35, 95 + 60 + 0, 145 + 145 + 30)
    waits.record(members[4], run)
    assert waits.total.count == 4 and total.count == 3
    for each in (waits.prepare, waits.queue, waits.total):
        each.check()


def test_waits_of_several_lanes(tickets: Any) -> None:
    waits, barrier = tickets.Waits(), threading.Barrier(4)

    def record() -> None:
        owner = desk()
        barrier.wait()
        for number in range(500):
            run_of = tickets.Run(100 + number, 1)
            tickets.answer_all([opened(tickets, owner)], [1], run_of, tickets.Replies(), waits)

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.count for each in waits.read()] == [2000] * 3
    for each in (waits.prepare, waits.queue, waits.total):
        each.check()


def test_groups_count_down(tickets: Any) -> None:
    ticket, replies = opened(tickets, desk()), tickets.Replies()
    counted: list[Any] = []
    group = SimpleNamespace(count_down=counted.append)
    ticket._attach(tickets.Member(group))
    tickets.settle(ticket, 1, None, replies)
    assert counted == [replies]
    ticket._attach(tickets.Member(group))  # too late: served at once, with replies of its own
    assert len(counted) == 2 and counted[1] is not replies


def test_waiters_and_settlers_race(tickets: Any, rng: random.Random) -> None:
    """Whoever attaches while another thread settles is woken exactly once."""
    for _ in range(300):
        owner = desk()
        members = [opened(tickets, owner) for _ in range(8)]
        woken: list[int] = []
        barrier = threading.Barrier(3)

        def attach(start: int, barrier: Any = barrier, members: Any = members, woken: Any = woken) -> None:
            barrier.wait()
            for number, member in enumerate(members):
                member._attach(lambda number=number: woken.append(number + start))

        def settle(barrier: Any = barrier, members: Any = members) -> None:
            barrier.wait()
            replies = tickets.Replies()
            for member in rng.sample(members, len(members)):
                tickets.settle(member, 1, None, replies)
            replies.flush()

        threads = [threading.Thread(target=attach, args=(n,)) for n in (0, 100)] + [threading.Thread(target=settle)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(woken) == [*range(8), *range(100, 108)] and not owner.open
