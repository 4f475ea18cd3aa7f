"""Whole numbers that are no `int` but stand for one by their ``__index__``: numpy's, a tensor of one."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

Number = Callable[[int], Any]


@dataclass(frozen=True)
class Index:
    """Nothing but an ``__index__``."""

    value: int

    def __index__(self) -> int:
        return self.value


@pytest.fixture(params=[np.int64, np.int32, np.uint8, Index], ids=lambda kind: kind.__name__)
def number(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_of_a_pool(lab: Lab, number: Number) -> None:
    pool = lab.pool(
        number(4),
        max_capacity=number(8),
        max_waiting=number(16),
        reserved={number(0): number(1)},
        tenant_caps={"a": number(2)},
    )
    with pool.acquire(number(1), cost=number(2)) as token:
        assert token.priority == 1 and type(token.priority) is int and pool.snapshot().held == 2
    pool.try_acquire(number(0), cost=number(4)).release()
    with pool.lease(number(1), cost=number(1)):
        pass
    assert pool.run(len, "ab", priority=number(1), cost=number(1)) == 2
    assert asyncio.run(pool.run_async(len, "ab", priority=number(1), cost=number(1))) == 2
    assert pool.guard(priority=number(1), cost=number(2))(len)("ab") == 2
    pool.resize(number(2))
    assert pool.capacity == 2 and type(pool.snapshot().capacity) is int
    with pytest.raises(lab.TooLarge):
        pool.acquire(cost=number(3))
    with pytest.raises(ValueError, match="^cost must be at least 1, got 0$"):
        pool.acquire(cost=number(0))
    lab.pool(2, tenant_caps=number(1))


def test_of_a_relay(lab: Lab, number: Number) -> None:
    sizes = ("max_batch_size", "max_batch_tokens", "max_queue", "lanes")
    r = lab.start(
        lambda items: items,
        reserved={number(0): number(1)},
        size=lambda item: number(3),
        **dict.fromkeys(sizes, number(4)),
    )
    assert r(1, priority=number(2)) == 1
    ticket = r.submit(2, priority=number(0))
    assert ticket.result(30) == 2 and ticket.priority == 0 and ticket.size == 3
    assert r.snapshot().capacity == 4 and r.snapshot().lanes == 4
    knobs = ("max_ids", "max_followers", "helper_threads", "encode_chunk", "look_past")
    limits = lab.Limits(**dict.fromkeys(knobs, number(5)))
    assert all(type(getattr(limits, knob)) is int for knob in knobs)


def test_of_the_rest(lab: Lab, number: Number) -> None:
    assert type(lab.Retry(max_retries=number(2)).max_retries) is int
    assert lab.DynamicPriority(allowance={number(3): 1.0}).allowance_ns[3] == 10**9
    load = importlib.import_module("relay.load")
    assert repr(load.Device(number(0))._which) == "0"


class Odd:
    """Says that it stands for an int, and does not."""

    def __index__(self) -> int:
        raise TypeError("no int after all")


@pytest.mark.parametrize("wrong", [1.0, "1", None, np.float64(1), np.True_, np.array([1, 2]), Odd()], ids=repr)
def test_what_is_refused(lab: Lab, wrong: Any) -> None:
    makes: tuple[Callable[[], Any], ...] = (
        lambda: lab.pool(wrong),
        lambda: lab.pool(1, reserved={0: wrong}),
        lambda: lab.pool(2).acquire(cost=wrong),
        lambda: lab.pool(2).resize(wrong),
    )
    for make in makes:
        with pytest.raises(TypeError, match=f"must be an int, got {type(wrong).__name__}$"):
            make()
    if not isinstance(wrong, str):
        with pytest.raises(TypeError, match="^priority must be an int from 0 to 255 or a name, got"):
            lab.pool(2).acquire(wrong)


@pytest.mark.parametrize("flag", [True, np.True_])
def test_a_flag_is_no_size(lab: Lab, flag: Any) -> None:
    for name in ("max_batch_size", "max_batch_tokens", "max_queue", "lanes"):
        with pytest.raises(ValueError, match=f"^{name} must be a whole number"):
            lab.start(lambda items: items, **{name: flag})
    with pytest.raises(ValueError, match="whole numbers of places"):
        lab.start(lambda items: items, reserved={0: flag})


def test_the_core(lab: Lab) -> None:
    whole = lab.package._backend.state.whole
    assert [whole(value) for value in (7, True, np.int8(7), Index(7), 1 << 70)] == [7, 1, 7, 7, 1 << 70]
    assert all(type(whole(value)) is int for value in (True, np.int8(7), Index(1 << 70)))
    assert [whole(value) for value in (7.0, "7", None, np.True_, Odd())] == [None] * 5
    with pytest.raises(OverflowError, match="^capacity 1180591620717411303424 does not fit in 64 bits$"):
        lab.pool(Index(1 << 70))  # type: ignore[arg-type]
