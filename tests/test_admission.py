"""Admission by prediction, and the deadlines of requests: refused at once, expired on time, checked again at commit."""

from __future__ import annotations

import asyncio
import heapq
import importlib
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import relay
from relay import BATCH, REALTIME
from relay._pure.queue import CLOSED_DEADLINE, CLOSED_IDLE

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

MS = 1_000_000


def taught(lab: Lab, models: Any, base_ms: float = 10, item_ms: float = 1, **options: Any) -> tuple[Any, Any]:
    """A relay that admits by prediction and knows what its models take, and its clock."""
    clock = lab.clock()
    r = lab.start(models, admit="predict", clock=clock, **options)
    teach(r, base_ms, item_ms)
    return r, clock


def teach(r: Any, base_ms: float, item_ms: float, lane: int = 0) -> None:
    for n in (1, 2, 4, 8, 16, 32, 64) * 20:
        r._dispatcher.lanes[lane].station.cost.observe(n, 1, int((base_ms + item_ms * n) * MS))


def busy(r: Any, model: Any) -> None:
    r.submit("plug")
    model.wait_until_running()


def test_refused_at_once(lab: Lab) -> None:
    model = lab.model(held=True)
    r, _ = taught(lab, model)
    with pytest.raises(relay.Overloaded) as late:
        r.submit("x", deadline=0.005)
    assert late.value.reason == "predicted_late" and 0.005 < late.value.retry_after < 0.02
    assert "by prediction the answer would come 0.01" in str(late.value)
    assert "and the deadline is 0.005 s; retry later, give it more time, or a more urgent priority" in str(late.value)
    told = r.snapshot()
    assert told.refused == 1 and told.open == told.admitted == 0 and model.batches == []
    assert not r.submit("y", deadline=0.05).done()
    assert not r.submit("z").done()  # without a deadline nothing is refused


def refused(r: Any, deadline: float, **request: Any) -> bool:
    try:
        r.submit("x", deadline=deadline, **request).cancel()
    except relay.Overloaded as error:
        assert error.reason == "predicted_late"
        return True
    return False


