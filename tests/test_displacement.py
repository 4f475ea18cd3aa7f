"""Displacement: a full queue gives the place of its newest, least urgent request to a more urgent one."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import relay
from relay import BATCH, INTERACTIVE, REALTIME

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def plugged(lab: Lab, **options: Any) -> tuple[Any, Any]:
    """A relay of one lane, which is busy, and its held model."""
    model = lab.model(held=True)
    r = lab.start(model, max_batch_size=1, **options)
    r.submit("plug", priority=REALTIME)
    model.wait_until_running()
    return r, model


def ran(model: Any) -> list[Any]:
    """What the model was given after the plug, in order."""
    return [item for batch in model.batches[1:] for item in batch]


def test_the_newest_of_the_least_urgent_goes(lab: Lab) -> None:
    r, model = plugged(lab, max_queue=6)
    tickets = {
        name: r.submit(name, priority=priority)
        for name, priority in (("b1", BATCH), ("b2", BATCH), ("i1", INTERACTIVE), ("b3", BATCH), ("i2", INTERACTIVE))
    }
    urgent = [r.submit(f"u{i}", priority=REALTIME) for i in range(4)]
    gone = ["b3", "b2", "b1", "i2"]  # in this order
    for name in gone:
        error = tickets[name].exception(0)
        assert type(error) is relay.Overloaded and error.reason == "displaced" and error.retry_after > 0
        assert "the queue of 'relay' was full, and the request of priority" in str(error)
        assert "had to make room for one of priority 0; retry later" in str(error)
    with pytest.raises(relay.Overloaded) as refused:
        r.submit("i3", priority=INTERACTIVE)
    assert refused.value.reason == "queue_full"
    told = r.snapshot()
    assert (told.displaced, told.refused, told.admitted) == (4, 1, 6)
    model.free()
    assert [ticket.result(30) for ticket in urgent] == ["u0", "u1", "u2", "u3"] and tickets["i1"].result(30) == "i1"
    lab.idle(r)
    assert ran(model) == ["u0", "u1", "u2", "u3", "i1"]


@pytest.mark.parametrize("priority", [REALTIME, INTERACTIVE, BATCH, 255])
def test_never_one_of_its_own_tier(lab: Lab, priority: int) -> None:
    r, _ = plugged(lab, max_queue=3)
    tickets = [r.submit(i, priority=priority) for i in range(2)]
    with pytest.raises(relay.Overloaded, match="no room for the request: 3 of 3 places"):
        r.submit(2, priority=priority)
    with pytest.raises(relay.Overloaded, match="no room for 2 requests"):
        r.submit_many([2, 3], priority=priority)
    assert not any(ticket.done() for ticket in tickets) and r.snapshot().displaced == 0


def test_never_one_that_runs(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_queue=1)
    running = r.submit("x", priority=BATCH)
    model.wait_until_running()
    with pytest.raises(relay.Overloaded):
        r.submit("y", priority=REALTIME)
    model.free()
    assert running.result(30) == "x"


@pytest.mark.parametrize("how", ["joined", "in one call"])
def test_never_a_merged_leader(lab: Lab, how: str) -> None:
    r, model = plugged(lab, max_queue=3, merge=True)
    alone = r.submit("alone", priority=BATCH)
    if how == "joined":
        shared = [r.submit("shared", priority=BATCH), r.submit("shared", priority=BATCH)]
    else:
        shared = [r.submit_many(["shared", "shared"], priority=BATCH)]
    first = r.submit("first", priority=REALTIME)
    assert alone.exception(0).reason == "displaced"
    with pytest.raises(relay.Overloaded):
        r.submit("second", priority=REALTIME)
    joins = r.submit("shared", priority=REALTIME)  # needs no place
    model.free()
    assert joins.result(30) == "shared" and first.result(30) == "first"
    assert [ticket.result(30) for ticket in shared] == (["shared"] * 2 if how == "joined" else [["shared"] * 2])
    lab.idle(r)


def test_one_who_joins_in_that_very_moment_is_not_sent_away(lab: Lab) -> None:
    """A follower as urgent as the newcomer is on the list of the displaced, and gets a place of its own."""
    r, model = plugged(lab, max_queue=3, merge=True)
    leader, other = r.submit("x", priority=BATCH), r.submit("other", priority=255)
    queue, displaced = r._desk.queue, []

    class Held:  # the queue's `displace`, but somebody joins between the drop and the look at the followers
        def __getattr__(self, name: str) -> Any:
            return getattr(queue, name)

        def __len__(self) -> int:
            return len(queue)

        def displace(self, level: int) -> Any:
            handle, owner = queue.displace(level)
            if owner is leader and not displaced:
                late = r._intake.ticket("x", REALTIME)
                displaced.append(late)
                r._desk.open.add(late)
                leader._followers.append(late)
            return handle, owner

    r._desk.queue = Held()
    first = r.submit("u1", priority=INTERACTIVE)
    with pytest.raises(relay.Overloaded):  # the joiner is more urgent and has the place, and u1 is of the same tier
        r.submit("u2", priority=INTERACTIVE)
    r._desk.queue = queue
    assert other.exception(0).reason == leader.exception(0).reason == "displaced"
    model.free()
    assert displaced[0].result(30) == "x" and first.result(30) == "u1"
    lab.idle(r)


class Slow:
    """A `prepare` or `encode` that waits until it is let go."""

    max_length, pad_id, has_segments, fingerprint, vocab_size = 8, 0, False, "slow", 256

    def __init__(self) -> None:
        self.entered, self.go, self.seen = threading.Semaphore(0), threading.Event(), list[Any]()

    def __call__(self, item: Any) -> Any:
        self.seen.append(item)
        self.entered.release()
        assert self.go.wait(30)
        return item

    def check(self, item: object) -> None:
        pass

    def reserve(self, item: str) -> int:
        return len(item)

    def encode(self, items: Any) -> list[Any]:
        return [([ord(c) for c in self(item)], -1) for item in items]


@pytest.mark.parametrize("what", ["prepare", "tokenizer"])
def test_those_being_prepared(lab: Lab, what: str) -> None:
    """One for each newcomer and no more, the one in the helper's hands included; and the urgent ones are next."""
    slow = Slow()
    model = lab.model(str.upper)
    options: dict[str, Any] = {"prepare": slow} if what == "prepare" else {"tokenizer": slow}
    r = lab.start(model, max_queue=4, limits=lab.Limits(helper_threads=1, encode_chunk=1), **options)
    bulk = [r.submit(f"b{i}", priority=BATCH) for i in range(4)]
    assert slow.entered.acquire(timeout=30)
    urgent = [r.submit("u0", priority=REALTIME)]
    assert [ticket.done() for ticket in bulk] == [False, False, False, True]
    urgent += [r.submit(f"u{i}", priority=REALTIME) for i in range(1, 4)]
    assert {ticket.exception(0).reason for ticket in bulk} == {"displaced"}
    assert r.snapshot().admitted == 4 and r.snapshot().displaced == 4
    slow.go.set()
    assert [ticket.result(30) for ticket in urgent] == ["U0", "U1", "U2", "U3"]
    lab.idle(r)
    assert sorted(item for batch in model.batches for item in batch) == ["u0", "u1", "u2", "u3"]
    assert slow.seen == ["b0", "u0", "u1", "u2", "u3"]  # the gone are not even looked at


