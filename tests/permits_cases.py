"""Pools to try `Permits` with, and arguments that it takes or refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

ARGUMENTS: list[tuple[Any, ...]] = [
    (0,), (-1,), (2**22 + 1,), (2**63,), (1.0,), (None,), ("3",), (True,), (1, (), -1), (1, (), 2**22 + 1),
    (1, (), 1.5), (1, ((0, 2),)), (2, ((0, 1), (0, 1))), (2, (("realtime", 1), (0, 1))), (1, ((0, -1),)),
    (1, ((256, 1),)), (1, ((-1, 1),)), (1, ((0.0, 1),)), (1, ((0, 1.0),)), (1, ((0, None),)), (1, 3), (1, ((0, 0),)),
    (256, tuple((tier, 1) for tier in range(256)), 1), (4, (), 1, 3), (4, (), 1, -1), (4, (), 1, 2.0), (4, (), 1, 9),
    *((1, (), 1, 1, (), 0, weights) for weights in (None, {}, {"a": 2**-10, None: 2**20}, {"a": 0}, {"a": -1})),
    *((1, (), 1, 1, (), 0, {"a": weight}, 1) for weight in (2**-11, 2**20 + 1, float("nan"), "1", None)),
    *((1, (), 1, 1, (), 0, None, weight) for weight in (0, 2**21, float("inf"))),
    *((1, (), 1, 1, (), 0, None, 1, caps) for caps in ({"a": 0}, {"a": -1}, {"a": 1.0}, {1: 1}, {"a": None})),
    *((1, (), 1, 1, allowances) for allowances in ((5,), [0] * 257, [1.0] * 256, [2**63] * 256, [2**62] * 256, None)),
    *((1, (), 1, 1, (), every) for every in (None, 1.0, -1, 2**63, 8)),
    *((1, (), 1, 1, (), 0, {1: 1}), (1, (), 1, 1, (), 0, {b"a": 1}), (1, (), 1, 1, (), 0, 5)),
    *((1, (), 1, 1, (), 0, None, 1, None, cap) for cap in (None, 1.0, -1, -5, 0, 2**63)),
    *((1, (), 1, 1, (), 0, None, 1, None, -1, *times) for times in ((1.0,), ("1",), (2**63,), (0, None), (0, 2**63))),
]  # fmt: skip

COUNTERS = [
    "held", "free", "waiting", "granted", "ended", "failed", "abandoned", "revoked", "leaked", "epoch", "closed",
    "capacity", "refused_closed", "refused_large", "refused_cap",
]  # fmt: skip
LEVELS = [0, 1, 2, 3, 7, 255]
ODD: list[tuple[str, Any]] = [
    (name, value)
    for name, values in {
        "priority": [-1, 256, 2**63, -(2**80), 1.0, None, "urgent", "", b"batch", [], object],
        "cost": [0, -1, 2**22 + 1, 2**63, 1.0, None, "1"],
        "tenant": [1, b"a", []],
        "heartbeat_ns": [2**63, 1.0, None, "1"],
        "key": [2**63, -(2**63) - 1, 1.0, "1"],
        "arrival_ns": [2**63, None, 1.0],
        "capacity": [0, -1, 2**22 + 1, 2**63, 1.5, None, "3"],
        "token": [None, 1, "token", object()],
    }.items()
    for value in values
]


def steps(named: dict[int, int]) -> list[int]:
    """For each priority what is named for the nearest at or below it, else 0."""
    return [named[max(tier for tier in named if tier <= level)] if level >= min(named) else 0 for level in range(256)]


@st.composite
def configurations(draw: Callable[[Any], Any]) -> dict[str, Any]:
    capacity = draw(st.integers(1, 8))
    floors = draw(st.dictionaries(st.sampled_from([0, 1, 2, 7]), st.integers(0, 3), max_size=3))
    while sum(floors.values()) > capacity:
        floors.popitem()
    weights = draw(st.sampled_from([None, None, {}, {"a": 1, "b": 3.7, None: 0.5}]))
    return {
        "capacity": capacity,
        "floors": tuple(floors.items()),
        # What Weighted remembers of idle tenants is bounded by the places; here it is never short of them.
        "max_waiting": draw(st.sampled_from([0, 1, 3, 20])) if weights is None else 40,
        "max_capacity": draw(st.sampled_from([0, capacity + 3])),
        "allowance_ns": draw(st.sampled_from([[], steps({0: 0, 1: 100, 2: 1_000}), steps({1: 3_000, 7: 200})])),
        "overdue_every": draw(st.sampled_from([0, 1, 2, 3, 8])),
        "weights": weights,
        "weight": draw(st.sampled_from([1.0, 3.0])),
        "caps": draw(st.sampled_from([None, {"a": 2}, {"a": 1, "b": 0}])),
        "cap": draw(st.sampled_from([-1, -1, 3])),
        "heartbeat_ns": draw(st.sampled_from([0, 400])),
        "grace_ns": draw(st.sampled_from([0, 300])),
    }
