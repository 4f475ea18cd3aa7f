"""A relay's threads: started when needed, seen to be healthy, and gone when the relay is."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def test_a_forgotten_relay_answers_and_ends(lab: Lab) -> None:
    before = set(threading.enumerate())
    model = lab.model(held=True)
    r = lab.Relay(model)
    tickets = [r.submit(i, deadline=1000) for i in range(3)]
    model.wait_until_running()
    forgotten, thread = weakref.ref(r), r._dispatcher.lanes[0].thread
    del r
    gc.collect()
    assert forgotten() is None and thread.is_alive()
    model.free()
    assert [ticket.result(30) for ticket in tickets] == [0, 1, 2]
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("used", [False, True])
def test_an_idle_relay_forgotten(lab: Lab, used: bool) -> None:
    r = lab.Relay(lab.model())
    if used:
        assert r(1) == 1
    thread, dispatcher = r._dispatcher.lanes[0].thread, weakref.ref(r._dispatcher)
    del r
    gc.collect()
    if used:
        thread.join(30)
        assert not thread.is_alive()
        del thread
        lab.wait_until(lambda: gc.collect() >= 0 and dispatcher() is None)


def test_no_thread_to_be_had(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request fails as a whole, and the next one tries again."""
    r = lab.start(lab.model())

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for call in (partial(r.submit, 1), partial(r.submit_many, [1, 2])):
            with pytest.raises(RuntimeError, match="can't start"):
                call()
    assert r.snapshot().open == r.snapshot().admitted == 0 and r.healthy
    assert r(2) == 2


def test_closing_races_with_submitting(lab: Lab) -> None:
    """Whoever is taken is answered, whoever is not is told so, and nothing is left."""
    for round in range(20):
        r = lab.start(lab.model(), max_queue=8, max_batch_size=2, merge=bool(round % 2))
        barrier = threading.Barrier(4)
        outcomes: list[Any] = []

        def ask(r: Any = r, barrier: Any = barrier, outcomes: Any = outcomes) -> None:
            barrier.wait(30)
            for i in range(30):
                try:
                    outcomes.append((i % 5, r.submit(i % 5)))
                    outcomes.append(([i, 1], r.submit_many([i, 1])))
                except relay.Overloaded:
                    pass
                except relay.Closed:
                    return

        threads = [lab.run_thread(ask) for _ in range(3)]
        barrier.wait(30)
        if round % 3:
            lab.wait_until(lambda outcomes=outcomes: len(outcomes) > 5)  # type: ignore[misc]
        r.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        for expected, ticket in outcomes:
            error = ticket.exception(30)
            assert isinstance(error, relay.Closed) or error is None and ticket.result() == expected
        lab.testing.assert_idle(r)


def test_healthy_while_its_threads_start(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    r = lab.start(lab.model(), clock=lab.clock())
    healthy: list[bool] = []
    start = threading.Thread.start

    def slow_start(thread: threading.Thread) -> None:
        healthy.append(r.healthy)
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", slow_start)
        assert r.submit(1, deadline=1).result() == 1
    assert healthy == [True, True]  # the lane's, and the alarm's
