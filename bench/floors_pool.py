"""What a pool keeps when more want tokens than there are, against the limiters of the standard library.

Those let a running thread barge past the ones that sleep, which saves a switch of threads for each token and leaves
most of the sleepers where they are. A pool hands each token over to whose turn it is, and must be nearly as fast.

A side's figure is the best of alternating rounds, so that all see the same weather; no other pool is alive meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import queue
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import relay

THREADS = 32
TOKENS = 8
HOLD = 0.0005

Take = Callable[[], Any]
Give = Callable[[Any], object]
Pair = tuple[Take, Give]


@contextmanager
def pool_of(tokens: int) -> Iterator[relay.TokenPool]:
    """A pool, with those that have been closed before swept away: a pool that has company does more."""
    gc.collect()
    with relay.TokenPool(tokens, name="floor") as pool:
        yield pool


@contextmanager
def ours(tokens: int) -> Iterator[Pair]:
    """To take a token of a pool, and to give it back."""
    with pool_of(tokens) as pool:
        yield pool.acquire, relay.Token.release


@contextmanager
def semaphore(tokens: int) -> Iterator[Pair]:
    """As `ours`, of a `threading.Semaphore`."""
    limiter = threading.Semaphore(tokens)
    yield limiter.acquire, lambda token: limiter.release()


@contextmanager
def priority_queue(tokens: int) -> Iterator[Pair]:
    """As `ours`, of tokens that are the items of a `queue.PriorityQueue`."""
    limiter: queue.PriorityQueue[int] = queue.PriorityQueue()
    for token in range(tokens):
        limiter.put(token)
    yield limiter.get, limiter.put


@contextmanager
def simple_queue(tokens: int) -> Iterator[Pair]:
    """As `ours`, of tokens that are the items of a `queue.SimpleQueue`."""
    limiter: queue.SimpleQueue[int] = queue.SimpleQueue()
    for token in range(tokens):
        limiter.put(token)
    yield limiter.get, limiter.put


THEIRS = (semaphore, priority_queue, simple_queue)


class Crowd(NamedTuple):
    """What 32 threads on 8 tokens got."""

    pairs: float
    """Pairs of acquire and release, per second."""
    longest: float
    """The longest wait, in seconds; one that has not ended counts up to the end."""
    evenness: float
    """How often the least-served thread was served, for each time that the most-served one was."""


def crowd(side: Callable[[int], Any], seconds: float) -> Crowd:
    """Let threads of equal priority take a token, hold it in a sleep, and give it back, as often as they can."""
    counts, longest = [0] * THREADS, [0.0] * THREADS
    over = threading.Event()
    start = threading.Barrier(THREADS + 1)

    def work(number: int, take: Take, give: Give) -> None:
        count, most = 0, 0.0
        is_over = over.is_set
        start.wait()
        while not is_over():
            asked = perf_counter()
            token = take()
            most = max(most, perf_counter() - asked)
            time.sleep(HOLD)
            give(token)
            count += 1
        counts[number], longest[number] = count, most

    with side(TOKENS) as pair:
        threads = [threading.Thread(target=work, args=(number, *pair)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        start.wait()
        begin = perf_counter()
        time.sleep(seconds)
        over.set()
        for thread in threads:
            thread.join()
        took = perf_counter() - begin
    return Crowd(sum(counts) / took, max(longest), (min(counts) - 1) / (max(counts) - 1))  # the last came after the end


def in_turns(seconds: float, rounds: int) -> tuple[list[Crowd], list[list[Crowd]]]:
    """What the pool got, and each of the others; the pool in turns with each of them."""
    mine: list[Crowd] = []
    theirs: list[list[Crowd]] = [[] for _ in THEIRS]
    for _ in range(rounds):
        for side, crowds in zip(THEIRS, theirs, strict=True):
            mine.append(crowd(ours, seconds))
            crowds.append(crowd(side, seconds))
    return mine, theirs


def throughput(seconds: float = 0.25, rounds: int = 5) -> float:
    """Pairs per second, over those of the fastest of the others."""
    mine, theirs = in_turns(seconds, rounds)
    return max(each.pairs for each in mine) / max(each.pairs for crowds in theirs for each in crowds)


def longest_wait(seconds: float = 0.8, rounds: int = 2) -> float:
    """The longest wait for the best of the others, over the longest for a token of a pool."""
    mine, theirs = in_turns(seconds, rounds)
    return min(each.longest for crowds in theirs for each in crowds) / min(each.longest for each in mine)


def evenness(seconds: float = 0.5, rounds: int = 5) -> float:
    """How even the shares of the threads are: the median of some rounds."""
    return median(crowd(ours, seconds).evenness for _ in range(rounds))


# The order of service, when all stand in line before the only token comes back.


def shuffled_priorities(count: int) -> list[int]:
    """As many of each of sixteen tiers, in the same disorder every time."""
    priorities = [number % 16 for number in range(count)]
    random.Random(count).shuffle(priorities)
    return priorities


def inverted(priorities: list[int], served: list[int]) -> float:
    """Which part of all pairs was served in the wrong order: tier first, then arrival."""
    right = sorted(served, key=lambda number: (priorities[number], number))
    place = {number: index for index, number in enumerate(right)}
    pairs = list(combinations(served, 2))
    return sum(place[first] > place[second] for first, second in pairs) / len(pairs)


def threads_in_line(take: Callable[[int], Any], give: Give, waiting: Callable[[], int] | None = None) -> float:
    """Let threads of mixed priorities join a line one by one; the part of their pairs that was inverted.

    Args:
        take: Take the token, at a priority.
        give: Give it back.
        waiting: How many stand in line; None if nobody can know.
    """
    priorities = shuffled_priorities(48)
    served: list[int] = []
    token = take(0)

    def work(number: int) -> None:
        mine = take(priorities[number])
        served.append(number)
        give(mine)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(priorities))]
    for number, thread in enumerate(threads):
        thread.start()
        end = perf_counter() + 10
        time.sleep(0.002)
        while waiting is not None and waiting() <= number and perf_counter() < end:
            time.sleep(0.0005)
    give(token)
    for thread in threads:
        thread.join()
    return inverted(priorities, served)


async def _tasks_in_line(take: Callable[[int], Awaitable[Any]], give: Give) -> float:
    priorities = shuffled_priorities(1_600)
    served: list[int] = []
    token = await take(0)

    async def work(number: int) -> None:
        mine = await take(priorities[number])
        served.append(number)
        give(mine)

    tasks = [asyncio.ensure_future(work(number)) for number in range(len(priorities))]
    await asyncio.sleep(0)
    give(token)
    await asyncio.gather(*tasks)
    return inverted(priorities, served)


def of_any_priority(take: Take) -> Callable[[int], Any]:
    """`take`, for a limiter that knows no priorities."""
    return lambda priority: take()


def order_of_threads() -> float:
    """1 if threads are served exactly in the order of the policy, else 0."""
    with pool_of(1) as pool:
        mine = threads_in_line(pool.acquire, relay.Token.release, lambda: pool.waiting)
    theirs = {}
    for side in THEIRS:
        with side(1) as (take, give):
            theirs[side.__name__] = threads_in_line(of_any_priority(take), give)
    print(
        f"\npairs of threads inverted: {mine:.1%}; {', '.join(f'{name} {part:.1%}' for name, part in theirs.items())}"
    )
    return float(mine == 0)


def order_of_tasks() -> float:
    """As `order_of_threads`, for tasks on an event loop."""
    with pool_of(1) as pool:
        mine = asyncio.run(_tasks_in_line(pool.acquire_async, relay.Token.release))

    async def theirs() -> float:
        limiter = asyncio.Semaphore(1)
        return await _tasks_in_line(lambda priority: limiter.acquire(), lambda token: limiter.release())

    print(f"\npairs of tasks inverted: {mine:.1%}; asyncio.Semaphore {asyncio.run(theirs()):.1%}")
    return float(mine == 0)


FLOORS: list[tuple[str, float, Callable[[], float]]] = [
    ("pool_threads_pairs", 0.85, throughput),
    ("pool_threads_longest_wait", 20.0, longest_wait),
    ("pool_threads_evenness", 0.8, evenness),
    ("pool_order_of_threads", 1.0, order_of_threads),
    ("pool_order_of_tasks", 1.0, order_of_tasks),
]

if __name__ == "__main__":
    for name, floor, measure in FLOORS:
        print(f"{name}: {measure():.2f}, floor {floor:.2f}")
