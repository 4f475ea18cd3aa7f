"""The dedup on both sides, and a dict beside it; run with pytest-benchmark."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

SIZES = [16, 512, 8192]
SIDES = ["_pure", "_core"]
STANDING = 1000
SLOT_MASK = (1 << 22) - 1
HANDLE = 1 << 22 | STANDING


def filled(side: str) -> Any:
    table = importlib.import_module(f"relay.{side}.dedup").Dedup(STANDING + 1)
    for slot in range(STANDING):
        table.insert(table.hash(f"standing {slot}"), 1 << 22 | slot)
    return table


def fresh_pairs(chars: int) -> tuple[tuple[list[tuple[str, str]]], dict[str, object]]:
    """Two equal but distinct str each, as a leader and a follower send; made anew for every round."""
    heads = [str(i) for i in range(64)]
    return ([(head + "x" * (chars - len(head)), head + "x" * (chars - len(head))) for head in heads],), {}


@pytest.mark.parametrize("chars", SIZES)
@pytest.mark.parametrize("side", SIDES)
def test_lead_and_follow(benchmark: Any, side: str, chars: int) -> None:
    table, contents = filled(side), [""] * (STANDING + 1)

    def work(pairs: list[tuple[str, str]]) -> None:
        hash_, insert, find, delete = table.hash, table.insert, table.find, table.delete
        for leader, follower in pairs:
            insert(hash_(leader), HANDLE)
            contents[STANDING] = leader
            found = find(hash_(follower))
            if contents[found & SLOT_MASK] == follower:
                delete(found)

    benchmark.pedantic(work, setup=lambda: fresh_pairs(chars), rounds=200)
    table.check()
    assert len(table) == STANDING


@pytest.mark.parametrize("chars", SIZES)
def test_lead_and_follow_dict(benchmark: Any, chars: int) -> None:
    table: dict[str, int] = {f"standing {slot}": 1 << 22 | slot for slot in range(STANDING)}

    def work(pairs: list[tuple[str, str]]) -> None:
        for leader, follower in pairs:
            table[leader] = HANDLE
            if table.get(follower) == HANDLE:
                del table[leader]

    benchmark.pedantic(work, setup=lambda: fresh_pairs(chars), rounds=200)
    assert len(table) == STANDING


@pytest.mark.parametrize("chars", [*SIZES, 2**20])
@pytest.mark.parametrize("side", SIDES)
def test_hash(benchmark: Callable[..., object], side: str, chars: int) -> None:
    benchmark(filled(side).hash, "x" * chars)


@pytest.mark.parametrize("side", SIDES)
def test_find_insert_delete(benchmark: Callable[..., object], side: str) -> None:
    table = filled(side)
    hashes = [table.hash(f"request {i}") for i in range(64)]

    def work() -> None:
        insert, find, delete = table.insert, table.find, table.delete
        for h in hashes:
            find(h)
            insert(h, HANDLE)
            delete(HANDLE)

    benchmark(work)
    table.check()
