"""RequestQueue.take: who joins a batch, who waits, and why; sizes, deadlines, steps, places, overdue ones.

The rules are those of `relay._pure._members` and `relay._pure._choosing`; both sides choose the same."""

from __future__ import annotations

import gc
import itertools
import random
import sys
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import pytest
from conftest import Core
from hypothesis import given, settings
from hypothesis import strategies as st

Make = Callable[..., Any]
IDLE, SIZE, TOKENS, DEADLINE, PARAMS, STEP = range(6)
FLAT = (0.0, 10.0, 0.0, 0.0)  # ten for each member


@pytest.fixture
def make(core: Core) -> Make:
    return lambda *args, **kwargs: core.watch(core.queue.RequestQueue(*args, **kwargs))


def filled(queue: Any, sizes: list[int], **facts: Any) -> list[int]:
    """Admits requests of these sizes; owners are the sizes."""
    return [queue.admit(size, i, 0, cost=size, **facts) for i, size in enumerate(sizes)]


def members(taken: Any) -> list[Any]:
    return list(taken[1])


def test_the_names_of_the_reasons(core: Core) -> None:
    queue = core.queue
    assert (queue.CLOSED_IDLE, queue.CLOSED_SIZE, queue.CLOSED_TOKENS) == (IDLE, SIZE, TOKENS)
    assert (queue.CLOSED_DEADLINE, queue.CLOSED_PARAMS, queue.CLOSED_STEP) == (DEADLINE, PARAMS, STEP)


def test_why_and_how_wide(make: Make) -> None:
    queue = make(16)
    filled(queue, [3, 1, 2, 9])
    assert queue.take(2, 0, 0)[1:] == ([3, 1], [], SIZE, 3, 4)
    assert queue.take(8, 9, 0)[3:] == (TOKENS, 2, 2)
    assert queue.take(8, 9, 0)[1:] == ([9], [], IDLE, 9, 9)
    for group in (1, 2):
        queue.admit(group, 0, 0, group=group)
    assert queue.take(8, 0, 0)[3] == PARAMS and queue.take(1, 0, 0)[3] == IDLE, "full, but nobody was kept out"


def test_similar_sizes_share_a_batch(make: Make) -> None:
    queue = make(16)
    filled(queue, [10, 500, 12, 480, 9, 11])
    line = (50.0, 0.0, 1.0, 0.0)
    assert members(queue.take(8, 0, 0, line)) == [10, 12, 9, 11]
    taken = queue.take(8, 0, 0, line)
    assert members(taken) == [500, 480] and taken[3:] == (IDLE, 500, 980)
    filled(queue, [10, 500, 12])
    taken = queue.take(8, 0, 0, line)
    assert members(taken) == [10, 12] and taken[3] == TOKENS, "kept out because it is not worth its padding"
    assert members(queue.take(8, 0, 0, (1e6, 0.0, 1.0, 0.0))) == [500]
    filled(queue, [10, 500, 12])
    assert members(queue.take(8, 0, 0, (1e6, 0.0, 1.0, 0.0))) == [10, 500, 12], "a batch more costs more than padding"


def test_a_short_one_is_no_bargain_where_members_cost_all_the_same(make: Make) -> None:
    queue = make(16)
    filled(queue, [100, 1, 100, 2])
    assert members(queue.take(8, 0, 0, (1.0, 50.0, 0.001, 0.0))) == [100, 1, 100, 2]


def test_equal_sizes_join_as_they_came(make: Make) -> None:
    queue, line = make(32), (1e9, 0.0, 1.0, 0.0)
    for i, size in enumerate([4, 8, 7, 8, 8, 7, 8]):
        queue.admit(f"{size} {i}", 0, 0, cost=size)
    assert members(queue.take(4, 0, 0, line)) == ["4 0", "8 1", "8 3", "8 4"], "the widest, the earlier of equals"
    assert members(queue.take(2, 0, 0, line)) == ["7 2", "7 5"], "of the first one's own size: straight on"
    assert members(queue.take(2, 0, 0, line)) == ["8 6"]