def test_ids_without_room_are_made_room_for(lab: Lab) -> None:
    """Places there are, but bulk has taken all room for input ids."""
    slow = Slow()
    slow.go.set()
    model = lab.model(held=True)
    limits = lab.Limits(max_ids=64, helper_threads=1)
    r = lab.start(model, max_queue=100, max_batch_size=1, tokenizer=slow, limits=limits)
    bulk = []
    with pytest.raises(relay.Overloaded):
        while True:
            bulk.append(r.submit("x" * 8, priority=BATCH))
    assert len(bulk) < 100
    urgent = r.submit("u" * 8, priority=REALTIME)
    assert bulk[-1].exception(0).reason == "displaced"
    model.free()
    assert urgent.result(30) == "u" * 8


def call(r: Any, **request: Any) -> Any:
    return r("waits", **request)


def run_async(r: Any, **request: Any) -> Any:
    return asyncio.run(r.run_async("waits", **request))


def map_one(r: Any, **request: Any) -> Any:
    return next(iter(r.map(["waits"], **request)))


def map_async(r: Any, **request: Any) -> Any:
    async def main() -> Any:
        return [y async for y in r.map_async(["waits"], **request)][0]

    return asyncio.run(main())


DOORS = [call, run_async, map_one, map_async]
Door = Callable[..., Any]


