"""Open loops: when requests arrive (Poisson, or as in a recorded hour), and a driver that sends them on time.

A request's latency counts from the moment it was due, so that a batcher which holds up the loop is charged for those
that could not even be sent. How late they were sent is told too, and a round that was sent late is void.
"""

from __future__ import annotations

import asyncio
import csv
import gc
import gzip
import os
import selectors
from collections.abc import Awaitable, Coroutine
from functools import cache, partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple, TypeVar

import numpy as np
from batchers import Ask, Model, Side

import relay

T = TypeVar("T")
TRACE = (
    Path(os.environ.get("RELAY_SHARED") or Path(__file__).parents[2] / "shared")
    / "data/traces/azure_llm_code_2023.csv.gz"
)
GOOD_S = 0.05
LATE_S = 0.002  # sent later than this at p99: void
PATIENCE_S = 15.0


class Outcome(NamedTuple):
    """What came of one round of one side.

    Attributes:
        p50, p99: Of the latencies of those answered, in seconds; nan if none was.
        good: Share of all that were answered within 50 ms of the moment they were due.
        good_rate: The same, a second.
        refused: Share that ended with an error of the relay's.
        late: p99 of how long after their moment they were sent.
        cpu: Seconds of processor time for each request, clients and model included.
    """

    p50: float
    p99: float
    good: float
    good_rate: float
    refused: float
    late: float
    cpu: float

    @property
    def void(self) -> bool:
        """The load was not what it should have been."""
        return self.late > LATE_S


def poisson(rate: float, seconds: float, seed: int) -> np.ndarray:
    """Moments of arrival, in seconds from the start."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(1, round(rate * seconds)))
    return np.cumsum(gaps)


@cache
def _trace() -> np.ndarray:
    with gzip.open(TRACE, "rt", newline="") as lines:
        return np.array([float(row["t_s"]) for row in csv.DictReader(lines)])


def trace(rate: float, seconds: float, seed: int) -> np.ndarray:
    """As `poisson`, of the recorded hour: a stretch of as many requests as that takes, from another place for each
    seed, squeezed to the rate."""
    whole = _trace()
    gaps = np.diff(whole, append=whole[-1] + np.median(np.diff(whole)))
    count = max(2, min(len(gaps), round(rate * seconds)))
    start = seed * 1_777 % len(gaps)
    gaps = np.roll(gaps, -start)[:count]
    due = np.cumsum(gaps) - gaps[0]
    return np.asarray(due * (count / rate / (due[-1] + gaps[0])))


def trace_is_there() -> bool:
    """Whether the recorded hour is at hand."""
    return TRACE.exists()


ARRIVALS = {"poisson": poisson, "azure trace": trace}


def run_precisely(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` over select(): epoll's time limits are rounded up to milliseconds, and so would be the arrivals."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(main)


async def _drive(ask: Ask, due: np.ndarray, good_only: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """Send a request at each moment. Returns latencies (nan: not answered), how late they were sent, and how many were
    refused.

    A client is a task. Where requests come faster than they are answered, and tasks alone would keep the processor
    busy, it is a callback instead, for batchers that give out futures or tickets.
    """
    patience_s = 2 * GOOD_S if good_only else PATIENCE_S
    loop = asyncio.get_running_loop()
    count = len(due)
    took, late = np.full(count, np.nan), np.zeros(count)
    refused = 0
    tasks: set[asyncio.Task[None]] = set()
    over = loop.create_future()
    moments = (due + (perf_counter() + 0.02)).tolist()
    sent = ended = 0

    async def client(number: int, moment: float, answer: Awaitable[Any] | None = None) -> None:
        nonlocal refused
        try:
            await (ask(number) if answer is None else answer)
            took[number] = perf_counter() - moment
        except relay.RelayError:
            refused += 1

    def end(task: asyncio.Task[None]) -> None:
        nonlocal ended
        tasks.discard(task)
        ended += 1
        if ended == count and not over.done():
            over.set_result(None)

    def called_back(number: int, answer: Any) -> None:
        if not answer.cancelled() if isinstance(answer, asyncio.Future) else answer.exception() is None:
            took[number] = perf_counter() - moments[number]

    def send_lightly(number: int) -> Coroutine[Any, Any, None] | None:
        nonlocal refused
        try:
            answer = ask(number)
        except relay.RelayError:
            refused += 1
            return None
        if isinstance(answer, Coroutine):
            return client(number, moments[number], answer)
        answer.add_done_callback(partial(called_back, number))  # type: ignore[attr-defined]
        return None

    def send() -> None:
        nonlocal sent
        now = perf_counter()
        while sent < count and moments[sent] <= now:
            late[sent] = now - moments[sent]
            work = send_lightly(sent) if good_only else client(sent, moments[sent])
            if work is not None:
                task = loop.create_task(work)
                tasks.add(task)
                task.add_done_callback(end)
            sent += 1
        if sent < count:
            loop.call_later(moments[sent] - perf_counter(), send)

    send()
    try:
        async with asyncio.timeout(float(due[-1]) + 0.02 + patience_s):
            await over
    except TimeoutError:
        left = list(tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    return took, late[:sent], refused


def open_loop(side: Side, model: Model, limit: int, due: np.ndarray, good_only: bool) -> Outcome:
    """One round of one side.

    Args:
        side: The batcher.
        model: Behind it.
        limit: Members of a batch at most.
        due: When requests are sent.
        good_only: Do not wait for answers that come too late anyway.
    """

    async def main() -> tuple[np.ndarray, np.ndarray, int, float]:
        async with side.open(model, limit) as ask:
            await asyncio.gather(*(ask(number) for number in range(limit)))  # so that its threads are there
            gc.collect()
            gc.freeze()  # what is there already is not looked through again and again
            try:
                began = process_time()
                took, late, refused = await _drive(ask, due, good_only)
                return took, late, refused, process_time() - began
            finally:
                gc.unfreeze()

    took, late, refused, cpu = run_precisely(main())
    good = int(np.count_nonzero(took <= GOOD_S))
    answered = took[~np.isnan(took)]
    p50, p99 = np.percentile(answered, (50, 99)) if len(answered) else (np.nan, np.nan)
    return Outcome(
        p50=float(p50),
        p99=float(p99),
        good=good / len(due),
        good_rate=good / float(due[-1]),
        refused=refused / len(due),
        late=float(np.percentile(late, 99)),
        cpu=cpu / len(due),
    )