def test_looks_so_far_and_no_farther(make: Make) -> None:
    line = (2.0, 0.0, 1.0, 0.0)
    for look, expected in ((256, [5, 6, 6]), (4, [5, 6]), (2, [5]), (0, [5, 90, 90]), (-1, [5, 90, 90])):
        queue = make(8)
        filled(queue, [5, 90, 90, 90, 6, 90, 6])
        assert members(queue.take(3, 0, 0, line, 0, look)) == expected, look
    queue = make(8)
    filled(queue, [5, 90, 6])
    assert members(queue.take(9, 100, 0, line, 0, 0)) == [5], "strictly in order, until one does not fit"
    queue.admit("first", -2, 0, group=2)
    queue.admit("third", 99, 0, group=2)
    taken = queue.take(9, 0, 0, line, 0, 0)
    assert members(taken) == ["first"] and taken[3] == PARAMS, "or is of another group"


def test_deadlines_bind_the_batch_they_are_in(make: Make) -> None:
    queue = make(16)
    queue.admit("tight", 0, 0, 35)
    for i in range(5):
        queue.admit(i, 1, 0)
    taken = queue.take(9, 0, 0, FLAT)
    assert members(taken) == ["tight", 0, 1] and taken[3] == DEADLINE
    queue.admit("hopeless", 0, 0, 5)
    assert members(queue.take(2, 0, 0, FLAT)) == ["hopeless", 2], "it binds nobody"
    queue.admit("last", 9, 0, 15)
    queue.admit("after", 10, 0)
    taken = queue.take(9, 0, 0, FLAT)
    assert members(taken) == [3, 4, "after"] and taken[3] == DEADLINE, "it would be late here; others are not kept out"
    assert members(queue.take(9, 0, 4, FLAT)) == ["last"]


def test_what_cannot_be_done_in_time_is_late(make: Make) -> None:
    queue = make(8)
    queue.admit("hopeless", 0, 0, 9, 1)
    queue.admit("just", 1, 0, 10, 1)
    assert queue.take(9, 0, 0, None, 0, 256, (), True)[1:3] == (["hopeless", "just"], []), "nothing is known"
    queue.finish(queue.take(9, 0, 0)[0])
    for name, left, late in (("hopeless", 9, True), ("just", 10, False)):
        queue.admit(name, 0, 0, left, 1)
        assert queue.take(9, 0, 0, FLAT, 0, 256, (), True)[1:3] == (([], [name]) if late else ([name], []))


def test_who_would_keep_a_crowd_from_being_in_time_is_late(make: Make) -> None:
    """One that is short of time would keep its batch so small that all behind it came late as well."""
    line = (10.0, 1.0, 0.0, 0.0)
    queue = make(8)
    queue.admit("short", 0, 0, 12, 1)
    for number in range(3):
        queue.admit(number, 1, 0, 100, 1)
    assert queue.take(9, 0, 0, line, 0, 256, (), True)[1:3] == ([0, 1, 2], ["short"])
    queue.admit("alone", 0, 0, 12, 1)
    assert queue.take(9, 0, 0, line, 0, 256, (), True)[1:3] == (["alone"], [])


def test_who_may_not_wait_joins_whatever_its_size(make: Make) -> None:
    line = (5.0, 0.0, 1.0, 0.0)
    for left, expected in ((449, [10, "overdue", "soon", 55, 45]), (450, [10, "overdue", 55, 45])):
        queue = make(16)
        filled(queue, [10, 12])
        queue.admit("overdue", 5, 0, cost=50, due_ns=99)
        queue.admit("soon", 6, 0, 100 + left, cost=60)
        for size in (55, 45):
            queue.admit(size, 7, 0, cost=size)
        taken = queue.take(9, 0, 100, line)
        assert members(taken) == expected, "twice a batch of four, 55 wide, is 450"
        assert taken[3] == TOKENS and queue.queued == 6 - len(expected), "in a batch this wide a 12 is too dear"


def test_a_tight_deadline_keeps_wide_ones_out(make: Make) -> None:
    queue = make(16)
    queue.admit("tight", 0, 0, 45, cost=10)
    filled(queue, [30, 10, 12, 11])
    taken = queue.take(9, 0, 0, (9.0, 0.0, 1.0, 0.0))
    assert members(taken) == ["tight", 10, 11] and taken[3] == DEADLINE


