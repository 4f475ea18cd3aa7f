"""The lines of a pool: their order, floors, costs, caps, lifts and resizing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Core
from permits_kit import NO_PLACE, Waiter, allowance, join, pool, serve

Make = Callable[..., Any]


@pytest.fixture
def make(core: Core) -> Make:
    return lambda *arguments, **keywords: pool(core, *arguments, **keywords)


def test_order_is_key_then_arrival(make: Make) -> None:
    permits = make(1)
    token = permits.try_acquire()
    for i, key in enumerate([5, 3, 5, 3, -(2**63), 2**63 - 1]):
        join(permits, key, name=(key, i))
    order = [(-(2**63), 4), (3, 1), (3, 3), (5, 0), (5, 2), (2**63 - 1, 5)]
    assert serve(permits, token) == order == permits.told
    assert permits.waiting == 0 and permits.granted == 7


def test_b1_payloads_are_never_compared(make: Make) -> None:
    class Touchy(Waiter):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            raise AssertionError("waiters are not to be compared")

        __lt__ = __gt__ = __le__ = __ge__ = __ne__ = __bool__ = __eq__  # type: ignore[assignment]
        __hash__ = None  # type: ignore[assignment]

    permits = make(1, (), 1_000)
    token = permits.try_acquire()
    waiters = []
    for number in range(1_000):
        waiters.append(Touchy([{}, np.zeros(2), Touchy()][number % 3]))
        permits.acquire_or_join(1, 7, waiters[-1], tenant=["a", "b"][number % 2])
    for waiter in waiters[::10]:
        assert permits.lift(waiter, 1, 6) and permits.lift(waiter, 1, 7), "it keeps its place among equals"
    permits.leave(waiters[500])
    for waiter in waiters[:500] + waiters[501:]:
        assert token.release() is None and waiter.token is not None and waiter.token.held
        token = waiter.token


def test_order_of_the_built_in_policy(make: Make) -> None:
    permits = make(1, (), 10, 0, allowance(urgent=10, ordinary=1_000, bulk=100))
    token = permits.try_acquire()
    arrivals = [(2, 90_000), (1, 80_000), (0, 70_000), (2, 5_000), (1, 70_000), (3, 0), (1, -1), (0, 80_000)]
    for number, (priority, arrival_ns) in enumerate(arrivals):
        join(permits, priority=priority, arrival_ns=arrival_ns, name=number)
    assert serve(permits, token) == [2, 7, 4, 1, 6, 3, 0, 5]


def test_a_key_of_the_callers_own_decides_at_once(make: Make) -> None:
    permits = make(3)
    permits.keyed = True
    token = permits.try_acquire()
    large = join(permits, 2**62, cost=3)
    assert permits.try_acquire(0) is None, "who gives no key stands behind all who do"
    assert join(permits, 2**62).token is None
    first = Waiter()
    assert permits.acquire_or_join(1, 2**62 - 1, first).held, "who comes before the one that bars the way is served"
    first.token.release()
    token.release()
    assert large.token.held
    late = join(permits, 0, arrival_ns=permits.clock.now_ns + 10**9)
    large.token.release()
    assert late.token.held and permits.waits.max_ns == 0, "nobody comes later than now"


def test_who_only_tries_stands_behind_all_keys_of_the_callers(make: Make) -> None:
    permits = make(3)
    token = permits.try_acquire()
    large = join(permits, 2**63 - 1, 255, cost=3)
    own = permits.try_acquire(0)
    assert own.held, "a key of the built-in kind comes before it"
    own.release()
    permits.keyed = True
    assert permits.try_acquire(0) is None, "its key is the last there is, and of two with that it is the later"
    token.release()
    assert large.token.held


def test_floors_are_never_given_to_others(make: Make) -> None:
    permits = make(3, ((0, 1), (2, 1)))
    ordinary = permits.try_acquire(1)
    assert permits.try_acquire(1) is None, "what is free is reserved"
    assert permits.free == 2
    bulk = permits.try_acquire(3)  # belongs to tier 2
    assert permits.try_acquire(2) is None and permits.try_acquire(1) is None
    urgent = permits.try_acquire(0)
    assert permits.try_acquire(0) is None and permits.free == 0
    waiting_bulk, waiting = join(permits, 0, 255), join(permits, 1, 1)
    urgent.release()
    assert waiting.token is None and waiting_bulk.token is None, "the floor is refilled first"
    urgent = permits.try_acquire(0)
    waiting_urgent = join(permits, 9, 0)
    bulk.release()
    assert waiting_bulk.token.held, "the floor of tier 2 was free"
    ordinary.release()
    assert waiting.token.held
    waiting.token.release()
    assert waiting_urgent.token.held, "what is not reserved goes to anybody"
    assert permits.by_tier() == {0: (2, 0, 1), 2: (0, 0, 1), 255: (1, 0, 0)}


@pytest.mark.parametrize(("floors", "shrunk"), [
    ({0: 2, 1: 1}, {9: (2, 1), 5: (1, 1), 4: (1, 0), 3: (1, 0), 2: (1, 0), 1: (0, 0)}),
    ({0: 1, 1: 1, 2: 1}, {9: (1, 1, 1), 6: (1, 1, 0), 5: (1, 1, 0), 3: (1, 0, 0), 2: (1, 0, 0), 1: (0, 0, 0)}),
    ({2: 10}, {9: (9,), 5: (5,), 1: (1,)}),
    ({0: 1, 7: 4}, {9: (1, 4), 8: (1, 3), 7: (1, 3), 5: (1, 2), 4: (0, 2), 3: (1, 1), 2: (0, 1), 1: (0, 1)}),
])  # fmt: skip
def test_floors_are_kept_in_proportion(make: Make, floors: dict[int, int], shrunk: dict[int, tuple[int, ...]]) -> None:
    permits = make(10, tuple(floors.items()), 10, 15)
    for capacity in [*shrunk, 10, 15, *reversed(shrunk)]:
        permits.resize(capacity)
        kept = tuple(reserved for _, _, reserved in permits.by_tier().values())
        assert kept == shrunk.get(capacity, tuple(floors.values())), capacity


def test_a_floor_is_taken_up_by_what_is_held(make: Make) -> None:
    permits = make(4, ((0, 2),))
    permits.try_acquire(0).release()
    ordinary = permits.try_acquire(1, 2)
    assert permits.try_acquire(1) is None
    urgent = permits.try_acquire(0)
    assert permits.try_acquire(1) is None and permits.try_acquire(0, 2) is None
    ordinary.release()
    more = permits.try_acquire(0, 2)
    assert permits.try_acquire(1).held, "a floor that is filled is kept no more"
    del urgent, more


def test_a_large_request_is_passed_only_while_its_allowance_lasts(make: Make) -> None:
    permits = make(4, ((2, 1),), 10, 0, allowance(urgent=100, ordinary=100, bulk=100))
    tokens = [permits.try_acquire(1) for _ in range(3)]
    large = join(permits, cost=3, name="large")
    small = join(permits, name="small")
    tokens.pop().release()
    assert small.token.held and large.token is None, "while there is time, others pass"
    permits.clock.now_ns += 99
    small.token.release()
    permits.try_acquire(1).release()
    permits.clock.now_ns += 1
    assert permits.try_acquire(1) is None and permits.free == 2, "now it bars the way"
    behind = join(permits, name="behind")
    assert behind.token is None
    bulk = permits.try_acquire(2)
    assert bulk.held, "but for the floors of others"
    assert permits.try_acquire(2) is None and permits.try_acquire(3) is None, "no more than a floor"
    urgent = permits.try_acquire(0)
    assert urgent.held, "and for those who come before it"
    urgent.release()
    assert permits.leave(large) is None
    assert behind.token.held, "leaving it lets others through at once"


def test_a_large_request_gets_what_has_come_back(make: Make) -> None:
    permits = make(3)
    tokens = [permits.try_acquire() for _ in range(3)]
    large, small = join(permits, cost=2, name="large"), join(permits, name="small")
    tokens.pop().release()
    assert permits.told == [] and permits.free == 1
    tokens.pop().release()
    assert large.token.cost == 2 and permits.told == ["large"]
    permits.abandon(large)
    assert small.token.held and permits.free == 1


def test_a_large_request_of_a_tier_with_a_floor_is_not_passed_either(make: Make) -> None:
    """Another tier's barring the way before it leaves the floor to its own tier, whose small ones stand behind it."""
    permits = make(3, ((2, 1),), 10, 0, allowance(urgent=100, ordinary=100, bulk=100))
    tokens = [permits.try_acquire(0), permits.try_acquire(1)]
    large = join(permits, priority=2, cost=2, name="large")
    urgent = join(permits, priority=0, name="urgent")
    permits.clock.now_ns += 100
    small = join(permits, priority=2, name="small")
    assert small.token is None and permits.try_acquire(2) is None and permits.free == 1
    tokens.pop().release()
    assert urgent.token.held and large.token is None and small.token is None, "the floor's own unit alone is free"
    tokens.pop().release()
    assert large.token.cost == 2 and small.token is None
    large.token.release()
    assert small.token.held


