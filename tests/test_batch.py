"""Gathering rows into a model's buffers: what it fills, what it refuses, and that both sides do it alike."""

from __future__ import annotations

import random
import threading
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import numpy as np
import pytest
from conftest import Core
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.errors import StaleToken


def filled(core: Core, lengths: list[int], splits: list[int] | None = None) -> tuple[Any, list[int], list[list[int]]]:
    """An arena with rows of these lengths, their handles and their ids."""
    longest = max([*lengths, 1])
    arena = core.arena.Arena(len(lengths) + 1, 32 * sum(-(-n // 32) for n in [*lengths, 1]), longest)
    rows = [[1000 * i + j + 1 for j in range(n)] for i, n in enumerate(lengths)]
    handles = []
    for i, row in enumerate(rows):
        handle = arena.lease(ids=len(row) // 2, pinned=True)
        assert arena.write_ids(handle, row, splits[i] if splits else -1) and arena.unpin(handle)
        handles.append(handle)
    return core.watch(arena), handles, rows


def buffers(rows: int, width: int, dtype: Any = np.int64, n: int = 3) -> list[Any]:
    return [np.full((rows, width), 77, dtype) for _ in range(n)]


def expected(rows: list[list[int]], splits: list[int], like: list[Any], pad_id: int) -> list[Any]:
    """NumPy, row by row."""
    ids, mask, types = (np.full_like(buffer, 77) for buffer in like)
    for i, row in enumerate(rows):
        n = len(row)
        ids[i, :n], ids[i, n:] = row, pad_id
        mask[i, :n], mask[i, n:] = 1, 0
        types[i] = 0
        if splits[i] >= 0:
            types[i, splits[i] : n] = 1
    return [ids, mask, types]


def test_comes_from_its_side(core: Core) -> None:
    assert core.batch.gather.__module__ == core.batch.__name__ == f"{core.package}.batch"
    suffixes = {"pure": (".py",), "native": tuple(EXTENSION_SUFFIXES)}[core.side]
    assert str(core.batch.__file__).endswith(suffixes)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("lengths", [[0], [5], [32, 31, 33, 1, 0, 64], [128] * 9, [512, 3]])
def test_fills_rows(core: Core, dtype: Any, lengths: list[int]) -> None:
    splits = [n // 2 if i % 2 else -1 for i, n in enumerate(lengths)]
    arena, handles, rows = filled(core, lengths, splits)
    got = buffers(len(lengths) + 2, max(lengths) + 3, dtype)
    assert core.batch.gather(arena, handles, *got, pad_id=-9) == max(lengths)
    for ours, numpys in zip(got, expected(rows, splits, got, -9), strict=True):
        np.testing.assert_array_equal(ours, numpys)
    assert [arena.facts(handle)["flags"] for handle in handles] == [0] * len(handles)


def test_without_segments_and_of_none(core: Core) -> None:
    arena, handles, rows = filled(core, [3, 2])
    ids, mask = buffers(2, 4, n=2)
    assert core.batch.gather(arena, tuple(handles), ids, mask) == 3
    assert ids.tolist() == [[*rows[0], 0], [*rows[1], 0, 0]] and mask.tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    assert core.batch.gather(arena, [], *buffers(2, 4)) == 0
    assert core.batch.gather(arena, [], *buffers(0, 0)) == 0


def test_order_and_repeats(core: Core) -> None:
    arena, handles, rows = filled(core, [3, 1, 2])
    ids, mask = buffers(4, 3, n=2)
    core.batch.gather(arena, [handles[2], handles[0], handles[2]], ids, mask)
    assert ids.tolist() == [[*rows[2], 0], rows[0], [*rows[2], 0], [77] * 3] and mask[3].tolist() == [77] * 3


def test_many_rows_and_a_long_loop(core: Core) -> None:
    """More rows than the stack has room for, and enough of them to run without the GIL."""
    lengths = [i % 257 for i in range(300)]
    arena, handles, rows = filled(core, lengths)
    assert arena.pin(handles[7]) and arena.commit(handles[8])
    got = buffers(300, 256)
    assert core.batch.gather(arena, handles, *got) == 256
    for ours, numpys in zip(got, expected(rows, [-1] * 300, got, 0), strict=True):
        np.testing.assert_array_equal(ours, numpys)
    assert [handle for handle in handles if arena.facts(handle)["flags"]] == [handles[7]], "pins are put back as found"


def test_dropped_while_gathered(rng: random.Random) -> None:
    """Leases end while a long loop runs without the GIL: each call is whole or refused, and no slot leaks."""
    core = Core("native")
    arena, handles, rows = filled(core, [200] * 400)
    got = buffers(400, 400)
    wanted = expected(rows, [-1] * 400, got, 0)
    rng.shuffle(ended := handles[:200])

    def end() -> None:
        for handle in ended:
            assert arena.drop(handle) in (1, 2)

    thread = threading.Thread(target=end)
    thread.start()
    while thread.is_alive():
        try:
            core.batch.gather(arena, handles, *got)
            assert all((ours == numpys).all() for ours, numpys in zip(got, wanted, strict=True))
        except StaleToken:
            core.batch.gather(arena, handles[200:], *got)
    thread.join()
    with pytest.raises(StaleToken):
        core.batch.gather(arena, handles, *got)
    core.batch.gather(arena, handles[200:], *got)
    assert len(arena) == 200
    core.check()


GOOD = np.zeros((2, 4), np.int64)
FROZEN = np.zeros((2, 4), np.int64)
FROZEN.flags.writeable = False
BAD: list[Any] = [
    None, "ids", [[1]], b"12", bytearray(8), np.zeros(4, np.int64), np.zeros((2, 2, 2), np.int64), np.zeros((2, 4)),
    np.zeros((2, 4), np.uint64), np.zeros((2, 4), np.int16), np.zeros((2, 4), ">i8"), FROZEN,
    np.zeros((2, 8), np.int64)[:, ::2], np.zeros((4, 2), np.int64).T,
    np.zeros((2, 5), np.int64), np.zeros((3, 4), np.int64), np.zeros((2, 4), np.int32),
]  # fmt: skip


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{type(bad).__name__}{getattr(bad, 'shape', '')}")
def test_sides_refuse_alike(place: int, bad: Any) -> None:
    answers = []
    for core in (Core("pure"), Core("native")):
        arena, handles, _ = filled(core, [4, 2])
        got: list[Any] = [GOOD.copy() + 7 for _ in range(3)]
        got[place] = bad
        try:
            answers.append((core.batch.gather(arena, handles, *got), [b.tolist() for b in got if b is not None]))
        except Exception as error:
            answers.append((type(error), str(error)))
            others = [b for i, b in enumerate(got) if i != place]
            assert all((b == 7).all() for b in others), "what is refused is left as it was"
        core.check()
    assert answers[0] == answers[1]
    assert answers[0][0] in (TypeError, ValueError) or (place == 2 and bad is None)


def both(lengths: list[int], shape: tuple[int, int], change: Any, pad_id: Any = 0) -> Any:
    answers = []
    for core in (Core("pure"), Core("native")):
        arena, handles, _ = filled(core, lengths)
        got = buffers(*shape)
        try:
            answers.append((core.batch.gather(arena, change(arena, handles), *got, pad_id), [b.tolist() for b in got]))
        except Exception as error:
            answers.append((type(error), str(error)))
    assert answers[0] == answers[1]
    return answers[0]


def dropped(arena: Any, handles: list[int]) -> list[int]:
    assert arena.drop(handles[1]) == 1
    return handles


def test_sides_agree_on_handles() -> None:
    assert both([4, 2], (2, 4), dropped)[0] is StaleToken
    assert both([4, 2], (1, 4), lambda _, handles: handles)[0] is ValueError
    assert both([4, 2], (2, 3), lambda _, handles: handles)[0] is ValueError
    for handle in (-1, 0, None, 1.5, "1", 2**63, 2**62):
        error = both([4, 2], (3, 4), lambda _, handles, h=handle: [*handles, h])[0]
        assert error in (StaleToken, TypeError, OverflowError)
    for handles in (None, 3, "12", {1}, range(2)):
        assert both([4], (2, 4), lambda _, __, h=handles: h)[0] is TypeError
    for pad_id in (2**31, -(2**31) - 1, None, 0.0):
        assert both([4], (2, 4), lambda _, handles: handles, pad_id)[0] in (TypeError, OverflowError)
    assert both([4], (2, 4), lambda arena, handles: (arena.pin(handles[0]), arena.drop(handles[0])) and handles)[0] == 4


def test_sides_want_their_own_arena() -> None:
    for core in (Core("pure"), Core("native")):
        with pytest.raises(TypeError, match="arena must be an Arena, got str"):
            core.batch.gather("arena", [], *buffers(1, 1))


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 100), st.booleans()), min_size=1, max_size=8),
    st.integers(0, 40),
    st.sampled_from([np.int32, np.int64]),
    st.integers(-(2**31), 2**31 - 1),
)
def test_sides_agree_on_rows(shape: list[tuple[int, bool]], room: int, dtype: Any, pad_id: int) -> None:
    lengths = [n for n, _ in shape]
    splits = [n // 3 if pair else -1 for n, pair in shape]
    results = []
    for core in (Core("pure"), Core("native")):
        arena, handles, rows = filled(core, lengths, splits)
        got = buffers(len(lengths), max(lengths) + room, dtype)
        assert core.batch.gather(arena, handles, *got, pad_id=pad_id) == max(lengths)
        results.append(got)
        core.check()
    for ours, theirs, numpys in zip(*results, expected(rows, splits, results[0], pad_id), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(ours, numpys)
