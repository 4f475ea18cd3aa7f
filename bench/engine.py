"""The engine's tables: a relay beside other batchers, in full. Run by hand, on a machine that does nothing else.

Every row is measured in one process and one run, in rounds in which all sides take turns. Rows in which requests could
not be sent in time are marked: the load was not what it says. Ray Serve takes part where it is installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from arrivals import ARRIVALS, GOOD_S, trace_is_there
from batchers import ray_is_there, relay_side, rivals
from closed_loops import (
    LIMIT,
    alone_on_a_loop,
    alone_on_a_thread,
    batch_of_threads,
    capacity,
    coroutines_are_offered,
    echo,
    echo_async,
    overhead,
    runners,
    sixteen_threads,
)
from comparing import at_load, shares
from overload import TIERS, idle_cpu, overload, shared_pool

import relay

TASKS = (64, 512, 4096)
LOADS = (0.3, 0.6, 0.8, 0.95, 1.5, 2.0, 4.0)

EXAMPLES = """examples:
  python bench/engine.py                            everything, about 25 minutes
  python bench/engine.py closed open --seconds 0.3  what is quick, with short rounds
  python bench/engine.py open --loads 30 95 --arrivals poisson
  python bench/engine.py overload --seconds 60      one minute of overload with three tiers
"""


def tell(text: str) -> None:
    """One line of progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def say(text: str = "") -> None:
    """A line of the result."""
    tell("")
    print(text, flush=True)


def closed(options: argparse.Namespace) -> None:
    """Shares of the model's capacity in closed loops."""
    sides = [relay_side(), *rivals()]
    say(f"closed loop, share of capacity ({capacity():.0f} items a second); a relay's is to be 0.9")
    for tasks in TASKS:
        found = shares(sides, tasks, options.seconds or 0.7, options.rounds, tell)
        cells = (f"{side.name} {share:.2f}" for side, share in zip(sides, found, strict=True))
        say(f"  {tasks:5} tasks: " + ", ".join(cells))
    tell("closed loop of 64 threads")
    mean, rate = batch_of_threads(seconds=options.seconds or 1.0)
    say(f"  64 threads: mean batch {mean:.1f} of {LIMIT} (to be 55), {rate / capacity():.2f} of capacity")


def open_(options: argparse.Namespace) -> None:
    """Latencies and shares in time in open loops."""
    by_deadline = relay_side("relay, deadline 50 ms", deadline=GOOD_S)
    for arrivals in options.arrivals:
        if arrivals != "poisson" and not trace_is_there():
            say(f"open loop, {arrivals}: the recorded hour is not here; set RELAY_SHARED to the folder it is in")
            continue
        for load in (percent / 100 for percent in options.loads):
            sides = [relay_side(), by_deadline] if load <= 1 else [relay_side(by_deadline.name, GOOD_S, tickets=True)]
            rows = at_load([*sides, *rivals()], arrivals, load, options.seconds or 1.5, options.rounds, tell)
            say(f"open loop, {arrivals} at {load:.0%} of capacity")
            for name, (outcome, _, void) in rows.items():
                mark = f"  VOID in {void} rounds: sent {outcome.late * 1e3:.1f} ms late at p99" if void else ""
                say(
                    f"  {name:22} p50 {outcome.p50 * 1e3:7.1f} ms, p99 {outcome.p99 * 1e3:7.1f} ms, "
                    f"in 50 ms {outcome.good:7.2%} ({outcome.good_rate:6.0f}/s), refused {outcome.refused:6.2%}, "
                    f"cpu {outcome.cpu * 1e6:5.1f} us{mark}"
                )


