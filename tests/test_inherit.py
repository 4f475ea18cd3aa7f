"""Priority inheritance: who holds what somebody urgent waits for is urgent in every other line, for that long."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def pools(lab: Lab, n: int = 2, **options: Any) -> list[Any]:
    return [lab.pool(1, clock=lab.clock(), name=f"pool-{i}", **options) for i in range(n)]


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


def test_a_holder_is_served_as_urgently_as_who_waits_for_it(lab: Lab, loops: Any) -> None:
    first, second = pools(lab)
    order: list[str] = []

    async def holder() -> None:
        async with first.lease(lab.BATCH):
            async with second.lease(lab.BATCH):
                order.append("holder")

    async def rival() -> None:
        async with second.lease(lab.INTERACTIVE):
            order.append("rival")

    async def urgent() -> None:
        async with first.lease(lab.REALTIME):
            order.append("urgent")

    async def main() -> None:
        token = second.acquire()
        tasks = [asyncio.create_task(holder())]
        await turns()
        tasks.append(asyncio.create_task(rival()))
        await turns()
        assert set(second.snapshot().tiers) == {lab.INTERACTIVE, lab.BATCH}
        tasks.append(asyncio.create_task(urgent()))
        await turns()
        assert second.snapshot().tiers[lab.REALTIME].waiting == 1  # the holder stands there now
        token.release()
        await asyncio.gather(*tasks)

    lab.run(loops, main())
    assert order == ["holder", "urgent", "rival"] or order == ["holder", "rival", "urgent"]
    assert order[0] == "holder"
    lab.testing.assert_idle(first, second)


def test_undone_when_the_cause_goes(lab: Lab, loops: Any) -> None:
    first, second = pools(lab)

    async def holder() -> None:
        async with first.lease(lab.BATCH):
            await second.acquire_async(lab.BATCH)

    async def main() -> None:
        token = second.acquire()
        task = asyncio.create_task(holder())
        await turns()
        cause = asyncio.create_task(first.acquire_async(lab.REALTIME))
        less = asyncio.create_task(first.acquire_async(lab.INTERACTIVE))
        await turns()
        assert set(second.snapshot().tiers) & {0, 1, 2} >= {lab.REALTIME}
        cause.cancel()
        await turns()
        tiers = {level for level, tier in second.snapshot().tiers.items() if tier.waiting}
        assert tiers == {lab.INTERACTIVE}  # as urgent as who still waits
        less.cancel()
        await turns()
        tiers = {level for level, tier in second.snapshot().tiers.items() if tier.waiting}
        assert tiers == {lab.BATCH}
        task.cancel()
        await asyncio.gather(task, cause, less, return_exceptions=True)
        token.release()

    lab.run(loops, main())
    lab.testing.assert_idle(first, second)


def test_one_level_deep(lab: Lab, loops: Any) -> None:
    """A waits for what B holds, and B for what C holds: B is lifted, C by B's own priority only."""
    first, second, third = pools(lab, 3)

    async def chain(held: Any, wanted: Any, priority: int) -> None:
        async with held.lease(priority), wanted.lease(priority):
            pass

    async def main() -> None:
        token = third.acquire()
        c = asyncio.create_task(chain(second, third, lab.BATCH))
        await turns()
        b = asyncio.create_task(chain(first, second, lab.INTERACTIVE))
        await turns()
        assert [level for level, t in third.snapshot().tiers.items() if t.waiting] == [lab.INTERACTIVE]
        a = asyncio.create_task(first.acquire_async(lab.REALTIME))
        await turns()
        assert [level for level, t in second.snapshot().tiers.items() if t.waiting] == [lab.REALTIME]
        assert [level for level, t in third.snapshot().tiers.items() if t.waiting] == [lab.INTERACTIVE]
        token.release()
        (await a).release()
        await asyncio.gather(b, c)

    lab.run(loops, main())
    lab.testing.assert_idle(first, second, third)


def test_threads(lab: Lab) -> None:
    first, second = pools(lab)

    def holder() -> None:
        with first.lease(lab.BATCH), second.lease(lab.BATCH):
            pass

    token = second.acquire()
    held = lab.call(holder)
    lab.in_line(second, 1)
    urgent = lab.call(first.acquire, lab.REALTIME)
    lab.in_line(first, 1)
    lab.wait_until(lambda: lab.REALTIME in second.snapshot().tiers)
    token.release()
    held.result()
    urgent.result().release()
    lab.testing.assert_idle(first, second)


def test_a_second_wait_without_a_token_lifts_nobody(lab: Lab, loops: Any) -> None:
    first, second = pools(lab)

    async def main() -> None:
        one, two = first.acquire(), second.acquire()
        waits = [asyncio.create_task(second.acquire_async(lab.BATCH))]
        await turns()
        waits.append(asyncio.create_task(first.acquire_async(lab.REALTIME)))
        await turns()
        assert [level for level, t in second.snapshot().tiers.items() if t.waiting] == [lab.BATCH]
        one.release()
        two.release()
        for task in waits:
            (await task).release()

    lab.run(loops, main())


def test_work_of_run_async_holds_what_its_caller_acquired(lab: Lab, loops: Any) -> None:
    first, second = pools(lab)

    async def work() -> None:
        async with second.lease(lab.BATCH):
            pass

    async def main() -> None:
        token = second.acquire()
        task = asyncio.create_task(first.run_async(work, priority=lab.BATCH))
        await turns()
        urgent = asyncio.create_task(first.acquire_async(lab.REALTIME))
        await turns()
        assert [level for level, t in second.snapshot().tiers.items() if t.waiting] == [lab.REALTIME]
        token.release()
        await task
        (await urgent).release()

    lab.run(loops, main())


def test_nothing_is_kept(lab: Lab, loops: Any) -> None:
    first, second = pools(lab)
    inheritance = lab.package.inherit.inheritance

    async def main() -> None:
        token, other = second.acquire(), first.acquire()
        waits = [asyncio.create_task(pool.acquire_async()) for pool in (first, second) for _ in range(20)]
        await turns()
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        token.release()
        other.release()

    lab.run(loops, main())
    gc.collect()
    assert not inheritance._waits and not inheritance._holders
