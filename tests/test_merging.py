"""Merging: identical requests under way share one run, and nothing else is ever shared."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def test_joins_queued_and_running(lab: Lab) -> None:
    model = lab.model(lambda item: [item])
    r = lab.start(model, merge=True)
    with lab.testing.paused(r, model, "running"):
        queued = [r.submit("queued") for _ in range(3)]
        running = [r.submit("running") for _ in range(2)]
        assert (r.snapshot().admitted, r.snapshot().open, r.snapshot().merged) == (2, 6, 4)
    assert [ticket.result(30) for ticket in queued + running] == [["queued"]] * 3 + [["running"]] * 2
    assert queued[0].result() is not queued[2].result(), "each may change his own"
    assert model.batches == [["running"], ["queued"]]
    assert r("queued") == ["queued"]  # nothing is kept afterwards: it runs again
    assert model.batches[2:] == [["queued"]]
    lab.idle(r)


@pytest.mark.parametrize(
    ("options", "merges"),
    [({}, False), ({"merge": True}, True), ({"key": str}, True), ({"key": str, "merge": False}, False)],
)
def test_when_it_is_on(lab: Lab, options: dict[str, Any], merges: bool) -> None:
    model = lab.model()
    r = lab.start(model, **options)
    with lab.testing.paused(r, model, "plug"):
        r.submit("a"), r.submit("a")
    r.drain()
    assert len(model.batches[1]) == (1 if merges else 2)


def test_deterministic_models_merge(lab: Lab) -> None:
    model = lab.model()
    model.deterministic = True
    r = lab.start(model)
    with lab.testing.paused(r, model, "plug"):
        r.submit("a"), r.submit("a")
    r.drain()
    assert model.batches[1] == ["a"]


def test_types_tenants_and_params_are_apart(lab: Lab) -> None:
    items: list[Any] = [1, True, 1.0, "1", b"1", (1,), [1], (True,), ("1",), (1.0,), (1, (2,)), (1, 2), np.array([1])]
    items += [np.array([1], np.int32), 0, False, "", b"", (), [], "b1", "r1", ("a", "b"), ("a, b",), 10**5000]
    model = lab.model(lambda item: (type(item), repr(item)) if item is not items[-1] else "huge")
    r = lab.start(lambda items, **params: model(items), merge=True, max_batch_size=200)
    with lab.testing.paused(r, model, "plug"):
        asked = [
            (item, r.submit(item, tenant=tenant, params=params))
            for item in items
            for tenant in (None, "a", "b", "")
            for params in (None, {"k": 1}, {"k": True}, {"j": 1}, {"k": (1,)}, {"k": (1.0,)}, {"k": 0.0}, {"k": -0.0})
        ]
        assert r.snapshot().merged == 0
        again = [r.submit(item, tenant="a", params={"k": (1.0,)}) for item in items]
        assert r.snapshot().merged == len(items) - 2  # floats and huge numbers are never merged
    for item, ticket in asked + list(zip(items, again, strict=True)):
        assert ticket.result(30) == ("huge" if item is items[-1] else (type(item), repr(item)))


def test_other_values_only_by_key(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, key=lambda item: item["id"])
    with lab.testing.paused(r, model, {"id": 0}):
        first, second = r.submit({"id": 1, "x": 1}), r.submit({"id": 1, "x": 2})
    assert first.result(30) == second.result(30) == {"id": 1, "x": 1}
    with pytest.raises(TypeError, match=r"key\(item\) must return a str, bytes, int, or a tuple"):
        r.submit({"id": 1.5})
    with pytest.raises(KeyError):
        r.submit({})
    lab.idle(r)


def test_e4_cancels(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, merge=True)
    with lab.testing.paused(r, model, "plug"):
        leader, follower, third = (r.submit("x") for _ in range(3))
        assert leader.cancel()
        assert isinstance(leader.exception(30), relay.RequestCancelled)
        assert not follower.done() and not third.done()
        newcomer = r.submit("x")
        assert third.cancel() and r.snapshot().admitted == 2
    assert follower.result(30) == newcomer.result(30) == "x"
    assert r("x") == "x"
    assert model.batches == [["plug"], ["x"], ["x"]]


def test_e4_the_last_cancel_cancels_the_work(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, merge=True)
    with lab.testing.paused(r, model, "plug"):
        tickets = [r.submit("x") for _ in range(3)]
        for ticket in tickets:
            assert r.snapshot().admitted == 2
            ticket.cancel()
        assert r.snapshot().admitted == 1
        fresh = r.submit("x")
    assert fresh.result(30) == "x"
    assert model.batches == [["plug"], ["x"]]


def test_e4_cancelled_while_running(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, merge=True)
    leader = r.submit("x")
    model.wait_until_running()
    follower = r.submit("x")
    leader.cancel()
    joins = r.submit("x")
    follower.cancel(), joins.cancel()
    fresh = r.submit("x")  # nobody waits for the run under way, so it is not joined any more
    assert r.snapshot().admitted == 2
    model.free()
    assert fresh.result(30) == "x"
    assert model.batches == [["x"], ["x"]]


def test_e5_an_error_goes_to_all_and_is_not_kept(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, merge=True)
    with lab.testing.paused(r, model, "plug"):
        tickets = [r.submit("x") for _ in range(3)]
        model.release()
        lab.wait_until(lambda: r.snapshot().batches == 1)
        model.fail_next(ValueError("no"))
    errors = [ticket.exception(30) for ticket in tickets]
    assert {type(error) for error in errors} == {ValueError} and len(set(map(id, errors))) == 3
    assert r("x") == "x"


def test_at_most_so_many_followers(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, merge=True, limits=lab.Limits(max_followers=2))
    with lab.testing.paused(r, model, "plug"):
        tickets = [r.submit("x") for _ in range(4)]
        group = r.submit_many(["y"] * 4)
    assert [ticket.result(30) for ticket in tickets] == ["x"] * 4 and group.result(30) == ["y"] * 4
    assert model.batches[1] == ["x", "x", "y", "y"]


def test_a_full_queue_can_be_joined(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, merge=True, max_queue=2)
    with lab.testing.paused(r, model, "plug"):
        first = r.submit("x")
        assert r.submit_many  # a single one needs no place
        second = r.submit("x")
        with pytest.raises(relay.Overloaded):
            r.submit("y")
    assert first.result(30) == second.result(30) == "x"


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_e1_a_hash_that_is_always_the_same(lab: Lab, rng: random.Random, cache_bytes: int) -> None:
    model = lab.model(lambda item: f"answer to {item!r}")
    r = lab.start(model, merge=True, cache_bytes=cache_bytes)
    r._desk.queue.hash_bits = 0
    with lab.testing.paused(r, model, "plug"):
        items = [rng.choice(["a", "b", b"a", 1, True, ("a", "b"), ("b", "a")]) for _ in range(100)]
        tickets = [r.submit(item, tenant=rng.choice([None, "t"])) for item in items]
        group = r.submit_many(items)
    assert [ticket.result(30) for ticket in tickets] == [f"answer to {item!r}" for item in items]
    assert group.result(30) == [f"answer to {item!r}" for item in items]
    assert r("a") == "answer to 'a'" and r("b") == "answer to 'b'"
    lab.idle(r)


def test_those_who_come_and_go_do_not_pile_up(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, merge=True, limits=lab.Limits(max_followers=10))
    with lab.testing.paused(r, model, "plug"):
        leader = r.submit("x")
        for i in range(3_000):
            assert r.submit("x", deadline=None if i % 2 else 100).cancel()
        assert leader._followers == [] and r.snapshot().admitted == 2
    assert leader.result(30) == "x"


def test_a_thousand_share_one_run(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, merge=True)
    with lab.testing.paused(r, model, "plug"):
        tickets = [r.submit("x") for _ in range(1_000)]
        group = r.submit_many(["x"] * 1_000)
        assert r.snapshot().admitted == 2
    assert {ticket.result(30) for ticket in tickets} == {"x"}
    assert group.result(30) == ["x"] * 1_000
    assert model.batches == [["plug"], ["x"]]


def test_nobody_joins_a_run_that_has_failed_before_it_could_be_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper fails an item between its admission and the moment when others could find its run."""

    def prepare(item: str) -> str:
        raise ValueError(item)

    r = lab.start(lab.model(), merge=True, prepare=prepare)
    desk = r._desk
    admit, count = desk.admit, desk.counts.add
    closed, look = threading.Event(), threading.Event()

    def admit_late(ticket: Any, claim: bool = False, digest: int = -1) -> bool | None:
        admitted: bool | None = admit(ticket, claim, digest)
        assert closed.wait(30)
        return admitted

    def count_late(name: str, *more: int) -> None:
        count(name, *more)
        if name == "failed":
            closed.set()
            assert look.wait(30)  # the slot is still held

    monkeypatch.setattr(desk, "admit", admit_late)
    monkeypatch.setattr(desk.counts, "add", count_late)
    first = r.submit("x")
    second = r.submit("x")
    assert r.snapshot().merged == 0 and len(desk.queue) == 2
    look.set()
    for ticket in (first, second):
        assert isinstance(ticket.exception(30), ValueError)
    lab.idle(r)


