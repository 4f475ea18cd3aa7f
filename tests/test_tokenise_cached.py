"""Texts that were tokenised before: they are ready at once, and nothing else about them is different."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import Core

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


class Letters:
    """One id a letter, between 1 and 2. It says what it was asked for, and can be held."""

    pad_id, has_segments, vocab_size = 0, True, 0x110000

    def __init__(self, held: bool = False, longest: int = 64) -> None:
        self.max_length = longest
        self.fingerprint = "letters"
        self.asked: list[Any] = []
        self.chunks: list[int] = []
        self.entered, self.go = threading.Semaphore(0), threading.Event()
        self.shift = 0
        if not held:
            self.go.set()

    def check(self, item: object) -> None:
        pass

    def reserve(self, item: Any) -> int:
        return min(len(item) + 2, self.max_length)

    def encode(self, items: Any) -> list[Any]:
        self.asked += items
        self.chunks.append(len(items))
        self.entered.release()
        assert self.go.wait(30)
        return [self.one(item) for item in items]

    def one(self, item: Any) -> Any:
        if item == "bad":
            return ValueError("bad")
        if isinstance(item, tuple):
            first, second = item
            return [1, *map(ord, first), 2, *map(ord, second), 2], len(first) + 2
        if not isinstance(item, str):
            return list(item), -1
        return [1, *(ord(c) + self.shift for c in item), 2][: self.max_length], -1


@pytest.fixture
def letters() -> Any:
    made: list[Letters] = []

    def make(**options: Any) -> Letters:
        made.append(Letters(**options))
        return made[-1]

    yield make
    for each in made:
        each.go.set()


def rows(batch: Any) -> list[Any]:
    """Each row's ids, and how many of them are of the first segment."""
    found = []
    for ids, kinds, n in zip(batch.input_ids, batch.token_type_ids, batch.lengths, strict=True):
        found.append((ids[:n].tolist(), int(n - kinds[:n].sum())))
    return found


def row(text: str) -> tuple[list[int], int]:
    return [1, *map(ord, text), 2], len(text) + 2


def cache_of(r: Any) -> Any:
    return r._desk._preparing._known.cache()


def test_a_hit_needs_no_helper(lab: Lab, letters: Any) -> None:
    tokenizer = letters()
    r = lab.start(rows, tokenizer=tokenizer)
    assert r("hello") == row("hello") and tokenizer.asked == ["hello"]
    put = r._desk._preparing.helpers.put
    r._desk._preparing.helpers.put = None  # whoever calls it now fails
    ticket = r.submit("".join(["hel", "lo"]))
    assert ticket.result(30) == row("hello") and ticket.size == 7
    assert r.submit_many(["hello"] * 3).result(30) == [row("hello")] * 3
    timing = ticket.timing
    assert 0 <= timing.prepare <= timing.total
    r._desk._preparing.helpers.put = put
    assert r("other") == row("other") and tokenizer.asked == ["hello", "other"]
    seen = r.snapshot()
    assert (seen.ids_hits, seen.ids_misses, seen.ids_evictions) == (4, 2, 0) and seen.ids_bytes > 0
    cache_of(r).check()
    lab.idle(r)


def test_a_hit_is_ready_before_submit_returns(lab: Lab, letters: Any) -> None:
    clock, tokenizer, model = lab.clock(), letters(), lab.model(held=True)
    r = lab.start(lambda batch: model(batch.items), tokenizer=tokenizer, clock=clock)
    first = r.submit("a")
    model.wait_until_running()
    tickets = [r.submit("a"), r.submit_many(["a", "a"])]
    assert r.snapshot().queued == 3  # though time stands still, and no helper has been asked
    model.free()
    assert first.result(30) == "a" and tickets[1].result(30) == ["a", "a"]
    assert tickets[0].timing.prepare == 0


def test_cached_members_of_a_group_run_together(lab: Lab, letters: Any) -> None:
    sizes: list[int] = []

    def model(batch: Any) -> list[int]:
        sizes.append(len(batch.items))
        return [0] * len(batch.items)

    r = lab.start(model, tokenizer=letters())
    texts = [f"text {i}" for i in range(20)]
    r.submit_many(texts).result(30)
    for _ in range(5):
        sizes.clear()
        r.submit_many(texts).result(30)
        assert sizes == [20]


