"""Identities: one object for all requests that are alike but for their content, and none for what nobody asks for."""

from __future__ import annotations

import enum
import gc
import os
import random
import sys
import threading
import tracemalloc
import weakref
from typing import Any

import pytest
from near_values import again, any_value, near, tell

from relay.alike import Identities, as_share_ignore
from relay.identity import intern_params


def test_equal_ones_are_one_object() -> None:
    identities = Identities()
    params = intern_params({"k": 1, "j": "x"})
    found = [identities.of(params, "a"), identities.of(params, None), identities.of(None, "a"), identities.of(None, "")]
    assert None not in found and len(set(map(id, found))) == 4 == len(identities)
    assert len({each.number for each in found if each is not None}) == 4
    assert all(each is not None and 0 < each.number < 2**63 for each in found)
    same = intern_params({"j": "".join("x"), "k": 1})
    assert [identities.of(same, "".join("a")), identities.of(same, None), identities.of(None, "a")] == found[:3]
    assert identities.of(None, None) is None is identities.of(intern_params({}), None)


def test_numbers_are_unique_over_all_relays() -> None:
    several = [Identities() for _ in range(3)]
    found = [each.of(None, tenant) for each in several for tenant in ("a", "b")]
    assert len({each.number for each in found if each is not None}) == 6


def test_tenants_are_compared_as_text() -> None:
    identities = Identities()
    names = ["", "a", "A", "b", "\u0430", "a ", "a\u200b", "caf\u00e9", "cafe\u0301", "None", "\ud800", "a\0"]
    found = [identities.of(None, name) for name in names]
    assert len(set(map(id, found))) == len(names)

    class Liar(str):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return hash("a")

    class Name(enum.StrEnum):
        A = "a"

    assert identities.of(None, Liar("b")) is found[3] and identities.of(None, Name.A) is found[1]
    for params in (None, intern_params({"k": 1})):
        for tenant in (1, b"a", ("a",), True):
            with pytest.raises(TypeError, match=f"tenant must be a str, got {type(tenant).__name__}; name it by text"):
                identities.of(params, tenant)  # type: ignore[arg-type]


def test_a_tenant_is_never_taken_for_parameters() -> None:
    identities = Identities()
    params = intern_params({"a": 1})
    kept = [identities.of(params, None), identities.of(None, str(params)), identities.of(params, "a")]
    assert len(set(map(id, kept))) == 3


def test_across_tenants() -> None:
    identities = Identities(share_across_tenants=True)
    params = intern_params({"k": 1})
    assert identities.of(None, "a") is None and identities.of(params, "a") is identities.of(params, "b") is not None
    assert identities.of(params, "a") is identities.of(params, None)


def test_what_is_ignored_and_what_is_not() -> None:
    identities = Identities(share_ignore=("user", "trace"))

    def of(**params: Any) -> Any:
        return identities.of(intern_params(params), None)

    plain = of(top_k=5)
    assert plain is of(top_k=5, user="a") is of(top_k=5, user="b", trace=3) is not None
    assert of(user="a") is of(trace=1) is None, "nothing is left that counts"
    assert len({id(each) for each in (plain, of(top_k=6), of(top_k=5, users="a"), of(top_k=5, User="a"))}) == 4
    kept = of(top_k=5, unknown=1)
    assert kept is not plain and of(top_k=5, unknown=2) is not kept and of(top_k=5, user=1, unknown=1) is kept
    tenant = identities.of(intern_params({"user": "a"}), "t")
    assert tenant is identities.of(None, "t") is identities.of(intern_params({"user": "b"}), "t")


@pytest.mark.parametrize("wrong", ["user", None, 3, ("a", 1), [b"a"], {"a": 1, 2: 3}])
def test_bad_names(wrong: Any) -> None:
    for refuses in (as_share_ignore, Identities):
        with pytest.raises(TypeError, match=r"share_ignore must be a sequence of names, such as \('user',\), got"):
            refuses(wrong)


