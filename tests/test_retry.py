"""Retry: its delays and its settings."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from retry_kit import JITTER, PLAIN

from relay.retry import Retry

# Delays


@pytest.mark.parametrize("jitter", JITTER)
@pytest.mark.parametrize("factor", [1, 1.0, 1.0000001, 2, 2.0, 1e300])
@pytest.mark.parametrize("attempt", [0, 1, 10, 1023, 1024, 1025, 10**6, 10**18, 10**400])
def test_f1_delays_are_finite_and_at_most_the_cap(attempt: int, factor: float, jitter: Any) -> None:
    for base in (0, 5e-324, 0.05, 7.0, 1.7e308):
        for cap in (0, 5e-324, 1, 1.7e308):
            delay = Retry(base=base, factor=factor, cap=cap, jitter=jitter).delay(attempt)
            assert type(delay) is float and math.isfinite(delay) and 0 <= delay <= cap


numbers = st.floats(0, allow_infinity=False, allow_nan=False)


@given(
    base=numbers, cap=numbers, factor=st.floats(1, allow_infinity=False), jitter=st.sampled_from(JITTER),
    attempt=st.integers(0, 10**7), seed=st.integers(0, 99),
)  # fmt: skip
def test_f1_any_settings(base: float, cap: float, factor: float, jitter: Any, attempt: int, seed: int) -> None:
    retry = Retry(base=base, factor=factor, cap=cap, jitter=jitter)
    longest = dataclasses.replace(retry, jitter="none").delay(attempt)
    delay = retry.delay(attempt, random.Random(seed))
    assert {"full": 0, "equal": longest / 2, "none": longest}[jitter] <= delay <= longest <= cap
    assert longest <= dataclasses.replace(retry, jitter="none").delay(attempt + 1)


def test_delays_grow_by_the_factor_up_to_the_cap() -> None:
    retry = Retry(base=0.5, factor=2, cap=3.0, jitter="none")
    assert [retry.delay(i) for i in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert Retry(base=5.0, cap=1.0, jitter="none").delay(0) == 1.0
    assert Retry(base=0.25, factor=1, jitter="none").delay(10**400) == 0.25
    assert Retry(base=0, jitter="none").delay(10**400) == 0.0


@pytest.mark.parametrize(("jitter", "least"), [("full", 0.0), ("equal", 1.0)])
def test_jitter_is_spread_evenly(jitter: Any, least: float, rng: random.Random) -> None:
    retry, drawn, bins = Retry(base=2.0, cap=10.0, jitter=jitter), 20_000, 10
    counts = [0] * bins
    for _ in range(drawn):
        delay = retry.delay(0, rng)
        counts[min(int((delay - least) / (2.0 - least) * bins), bins - 1)] += 1
    sigma = math.sqrt(drawn * (1 / bins) * (1 - 1 / bins))
    assert all(abs(count - drawn / bins) < 6 * sigma for count in counts), counts


def test_jitter_is_repeatable_only_with_a_generator_of_ones_own() -> None:
    assert Retry().delay(3, random.Random(5)) == Retry().delay(3, random.Random(5))
    # Replicas of a service seed the module's generator alike, and must not come back together.
    state = random.getstate()
    delays = set()
    for _ in range(3):
        random.seed(5)
        delays.add(Retry().delay(3))
    assert len(delays) == 3
    random.setstate(state)


def test_no_delay_before_the_first_retry() -> None:
    with pytest.raises(ValueError, match="attempt must be at least 0, got -1"):
        Retry().delay(-1)


# Settings


def test_settings() -> None:
    retry = Retry()
    assert dataclasses.astuple(retry) == (3, 0.05, 2.0, 1.0, "full", None, None)
    assert retry == Retry() and hash(retry) == hash(Retry()) and retry != PLAIN
    with pytest.raises(dataclasses.FrozenInstanceError):
        retry.cap = 2.0  # type: ignore[misc]
    assert repr(retry).startswith("Retry(max_retries=3, base=0.05, factor=2.0")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_retries": -1}, "max_retries must be a whole number of at least 0, got -1"),
        ({"max_retries": 1.0}, "max_retries must be a whole number"),
        ({"max_retries": None}, "max_retries must be a whole number"),
        ({"base": -0.1}, "base must be a finite number of at least 0, got -0.1"),
        ({"base": float("nan")}, "base must be a finite number of at least 0, got nan"),
        ({"base": "1"}, "base must be a finite number of at least 0, got '1'"),
        ({"base": 10**400}, "base must be a finite number"),
        ({"factor": 0.99}, "factor must be a finite number of at least 1, got 0.99"),
        ({"factor": float("inf")}, "factor must be a finite number"),
        ({"factor": float("nan")}, "factor must be a finite number"),
        ({"cap": -1}, "cap must be a finite number of at least 0"),
        ({"cap": float("inf")}, "cap must be a finite number"),
        ({"cap": None}, "cap must be a finite number"),
        ({"jitter": "half"}, "jitter must be one of 'full', 'equal', 'none', got 'half'"),
        ({"jitter": None}, "jitter must be one of"),
        ({"total": -1}, "total must be None or a number of seconds of at least 0, got -1"),
        ({"total": float("nan")}, "total must be None or a number of seconds of at least 0, got nan"),
        ({"budget": 0.1}, "budget must be a relay.RetryBudget or None, got 0.1"),
    ],
)
def test_bad_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Retry(**settings)