def noop(options: argparse.Namespace) -> None:
    """What a relay adds to a model that does nothing."""
    seconds = options.seconds or 0.5
    models = [("thread lane", echo)] + ([("coroutine lane", echo_async)] if coroutines_are_offered() else [])
    say("model that does nothing, requests a second over those of a future by call_soon; to be 0.5")
    for loop, run in runners().items():
        for kind, model in models:
            for tasks in TASKS:
                tell(f"{kind}, {loop}, {tasks} tasks")
                ours, floor = overhead(tasks, run, seconds, options.rounds, model)
                say(
                    f"  {kind}, {loop}, {tasks:5} tasks: {ours.rate / floor.rate:.2f} ({ours.rate:.0f}/s of "
                    f"{floor.rate:.0f}/s; {ours.cpu * 1e6:.1f} us of processor time a request, floor "
                    f"{floor.cpu * 1e6:.1f} us)"
                )
    if len(models) == 1:
        say("  coroutine lane: not offered")
    tell("16 threads")
    ours, theirs = sixteen_threads(seconds, options.rounds)
    say(
        f"  16 threads: {ours.rate / theirs.rate:.2f} of a SimpleQueue batcher (to be 1); {ours.cpu * 1e6:.1f} us of "
        f"processor time a request, it {theirs.cpu * 1e6:.1f} us"
    )
    alone: dict[str, Callable[[], tuple[float, float]]] = {"a thread": alone_on_a_thread}
    for loop, run in runners().items():
        alone[f"a coroutine, {loop}"] = lambda run=run: alone_on_a_loop(run)  # type: ignore[misc]
    for name, measure in alone.items():
        tell(f"alone, {name}")
        took, bare = measure()
        say(
            f"  alone, from {name}: {took * 1e6:.1f} us, bare hand-off and back {bare * 1e6:.1f} us: "
            f"{took / bare:.2f} times (to be at most 1.5)"
        )


def tiers(options: argparse.Namespace) -> None:
    """Lasting overload with three tiers, and two relays on one pool."""
    seconds = options.seconds or 60.0
    for switch_s in (sys.getswitchinterval(), 0.0002):  # as it is, and as the documentation says where latency counts
        tell(f"{seconds:g} s at 120 % of capacity, switch interval {switch_s * 1e3:g} ms")
        found = overload(seconds, switch_s=switch_s)
        say(
            f"{seconds:g} s at 120 % of capacity, switch interval {switch_s * 1e3:g} ms, a full batch takes "
            f"{found.batch_s * 1e3:.2f} ms, sent {found.late * 1e3:.1f} ms late at p99"
        )
        for level, tier in found.tiers.items():
            took = f"p99 {tier.p99() * 1e3:7.1f} ms"
            say(
                f"  {TIERS[level][0]:12} {tier.sent:7} sent, served {tier.served:7.2%}, {took}, "
                f"{len(tier.refused_after)} refused, p99 {tier.refused_p99() * 1e3:.1f} ms after they were due"
            )
        for text in found.misses():
            say(f"  missed: {text}")
    tell("two relays on one pool")
    try:
        shared = shared_pool(seconds / 2)
    except TypeError:
        say("  two relays on one pool: not offered")
    else:
        say(f"  two relays on one pool: urgent p99 {shared.p99 * 1e3:.0f} ms, to be {shared.heavy + shared.own:.3f} s")


def idle(options: argparse.Namespace) -> None:
    """What a relay uses when nothing is asked of it."""
    seconds = options.seconds or 10.0
    tell(f"idle for {seconds:g} s")
    say(f"idle relay: {idle_cpu(seconds):.3%} of a core over {seconds:g} s, to be under 0.2 %")


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "closed": closed,
    "open": open_,
    "noop": noop,
    "overload": tiers,
    "idle": idle,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python bench/engine.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"which tables: {', '.join(PARTS)}; all if none is given"
    )
    parser.add_argument(
        "--seconds", type=float, help="of each round of each side (of the whole run for overload, idle)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how many; medians count (default: %(default)s)")
    parser.add_argument(
        "--loads",
        type=float,
        nargs="+",
        default=[load * 100 for load in LOADS],
        metavar="PERCENT",
        help="of the model's capacity, for open loops",
    )
    parser.add_argument("--arrivals", nargs="+", choices=list(ARRIVALS), default=list(ARRIVALS), help="for open loops")
    options = parser.parse_args()
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"there is no part {part!r}; choose from {', '.join(PARTS)}")
    guest = "takes part" if ray_is_there() else "is not installed"
    say(f"relay {relay.__version__}, {relay.backend} backend; Ray Serve {guest}")
    for part in options.parts or PARTS:
        PARTS[part](options)


if __name__ == "__main__":
    main()
