"""From what a user gives to a relay to what its rooms need: checked once, at construction, with the way out named.

Pure functions.
"""

from __future__ import annotations

import copy
from asyncio import iscoroutinefunction
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import Any, Literal

import numpy as np

from relay._backend import state
from relay.clock import limit_ns
from relay.controller import Deadline
from relay.limits import Limits
from relay.policy import MAX_PRIORITY, Priority, tier
from relay.pool import TokenPool
from relay.samples import Controller
from relay.station import Ways
from relay.steering import Steering

MOST_LANES = 64
"""As many as the queue can tell apart."""


def as_models(model: object, lanes: int) -> list[Callable[..., Any]]:
    """A model for each lane.

    Raises:
        TypeError: One cannot be called, or is a generator function.
        ValueError: There are none, or more than `MOST_LANES`, or both a list and a number of lanes.
    """
    number = None if isinstance(lanes, bool) else state.whole(lanes)
    if number is None or not 1 <= number <= MOST_LANES:
        raise ValueError(f"lanes must be a whole number from 1 to {MOST_LANES}, got {lanes!r}")
    if not isinstance(model, list | tuple):
        check_model(model)
        return [model] * number  # type: ignore[list-item]
    if number != 1:
        raise ValueError(f"a list of models has a lane for each, so lanes={lanes} says it twice; leave it out")
    if not 1 <= len(model) <= MOST_LANES:
        raise ValueError(f"a list of models must have 1 to {MOST_LANES} of them, got {len(model)}")
    for each in model:
        check_model(each)
    return list(model)


def as_limits(limits: Limits | None, **keywords: int | None) -> Limits:
    """The sizes of a relay: of `limits`, but for what is given by keyword and is not the default.

    Raises:
        TypeError: `limits` are none.
        ValueError: A size is out of range.
    """
    if limits is None:
        return Limits(**keywords)  # type: ignore[arg-type]
    if not isinstance(limits, Limits):
        raise TypeError(f"limits must be a relay.Limits, such as Limits(max_ids=100_000), got {limits!r}")
    default = Limits()
    given = {name: value for name, value in keywords.items() if value != getattr(default, name)}
    return replace(limits, **given)  # type: ignore[arg-type]


def as_linger(linger: float) -> int:
    """How long the user would have a lane wait, in nanoseconds.

    Raises:
        ValueError: It is negative, NaN or endless.
    """
    limit = limit_ns(linger, "linger")
    if limit is None:
        raise ValueError(f"linger must be a finite number of seconds, 0 for none of your own, got {linger!r}")
    return limit


def check_pool(pool: object) -> None:
    """Refuse what is no pool.

    Raises:
        TypeError: It is neither a `TokenPool` nor None.
    """
    if pool is not None and not isinstance(pool, TokenPool):
        raise TypeError(f"pool must be a relay.TokenPool, or None, got {pool!r}")


def check_model(model: object) -> None:
    """Refuse what cannot be a model.

    Raises:
        TypeError: It cannot be called, or is a generator function.
    """
    if not callable(model):
        raise TypeError(
            f"model must be callable, got {type(model).__name__}; pass a function or an object with __call__"
        )
    for function in (model, type(model).__call__):
        if isgeneratorfunction(function) or isasyncgenfunction(function):
            raise TypeError(
                "a generator cannot be a model, for streams are not supported; return a list with one row for each item"
            )


def check_options(
    flags: Mapping[str, object],
    hooks: Mapping[str, object],
    tokenizer: object,
    utilisation: object,
    clock: object,
) -> None:
    """Refuse what is of a wrong kind, before anything is built of it.

    Raises:
        TypeError: A flag is neither True nor False, a hook cannot be called for each item, or something lacks what is
            asked of its kind.
    """
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_) and (value is not None or name in ("isolate", "idempotent")):
            raise TypeError(f"{name} must be True or False, got {value!r}")
    for name, hook in hooks.items():
        check_hook(name, hook, _EXAMPLES[name])
    if utilisation is not None and not callable(utilisation):
        raise TypeError(f"utilisation must be None or a function that returns 0 to 1 or None, got {utilisation!r}")
    for name, value, needs in (
        ("tokenizer", tokenizer, ("max_length", "check", "reserve", "encode")),
        ("clock", clock, ("now_ns", "park")),
    ):
        if value is not None and (missing := [need for need in needs if not hasattr(value, need)]):
            raise TypeError(f"{name} must have {', '.join(needs)}; {type(value).__name__} has no {missing[0]}")


_EXAMPLES = {"prepare": "json.loads", "size": "len", "group": "np.shape", "key": "str"}


