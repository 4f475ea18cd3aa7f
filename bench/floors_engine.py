"""What a relay must come to beside other batchers, over a model that sleeps 2 ms and 20 us an item and over one that
does nothing. Short forms of what `python bench/engine.py` measures in full.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import isnan

from arrivals import GOOD_S, trace_is_there
from batchers import BATCHED, EAGER, RAY, WINDOW, Side, ray_is_there, relay_side, rivals
from closed_loops import (
    Runner,
    alone_on_a_loop,
    alone_on_a_thread,
    batch_of_threads,
    coroutines_are_offered,
    echo,
    echo_async,
    overhead,
    runners,
    sixteen_threads,
)
from comparing import at_load, shares
from overload import idle_cpu

SECONDS = 0.5
RELAY = relay_side()
IN_TIME = relay_side("relay, deadline 50 ms", deadline=GOOD_S)
CALLED_BACK = relay_side(IN_TIME.name, deadline=GOOD_S, tickets=True)
BEST = [EAGER, BATCHED, WINDOW] + ([RAY] if ray_is_there() else [])
WINDOWED = [side for side in rivals() if side.windowed]
TASKS = (64, 512, 4096)


def share_of_capacity(tasks: int) -> float:
    """A closed loop of so many tasks: answers a second, over what the model alone can do."""
    return shares([RELAY], tasks, SECONDS)[0]


def p99_beside(others: list[Side], arrivals: str, load: float) -> float:
    """The best p99 of the others, over the relay's."""
    rows = at_load([RELAY, *others], arrivals, load, SECONDS)
    times = [rows[side.name].outcome.p99 for side in others]
    return min((time for time in times if not isnan(time)), default=float("inf")) / rows[RELAY.name].outcome.p99


def in_time_beside(arrivals: str, load: float) -> float:
    """The share that the relay completes in 50 ms, over the best share of the others."""
    rows = at_load([IN_TIME if load <= 1 else CALLED_BACK, *BEST], arrivals, load, SECONDS)
    return rows[IN_TIME.name].outcome.good / max(1e-9, *(rows[side.name].outcome.good for side in BEST))


def goodput_kept(load: float) -> float:
    """Answers in 50 ms a second at so much load, over the most there are at any."""
    rates = [
        at_load([CALLED_BACK], "poisson", each, SECONDS)[CALLED_BACK.name].outcome.good_rate
        for each in (0.95, 1.5, load)
    ]
    return rates[-1] / max(rates)


def of_floor(tasks: int, run: Runner, model: Callable[..., object] = echo) -> float:
    """A model that does nothing: requests a second, over those of futures that `call_soon` completes."""
    ours, floor = overhead(tasks, run, model=model)
    print(f"{ours.cpu * 1e6:.1f} us of processor time a request; floor {floor.cpu * 1e6:.1f} us")
    return ours.rate / floor.rate


def of_simple_queue() -> float:
    """16 threads: requests a second, over those of a hand-written batcher."""
    ours, theirs = sixteen_threads()
    print(f"{ours.cpu * 1e6:.1f} us of processor time a request; SimpleQueue {theirs.cpu * 1e6:.1f} us")
    return ours.rate / theirs.rate


def of_hand_off(measure: Callable[[], tuple[float, float]]) -> float:
    """A request alone: the time of a bare hand-off and back, over the relay's."""
    ours, bare = measure()
    print(f"{ours * 1e6:.1f} us alone; bare hand-off {bare * 1e6:.1f} us")
    return bare / ours


def rest() -> float:
    """0.2 % of a core, over what an idle relay uses."""
    return 0.002 / max(1e-6, idle_cpu())


def _floors() -> list[tuple[str, float, Callable[[], float]]]:
    part = functools.partial
    found: list[tuple[str, float, Callable[[], float]]] = [
        (f"engine_closed_loop_{tasks}", 0.9, part(share_of_capacity, tasks)) for tasks in TASKS
    ]
    for arrivals, word in [("poisson", "poisson"), ("azure trace", "trace")][: 1 + trace_is_there()]:
        for percent in (30, 60, 80, 95):
            found.append((f"engine_p99_{word}_{percent}", 1 / 1.25, part(p99_beside, BEST, arrivals, percent / 100)))
        found.append((f"engine_p99_{word}_30_windowed", 2.0, part(p99_beside, WINDOWED, arrivals, 0.3)))
        for percent in (95, 150):
            found.append((f"engine_in_time_{word}_{percent}", 1.0, part(in_time_beside, arrivals, percent / 100)))
    found.append(("engine_goodput_200", 0.95, part(goodput_kept, 2.0)))
    found.append(("engine_goodput_400", 0.9, part(goodput_kept, 4.0)))
    found.append(("engine_batch_of_64_threads", 55.0, lambda: batch_of_threads()[0]))
    models = [("thread", echo)] + ([("coroutine", echo_async)] if coroutines_are_offered() else [])
    for loop, run in runners().items():
        for kind, model in models:
            for tasks in TASKS:
                found.append((f"engine_overhead_{kind}_{loop}_{tasks}", 0.5, part(of_floor, tasks, run, model)))
        found.append((f"engine_alone_{loop}", 1 / 1.5, part(of_hand_off, part(alone_on_a_loop, run))))
    found.append(("engine_alone_thread", 1 / 1.5, part(of_hand_off, alone_on_a_thread)))
    found.append(("engine_16_threads", 1.0, of_simple_queue))
    found.append(("engine_idle", 1.0, rest))
    return found


OPEN = ("engine_p99", "engine_in_time", "engine_goodput")
GOALS = _floors()
FLOORS = [floor for floor in GOALS if not floor[0].startswith(OPEN)]
"""Those that are asserted. Open loops take a machine that does nothing else to be measured at all; ``python
bench/floors_engine.py`` measures them as well."""

if __name__ == "__main__":
    for name, floor, measure in GOALS:
        print(f"{name}: {measure():.2f}, to be {floor:.2f}", flush=True)
