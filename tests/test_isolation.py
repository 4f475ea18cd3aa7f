"""Isolation of the members at fault in a failing batch: which parts are run, and what everybody ends with.

None of it has a side: it knows the errors alone. Lanes that split are tested where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import relay
from relay.isolation import GROW_AFTER, GROW_AFTER_MOST, Health, MemoryLimit, Splitter

Model = Callable[[list[int]], list[Any]]


class Bad(Exception):
    """An item's own fault; knows the batch that it was raised for."""


def failing(bad: Collection[int], error: type[BaseException] = Bad) -> Model:
    """A model that fails for some items, and names the first of them."""

    def model(items: list[int]) -> list[Any]:
        for item in items:
            if item in bad:
                raise error(item)
        return [f"row {item}" for item in items]

    return model


def fitting(most: int, widths: list[int]) -> Model:
    """A model that runs out of memory."""

    def model(items: list[int]) -> list[Any]:
        if len(items) * max(widths[item] for item in items) > most:
            raise MemoryError(len(items))
        return [f"row {item}" for item in items]

    return model


class Drive:
    """Runs a model over a batch as a lane does."""

    def __init__(self, model: Model, count: int, health: Health | None = None, **options: Any) -> None:
        self.health = health or Health()
        self.parts: list[list[int]] = []
        self.splitter: Splitter | None = None
        self.outcomes: list[Any] = []
        self.now_ns = 0
        batch = list(range(count))
        try:
            self.outcomes = model(batch)
            self.health.suspect = False
        except BaseException as error:
            self.splitter = Splitter(count, error, self.health, **options)
        if self.splitter is not None:
            self._split(self.splitter, model)

    def _split(self, splitter: Splitter, model: Model) -> None:
        ended = splitter.take_ended()
        while part := splitter.next(self.now_ns):
            ended += splitter.take_ended()
            assert not set(part) & set(ended), "who has an outcome is run again"
            self.parts.append(list(part))
            try:
                rows = model(part)
            except BaseException as error:
                splitter.failed(error)
            else:
                splitter.succeeded(rows)
            assert splitter.runs == len(self.parts)
        ended += splitter.take_ended()
        assert sorted(ended) == list(range(len(splitter.outcomes))), "each ends once"
        assert splitter.left == 0 and splitter.next(self.now_ns) == []
        self.outcomes = splitter.outcomes

    def failed(self) -> dict[int, Any]:
        return {i: one for i, one in enumerate(self.outcomes) if isinstance(one, BaseException)}


def log2(count: int) -> int:
    return (count - 1).bit_length()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 33, 64])
def test_only_the_culprit_fails(count: int) -> None:
    for bad in range(count):
        drive = Drive(failing({bad}), count)
        assert {i: error.args for i, error in drive.failed().items()} == {bad: (bad,)}
        assert all(row == f"row {i}" for i, row in enumerate(drive.outcomes) if i != bad)
        assert len(drive.parts) <= 2 * log2(count)
        assert not drive.health.suspect
        assert drive.splitter is not None and drive.splitter.run_sizes[bad] == 1


def test_depth_first_by_halves() -> None:
    assert Drive(failing({0}), 8).parts == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1], [2, 3], [0], [1]]
    assert Drive(failing({1, 6}), 8).parts == [
        *([0, 1, 2, 3], [4, 5, 6, 7]),
        *([0, 1], [2, 3], [0], [1]),
        *([4, 5], [6, 7], [6], [7]),
    ]
    assert Drive(failing({4}), 5).parts == [[0, 1, 2], [3, 4], [3], [4]]


def test_the_culprits_error_is_that_of_its_own_run() -> None:
    errors: list[tuple[list[int], Bad]] = []

    def model(items: list[int]) -> list[Any]:
        try:
            return failing({2})(items)
        except Bad as error:
            errors.append((list(items), error))
            raise

    drive = Drive(model, 4)
    assert drive.outcomes[2] is dict((tuple(items), error) for items, error in errors)[2,]
    assert drive.outcomes[2].__context__ is None and drive.outcomes[2].__cause__ is None


def test_innocent_halves_have_their_rows_at_once() -> None:
    splitter = Splitter(8, Bad(), Health())
    assert splitter.next(0) == [0, 1, 2, 3]
    splitter.failed(Bad())
    assert splitter.next(0) == [4, 5, 6, 7] and splitter.take_ended() == []
    splitter.succeeded("efgh")
    assert splitter.take_ended() == [4, 5, 6, 7] and splitter.outcomes[4:] == list("efgh")
    assert splitter.take_ended() == [] and splitter.left == 4


