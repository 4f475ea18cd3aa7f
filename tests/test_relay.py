"""Relay: submit, what it refuses and why, and what it counts."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def test_it_runs_on_the_side_it_says(lab: Lab) -> None:
    r = lab.start(lab.model())
    folder = {"pure": "relay._pure", "native": "relay._core"}[lab.backend]
    assert r.backend == r.snapshot().backend == lab.backend
    assert type(r._desk.queue).__module__ == f"{folder}.queue"


def test_nothing_starts_before_the_first_request(lab: Lab) -> None:
    before = set(threading.enumerate())  # some of which may end meanwhile
    r = lab.start(lab.model())
    assert set(threading.enumerate()) <= before
    assert r.ready and r.healthy
    assert r(1) == 1
    assert len(set(threading.enumerate()) - before) == 1


def test_submit_does_not_wait_for_the_model(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_queue=8)
    tickets = [r.submit(i) for i in range(8)]  # would never come back if one of them waited
    assert not any(ticket.done() for ticket in tickets)
    model.free()
    assert [ticket.result(30) for ticket in tickets] == list(range(8))


def test_a_list_is_one_item(lab: Lab) -> None:
    r = lab.start(lab.model(len))
    assert r([1, 2, 3]) == 3
    assert r.submit_many([[1], [1, 2]]).result(30) == [1, 2]


def test_refused_for_want_of_room(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_queue=3, name="small")
    tickets = lab.fill(r)
    assert len(tickets) == 3
    with pytest.raises(relay.Overloaded, match=r"3 of 3 places in the queue of 'small' are taken") as caught:
        r.submit(0)
    assert caught.value.reason == "queue_full"
    assert caught.value.retry_after is not None and caught.value.retry_after > 0
    with pytest.raises(relay.Overloaded, match="no room for 2 requests"):
        r.submit_many([1, 2])
    assert r.snapshot().refused == 4  # one in lab.fill(), one, and two
    model.free()
    assert [ticket.result(30) for ticket in tickets] == ["fill"] * 3
    assert r(1) == 1
    lab.idle(r)


@pytest.mark.parametrize("deadline", [-1, float("nan"), -0.001])
def test_bad_deadlines(lab: Lab, deadline: float) -> None:
    r = lab.start(lab.model())

    async def ask() -> None:
        await r.run_async(1, deadline=deadline)

    for call in (r.submit, r, lambda item, deadline: asyncio.run(ask())):
        with pytest.raises(ValueError, match="deadline must be None or a number of seconds of at least 0"):
            call(1, deadline=deadline)
    with pytest.raises(ValueError, match="deadline"):
        r.submit_many([1], deadline=deadline)
    with pytest.raises(ValueError, match="deadline"):
        next(r.map([1], deadline=deadline))


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_bad_timeouts_are_refused_though_there_is_room(lab: Lab, timeout: float) -> None:
    r = lab.start(lab.model())
    with pytest.raises(ValueError, match="timeout must be"):
        r(1, timeout=timeout)
    with pytest.raises(ValueError, match="timeout must be"):
        r.run_async(1, timeout=timeout).send(None)
    with pytest.raises(ValueError, match="timeout must be"):
        next(r.map([1], timeout=timeout, return_exceptions=True))
    with pytest.raises(ValueError, match="timeout must be"):
        r.submit(1).result(timeout)


@pytest.mark.parametrize("limit", [None, 1e-9, 4294967.296, 1e10, float("inf")])
def test_extreme_limits(lab: Lab, limit: float | None) -> None:
    r = lab.start(lab.model())
    assert r(1, timeout=limit) == 1
    assert r.submit(2, deadline=None if limit == 1e-9 else limit).result(None if limit == 1e-9 else limit) == 2


def test_no_deadline_of_nothing(lab: Lab) -> None:
    with pytest.raises(relay.DeadlineExceeded, match="give the request some time"):
        lab.start(lab.model()).submit(1, deadline=0)


@pytest.mark.parametrize(
    ("priority", "error"), [("urgent", ValueError), (-1, ValueError), (256, ValueError), (1.5, TypeError)]
)
def test_bad_priorities(lab: Lab, priority: Any, error: type[Exception]) -> None:
    r = lab.start(lab.model())
    with pytest.raises(error, match="priority"):
        r.submit(1, priority=priority)
    with pytest.raises(error, match="priority"):
        list(r.map([1], priority=priority, return_exceptions=True))


def test_unknown_keywords(lab: Lab) -> None:
    r = lab.start(lab.model())
    with pytest.raises(TypeError, match=r"unexpected keyword arguments: top_k; the model's own go into params"):
        r(1, top_k=3)
    with pytest.raises(TypeError, match="top_k"):
        list(r.map([1], top_k=3, return_exceptions=True))


def test_too_large(lab: Lab) -> None:
    r = lab.start(lab.model(), max_batch_tokens=10)
    with pytest.raises(relay.TooLarge, match="size is 11, but a batch may come to at most max_batch_tokens=10"):
        r.submit("x" * 11)
    assert r("x" * 10) == "x" * 10  # row D7: the others are not affected
    with pytest.raises(relay.TooLarge, match="use map"):
        lab.start(lab.model(), max_queue=2).submit_many([1, 2, 3])


def test_closed(lab: Lab) -> None:
    r = lab.start(lab.model())
    assert r(1) == 1
    r.close()
    assert not r.ready and not r.healthy
    for call in (r.submit, r):
        with pytest.raises(relay.Closed, match="closed"):
            call(1)
    with pytest.raises(relay.Closed):
        r.submit_many([1, 2])
    with pytest.raises(relay.Closed):
        list(r.map([1]))
    r.close()


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_batch_size", 0), ("max_queue", 0), ("max_queue", 2**22 + 1), ("max_batch_tokens", 0),
     ("max_batch_size", 1.5)],
)  # fmt: skip
def test_bad_sizes(lab: Lab, option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=option):
        lab.Relay(len, **{option: value})


def test_numbers_of_numpy(lab: Lab) -> None:
    r = lab.start(len, max_batch_size=np.int64(4), max_queue=np.uint8(8), lanes=np.int32(2), isolate=np.bool_(True))
    assert (r.limits.max_batch_size, r.limits.max_queue, r.snapshot().lanes) == (4, 8, 2)
    assert type(r.limits.max_queue) is int and lab.Limits(bulk_step_s=np.float32(0.5)).bulk_step_s == 0.5


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0, "1"])
def test_bad_steps(lab: Lab, seconds: Any) -> None:
    with pytest.raises(ValueError, match="bulk_step_s must be"):
        lab.Limits(bulk_step_s=seconds)


def test_models_that_cannot_be() -> None:
    async def stream(items: list[int]) -> Any:
        yield items

    def generator(items: list[int]) -> Any:
        yield from items

    class Model:
        def __call__(self, items: list[int]) -> Any:
            yield from items

    for model in (stream, generator, Model(), [len, generator]):
        with pytest.raises(TypeError, match="a generator cannot be a model"):
            relay.Relay(model)
    with pytest.raises(TypeError, match="model must be callable, got int"):
        relay.Relay(3)  # type: ignore[arg-type]


def test_snapshot_counts(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, name="counted", max_queue=16)
    with lab.testing.paused(r, model):
        tickets = [r.submit(i) for i in range(4)]
        tickets[0].cancel()
        s = r.snapshot()
        assert (s.name, s.capacity, s.admitted, s.queued, s.open, s.waiting) == ("counted", 16, 4, 3, 4, 0)
    [ticket.exception() for ticket in tickets]
    model.fail_next(ValueError("no"))
    assert isinstance(r.submit(9).exception(30), ValueError)
    assert r.drain(30) == 0
    r.close()
    s = r.snapshot()
    assert (s.batches, s.items, s.failed, s.failed_batches, s.cancelled) == (3, 5, 1, 1, 1)
    assert s.mean_batch_size == pytest.approx(5 / 3) and s.busy > 0 and s.mean_run > 0
    assert repr(r) == f"<Relay 'counted' {lab.backend} 0 open>"


def test_timing(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model()
    r = lab.start(model, clock=clock)
    with lab.testing.paused(r, model):
        ticket: Any = r.submit(1)
        assert ticket.timing is None
        clock.advance(2)
    assert ticket.result() == 1
    timing: Any = ticket.timing
    assert (timing.prepare, timing.queue, timing.batch, timing.run, timing.total) == (0, 2, 0, 0, 2)
    assert timing.batch_size == 1
    cancelled = r.submit(2)
    cancelled.cancel()
    assert cancelled.timing is None or cancelled.timing.total == 0


def test_cancelled_requests_leave_nothing(lab: Lab) -> None:
    """50,000 submit and cancel pairs while the model is busy."""
    model = lab.model()
    r = lab.start(model, max_queue=64)
    with lab.testing.paused(r, model):
        for i in range(25_000 if lab.backend == "pure" else 50_000):
            assert r.submit(i).cancel()
        s = r.snapshot()
        assert (s.open, s.admitted, s.queued) == (1, 1, 0)
        assert r._desk.queue.free == 63
    assert r(1) == 1
    assert r.snapshot().cancelled >= 25_000
    lab.idle(r)


def test_sizes_by_limits_and_by_keyword(lab: Lab) -> None:
    limits = lab.package.Limits(max_batch_size=8, max_queue=100)
    assert lab.start(lab.model(), limits=limits).limits == limits
    both = lab.start(lab.model(), limits=limits, max_batch_size=9).limits
    assert (both.max_batch_size, both.max_queue) == (9, 100)
    assert lab.start(lab.model()).limits == lab.package.Limits()


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"linger": float("inf")}, "linger must be a finite number of seconds"),
        ({"linger": None}, "linger must be a finite number of seconds"),
        ({"pool": 3}, "pool must be a relay.TokenPool, or None, got 3"),
        ({"limits": {"max_queue": 3}}, "limits must be a relay.Limits"),
        ({"max_batch_size": None}, "max_batch_size must be a whole number, got None"),
        ({"max_batch_size": True}, "max_batch_size must be a whole number, got True"),
        ({"max_batch_size": "8"}, "max_batch_size must be a whole number, got '8'"),
        ({"lanes": 2.0}, "lanes must be a whole number from 1 to 64, got 2.0"),
        ({"isolate": "no"}, "isolate must be True or False, got 'no'"),
        ({"merge": 1}, "merge must be True or False, got 1"),
        ({"isolate": None}, "isolate must be True or False, got None"),
        ({"mixed": None}, "mixed must be a sequence of names"),
        ({"utilisation": 0.5}, "utilisation must be None or a function that returns 0 to 1 or None, got 0.5"),
        ({"tokenizer": 5}, "tokenizer must have max_length, check, reserve, encode; int has no max_length"),
        ({"clock": 5}, "clock must have now_ns, park; int has no now_ns"),
    ],
)
def test_wrong_options_are_named(option: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        relay.Relay(len, **option)
