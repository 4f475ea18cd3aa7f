"""What the tests of `Permits` share: who waits, a clock, and a pool that notes what its hooks are told."""

from __future__ import annotations

from typing import Any

from conftest import Core

NO_PLACE = -2


class Waiter:
    """Who waits; a dead one never wakes."""

    __slots__ = ("__weakref__", "dead", "index", "name", "token")

    def __init__(self, name: object = None, dead: bool = False) -> None:
        self.index = -1
        self.token: Any = None
        self.name = name
        self.dead = dead


class Clock:
    """The time, in ns, and how often it was asked for."""

    def __init__(self, now_ns: int = 1_000_000) -> None:
        self.now_ns = now_ns
        self.reads = 0

    def __call__(self) -> int:
        self.reads += 1
        return self.now_ns


def pool(core: Core, *arguments: Any, **keywords: Any) -> Any:
    """A pool on a clock of its own, `clock`, whose hooks write to `told`, `leaks`, `armed`, `freed` and `nudged`."""

    class Pool(core.permits.Permits):  # type: ignore[name-defined, misc]
        def _deliver(self, waiter: Waiter) -> bool:
            self.told.append(waiter.name)
            return not waiter.dead

        def _leaked(self, token: Any) -> None:
            self.leaks.append((token.priority, token.cost, token.tenant, token.epoch, token.state))

        def _lease_armed(self) -> None:
            self.armed += 1

        def _freed(self) -> None:
            self.freed += 1

        def _nudge(self) -> None:
            self.nudged += 1

    clock = keywords.setdefault("now_ns", Clock())
    made = core.watch(Pool(*arguments, **keywords))
    made.clock, made.joined, made.told, made.leaks = clock, [], [], []  # type: ignore[attr-defined]
    made.armed = made.freed = made.nudged = 0  # type: ignore[attr-defined]
    return made


def join(permits: Any, key: int | None = None, priority: int = 1, name: object = None, **keywords: Any) -> Waiter:
    """A waiter that stands in line; its pool keeps it, so that its token is not thrown away with it."""
    waiter = Waiter(name)
    permits.joined.append(waiter)
    assert permits.acquire_or_join(priority, key, waiter, **keywords) is None
    return waiter


def allowance(*, urgent: int = 0, ordinary: int = 0, bulk: int = 0) -> list[int]:
    """For each of the 256 priorities how long it may be overtaken, in ns."""
    return [urgent, ordinary, *[bulk] * 254]


def release_next(permits: Any, token: Any, times: int) -> Any:
    """Release so many tokens of a pool that holds one, each as soon as it is granted; the last one granted."""
    for _ in range(times):
        token.release()
        (token,) = [waiter.token for waiter in permits.joined if waiter.token is not None and waiter.token.held]
    return token


def serve(permits: Any, token: Any) -> list[object]:
    """Release tokens of a pool that holds one until nobody waits; the names of those who waited, as served."""
    told = len(permits.told)
    release_next(permits, token, permits.waiting).release()
    return permits.told[told:]  # type: ignore[no-any-return]
