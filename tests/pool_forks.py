"""A fork while actors stand wherever the schedule has them: inside the guard, before a waking, in a timer's lock.

`in_place` lets the forking actor see the pool as a child would, in which nobody else goes on, and ends the run.
`Really` forks, and the parent goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fork_kit import in_child
from pool_stage import Bystander, Stage

from relay.errors import StaleToken

Fork = Callable[[Stage], None]


def in_place(stage: Stage) -> None:
    run, me = stage.run, stage.run.current
    run.step("fork")
    run.current = None  # any wait is for ever from here on
    stage.pool_._after_fork_in_child()
    use(stage)
    run.current = me
    stage.ends("F", "forked")
    run.finish()


class Really:
    """A true fork, once for each combination of places where the others stand; forks are slow.

    Args:
        wanted: False to go through the motions.
    """

    def __init__(self, wanted: bool = True) -> None:
        self._wanted = wanted
        self.places: set[tuple[tuple[str, str], ...]] = set()

    def __call__(self, stage: Stage) -> None:
        stage.run.step("fork", event=True)
        places = tuple(sorted(dict(stage.run.trace).items()))
        if self._wanted and places not in self.places:
            self.places.add(places)
            in_child(be_child, stage)
        stage.ends("F", "forked")


def be_child(stage: Stage) -> None:
    stage.run.current = None
    use(stage)


def use(stage: Stage) -> None:
    """What must be possible in a child."""
    pool = stage.pool_
    assert (pool.held, pool.waiting, pool.free, pool.granted) == (0, 0, pool.capacity, 0)
    pool.check()
    old = [*stage.mine, *stage.hands.values()]
    for token in old:
        assert not token.held
        pool.exit(token)
        try:
            pool.release(token)
        except StaleToken:
            continue
        raise AssertionError("the child can release a token of its parent")
    tokens = [pool.acquire(1, timeout=10) for _ in range(pool.capacity)]
    assert pool.try_acquire(0) is None
    assert min(token.handle for token in tokens) >> 22 > max((token.handle for token in old), default=0) >> 22
    waiter = Bystander()
    assert pool.acquire_or_join(1, None, waiter) is None
    pool.release(tokens.pop())
    assert waiter.woken
    seen = pool.snapshot()
    assert (seen.held, seen.waiting, seen.granted) == (pool.capacity, 0, pool.capacity + 1)
    for token in (*tokens, waiter.token):
        pool.release(token)
    pool.check()
    pool.close()
    assert pool.held == 0


def forking(stage: Stage, fork: Fork) -> None:
    stage.pool(2, held=(1, 1), timers=True)
    stage.run.actor("F", lambda: fork(stage))
    stage.release()


def ended(stage: Stage, fork: Fork) -> None:
    if fork is in_place:
        stage.run.play()
        assert stage.endings.get("F") == "forked"
        stage.outcome = None
    else:
        stage.play()
        assert stage.endings == {"F": "forked", "W": "token"} or stage.endings == {"F": "forked", "W": "late"}


def of_threads(fork: Fork) -> Callable[[Stage], Any]:
    def fork_v_lock(stage: Stage) -> None:
        forking(stage, fork)
        stage.acquire("W", timeout=1, heartbeat=None)
        ended(stage, fork)

    return fork_v_lock


def of_coroutines(fork: Fork) -> Callable[[Stage], Any]:
    def fork_v_lock_async(stage: Stage) -> None:
        forking(stage, fork)
        stage.acquire_async("loop", {"W": {"timeout": 1}})
        ended(stage, fork)

    return fork_v_lock_async