def test_off(lab: Lab, letters: Any) -> None:
    tokenizer = letters()
    r = lab.start(rows, tokenizer=tokenizer, limits=lab.Limits(ids_cache_bytes=0))
    assert [r("a"), r("a")] == [row("a")] * 2
    assert tokenizer.asked == ["a", "a"]
    seen = r.snapshot()
    assert (seen.ids_hits, seen.ids_misses, seen.ids_evictions, seen.ids_bytes) == (0, 0, 0, 0)


@pytest.mark.parametrize("size", [-1, 1, 1023, 2**32 + 1, 1.5])
def test_bad_sizes(lab: Lab, size: Any) -> None:
    with pytest.raises(ValueError, match="ids_cache_bytes must be "):
        lab.Limits(ids_cache_bytes=size)


def test_tenants_stay_apart(lab: Lab, letters: Any) -> None:
    tokenizer = letters()
    r = lab.start(rows, tokenizer=tokenizer)
    for tenant in (None, "a", "b", "a", None, "b"):
        assert r.submit("text", tenant=tenant).result(30) == row("text")
    assert tokenizer.asked == ["text"] * 3
    assert (r.snapshot().ids_hits, r.snapshot().ids_misses) == (3, 3)


def test_a_burst_of_one_text_is_encoded_once(lab: Lab, letters: Any) -> None:
    tokenizer = letters(held=True)
    r = lab.start(rows, tokenizer=tokenizer, merge=False, limits=lab.Limits(helper_threads=1))
    first = r.submit("plug")
    assert tokenizer.entered.acquire(timeout=30)
    tickets = [r.submit("same" if i % 2 else str(i)) for i in range(40)]
    tickets += [r.submit("same", tenant="other") for _ in range(3)]
    tokenizer.go.set()
    assert [ticket.result(30)[0][1:-1] for ticket in tickets] == [
        [*map(ord, "same" if i % 2 else str(i))] for i in range(40)
    ] + [[*map(ord, "same")]] * 3
    assert first.done() and tokenizer.asked.count("same") == 2  # once for each of the two it belongs to
    seen = r.snapshot()
    assert (seen.ids_hits, seen.ids_misses) == (19 + 2, 1 + 20 + 2)
    lab.idle(r)


def test_a_text_put_in_by_the_chunk_before_is_copied(lab: Lab, letters: Any) -> None:
    tokenizer = letters(held=True)
    r = lab.start(rows, tokenizer=tokenizer, limits=lab.Limits(helper_threads=1))
    one = r.submit("text")
    assert tokenizer.entered.acquire(timeout=30)
    two = r.submit("text")  # not known yet; by the time its turn comes it is
    tokenizer.go.set()
    assert one.result(30) == two.result(30) == row("text") and tokenizer.asked == ["text"]
    assert (r.snapshot().ids_hits, r.snapshot().ids_misses) == (1, 1)


def test_bad_texts_fail_each_by_itself(lab: Lab, letters: Any) -> None:
    tokenizer = letters(held=True)
    r = lab.start(rows, tokenizer=tokenizer, limits=lab.Limits(helper_threads=1))
    plug = r.submit("plug")
    assert tokenizer.entered.acquire(timeout=30)
    tickets = [r.submit(text) for text in ("bad", "good", "bad", "good")]
    tokenizer.go.set()
    errors = [ticket.exception(30) for ticket in tickets]
    assert [repr(error) for error in errors] == ["ValueError('bad')", "None"] * 2 and errors[0] is not errors[2]
    assert plug.result(30) == row("plug")
    assert cache_of(r).entries == 2
    with pytest.raises(ValueError, match="bad"):
        r("bad")
    lab.idle(r)