def test_riders_take_what_is_left(make: Make) -> None:
    queue = make(16)
    filled(queue, [10, 14], level=0)
    for size in (10, 30, 5):
        queue.admit(f"rider {size}", 100, 0, cost=size, level=1)
    line = (20.0, 0.0, 1.0, 0.0)
    taken = queue.take(2, 0, 0, line)
    assert members(taken) == [10, 14] and taken[3] == SIZE
    filled(queue, [10, 14], level=0)
    taken = queue.take(9, 0, 0, line)
    assert members(taken) == [10, 14, "rider 10", "rider 5"] and taken[3] == STEP, "none widens the batch"
    filled(queue, [10, 14], level=0)
    assert members(queue.take(9, 0, 0, line, 110)) == [10, 14, "rider 30"], "unless it stays within a step"


def test_steps_bound_what_an_urgent_arrival_waits_for(make: Make) -> None:
    queue, line = make(32), (5.0, 10.0, 0.0, 0.0)
    for i in range(4):
        queue.admit("a", i, 0, level=0)
    for i in range(9):
        queue.admit("c", 10 + i, 0, level=2)
    taken = queue.take(9, 0, 0, line, 55)
    assert members(taken) == ["a"] * 4 + ["c"] and taken[3] == STEP, "one rider, and one step"
    taken = queue.take(9, 0, 0, line, 55)
    assert members(taken) == ["c"] * 5 and taken[3] == STEP, "bulk alone, one step"
    assert members(queue.take(9, 0, 0, line, 5)) == ["c"], "one there always is"
    assert members(queue.take(9, 0, 0, None, 5)) == ["c"] * 2, "nothing is known"
    for i in range(9):
        queue.admit("b", i, 0, level=1)
    assert len(members(queue.take(9, 0, 0, line, 55))) == 9, "not the less urgent of two, but bulk"


def test_no_more_join_than_save_anything(make: Make) -> None:
    """Once the base is less than a sixty-fourth of what the members take, more of them only make everybody wait."""
    queue = make(128)
    for line, sizes, expected in (
        ((10.0, 100.0, 0.0, 0.0), [1] * 20, 7),  # 640 / 100, and one
        ((10.0, 1.0, 0.0, 0.0), [1] * 100, 64),
        ((0.0, 100.0, 0.0, 0.0), [1] * 20, 4),  # few enough in any case
        ((100.0, 0.0, 1.0, 0.0), [500] * 20, 13),
        ((100.0, 0.0, 1.0, 0.0), [500] + [490] * 20, 13),
        ((100.0, 0.0, 1.0, 0.0), [10, 500] + [10] * 80, 64),
        (None, [500] * 70, 64),
    ):
        handles = [queue.admit(i, i, 0, cost=size) for i, size in enumerate(sizes)]
        taken = queue.take(64, 0, 0, line)
        assert len(taken[0]) == expected
        assert taken[3] == (SIZE if expected == 64 else TOKENS)
        for handle in handles:
            queue.cancel(handle)
        queue.finish(taken[0])


def test_places_are_kept_for_urgent_ones(make: Make) -> None:
    queue = make(32)
    for i in range(9):
        queue.admit("c", 20 + i, 0, level=2)
        queue.admit("b", 10 + i, 0, level=1)
    places = ((1, 6), (2, 2))
    taken = queue.take(8, 0, 0, None, 0, 256, places)
    assert members(taken) == ["b"] * 6 and taken[3] == SIZE
    for i in range(3):
        queue.admit("a", i, 0, level=0)
    assert members(queue.take(8, 0, 0, None, 0, 256, places)) == ["a"] * 3 + ["b"] * 3 + ["c"] * 2
    assert members(queue.take(8, 0, 0, None, 0, 256, ((0, 0),))) == ["c"], "one there always is"
    for wrong in (((256, 1),), ((-1, 1),), ((1, 1),) * 17):
        with pytest.raises(ValueError, match="outside 0..255|more than 16"):
            queue.take(8, 0, 0, None, 0, 256, wrong)
    for line in ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0, -1.0), (inf, 0.0, 0.0, 0.0), (float("nan"), 0, 0, 0), [1] * 5):
        with pytest.raises(ValueError, match="costs must be 4 finite numbers"):
            queue.take(8, 0, 0, line)


