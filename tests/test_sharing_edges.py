"""What one caller does to his answer is nobody else's; and hits, joins and runs of every kind in one group, one split
batch, one random script, which comes out the same on both sides."""

from __future__ import annotations

import gc
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from both import Lab, package

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["both"]

CACHE = 1 << 20
NAN = float("nan")


class Own:
    """A value of a class that nothing is known of."""


def spoil(value: Any) -> None:
    """Change whatever can be changed in an answer."""
    if type(value) in (list, tuple):
        for part in value:
            spoil(part)
    if type(value) is dict:
        for part in value.values():
            spoil(part)
        value["spoilt"] = 1
    elif type(value) is list:
        value.append("spoilt")
    elif type(value) is set:
        value.add("spoilt")
    elif type(value) is bytearray:
        value.extend(b"spoilt")
    elif type(value) is np.ndarray and value.flags.writeable:
        value[:] = 666


ROWS: list[Callable[[], Any]] = [
    lambda: [1, [2]],
    lambda: [NAN, 1.0],
    lambda: ([NAN],),
    lambda: [[[[1]]]],
    lambda: {"a": [1], "b": NAN},
    lambda: {"a": np.ones(2), "b": Own},
    lambda: np.ones(3),
    lambda: np.array([NAN]),
    lambda: np.array([None, 1], object),
    lambda: (np.ones(2), np.zeros(2)),
    lambda: (np.array([NAN]), {1: [2]}),
    lambda: {1, 2},
    lambda: bytearray(b"ab"),
    lambda: [Own, [1]],
]


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_what_one_does_to_his_answer_is_nobody_elses(lab: Lab, number: int) -> None:
    model = lab.model(lambda item: ROWS[number]())
    r = lab.start(model, cache_bytes=CACHE)
    with lab.testing.paused(r, model, "plug"):
        tickets = [r.submit("x") for _ in range(3)]
        group = r.submit_many(["x", "x"])
    answers = [ticket.result(30) for ticket in tickets] + group.result(30) + [r("x") for _ in range(3)]
    while answers:
        spoil(answers.pop())
        for answer in (*answers, r("x")):
            assert repr(answer) == repr(ROWS[number]())
    lab.idle(r)


def test_a_group_of_hits_joins_and_runs(lab: Lab) -> None:
    model = lab.model(lambda item: [item])
    r = lab.start(model, cache_bytes=CACHE)
    r("hit")
    with lab.testing.paused(r, model, "plug"):
        joined = r.submit("join")
        items = ["hit", "a", "a", "join", "b", "hit", "a"]
        group = r.submit_many(items)
    answers = group.result(30)
    assert answers == [[item] for item in items] and joined.result(30) == ["join"]
    assert len(set(map(id, answers))) == len(items), "each is his own"
    told = r.snapshot().sharing
    assert (told.hits, told.misses, told.joins) == (2, 5, 3) and model.batches[-1] == ["join", "a", "b"]
    lab.idle(r)


def test_parts_of_a_split_batch_are_kept(lab: Lab) -> None:
    plug = lab.model()
    runs: list[list[str]] = []

    def model(items: list[str]) -> list[Any]:
        runs.append(items)
        if "bad" in items:
            raise LookupError("bad")
        return [[each] for each in plug(items)]

    r = lab.start(model, cache_bytes=CACHE)
    with lab.testing.paused(r, plug, "plug"):
        tickets = {name: [r.submit(name), r.submit(name)] for name in ("a", "b", "bad", "c", "d")}
    for name, pair in tickets.items():
        errors = [ticket.exception(30) for ticket in pair]
        if name == "bad":
            assert all(type(error) is LookupError for error in errors) and errors[0] is not errors[1]
        else:
            assert [ticket.result(30) for ticket in pair] == [[name]] * 2
    before = len(runs)
    assert [r(name) for name in "abcd"] == [[name] for name in "abcd"] and len(runs) == before
    with pytest.raises(LookupError):
        r("bad")
    assert len(runs) == before + 1
    lab.idle(r)


