"""Whose turn it is: from a request's facts to one integer, smaller first.

A tier's settings are those of the nearest named tier at or below it. Keys are computed once, at arrival, by the
arriving thread; equal keys are served in order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping

from relay.clock import NS

REALTIME = 0
INTERACTIVE = 1
BATCH = 2

Priority = int | str

_NAMES = {"realtime": REALTIME, "interactive": INTERACTIVE, "batch": BATCH}
_TIME_BITS = 55
# In steps of 64 ns, 55 bits last 73 years; what falls into one step keeps its order of arrival.
_STEP_BITS = 6
_LONGEST_NS = 1 << 60  # 36 years: longer allowances would carry into the tier's bits
MAX_PRIORITY = 255


def tier(priority: Priority) -> int:
    """The number of a priority given as a number or a name.

    Raises:
        ValueError: An unknown name, or a number outside 0 to 255.
        TypeError: Neither a number nor a name.
    """
    if type(priority) is int and 0 <= priority <= MAX_PRIORITY:
        return priority
    if isinstance(priority, str):
        try:
            return _NAMES[priority.lower()]
        except KeyError:
            raise ValueError(
                f"unknown priority {priority!r}; use one of {', '.join(_NAMES)}, or a number from 0 to 255"
            ) from None
    if not isinstance(priority, int):
        raise TypeError(f"priority must be an int from 0 to 255 or a name, got {type(priority).__name__}")
    if not 0 <= priority <= MAX_PRIORITY:
        raise ValueError(f"priority must be from 0 to 255, got {priority}")
    return int(priority)


class DynamicPriority:
    """Tier first; inside a tier the smallest of arrival + allowance and deadline.

    Args:
        allowance: For each named tier, the seconds for which one of its requests may be overtaken by later ones of its
            tier. Tiers above the first named one take its settings.
    """

    def __init__(self, allowance: Mapping[int, float] | None = None) -> None:
        named = dict(allowance) if allowance is not None else {REALTIME: 0.05, INTERACTIVE: 0.5, BATCH: 10.0}
        if not named:
            raise ValueError("allowance must name at least one tier, for example {relay.BATCH: 10.0}")
        for priority, seconds in named.items():
            tier(priority)
            if not 0 <= seconds < float("inf"):
                raise ValueError(f"an allowance must be a finite number of seconds of at least 0, got {seconds!r}")
        self.allowance_ns = [0] * (MAX_PRIORITY + 1)
        current = named[min(named)]
        for priority in range(MAX_PRIORITY + 1):
            current = named.get(priority, current)
            self.allowance_ns[priority] = int(min(current * NS, _LONGEST_NS))

    def key(self, priority: int, arrival_ns: int, deadline_ns: int = -1) -> int:
        """The key of a request.

        Args:
            priority: 0 to 255.
            arrival_ns: When it came.
            deadline_ns: When it must have been started, or -1.
        """
        due_ns = arrival_ns + self.allowance_ns[priority]
        if 0 <= deadline_ns < due_ns:
            due_ns = deadline_ns
        return priority << _TIME_BITS | due_ns >> _STEP_BITS