def test_one_in_eight_is_the_longest_overdue(make: Make) -> None:
    queue = make(200, overdue_every=8)
    for i in range(100):
        queue.admit("a", 0, i, level=0)
        queue.admit(f"c{99 - i}", 10**6, i, level=2, due_ns=99 - i)
    assert members(queue.take(64, 0, -1)) == ["a"] * 64, "nobody is overdue yet"
    first = members(queue.take(1, 0, 50))
    assert first == ["c0"], "seven have gone before it"
    handles, taken = queue.take(32, 0, 50)[:2]
    queue.finish(handles)
    assert taken == (["a"] * 7 + ["c1"] + ["a"] * 7 + ["c2"] + ["a"] * 7 + ["c3"] + ["a"] * 7 + ["c4"])
    for _ in range(7):
        queue.admit("b", -1, 0, level=0)
        assert members(queue.take(1, 0, 50)) == ["b"]
    assert members(queue.take(1, 0, 50)) == ["c5"]


def test_an_overdue_one_of_another_group_comes_first_in_the_next_batch(make: Make) -> None:
    queue = make(64, overdue_every=4)
    for _ in range(20):
        queue.admit("a", 0, 0, level=0)
    queue.admit("c", 9, 0, group=1, level=2, due_ns=5)
    queue.admit("d", 9, 0, group=0, level=2, due_ns=6)
    taken = queue.take(6, 0, 10)
    assert members(taken) == ["a"] * 6 and taken[3] == SIZE
    assert members(queue.take(6, 0, 10)) == ["c"]
    assert members(queue.take(6, 0, 10)) == ["a", "a", "a", "d", "a", "a"]


def test_overdue_ones_are_given_their_places_before_sizes_are_chosen(make: Make) -> None:
    queue = make(64, overdue_every=4)
    filled(queue, [10, 11, 12, 13, 14, 15, 16, 17, 18, 19])
    for i in range(3):
        queue.admit(f"c{i}", 99, 0, cost=40, level=2, due_ns=i)
    taken = queue.take(8, 0, 10, (1e6, 0.0, 1.0, 0.0))
    assert members(taken) == [10, "c0", "c1", 15, 16, 17, 18, 19]
    assert members(queue.take(8, 0, 10, (1e6, 0.0, 1.0, 0.0))) == [11, "c2", 12, 13, 14], "the rate is kept"


def test_few_overdue_ones_are_not_passed_over_and_many_are_chosen_by_size(make: Make) -> None:
    line = (100.0, 0.0, 1.0, 0.0)

    def entered(late: int) -> Any:
        queue = make(64)
        for i, cost in enumerate([10, 400, 10, 400, 10, 400, 10, 400, 10]):
            queue.admit((i, cost), i, 0, cost=cost, due_ns=5 if i < late else 50)
        return queue

    few = entered(4)  # the first, and three more: fewer than the four of its size
    assert members(few.take(64, 0, 10, line)) == [(0, 10), (1, 400), (2, 10), (3, 400), (5, 400), (7, 400)]
    many = entered(9)
    assert members(many.take(64, 0, 10, line)) == [(i, 10) for i in (0, 2, 4, 6, 8)]
    assert members(many.take(64, 0, 10, line)) == [(i, 400) for i in (1, 3, 5, 7)], "the oldest is the first now"
    odd = make(8)
    odd.admit("first", 0, 0, cost=10, due_ns=5), odd.admit("odd", 1, 0, cost=400, due_ns=5)
    assert members(odd.take(64, 0, 10, line)) == ["first", "odd"], "a lone one never is passed over"


def test_overdue_ones_of_one_priority_are_chosen_by_size_after_another_has_been_seen(make: Make) -> None:
    line = (100.0, 0.0, 1.0, 0.0)
    queue = make(64, overdue_every=4)
    queue.admit("warm up", 0, 0, level=2, due_ns=0)
    assert members(queue.take(1, 0, 0)) == ["warm up"]
    for i in range(24):
        cost = 400 if i % 2 else 10
        queue.admit((i, cost), i, 0, cost=cost, level=1, due_ns=i)
    assert members(queue.take(64, 0, 99, line)) == [(i, 10) for i in range(0, 24, 2)]
    assert members(queue.take(64, 0, 99, line)) == [(i, 400) for i in range(1, 24, 2)]