def test_good_names() -> None:
    assert as_share_ignore(()) == () and as_share_ignore(["a", "b"]) == ("a", "b") == as_share_ignore(iter("ab"))
    assert sorted(as_share_ignore({"a", "b"})) == ["a", "b"]


def test_near_requests_are_told_apart(rng: random.Random) -> None:
    identities = Identities()
    different = equal = 0
    while different < 10_000:
        names = rng.sample(["n", "top_k", "stop"], rng.randrange(4))
        one: Any = {name: any_value(rng, 1, hashable=True) for name in names}, rng.choice([None, "", "a", "b"])
        params = {name: near(rng, value, hashable=True) for name, value in one[0].items()}
        two: Any = rng.choice([(params, one[1]), (again(one[0]), rng.choice([None, "a", "\u0430", one[1]]))])
        found = [identities.of(intern_params(each), tenant) for each, tenant in (one, two)]
        same = tell(one) == tell(two)
        assert (found[0] is found[1]) == same, (one, two)
        different, equal = different + (not same), equal + same
    assert equal > 500
    del found
    assert len(identities) == 0


# What is kept, and for how long.


def test_nothing_is_kept_that_nobody_holds() -> None:
    identities = Identities()
    params = intern_params({"kept": 1})
    gone = weakref.ref(params)  # type: ignore[arg-type]
    held = identities.of(params, "a")
    del params
    gc.collect()
    assert gone() is not None, "who holds an identity holds its parameters, so that no others are taken for them"
    assert held is identities.of(intern_params({"kept": 1}), "a") and len(identities) == 1
    number = held.number if held is not None else 0
    del held
    gc.collect()
    assert gone() is None and len(identities) == 0
    fresh = identities.of(intern_params({"kept": 1}), "a")
    assert fresh is not None and fresh.number != number


def test_ever_new_users_leave_nothing_behind() -> None:
    identities, ignoring = Identities(), Identities(share_ignore=("user",))

    def run(first: int, count: int) -> None:
        for i in range(first, first + count):
            params = intern_params({"user": i})
            identities.of(params, None), identities.of(None, f"{i}"), identities.of(params, f"{i}")
            ignoring.of(params, f"{i}")

    run(0, 10_000)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run(10_000, 20_000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    run(30_000, 30_000)
    assert grown < 400_000, "bytes, for 80,000 identities; one of them takes a hundred"
    assert len(identities) == len(ignoring) == 0


def test_many_threads_find_the_same_objects() -> None:
    """They ask for the same new ones at once, again and again; whoever does not hold one lets go of it at once."""
    identities = Identities()
    rounds, count = 300, 8
    barrier = threading.Barrier(count)
    found: list[list[Any]] = [[None] * rounds for _ in range(count)]
    params = [intern_params({"round": i % 3}) for i in range(rounds)]

    def run(mine: list[Any]) -> None:
        for i in range(rounds):
            barrier.wait()
            for _ in range(5):
                identities.of(params[i], f"{i} let go of")
                mine[i] = identities.of(params[i], f"{i}")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=run, args=(mine,)) for mine in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert all(len({id(mine[i]) for mine in found}) == 1 for i in range(rounds))
    assert len({mine.number for mine in found[0]}) == rounds == len(identities)


def test_a_finaliser_may_ask_while_one_is_made() -> None:
    identities = Identities()

    class Asks:
        def __del__(self) -> None:
            asked.append(identities.of(None, "a"))

    asked: list[Any] = []
    with identities._lock:  # as it is while one is entered
        Asks()
    assert asked == [identities.of(None, "a")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_of_a_fork_does_not_wait_for_a_thread_of_its_parent() -> None:
    identities = Identities()
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with identities._lock:
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(30)
    child = os.fork()
    if not child:
        os._exit(17 if identities.of(None, "new in the child") is not None else 1)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    finally:
        leave.set()
        thread.join()
