"""Everything that can go wrong, at once and at random: each request ends once, with its own answer; nothing is left.

A run prints its seed; RELAY_SEED repeats it as far as threads allow.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
import threading
import tracemalloc
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both", "engine_kit"]

WAYS = ["ok"] * 320 + [*["error"] * 4, *["row"] * 4, *["nan"] * 4, *["count"] * 4, *["hang"] * 4, *["prepare"] * 4] * 4
WAYS += ["busy"] * 3 + ["stall"]
FINE = ("ok", "hang", "stall")
"""What an item does to the batch it is in."""


class Bad(Exception):
    """An item's own fault."""


class Chaos:
    """One run.

    Args:
        lab: The side.
        kind: Of the model.
        rng: Of this run.
    """

    def __init__(self, lab: Lab, kind: str, rng: random.Random) -> None:
        self._rng = rng
        self._never = threading.Event()
        self._counting = threading.Lock()
        self.ends: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.submitted = 0
        model = {"plain": self._plain, "coroutine": self._coroutine}[kind]
        self.relay = lab.start(
            model,
            prepare=self._prepare,
            max_batch_size=16,
            max_queue=64,
            lanes=3,
            merge=True,
            check_finite=True,
            timeout_run=0.02,
            name="chaos",
        )

    # The model.

    def _prepare(self, item: str) -> str:
        if item.endswith("prepare"):
            raise Bad(item)
        return item

    def _plain(self, items: list[str]) -> list[Any]:
        if pause := self._pause(items):
            self._never.wait(pause)
        return self._rows(items)

    async def _coroutine(self, items: list[str]) -> list[Any]:
        await asyncio.sleep(self._pause(items))
        return self._rows(items)

    def _pause(self, items: list[str]) -> float:
        ways = {item.split()[1] for item in items}
        return 0.03 if "stall" in ways else 0.002 if "hang" in ways else 0.0

    def _rows(self, items: list[str]) -> list[Any]:
        rows: list[Any] = []
        for item in items:
            number, way = item.split()
            if way == "error":
                raise Bad(item)
            if way == "busy":
                raise OSError(item)
            rows.append(Bad(item) if way == "row" else [float("nan")] if way == "nan" else [float(number), item])
        return rows[1:] if any(item.endswith("count") for item in items) else rows

    # The callers.

    def request(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        item = f"{rng.randrange(500)} {rng.choice(WAYS)}"
        deadline = rng.random() * 0.03 + 0.001 if rng.random() < 0.1 else None
        return item, {"priority": rng.randrange(3), "deadline": deadline}

    def ended(self, item: str, ticket: Any) -> None:
        """Look at an end; called for each ticket by whoever ends it."""
        error = ticket._error
        if error is None:
            number, way = item.split()
            if way not in FINE or ticket._value != [float(number), item]:
                self.wrong.append(f"{item}: {ticket._value!r}")
            end = "answered"
        elif type(error) is relay.Overloaded and error.reason == "displaced":
            end = "displaced"
        elif type(error) is relay.DeadlineExceeded:
            end = "expired"
        elif type(error) is relay.RequestCancelled:
            end = "cancelled"
        elif type(error) is relay.RunTimeout:
            end = "run_timeouts"
        elif type(error) in (Bad, OSError, relay.BadOutput, relay.NonFiniteOutput, relay.Closed):
            end = "failed"
            self.look_at_error(item, error)
        else:
            end = "other"
            self.wrong.append(f"{item}: {error!r}")
        with self._counting:
            self.ends[end] += 1

    def look_at_error(self, item: str, error: BaseException) -> None:
        way = item.split()[1]
        fits = {
            "error": Bad,
            "row": Bad,
            "prepare": Bad,
            "nan": relay.NonFiniteOutput,
            "count": relay.BadOutput,
            "busy": OSError,
        }.get(way)
        # An innocent one ends so only where the model itself was found at fault, or its loop has closed.
        if type(error) is not fits and type(error) is not relay.Closed and not getattr(error, "__notes__", None):
            self.wrong.append(f"{item}: {error!r}")
        elif type(error) is Bad and not getattr(error, "__notes__", None) and error.args != (item,):
            self.wrong.append(f"{item}: {error!r}")

    def submit(self, rng: random.Random) -> Any:
        """A ticket, or None if there was no room."""
        item, options = self.request(rng)
        try:
            ticket = self.relay.submit(item, **options)
        except relay.Overloaded:
            return None
        with self._counting:
            self.submitted += 1
        ticket.add_done_callback(lambda ticket: self.ended(item, ticket))
        if rng.random() < 0.05:
            ticket.cancel()
        return ticket

    def thread(self, seed: int, count: int) -> None:
        """Submits, cancels now and then, and never has more than a few open."""
        rng = random.Random(seed)
        tickets: deque[Any] = deque()
        for _ in range(count):
            ticket = self.submit(rng)
            if ticket is not None:
                tickets.append(ticket)
            if rng.random() < 0.05 and tickets:
                tickets[rng.randrange(len(tickets))].cancel()
            if len(tickets) > 100 or ticket is None and tickets:
                tickets.popleft().exception(30)
        for ticket in tickets:
            ticket.exception(30)

    def loops(self, seed: int, count: int, of_models: bool) -> None:
        """The same from event loops, one after the other, most of which close while some still wait."""
        rng = random.Random(seed)
        while count > 0:
            size = min(count, rng.randrange(20, 80))
            count -= size
            loop = asyncio.new_event_loop()
            try:
                tickets = loop.run_until_complete(self._on_loop(rng, size))
                if not of_models and rng.random() < 0.5:
                    continue  # and close, whoever waits
                loop.run_until_complete(self._settled(tickets))
            finally:
                for task in asyncio.all_tasks(loop):
                    task.cancel()
                if rng.random() < 0.5 or of_models:
                    loop.run_until_complete(asyncio.sleep(0))
                loop.close()

    async def _on_loop(self, rng: random.Random, count: int) -> list[Any]:
        tickets = [ticket for _ in range(count) if (ticket := self.submit(rng)) is not None]
        tasks = [asyncio.ensure_future(_wait(ticket)) for ticket in tickets]
        for task in tasks:
            if rng.random() < 0.1:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        return tickets

    async def _settled(self, tickets: list[Any]) -> None:
        await asyncio.gather(*map(_wait, tickets))

    def run(self, lab: Lab, count: int) -> None:
        """All at once."""
        each = count // 4
        of_models = not isinstance(self.relay._dispatcher.lanes[0], lab.package.threadlane.ThreadLane)
        calls = [lab.call(self.thread, self._rng.random(), each) for _ in range(2)]
        calls += [lab.call(self.loops, self._rng.random(), each, of_models) for _ in range(2)]
        for call in calls:
            call.thread.join(600)
            call.result()

    def check(self) -> None:
        """What must be so when it is over."""
        s = self.relay.snapshot()
        assert not self.wrong, self.wrong[:10]
        assert sum(self.ends.values()) == self.submitted, "each ends once"
        counted = {name: getattr(s, name) for name in ("displaced", "expired", "cancelled", "failed", "run_timeouts")}
        assert {end: self.ends[end] for end in counted} == counted
        assert self.ends["answered"] > self.submitted // 5
        assert (s.admitted, s.queued, s.waiting, s.open) == (0, 0, 0, 0)
        desk = self.relay._desk
        assert desk.queue.free == s.capacity and not desk.queue.owners()
        assert s.merged and s.splits and s.non_finite and s.refused


async def _wait(ticket: Any) -> None:
    try:
        await ticket
    except Exception:
        pass


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asyncio says of tasks whose loop has closed would be kept with all that they hold."""
    monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", True)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::RuntimeWarning")
def test_chaos(lab: Lab, kind: str, rng: random.Random, caplog: pytest.LogCaptureFixture) -> None:
    chaos = Chaos(lab, kind, rng)
    chaos.run(lab, 2_000)
    lab.idle(chaos.relay)
    chaos.check()
    assert not [record for record in caplog.records if record.name == "relay" and record.levelno >= logging.ERROR]
    print(chaos.ends)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::RuntimeWarning")
def test_chaos_at_length(lab: Lab, kind: str, rng: random.Random) -> None:
    chaos = Chaos(lab, kind, rng)
    chaos.run(lab, 20_000)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        chaos.run(lab, 80_000)
        lab.wait_until(lambda: not chaos.relay.snapshot().open)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 500_000, "bytes for 80,000 requests"
    lab.idle(chaos.relay)
    chaos.check()
    print(chaos.ends, grown)


@pytest.mark.parametrize("options", [{}, {"merge": True}, {"prepare": str}], ids=str)
@pytest.mark.parametrize("count", [20_000, pytest.param(200_000, marks=pytest.mark.long)])
def test_many_come_and_go_while_the_model_is_busy(lab: Lab, options: dict[str, Any], count: int) -> None:
    model = lab.model(held=True)
    r = lab.start(model, max_queue=64, **options)
    plug = r.submit("plug")
    model.wait_until_running()

    def pairs(count: int) -> None:
        for number in range(count):
            while True:
                try:
                    ticket = r.submit(number % 1000, deadline=60.0 if number % 2 else None)
                except relay.Overloaded:  # a helper has not given the places of the last ones back
                    lab.wait_until(lambda: r.snapshot().admitted < 32)
                else:
                    break
            assert ticket.cancel()

    pairs(count // 10)
    lab.wait_until(lambda: r.snapshot().admitted == 1)
    gc.collect()
    before = sys.getallocatedblocks()
    pairs(count)
    lab.wait_until(lambda: r.snapshot().admitted == 1)
    gc.collect()
    assert sys.getallocatedblocks() - before < 1_000
    s = r.snapshot()
    assert (s.open, s.queued, s.cancelled) == (1, 0, count + count // 10)
    r.check()
    model.free()
    plug.result(30)
    assert len(model.batches) == 1
    lab.idle(r)