def outcomes(side: str, seed: int) -> tuple[list[str], dict[str, int]]:
    """How the requests of a random script end on one side, and what was counted."""
    lab, rng, told = Lab(package(side)), random.Random(seed), list[str]()
    model = lab.model(lambda item: LookupError(item) if item == "k3" else [NAN if item == "k4" else item])
    clock = lab.clock()
    r = lab.start(
        lambda items, **params: model(items),
        cache_bytes=CACHE, cache_ttl=5.0, clock=clock, max_queue=12, limits=lab.Limits(max_followers=3),
    )  # fmt: skip
    for _ in range(20):
        tickets: list[Any] = []
        with lab.testing.paused(r, model, 1.5):  # which is never shared
            for _ in range(rng.randrange(25)):
                key, act = f"k{rng.randrange(9)}", rng.randrange(12)
                request: dict[str, Any] = {
                    "tenant": rng.choice([None, None, "a"]),
                    "priority": rng.choice([0, 1, 1, 2]),
                    "deadline": rng.choice([None, None, 100.0]),
                    "params": rng.choice([None, {"p": 1}]),
                }
                try:
                    if act < 7:
                        tickets.append(r.submit(key, **(request if act < 6 else {})))
                    elif act < 9:
                        several = [f"k{rng.randrange(9)}" for _ in range(rng.randrange(1, 6))]
                        tickets.append(r.submit_many(several, return_exceptions=True, **request))
                    elif act < 10 and tickets:
                        told.append(str(rng.choice(tickets).cancel()))
                    elif not rng.randrange(8):
                        r.invalidate()
                except lab.Overloaded as error:
                    told.append(f"{error.reason}")
        for ticket in tickets:
            failure = ticket.exception(30)
            told.append(repr(failure) if failure is not None else repr(ticket.result()))
        if not rng.randrange(4):
            clock.advance(rng.choice([1, 3, 6]))
    lab.idle(r)
    seen = r.snapshot()
    shared = seen.sharing
    counted = {name: getattr(shared, name) for name in ("hits", "misses", "joins", "entries", "evictions", "expired")}
    counted |= {name: getattr(seen, name) for name in ("cancelled", "refused", "displaced", "merged")}
    lab.end()
    return told, counted


def test_a_random_script_ends_the_same_on_both_sides(rng: random.Random) -> None:
    for _ in range(10):
        seed = rng.getrandbits(32)
        pure, native = outcomes("pure", seed), outcomes("native", seed)
        assert pure == native, f"script {seed}"
        assert min(pure[1][name] for name in ("hits", "misses", "joins")) > 0


def test_a_finaliser_may_invalidate(lab: Lab) -> None:
    """Of a parameter that only a kept answer holds: it runs in the middle of another `invalidate`."""
    done: list[int] = []

    class Adapter:
        def __del__(self) -> None:
            r.invalidate()
            done.append(1)

    r = lab.start(lambda items, **params: list(items), cache_bytes=1 << 20)
    assert r("x", params={"adapter": Adapter()}) == "x"
    r.invalidate()
    gc.collect()
    assert done and r("x") == "x" and r("x") == "x" and r.snapshot().sharing.entries == 1
    lab.idle(r)


def test_parameters_and_tenants_are_paid_for(lab: Lab) -> None:
    r = lab.start(lambda items, **params: list(items), cache_bytes=1 << 20)
    for i in range(200):
        r("x", params={"system": f"{i}" + "s" * 20_000})
        r("x", tenant=f"{i}" + "t" * 20_000)
    shared = r.snapshot().sharing
    assert 5 < shared.entries < 60 and shared.nbytes <= 1 << 20 and shared.evictions > 300
    lab.idle(r)


def test_who_makes_his_array_writable_again_changes_his_own(lab: Lab) -> None:
    def model(items: list[Any]) -> list[Any]:
        row = np.array([1.0, 2.0])
        row.flags.writeable = False
        return [row for _ in items]

    waiting = lab.model(held=True)
    r = lab.start(lambda items: waiting(items) and model(items), merge=True)
    r.submit("plug")
    waiting.wait_until_running()
    first, second = r.submit("x"), r.submit("x")
    waiting.free()
    one, two = first.result(30), second.result(30)
    one.setflags(write=True)
    one[0] = 9.0
    assert two[0] == 1.0
    lab.idle(r)