def test_pairs_and_ids_take_the_long_way(lab: Lab, letters: Any) -> None:
    tokenizer = letters()
    r = lab.start(rows, tokenizer=tokenizer)
    for _ in range(2):
        assert r(("ab", "c")) == ([1, 97, 98, 2, 99, 2], 4)
        assert r([5, 6, 7]) == ([5, 6, 7], 3)
    assert len(tokenizer.asked) == 4 and cache_of(r).entries == 0
    assert (r.snapshot().ids_hits, r.snapshot().ids_misses) == (0, 0)


def test_what_was_prepared_is_looked_up(lab: Lab, letters: Any) -> None:
    tokenizer = letters()
    r = lab.start(rows, tokenizer=tokenizer, prepare=lambda item: item["text"])
    assert [r({"text": "a"}), r({"text": "a"}), r({"text": "b"})] == [row("a"), row("a"), row("b")]
    assert tokenizer.asked == ["a", "b"] and r.snapshot().ids_hits == 1


def test_a_changed_tokenizer_is_not_answered_for(lab: Lab, letters: Any) -> None:
    tokenizer = letters()
    r = lab.start(rows, tokenizer=tokenizer)
    assert r("a") == row("a")
    tokenizer.shift, tokenizer.fingerprint = 1, "shifted"
    assert r("a") == r("a") == ([1, 98, 2], 3)
    assert tokenizer.asked == ["a", "a"]
    tokenizer.shift, tokenizer.fingerprint = 0, "letters"
    assert r("a") == row("a") and len(tokenizer.asked) == 3


def test_ids_of_a_tokenizer_that_changes_meanwhile_are_not_kept(lab: Lab, letters: Any) -> None:
    tokenizer = letters(held=True)
    r = lab.start(rows, tokenizer=tokenizer, limits=lab.Limits(helper_threads=1))
    ticket = r.submit("a")
    assert tokenizer.entered.acquire(timeout=30)
    tokenizer.shift, tokenizer.fingerprint = 1, "shifted"
    tokenizer.go.set()
    ticket.result(30)
    assert r("a") == ([1, 98, 2], 3) and tokenizer.asked == ["a", "a"]


def test_too_large_for_any_batch(lab: Lab, letters: Any) -> None:
    """What is known to be too large fails as it did when it was not."""
    tokenizer = letters()
    r = lab.start(rows, tokenizer=tokenizer, max_batch_tokens=10)
    cache_of(r).put("x" * 9, None, [1] * 11)
    for text in ("x" * 9, "y" * 9, "y" * 9):
        with pytest.raises(relay.TooLarge, match="has 11 input ids, .* at most max_batch_tokens=10"):
            r(text)
    assert r("x" * 8) == r("x" * 8) == row("x" * 8)
    lab.idle(r)


def test_no_room_for_the_ids(lab: Lab, letters: Any) -> None:
    tokenizer, model = letters(), lab.model(held=True)

    def held(batch: Any) -> Any:
        return model(batch.items)

    r = lab.start(held, tokenizer=tokenizer, limits=lab.Limits(max_ids=128, max_batch_size=1))
    cache_of(r).put("short", None, [7] * 60)  # more than its length promises: two blocks, and one was reserved
    running = r.submit("r" * 60)
    model.wait_until_running()
    more = r.submit("m" * 20)
    lab.wait_until(lambda: r.snapshot().queued == 1)
    tokenizer.one = lambda item: ([7] * 60, -1)
    error = r.submit("short").exception(30)
    assert isinstance(error, relay.Overloaded) and "no room for 60 input ids" in str(error)
    model.free()
    assert running.result(30) == "r" * 60 and more.result(30) == "m" * 20
    lab.idle(r)


def test_dropped_between_the_place_and_the_row(lab: Lab, letters: Any) -> None:
    """Cancelled, expired or closed while it is pinned, whichever way it goes on."""
    clock, tokenizer = lab.clock(), letters()
    r = lab.start(rows, tokenizer=tokenizer, clock=clock)
    assert r("a") == row("a")
    put = r._desk._preparing.put
    made: list[Any] = []

    def cancel_first(ticket: Any) -> None:
        made.append(ticket)
        ticket.cancel()
        put(ticket)

    r._desk._preparing.put = cancel_first
    assert isinstance(r.submit("a").exception(30), relay.RequestCancelled)

    def expire_first(ticket: Any) -> None:
        made.append(ticket)
        clock.advance(2)
        assert isinstance(ticket.exception(30), relay.DeadlineExceeded)
        put(ticket)

    r._desk._preparing.put = expire_first
    assert isinstance(r.submit("a", deadline=1).exception(30), relay.DeadlineExceeded)
    r._desk._preparing.put = put
    lab.wait_until(lambda: r.snapshot().admitted == 0)
    assert len(made) == 2 and r("a") == row("a")
    lab.idle(r)