def check_hook(name: str, hook: object, example: str) -> None:
    """Refuse what cannot be called for each item.

    Raises:
        TypeError: It cannot be called, or calling it gives something to await or to iterate.
    """
    if hook is None:
        return
    if not callable(hook):
        raise TypeError(f"{name} must be a function of one item, such as {example}, got {type(hook).__name__}")
    for function in (hook, type(hook).__call__):
        if iscoroutinefunction(function) or isgeneratorfunction(function) or isasyncgenfunction(function):
            raise TypeError(
                f"{name} must be a plain function of one item, such as {example}: it is called on threads, so a "
                "coroutine or generator function cannot be used"
            )


def as_ways(
    *,
    isolate: bool,
    idempotent: bool,
    check_finite: bool,
    mixed: Sequence[str],
    reserved: Mapping[Priority, int] | None,
    max_batch_size: int,
    timeout_run: float | None,
    admit: Literal["queue", "predict"],
    prepared: bool,
    grouped: bool,
) -> Ways:
    """How a relay treats its batches; see `Relay`.

    Raises:
        TypeError: `mixed` is one name, or has something that is none; or `reserved` is no mapping.
        ValueError: `admit` is neither, a time is out of range, or more places are reserved than a batch has.
    """
    if isinstance(mixed, str) or not isinstance(mixed, Iterable) or not all(isinstance(name, str) for name in mixed):
        raise TypeError(f"mixed must be a sequence of names, such as ('top_k',), got {mixed!r}")
    if admit not in ("queue", "predict"):
        raise ValueError(f"admit must be 'queue' or 'predict', got {admit!r}")
    run_limit = limit_ns(timeout_run, "timeout_run")
    if run_limit == 0:
        raise ValueError("timeout_run must be more than 0 seconds, or None for no limit")
    return Ways(
        isolate=isolate,
        idempotent=idempotent,
        check_finite=check_finite,
        mixed=tuple(mixed),
        places=_places(reserved, max_batch_size),
        run_limit_ns=run_limit or 0,
        finish=admit == "predict",
        prepared=prepared,
        grouped=grouped,
    )


def _places(reserved: Mapping[Priority, int] | None, most: int) -> tuple[tuple[int, int], ...]:
    """For the priorities below each reserved tier, how many members of a batch they may be."""
    kept, places = 0, []
    if reserved is not None and not isinstance(reserved, Mapping):
        raise TypeError(f"reserved must map tiers to places, such as {{relay.REALTIME: 8}}, got {reserved!r}")
    named = sorted((tier(level), count) for level, count in (reserved or {}).items())
    for level, given in named:
        count = None if isinstance(given, bool) else state.whole(given)
        if count is None or count < 0:
            raise ValueError(f"reserved must map tiers to whole numbers of places of at least 0, got {given!r}")
        kept += count
        if kept >= most:
            raise ValueError(
                f"reserved keeps {kept} of the max_batch_size={most} places of a batch; leave some to the other tiers"
            )
        if level < MAX_PRIORITY and count:
            places.append((level + 1, most - kept))
    return tuple(places)


def as_deadlines(deadlines: Mapping[Priority, float] | None) -> tuple[int, ...]:
    """For each priority, the deadline of requests that name none, 0 for none; empty if no tier has one.

    A priority that is not named takes that of the nearest named tier at or below its number; none, if there is none.

    Raises:
        TypeError: It is no mapping.
        ValueError: A deadline is 0, negative or NaN.
    """
    if deadlines is None:
        return ()
    if not isinstance(deadlines, Mapping):
        raise TypeError(f"deadlines must map tiers to seconds, such as {{relay.REALTIME: 0.2}}, got {deadlines!r}")
    if not deadlines:
        return ()
    named = {tier(level): limit_ns(seconds, "deadlines") for level, seconds in deadlines.items()}
    if 0 in named.values():
        raise ValueError("a default deadline must be more than 0 seconds, or None for none")
    found, current = [], 0
    for level in range(MAX_PRIORITY + 1):
        current = (named[level] or 0) if level in named else current
        found.append(current)
    return tuple(found)


def new_steering(
    controller: Controller | None,
    most: int,
    utilisation: Callable[[], float | None] | None,
    lanes: int,
    name: str,
) -> Steering:
    """What drives a controller for one model; each model gets a copy of the controller, for it remembers."""
    own = Deadline() if controller is None else copy.deepcopy(controller)
    return Steering(own, most, utilisation if utilisation is not None else "busy", lanes=lanes, name=name)
