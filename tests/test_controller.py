"""The controllers: single samples, what holds for any samples, and where they settle on a simulated device.

All in virtual time. Controllers use nothing of the core, so there is no side to choose here.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.controller import AIMD, PID, Controller, Fixed, Gradient, Sample, Step
from relay.samples import known, surely_overloaded, whole

MOST = 1000
BUSY = Sample(now=0.0, limit=10, in_use=10, waiting=3, load=0.5, latency=0.05, completed=100, dropped=0)


def seen(**changes: Any) -> Sample:
    return replace(BUSY, **changes)


def clamped(wanted: float) -> int:
    return whole(min(max(wanted, 1), MOST))


def published() -> AIMD:
    return AIMD(0.1, times=1.2, add=0, below=0.6, low=10, high=200)


def test_samples_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        BUSY.limit = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("reading", "is_known"),
    [(0, True), (0.5, True), (1.7, True), (None, False), (math.nan, False), (math.inf, False), (-0.1, False)],
)  # fmt: skip
def test_readings(reading: float | None, is_known: bool) -> None:
    assert known(reading) == (reading if is_known else None)


def test_whole() -> None:
    assert [whole(x) for x in (1, 1.999, 2.0, 30 * 0.1, 100 * 1.15, 2.9999999999)] == [1, 1, 2, 3, 115, 3]


# Settings


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Fixed(0), "n must be a whole number of at least 1, got 0"),
        (lambda: Fixed(2.0), "n must be a whole number of at least 1, got 2.0"),  # type: ignore[arg-type]
        (lambda: Fixed(True), "n must be a whole number"),
        (lambda: Step(above=1.1), "above must be a number of at least 0 and at most 1, got 1.1"),
        (lambda: Step(by=0), "by must be a number over 0, got 0"),
        (lambda: Step(by="a lot"), "by must be a number over 0, got 'a lot'"),  # type: ignore[arg-type]
        (lambda: Step(below=0.9), "below must be a number of at least 0 and at most 0.8, got 0.9"),
        (lambda: Step(down=2), "down must be a number over 0 and at most 1, got 2"),
        (lambda: AIMD(0), "target must be a number over 0, got 0"),
        (lambda: AIMD(math.nan), "target must be a number over 0, got nan"),
        (lambda: AIMD(1, add=-1), "add must be a number of at least 0"),
        (lambda: AIMD(1, times=0.9), "times must be a number of at least 1"),
        (lambda: AIMD(1, down=1), "down must be a number of at least 0 and under 1, got 1"),
        (lambda: AIMD(1, patience=0), "patience must be a whole number of at least 1"),
        (lambda: AIMD(1, below=0), "below must be a number over 0 and at most 1"),
        (lambda: AIMD(1, low=0), "low must be a whole number of at least 1"),
        (lambda: AIMD(1, low=5, high=4), "high must be a whole number of at least 5, got 4"),
        (lambda: Gradient(tolerance=0.9), "tolerance must be a number of at least 1"),
        (lambda: Gradient(smoothing=0), "smoothing must be a number over 0 and at most 1"),
        (lambda: Gradient(probe=1), "probe must be a number over 0 and under 1"),
        (lambda: Gradient(probe_every=-1), "probe_every must be a number over 0"),
        (lambda: Gradient(high=0), "high must be a whole number of at least 1"),
        (lambda: PID(0), "target must be a number over 0 and at most 1"),
        (lambda: PID(ki=math.inf), "ki must be a number of at least 0, got inf"),
        (lambda: PID(kp=-1), "kp must be a number of at least 0"),
        (lambda: PID(low=2, high=1), "high must be a whole number of at least 2"),
    ],
)  # fmt: skip
def test_bad_settings(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value).startswith(text)


def test_they_show_their_settings_and_not_their_state() -> None:
    assert repr(Step()) == "Step(above=0.8, by=0.1, below=None, down=0.1)"
    assert repr(Fixed(3)) == "Fixed(n=3)"
    for controller in (AIMD(0.1), Gradient(probe_every=math.inf), PID()):
        assert "_" not in repr(controller).replace("probe_every", "")


# Single samples


def test_fixed() -> None:
    assert Fixed(7).update(seen(load=None, latency=None, dropped=5)) == 7


@pytest.mark.parametrize(
    ("limit", "load", "wanted"),
    [(10, 0.81, 11), (10, 0.8, 10), (10, 0.0, 10), (4, 0.9, 5), (1, 1.0, 2), (100, 1.0, 110), (25, 0.9, 27),
     (10, None, 10), (10, math.nan, 10)],
)  # fmt: skip
def test_step(limit: int, load: float | None, wanted: int) -> None:
    for in_use in (0, limit):  # this rule alone looks at nothing but the load
        assert clamped(Step().update(seen(limit=limit, load=load, in_use=in_use))) == wanted


@pytest.mark.parametrize(
    ("limit", "load", "wanted"), [(10, 0.2, 9), (100, 0.2, 90), (2, 0.2, 1), (1, 0.0, 1), (10, 0.3, 10), (10, None, 10)]
)
def test_step_down(limit: int, load: float | None, wanted: int) -> None:
    assert clamped(Step(below=0.3).update(seen(limit=limit, load=load))) == wanted


def updates(controller: Controller, *samples: Sample) -> list[int]:
    """What a controller wants of one sample after the other, each with the limit it wanted before."""
    limit, wanted = samples[0].limit, []
    for sample in samples:
        limit = clamped(controller.update(replace(sample, limit=limit, in_use=round(sample.in_use * limit / 10))))
        wanted.append(limit)
    return wanted


GOOD, SLOW, LOST = seen(), seen(latency=0.2), seen(latency=None, completed=0, dropped=1)
NOTHING = seen(latency=None, completed=0)


@pytest.mark.parametrize(
    ("samples", "wanted"),
    [
        ([GOOD, GOOD], [11, 12]),
        ([SLOW, SLOW, SLOW, SLOW], [10, 10, 8, 8]),
        ([LOST, SLOW, LOST, GOOD], [10, 10, 8, 9]),
        ([SLOW, SLOW, GOOD, SLOW, SLOW], [10, 10, 11, 11, 11]),  # not in a row
        ([SLOW, NOTHING, SLOW, NOTHING, SLOW], [10, 10, 10, 10, 8]),  # nothing says nothing
        ([seen(latency=0.1)], [11]),  # on target
        ([seen(dropped=5)], [11]),  # one in twenty fails by itself
        ([seen(dropped=6)], [10]),
        ([seen(in_use=8, waiting=0)], [10]),  # a higher limit would not be used
        ([seen(in_use=9, waiting=0)], [11]),
        ([seen(in_use=5, waiting=1)], [11]),  # someone waits for more than is free
        ([seen(in_use=4, waiting=1)], [10]),
        ([seen(latency=math.nan)], [10]),
    ],
)
def test_aimd(samples: list[Sample], wanted: list[int]) -> None:
    assert updates(AIMD(0.1), *samples) == wanted


def test_aimd_without_a_target_looks_at_drops_alone() -> None:
    assert updates(AIMD(), *[seen(latency=100.0)] * 3, *[LOST] * 3) == [11, 12, 13, 13, 13, 10]


def test_aimd_keeps_parts_of_a_token() -> None:
    assert updates(AIMD(0.1, add=0.25), *[GOOD] * 5) == [10, 10, 10, 11, 11]
    small = AIMD(0.1, times=1.2, add=0)
    assert updates(small, *[seen(limit=2)] * 4) == [2, 2, 3, 4]
    assert updates(small, *[seen(limit=2)] * 4) == [2, 2, 3, 4]  # what was earned elsewhere is worth nothing here


def test_the_published_rule_for_batch_sizes() -> None:
    assert updates(published(), *[seen(limit=50)] * 8) == [60, 72, 86, 103, 124, 149, 179, 200]
    assert updates(published(), *[seen(limit=50, load=0.6)] * 2) == [50, 50]
    assert updates(published(), *[seen(limit=50, load=None)] * 2) == [50, 50]
    assert updates(published(), *[seen(limit=50, latency=0.2)] * 7) == [50, 50, 40, 40, 40, 32, 32]
    assert updates(published(), *[seen(limit=11, latency=0.2)] * 6)[-1] == 10


def test_a_bound_does_not_widen() -> None:
    for controller in (AIMD(0.1, low=8), PID(low=8), Gradient(low=8)):
        assert controller.update(seen(limit=4, in_use=4, load=None, latency=None, completed=0)) == 4
    for controller in (AIMD(0.1, high=8), PID(high=8), Gradient(high=8)):
        assert controller.update(seen(limit=12, in_use=4, load=None, latency=None, completed=0)) == 8


def test_pid_moves_with_time_and_the_error() -> None:
    def after(load: float, seconds: float, **settings: float) -> float:
        pid = PID(0.8, **settings)  # type: ignore[arg-type]
        pid.update(seen(limit=100, in_use=100, load=0.8))
        return pid.update(seen(now=seconds, limit=100, in_use=100, load=load))

    assert after(0.4, 1, kp=0) == pytest.approx(110)  # half of the load is missing: a fifth of that in a second
    assert after(0.4, 2, kp=0) == pytest.approx(120)
    assert after(0.4, 1e9, kp=0) == pytest.approx(125)  # no more than half of the error at once
    assert after(0.4, 1, kp=0.2) == pytest.approx(120)
    assert after(1.0, 1, kp=0) == 95
    assert after(0.8, 1) == 100
    for seconds in (0, -1):  # two samples of one moment, or out of order
        assert after(0.4, seconds) == 100


def test_pid_damps_a_turn_of_the_load() -> None:
    def third(kd: float) -> float:
        pid = PID(0.8, kp=0, ki=0.1, kd=kd)
        for now, load in ((0.0, 0.2), (1.0, 0.2)):
            pid.update(seen(now=now, limit=100, in_use=100, load=load))
        return pid.update(seen(now=2.0, limit=100, in_use=100, load=0.5))

    assert third(0.1) < third(0.0)


def test_pid_is_content_within_half_a_token() -> None:
    pid = PID(0.8, kp=0)
    for now in range(200):
        assert pid.update(seen(now=float(now), limit=7, in_use=7, load=7 * 0.11)) == 7
    wanted = [pid.update(seen(now=200.0 + i, limit=8, in_use=8, load=8 * 0.11)) for i in range(7)]
    assert wanted == [8, 8, 8, 8, 8, 8, 7]


def test_pid_gives_back_what_a_guard_held_back() -> None:
    """Idle and busy by turns: the load falls while nobody asks, which must not become a cut when they come back."""
    pid, limit = PID(0.8), 20
    for now in range(100):
        idle = now % 2
        sample = seen(now=float(now), limit=limit, in_use=0 if idle else limit, waiting=0, load=0.1 if idle else 0.8)
        limit = clamped(pid.update(sample))
        assert limit == 20


# Any samples


READINGS = st.one_of(st.none(), st.just(math.nan), st.floats(0, 1))
SAMPLES: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    period=st.sampled_from([0.0, 0.1, 1.0, 60.0]),
    share=st.floats(0, 1.5),
    waiting=st.integers(0, 5),
    load=READINGS,
    latency=st.one_of(READINGS, st.floats(0, 1e6)),
    completed=st.integers(0, 1000),
    dropped=st.one_of(st.just(0), st.integers(0, 100)),
    resized=st.one_of(st.none(), st.none(), st.none(), st.integers(1, MOST)),
)
KINDS: dict[str, Callable[[], Controller]] = {
    "step": lambda: Step(below=0.3),
    "aimd": lambda: AIMD(0.1),
    "aimd with bounds": lambda: AIMD(0.1, add=0.3, low=5, high=50),
    "aimd by load": published,
    "gradient": lambda: Gradient(),
    "gradient with bounds": lambda: Gradient(probe_every=3, low=5, high=50),
    "pid": lambda: PID(),
    "pid with bounds": lambda: PID(kp=1, kd=0.5, low=5, high=50),
}
by_kind = pytest.mark.parametrize("kind", KINDS)


@by_kind
@given(start=st.integers(1, MOST), steps=st.lists(SAMPLES, max_size=40))
def test_what_holds_for_any_samples(kind: str, start: int, steps: list[dict[str, Any]]) -> None:
    one, two = KINDS[kind](), KINDS[kind]()
    now, limit, before_probe = 0.0, start, 0
    for step in steps:
        now += step.pop("period")
        resized = step.pop("resized")
        limit = resized or limit
        sample = Sample(now=now, limit=limit, in_use=int(limit * step.pop("share")), **step)
        probing = isinstance(one, Gradient) and one.probing
        wanted = one.update(sample)
        assert two.update(sample) == wanted, "not deterministic"
        assert math.isfinite(wanted)
        low, high = getattr(one, "low", 1), getattr(one, "high", None) or math.inf
        probes = probing or isinstance(one, Gradient) and one.probing
        assert (1 if probes else min(low, limit)) <= wanted <= high, "out of bounds"
        uses_load = isinstance(one, Step | PID) or isinstance(one, AIMD) and one.below is not None
        if uses_load and known(sample.load) is None:
            assert wanted <= limit, "widened by an unknown load"
        if not isinstance(one, Step) and sample.in_use < limit / 2:
            assert wanted <= limit, "widened though it was not this limit that held anybody up"
        if sample.dropped > 0.05 * (sample.dropped + sample.completed):
            # A few failures in a small sample may be chance: a probe ends with them where it began.
            back = probing and not surely_overloaded(sample) and wanted < before_probe + 1
            assert wanted <= limit or back, "widened by drops"
        if probing and not resized and wanted > limit:
            assert wanted < before_probe + 1, "a probe widened"
        if not probing:
            before_probe = limit
        limit = clamped(wanted)


# A simulated device


class Device:
    """A device that serves `servers` at once and lets all others stand in line inside: past that limit nothing but the
    latency grows. Callers want it without end, or come at a rate.

    Args:
        limit: Tokens at first.
        service: Mean seconds to serve one.
        rate: Callers a second, or None for no end of them.
        failing: The share of the work that fails after a millisecond.
    """

    def __init__(
        self,
        rng: random.Random,
        limit: int,
        *,
        servers: int = 16,
        service: float = 0.05,
        rate: float | None = None,
        failing: float = 0.0,
    ) -> None:
        self.rng, self.limit, self.servers, self.service, self.rate, self.failing = (
            rng, limit, servers, service, rate, failing,
        )  # fmt: skip
        self.now = 0.0
        self.in_use = self.waiting = self.serving = self.done = 0
        self.errors_are_latency = False
        self._inside: deque[float] = deque()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._spent = self._busy = self._since = 0.0
        self._completed = self._dropped = 0
        if rate is not None:
            self._after(rng.expovariate(rate), self._arrive)

    def drive(self, controller: Controller, seconds: int, every: float = 1.0) -> list[int]:
        """Let a controller set the limit once a period. Returns the limits."""
        limits = []
        for _ in range(round(seconds / every)):
            self._grant()
            end = self.now + every
            while self._events and self._events[0][0] <= end:
                self.now, _, event, about = heapq.heappop(self._events)
                event(*about)
            self.now = end
            self.limit = clamped(controller.update(self._sample()))
            limits.append(self.limit)
        return limits

    def _sample(self) -> Sample:
        load = min(self._busy / (self.servers * (self.now - self._since)), 1.0)
        latency = self._spent / self._completed if self._completed else None
        waiting = self.waiting if self.rate is not None else 1
        sample = Sample(self.now, self.limit, self.in_use, waiting, load, latency, self._completed, self._dropped)
        self._spent = self._busy = 0.0
        self._completed = self._dropped = 0
        self._since = self.now
        return sample

    def _after(self, seconds: float, event: Callable[..., None], *about: Any) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event, about))

    def _arrive(self) -> None:
        assert self.rate is not None
        self.waiting += 1
        self._after(self.rng.expovariate(self.rate), self._arrive)
        self._grant()

    def _grant(self) -> None:
        while self.in_use < self.limit and (self.waiting or self.rate is None):
            self.waiting -= self.rate is not None
            self.in_use += 1
            if self.rng.random() < self.failing:
                self._after(0.001, self._end, self.now, True)
            else:
                self._inside.append(self.now)
                self._serve()

    def _serve(self) -> None:
        if self._inside and self.serving < self.servers:
            self.serving += 1
            seconds = self.service * self.rng.expovariate(1)
            self._busy += seconds
            self._after(seconds, self._served, self._inside.popleft())

    def _served(self, granted: float) -> None:
        self.serving -= 1
        self._serve()
        self._end(granted, False)

    def _end(self, granted: float, failed: bool) -> None:
        self.in_use -= 1
        if failed and not self.errors_are_latency:
            self._dropped += 1
        else:
            self._completed += 1
            self.done += not failed
            self._spent += self.now - granted
        self._grant()


@pytest.mark.parametrize("start", [1, 16, 200])
@pytest.mark.parametrize("controller", [AIMD(0.07), Gradient()], ids=["aimd", "gradient"])
def test_settling_near_the_knee(controller: AIMD | Gradient, start: int, rng: random.Random) -> None:
    controller, device = replace(controller), Device(rng, start)
    device.drive(controller, 120)
    device.done = 0
    limits = device.drive(controller, 120)
    calm = [limit for limit in limits if limit >= 16]  # without a gradient's probes
    assert 16 <= statistics.mean(calm) <= 29 and max(limits) <= 32
    assert device.done >= 0.9 * 120 * 16 / 0.05  # and hardly anything is lost by it


def test_gradient_follows_a_device_that_changes(rng: random.Random) -> None:
    device, gradient = Device(rng, 16), Gradient()
    device.drive(gradient, 60)
    for servers, service in ((16, 0.2), (4, 0.05), (32, 0.05)):
        device.servers, device.service = servers, service
        device.drive(gradient, 180)
        assert servers <= statistics.median(device.drive(gradient, 60)) <= 2 * servers + 2


def test_gradient_where_work_is_slower_than_the_period(rng: random.Random) -> None:
    device, gradient = Device(rng, 4, servers=4, service=2.0), Gradient()
    limits = device.drive(gradient, 900)
    assert 4 <= statistics.median(limits[300:]) <= 12
    assert device.done >= 0.85 * 900 * 4 / 2


def test_gradient_leaves_a_limit_alone_that_nobody_needs(rng: random.Random) -> None:
    assert set(Device(rng, 64, rate=100).drive(Gradient(), 120)) == {64}


def test_gradient_probes() -> None:
    gradient = Gradient(low=8)

    def update(now: float, limit: int, in_use: int, latency: float, completed: int = 100, dropped: int = 0) -> float:
        return gradient.update(seen(now=now, limit=limit, in_use=in_use, latency=latency, completed=completed,
                                    dropped=dropped))  # fmt: skip

    assert update(0, 10, 10, 0.1) == 10  # it has seen no period yet
    assert update(1, 10, 10, 0.1) == 5 and gradient.probing  # below `low`, which is not for probes
    assert update(2, 5, 7, 0.1) == 5  # not drained yet
    assert update(3, 5, 5, 0.1, completed=4) == 5  # few now, but granted among many
    assert update(4, 5, 5, 0.1, completed=4) == 5
    assert update(5, 5, 5, 0.1, completed=4) == 5
    assert update(6, 5, 5, 0.05, completed=4) == 5  # too few to be believed
    assert update(7, 5, 5, 0.05, completed=6) == 2  # as much work a second as before: the queue may be longer
    assert update(8, 2, 2, 0.05) == 2
    assert update(9, 2, 2, 0.05) == 2
    assert update(10, 2, 0, 0.05) == 2 and gradient.probing  # learned, but nobody is there to need more
    assert update(11, 2, 2, 0.05) == 10 and not gradient.probing
    assert (grown := update(12, 10, 10, 0.05)) == pytest.approx(10 + 0.2 * math.sqrt(10))
    assert update(13, 10, 10, 0.1) == pytest.approx(grown + 0.2 * (grown * 0.625 + math.sqrt(10) - grown))
    assert gradient.update(seen(now=14.0, in_use=8, waiting=0)) == 10  # a higher limit would not be used
    assert update(100, 10, 10, 0.05) > 5  # the first took ten seconds, so the next comes ninety later
    assert update(101, 10, 10, 0.05) == 5
    assert update(102, 5, 5, 0.05, dropped=20) == 5 and not gradient.probing  # it ends by an overload, for good
    assert update(200, 10, 10, 0.05) == 5
    assert update(201, 6, 6, 0.05) > 6 and not gradient.probing  # somebody else has set the limit


def test_gradient_gives_a_probe_up_that_learns_nothing() -> None:
    gradient, limit = Gradient(), 10
    limits = []
    for now in range(60):
        limit = clamped(gradient.update(seen(now=float(now), limit=limit, in_use=10, latency=0.1)))
        limits.append(limit)
    assert limits[:3] == [10, 5, 5] and set(limits[10:40]) == {10}


@pytest.mark.parametrize("start", [4, 32, 120])
@pytest.mark.parametrize("lag", [1.0, 0.5, 0.25])
def test_pid_settles_at_its_target(start: int, lag: float) -> None:
    """A device whose load follows the limit late, as an averaged reading does: on target with 32 tokens."""
    pid, limit, load, limits = PID(0.8), start, 0.0, []
    for now in range(180):
        load += lag * (min(limit / 40, 1.0) - load)
        limit = clamped(pid.update(seen(now=float(now), limit=limit, in_use=limit, load=load)))
        limits.append(limit)
    assert len(set(limits[90:])) == 1 and 31 <= limits[-1] <= 33
    turns = [a for a, b in itertools.pairwise(b - a for a, b in itertools.pairwise(limits)) if a * b < 0]
    assert len(turns) <= 2
    if start < 32:
        assert max(limits) <= 36


def test_pid_does_not_wind_up(rng: random.Random) -> None:
    """A long time at its bound costs nothing: it turns in the first sample that tells it to."""
    pid = PID(0.8, high=20)
    for now in range(1000):
        assert clamped(pid.update(seen(now=float(now), limit=20, in_use=20, load=0.3))) == 20
    assert clamped(pid.update(seen(now=1000.0, limit=20, in_use=20, load=1.0))) < 20


def test_pid_holds_the_load_of_a_device(rng: random.Random) -> None:
    device = Device(rng, 64)
    limits = device.drive(PID(0.8), 180)[60:]
    assert max(limits) - min(limits) <= 3 and 12 <= statistics.mean(limits) <= 14


# Row G1


@by_kind
def test_g1_half_of_the_work_fails_at_once(kind: str, rng: random.Random) -> None:
    device, controller = Device(rng, 16, failing=0.5), KINDS[kind]()
    for _ in range(60):
        assert device.drive(controller, 1)[0] <= 16


def test_g1_would_be_seen(rng: random.Random) -> None:
    """The same device, with errors taken for quick work."""
    device = Device(rng, 16, failing=0.5)
    device.errors_are_latency = True
    assert max(device.drive(AIMD(0.07), 60)) > 32


@pytest.mark.parametrize("controller", [AIMD(0.07), Gradient()], ids=["aimd", "gradient"])
def test_a_few_errors_are_no_overload(controller: AIMD | Gradient, rng: random.Random) -> None:
    device = Device(rng, 16, failing=0.01)
    device.drive(replace(controller), 120)
    assert device.done >= 0.9 * 120 * 16 / 0.05


@pytest.mark.parametrize(
    ("ended", "least"), [(1, 1), (3, 1), (4, 2), (10, 2), (30, 4), (100, 10), (1000, 65), (100_000, 5142)]
)
def test_how_many_failures_are_no_chance(ended: int, least: int) -> None:
    def surely(dropped: int) -> bool:
        return surely_overloaded(Sample(1.0, 10, 10, 0, None, 0.1, ended - dropped, dropped))

    assert surely(least) and not surely(least - 1)


def test_gradient_neither_grows_nor_shrinks_by_a_single_failure() -> None:
    gradient, now = Gradient(probe_every=math.inf), 0.0
    limit = 10

    def update(dropped: int) -> float:
        nonlocal now
        now += 1
        return gradient.update(Sample(now, limit, limit, 5, None, 0.5, 10 - dropped, dropped))

    for _ in range(20):
        limit = max(int(update(0)), 1)
    assert limit > 10 and not gradient.probing
    assert int(update(1)) == limit and int(update(2)) < limit