def test_merged_requests_share_a_cached_row(lab: Lab, letters: Any) -> None:
    tokenizer, model = letters(), lab.model(held=True)
    r = lab.start(lambda batch: model(batch.items), tokenizer=tokenizer, merge=True)
    plug = r.submit("a")
    model.wait_until_running()
    r._desk.queue.unbind(plug._handle)
    leader, follower = r.submit("a"), r.submit("a")
    assert leader.cancel()
    model.free()
    assert follower.result(30) == "a" and plug.result(30) == "a" and tokenizer.asked == ["a"]
    lab.idle(r)


class Text(str):
    """Not a plain str: it may say that it equals anything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


def test_what_is_no_plain_text_is_not_looked_up(lab: Lab, letters: Any) -> None:
    tokenizer = letters(longest=100)
    tokenizer.one = lambda item: ([1, *map(ord, item), 2][:100], -1)
    r = lab.start(rows, tokenizer=tokenizer)
    assert r("a") == row("a")
    assert r(Text("b")) == row("b")
    assert r.submit("a", tenant=5).result(30) == row("a")
    assert r("x" * 70_000) == r("x" * 70_000)  # too long to be hashed while somebody waits
    assert len(tokenizer.asked) == 5 and cache_of(r).entries == 1


def test_long_texts_are_encoded_by_themselves_and_last(lab: Lab, letters: Any) -> None:
    tokenizer = letters(held=True)
    r = lab.start(rows, tokenizer=tokenizer, limits=lab.Limits(helper_threads=1))
    plug = r.submit("plug")
    assert tokenizer.entered.acquire(timeout=30)
    texts = ["x" * 20_000, "a", "y" * 9_000, "b", ("c" * 5_000, "d" * 5_000)]
    tokenizer.one = lambda item: ([1], -1)
    tickets = [r.submit(text) for text in texts]
    tokenizer.go.set()
    for ticket in (plug, *tickets):
        ticket.result(30)
    assert tokenizer.asked == ["plug", "a", "b", texts[0], texts[2], texts[4]]
    assert tokenizer.chunks == [1, 2, 1, 1, 1]


def test_chunks_end_where_their_texts_are_many_characters(lab: Lab, letters: Any) -> None:
    tokenizer = letters(held=True)
    r = lab.start(rows, tokenizer=tokenizer, limits=lab.Limits(helper_threads=1))
    tokenizer.one = lambda item: ([1], -1)
    plug = r.submit("plug")
    assert tokenizer.entered.acquire(timeout=30)
    tickets = [r.submit(str(i).ljust(4000)) for i in range(20)]
    tokenizer.go.set()
    for ticket in (plug, *tickets):
        ticket.result(30)
    assert tokenizer.chunks == [1, 5, 5, 5, 5]


def test_an_evicted_text_is_encoded_again(lab: Lab, letters: Any) -> None:
    tokenizer = letters()
    r = lab.start(rows, tokenizer=tokenizer, limits=lab.Limits(ids_cache_bytes=1024))
    texts = [f"text {i}" for i in range(30)]
    for _ in range(2):
        assert [r(text) for text in texts] == [row(text) for text in texts]
    seen = r.snapshot()
    assert seen.ids_hits + seen.ids_misses == 60 and len(tokenizer.asked) == seen.ids_misses
    assert seen.ids_evictions + cache_of(r).entries == seen.ids_misses
    cache_of(r).check()


def test_a_queue_fetches_rows_and_makes_them_ready_together(core: Core) -> None:
    """The row's length is what the request counts for, and a lane is woken once all of them are in line."""
    woken: list[int] = []
    queue = core.queue.RequestQueue(4, 256, 64, lambda lane: woken.append(len(queue.take(4, 100, 9)[0])))
    core.watch(queue)
    cache = core.watch(core.idcache.IdCache(1024))
    cache.put("a", None, [1, 2, 3])
    handles = [queue.admit(object(), key, 0, ids=3) for key in range(3)]
    assert [queue.fetch(cache, handle, "a") for handle in handles] == [3, 3, 3]
    assert queue.fetch(cache, handles[0], "b", None, True) == -1
    assert queue.fetch(cache, handles[0], "a", most=2) == -2
    assert [queue.arena.facts(handle)["cost"] for handle in handles] == [3, 3, 3]
    with pytest.raises(TypeError, match="cache must be an IdCache, got NoneType"):
        queue.fetch(None, handles[0], "a")
    queue.cancel(handles[1])
    assert queue.park(0, 2)
    assert queue.ready_all(handles, 7) == 2 and woken == [2]
    assert queue.ready_all(handles, 8) == 0 and len(queue) == 2