def test_nothing_is_refused_while_nothing_is_known(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start([model, lab.model(held=True)], admit="predict", clock=clock, max_batch_size=1)
    assert not refused(r, 1e-6)
    teach(r, 10, 1, lane=0)
    assert not refused(r, 1e-6)  # the other lane may be as fast as anything
    teach(r, 10, 1, lane=1)
    assert refused(r, 1e-6)


def test_what_is_ahead_counts_by_tier(lab: Lab) -> None:
    model = lab.model(held=True)
    r, _ = taught(lab, model, max_batch_size=8)
    busy(r, model)
    for _ in range(80):
        r.submit("bulk", priority=BATCH)
    assert refused(r, 0.1, priority=BATCH) and not refused(r, 1, priority=BATCH)
    assert not refused(r, 0.1) and not refused(r, 0.1, priority=REALTIME)
    for _ in range(40):
        r.submit("urgent", priority=REALTIME)
    assert refused(r, 0.1) and refused(r, 0.1, priority=REALTIME)


def test_the_rest_of_the_running_batch_counts(lab: Lab) -> None:
    model = lab.model(held=True)
    r, clock = taught(lab, model, base_ms=100)
    assert not refused(r, 0.15)
    busy(r, model)
    assert refused(r, 0.15) and not refused(r, 0.3)
    clock.advance(0.09)
    assert not refused(r, 0.15)
    clock.advance(1)  # longer than predicted: it may end at any moment
    assert not refused(r, 0.15)


def test_all_lanes_count(lab: Lab) -> None:
    models = [lab.model(held=True) for _ in range(4)]
    r, clock = taught(lab, models, max_batch_size=1)
    for lane in (1, 2, 3):
        teach(r, 10, 1, lane)
    for i in range(4):
        r.submit(i)
        models[i].wait_until_running()
        clock.advance(0.002)
    for _ in range(8):
        r.submit("queued")
    waits = [deadline for deadline in range(1, 200) if not refused(r, deadline / 1000)]
    assert 40 < waits[0] < 60  # the third batch of some lane, and one more to be safe; one lane would need 130


def test_a_group_is_as_late_as_its_last(lab: Lab) -> None:
    model = lab.model(held=True)
    r, _ = taught(lab, model, max_batch_size=8)
    with pytest.raises(relay.Overloaded) as late:
        r.submit_many(["x"] * 100, deadline=0.1)
    assert late.value.reason == "predicted_late" and r.snapshot().refused == 100 and r.snapshot().open == 0
    assert not r.submit_many(["x"] * 8, deadline=0.1).done()


def test_through_the_other_doors(lab: Lab) -> None:
    r, _ = taught(lab, lab.model(held=True))

    async def main() -> None:
        with pytest.raises(relay.Overloaded, match="by prediction"):
            await r.run_async("x", deadline=0.001)
        assert [type(y) async for y in r.map_async("ab", deadline=0.001, return_exceptions=True)] == [
            relay.Overloaded
        ] * 2

    asyncio.run(main())
    with pytest.raises(relay.Overloaded, match="by prediction"):
        r("x", deadline=0.001)
    with pytest.raises(relay.Overloaded, match="by prediction"):
        list(r.map("ab", deadline=0.001))
    assert [y.reason for y in r.map("ab", deadline=0.001, return_exceptions=True)] == ["predicted_late"] * 2
    lab.idle(r)


def test_not_begun_if_it_could_not_end(lab: Lab) -> None:
    """The running batch took longer than predicted: what could still be started, but not be answered, is refused."""
    model = lab.model(held=True)
    r, clock = taught(lab, model, base_ms=100)
    busy(r, model)
    r._desk.arm = r._desk.deadlines.arm = lambda when_ns: None
    doomed, fine = r.submit("doomed", deadline=0.4), r.submit("fine", deadline=1)
    clock.advance(0.35)
    model.free()
    error = doomed.exception(30)
    assert type(error) is relay.DeadlineExceeded
    assert str(error).startswith("by prediction the run could not have ended by the deadline, 0.4 s after submit; give")
    assert fine.result(30) == "fine" and ["doomed"] not in model.batches
    assert r.snapshot().expired == 1


def test_warmup_teaches(lab: Lab) -> None:
    clock = lab.clock()

    def model(items: list[Any]) -> list[Any]:
        clock.advance(0.01 + 0.001 * len(items))
        return items

    r = lab.start(model, admit="predict", clock=clock, max_batch_size=16, deadlines={BATCH: 1e-3})
    assert not refused(r, 0.001)
    r.warmup(["x"])  # none of which has the deadline of its tier
    assert r._dispatcher.lanes[0].station.cost.learned
    assert refused(r, 0.001) and not refused(r, 0.1)


# Deadlines by tier.


def ends_after(r: Any, clock: Any, **request: Any) -> float | None:
    """After how many seconds a queued request expires; None if not within 100."""
    ticket = r.submit("x", **request)
    for tenths in range(1, 1001):
        clock.advance(0.1)
        if ticket._deadline_ns >= 0 and ticket._deadline_ns <= clock.now_ns():
            assert type(ticket.exception(30)) is relay.DeadlineExceeded
            return tenths / 10
        if ticket._deadline_ns < 0:
            break
    assert not ticket.done()
    ticket.cancel()
    return None


def test_defaults_by_tier(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, clock=clock, deadlines={"interactive": 0.5, 5: 2.0, 9: None})
    busy(r, model)
    assert ends_after(r, clock, priority=REALTIME) is None  # no tier at or below it is named
    assert ends_after(r, clock) == 0.5 and ends_after(r, clock, priority=4) == 0.5
    assert ends_after(r, clock, priority=5) == ends_after(r, clock, priority=8) == 2.0
    assert ends_after(r, clock, priority=9) is None and ends_after(r, clock, priority=255) is None
    assert ends_after(r, clock, deadline=0.2) == 0.2 and ends_after(r, clock, deadline=3) == 3.0
    assert ends_after(r, clock, deadline=float("inf")) is None


def test_defaults_through_every_door(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, clock=clock, deadlines={REALTIME: 0.5})
    busy(r, model)
    group = r.submit_many(["a", "b"], return_exceptions=True)
    called = lab.call(r, "c")
    mapped = lab.call(lambda: list(r.map(["d"], return_exceptions=True)))
    awaited = lab.call(lambda: asyncio.run(r.run_async("e")))
    lab.wait_until(lambda: r.snapshot().queued == 5)
    clock.wait_for_sleepers(1)
    clock.advance(0.5)
    assert [type(y) for y in (*group.result(30), *mapped.result())] == [relay.DeadlineExceeded] * 3
    for each in (called, awaited):
        with pytest.raises(relay.DeadlineExceeded):
            each.result()
    assert len(model.batches) == 1  # the model has not come back


@pytest.mark.parametrize(
    ("deadlines", "error", "text"),
    [
        (0.5, TypeError, r"deadlines must map tiers to seconds, such as \{relay.REALTIME: 0.2\}, got 0.5"),
        ({0: 0}, ValueError, "a default deadline must be more than 0 seconds"),
        ({0: -1}, ValueError, "deadlines"),
        ({0: float("nan")}, ValueError, "deadlines"),
        ({256: 1}, ValueError, "priority"),
        ({"soon": 1}, ValueError, "priority"),
    ],
)
def test_bad_defaults(lab: Lab, deadlines: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        lab.Relay(len, deadlines=deadlines)


def test_on_time_while_it_waits_for_room(lab: Lab) -> None:
    clock, model = lab.clock(), lab.model(held=True)
    r = lab.start(model, max_queue=1, clock=clock)
    busy(r, model)
    waiting = lab.call(r, "x", deadline=5, timeout=50)
    clock.wait_for_sleepers(1)
    clock.advance(4.9)
    lab.in_line(r, 1)
    clock.advance(0.1)
    with pytest.raises(relay.DeadlineExceeded, match=r"no room in the queue of 'relay' until .* deadline, 5 s after"):
        waiting.result()
    assert r.snapshot().expired == 1 and r.snapshot().waiting == 0
    patient = lab.call(r, "y", deadline=50, timeout=5)
    clock.wait_for_sleepers(1)
    lab.in_line(r, 1)
    clock.advance(5)
    with pytest.raises(relay.Overloaded, match="no room"):
        patient.result()


# Under lasting overload.


class Work:
    """What `answer_ns` looks at in a running batch."""

    def __init__(self, size: int, why: int) -> None:
        self.size, self.run = size, SimpleNamespace(why=why)


def test_the_closed_form_of_one_lane(lab: Lab, rng: random.Random) -> None:
    r, clock = taught(lab, lambda items: items, max_batch_size=16, max_batch_tokens=40)
    lane = r._dispatcher.lanes[0]
    general = importlib.import_module(f"{lab.package.__name__}.admission").answer_ns
    assert r._desk.predict_ns == lane.answer_ns
    now_ns = clock.now_ns()
    for _ in range(2_000):
        lane.station.mean_width = rng.choice([1, 1, 3, 50])
        size = rng.choice([1, 1, 2, 30, 100])
        lane.busy = rng.choice([None, Work(rng.randrange(1, 17), rng.choice([CLOSED_IDLE, CLOSED_DEADLINE]))])
        if lane.busy is not None:
            lane._began = now_ns - rng.randrange(40 * MS), lane.busy.size, 1
        ahead = rng.choice([0, rng.randrange(64), rng.randrange(8_192)])
        expected = general([lane], ahead, size, now_ns)
        assert abs(lane.answer_ns(ahead, size, now_ns) - expected) <= 1e-9 * (expected - now_ns) + 2
    lane.busy = None
    lane.station.cost.observe(1, 1, 2**62)
    assert 0 < lane.answer_ns(8_192, 1, now_ns) < 2**63


def goodput(lab: Lab, load: float, scatter: float, lanes: int, rng: random.Random) -> float:
    """The share of a model's capacity that is answered within 50 ms, in virtual time: 2 ms + 20 us an item, limit 64,
    Poisson arrivals. The queue, the cost model and the prediction are the relay's own."""
    deadline_ns, most = 50 * MS, 64
    r = lab.start([(lambda number: lambda items: items)(n) for n in range(lanes)], admit="predict", clock=lab.clock())
    requests, own = r._desk.queue, r._dispatcher.lanes
    for lane in own:
        lane.station.cost = own[0].station.cost
    predict, key = r._desk.predict_ns, r._desk._key

    def run_ns(n: int) -> int:
        return int((2 * MS + 20_000 * n) * (1 + abs(rng.gauss(0, scatter))) + 50_000)

    for n in (1, 1, 1, 2, 4, 8, 16, 32, 64):
        own[0].station.cost.observe(n, 1, run_ns(n))
    ends: list[tuple[int, int, list[int], list[int], int]] = []

    def take(number: int, now_ns: int) -> None:
        lane = own[number]
        handles, arrivals, _, why = lane.station.take(now_ns)[:4]
        lane.busy = None
        if handles:
            n, took_ns = len(handles), run_ns(len(handles))
            heapq.heappush(ends, (now_ns + took_ns, number, handles, arrivals, took_ns))
            lane.busy, lane._began = Work(n, why), (now_ns, n, 1)

    capacity = lanes * most / (2 * MS + 20_000 * most)
    now_ns, end_ns, good = 0, 800 * MS // lanes, 0
    next_ns = 1
    while now_ns < end_ns:
        due_ns = requests.next_ns() or 1 << 62
        now_ns = min(next_ns, due_ns, ends[0][0] if ends else 1 << 62)
        if now_ns == due_ns:
            for handle, _ in requests.due(now_ns):
                requests.cancel(handle)
        elif now_ns == next_ns:
            next_ns += 1 + int(rng.expovariate(load * capacity))
            if predict(requests.ahead(1), 1, now_ns) <= now_ns + deadline_ns:
                due = now_ns + deadline_ns
                requests.admit(now_ns, key(1, now_ns, due, 1, None), now_ns, due, 1, 0, -1, False, 1, now_ns + 10**9)
                idle = [lane.number for lane in own if lane.busy is None]
                if idle:
                    take(idle[0], now_ns)
        else:
            _, number, handles, arrivals, took_ns = heapq.heappop(ends)
            requests.finish(handles)
            own[0].station.cost.observe(len(handles), 1, took_ns)
            good += sum(now_ns - arrival <= deadline_ns for arrival in arrivals)
            take(number, now_ns)
    for _, _, handles, *_ in ends:
        requests.finish(handles)
    for owner_handle in [handle for handle, _ in requests.due(1 << 61)]:
        requests.cancel(owner_handle)
    for lane in own:
        lane.busy = None
    return good / (capacity * end_ns)


# The pure side does the same arithmetic, and takes its time.
@pytest.mark.parametrize(
    ("lab", "lanes", "scatter"),
    [("pure", 1, 0.1), *(("native", lanes, scatter) for lanes in (1, 4) for scatter in (0.03, 0.1))],
    indirect=["lab"],
)
def test_goodput_under_overload(lab: Lab, lanes: int, scatter: float, rng: random.Random) -> None:
    peak, *over = (goodput(lab, load, scatter, lanes, rng) for load in (0.95, 1.2, 2.0, 4.0))
    peak = max(peak, *over)
    assert over[1] >= 0.95 * peak and over[2] >= 0.9 * peak and over[0] >= 0.9 * peak, (peak, over)