@given(st.data())
def test_each_ends_once_within_bounds(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    members = st.sets(st.integers(0, count - 1))
    bad, gone, late = data.draw(members), data.draw(members), data.draw(members)
    runs: list[list[int]] = []

    def model(items: list[int]) -> list[Any]:
        runs.append(list(items))
        return failing(bad)(items)

    drive = Drive(
        model,
        count,
        wanted=lambda i: i not in gone,
        deadline_ns=[0 if i in late else -1 for i in range(count)].__getitem__,
    )
    if not bad:
        assert runs == [list(range(count))] and not drive.failed()
        return
    assert len(runs) <= max(2 * count - 1, 1)
    assert all(part == sorted(set(part)) and part for part in drive.parts)
    good = [part for part in drive.parts if not bad & set(part)]
    done = [i for part in good for i in part]
    assert len(done) == len(set(done)), "what has succeeded is not run again"
    assert not (gone | late) & {i for part in drive.parts for i in part}
    for index, outcome in enumerate(drive.outcomes):
        if count > 1 and index in gone:
            assert type(outcome) is relay.RequestCancelled
        elif count > 1 and index in late:
            assert type(outcome) is relay.DeadlineExceeded and type(outcome.__cause__) is Bad
        elif outcome == f"row {index}":
            assert index not in bad
        else:
            assert type(outcome) is Bad
            assert outcome.args == (index,) or drive.health.suspect
            assert index in bad or drive.health.suspect


@given(st.integers(1, 100), st.data())
def test_one_culprit_costs_twice_the_logarithm(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, count - 1))
    drive = Drive(failing({bad}), count)
    assert 1 + len(drive.parts) <= 2 * log2(count) + 1
    assert list(drive.failed()) == [bad]


def test_the_most_runs_there_can_be() -> None:
    drive = Drive(failing(set(range(0, 64, 2))), 64)
    assert 1 + len(drive.parts) == 2 * 64 - 1
    assert list(drive.failed()) == list(range(0, 64, 2)) and not drive.health.suspect


@pytest.mark.parametrize("count", [4, 5, 8, 50, 64])
def test_a_model_at_fault_is_not_run_for_ever(count: int) -> None:
    drive = Drive(failing(range(count)), count)
    assert len(drive.parts) == 2 * log2(count)
    assert drive.health.suspect
    last = drive.outcomes[-1]
    assert type(last) is Bad and drive.outcomes.count(last) >= count - log2(count)
    again = Drive(failing({0}), count, drive.health)
    assert again.parts == [] and len({id(error) for error in again.outcomes}) == 1, (
        "nothing is split until one succeeds"
    )
    assert drive.health.suspect
    Drive(failing(()), count, drive.health)
    assert not drive.health.suspect
    assert list(Drive(failing({0}), count, drive.health).failed()) == [0]


def test_a_cluster_of_culprits_does_not_take_others_along() -> None:
    drive = Drive(failing(range(16, 48)), 64)
    assert list(drive.failed()) == list(range(16, 48)) and not drive.health.suspect
    drive = Drive(failing(range(32)), 64)
    assert list(drive.failed()) == list(range(32)) and not drive.health.suspect


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_that_have_all_failed_alone_are_no_verdict(count: int) -> None:
    drive = Drive(failing(range(count)), count)
    assert [error.args for error in drive.outcomes] == [(i,) for i in range(count)]
    assert not drive.health.suspect


def test_a_part_that_succeeds_clears_the_model() -> None:
    health = Health()
    splitter = Splitter(8, Bad(), health)
    splitter.next(0)
    health.suspect = True  # by another lane
    splitter.succeeded([None] * 4)
    assert not health.suspect


