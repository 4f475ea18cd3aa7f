"""Merging within submit_many, and what a refusal leaves of it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def test_submit_many_with_duplicates(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, merge=True)
    with lab.testing.paused(r, model, "plug"):
        single = r.submit("a")
        group = r.submit_many(["a", "b", "b", "c", "plug", "b"])
        assert r.snapshot().admitted == 4 and r.snapshot().merged == 4
        assert group._members[3].cancel()  # c
        assert r.snapshot().admitted == 3
    assert isinstance(group.exception(30), relay.RequestCancelled)
    assert [member.exception() for member in group._members[:3]] == [None] * 3 and single.result(30) == "a"
    assert model.batches == [["plug"], ["a", "b"]]
    lab.idle(r)


@pytest.mark.parametrize("how", ["full", "closed", "key"])
def test_submit_many_refused_leaves_nothing(lab: Lab, how: str) -> None:
    model = lab.model()

    def key(item: str) -> str:
        if item == "bad":
            raise KeyError(item)
        return item

    r = lab.start(model, key=key, max_queue=8)
    with lab.testing.paused(r, model, "plug"):
        single = r.submit("a")
        before = r.snapshot()
        if how == "full":
            admit_all = r._desk.admit_all
            r._desk.admit_all = lambda tickets: [r.submit(str(i)) for i in range(6)] and admit_all(tickets)
            with pytest.raises(relay.Overloaded):  # the last places go between its first look and its admission
                r.submit_many(["a", "x", "x", "y"])
            del r._desk.admit_all
        elif how == "closed":
            r._desk.stop_admitting()
            for items in (["x", "x"], ["a", "a"]):
                with pytest.raises(relay.Closed):
                    r.submit_many(items)
            with pytest.raises(relay.Closed):
                r.submit("a")
        else:
            with pytest.raises(KeyError):
                r.submit_many(["x", "x", "a", "bad"])
        assert r.snapshot().open == before.open + (6 if how == "full" else 0)
        assert r.snapshot().admitted == before.admitted + (6 if how == "full" else 0)
        assert single._followers == []
    assert single.result(30) == "a"
    lab.idle(r)


@pytest.mark.parametrize("many", [False, True])
def test_joins_in_the_very_moment_of_completion(lab: Lab, rng: random.Random, many: bool) -> None:
    """Threads ask for few items again and again while they run: each ask is answered, with its own item's answer."""
    r = lab.start(lab.model(lambda item: (item,)), merge=True, max_batch_size=3, max_queue=64)
    wrong: list[Any] = []
    plans = [[rng.choice("abcd") for _ in range(1000)] for _ in range(4)]

    def ask(plan: list[str]) -> None:
        pending: list[Any] = []
        for i, item in enumerate(plan):
            if many and i % 4 == 0:
                items = plan[i : i + 4]
                pending.append(([(item,) for item in items], r.submit_many(items)))
            else:
                pending.append(((item,), r.submit(item)))
            if i % 7 == 0:
                pending.pop()[1].cancel()
            while len(pending) > 4:
                expected, ticket = pending.pop(0)
                if ticket.result(30) != expected:
                    wrong.append((expected, ticket))
        for expected, ticket in pending:
            if ticket.result(30) != expected:
                wrong.append((expected, ticket))

    threads = [lab.run_thread(ask, plan) for plan in plans]
    for thread in threads:
        thread.join(50)
        assert not thread.is_alive()
    assert not wrong
    lab.idle(r)
