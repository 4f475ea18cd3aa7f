"""`size=`, `group=`, `mixed=` and `params`: what shares a batch, what counts for how much, and hooks that go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


class Recording:
    """A model that records its calls, held until it is let go."""

    def __init__(self, lab: Lab) -> None:
        self.calls: list[tuple[list[Any], dict[str, Any]]] = []
        self.fake = lab.model(held=True)

    def __call__(self, items: list[Any], **params: Any) -> list[Any]:
        self.calls.append((list(items), params))
        rows: list[Any] = self.fake(items)
        return rows


def held(lab: Lab, **options: Any) -> tuple[Any, Recording]:
    model = Recording(lab)
    return lab.start(model, **options), model


def shapes(call: tuple[list[Any], dict[str, Any]]) -> set[Any]:
    return {np.shape(item) for item in call[0]}


def test_only_equal_groups_share_a_batch(lab: Lab) -> None:
    r, model = held(lab, group=np.shape)
    r.submit(np.zeros(1))
    model.fake.wait_until_running()
    items = [np.zeros((2, 3)), np.zeros((3, 2)), np.zeros((2, 3)), 5.0, np.zeros((3, 2)), 7.0]
    tickets = [r.submit(item) for item in items]
    model.fake.free()
    for item, ticket in zip(items, tickets, strict=True):
        assert ticket.result(30) is item
    assert all(len(shapes(call)) == 1 for call in model.calls)
    assert [len(items) for items, _ in model.calls] == [1, 2, 2, 2]
    assert {ticket.timing.closed_by for ticket in tickets} <= {"group", "params", "idle lane"}


def test_groups_and_params_together(lab: Lab) -> None:
    r, model = held(lab, group=len, max_batch_size=64)
    r.submit("")
    model.fake.wait_until_running()
    asked = [(text, {"k": k} if k else None) for text in ("a", "bb", "c", "dd") for k in (0, 1, 2, 1)]
    tickets = [r.submit(text, params=params) for text, params in asked]
    model.fake.free()
    assert [ticket.result(30) for ticket in tickets] == [text for text, _ in asked]
    assert len(model.calls) == 7  # the plug, and two lengths times three params
    assert all(len({len(text) for text in items}) == 1 for items, _ in model.calls)


def test_submit_many_of_several_groups(lab: Lab) -> None:
    r, model = held(lab, group=len)
    model.fake.free()
    assert r.submit_many(["a", "bb", "c", "dd"]).result(30) == ["a", "bb", "c", "dd"]
    assert sorted(len(items) for items, _ in model.calls) == [2, 2]


def test_mixed_params_come_as_lists(lab: Lab) -> None:
    r, model = held(lab, mixed=("top_k", "seed"))
    r.submit("plug")
    model.fake.wait_until_running()
    asked: list[Any] = [{"top_k": 1}, {"top_k": 2, "seed": 9}, None, {"dims": 4}, {"dims": 4, "top_k": 3}]
    tickets = [r.submit(i, params=params) for i, params in enumerate(asked)]
    model.fake.free()
    assert [ticket.result(30) for ticket in tickets] == list(range(5))
    assert model.calls == [
        (["plug"], {"top_k": [None], "seed": [None]}),
        ([0, 1, 2], {"top_k": [1, 2, None], "seed": [None, 9, None]}),
        ([3, 4], {"dims": 4, "top_k": [None, 3], "seed": [None, None]}),
    ]


def test_what_is_mixed_still_tells_requests_apart(lab: Lab) -> None:
    r, model = held(lab, mixed=("top_k",), merge=True)
    r.submit("plug")
    model.fake.wait_until_running()
    asked = [1, 2, 1, None, 2, 1.0, True]
    tickets = [r.submit("x", params={"top_k": k} if k is not None else None) for k in asked]
    model.fake.free()
    assert [ticket.result(30) for ticket in tickets] == ["x"] * 7
    assert model.calls[1] == (["x"] * 5, {"top_k": [1, 2, None, 1.0, True]})  # in one batch, and each but once
    assert r.snapshot().merged == 2
    many = r.submit_many(["y", "y"], params={"top_k": 5})
    assert many.result(30) == ["y", "y"] and r.snapshot().merged == 3


@pytest.mark.parametrize("mixed", ["top_k", (1,), [b"x"]])
def test_bad_mixed(lab: Lab, mixed: Any) -> None:
    with pytest.raises(TypeError, match=r"mixed must be a sequence of names, such as \('top_k',\)"):
        lab.Relay(len, mixed=mixed)


def test_sizes(lab: Lab) -> None:
    """Of the user's own making: they bound a batch, and each is asked for once."""
    asked: list[Any] = []

    def size(item: Any) -> int:
        asked.append(item)
        return int(item)

    r, model = held(lab, size=size, max_batch_tokens=12)
    r.submit(1)
    model.fake.wait_until_running()
    tickets = [r.submit(item) for item in (4, 4, 4, 6, 6, 12, 0)]
    assert [ticket.size for ticket in tickets] == [4, 4, 4, 6, 6, 12, 1]
    model.fake.free()
    assert [ticket.result(30) for ticket in tickets] == [4, 4, 4, 6, 6, 12, 0]
    assert all(len(items) * max(map(int, items)) <= 12 for items, _ in model.calls)
    assert asked == [1, 4, 4, 4, 6, 6, 12, 0]
    r(np.int64(3))