def rows_of(core: Core, capacity: int = 8, ids: int = 1024, longest: int = 64) -> tuple[Any, Any, list[int]]:
    """A queue, a cache, and the handles of requests that wait for their ids."""
    queue, cache = core.watch(core.queue.RequestQueue(capacity, ids, longest)), core.watch(core.idcache.IdCache(4096))
    return queue, cache, [queue.admit(f"owner {key}", key, 0, ids=8) for key in range(capacity)]


def test_rows_of_many_are_written_and_kept(core: Core) -> None:
    """Whatever is no good is left to `write`, which says why, and nobody beside it notices."""
    queue, cache, handles = rows_of(core)
    good = ([1, 2, 3], -1)
    rows = [good, ValueError("bad"), ([4, 5], 1), ([6, "7"], -1), ([8], 2), [[9], -1], (list(range(6)), -1), ((), -1)]
    texts = ["a", "b", "c", "d", "e", "f", "g", ""]
    lengths = queue.write_all(cache, handles, rows, texts, ["x"] * 8, 5)
    assert lengths == [3, -2, 2, -2, -2, -2, -2, 0]
    facts = [queue.arena.facts(handle) for handle in handles]
    assert [fact["cost"] for fact in facts] == [3, 1, 2, 1, 1, 1, 1, 1] and facts[2]["split"] == 1
    assert queue.arena.ids(handles[0]) == [1, 2, 3] and cache.entries == 3
    assert queue.write_all(None, handles[1:2], [good], ["a"], [None]) == [3] and cache.entries == 3
    assert queue.fetch(cache, handles[3], "c", "x") == 2 and queue.arena.facts(handles[3])["split"] == 1
    assert queue.write_all(cache, [], [], [], []) == []


def test_what_a_tokenizer_gave_is_kept_whatever_becomes_of_the_row(core: Core) -> None:
    queue, cache, handles = rows_of(core, 4, 256)
    queue.cancel(handles[0])  # it is pinned: freed by `ready`
    long = ([7] * 64, -1)  # one block is reserved for each, and a row of 64 ids takes two
    lengths = queue.write_all(cache, handles[:2], [long, ([7] * 33, -1)], ["dropped", "no room"], [None, None])
    assert lengths[0] == -2 and cache.entries == 2
    assert queue.write_all(cache, [handles[2]], [([1] * 65, -1)], ["longer than any row"], [None]) == [-2]
    assert queue.ready(handles[3], 1)
    assert queue.write_all(cache, [handles[3]], [([1], -1)], ["not pinned"], [None]) == [-2]
    assert queue.write_all(cache, [handles[2]], [([1], -1)], ["x" * 65_537], [None]) == [1]
    assert queue.write_all(cache, [handles[2]], [([1], -1)], [Text("no str")], [None]) == [1]
    assert queue.write_all(cache, [handles[2]], [([1], -1)], ["of nobody known"], [5]) == [1]
    assert cache.entries == 2 and queue.fetch(cache, handles[2], "dropped", most=64) == 64