@pytest.mark.parametrize("door", DOORS)
def test_who_waits_waits_again(lab: Lab, door: Door) -> None:
    """And is as old as before: it comes before one that came after it."""
    r, model = plugged(lab, max_queue=3)
    waits = lab.call(door, r, priority=BATCH)
    lab.wait_until(lambda: r.snapshot().queued == 1)
    other = r.submit("other", priority=INTERACTIVE)
    r.submit("urgent", priority=REALTIME)
    lab.in_line(r, 1)
    assert r.snapshot().displaced == 1 and not other.done()
    later = lab.call(r, "later", priority=BATCH)
    lab.in_line(r, 2)
    model.release()  # the plug
    lab.in_line(r, 1)
    lab.wait_until(lambda: r.snapshot().admitted == 3)  # whoever has got the place has taken it
    model.free()
    assert waits.result() == "waits" and later.result() == "later"
    lab.idle(r)
    assert ran(model) == ["urgent", "other", "waits", "later"]


@pytest.mark.parametrize("door", DOORS)
def test_its_deadline_is_the_old_one(lab: Lab, door: Door) -> None:
    clock = lab.clock()
    r, _ = plugged(lab, max_queue=2, clock=clock)
    waits = lab.call(door, r, priority=BATCH, deadline=4.1)
    lab.wait_until(lambda: r.snapshot().queued == 1)
    clock.advance(4)
    r.submit("urgent", priority=REALTIME)
    lab.in_line(r, 1)
    if door in (call, map_one):  # a loop has its own time
        clock.advance(0.1)
    with pytest.raises(relay.DeadlineExceeded, match="no room in the queue of 'relay' until the request's deadline"):
        waits.result()
    assert r.snapshot().expired == 1 and r.snapshot().waiting == 0


@pytest.mark.parametrize("door", DOORS)
def test_it_waits_for_room_no_longer_than_its_timeout(lab: Lab, door: Door) -> None:
    r, _ = plugged(lab, max_queue=2)
    waits = lab.call(door, r, priority=BATCH, timeout=0)
    lab.wait_until(lambda: r.snapshot().queued == 1)
    r.submit("urgent", priority=REALTIME)
    with pytest.raises(relay.Overloaded) as gone:
        waits.result()
    assert gone.value.reason == "queue_full" and r.snapshot().waiting == 0


def test_cancelled_while_it_waits_again(lab: Lab) -> None:
    r, model = plugged(lab, max_queue=2)

    async def main() -> None:
        task = asyncio.ensure_future(r.run_async("waits", priority=BATCH))
        await asyncio.sleep(0)
        r.submit("urgent", priority=REALTIME)
        while not r.snapshot().waiting:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert r.snapshot().waiting == 0
    model.free()
    lab.idle(r)
    assert ran(model) == ["urgent"]


def test_many_at_once_are_let_in_whole_or_not_at_all(lab: Lab) -> None:
    r, model = plugged(lab, max_queue=5)
    bulk = [r.submit(i, priority=BATCH) for i in range(2)]
    same = r.submit("same")
    with pytest.raises(relay.Overloaded, match="no room for 4 requests"):
        r.submit_many(["a", "b", "c", "d"])
    assert r.snapshot().displaced == 0  # not for nothing
    group = r.submit_many(["a", "b", "c"])  # one place is free
    assert {ticket.exception(0).reason for ticket in bulk} == {"displaced"} and not same.done()
    assert r.snapshot().displaced == 2
    model.free()
    assert group.result(30) == ["a", "b", "c"] and same.result(30) == "same"
    lab.idle(r)


def test_a_group_that_loses_a_member(lab: Lab) -> None:
    r, model = plugged(lab, max_queue=4)
    whole = r.submit_many(["a", "b", "c"], priority=BATCH, return_exceptions=True)
    r.submit("urgent", priority=REALTIME)
    assert not whole.done()
    model.free()
    a, b, c = whole.result(30)
    assert (a, b) == ("a", "b") and c.reason == "displaced"
    lab.idle(r)


def test_others_who_stand_in_line(lab: Lab) -> None:
    """A newcomer brings its place along, and does not take that of those in line."""
    r, model = plugged(lab, max_queue=3)
    bulk = [r.submit(i, priority=BATCH) for i in range(2)]
    waiting = lab.call(r, "waits", priority=BATCH)
    lab.in_line(r, 1)
    urgent = r.submit("urgent", priority=REALTIME)
    assert bulk[1].exception(0).reason == "displaced" and r.snapshot().waiting == 1
    group = r.submit_many(["g"], priority=INTERACTIVE)
    assert bulk[0].exception(0).reason == "displaced"
    with pytest.raises(relay.Overloaded):
        r.submit_many(["h"], priority=INTERACTIVE)
    model.free()
    assert (urgent.result(30), group.result(30), waiting.result()) == ("urgent", ["g"], "waits")
    lab.idle(r)
    assert ran(model) == ["urgent", "g", "waits"]


