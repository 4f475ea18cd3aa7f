"""The ids of texts that were tokenised before: what the cache promises, on both sides, and that these agree."""

from __future__ import annotations

import gc
import random
import threading
import tracemalloc
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import pytest
from conftest import Core

from relay._pure import idcache as pure

ROW = 600


def arena(core: Core, slots: int = 1, ids: int = ROW, longest: int = 0) -> tuple[Any, list[int]]:
    """An arena and the handles of its slots, all pinned."""
    table = core.watch(core.arena.Arena(slots, ids, longest))
    return table, [table.lease(pinned=True) for _ in range(slots)]


class Reader:
    """A cache, and a row to look at what is in it."""

    def __init__(self, core: Core, max_bytes: int = 1 << 16, max_entries: int | None = None, bits: int = 32) -> None:
        self.cache = core.watch(core.idcache.IdCache(max_bytes, max_entries, bits))
        self.arena, (self.handle,) = arena(core)

    def get(self, text: str, who: str | None = None) -> tuple[list[int], int] | None:
        length = self.cache.fetch(self.arena, self.handle, text, who)
        if length < 0:
            assert length == -1
            return None
        ids = self.arena.ids(self.handle)
        assert len(ids) == length
        return ids, self.arena.facts(self.handle)["split"]

    def counts(self) -> tuple[int, int, int, int]:
        return self.cache.hits, self.cache.misses, self.cache.evictions, self.cache.entries


def test_comes_from_its_side(core: Core) -> None:
    cache = core.idcache.IdCache(1024)
    assert type(cache).__module__ == core.idcache.__name__ == f"{core.package}.idcache"
    suffixes = {"pure": (".py",), "native": tuple(EXTENSION_SUFFIXES)}[core.side]
    assert str(core.idcache.__file__).endswith(suffixes)


TEXTS = ["", "a", "é", "日本", "😀 and more", "a\0b", "a\0c", "\ud800", "x" * 5000]


