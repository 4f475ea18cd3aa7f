"""How much faster the native dedup must be than a dict that does the same work. Ratios only, each measured in one run.

The work is that of one leader and one follower with equal content: enter the leader, find it for the follower, compare
the contents in full, take it out. Each content is built twice per round, outside the time measured, because a dict gets
the second hash of one str object for free and requests never send the same object twice.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

PAIRS = 64
STANDING = 1000
SLOT_MASK = (1 << 22) - 1

Pair = tuple[str, str]


def _pairs(chars: int, salt: int) -> list[Pair]:
    heads = [f"{salt}-{i} " for i in range(PAIRS)]
    return [(head + "x" * (chars - len(head)), head + "x" * (chars - len(head))) for head in heads]


def _dict_work(table: dict[str, int], pairs: list[Pair]) -> int:
    handle = 1 << 22 | STANDING
    began = perf_counter_ns()
    for leader, follower in pairs:
        table[leader] = handle
        found = table.get(follower)  # compares in full, inside
        if found == handle:
            del table[leader]
    return perf_counter_ns() - began


def _dedup_work(table: Any, contents: list[str], pairs: list[Pair]) -> int:
    handle = 1 << 22 | STANDING
    hash_, insert, find, delete = table.hash, table.insert, table.find, table.delete
    began = perf_counter_ns()
    for leader, follower in pairs:
        insert(hash_(leader), handle)
        contents[STANDING] = leader
        found = find(hash_(follower))
        if contents[found & SLOT_MASK] == follower:
            delete(found)
    return perf_counter_ns() - began


def times_faster_than_dict(chars: int, rounds: int = 60) -> float:
    """Time of the dict over time of the native table, each the least of alternating rounds."""
    make = importlib.import_module("relay._core.dedup").Dedup
    plain: dict[str, int] = {}
    table = make(STANDING + 1)
    contents = [f"standing {i}" for i in range(STANDING)] + [""]
    for slot, content in enumerate(contents[:-1]):
        plain[content] = slot
        table.insert(table.hash(content), 1 << 22 | slot)
    dict_ns = dedup_ns = 1 << 62
    for salt in range(rounds):
        dict_ns = min(dict_ns, _dict_work(plain, _pairs(chars, salt)))
        dedup_ns = min(dedup_ns, _dedup_work(table, contents, _pairs(chars, salt)))
    assert len(plain) == len(table) == STANDING
    return dict_ns / dedup_ns


FLOORS: list[tuple[str, float, Callable[[], float]]] = [
    ("dedup_512_chars", 1.0, lambda: times_faster_than_dict(512)),
    ("dedup_8192_chars", 2.0, lambda: times_faster_than_dict(8192)),
]

if __name__ == "__main__":
    for name, floor, measure in FLOORS:
        print(f"{name}: {measure():.2f}x, floor {floor}x")
