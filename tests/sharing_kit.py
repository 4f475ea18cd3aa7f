"""What the rows on sharing need: a model that tells all it got, a hash that always collides, and a two-sample test."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

from near_values import tell

if TYPE_CHECKING:
    from both import Lab

Asked = tuple[Any, dict[str, Any] | None, str | None]
"""An item, its parameters, and whom it is for."""


class Echo:
    """A relay whose answers say what was asked, parameters and tenant included."""

    def __init__(self, lab: Lab, **options: Any) -> None:
        self._lab = lab
        self.model = lab.model(tell)
        self.relay = lab.start(self._call, **options)

    def _call(self, items: list[Any], **params: Any) -> list[Any]:
        told = self.model(items)
        return [(item, tell(params), whom) for item, whom in zip(told, self._lab.current_batch().tenants, strict=True)]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The lane is busy, with something that is not shared, and what is submitted stays queued."""
        with self._lab.testing.paused(self.relay, self.model, 1.5):
            yield

    def submit(self, asked: Asked) -> Any:
        item, params, tenant = asked
        return self.relay.submit(item, params=params, tenant=tenant)

    def ask(self, asked: Asked) -> Any:
        return self.submit(asked).result(30)

    @property
    def runs(self) -> int:
        """How many items the model was called with."""
        return sum(map(len, self.model.batches))


def answer_to(asked: Asked) -> Any:
    item, params, tenant = asked
    return tell(item), tell(params or {}), tenant


def two_sample_p(one: Sequence[float], two: Sequence[float]) -> float:
    """How likely two samples of one source would differ at least as much: Mann and Whitney's test, by the normal
    approximation with ties, which is good for 200 a side."""
    n, m = len(one), len(two)
    ordered = sorted([(value, 0) for value in one] + [(value, 1) for value in two])
    rank, ranks_of_one, ties = 0, 0.0, 0
    for _, group in groupby(ordered, key=lambda entry: entry[0]):
        members = [which for _, which in group]
        ranks_of_one += members.count(0) * (rank + (len(members) + 1) / 2)
        ties += len(members) ** 3 - len(members)
        rank += len(members)
    u = ranks_of_one - n * (n + 1) / 2
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1)))
    return math.erfc(abs(u - n * m / 2) / math.sqrt(2 * variance)) if variance > 0 else 1.0
