"""The order of a relay's work, and what shares a batch."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def test_late_binding(lab: Lab) -> None:
    """Members are chosen when the lane is free: what came or went meanwhile is in or out."""
    model = lab.model()
    r = lab.start(model, max_batch_size=4)
    with lab.testing.paused(r, model, "plug"):
        tickets = [r.submit(i) for i in range(6)]
        tickets[1].cancel()
        urgent = r.submit("urgent", priority="realtime")
    assert urgent.result(30) == "urgent"
    assert tickets[5].result(30) == 5
    assert model.batches == [["plug"], ["urgent", 0, 2, 3], [4, 5]]


def test_order_by_tier_and_time(lab: Lab) -> None:
    """(tier, min(arrival + allowance, deadline)); ties in order of arrival, whatever the items are."""
    clock, model = lab.clock(), lab.model()
    r = lab.start(model, clock=clock, max_batch_size=1, policy=lab.DynamicPriority({0: 1.0, 1: 10.0, 2: 100.0}))
    with lab.testing.paused(r, model, "plug"):
        for name, priority, deadline in [
            ("batch", 2, None),
            ("first", 1, None),
            ("second", 1, None),
            ("later deadline", 1, 11.0),  # later than its allowance: no difference
            ("soon", 1, 9.0),
            ("sooner", 1, 8.0),
            ("batch soon", 2, 5.0),
            ("realtime", 0, None),
        ]:
            r.submit(name, priority=priority, deadline=deadline)
        clock.advance(1)
        r.submit("a second later", priority=1)
        r.submit("as late as the first", priority=1, deadline=9.0)
    r.drain()
    assert [batch[0] for batch in model.batches[1:]] == [
        "realtime", "sooner", "soon", "first", "second", "later deadline", "as late as the first", "a second later",
        "batch soon", "batch",
    ]  # fmt: skip


def test_a_users_policy(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, max_batch_size=1, policy=lambda facts: {"b": 0, "a": 1, None: 2}[facts.tenant])
    with lab.testing.paused(r, model, "plug"):
        for name, tenant in (("first", None), ("a", "a"), ("b", "b"), ("b too", "b")):
            r.submit(name, tenant=tenant)
        with pytest.raises(KeyError, match="unknown"):
            r.submit("nobody's", tenant="unknown")
        with pytest.raises(KeyError, match="unknown"):
            r.submit_many(["nobody's"], tenant="unknown")
    r.drain()
    assert [batch[0] for batch in model.batches[1:]] == ["b", "b too", "a", "first"]


@pytest.mark.parametrize("policy", ["Weighted", "RoundRobin"])
def test_shares_are_for_pools(lab: Lab, policy: str) -> None:
    with pytest.raises(ValueError, match="use it in a TokenPool"):
        lab.Relay(len, policy=getattr(lab, policy)())
    with pytest.raises(TypeError, match="policy must be a relay policy"):
        lab.Relay(len, policy=3)


def test_payloads_are_never_compared(lab: Lab) -> None:
    class Incomparable:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __lt__ = __eq__
        __hash__ = None  # type: ignore[assignment]

    clock, model = lab.clock(), lab.model()
    r = lab.start(model, clock=clock, max_batch_size=1000, merge=True)
    items: list[Any] = [Incomparable() if i % 2 else {"i": i} for i in range(200)]
    with lab.testing.paused(r, model):
        ticket = r.submit_many(items[:100])
        tickets = [r.submit(item) for item in items[100:]]
    assert all(a is b for a, b in zip(ticket.result(30), items[:100], strict=True))
    assert all(t.result(30) is item for t, item in zip(tickets, items[100:], strict=True))
    assert [id(item) for item in model.batches[1]] == [id(item) for item in items]


def test_random_order_is_the_sorted_order(lab: Lab, rng: random.Random) -> None:
    clock, model = lab.clock(), lab.model()
    r = lab.start(model, clock=clock, max_batch_size=7)
    asked: list[tuple[int, int]] = []
    with lab.testing.paused(r, model, "plug"):
        for i in range(300):
            clock.advance(rng.choice([0, 0, 0.001]))
            asked.append((rng.randrange(4), i))
            r.submit(asked[-1], priority=asked[-1][0])
    r.drain()
    assert [item for batch in model.batches[1:] for item in batch] == sorted(asked)
    assert all(len(batch) <= 7 for batch in model.batches)


def test_groups_of_params_do_not_share_a_batch(lab: Lab) -> None:
    calls: list[tuple[list[int], dict[str, Any]]] = []

    def model(items: list[int], **params: Any) -> list[int]:
        calls.append((items, params))
        return items

    held = lab.model()
    r = lab.start(lambda items, **params: held(items) and model(items, **params))
    with lab.testing.paused(r, held, -1):
        tickets = [r.submit(i, params={"k": kind}) for i, kind in enumerate([1, True, 1.0, 1, "1", 1])]
    assert [ticket.result(30) for ticket in tickets] == list(range(6))
    assert [(items, repr(params)) for items, params in calls[1:]] == [
        ([0, 3, 5], "{'k': 1}"), ([1], "{'k': True}"), ([2], "{'k': 1.0}"), ([4], "{'k': '1'}"),
    ]  # fmt: skip
    with pytest.raises(TypeError, match="hashable"):
        r.submit(1, params={"k": []})
    with pytest.raises(TypeError, match="mapping"):
        r.submit(1, params=[("k", 1)])


def test_the_size_of_a_batch_is_bounded(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, max_batch_tokens=20, max_batch_size=4)
    with lab.testing.paused(r, model, "p"):
        tickets = [r.submit("x" * n) for n in (5, 5, 3, 2, 20, 1, 10, 9, 6)]
    assert [len(ticket.result(30)) for ticket in tickets] == [5, 5, 3, 2, 20, 1, 10, 9, 6]
    assert [[len(item) for item in batch] for batch in model.batches[1:]] == [[5, 5, 3, 2], [20], [1, 10], [9, 6]]


def test_d2_one_more_than_a_batch(lab: Lab) -> None:
    r = lab.start(lab.model(), max_batch_size=4)
    assert r.submit_many(range(5)).result(30) == list(range(5))  # without another arrival


def test_d10_the_result_belongs_to_its_input(lab: Lab, rng: random.Random) -> None:
    names = ["a", "b", "c", "d"]
    model = lab.model(lambda item: (item, hash(item)))
    r = lab.start(model, max_batch_size=256, max_queue=512)
    items = [f"{rng.random()} {i}" for i in range(7207)]
    answers: dict[str, list[Any]] = {}

    def ask(name: str, part: list[str]) -> None:
        answers[name] = list(r.map(part))

    threads = [lab.run_thread(ask, name, items[i::4]) for i, name in enumerate(names)]
    for thread in threads:
        thread.join(50)
    for i, name in enumerate(names):
        assert answers[name] == [(item, hash(item)) for item in items[i::4]]
    assert all(len(batch) <= 256 for batch in model.batches)