def test_a_split_that_has_begun_goes_on_when_another_lane_suspects_the_model() -> None:
    health = Health()
    splitter = Splitter(8, Bad(), health)
    splitter.next(0)
    health.suspect = True
    splitter.failed(Bad())
    assert splitter.next(0) == [4, 5, 6, 7] and splitter.left == 8


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize(
    "error",
    [OSError("no"), TimeoutError(), relay.Overloaded(), KeyboardInterrupt(), SystemExit(), RuntimeError("device lost")],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_split(error: BaseException, split: bool) -> None:
    health = Health()
    splitter = Splitter(8, error, health, split=split)
    assert splitter.next(0) == [] and splitter.outcomes == [error] * 8 and splitter.runs == 0
    assert splitter.run_sizes == [8] * 8 and not health.suspect
    assert Drive(failing({3}), 8, split=False).parts == []
    assert Splitter(8, MemoryError(), Health(), split=False).next(0) == []


def test_a_part_that_is_not_split_ends_alone() -> None:
    splitter = Splitter(8, Bad(), Health())
    splitter.next(0)
    error = TimeoutError()
    splitter.failed(error)
    assert splitter.take_ended() == [0, 1, 2, 3] and splitter.run_sizes[:4] == [4] * 4
    assert splitter.next(0) == [4, 5, 6, 7]
    splitter.succeeded(range(4))
    assert splitter.next(0) == [] and splitter.outcomes == [error] * 4 + [0, 1, 2, 3]


def test_a_lost_device_ends_all_that_is_left() -> None:
    splitter = Splitter(8, Bad(), Health())
    splitter.next(0)
    splitter.succeeded(range(4))
    splitter.next(0)
    error = RuntimeError("CUDA error: device-side assert triggered")
    splitter.failed(error)
    assert splitter.next(0) == [] and splitter.outcomes == [0, 1, 2, 3] + [error] * 4
    splitter = Splitter(8, Bad(), Health())
    splitter.next(0)
    splitter.failed(error)
    assert splitter.next(0) == [] and splitter.outcomes == [error] * 8


@pytest.mark.parametrize("error", [BaseException, StopIteration, GeneratorExit, SystemExit, relay.BadOutput, Bad])
def test_errors_of_every_kind(error: type[BaseException]) -> None:
    drive = Drive(failing({5}, error), 8)
    if error in (GeneratorExit, SystemExit):
        assert list(drive.failed()) == list(range(8)) and drive.parts == []
    else:
        assert list(drive.failed()) == [5] and type(drive.outcomes[5]) is error


def test_an_end_from_outside() -> None:
    splitter = Splitter(8, Bad(), Health())
    splitter.next(0)
    splitter.failed(Bad())
    splitter.next(0)
    closed = relay.Closed()
    splitter.abort(closed)
    assert splitter.outcomes == [closed] * 8 and splitter.left == 0 and splitter.next(0) == []
    assert sorted(splitter.take_ended()) == list(range(8))
    splitter.abort(Bad())
    assert splitter.outcomes == [closed] * 8


def test_the_runs_have_a_bound() -> None:
    for most in range(8):
        drive = Drive(failing({0}), 8, max_runs=most)
        assert len(drive.parts) == min(most, 6)
        assert not drive.health.suspect, "a bound is no verdict"
        assert all(type(error) is Bad for error in drive.failed().values())
    assert list(Drive(failing({0}), 8, max_runs=4).failed()) == [0, 1]


def test_members_that_go_meanwhile() -> None:
    gone: set[int] = set()
    splitter = Splitter(8, Bad(), Health(), wanted=lambda i: i not in gone)
    assert splitter.next(0) == [0, 1, 2, 3]
    gone.update((1, 4, 5))  # while the part runs
    splitter.failed(Bad())
    assert splitter.next(0) == [6, 7]
    splitter.succeeded([6, 7])
    assert splitter.next(0) == [0, 2]  # halves of those who are left
    gone.update((0, 2, 3))
    splitter.succeeded([0, 2])
    assert splitter.next(0) == []
    kinds = [type(one).__name__ for one in splitter.outcomes]
    assert kinds == ["int", "RequestCancelled", "int", *["RequestCancelled"] * 3, "int", "int"]
    assert splitter.run_sizes == [2, 0, 2, 0, 0, 0, 2, 2]


def test_nothing_is_run_past_its_deadline() -> None:
    deadlines = [100, -1, 200, 0, 300, -1, -1, 100]
    splitter = Splitter(8, Bad(), Health(), deadline_ns=deadlines.__getitem__)
    assert splitter.next(99) == [0, 1, 2, 4]  # halves of those who have time
    splitter.failed(error := Bad())
    assert splitter.next(100) == [5, 6]  # 7 ends at its very deadline
    splitter.succeeded([5, 6])
    assert splitter.next(200) == [1]
    splitter.succeeded([1])
    assert splitter.next(299) == [4]
    splitter.succeeded([4])
    assert splitter.next(300) == []
    late = [i for i, one in enumerate(splitter.outcomes) if type(one) is relay.DeadlineExceeded]
    assert late == [0, 2, 3, 7]
    assert splitter.outcomes[0].__cause__ is error
    with pytest.raises(relay.DeadlineExceeded, match="its batch failed, .*; give it more time, or set isolate=False"):
        raise splitter.outcomes[0]


def test_rows_may_be_errors() -> None:
    drive = Drive(lambda items: [Bad(i) if i == 1 else i for i in failing({6})(items) and items], 8)
    assert {i: type(one) for i, one in drive.failed().items()} == {1: Bad, 6: Bad}


def test_misuse_is_a_bug_in_relay() -> None:
    splitter = Splitter(4, Bad(), Health())
    with pytest.raises(RuntimeError, match="no part is being run; this is a bug in relay"):
        splitter.succeeded([])
    splitter.next(0)
    with pytest.raises(RuntimeError, match="the last part has no outcome yet"):
        splitter.next(0)
    with pytest.raises(RuntimeError, match="1 rows for a part of 2"):
        splitter.succeeded([1])


def test_d11_out_of_memory_is_halved_down_to_what_fits() -> None:
    memory = MemoryLimit()
    drive = Drive(fitting(12, [1] * 64), 64, memory=memory)
    assert not drive.failed() and not drive.health.suspect
    assert [len(part) for part in drive.parts] == [32, 16, *[8] * 8], "sizes that have failed are not tried again"
    assert memory.limit == 8


def test_d11_only_an_item_that_fails_alone_fails() -> None:
    widths = [1] * 32
    for index in (*range(14), 31):  # more of them at first than a model at fault is given runs
        widths[index] = 100
    drive = Drive(fitting(20, widths), 32, widths=widths)
    assert list(drive.failed()) == [*range(14), 31]
    assert 1 + len(drive.parts) <= 2 * 32 - 1
    assert not drive.health.suspect


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 200))
def test_d11_with_any_sizes(widths: list[int], most: int) -> None:
    memory = MemoryLimit()
    drive = Drive(fitting(most, widths), len(widths), widths=widths, memory=memory)
    assert list(drive.failed()) == [i for i, width in enumerate(widths) if width > most]
    assert 1 + len(drive.parts) <= 2 * len(widths) - 1
    assert not drive.health.suspect
    assert memory.limit == 0 or memory.limit >= most // 4


