"""A lane, its model and its callers in virtual time, around a real `Linger`: what a habit of waiting is worth."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

US = 1_000
MS = 1_000_000


@dataclass
class Model:
    """A run takes ``base + each * n`` nanoseconds."""

    base: int
    each: int = 0
    most: int = 64

    def run_ns(self, n: int) -> int:
        return self.base + self.each * n


@dataclass
class Owner:
    """A request."""

    arrival_ns: int
    client: int = -1


@dataclass
class Seen:
    """What came of it."""

    sizes: list[int] = field(default_factory=list)
    latencies: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)  # how long the lane held back what was ready, for each wait
    ended_ns: int = 0

    def mean_batch(self, skip: int = 50) -> float:
        return sum(self.sizes[skip:]) / max(len(self.sizes[skip:]), 1)

    def mean_ms(self, skip: int = 200) -> float:
        return sum(self.latencies[skip:]) / max(len(self.latencies[skip:]), 1) / MS

    def p99_ms(self, skip: int = 200) -> float:
        found = sorted(self.latencies[skip:])
        return found[int(len(found) * 0.99)] / MS if found else 0.0


class Stage:
    """One lane.

    Args:
        model: Its model.
        linger: Its habit; None takes at once.
        back_ns: How long after its answer a caller of a closed loop comes back: of the i-th of a batch. None: never.
        answer_us: What it takes to answer one.
    """

    def __init__(
        self, model: Model, linger: Any, back_ns: Callable[[int], int] | None = None, answer_us: float = 4.0
    ) -> None:
        self.model, self.linger, self._back_ns = model, linger, back_ns
        self._answer_ns = int(answer_us * US)
        self._events: list[tuple[int, int]] = []  # when somebody comes, and who
        self._ready: list[Owner] = []
        self.seen = Seen()

    def come(self, at_ns: int, client: int = -1) -> None:
        heapq.heappush(self._events, (at_ns, client))

    def _arrive(self, until_ns: int) -> None:
        while self._events and self._events[0][0] <= until_ns:
            at_ns, client = heapq.heappop(self._events)
            self._ready.append(Owner(at_ns, client))

    def run(self, until_ns: int) -> Seen:
        now, linger, seen, model = 0, self.linger, self.seen, self.model
        while now < until_ns:
            self._arrive(now)
            oldest = self._ready[0].arrival_ns if self._ready else 0
            plan = linger.plan(now, len(self._ready), model.most, oldest) if linger is not None else None
            if plan is not None:
                began, held = now, bool(self._ready)
                while len(self._ready) < plan[0] and self._events and self._events[0][0] <= plan[1]:
                    now = max(now, self._events[0][0])
                    self._arrive(now)
                if len(self._ready) < plan[0]:
                    now = plan[1]
                if held:
                    seen.waits.append(now - began)
                continue
            if not self._ready:
                if not self._events:
                    break
                now = max(now, self._events[0][0])
                continue
            taken, self._ready = self._ready[: model.most], self._ready[model.most :]
            if linger is not None:
                linger.taken(now, [owner.arrival_ns for owner in taken])
            ended = now + model.run_ns(len(taken))
            seen.sizes.append(len(taken))
            self._arrive(ended)
            left = len(self._ready)
            for i, owner in enumerate(taken):
                seen.latencies.append(ended - owner.arrival_ns)
                if owner.client >= 0 and self._back_ns is not None:
                    self.come(ended + self._back_ns(i), owner.client)
            now = ended + self._answer_ns * len(taken)
            if linger is not None:
                linger.before = left
                linger.answered(ended, len(taken), len(self._ready), float(model.base))
        seen.ended_ns = now
        return seen


def closed(model: Model, linger: Any, clients: int, rng: random.Random, each_us: float = 20.0, ms: int = 2000) -> Seen:
    """A closed loop of so many threads: they come back one by one, as each gets its turn."""
    stage = Stage(model, linger, lambda i: int((30 + each_us * (i + 1) * rng.uniform(0.8, 1.2)) * US))
    for client in range(clients):
        stage.come(int(client * each_us * US), client)
    return stage.run(ms * MS)


def poisson(model: Model, linger: Any, share: float, rng: random.Random, ms: int = 4000) -> Seen:
    """An open loop at a share of what the model can do."""
    stage = Stage(model, linger)
    rate = share * model.most / model.run_ns(model.most)  # a nanosecond
    at = 0.0
    while at < ms * MS:
        at += rng.expovariate(rate)
        stage.come(int(at))
    return stage.run(ms * MS)
