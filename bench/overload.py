"""Lasting overload with three tiers, two relays on one pool, and a relay that does nothing at all."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
from arrivals import poisson, run_precisely
from closed_loops import LIMIT, capacity, echo, sleeping_model

import relay

TIERS = {relay.REALTIME: ("REALTIME", 0.2), relay.INTERACTIVE: ("INTERACTIVE", 0.3), relay.BATCH: ("BATCH", 0.5)}


@dataclass
class Tier:
    """What became of the requests of one tier. Times in seconds, from the moment a request was due."""

    sent: int = 0
    took: list[float] = field(default_factory=list)
    refused_after: list[float] = field(default_factory=list)
    failed: int = 0

    @property
    def served(self) -> float:
        """Share that got an answer."""
        return len(self.took) / max(1, self.sent)

    def p99(self) -> float:
        """Of the answered; infinite if none was."""
        return float(np.percentile(self.took, 99)) if self.took else float("inf")

    def refused_p99(self) -> float:
        """How long those that were refused had to wait for that; 0 if none was."""
        return float(np.percentile(self.refused_after, 99)) if self.refused_after else 0.0


@dataclass(frozen=True)
class Overload:
    """What came of it.

    Attributes:
        tiers: By number.
        batch_s: The time of a full batch, alone.
        late: p99 of how long after their moment requests were sent.
    """

    tiers: dict[int, Tier]
    batch_s: float
    late: float

    def misses(self) -> list[str]:
        """What the relay should have kept and did not."""
        realtime, interactive, batch = (self.tiers[level] for level in TIERS)
        limit = 2 * self.batch_s + 0.005
        rows = [
            (realtime.served >= 0.994, f"REALTIME served: {realtime.served:.2%}, not 99.4 %"),
            (realtime.p99() <= limit, f"REALTIME p99: {realtime.p99() * 1e3:.1f} ms, not {limit * 1e3:.1f} ms"),
            (interactive.p99() <= 0.5, f"INTERACTIVE p99: {interactive.p99() * 1e3:.0f} ms, not 500 ms"),
            (not realtime.refused_after and not interactive.refused_after, "others than BATCH were refused"),
            (batch.refused_p99() <= 0.01, f"BATCH was refused after {batch.refused_p99() * 1e3:.1f} ms, not 10 ms"),
            (not sum(tier.failed for tier in self.tiers.values()), "requests ended in other errors"),
        ]
        return [text for kept, text in rows if not kept]


def overload(
    seconds: float = 60.0, load: float = 1.2, max_queue: int = 4096, switch_s: float | None = None, **options: Any
) -> Overload:
    """Poisson arrivals over what the model can do: 20 % REALTIME, 30 % INTERACTIVE, 50 % BATCH, in no order.

    Args:
        seconds: How long.
        load: Of the model's capacity, which is measured first.
        max_queue: Of the relay.
        switch_s: The interpreter's switch interval meanwhile; None for the one it has.
        **options: For the relay.
    """
    able = capacity(0.5)
    due = poisson(able * load, seconds, 7)
    levels = np.random.default_rng(8).choice(list(TIERS), len(due), p=[share for _, share in TIERS.values()]).tolist()
    tiers = {level: Tier(levels.count(level)) for level in TIERS}
    late = np.zeros(len(due))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        moments = (due + (perf_counter() + 0.02)).tolist()
        all_sent = loop.create_future()
        sent = 0

        def ended(number: int, ticket: relay.Ticket[int]) -> None:
            after, tier, error = perf_counter() - moments[number], tiers[levels[number]], ticket.exception()
            if error is None:
                tier.took.append(after)
            elif isinstance(error, relay.Overloaded):
                tier.refused_after.append(after)
            else:
                tier.failed += 1

        def send() -> None:
            nonlocal sent
            now = perf_counter()
            while sent < len(moments) and moments[sent] <= now:
                late[sent] = now - moments[sent]
                try:
                    ticket = r.submit(sent, priority=levels[sent])
                except relay.Overloaded:
                    tiers[levels[sent]].refused_after.append(perf_counter() - moments[sent])
                else:
                    ticket.add_done_callback(partial(ended, sent))  # not a task: those alone would keep the loop busy
                sent += 1
            if sent < len(moments):
                loop.call_later(moments[sent] - perf_counter(), send)
            else:
                all_sent.set_result(None)

        r: relay.Relay[int, int] = relay.Relay(
            sleeping_model, max_batch_size=LIMIT, max_queue=max_queue, name="bench", **options
        )
        async with r:
            await r.run_async(0)
            send()
            await all_sent

    before = sys.getswitchinterval()
    sys.setswitchinterval(before if switch_s is None else switch_s)
    try:
        run_precisely(main())
    finally:
        sys.setswitchinterval(before)
    return Overload(tiers, LIMIT / able, float(np.percentile(late, 99)))


@dataclass(frozen=True)
class Shared:
    """Two relays on one pool: the p99 of the urgent requests, one heavy batch, and an urgent one's own run; seconds."""

    p99: float
    heavy: float
    own: float


def _after(seconds: float) -> Callable[[list[int]], list[int]]:
    def model(items: list[int]) -> list[int]:
        sleep(seconds)
        return items

    return model


def shared_pool(seconds: float = 30.0, heavy_s: float = 1.0, own_s: float = 0.005) -> Shared:
    """One relay always has a heavy batch to run, the other gets an urgent request 5 times a heavy batch.

    Raises:
        TypeError: A relay takes no pool yet.
    """
    took: list[float] = []
    with relay.TokenPool(1, name="device") as pool:
        options: dict[str, Any] = {"pool": pool}
        heavy: relay.Relay[int, int] = relay.Relay(_after(heavy_s), max_batch_size=8, name="heavy", **options)
        urgent: relay.Relay[int, int] = relay.Relay(_after(own_s), name="urgent", **options)
        over = False

        def flood() -> None:
            while not over:
                heavy(0, priority="batch")

        floods = [threading.Thread(target=flood) for _ in range(16)]
        for thread in floods:
            thread.start()
        try:
            ends = perf_counter() + seconds
            gaps = np.random.default_rng(9).exponential(heavy_s / 5, 10_000)
            for gap in gaps:
                if perf_counter() > ends:
                    break
                sleep(gap)
                begin = perf_counter()
                urgent(0, priority="realtime")
                took.append(perf_counter() - begin)
        finally:
            over = True
            for thread in floods:
                thread.join()
            urgent.close()
            heavy.close()
    return Shared(float(np.percentile(took, 99)), heavy_s, own_s)


EVERYTHING: dict[str, Any] = {
    "merge": True,
    "linger": 0.001,
    "prepare": lambda item: item,
    "size": lambda item: 1,
    "group": lambda item: 0,
    "max_batch_tokens": 4096,
    "lanes": 2,
    "admit": "predict",
    "timeout_run": 5.0,
    "deadlines": {relay.REALTIME: 1.0},
}


def idle_cpu(seconds: float = 10.0) -> float:
    """The share of a core that a relay uses between requests, with everything on that it offers."""
    options = dict(EVERYTHING)
    while True:
        try:
            r: relay.Relay[int, int] = relay.Relay(echo, name="bench", **options)
            break
        except TypeError as error:  # not offered yet
            unknown = next((name for name in options if f"'{name}'" in str(error)), None)
            if unknown is None:
                raise
            del options[unknown]
    with r:
        for number in range(200):
            r(number, deadline=5.0)
        sleep(0.5)
        begin, cpu = perf_counter(), process_time()
        sleep(seconds)
        return (process_time() - cpu) / (perf_counter() - begin)