def test_who_joins_a_run_in_the_moment_of_its_end_is_counted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ended the run has read the newcomer from the list, and the newcomer does not find the run any more."""
    model = lab.model(held=True)
    r = lab.start(model, merge=True)
    leader = r.submit("x")
    model.wait_until_running()
    queue = r._desk.queue

    class Ending:
        def __getattr__(self, name: str) -> Any:
            return getattr(queue, name)

        def share(self, handle: int) -> None:
            queue.share(handle)
            model.free()
            lab.wait_until(lambda: leader.done() and not leader._followers)

    with monkeypatch.context() as patch:
        patch.setattr(r._desk, "queue", Ending())
        follower = r.submit("x")
    assert follower.result(30) == "x" and model.batches == [["x"]]
    sharing = r.snapshot().sharing
    assert (sharing.misses, sharing.joins) == (1, 1)
    lab.idle(r)


@pytest.mark.parametrize("many", [False, True])
def test_what_is_changed_after_it_was_submitted(lab: Lab, many: bool) -> None:
    """Requests are compared by what they were when they came, so that is what is run."""
    model = lab.model(repr)
    r = lab.start(model, merge=True, cache_bytes=1 << 20)
    items: list[Any] = [[1, 2], ([1], 2), [[1, [2]]], np.array([1, 2])]
    told = [repr(item) for item in items]
    with lab.testing.paused(r, model, "plug"):
        first = r.submit_many(items) if many else [r.submit(item) for item in items]
        again = [[1, 2], ([1], 2), [[1, [2]]], np.array([1, 2])]
        items[0][0] = items[1][0][0] = items[2][0][1][0] = items[3][0] = 9
        second = [r.submit(item) for item in again]
    answers = first.result(30) if many else [ticket.result(30) for ticket in first]
    assert answers == [ticket.result(30) for ticket in second] == told
    assert [r(item) for item in again] == told and r([9, 2]) == "[9, 2]"
    lab.idle(r)


def test_a_kept_answer_knows_the_size_of_its_request(lab: Lab) -> None:
    r = lab.start(lab.model(), cache_bytes=1 << 20, size=len)
    tickets = [r.submit("abc"), r.submit("abc", params={}), r.submit("abc", tenant="t")]
    assert [ticket.result(30) for ticket in tickets] == ["abc"] * 3
    kept = [r.submit("abc"), r.submit("abc", priority=0, deadline=1), r.submit("abc", tenant="t")]
    assert [ticket.result(0) for ticket in kept] == ["abc"] * 3
    group = r.submit_many(["abc", "abc"])
    assert group.result(0) == ["abc", "abc"] and list(group.sizes) == [3, 3]
    assert [ticket.size for ticket in kept] == [3, 3, 3] and [ticket.timing for ticket in kept] == [None] * 3
    shared = r.snapshot().sharing
    assert shared.hits + shared.joins == 6 and shared.misses == 2


def test_who_has_waited_for_room_can_be_joined(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, merge=True, max_queue=2)
    with lab.testing.paused(r, model, "plug"):
        queued = r.submit("a")
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(r, "b", timeout=30)
            lab.wait_until(lambda: r.snapshot().waiting == 1)
            assert queued.cancel()
            lab.wait_until(lambda: r.snapshot().waiting == 0 and r.snapshot().admitted == 2)
            joins = r.submit("b")
            model.free()
            assert waits.result(30) == joins.result(30) == "b"
    assert model.batches == [["plug"], ["b"]] and r.snapshot().sharing.misses == 3 and r.snapshot().merged == 1
    lab.idle(r)
