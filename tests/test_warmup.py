"""`warmup`: batches of several sizes on every lane, before the first callers come."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def test_batches_of_growing_size(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, max_batch_size=12)
    r.warmup(["a", "b", "c"])
    assert [len(batch) for batch in model.batches] == [1, 1, 1, 2, 4, 8, 12]
    assert {item for batch in model.batches for item in batch} == {"a", "b", "c"}
    assert r._dispatcher.lanes[0].station.cost.learned
    lab.idle(r)


@pytest.mark.parametrize(("most", "places"), [(1, 8192), (64, 5), (3, 3)])
def test_small_ones_learn_too(lab: Lab, most: int, places: int) -> None:
    model = lab.model()
    r = lab.start(model, max_batch_size=most, max_queue=places, deadlines={"batch": 1e-6}, merge=True)
    r.warmup(["x"])
    assert r._dispatcher.lanes[0].station.cost.learned
    assert max(len(batch) for batch in model.batches) == min(most, places)
    assert r.snapshot().merged == r.snapshot().expired == 0


def test_every_lane_gets_some(lab: Lab) -> None:
    both = threading.Barrier(2)
    seen: list[list[int]] = [[], []]

    def lane(number: int) -> Any:
        def model(items: list[Any]) -> list[Any]:
            seen[number].append(len(items))
            if len(seen[number]) == 1:
                both.wait(30)  # neither runs alone
            return items

        return model

    r = lab.start([lane(0), lane(1)], max_batch_size=4)
    r.warmup(["a", "b"], params=None)
    assert min(map(len, seen)) >= 1 and sum(map(len, seen)) <= 12
    lab.idle(r)


def test_with_params_and_a_tokenizers_limit(lab: Lab) -> None:
    calls: list[Any] = []

    def model(items: list[Any], **params: Any) -> list[Any]:
        calls.append((len(items), params))
        return items

    r = lab.start(model, max_batch_tokens=16)
    r.warmup(["abcd"], params={"dims": 3})
    assert {str(params) for _, params in calls} == {"{'dims': 3}"} and max(n for n, _ in calls) == 4


def test_what_goes_wrong_is_raised(lab: Lab) -> None:
    def model(items: list[Any]) -> list[Any]:
        raise ValueError("cold")

    r = lab.start(model)
    with pytest.raises(ValueError, match="cold"):
        r.warmup(["x"])
    with pytest.raises(ValueError, match="warmup needs at least one sample; pass items like those to come"):
        r.warmup([])
    for wrong in (None, 5, "text"):
        with pytest.raises(TypeError, match=r"warmup needs a sequence of items, such as \[item\], got"):
            r.warmup(wrong)
    lab.idle(r)
    with pytest.raises(relay.Closed):
        r.warmup(["x"])