def test_d7_what_can_never_fit(lab: Lab) -> None:
    r, model = held(lab, size=len, max_batch_tokens=1000)
    model.fake.free()
    with pytest.raises(relay.TooLarge, match="the item's size is 1001, but a batch may come to at most max_batch_tok"):
        r.submit("x" * 1001)
    with pytest.raises(relay.TooLarge):
        r.submit_many(["a", "x" * 1001])
    first, last = r.map(["x" * 1001, "small"], return_exceptions=True)
    assert type(first) is relay.TooLarge and last == "small"
    assert r("small") == "small" and model.calls == [(["small"], {})] * 2
    lab.idle(r)


def test_arrays_larger_than_any_count(lab: Lab) -> None:
    class Huge:
        nbytes = 1 << 40

    r, model = held(lab)
    model.fake.free()
    huge = Huge()
    assert r(huge) is huge


def raising(item: Any) -> Any:
    raise KeyError(f"no {item}")


HOOKS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"size": raising}, KeyError, "no x"),
    ({"size": lambda item: 1.5}, TypeError, r"size\(item\) must return a whole number, such as len\(item\), got float"),
    ({"size": lambda item: None}, TypeError, "got NoneType"),
    ({"size": lambda item: -1}, ValueError, r"size\(item\) must be from 0 to 2147483647, got -1"),
    ({"size": lambda item: 1 << 40}, ValueError, "count in larger units"),
    ({"group": raising}, KeyError, "no x"),
    ({"group": lambda item: []}, TypeError, r"group\(item\) must return a hashable value"),
    ({"key": raising}, KeyError, "no x"),
    ({"key": lambda item: {}}, TypeError, r"key\(item\) must return a str, bytes, int, or a tuple of these"),
    ({"policy": lambda facts: raising("x")}, KeyError, "no x"),
    ({"policy": lambda facts: "first"}, TypeError, "a policy must return an int, smaller first"),
    ({"policy": lambda facts: 1 << 70}, OverflowError, "key"),
]


def by_submit(r: Any) -> Any:
    return r.submit("x")


def by_many(r: Any) -> Any:
    return r.submit_many(["x", "x"])


def by_call(r: Any) -> Any:
    return r("x")


def by_async(r: Any) -> Any:
    return asyncio.run(r.run_async("x"))


def by_map(r: Any) -> Any:
    return list(r.map(["x"]))


@pytest.mark.parametrize("door", [by_submit, by_many, by_call, by_async, by_map])
@pytest.mark.parametrize("hook", range(len(HOOKS)))
def test_hooks_that_go_wrong_leave_nothing(lab: Lab, hook: int, door: Callable[[Any], Any]) -> None:
    options, error, text = HOOKS[hook]
    model = lab.model()
    r = lab.start(model, max_queue=4, **options)
    for _ in range(6):  # more than there are places
        with pytest.raises(error, match=text):
            door(r)
    told = r.snapshot()
    assert (told.admitted, told.open, told.waiting) == (0, 0, 0) and model.batches == []
    lab.idle(r)


@pytest.mark.parametrize("hook", range(6))
def test_in_a_map_only_the_item_fails(lab: Lab, hook: int) -> None:
    options, error, _ = HOOKS[hook]
    (name, bad), *_ = options.items()
    r = lab.start(lambda items: items, **{name: lambda item: bad(item) if item == "x" else 1})
    ends = list(r.map(["a", "x", "b"], return_exceptions=True))
    assert (ends[0], type(ends[1]), ends[2]) == ("a", error, "b")


def test_params_are_told_apart_though_numbers_run_out(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group numbers have 31 bits. One that is in use is not given away again."""
    import itertools
    import sys

    identity = sys.modules[type(lab.start(len)._intake).__module__].Groups.__init__.__globals__
    r, model = held(lab)
    r.submit("plug", params={"k": "kept"})
    model.fake.wait_until_running()
    used = r.submit("a", params={"k": "kept"})._group
    monkeypatch.setitem(identity, "_numbers", itertools.chain((2**31, used, 2**31 + used), itertools.count(used + 5)))
    tickets = [r.submit("b", params={"k": "new"}), r.submit("c", params={"k": "kept"}), r.submit("d")]
    assert tickets[0]._group not in (0, used) and tickets[1]._group == used
    model.fake.free()
    assert [ticket.result(30) for ticket in tickets] == ["b", "c", "d"]
    assert {str(params): items for items, params in model.calls[1:]} == {
        "{'k': 'kept'}": ["a", "c"],
        "{'k': 'new'}": ["b"],
        "{}": ["d"],
    }
