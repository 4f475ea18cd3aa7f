"""The answers of earlier requests: what a result cache promises, on both sides, and that the two are alike."""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import pytest
from conftest import Core
from hypothesis import given, settings
from hypothesis import strategies as st

from relay._pure import cache as pure
from relay._pure._shelf import MOST_TURNS, NEVER_NS

MIN, MAX = -(2**63), 2**63 - 1
ROOM = 1 << 30
ENTRY = pure.ENTRY_BYTES

Counts = tuple[int, ...]


class Thing:
    """Something that can be watched."""


def filled(core: Core, entries: int, max_bytes: int = ROOM) -> Any:
    """A full cache: contents "0", "1" and so on, each with its number for a digest and an answer."""
    cache = core.watch(core.cache.ResultCache(entries, max_bytes))
    for number in range(entries):
        assert cache.put(number, str(number), None, number, 0, 0, 0)
    return cache


def held(cache: Any, numbers: range) -> list[int]:
    """Which of these it has. Looks without a trace, but for the counts of hits."""
    absent = sys.modules[type(cache).__module__].ABSENT
    return [number for number in numbers if cache.find(number, str(number), None, 0) is not absent]


def test_comes_from_its_side(core: Core) -> None:
    cache = core.cache.ResultCache(1, ROOM)
    assert type(cache).__module__ == core.cache.__name__ == f"{core.package}.cache"
    suffixes = {"pure": (".py",), "native": tuple(EXTENSION_SUFFIXES)}[core.side]
    assert str(core.cache.__file__).endswith(suffixes)
    assert repr(core.cache.ABSENT) == "ABSENT"


def test_an_answer_is_found_for_equal_content(core: Core) -> None:
    cache = core.watch(core.cache.ResultCache(4, ROOM))
    text, answer = "the same question", Thing()
    assert cache.find(7, text, None, 0) is core.cache.ABSENT
    assert cache.put(7, text, None, answer, 100, cache.epoch, 0) is True
    assert cache.find(7, "".join(list(text)), None, 10**18) is answer
    assert cache.find(8, text, None, 0) is core.cache.ABSENT
    assert (cache.hits, cache.misses, len(cache), cache.nbytes) == (1, 2, 1, 100 + ENTRY)
    assert (cache.max_entries, cache.max_bytes, cache.ttl_ns, cache.epoch) == (4, ROOM, 0, 0)
    assert (cache.evictions, cache.rejected, cache.expired) == (0, 0, 0)


def test_none_is_an_answer(core: Core) -> None:
    cache = core.watch(core.cache.ResultCache(4, ROOM))
    cache.put(7, "", None, None, 0, 0, 0)
    assert cache.find(7, "", None, 0) is None and cache.hits == 1


@pytest.mark.parametrize("other", ["b", "á", "a\0", "", b"a", b"", "日本", "日本語"])
def test_other_content_with_the_same_digest_is_not_given(core: Core, other: str | bytes) -> None:
    cache = core.watch(core.cache.ResultCache(4, ROOM))
    cache.put(7, "a", None, 1, 0, 0, 0)
    assert cache.find(7, other, None, 0) is core.cache.ABSENT
    assert cache.put(7, other, None, 2, 0, 0, 0)  # takes the place of the first
    assert (cache.find(7, other, None, 0), cache.find(7, "a", None, 0)) == (2, core.cache.ABSENT)
    assert (len(cache), cache.evictions) == (1, 1)


def test_who_is_told_apart_by_identity_and_has_an_entry_of_its_own(core: Core) -> None:
    cache = core.watch(core.cache.ResultCache(4, ROOM))
    one, two, three = ((1, "x" * count) for count in (9, 9, 9))  # equal
    for value, who in enumerate((None, one, two)):
        cache.put(7, "a", who, value, 0, 0, 0)
    assert [cache.find(7, "a", who, 0) for who in (None, one, two)] == [0, 1, 2]
    assert cache.find(7, "a", three, 0) is core.cache.ABSENT and cache.evictions == 0