@pytest.mark.parametrize("where", ["model", "prepare"])
def test_another_relays_displacement_is_an_error_like_others(lab: Lab, where: str) -> None:
    """Passed on by a model or a preparation, it is not taken for one of this relay's own."""
    inner, held = plugged(lab, max_queue=2)
    calls: list[Any] = []

    def ask(item: Any) -> Any:
        calls.append(item)
        ticket = inner.submit(item, priority=BATCH)
        inner.submit("urgent", priority=REALTIME)
        return ticket.result(30)

    if where == "model":
        outer = lab.start(lambda items: [ask(item) for item in items], name="outer")
    else:
        outer = lab.start(lambda items: items, prepare=ask, name="outer")
    with pytest.raises(relay.Overloaded) as error:
        outer("x")
    assert error.value.reason == "displaced" and calls == ["x"]
    held.free()


@pytest.mark.parametrize("why", ["policy", "late"])
def test_a_promise_that_is_not_used_goes_to_the_next_in_line(lab: Lab, why: str) -> None:
    clock, model, bad = lab.clock(), lab.model(held=True), threading.Event()

    def policy(facts: Any) -> int:
        if bad.is_set() and facts.tenant == "bad":
            raise KeyError("policy")
        return int(facts.arrival * 1000)

    r = lab.start(model, max_queue=1, max_batch_size=1, policy=policy, clock=clock, admit="predict")
    r.submit("plug")
    model.wait_until_running()
    first = lab.call(r, "first", tenant="bad", deadline=5.0)
    lab.in_line(r, 1)
    clock.advance(0.001)
    second = lab.call(r, "second")
    lab.in_line(r, 2)
    if why == "policy":
        bad.set()
    else:
        r._desk.predict_ns = lambda ahead, size, now_ns: now_ns + 10**12
    model.free()
    with pytest.raises(KeyError if why == "policy" else relay.Overloaded):
        first.result()
    assert second.result() == "second"
    lab.idle(r)


@pytest.mark.parametrize("kind", ["plain", "merged", "prepared"])
def test_racing(lab: Lab, rng: random.Random, kind: str) -> None:
    """Eight threads at a small queue, through every door: each request ends once, and none runs that was sent away."""
    runs: Counter[Any] = Counter()
    options: dict[str, Any] = {"merged": {"merge": True}, "prepared": {"prepare": lambda item: item}}.get(kind, {})

    def model(items: list[Any]) -> list[Any]:
        runs.update(items)
        return [("row", item) for item in items]

    r = lab.start(model, max_queue=16, max_batch_size=4, **options)
    ends: list[tuple[str, Any, Any, int]] = []
    seeds = [rng.randrange(2**32) for _ in range(8)]

    def client(number: int) -> None:
        mine = random.Random(seeds[number])
        submitted: list[tuple[Any, Any]] = []
        for i in range(150):
            item = (number, i) if kind != "merged" else (mine.randrange(20), 0)
            level = mine.choice((REALTIME, INTERACTIVE, BATCH, 7))
            door = mine.randrange(4)
            try:
                if door == 0:
                    ends.append(("call", item, r(item, priority=level), level))
                elif door == 1:
                    submitted.append((item, r.submit(item, priority=level)))
                elif door == 2:
                    items = [(number, i, k) for k in range(3)]
                    submitted.append((items, r.submit_many(items, priority=level, return_exceptions=True)))
                else:
                    ends.extend(("map", item, y, level) for y in r.map([item] * 3, priority=level))
            except relay.Overloaded as error:
                assert error.reason == "queue_full" and door in (1, 2)
        for item, ticket in submitted:
            error = ticket.exception(30)
            if error is not None:
                assert error.reason == "displaced", error
                ends.append(("gone", item, None, 0))
            elif isinstance(item, list):
                for each, row in zip(item, ticket.result(0), strict=True):
                    assert row == ("row", each) or row.reason == "displaced"
                    ends.append(("gone" if row != ("row", each) else "many", each, row, 0))
            else:
                ends.append(("submit", item, ticket.result(0), 0))

    calls = [lab.call(client, number) for number in range(8)]
    for each in calls:
        each.result()
    lab.idle(r)
    told = r.snapshot()
    for how, item, row, _ in ends:
        if how != "gone":
            assert row == ("row", item)
        elif kind == "plain":
            assert not runs[item]
    if kind != "merged":
        wanted = Counter(item for how, item, _, _ in ends if how != "gone")
        assert all(runs[item] >= count for item, count in wanted.items())
        assert max(runs.values()) <= 3  # a map of one item three times over
    assert told.displaced >= sum(how == "gone" for how, *_ in ends)
