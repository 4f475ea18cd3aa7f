"""The state word: its layout, the one table of edges, and that both sides walk it alike."""

from __future__ import annotations

import random
import threading
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import product
from typing import Any

import pytest
from conftest import Core
from hypothesis import given, settings
from hypothesis import strategies as st

from relay._pure import state as pure
from relay._pure.state import BUSY, DROPPED, IDLE, MAX_GENERATION, PINNED, QUEUED, REVOKE

LEGAL = {
    (IDLE, QUEUED), (IDLE, BUSY), (QUEUED, BUSY), (QUEUED, IDLE),
    (BUSY, IDLE), (BUSY, QUEUED), (BUSY, REVOKE), (REVOKE, IDLE),
}  # fmt: skip
HAND_OVERS = {(BUSY, BUSY), (REVOKE, BUSY)}
PAIRS = list(product(range(4), range(4)))


def answer(call: Any, *args: Any, **kwargs: Any) -> Any:
    """What a call returns, or which error with which text it raises."""
    try:
        value = call(*args, **kwargs)
        return type(value).__name__, value
    except Exception as error:
        return type(error).__name__, str(error)


def test_comes_from_its_side(core: Core) -> None:
    words = core.state.StateWords(1)
    assert type(words).__module__ == core.state.__name__ == f"{core.package}.state"
    suffixes = {"pure": (".py",), "native": tuple(EXTENSION_SUFFIXES)}[core.side]
    assert str(core.state.__file__).endswith(suffixes)


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_every_pair_of_states(core: Core, old: int, new: int) -> None:
    state = core.state
    assert state.legal(old, new) is ((old, new) in LEGAL | HAND_OVERS)
    assert ((old, new) in state.EDGES) is ((old, new) in LEGAL | HAND_OVERS)
    for hand_over, edges in ((False, LEGAL), (True, HAND_OVERS)):
        word = state.word(7, old, 0 if old == IDLE else PINNED | DROPPED)
        if (old, new) not in edges:
            with pytest.raises(ValueError, match="there is no (edge|hand-over) "):
                state.edge(word, new, hand_over=hand_over)
            continue
        after = state.edge(word, new, hand_over=hand_over)
        ended = hand_over or new == IDLE
        assert state.state_of(after) == new
        assert state.generation_of(after) == (8 if ended else 7), "a lease that ends takes the next generation"
        assert state.flags_of(after) == (0 if ended else state.flags_of(word))


def test_layout(core: Core) -> None:
    state = core.state
    assert state.word(1, IDLE) == 1 << 8
    assert state.word(MAX_GENERATION, REVOKE, PINNED | DROPPED) == MAX_GENERATION << 8 | 15
    assert state.handle_of(MAX_GENERATION, state.MAX_SLOTS - 1) == 2**63 - 1
    handle = state.handle_of(5, 9)
    assert (handle, state.slot_of(handle), state.handle_generation(handle)) == (5 << 22 | 9, 9, 5)
    assert (state.NO_HANDLE, state.SLOT_BITS, state.GEN_BITS, state.MAX_SLOTS) == (-1, 22, 41, 2**22)


def test_generations_wrap_past_zero(core: Core) -> None:
    state = core.state
    assert [state.next_generation(g) for g in (1, 2, MAX_GENERATION)] == [2, 3, 1]
    assert state.edge(state.word(MAX_GENERATION, BUSY), IDLE) == state.word(1, IDLE)
    assert state.edge(state.word(MAX_GENERATION, BUSY), BUSY, hand_over=True) == state.word(1, BUSY)


def test_cas_swaps_only_what_was_seen(core: Core) -> None:
    state = core.state
    words = core.watch(state.StateWords(3))
    first, queued = state.word(1, IDLE), state.word(1, QUEUED)
    assert (words.load(1), words.capacity, len(words)) == (first, 3, 0)
    assert words.cas(1, first, queued) is True
    assert words.cas(1, first, state.word(1, BUSY)) is False
    assert ([words.load(i) for i in range(3)], len(words)) == ([first, queued, first], 1)


def test_one_winner_a_round(core: Core) -> None:
    """Threads race to swap the same word; each value is won exactly once."""
    state = core.state
    words = core.watch(state.StateWords(1))
    rounds, wins = 300, [0] * 4
    start = threading.Barrier(4)

    def race(who: int) -> None:
        start.wait()
        for generation in range(1, rounds):
            old = state.word(generation, IDLE)
            wins[who] += words.cas(0, old, state.word(generation + 1, IDLE))

    threads = [threading.Thread(target=race, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(wins) == rounds - 1 and words.load(0) == state.word(rounds, IDLE)


def test_check_names_a_broken_word(core: Core) -> None:
    words = core.state.StateWords(2)
    words.check()
    assert words.cas(1, 1 << 8, 1 << 8 | DROPPED | QUEUED)
    with pytest.raises(AssertionError, match="word 1 is 0x109; this is a bug in relay"):
        words.check()


ODD: list[Any] = [0, 1, 2, 3, 4, 5, -1, True, False, 255, 256, 263, 2**22 - 1, 2**22, 2**41 - 1, 2**41]
ODD += [2**49 - 1, 2**49, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 1.0, "1", None, b"1", [1]]
CALLS = [
    ("word", 3), ("state_of", 1), ("flags_of", 1), ("generation_of", 1), ("handle_of", 2), ("slot_of", 1),
    ("handle_generation", 1), ("next_generation", 1), ("legal", 2), ("edge", 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arity"), CALLS)
def test_sides_agree_on_odd_arguments(name: str, arity: int) -> None:
    native = Core("native").state
    rng = random.Random(4)
    given_arguments = list(product(ODD, repeat=arity)) if arity < 3 else [rng.choices(ODD, k=3) for _ in range(2000)]
    for args in given_arguments:
        assert answer(getattr(pure, name), *args) == answer(getattr(native, name), *args), (name, args)
    if name == "edge":
        for args in given_arguments:
            for over in (True, 1, 0):
                ours = answer(pure.edge, *args, hand_over=over)
                assert ours == answer(native.edge, *args, hand_over=over), args


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["load", "cas"]), *[st.sampled_from(ODD)] * 3)))
def test_sides_agree_on_words(calls: list[tuple[str, Any, Any, Any]]) -> None:
    twins = [pure.StateWords(2), Core("native").state.StateWords(2)]
    for name, *args in calls:
        used = args[:1] if name == "load" else args
        assert answer(getattr(twins[0], name), *used) == answer(getattr(twins[1], name), *used), (name, used)
        assert answer(twins[0].check) == answer(twins[1].check) and len(twins[0]) == len(twins[1])


@pytest.mark.parametrize("n", [0, -1, 2**22 + 1, 1.5, None, 2**70])
def test_sides_agree_on_sizes(n: Any) -> None:
    assert answer(pure.StateWords, n) == answer(Core("native").state.StateWords, n)
    assert answer(pure.StateWords, n)[0] in {"ValueError", "TypeError", "OverflowError"}