def test_a_constant_digest_never_gives_a_wrong_answer(core: Core, rng: random.Random) -> None:
    cache = core.watch(core.cache.ResultCache(64, ROOM))
    whos = [None, Thing(), Thing(), "a", b"a"]
    contents: list[str | bytes] = [str(number) for number in range(50)] + [b"%d" % number for number in range(50)]
    right = 0
    for now in range(20_000):
        content, who = rng.choice(contents), rng.choice(whos)
        found = cache.find(5, content, who, now)
        if found is not core.cache.ABSENT:
            assert found[0] is content and found[1] is who
            right += 1
        elif rng.random() < 0.5:
            cache.put(5, content, who, (content, who), 0, 0, now)
    assert right == cache.hits > 20 and len(cache) == len(whos)


def test_putting_again_replaces(core: Core) -> None:
    cache = filled(core, 10)
    assert cache.put(3, "3", None, "new", 500, 0, 0)
    assert cache.find(3, "3", None, 0) == "new"
    assert (len(cache), cache.evictions, cache.nbytes) == (10, 0, 500 + 10 * ENTRY)


@pytest.mark.parametrize("size", [0, 1000])
def test_replacing_makes_room_among_the_others(core: Core, size: int) -> None:
    cache = core.watch(core.cache.ResultCache(100, 20 * (ENTRY + 1000)))
    for number in range(20):
        assert cache.put(number, str(number), None, number, 1000, 0, 0)
    assert cache.put(5, "5", None, "new", 1000 + size, 0, 0)
    assert cache.find(5, "5", None, 0) == "new" and len(cache) == (20 if size == 0 else 19)


def test_time_is_over_to_the_nanosecond(core: Core) -> None:
    cache = core.watch(core.cache.ResultCache(4, ROOM, 1000))
    cache.put(7, "a", None, 1, 0, 0, 5)
    assert cache.find(7, "a", None, 1004) == 1
    assert (len(cache), cache.expired) == (1, 0)
    assert cache.find(7, "a", None, 1005) is core.cache.ABSENT
    assert (len(cache), cache.expired, cache.hits, cache.misses, cache.nbytes) == (0, 1, 1, 1, 0)
    cache.put(7, "a", None, 2, 0, 0, 1005)
    cache.put(7, "a", None, 3, 0, 0, 1500)
    assert cache.find(7, "a", None, 2499) == 3, "putting again begins anew"


@pytest.mark.parametrize(("ttl_ns", "now_ns"), [(0, MAX), (MAX, MAX), (1, MAX), (MAX, 1), (MAX - 5, 5)])
def test_times_near_the_end_of_time(core: Core, ttl_ns: int, now_ns: int) -> None:
    cache = core.watch(core.cache.ResultCache(4, ROOM, ttl_ns))
    cache.put(7, "a", None, 1, 0, 0, now_ns)
    assert cache.find(7, "a", None, MAX) == 1
    cache.put(8, "b", None, 1, 0, 0, MIN)
    assert cache.find(8, "b", None, -10 if ttl_ns != 1 else MIN) == 1


def test_whose_time_is_over_goes_first(core: Core) -> None:
    cache = core.watch(core.cache.ResultCache(10, ROOM, 100))
    for number in range(10):
        cache.put(number, str(number), None, number, 0, 0, number)
        cache.find(number, str(number), None, number)  # so that it would go round
    for number in range(10, 15):
        cache.put(number, str(number), None, number, 0, 0, 105)
    assert (cache.expired, cache.evictions, len(cache)) == (5, 0, 10)


def test_an_epoch_ends_all(core: Core) -> None:
    cache = filled(core, 20)
    answers = [Thing() for _ in range(3)]
    refs = [weakref.ref(answer) for answer in answers]
    for number, answer in enumerate(answers):
        cache.put(number, str(number), None, answer, 0, 0, 0)
    del answers, answer
    cache.invalidate()
    assert (cache.epoch, len(cache), cache.nbytes, cache.evictions) == (1, 0, 0, 0)
    assert [ref() for ref in refs] == [None] * 3
    assert cache.put(1, "1", None, 1, 0, 0, 0) is False, "it comes from before"
    assert cache.put(1, "1", None, 1, 0, 2, 0) is False
    assert (cache.rejected, held(cache, range(20))) == (2, [])
    assert cache.put(1, "1", None, 1, 0, cache.epoch, 0) and held(cache, range(20)) == [1]


