"""What fails outside the model when members have been chosen: each of them ends exactly once, and the lane goes on."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

SECOND = 1_000_000_000
MEMBERS = ("a", "b", "follower of a")
LATE = ("late", "late too")


class Once:
    """Stands for a function, and fails when it is called for the first time, before or after the function has run."""

    def __init__(self, function: Callable[..., Any], error: BaseException, *, after: bool = False) -> None:
        self.function, self.errors, self.after = function, [error], after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.errors and not self.after:
            raise self.errors.pop()
        value = self.function(*args, **kwargs)
        if self.errors:
            raise self.errors.pop()
        return value


class Scene:
    """A lane that runs a batch while two requests, one of them shared, stand in line behind it, and two that will have
    come too late when it looks."""

    def __init__(self, lab: Lab, kind: str) -> None:
        self.gate = threading.Event()
        self.clock = lab.clock()
        pool = lab.pool(1) if kind == "seat" else None
        self.r = lab.start(
            self._plain if kind == "thread" else self._coroutine, merge=True, clock=self.clock, pool=pool
        )
        self.lab = lab
        self.ended: Counter[str] = Counter()
        self.plug = self.r.submit("plug")
        lab.wait_until(lambda: self.r.snapshot().queued == 0)
        self.r._desk.arm = self.r._desk.deadlines.arm = bool  # no alarm: it is the lane that finds them late
        deadlines = dict.fromkeys(MEMBERS) | dict.fromkeys(LATE, 1)
        self.tickets = {
            name: self.r.submit(name[-1], deadline=late) for name, late in deadlines.items() if late is None
        }
        self.tickets |= {name: self.r.submit(name, deadline=late) for name, late in deadlines.items() if late}
        for name, ticket in self.tickets.items():
            ticket.add_done_callback(lambda _, name=name: self.ended.update((name,)))
        self.clock._now_ns += 2 * SECOND

    def ends(self) -> dict[str, type]:
        """Let the lane go on: what each has ended with."""
        self.gate.set()
        assert self.plug.result(30) == "plug"
        self._rest_until(lambda: all(ticket.done() for ticket in self.tickets.values()))
        assert self.ended == Counter(self.tickets.keys()), "each exactly once"
        return {name: type(ticket.exception()) for name, ticket in self.tickets.items()}

    def goes_on(self) -> None:
        on = self.r.submit("on")
        self._rest_until(on.done)
        assert on.result() == "on" and self.r.snapshot().open == 0
        self.lab.wait_until(lambda: self.r.healthy)
        self.lab.idle(self.r)

    def _rest_until(self, so: Callable[[], bool]) -> None:
        """Have the time pass for which a lane that stumbles rests."""

        def look() -> bool:
            self.clock.advance(0.01)
            return so()

        self.lab.wait_until(look)

    def _plain(self, items: list[Any]) -> list[Any]:
        if items == ["plug"]:
            self.gate.wait(30)
        return items

    async def _coroutine(self, items: list[Any]) -> list[Any]:
        while items == ["plug"] and not self.gate.is_set():
            await asyncio.sleep(0.001)
        return items


@pytest.fixture(params=["thread", "task", "seat"])
def scene(request: pytest.FixtureRequest, lab: Lab, caplog: pytest.LogCaptureFixture) -> Scene:
    caplog.set_level(logging.CRITICAL, "relay")
    return Scene(lab, request.param)


@pytest.mark.parametrize("error", [MemoryError("no memory"), RuntimeError("a bug")], ids=["memory", "bug"])
@pytest.mark.parametrize("at", ["before the late are told", "after that", "as room is made"])
def test_a_fault_after_members_were_chosen(scene: Scene, at: str, error: Exception) -> None:
    desk = scene.r._desk
    if at == "as room is made":
        desk.made_room = Once(desk.made_room, error)
    else:
        desk.dropped_late = Once(desk.dropped_late, error, after=at == "after that")
    told = type(error) if at == "before the late are told" else scene.lab.DeadlineExceeded
    assert scene.ends() == dict.fromkeys(MEMBERS, type(error)) | dict.fromkeys(LATE, told)
    scene.goes_on()


def test_not_even_their_end_can_be_told_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again after the rest."""
    running = scene.lab.package.running.Running
    real, errors = running.abandon, [MemoryError("still no memory")]

    def abandon(work: Any, error: BaseException) -> None:
        if errors:
            raise errors.pop()
        real(work, error)

    monkeypatch.setattr(running, "abandon", abandon)
    scene.r._desk.made_room = Once(scene.r._desk.made_room, MemoryError("no memory"))
    ends = scene.ends()
    assert not errors and all(issubclass(ends[name], MemoryError | RuntimeError) for name in MEMBERS)
    scene.goes_on()
