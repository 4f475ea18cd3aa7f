"""Whose turn it is: tiers, and the key of a request."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

import relay
from relay.clock import NS
from relay.policy import DynamicPriority, tier


def test_tiers() -> None:
    assert (relay.REALTIME, relay.INTERACTIVE, relay.BATCH) == (0, 1, 2)
    assert [tier(name) for name in ("realtime", "INTERACTIVE", "Batch")] == [0, 1, 2]
    assert tier(255) == 255 and tier(True) == 1
    assert type(tier(True)) is int


@pytest.mark.parametrize("priority", ["", "high", -1, 256, 10**30])
def test_tiers_that_are_none(priority: Any) -> None:
    with pytest.raises(ValueError, match="priority"):
        tier(priority)


@pytest.mark.parametrize("priority", [None, 1.0, [], b"batch"])
def test_what_is_no_tier(priority: Any) -> None:
    with pytest.raises(TypeError, match="priority must be an int from 0 to 255 or a name"):
        tier(priority)


def test_unnamed_tiers_take_the_nearest_at_or_below() -> None:
    allowance = DynamicPriority({2: 1.0, 10: 5.0}).allowance_ns
    assert [allowance[i] // NS for i in (0, 1, 2, 3, 9, 10, 11, 255)] == [1, 1, 1, 1, 1, 5, 5, 5]
    default = DynamicPriority().allowance_ns
    assert [default[i] / NS for i in (0, 1, 2, 3, 255)] == [0.05, 0.5, 10, 10, 10]


def test_the_key_orders_by_tier_then_time() -> None:
    key = DynamicPriority({0: 0.05, 1: 0.5, 2: 10.0}).key
    second = NS
    ordered = [
        key(0, 100 * second),
        key(0, 200 * second),
        key(1, 0, second // 10),
        key(1, 0),
        key(1, 1 * second),
        key(2, 0, second),
        key(2, 0),
        key(3, 0),
        key(255, 0),
    ]
    assert ordered == sorted(ordered) and len(set(ordered)) == len(ordered)
    assert key(1, 0, 100 * second) == key(1, 0)  # a late deadline changes nothing


@pytest.mark.parametrize("allowance", [0.0, 1.0, 1e10, 1e300])
def test_keys_stay_in_their_tier_and_in_64_bits(allowance: float) -> None:
    key = DynamicPriority({0: allowance}).key
    times = [0, 1, NS, 10**9 * NS]
    for lower, higher in itertools.pairwise(range(256)):
        assert max(key(lower, t) for t in times) < min(key(higher, t) for t in times)
    assert 0 <= key(255, times[-1]) < 2**63


def test_order_within_a_tier_follows_the_allowance(rng: random.Random) -> None:
    policy = DynamicPriority({1: 0.5})
    asked = [(rng.randrange(10 * NS), rng.choice([-1, rng.randrange(10 * NS)])) for _ in range(500)]
    due = [min(t + NS // 2, d) if d >= 0 else t + NS // 2 for t, d in asked]
    keys = [policy.key(1, t, d) for t, d in asked]
    for (d1, k1), (d2, k2) in itertools.pairwise(sorted(zip(due, keys, strict=True))):
        assert k1 <= k2 and (d2 - d1 < 64 or k1 < k2)


@pytest.mark.parametrize(
    ("allowance", "text"),
    [({}, "at least one tier"), ({0: -1.0}, "finite"), ({0: float("inf")}, "finite"), ({0: float("nan")}, "finite"),
     ({256: 1.0}, "from 0 to 255")],
)  # fmt: skip
def test_bad_allowances(allowance: dict[int, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        DynamicPriority(allowance)
