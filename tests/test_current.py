"""What a model may ask about the batch it is called with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

trace: ContextVar[str] = ContextVar("trace", default="none")


def test_outside_of_a_model(lab: Lab) -> None:
    with pytest.raises(RuntimeError, match="outside of a model"):
        lab.current_batch()
    assert relay.current_batch is not None


@pytest.mark.parametrize("kind", ["thread", "task"])
def test_c5_tenants_contexts_and_traces(lab: Lab, loops: Callable[[], Any], kind: str) -> None:
    """Row C5: the model sees nothing of the first caller's context but what it asks for, item by item."""
    seen: list[Any] = []
    began, go = threading.Event(), threading.Event()

    def look(items: list[Any]) -> list[Any]:
        batch = lab.current_batch()
        seen.append(
            (batch.items, batch.tenants, [context.get(trace) for context in batch.contexts], trace.get(), len(batch))
        )
        return [(item, tenant) for item, tenant in zip(items, batch.tenants, strict=True)]

    def plain(items: list[Any]) -> list[Any]:
        if items == ["plug"]:
            began.set()
            go.wait(30)
        return look(items)

    async def coroutine(items: list[Any]) -> list[Any]:
        if items == ["plug"]:
            began.set()
            await asyncio.to_thread(go.wait, 30)
        await asyncio.sleep(0)
        return look(items)

    r = lab.start(plain if kind == "thread" else coroutine)

    async def ask(item: str, tenant: str) -> Any:
        trace.set(f"trace of {item}")
        return await r.run_async(item, tenant=tenant)

    async def main() -> None:
        trace.set("the plug's")
        plug = r.submit("plug", tenant="plug")
        await asyncio.to_thread(began.wait, 30)
        tasks = [asyncio.ensure_future(ask(item, item.upper())) for item in "ab"]
        await asyncio.sleep(0)
        go.set()
        assert await plug == ("plug", "plug")
        assert await asyncio.gather(*tasks) == [("a", "A"), ("b", "B")]

    lab.run(loops, main())
    assert seen == [
        (["plug"], ["plug"], ["the plug's"], "none", 1),
        (["a", "b"], ["A", "B"], ["trace of a", "trace of b"], "none", 2),
    ]


def test_the_first_caller_leaves_nothing_to_the_second(lab: Lab) -> None:
    """A model that sets a variable does not meet it again."""
    found: list[str] = []

    def model(items: list[Any]) -> list[Any]:
        found.append(trace.get())
        trace.set("left behind")
        return items

    r = lab.start(model)
    for i in range(3):
        assert copy_context().run(lambda i=i: (trace.set(f"caller {i}"), r(i))[1]) == i
    assert found == ["none"] * 3


def test_the_same_for_coroutines(lab: Lab, loops: Callable[[], Any]) -> None:
    found: list[str] = []

    async def model(items: list[Any]) -> list[Any]:
        found.append(trace.get())
        trace.set("left behind")
        await asyncio.sleep(0)
        return items

    r = lab.start(model)

    async def main() -> None:
        for i in range(3):
            trace.set(f"caller {i}")
            assert await r.run_async(i) == i

    lab.run(loops, main())
    assert found == ["none"] * 3


def test_cancelled_items_are_seen_while_running(lab: Lab) -> None:
    began, go = threading.Event(), threading.Event()
    seen: list[list[bool]] = []

    def model(items: list[Any]) -> list[Any]:
        batch = lab.current_batch()
        seen.append(batch.cancelled)
        began.set()
        go.wait(30)
        seen.append(batch.cancelled)
        return [None if cancelled else item for item, cancelled in zip(items, batch.cancelled, strict=True)]

    r = lab.start(model)
    group = [r.submit("plug")]
    began.wait(30)
    assert group[0].cancel()
    go.set()
    with pytest.raises(lab.RequestCancelled):
        group[0].result(30)
    lab.wait_until(lambda: len(seen) == 2)
    assert seen == [[False], [True]]
    lab.idle(r)


def test_waiters_of_merged_requests(lab: Lab) -> None:
    began, go = threading.Event(), threading.Event()
    seen: list[Any] = []

    def model(items: list[Any]) -> list[Any]:
        batch = lab.current_batch()
        began.set()
        go.wait(30)
        seen.append((batch.items, batch.waiters, batch.cancelled))
        return items

    r = lab.start(model, merge=True)
    tickets = [r.submit("x")]
    began.wait(30)
    tickets += [r.submit("x") for _ in range(2)]
    assert tickets[0].cancel()  # the leader; the others go on
    go.set()
    assert [ticket.result(30) for ticket in tickets[1:]] == ["x", "x"]
    assert seen[0] == (["x"], [2], [False])
    lab.idle(r)


def test_params_and_version(lab: Lab) -> None:
    seen: list[Any] = []

    def model(items: list[Any], **params: Any) -> list[Any]:
        batch = lab.current_batch()
        seen.append((batch.params, batch.version, repr(batch)))
        return items

    r = lab.start(model, mixed=("k",))
    assert r(1, params={"k": 2, "mode": "a"}) == 1
    assert seen == [({"k": [2], "mode": "a"}, 0, "<CurrentBatch of 1>")]


def test_items_are_the_callers_own(lab: Lab) -> None:
    """What is prepared is what the model gets; the items are as they were submitted, and a list of the model's own."""
    seen: list[Any] = []

    def model(items: list[Any]) -> list[Any]:
        batch = lab.current_batch()
        batch.items.clear()
        seen.append((list(items), batch.items))
        return items

    r = lab.start(model, prepare=lambda item: item * 10)
    assert r(1) == 10
    assert seen == [([10], [1])]


def test_in_a_thread_of_the_models(lab: Lab) -> None:
    """It has a context of its own: the error says what to do, and doing so works."""
    seen: list[Any] = []

    def model(items: list[Any]) -> list[Any]:
        with pytest.raises(RuntimeError, match="hand its result"):
            lab.call(lab.current_batch).result()
        seen.append(lab.call(copy_context().run, lab.current_batch).result().items)
        return items

    r = lab.start(model)
    assert r("x") == "x"
    assert seen == [["x"]]
