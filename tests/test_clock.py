"""Time limits, gates, and the alarm."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from relay.clock import FOREVER_NS, MONOTONIC, NS, Alarm, limit_ns, release_once
from relay.testing import FakeClock


@pytest.mark.parametrize(
    ("seconds", "limit"),
    [(None, None), (float("inf"), None), (1e10, None), (0, 0), (0.0, 0), (1e-9, 1), (1e-12, 1), (0.5, NS // 2), (1, NS),
     (4294967.296, 4294967296000000), (True, NS)],
)  # fmt: skip
def test_a9_limits(seconds: float | None, limit: int | None) -> None:
    assert limit_ns(seconds, "timeout") == limit


@pytest.mark.parametrize("seconds", [-1, -1e-9, float("-inf"), float("nan")])
def test_a9_no_limits(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"timeout must be None or a number of seconds of at least 0, got {seconds}"):
        limit_ns(seconds, "timeout")


def held() -> threading.Lock:
    gate = threading.Lock()
    gate.acquire()
    return gate


def test_parking_on_the_real_clock() -> None:
    now = MONOTONIC.now_ns()
    assert not MONOTONIC.park(held(), now - 1)
    assert not MONOTONIC.park(held(), now + 1000)
    gate = held()
    gate.release()
    for until in (None, now, FOREVER_NS):
        assert MONOTONIC.park(gate, until)
        gate.release()


def test_release_once() -> None:
    gate = held()
    release_once(gate)
    release_once(gate)
    assert gate.acquire(False)


class Deadlines:
    """What an alarm asks: the earliest of a few times, and what has become due."""

    def __init__(self) -> None:
        self.times: set[int] = set()
        self.rang: list[int] = []
        self.seen = threading.Condition()

    def next_ns(self) -> int | None:
        return min(self.times, default=None)

    def due(self, now_ns: int) -> None:
        with self.seen:
            late = {time for time in self.times if time <= now_ns}
            self.times -= late
            self.rang += sorted(late)
            self.seen.notify_all()
        if 13 * NS in late:
            raise SystemExit("unlucky")

    def wait_for(self, *times: int) -> None:
        with self.seen:
            assert self.seen.wait_for(lambda: self.rang == [time * NS for time in times], 30), self.rang


def test_alarm(caplog: pytest.LogCaptureFixture) -> None:
    clock, deadlines = FakeClock(0), Deadlines()
    alarm = Alarm(clock, "alarm", deadlines.next_ns, deadlines.due)

    def arm(seconds: int) -> None:
        deadlines.times.add(seconds * NS)
        alarm.arm(seconds * NS)

    assert alarm.alive
    before = set(threading.enumerate())
    arm(10)
    assert set(threading.enumerate()) - before == {alarm._thread} and alarm.alive
    clock.wait_for_sleepers(1)
    arm(5)  # earlier than what it sleeps for
    arm(20)  # later
    clock.advance(5)
    deadlines.wait_for(5)
    clock.advance(8)
    deadlines.wait_for(5, 10)
    arm(13)  # has come already; and its call back fails
    deadlines.wait_for(5, 10, 13)
    clock.advance(7)
    deadlines.wait_for(5, 10, 13, 20)
    assert alarm.alive and "it goes on" in caplog.text
    assert caplog.records[0].levelno == logging.ERROR
    thread = alarm._thread
    assert thread is not None and not alarm.on_own_thread()
    alarm.stop()
    thread.join(30)
    assert not alarm.alive


def test_alarm_stopped_before_it_was_needed() -> None:
    alarm = Alarm(FakeClock(), "alarm", lambda: None, lambda now: None)
    alarm.stop()
    alarm.arm(1)
    assert alarm._thread is None


def test_alarms_armed_from_many_threads() -> None:
    clock, deadlines = FakeClock(0), Deadlines()
    alarm = Alarm(clock, "alarm", deadlines.next_ns, deadlines.due)
    lock = threading.Lock()
    next_ns: Any = deadlines.next_ns

    def look() -> int | None:
        with lock:
            found: int | None = next_ns()
            return found

    alarm._next_ns = look

    def arm(start: int) -> None:
        for seconds in range(start, 100, 4):
            with lock:
                deadlines.times.add(seconds * NS)
            alarm.arm(seconds * NS)

    threads = [threading.Thread(target=arm, args=(i + 1,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seconds in range(1, 100):
        clock.advance(1)
        deadlines.wait_for(*range(1, seconds + 1))
    alarm.stop()


def test_limits_name_what_is_wrong() -> None:
    for wrong in ("1", [], object()):
        with pytest.raises(TypeError, match="deadline must be None or a number of seconds, got "):
            limit_ns(wrong, "deadline")  # type: ignore[arg-type]