def test_what_can_no_longer_be_given_bars_nobody(make: Make) -> None:
    permits = make(4, (), 10, 4)
    tokens = [permits.try_acquire(cost=2), permits.try_acquire()]
    large, small = join(permits, cost=4), join(permits)
    permits.resize(3)
    tokens.pop().release()
    assert small.token.held and permits.free == 0 and large.index >= 0, "it waits for the pool to grow again"
    small.token.release()
    permits.try_acquire().release()
    tokens.pop().release()
    assert large.token is None
    permits.resize(4)
    assert large.token.cost == 4


def test_tenant_caps(make: Make) -> None:
    permits = make(6, caps={"a": 2}, cap=3)
    first, second = permits.try_acquire(1, 1, "a"), permits.try_acquire(1, 1, "a")
    assert permits.try_acquire(0, 1, "a") is None, "whatever its tier"
    waiting, large = join(permits, tenant="a"), join(permits, tenant="a", cost=2)
    assert permits.by_tenant() == {"a": (2, 2, 2)}
    other = permits.try_acquire(2, 3, "b")
    assert other.held and permits.try_acquire(1, 1, "b") is None, "who is at its cap holds nobody up, and has its own"
    first.release()
    assert waiting.token.held and large.token is None
    second.release()
    waiting.token.release()
    assert large.token.held
    other.release()
    large.token.release()
    assert permits.by_tenant() == {} and permits.by_tier() == {}