def test_out_of_memory_is_halved_though_the_model_is_suspect() -> None:
    health = Health()
    health.suspect = True
    assert not Drive(fitting(2, [1] * 8), 8, health).failed()
    assert not health.suspect


def test_out_of_memory_and_a_culprit() -> None:
    def model(items: list[int]) -> list[Any]:
        return fitting(4, [1] * 16)(items) and failing({9})(items)

    drive = Drive(model, 16)
    assert list(drive.failed()) == [9] and type(drive.outcomes[9]) is Bad


def test_the_memory_limit_is_half_of_what_failed() -> None:
    memory = MemoryLimit()
    memory.succeeded(1000, 1000)
    assert memory.limit == 0
    memory.failed(64, 10)
    assert memory.limit == 320
    memory.failed(100, 10)  # began before; its half is more than the limit
    assert memory.limit == 320
    memory.failed(32, 10)
    assert memory.limit == 160
    memory.failed(1, 5)
    assert memory.limit == 160, "one item alone says nothing of batches"
    for _ in range(100):
        memory.failed(2, 0)
    assert memory.limit == 1


def fill(memory: MemoryLimit) -> int:
    """How many batches that fill the limit it takes until it changes."""
    before = memory.limit
    for batches in range(1, 10_000):
        memory.succeeded(before, 1)
        if memory.limit != before:
            return batches
    raise AssertionError("it does not grow")


def test_the_memory_limit_recovers_slowly() -> None:
    memory = MemoryLimit()
    memory.failed(64, 1)
    for _ in range(10 * GROW_AFTER):
        memory.succeeded(31, 1)
        memory.succeeded(3, 8)
    assert memory.limit == 32, "batches that do not fill it say nothing"
    assert fill(memory) == GROW_AFTER and memory.limit == 40
    seen = []
    while memory.limit:
        assert fill(memory) == GROW_AFTER
        seen.append(memory.limit)
    assert seen == [50, 62, 77, 96, 120, 0], "gone when over twice of what has failed"


def test_a_memory_limit_that_was_right_is_tried_less_and_less() -> None:
    memory = MemoryLimit()
    memory.failed(64, 1)
    waits = []
    for _ in range(10):
        waits.append(fill(memory))
        memory.failed(memory.limit, 1)
    assert waits[:3] == [GROW_AFTER, 2 * GROW_AFTER, 4 * GROW_AFTER] and max(waits) == waits[-1] == GROW_AFTER_MOST


def test_a_small_memory_limit_grows_too() -> None:
    memory = MemoryLimit()
    memory.failed(2, 1)
    assert memory.limit == 1
    fill(memory)
    assert memory.limit == 2