def test_overdue_ones_get_no_more_places_than_the_batch_will_have(make: Make) -> None:
    queue = make(64, overdue_every=4)
    for i in range(8):
        queue.admit(i, i, 0, cost=(10, 400)[i % 2], level=1)
        queue.admit(f"c{i}", 99, 0, cost=400, level=2, due_ns=i)
    # Three of its size are there, not 63: so there is one place for those that are overdue, and not sixteen.
    taken = members(queue.take(64, 0, 10, (1e3, 0.0, 1.0, 0.0)))
    assert taken[:6] == [0, "c0", 1, 3, 5, 7] and taken[6:] == [f"c{i}" for i in range(1, 8)], "and then the riders"


def test_one_priority_needs_no_second_order(make: Make) -> None:
    queue = make(16, overdue_every=2)
    for i in range(4):
        queue.admit(i, i, 0, level=7, due_ns=4 - i)
    assert members(queue.take(2, 0, 9)) == [0, 1], "first come, first served: whoever is first is overdue too"
    queue.admit("urgent", -1, 0, level=3)
    assert members(queue.take(3, 0, 9)) == [3, "urgent", 2], "from the second priority on it counts"


def test_lifted(make: Make) -> None:
    queue = make(16, overdue_every=2)
    queue.admit("a", 0, 0, level=0)
    low, pinned = queue.admit("low", 50, 0, level=2, due_ns=900), queue.admit("pinned", 50, 0, level=2, ids=0)
    assert [queue.ahead(level) for level in (0, 1, 2, 255)] == [1, 1, 2, 2] and queue.head_level() == 0
    assert queue.lift(low, 99, 1) and not queue.lift(low, 99, 1, 900) and not queue.lift(low, 50, 2)
    assert [queue.ahead(level) for level in (0, 1, 2)] == [1, 2, 2]
    assert queue.lift(pinned, 50, 0, 3) and queue.ready(pinned, 7) and queue.ahead(0) == 2
    assert queue.lift(low, 50, -1, 2) and not queue.lift(low, 50, -1, 5)
    assert members(queue.take(9, 0, 10)) == ["a", "low", "pinned"] and queue.head_level() == -1
    assert queue.ahead(255) == 0
    for wrong in (-1, 256):
        with pytest.raises(ValueError, match=f"level {wrong} is outside 0..255"):
            queue.ahead(wrong)


def test_displaced(make: Make) -> None:
    queue = make(6, 64, 64)
    first = queue.admit("a", 0, 0, level=1)
    queue.admit("b", 0, 0, level=2)
    newest = queue.admit("c", 0, 0, level=2)
    pinned = queue.admit("d", 0, 0, 50, level=2, ids=3)
    shared = queue.admit("e", 0, 0, level=9)
    assert queue.share(shared) and not queue.share(-1)
    assert queue.displace(2) == (-1, None), "only those who are less urgent, and none whose run is shared"
    assert queue.displace(1) == (pinned, "d") and queue.owner(pinned) == "d" and queue.next_ns() is None
    assert queue.displace(1) == (newest, "c") and queue.owner(newest) is None
    assert queue.displace(0)[1] == "b" and queue.displace(1) == (-1, None)
    assert not queue.ready(pinned, 0) and len(queue) == 2
    assert queue.take(1, 0, 0)[0] == [first] and queue.displace(0) == (-1, None), "what runs stays"
    again = [queue.admit(name, 0, 0, level=9) for name in "fghi"]
    assert queue.displace(0) == (again[3], "i"), "a place that was shared once is not shared for ever"


def test_how_long_the_oldest_has_been_ready(make: Make) -> None:
    queue = make(4, 64, 64)
    assert queue.oldest_ready_ns() == 0
    pinned = queue.admit("a", 0, 5, ids=0)
    queue.admit("b", 0, 9)
    assert queue.oldest_ready_ns() == 9
    queue.ready(pinned, 8)
    assert queue.oldest_ready_ns() == 8


# Properties.


class Asked(NamedTuple):
    cost: int
    group: int
    level: int
    deadline: int
    due: int