def test_lift(make: Make) -> None:
    permits = make(1, (), 10, 0, allowance(urgent=10, ordinary=10, bulk=10))
    token = permits.try_acquire()
    waiters = []
    for priority, name in ((1, "a"), (2, "b"), (0, "c"), (2, "d"), (1, "e"), (0, "f")):
        permits.clock.now_ns += 1_000
        waiters.append(join(permits, priority=priority, name=name))
    assert permits.lift(waiters[1], 0) and permits.lift(waiters[4], "realtime") and permits.most_urgent() == 0
    assert permits.by_tier() == {0: (0, 4, 0), 1: (1, 1, 0), 2: (0, 1, 0)}
    assert permits.lift(waiters[4], 1), "undone"
    assert permits.lift(waiters[3], 1, -5), "a key of one's own"
    gone, full = join(permits), Waiter()
    permits.leave(gone)
    full.index = NO_PLACE
    assert permits.lift(gone, 0) is False is permits.lift(full, 0)
    token.release()
    assert waiters[3].token.priority == 2 and permits.by_tier()[1] == (1, 2, 0), "units of the tier it stood in"
    assert serve(permits, waiters[3].token) == ["b", "c", "f", "a", "e"]
    assert permits.lift(waiters[0], 0) is False


def test_a_lift_takes_from_the_floor_it_leads_to(make: Make) -> None:
    permits = make(2, ((0, 1),))
    token = permits.try_acquire(1)
    waiter, large = join(permits, priority=1), join(permits, priority=0, cost=2)
    assert permits.lift(large, 1) and permits.by_tier() == {0: (0, 1, 1), 1: (1, 1, 0)}, (
        "it could never be served there"
    )
    permits.leave(large)
    assert permits.lift(waiter, 0) and waiter.token.held and permits.by_tier() == {0: (1, 0, 1), 1: (1, 0, 0)}
    token.release()
    assert permits.try_acquire(0).held


def test_a3_resize_while_held(make: Make) -> None:
    permits = make(2, (), 10, 3)
    tokens = [permits.try_acquire(), permits.try_acquire()]
    waiters = [join(permits), join(permits)]
    for capacity in (1, 2, 1):
        permits.resize(capacity)
        assert (permits.held, permits.free, permits.waiting, permits.capacity) == (2, 0, 2, capacity)
    permits.resize(3)
    assert permits.held == 3 and permits.waiting == 1, "as many as the raise made room for"
    permits.resize(1)
    tokens.pop().release()
    tokens.pop().release()
    assert permits.held == 1 and permits.waiting == 1 and permits.try_acquire() is None
    waiters[0].token.release()
    assert waiters[1].token.held and permits.held == 1
    for capacity in (0, -1):
        with pytest.raises(ValueError, match=f"capacity must be at least 1, got {capacity}"):
            permits.resize(capacity)
    with pytest.raises(ValueError) as caught:
        permits.resize(4)
    text = "capacity 4 is more than max_capacity 3; make the pool with a larger max_capacity"
    assert str(caught.value) == text and permits.capacity == 1