def test_what_was_put_in_is_fetched(core: Core) -> None:
    reader = Reader(core)
    for number, text in enumerate(TEXTS):
        assert reader.get(text) is None
        assert reader.cache.put(text, None, list(range(number, 2 * number)), number // 2 or -1) is True
    for number, text in enumerate(TEXTS):
        same = "".join(list(text))
        assert reader.get(same) == (list(range(number, 2 * number)), number // 2 or -1)
    assert reader.counts() == (len(TEXTS), len(TEXTS), 0, len(TEXTS))


@pytest.mark.parametrize("ids", [[0, 65_535], [65_536], [-1], [2**31 - 1, -(2**31)], [], list(range(500))])
def test_ids_of_any_size_come_back(core: Core, ids: list[int]) -> None:
    import numpy as np

    reader = Reader(core)
    for kind in (list, tuple, np.int32, np.int64):
        name = getattr(kind, "__name__", "")
        given = np.array(ids, kind) if name.startswith("int") else kind(ids)
        assert reader.cache.put(name, None, given)
        assert reader.get(name) == (ids, -1)


def test_the_first_stays(core: Core) -> None:
    reader = Reader(core)
    assert reader.cache.put("a", None, [1]) is True
    assert reader.cache.put("a", None, [2, 3], 1) is False
    assert reader.get("a") == ([1], -1)


@pytest.mark.parametrize("bits", [0, 32])
def test_a_tenant_finds_only_its_own(core: Core, bits: int) -> None:
    reader = Reader(core, bits=bits)
    names: list[str | None] = [None, "", "a", "ä", "日", "ab", "a" * 1024]
    for number, who in enumerate(names):
        assert all(reader.get("text", other) is None for other in names[number:])
        assert reader.cache.put("text", who, [number])
    assert [reader.get("text", who) for who in names] == [([number], -1) for number in range(len(names))]
    # What is one behind the other in memory is not the same when it is cut elsewhere.
    reader.cache.put("bc", "a", [70])
    assert reader.get("c", "ab") is None and reader.get("abc") is None and reader.get("bc", "a") == ([70], -1)


def test_texts_that_collide_are_told_apart(core: Core, rng: random.Random) -> None:
    """With a hash that is the same for all, with one of 3 bits, and with a whole one: no wrong ids."""
    for bits in (0, 3, 32):
        reader = Reader(core, 1 << 15, 96, bits)
        texts = [chr(rng.choice((97, 233, 0x65E5, 0x1F600))) * rng.randrange(6) + str(rng.random()) for _ in range(150)]
        for number, text in enumerate(texts):
            reader.cache.put(text, rng.choice((None, "t")), [number, number + 1])
            reader.cache.check()
        found = 0
        for number, text in enumerate(texts):
            for who in (None, "t"):
                ids = reader.get(text, who)
                assert ids in (None, ([number, number + 1], -1))
                found += ids is not None
        assert found == reader.cache.entries == 96


def test_nothing_long_is_kept_nor_hashed(core: Core) -> None:
    reader = Reader(core, 1 << 22)
    most = core.idcache.MAX_CHARS
    assert reader.cache.put("x" * (most + 1), None, [1]) is False
    assert reader.get("x" * (most + 1)) is None
    assert reader.cache.put("x" * most, None, [1]) and reader.get("x" * most) == ([1], -1)
    assert reader.cache.put("x", "n" * (core.idcache.MAX_NAME + 1), [1]) is False
    assert reader.get("x", "n" * (core.idcache.MAX_NAME + 1)) is None
    assert reader.cache.put("long", None, range(0) or [7] * core.idcache.MAX_IDS)
    with pytest.raises(ValueError, match=r"16385 ids are more than max_length 16384"):
        reader.cache.put("longer", None, [7] * (core.idcache.MAX_IDS + 1))
    small = Reader(core, 1024)
    assert small.cache.put("y" * 150, None, [1]) and not small.cache.put("y" * 250, None, [1])  # a quarter at most


def test_rows_that_cannot_be_written(core: Core) -> None:
    cache = core.watch(core.idcache.IdCache(4096))
    cache.put("long", None, [1] * 100)
    cache.put("short", None, [1] * 10)
    table, (one, two) = arena(core, 2, 96, 64)
    assert table.write_ids(one, [5] * 64)
    assert cache.fetch(table, two, "long") == core.idcache.NOT_WRITTEN  # longer than a row
    wide, handles = arena(core, 2, 128)
    assert wide.write_ids(handles[0], [5] * 64)
    assert cache.fetch(wide, handles[1], "long") == -2 and wide.ids(handles[1]) == []  # too few blocks
    assert cache.fetch(wide, handles[1], "short") == 10
    wide.drop(handles[1])
    assert cache.fetch(wide, handles[1], "short") == -2  # dropped while pinned
    wide.unpin(handles[1])
    assert cache.fetch(wide, handles[1], "short") == -2  # stale
    assert cache.fetch(wide, handles[1], "short", None, True) == -2
    assert (cache.hits, cache.misses) == (5, 0)
    loose = wide.lease()
    with pytest.raises(ValueError) as caught:
        cache.fetch(wide, loose, "short")
    assert str(caught.value) == f"handle {loose} is not pinned; pin() it before writing its row"
    assert (cache.hits, cache.misses) == (5, 0)


def test_a_tentative_look_counts_only_what_it_gave(core: Core) -> None:
    reader = Reader(core)
    look = reader.cache.fetch
    assert look(reader.arena, reader.handle, "a", None, True) == -1
    reader.cache.put("a", None, [1])
    assert reader.counts() == (0, 0, 0, 1)
    assert look(reader.arena, reader.handle, "a", tentative=True) == 1
    assert look(reader.arena, reader.handle, "b", tentative=False) == -1
    assert reader.counts() == (1, 1, 0, 1)


def text_of(number: int, chars: int = 300) -> str:
    return f"{number} ".ljust(chars, "x")


def test_the_oldest_make_room(core: Core) -> None:
    reader = Reader(core, 1 << 14)
    for number in range(200):
        assert reader.cache.put(text_of(number), None, [number] * 64)
        reader.cache.check()
    kept = [number for number in range(200) if reader.get(text_of(number)) is not None]
    assert kept == list(range(200 - len(kept), 200)) and len(kept) == reader.cache.entries
    assert reader.cache.evictions == 200 - len(kept)
    assert reader.get(text_of(199)) == ([199] * 64, -1)


def test_entries_are_bounded_too(core: Core) -> None:
    reader = Reader(core, 1 << 14, 10)
    for number in range(35):
        reader.cache.put(str(number), None, [number])
    assert (reader.cache.entries, reader.cache.evictions, reader.cache.max_entries) == (10, 25, 10)
    assert [reader.get(str(number)) is not None for number in range(35)] == [False] * 25 + [True] * 10


@pytest.mark.parametrize("most", [None, 40])
def test_what_is_asked_for_outlives_a_scan(core: Core, most: int | None) -> None:
    """Ten texts that come again and again, among thousands that come once."""
    reader = Reader(core, 1 << 15, most)
    hot = [f"hot {number}" for number in range(10)]
    for number, text in enumerate(hot):
        reader.cache.put(text, None, [number])
    for number in range(3000):
        reader.cache.put(text_of(number), None, [1] * 64)
        assert reader.get(hot[number % 10]) == ([number % 10], -1)
    reader.cache.check()


def test_hot_ones_do_not_make_a_put_long(core: Core) -> None:
    """All were asked for: the work stays bounded, and the next one finds room all the same."""
    reader = Reader(core, 1 << 16)
    number = 0
    while not reader.cache.evictions:
        reader.cache.put(str(number), None, [1])
        number += 1
    for old in range(number):
        reader.get(str(old))
    before = reader.cache.entries
    assert reader.cache.put("new", None, [5]) and reader.get("new") == ([5], -1)
    assert before - 2 <= reader.cache.entries <= before + 1
    reader.cache.check()


def test_memory_of_a_text(core: Core) -> None:
    """At full occupancy a text of 64 ids takes at most 400 bytes beside its own characters, all things counted."""
    for size in (1 << 18, 1 << 20):
        cache = core.watch(core.idcache.IdCache(size))
        number = 0
        while not cache.evictions:
            assert cache.put(text_of(number), None, [number % 30_000] * 64)
            number += 1
        assert size / cache.entries - 300 <= 400
        assert cache.nbytes <= size and cache.nbytes / cache.entries - 300 <= 200


def test_clear(core: Core) -> None:
    reader = Reader(core)
    for number in range(20):
        reader.cache.put(str(number), None, [number])
    reader.cache.clear()
    assert (reader.cache.entries, reader.cache.nbytes, reader.cache.evictions) == (0, 0, 20)
    assert all(reader.get(str(number)) is None for number in range(20))
    assert reader.cache.put("1", None, [8]) and reader.get("1") == ([8], -1)


REFUSED: list[tuple[tuple[object, ...], type[Exception], str]] = [
    ((0,), ValueError, "max_bytes 0 is outside 1024..4294967296"),
    ((2**32 + 1,), ValueError, "max_bytes 4294967297 is outside 1024..4294967296"),
    (("1",), TypeError, "max_bytes must be an int, got str"),
    ((1024, 0), ValueError, "max_entries 0 is outside 1..268435456"),
    ((1024, 10, 33), ValueError, "hash_bits 33 is outside 0..32"),
    (
        (1024, 49),
        ValueError,
        "an index of 49 entries takes 1024 of 1024 bytes, more than half; give fewer max_entries or more max_bytes",
    ),
]


@pytest.mark.parametrize(("arguments", "error", "text"), REFUSED)
def test_bad_sizes(core: Core, arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        core.idcache.IdCache(*arguments)
    assert str(caught.value) == text


WRONG: list[tuple[str, tuple[object, ...], type[Exception], str]] = [
    ("put", (b"a", None, [1]), TypeError, "text must be a str, got bytes"),
    ("put", ("a", 5, [1]), TypeError, "who must be a str or None, got int"),
    ("put", ("a", None, 7), TypeError, "ids must be a list or tuple of ints, or a 1-D int32 or int64 array, got int"),
    ("put", ("a", None, ["1"]), TypeError, "id must be an int, got str"),
    ("put", ("a", None, [2**31]), OverflowError, "id 2147483648 does not fit in 32 bits"),
    ("put", ("a", None, [1], 2), ValueError, "split 2 is outside -1..1"),
    ("fetch", (None, 0, "a"), TypeError, "arena must be an Arena, got NoneType"),
]


@pytest.mark.parametrize(("method", "arguments", "error", "text"), WRONG)
def test_refusals(core: Core, method: str, arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    reader = Reader(core)
    with pytest.raises(error) as caught:
        getattr(reader.cache, method)(*arguments)
    assert str(caught.value) == text
    assert reader.counts() == (0, 0, 0, 0)


def test_a_str_of_another_kind_is_refused(core: Core) -> None:
    class Odd(str):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = str.__hash__

    reader = Reader(core)
    with pytest.raises(TypeError, match="text must be a str, got Odd"):
        reader.cache.put(Odd("a"), None, [1])
    with pytest.raises(TypeError, match="who must be a str or None, got Odd"):
        reader.cache.fetch(reader.arena, reader.handle, "a", Odd("a"))


@pytest.mark.parametrize("most", [None, 12])
def test_twins(seed: int, most: int | None) -> None:
    """100,000 random steps on both sides: whatever one answers, or drops, so does the other."""
    rng = random.Random(seed)
    cores = [Core("pure"), Core("native")]
    readers = [Reader(core, 1 << 13, most, rng.choice((0, 4, 32))) for core in cores]
    texts = [chr(rng.choice((97, 233, 0x65E5, 0x1F600))) * rng.randrange(60) + str(i) for i in range(150)]
    names = [None, "a", "é"]
    model: dict[tuple[str, str | None], tuple[list[int], int]] = {}
    for step in range(50_000 if most else 100_000):
        text, who = rng.choice(texts[: rng.choice((10, 150))]), rng.choice(names)
        if rng.random() < 0.6:
            answers: list[Any] = [reader.get(text, who) for reader in readers]
            assert answers[0] is None or answers[0] == model[text, who]
        else:
            ids = [rng.choice((5, 70_000)) for _ in range(rng.randrange(40))]
            split = rng.randrange(-1, len(ids) + 1)
            answers = [reader.cache.put(text, who, ids, split) for reader in readers]
            if answers[0]:
                model[text, who] = ids, split
        assert answers[0] == answers[1] and type(answers[0]) is type(answers[1]), step
        assert readers[0].counts() == readers[1].counts() and readers[0].cache.nbytes == readers[1].cache.nbytes, step
        if step % 1000 == 0:
            for reader in readers:
                reader.cache.check()
        if rng.random() < 0.0002:
            for reader in readers:
                reader.cache.clear()
    assert readers[0].cache.evictions > 1000 and readers[0].cache.hits > 1000
    for core in cores:
        core.check()


def test_counts_add_up_over_many_threads(core: Core) -> None:
    cache = core.watch(core.idcache.IdCache(1 << 13))
    table, handles = arena(core, 4, 4 * 64)
    put, start = [0] * 4, threading.Barrier(4)
    lock = threading.Lock()  # the arena's callers take turns; the cache's need not

    def work(number: int) -> None:
        rng = random.Random(number)
        start.wait(30)
        for _ in range(3000):
            text = str(rng.randrange(300))
            with lock:
                length = cache.fetch(table, handles[number], text)
                assert length < 0 or table.ids(handles[number]) == [int(text)] * length
            if length < 0:
                put[number] += cache.put(text, None, [int(text)] * 3)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
        assert not thread.is_alive()
    assert cache.hits + cache.misses == 4 * 3000
    assert sum(put) == cache.entries + cache.evictions


@pytest.mark.parametrize("core", ["native"], indirect=True)
def test_native_hit_neither_collects_nor_allocates(core: Core) -> None:
    reader = Reader(core)
    text = text_of(1)
    reader.cache.put(text, "t", [5] * 64)
    gc.collect()
    collections = [generation["collections"] for generation in gc.get_stats()]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(50_000):
            reader.cache.fetch(reader.arena, reader.handle, text, "t", True)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [generation["collections"] for generation in gc.get_stats()] == collections
    assert after - before < 1000


def broken(cache: pure.IdCache, how: str) -> None:
    first, second = cache._ring.records[0], cache._ring.records[1]
    if how == "place":
        second.at += 8
    elif how == "end":
        cache._ring._head += 8
    elif how == "index":
        del cache._index[first.digest]
    elif how == "double":
        cache._index[12345678901] = [first]
    else:
        cache._nbytes += 8


@pytest.mark.parametrize("how", ["place", "end", "index", "double", "bytes"])
def test_check_finds_what_is_broken(how: str) -> None:
    cache = pure.IdCache(4096)
    cache.put("a", None, [1])
    cache.put("b", None, [2])
    broken(cache, how)
    with pytest.raises(AssertionError, match="this is a bug in relay"):
        cache.check()