def some(rng: random.Random, now: int, sizes: int = 40) -> Asked:
    level = rng.choice((0, 1, 2, 2))
    deadline = now + rng.randrange(1, 4000) if rng.random() < 0.3 else -1
    return Asked(rng.randrange(1, sizes), rng.randrange(2), level, deadline, now + rng.choice((20, 300, 4000)))


def test_no_batch_breaks_a_rule(core: Core, rng: random.Random) -> None:
    for _ in range(60 if core.side == "native" else 25):
        every = rng.choice((0, 1, 4, 8))
        queue = core.watch(core.queue.RequestQueue(300, overdue_every=every))
        line = (rng.random() * 50, rng.random() * 9, rng.random() * 2, rng.choice((0.0, rng.random() / 10)))
        most, most_cost = rng.randrange(1, 40), rng.choice((0, rng.randrange(30, 900)))
        step, places = rng.choice((0, rng.randrange(1, 900))), rng.choice(((), ((1, 9),), ((2, 1), (1, 12))))
        look, known, serial = rng.choice((256, 20, 0)), rng.random() < 0.8, 0
        for now in range(0, 3000, 100):
            for _ in range(rng.randrange(60)):
                asked, serial = some(rng, now), serial + 1
                if queue.free:
                    facts = asked.deadline, asked.cost, asked.group, -1, False, asked.level, asked.due
                    queue.admit(asked, asked.level << 40 | serial, now, *facts)
            head = queue.head_level()
            handles, batch, late, why, width, real = queue.take(
                most, most_cost, now, line if known else None, step, look, places
            )
            assert all(0 <= one.deadline <= now for one in late)
            assert len(batch) <= most and width == max((one.cost for one in batch), default=0)
            assert real == sum(one.cost for one in batch) and len({one.group for one in batch}) <= 1
            assert (why == IDLE) <= (queue.queued == 0) or not batch
            assert why != SIZE or len(batch) == most or places
            if len(batch) > 1:
                assert not most_cost or width * len(batch) <= most_cost
                for lowest, limit in places:
                    assert sum(one.level >= lowest for one in batch) <= max(limit, 1)

                def time(n: int, w: int, c: tuple[float, ...] = line) -> float:
                    return c[0] + n * (c[1] + w * (c[2] + w * c[3]))

                ends = now + time(len(batch), width)
                for one in batch if known else ():
                    if one.deadline >= 0 and now + time(1, one.cost) <= one.deadline:
                        assert ends <= one.deadline
                if known and step and (head >= 2 or batch[-1].level > head) and not late:
                    assert time(len(batch), width) <= step
            queue.finish(handles)
            queue.check()


@pytest.mark.parametrize("line", [None, (3.0, 1.0, 0.5, 0.01), (3.0, 1.0, 0.0, 0.0)])
def test_equal_sizes_leave_in_order_of_keys(core: Core, rng: random.Random, line: Any) -> None:
    queue = core.watch(core.queue.RequestQueue(500))
    keys = [rng.randrange(100) for _ in range(500)]
    for i, key in enumerate(keys):
        queue.admit((key, i), key, 0, -1, 7, due_ns=rng.choice((-1, 0, 10**9)))
    gone: list[Any] = []
    while queue.queued:
        gone += queue.take(rng.randrange(1, 70), rng.choice((0, 200)), 5, line)[1]
    assert gone == sorted((key, i) for i, key in enumerate(keys))


