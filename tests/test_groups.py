"""submit_many: one ticket for many items, which are admitted whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def test_groups(lab: Lab) -> None:
    r = lab.start(lab.model(lambda x: ValueError(f"no {x}") if x % 2 else x))
    assert r.submit_many([]).result(0) == []
    assert r.submit_many([2, 0, 4]).result(30) == [2, 0, 4]
    with pytest.raises(ValueError, match="no 1"):
        r.submit_many([0, 1, 2, 3]).result(30)
    group = r.submit_many([0, 1, 2], return_exceptions=True)
    first, error, last = group.result(30)
    assert (first, str(error), last) == (0, "no 1", 2)
    assert group.sizes == [1, 1, 1] and len(group.timings) == 3


def test_group_wakes_when_all_have_ended(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_batch_size=2)
    group = r.submit_many(range(5))
    told: list[Any] = []
    group.add_done_callback(told.append)
    for call in range(3):
        model.wait_until_running()
        assert not group.done() and not told
        model.release()
        lab.wait_until(lambda call=call: r.snapshot().batches > call)  # type: ignore[misc]
    assert group.result(30) == list(range(5))
    lab.wait_until(lambda: told == [group])  # who waits for it may go on first


def test_group_cancel(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model)
    with lab.testing.paused(r, model):
        group = r.submit_many(range(5))
        assert group.cancel()
        assert not group.cancel()
        assert isinstance(group.exception(30), relay.RequestCancelled)
        assert r.snapshot().admitted == 1


def test_group_admitted_whole_or_not_at_all(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, max_queue=8)
    with lab.testing.paused(r, model, "plug"):
        with pytest.raises(relay.Overloaded):
            r.submit_many(range(8))
        assert r.snapshot().open == r.snapshot().admitted == 1
        group = r.submit_many(range(7))
        with pytest.raises(relay.Overloaded):
            r.submit_many([1])
    assert group.result(30) == list(range(7))
    assert model.batches == [["plug"], list(range(7))]