def test_rows_of_many_are_fetched(core: Core) -> None:
    queue, cache, handles = rows_of(core)
    cache.put("a", None, [1, 2, 3])
    cache.put("a", "x", [1, 2])
    texts = ["a", "b", "a", "b", Text("a"), ("a", "b"), "b", "a"]
    whos = [None, None, "x", None, None, None, "x", 5]
    lengths = queue.fetch_all(cache, handles, texts, whos)
    assert lengths == [3, -1, 2, core.queue.SEEN, *[core.queue.NOT_KEPT] * 2, -1, core.queue.NOT_KEPT]
    assert (cache.hits, cache.misses) == (2, 2)
    assert [queue.arena.facts(handle)["cost"] for handle in handles[:3]] == [3, 1, 2]
    assert queue.fetch_all(cache, handles[:3], ["a", "b", "a"], [None] * 3, True, 2) == [-2, -1, core.queue.SEEN]
    assert (cache.hits, cache.misses) == (2, 2)
    assert queue.fetch_all(None, handles, texts, whos) == [core.queue.NOT_KEPT] * 8
    assert queue.fetch_all(cache, [], [], []) == []


def test_what_cannot_be_written_or_fetched_at_all(core: Core) -> None:
    queue, cache, handles = rows_of(core, 2)
    for method, lists in (("write_all", ("rows", "texts", "whos")), ("fetch_all", ("texts", "whos"))):
        call = getattr(queue, method)
        good: list[Any] = [[("x", -1)] * 2 if name == "rows" else ["x"] * 2 for name in lists]
        for place, name in enumerate(lists):
            short = [*good[:place], ["x"], *good[place + 1 :]]
            with pytest.raises(ValueError, match=f"^1 {name} were given for 2 handles; give one for each$"):
                call(cache, handles, *short)
        with pytest.raises(TypeError, match="^cache must be an IdCache, got str$"):
            call("cache", handles, *good)
        with pytest.raises(ValueError, match="^most "):
            call(cache, handles, *good, most=-1)
    with pytest.raises(TypeError, match="^handle must be an int, got str$"):
        queue.write_all(cache, ["x"], [([1], -1)], ["a"], [None])
    queue.ready(handles[0], 1)
    cache.put("a", None, [1])
    with pytest.raises(ValueError, match="is not pinned"):
        queue.fetch_all(cache, handles, ["a", "a"], [None, None])


def test_twins_write_and_fetch_alike(rng: random.Random) -> None:
    """Both sides, given the same rows, write and keep the same of them, and find the same again."""
    sides = [Core("pure"), Core("native")]
    queues, caches, handles = zip(*(rows_of(core, 30, 1024) for core in sides), strict=True)
    assert handles[0] == handles[1]
    choices: list[Any] = [None, ValueError(), ([1, 2], 5), ([2**31], -1), ([], -1), (np.arange(3), -1), ((1, 2), 0)]
    for _ in range(200):
        some = rng.sample(handles[0], rng.randrange(12))
        rows = [rng.choice(choices) if rng.random() < 0.3 else ([rng.randrange(1 << 20)] * rng.randrange(70), -1)
                for _ in some]  # fmt: skip
        texts = [rng.choice([None, ("a", "b"), *map(str, range(40))]) for _ in some]
        whos = [rng.choice([None, "who", "other", 3]) for _ in some]
        most = rng.choice([16384, 40])
        told = [q.write_all(c, some, rows, texts, whos, most) for q, c in zip(queues, caches, strict=True)]
        assert told[0] == told[1]
        rng.shuffle(texts)
        told = [q.fetch_all(c, some, texts, whos, most < 50, most) for q, c in zip(queues, caches, strict=True)]
        assert told[0] == told[1]
        seen = [(c.hits, c.misses, c.evictions, c.entries, c.nbytes) for c in caches]
        assert seen[0] == seen[1]
        facts = [[q.arena.facts(handle) for handle in some] for q in queues]
        assert facts[0] == facts[1]
        assert [queues[0].arena.ids(handle) for handle in some] == [queues[1].arena.ids(handle) for handle in some]
    for each in (*queues, *caches):
        each.check()
    for core in sides:
        core.check()