def test_one_that_is_too_large_changes_nothing(core: Core) -> None:
    cache = core.watch(core.cache.ResultCache(10, 100_000))
    assert cache.put(1, "1", None, "old", 10_000 - ENTRY, 0, 0)
    assert cache.put(1, "1", None, "new", 10_001 - ENTRY, 0, 0) is False
    assert cache.put(2, "2", None, "new", 2**62, 0, 0) is False
    assert (cache.find(1, "1", None, 0), cache.rejected, cache.nbytes) == ("old", 2, 10_000)


def test_both_bounds_hold_after_each_call(core: Core, rng: random.Random) -> None:
    for entries, max_bytes in ((1, 2000), (3, 10_000), (50, 20_000), (10, ROOM)):
        cache = core.watch(core.cache.ResultCache(entries, max_bytes, 500))
        for now in range(2000):
            number = int(rng.paretovariate(0.5)) % 200
            if cache.find(number, str(number), None, now) is core.cache.ABSENT:
                size = rng.choice((0, 0, 50, 900, 5000))
                kept = cache.put(number, str(number), None, number, size, 0, now)
                assert kept == (size + ENTRY <= max_bytes // 10)
            assert len(cache) <= entries and len(cache) * ENTRY <= cache.nbytes <= max_bytes
        cache.check()
        assert cache.hits + cache.misses == 2000 and cache.evictions > 100 and len(cache)


def test_those_that_come_once_pass_through(core: Core) -> None:
    cache = filled(core, 100)
    assert held(cache, range(100)) == [*range(100)]
    for number in range(100, 1100):
        cache.put(number, str(number), None, number, 0, 0, 0)
    assert len(held(cache, range(100))) >= 90
    assert len(cache) == 100 and cache.evictions == 1000


def test_one_that_left_and_comes_again_is_among_the_kept(core: Core) -> None:
    cache = filled(core, 100)
    for number in range(100, 150):
        cache.put(number, str(number), None, number, 0, 0, 0)
    assert held(cache, range(1)) == []
    cache.put(0, "0", None, 0, 0, 0, 0)
    for number in range(150, 240):
        cache.put(number, str(number), None, number, 0, 0, 0)
    assert held(cache, range(1)) == [0]


def test_no_entry_makes_more_than_so_many_others_go_round(core: Core) -> None:
    entries = 20 * MOST_TURNS
    cache = filled(core, entries)
    for _ in range(3):
        held(cache, range(entries))
    cache.put(-1 % 2**128, "new", None, 0, 0, 0, 0)
    assert cache.evictions == 1 and held(cache, range(MOST_TURNS + 1)) == [*range(MOST_TURNS)]


def test_what_is_held_is_let_go_with_its_entry(core: Core) -> None:
    cache = core.watch(core.cache.ResultCache(1, ROOM, 10))
    things = [(Thing(), Thing()) for _ in range(4)]
    refs = [weakref.ref(thing) for pair in things for thing in pair]
    for number, (who, value) in enumerate(things):
        cache.put(number, "same", who, value, 0, 0, 0)
    last = things[3][0]
    del things, who, value
    assert [ref() is None for ref in refs] == [True] * 6 + [False] * 2
    cache.find(3, "same", last, 10)
    del last
    assert [ref() for ref in refs] == [None] * 8 and cache.expired == 1


REFUSED: list[tuple[str, tuple[object, ...], type[Exception], str]] = [
    ("find", ("5", "a", None, 0), TypeError, "digest must be an int, got str"),
    ("find", (-1, "a", None, 0), OverflowError, "digest -1 does not fit in 128 bits without a sign"),
    ("find", (2**128, 1, None, 0), OverflowError, f"digest {2**128} does not fit in 128 bits without a sign"),
    ("find", (5, None, None, 0.5), TypeError, "content must be a str or bytes, got NoneType"),
    ("find", (5, bytearray(b"a"), None, 0), TypeError, "content must be a str or bytes, got bytearray"),
    ("find", (5, "a", None, 0.5), TypeError, "now_ns must be an int, got float"),
    ("find", (5, "a", None, 2**63), OverflowError, "now_ns 9223372036854775808 does not fit in 64 bits"),
    ("put", (None, "a", None, 0, 0, 0, 0), TypeError, "digest must be an int, got NoneType"),
    ("put", (5, 5, None, 0, 0, 0, 0), TypeError, "content must be a str or bytes, got int"),
    ("put", (5, "a", None, 0, "1", None, 0), TypeError, "nbytes must be an int, got str"),
    ("put", (5, "a", None, 0, -1, 0, 0), ValueError, "nbytes -1 is outside 0..4611686018427387904"),
    ("put", (5, "a", None, 0, 2**62 + 1, 0, 0), ValueError, f"nbytes {2**62 + 1} is outside 0..4611686018427387904"),
    ("put", (5, "a", None, 0, 2**63, 0, 0), OverflowError, "nbytes 9223372036854775808 does not fit in 64 bits"),
    ("put", (5, "a", None, 0, 0, None, None), TypeError, "epoch must be an int, got NoneType"),
    ("put", (5, "a", None, 0, 0, 2**63, 0), OverflowError, "epoch 9223372036854775808 does not fit in 64 bits"),
    ("put", (5, "a", None, 0, 0, 0, None), TypeError, "now_ns must be an int, got NoneType"),
]


@pytest.mark.parametrize(("method", "arguments", "error", "text"), REFUSED)
def test_refusals(core: Core, method: str, arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    cache = core.watch(core.cache.ResultCache(3, ROOM))
    cache.put(5, "a", None, 1, 0, 0, 0)
    with pytest.raises(error) as caught:
        getattr(cache, method)(*arguments)
    assert (type(caught.value), str(caught.value)) == (error, text)
    assert (len(cache), cache.hits, cache.misses, cache.rejected) == (1, 0, 0, 0)
    assert cache.find(5, "a", None, 0) == 1


def test_a_subclass_of_str_is_refused(core: Core) -> None:
    class Text(str):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("user code ran")

        __hash__ = str.__hash__

    cache = core.watch(core.cache.ResultCache(3, ROOM))
    for call in (lambda: cache.find(5, Text("a"), None, 0), lambda: cache.put(5, Text("a"), None, 0, 0, 0, 0)):
        with pytest.raises(TypeError, match="content must be a str or bytes, got Text"):
            call()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((0, ROOM), ValueError, f"max_entries 0 is outside 1..{2**21}"),
        ((2**21 + 1, ROOM), ValueError, f"max_entries {2**21 + 1} is outside 1..{2**21}"),
        ((1.0, ROOM), TypeError, "max_entries must be an int, got float"),
        ((1, 1479), ValueError, f"max_bytes 1479 is outside 1480..{2**62}"),
        ((1, 2**63), OverflowError, f"max_bytes {2**63} does not fit in 64 bits"),
        ((1, ROOM, -1), ValueError, f"ttl_ns -1 is outside 0..{MAX}"),
        ((1, ROOM, None), TypeError, "ttl_ns must be an int, got NoneType"),
    ],
)
def test_bad_sizes(core: Core, arguments: tuple[int, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        core.cache.ResultCache(*arguments)
    assert str(caught.value) == text


def test_the_smallest_and_a_large_one(core: Core) -> None:
    cache = core.watch(core.cache.ResultCache(1, core.cache.MIN_BYTES))
    assert cache.put(1, "a", None, 1, 0, 0, 0) and cache.put(2, "b", None, 2, 0, 0, 0)
    assert (len(cache), cache.find(2, "b", None, 0)) == (1, 2)
    large = core.cache.ResultCache(2**17, core.cache.MAX_BYTES)
    assert large.put(True, "a", None, 1, 2**58, False, 0) and large.find(1, "a", None, 0) == 1


class Calls:
    """Its finaliser does what it is told."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act
        self.me = self  # a cycle: only the collector ends it

    def __del__(self) -> None:
        self.act()


def test_finalisers_come_when_all_is_done(core: Core) -> None:
    cache = core.watch(core.cache.ResultCache(2, ROOM, 100))
    begun: list[int] = []
    seen: list[tuple[int, object]] = []

    def act() -> None:
        begun.append(1)
        cache.check()
        cache.put(99, "99", None, 1, 0, cache.epoch, 0)
        seen.append((len(cache), cache.find(99, "99", None, 0)))

    def dropped() -> Calls:
        thing = Calls(act)
        del thing.me
        return thing

    for number in range(20):  # evicted, replaced
        cache.put(number % 5, str(number), dropped() if number % 3 else None, dropped(), 0, cache.epoch, 0)
    cache.put(5, "a", None, dropped(), 0, cache.epoch, 0)
    cache.find(5, "a", None, 100)  # expired
    cache.put(5, "a", None, dropped(), 0, cache.epoch, 0)
    cache.invalidate()
    assert len(seen) == len(begun) > 20 and all(1 <= length <= 2 and found == 1 for length, found in seen)
    cache.invalidate()


def test_finalisers_that_the_collector_runs_anywhere(core: Core, rng: random.Random) -> None:
    cache = core.watch(core.cache.ResultCache(8, ROOM, 50))
    ran = [0]

    def act() -> None:
        ran[0] += 1
        number = rng.randrange(20)
        if cache.find(number, str(number), None, 0) not in (core.cache.ABSENT, number):
            ran[0] = -(10**9)
        cache.put(number, str(number), None, number, 0, cache.epoch, 0)
        if ran[0] % 7 == 0:
            cache.invalidate()

    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for now in range(3000):
            Calls(act)
            number = rng.randrange(20)
            assert cache.find(number, str(number), None, now) in (core.cache.ABSENT, number)
            Calls(act)
            cache.put(number, str(number), None, number, 0, cache.epoch, now)
            assert len(cache) <= 8
            if now % 100 == 0:
                cache.check()
                cache.invalidate()
    finally:
        gc.set_threshold(*thresholds)
    assert ran[0] > 1000


@pytest.mark.parametrize("core", ["native"], indirect=True)
def test_native_hot_path_neither_collects_nor_allocates(core: Core) -> None:
    cache = filled(core, 64)
    texts = [(number << 100, "x" * 300 + str(number)) for number in range(200)]
    for digest, text in texts:
        cache.put(digest, text, None, text, 0, 0, 0)
    gc.collect()
    collections = [generation["collections"] for generation in gc.get_stats()]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(100):
            for digest, text in texts:
                cache.find(digest, text, None, 0)
                cache.put(digest, text, None, text, 0, 0, 0)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [generation["collections"] for generation in gc.get_stats()] == collections
    assert after - before < 2000  # the loop's own last ints, and a free list


@pytest.mark.parametrize("core", ["native"], indirect=True)
@pytest.mark.parametrize("entries", [128, 1000, 1 << 12, 49_153, 98_305, 1 << 17])
def test_what_an_entry_costs_beside_its_answer(core: Core, entries: int) -> None:
    # Texts and answers come on top, as their owner counts them.
    each = (sys.getsizeof(core.cache.ResultCache(entries, ROOM)) - 1000) / entries
    print(f"{entries}: {each:.1f} bytes each, {ENTRY} counted")
    assert each <= ENTRY <= 150


@pytest.mark.parametrize(
    "spoil",
    [
        lambda shelf: shelf._free.append(0),
        lambda shelf: shelf._slots.popitem(),
        lambda shelf: shelf._digests.__setitem__(0, 77),
        lambda shelf: setattr(shelf, "nbytes", 0),
        lambda shelf: setattr(shelf, "_small_nbytes", 0),
        lambda shelf: shelf.contents.__setitem__(0, None),
        lambda shelf: shelf.values.__setitem__(shelf._free[0], 1),
        lambda shelf: shelf._hits.__setitem__(0, 4),
    ],
)
def test_check_finds_what_is_broken(spoil: Callable[[Any], object]) -> None:
    # The native struct cannot be reached from here.
    cache = pure.ResultCache(4, ROOM)
    shelf = cache._shelf
    shelf._free.reverse()
    cache.put(1, "a", None, 1, 0, 0, 0)
    cache.put(2, "b", None, 2, 0, 0, 0)
    cache.check()
    spoil(shelf)
    with pytest.raises(AssertionError, match="this is a bug in relay"):
        cache.check()


class Twins:
    """Both sides take every step; whatever one of them answers, or counts, the other must too."""

    def __init__(self, entries: int, max_bytes: int, ttl_ns: int) -> None:
        self.modules = [pure, Core("native").cache]
        self.caches = [module.ResultCache(entries, max_bytes, ttl_ns) for module in self.modules]

    def both(self, method: str, *arguments: object) -> Any:
        one, two = (getattr(cache, method)(*arguments) for cache in self.caches)
        if one is pure.ABSENT:
            assert two is self.modules[1].ABSENT, (method, arguments)
        else:
            assert one is two, (method, arguments)
        assert self.counts(0) == self.counts(1), (method, arguments)
        return one

    def counts(self, side: int) -> Counts:
        c = self.caches[side]
        return (len(c), c.nbytes, c.epoch, c.hits, c.misses, c.evictions, c.rejected, c.expired)

    def check(self) -> None:
        for cache in self.caches:
            cache.check()


def walk(rng: random.Random, steps: int) -> Counts:
    entries, max_bytes = rng.choice((1, 2, 9, 30, 100)), rng.choice((3000, 20_000, ROOM))
    twins = Twins(entries, max_bytes, rng.choice((0, 0, 200, 5000)))
    whos: list[object] = [None, Thing(), Thing()]
    contents: list[str | bytes] = [str(number) for number in range(200)] + [b"%d" % number for number in range(50)]
    digests = [rng.getrandbits(128) for _ in contents]
    for _ in range(20):  # some meet others
        digests[rng.randrange(len(digests))] = rng.choice(digests)
    ranks = [1 / (rank + 1) for rank in range(len(contents))]
    now = 0
    for step in range(steps):
        if step % 5000 == 0:
            rng.shuffle(ranks)
            drawn = iter(rng.choices(range(len(contents)), ranks, k=5000))
        number = next(drawn)
        key = digests[number], contents[number], whos[0] if rng.random() < 0.9 else rng.choice(whos)
        now += rng.randrange(3)
        if twins.both("find", *key, now) is pure.ABSENT and rng.random() < 0.8 or rng.random() < 0.05:
            epoch = twins.caches[0].epoch - (rng.random() < 0.01)
            size = rng.choice((0, 10, 50, 300)) if rng.random() < 0.99 else max_bytes
            twins.both("put", *key, (key, step), size, epoch, now)
        if rng.random() < 0.0003:
            twins.both("invalidate")
        if step % 2000 == 0:
            twins.check()
            for digest, content in zip(digests, contents, strict=True):
                twins.both("find", digest, content, None, now)
    return twins.counts(0)


def test_twins(rng: random.Random) -> None:
    total = [0] * 8
    for _ in range(10):
        total = [a + b for a, b in zip(total, walk(rng, 10_000), strict=True)]
    print(total)
    assert min(total) > 0, "something has never come about"


@pytest.mark.long
def test_twins_long(rng: random.Random) -> None:
    for _ in range(60):
        walk(rng, 20_000)


CALLS = st.one_of(
    st.tuples(st.just("find"), st.integers(0, 5), st.sampled_from(["a", "b", b"a"]), st.none(), st.integers(0, 20)),
    st.tuples(
        st.just("put"), st.integers(0, 5), st.sampled_from(["a", "b", b"a"]), st.none(), st.integers(0, 3),
        st.sampled_from([0, 1, 100, 200, 10_000]), st.sampled_from([0, 0, 1]), st.sampled_from([0, 5, NEVER_NS]),
    ),
    st.tuples(st.just("invalidate")),
)  # fmt: skip


@given(st.sampled_from([1, 2, 3]), st.sampled_from([1480, 4000]), st.sampled_from([0, 3]), st.lists(CALLS, max_size=60))
@settings(max_examples=150)
def test_twins_of_every_kind(entries: int, max_bytes: int, ttl_ns: int, calls: list[tuple[Any, ...]]) -> None:
    twins = Twins(entries, max_bytes, ttl_ns)
    for method, *arguments in calls:
        twins.both(method, *arguments)
        twins.check()
