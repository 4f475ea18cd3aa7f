"""Situations around one pool, for three actors each, as threads and as coroutines; and what must hold at their ends.

Who is cancelled here gets Ctrl-C, a thread, or `Task.cancel`, at whatever moment the schedule says. A bystander waits
from the start and holds what it is given until nobody else can go on, so that who is passed over is found out.
"""

from __future__ import annotations

from pool_stage import Stage

from relay.errors import StaleToken, TokenRevoked


def ended(stage: Stage, **ways: str) -> None:
    """Each actor has ended in one of these ways."""
    stage.play()
    assert stage.endings.keys() == ways.keys(), stage.endings
    for name, ending in stage.endings.items():
        assert ending in ways[name].split(), f"{name} ended in {ending}"


def grant_v_cancel(stage: Stage) -> None:
    stage.pool(1)
    stage.acquire("W1", cancelled=True)
    stage.acquire("W2")
    stage.release()
    ended(stage, W1="token cancelled", W2="token")


def grant_v_cancel_async(stage: Stage) -> None:
    stage.pool(1)
    stage.acquire_async("loop", {"W1": {}, "W2": {}})
    stage.cancel_tasks("C", "W1")
    stage.release()
    ended(stage, W1="token cancelled", W2="token")


def grant_v_timeout(stage: Stage) -> None:
    stage.pool(1)
    stage.acquire("W1", timeout=1)
    stage.acquire("W2")
    stage.release()
    ended(stage, W1="token late", W2="token")


def grant_v_timeout_async(stage: Stage) -> None:
    stage.pool(1, timers=True)
    stage.acquire_async("loop", {"W1": {"timeout": 1}, "W2": {}})
    stage.alarm()
    stage.release()
    ended(stage, W1="token late", W2="token")


def two_timeouts_async(stage: Stage) -> None:
    """Nothing is ever released, so the alarm must not sleep through any time limit."""
    stage.pool(1, timers=True)
    stage.alarm()
    stage.acquire_async("loop", {"W1": {"timeout": 1}, "W2": {"timeout": 2}})
    ended(stage, W1="late", W2="late")


def grant_v_close(stage: Stage) -> None:
    pool = stage.pool(1)
    stage.bystander(2)
    stage.acquire("W")
    stage.run.actor("X", pool.close)
    stage.release()
    ended(stage, W="token closed")


def grant_v_close_async(stage: Stage) -> None:
    pool = stage.pool(1)
    stage.bystander(2)
    stage.acquire_async("loop", {"W": {}})
    stage.run.actor("X", pool.close)
    stage.release()
    ended(stage, W="token closed")


def resizing(stage: Stage) -> None:
    """A cut while two tokens are held, taken back; more than there are must never be out."""
    pool = stage.pool(2, held=(1, 1))

    def resize() -> None:
        pool.resize(1)
        pool.resize(2)

    stage.run.actor("Z", resize)
    stage.release()


def resize_v_acquire_v_release(stage: Stage) -> None:
    resizing(stage)
    stage.acquire("W", heartbeat=None)
    ended(stage, W="token")


def resize_v_acquire_v_release_async(stage: Stage) -> None:
    resizing(stage)
    stage.acquire_async("loop", {"W": {"heartbeat": None}})
    ended(stage, W="token")


def lease(stage: Stage, *, silent: bool = False) -> list[int]:
    """Somebody holds a lease of a second, beats once, and then releases it, or is never heard of again."""
    told: list[int] = []
    pool = stage.pool(1, held=(), heartbeat=1.0, grace=1.0, on_revoke=lambda token: told.append(token.handle))
    token = pool.try_acquire()
    stage.gain("H", token)

    def hold() -> None:
        ending = "silent"
        try:
            pool.beat(token)
            if not silent:
                del stage.hands["H"]
                pool.release(token)
                ending = "released"
        except TokenRevoked:
            ending = "revoked"
            if not silent:
                stage.hands.pop("H", None)
                try:
                    pool.release(token)
                except StaleToken:
                    ending = "revoked fenced"
        except StaleToken:
            ending = "fenced"
        stage.ends("H", ending)

    stage.run.actor("H", hold)
    stage.alarm()
    return told


def revoke_v_beat_v_release(stage: Stage) -> None:
    told = lease(stage)
    stage.acquire("W")
    stage.play()
    assert stage.endings["W"] == "token"
    assert len(told) == stage.pool_.revoked <= 1
    assert stage.pool_.revoked or stage.endings["H"] == "released"


def revoke_v_beat_v_release_async(stage: Stage) -> None:
    told = lease(stage)
    stage.acquire_async("loop", {"W": {}})
    stage.play()
    assert stage.endings["W"] == "token"
    assert len(told) == stage.pool_.revoked <= 1
    assert stage.pool_.revoked or stage.endings["H"] == "released"


def revoke_v_beat(stage: Stage) -> None:
    """The holder falls silent: it must be revoked, once, and after its grace time the token is the next one's."""
    told = lease(stage, silent=True)
    stage.acquire("W")
    stage.play()
    assert stage.endings["W"] == "token"
    assert len(told) == stage.pool_.revoked == 1


def reserving(stage: Stage) -> None:
    """Two of the tier that a token is kept for, and a bystander who must not get it, but the other one."""
    stage.pool(2, held=(0, 1), reserved={0: 1})
    stage.bystander(2)
    stage.release()


def two_cancels_v_release(stage: Stage) -> None:
    reserving(stage)
    for name in ("W1", "W2"):
        stage.acquire(name, cancelled=True, priority=0)
    ended(stage, W1="token cancelled", W2="token cancelled")


def two_cancels_v_release_async(stage: Stage) -> None:
    reserving(stage)
    stage.acquire_async("loop", {"W1": {"priority": 0}, "W2": {"priority": 0}})
    stage.cancel_tasks("C", "W1", "W2")
    ended(stage, W1="token cancelled", W2="token cancelled")


def ties_in_order(stage: Stage) -> None:
    """Of equals the first to come is the first to be served."""
    stage.pool(1)
    stage.acquire("W1")
    stage.acquire("W2")
    stage.release()
    ended(stage, W1="token", W2="token")
    came = [who for who, what in stage.run.events if what == "acquire_or_join"]
    assert stage.served == came, f"came {came}, were served {stage.served}"


def nobody_slips_in(stage: Stage) -> None:
    """Who waits owns the token before its release returns: newcomers find none, however urgent."""
    pool = stage.pool(1)
    stage.bystander(2)
    for name in ("N1", "N2"):

        def look(name: str = name) -> None:
            stage.call("try_acquire")
            token = pool.try_acquire(0, heartbeat_ns=0)
            if token is not None:
                stage.mine.append(token)
            stage.ends(name, "nothing" if token is None else "token")

        stage.run.actor(name, look)
    stage.release()
    ended(stage, N1="nothing", N2="nothing")


ALL = (
    grant_v_cancel, grant_v_cancel_async, grant_v_timeout, grant_v_timeout_async, two_timeouts_async, grant_v_close,
    grant_v_close_async,
    resize_v_acquire_v_release, resize_v_acquire_v_release_async, revoke_v_beat_v_release,
    revoke_v_beat_v_release_async, revoke_v_beat, two_cancels_v_release, two_cancels_v_release_async, ties_in_order,
    nobody_slips_in,
)  # fmt: skip