def test_nobody_starves(core: Core, rng: random.Random) -> None:
    """Whoever is n-th in line runs within n takes by size alone, whatever comes in behind it; where others may come in
    before it, one place in `overdue_every` still serves whoever is overdue for longest."""
    line = (100.0, 0.0, 1.0, 0.0)
    queue = core.watch(core.queue.RequestQueue(400))
    waits: dict[int, int] = {}
    for serial in range(1500):
        if serial % 5 == 0:
            taken = queue.take(8, 0, 0, line)
            for one in taken[1]:
                waits.pop(one)
            queue.finish(taken[0])
            for one in waits:
                waits[one] -= 1
                assert waits[one] >= 0, "passed over for ever"
        if queue.free:
            waits[serial] = queue.queued + 1
            queue.admit(serial, serial, 0, -1, rng.choice((1, 10, 100, rng.randrange(1, 500))))
    queue = core.watch(core.queue.RequestQueue(64, overdue_every=8))
    for i in range(16):
        queue.admit(i, 1000 + i, 0, cost=rng.randrange(1, 500), group=i % 3, level=2, due_ns=i)
    late = set(range(16))
    waited = 0  # takes since the one that is overdue for longest has been that
    while late:
        while queue.free:
            queue.admit(-1, 0, 20, cost=rng.randrange(1, 9), level=0)
        taken = queue.take(4, 0, 20, line, 150)
        queue.finish(taken[0])
        longest = min(late)
        late.difference_update(taken[1])
        waited = 0 if longest not in late else waited + 1
        assert waited <= 2, (
            "two takes of four are the eight places of which one is its own, and it may be the next head"
        )


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=7), head=st.integers(1, 60), room=st.integers(1, 7),
    line=st.tuples(st.floats(0, 200), st.floats(0, 20), st.floats(0, 3), st.floats(0.001, 0.1)),
)  # fmt: skip
@settings(max_examples=150)
def test_no_other_choice_is_worth_more(
    sizes: list[int], head: int, room: int, line: tuple[float, float, float, float]
) -> None:
    base, item, unit, square = line

    def own(size: int) -> float:
        return item + size * (unit + size * square)

    def worth(batch: Any) -> float:
        return (sum(own(size) for size in batch) - base - len(batch) * own(max(batch))) / len(batch)

    for side in ("pure", "native"):
        queue = Core(side).queue.RequestQueue(8)
        filled(queue, [head, *sizes])
        taken = members(queue.take(1 + room, 0, 0, line))
        assert taken[0] == head
        firsts = len(list(itertools.takewhile(lambda size: size == head, [head, *sizes][: 1 + room])))
        rest = [head, *sizes][firsts:]
        options = [
            [head] * firsts + list(more)
            for n in range(min(len(rest), 1 + room - firsts) + 1)
            for more in itertools.combinations(rest, n)
        ]
        assert worth(taken) >= max(map(worth, options)) * (1 + 1e-5) - 1e-6


def test_choosing_allocates_nothing_that_stays() -> None:
    queue, owner = Core("native").queue.RequestQueue(64, overdue_every=4), object()
    line, places = (50.0, 1.0, 1.0, 0.1), ((1, 9),)

    def turn(now: int) -> None:
        while queue.free:
            queue.admit(owner, now, now, -1, 1 + now * 7 % 50, 0, level=now % 3, due_ns=now + 9)
        queue.finish(queue.take(16, 0, now, line, 900, 32, places, True)[0])

    for now in range(100):
        turn(now)
    gc.collect()
    before = sys.getallocatedblocks()
    for now in range(100, 5_000):
        turn(now)
    assert abs(sys.getallocatedblocks() - before) <= 100
    queue.check()


@pytest.mark.parametrize("rounds", [30, pytest.param(1500, marks=pytest.mark.long)])
def test_both_sides_choose_the_same(rng: random.Random, rounds: int) -> None:
    for _ in range(rounds):
        every = rng.choice((0, 2, 8))
        twins = [Core(side).queue.RequestQueue(128, overdue_every=every) for side in ("pure", "native")]
        most, sizes = rng.randrange(1, 30), rng.choice((3, 40, 500))
        serial = 0
        for now in range(0, 2000, 80):
            for _ in range(rng.randrange(50)):
                asked, serial = some(rng, now, sizes), serial + 1
                arguments = asked.level << 40 | serial, now, asked.deadline, asked.cost, asked.group
                for twin in twins:
                    twin.admit(serial, *arguments, level=asked.level, due_ns=asked.due)
            line = tuple(rng.choice((0.0, rng.random() * 10**power)) for power in (2, 1, 0, -2))
            asked_for = (
                most, rng.choice((0, 2000)), now, rng.choice((line, None)), rng.choice((0, 300)),
                rng.choice((256, 9, 0)), rng.choice(((), ((1, 5),), ((2, 3), (1, 8)))), rng.random() < 0.3,
            )  # fmt: skip
            taken = [twin.take(*asked_for) for twin in twins]
            assert taken[0] == taken[1], asked_for
            for twin in twins:
                twin.finish(taken[0][0])
                twin.check()
