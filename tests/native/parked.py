"""A8 on the native core as Python calls it: ``python parked.py STEPS SEED [race]``, run by tests/test_sanitizers.py.

Four threads and four event loops with four tasks each acquire from one pool with time limits of 0 to 1 ms, against the
releases of all the others; tasks are cancelled as well. What happened is printed, in JSON. With "race" one more thread
writes to the pool's histogram without the GIL, for the sanitizer to see.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections import Counter
from typing import Any

from relay import AcquireTimeout, TokenPool, backend
from relay.clock import MonotonicClock

PARKED = LOOPS = 4
TASKS = 4
ENOUGH = 100  # of the rarest meeting
LATE, PASSED_ON = "granted as its time ended", "granted as it was cancelled"


class Noting(MonotonicClock):
    """Remembers for each thread whether its gate was opened before its time was over."""

    def __init__(self) -> None:
        self.mine = threading.local()

    def park(self, gate: threading.Lock, until_ns: int | None) -> bool:
        self.mine.opened = super().park(gate, until_ns)
        return bool(self.mine.opened)


class Run:
    def __init__(self, steps: int, seed: int) -> None:
        self.steps, self.seed = steps, seed
        self.clock = Noting()
        self.pool = TokenPool(3, reserved={0: 1}, tenant_caps={"a": 2}, max_waiting=64, clock=self.clock)
        self.counts: list[Counter[str]] = [Counter() for _ in range(PARKED + LOOPS)]
        self.errors: list[BaseException] = []

    def goes_on(self, step: int) -> bool:
        """Until everybody has done its steps, and what is rare has happened often enough, or seems never to happen."""
        rare = min(sum(counts[what] for counts in self.counts) for what in (LATE, "cancelled"))
        return step < self.steps or (rare < ENOUGH and step < 20 * self.steps)

    def facts(self, rng: random.Random) -> dict[str, Any]:
        timeout = rng.choice((0, rng.random() * 1e-3, rng.random() * 1e-4))
        cost, tenant = rng.choice(((1, None), (1, "a"), (2, "b")))
        return {"priority": rng.randrange(3), "timeout": timeout, "cost": cost, "tenant": tenant}

    def parked(self, me: int) -> None:
        rng, counts, step = random.Random(f"{self.seed} {me}"), self.counts[me], 0
        while self.goes_on(step):
            step += 1
            self.clock.mine.opened = True
            try:
                token = self.pool.acquire(**self.facts(rng))
            except AcquireTimeout:
                counts["timed out"] += 1
                continue
            counts["granted"] += 1
            counts[LATE] += not self.clock.mine.opened
            for _ in range(rng.randrange(4)):
                time.sleep(0)  # others run while it is held
            token.release()

    async def task(self, me: int, number: int) -> None:
        rng, counts, step = random.Random(f"{self.seed} {me} {number}"), self.counts[me], 0
        loop = asyncio.get_running_loop()
        while self.goes_on(TASKS * step):
            step += 1
            wait = loop.create_task(self.pool.acquire_async(**self.facts(rng)))
            if rng.random() < 0.5:
                loop.call_later(rng.random() * 1e-3, wait.cancel)
            try:
                token = await wait
            except AcquireTimeout:
                counts["timed out"] += 1
            except asyncio.CancelledError:
                counts["cancelled"] += 1
            else:
                counts["granted"] += 1
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
                token.release()

    async def tasks(self, me: int) -> None:
        await asyncio.gather(*(self.task(me, number) for number in range(TASKS)))

    def work(self, me: int) -> None:
        try:
            if me < PARKED:
                self.parked(me)
            else:
                asyncio.run(self.tasks(me))
        except BaseException as error:
            self.errors.append(error)

    def race(self) -> None:
        import stress_pool

        stress_pool.record(self.pool.waits, 100_000)

    def all(self, plant: str) -> dict[str, int]:
        threads = [threading.Thread(target=self.work, args=(me,)) for me in range(PARKED + LOOPS)]
        if plant == "race":
            threads.append(threading.Thread(target=self.race))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        counts = sum(self.counts, Counter())
        # Who was granted a token as it was cancelled has handed it on, so it was granted once more.
        counts[PASSED_ON] = self.pool.granted - counts["granted"]
        if not plant:
            self.pool.check()
        state = self.pool.snapshot()
        assert (state.held, state.waiting, state.free) == (0, 0, 3)
        assert state.timed_out == counts["timed out"], "a wait ended in some other way"
        self.pool.close()
        return counts


if __name__ == "__main__":
    assert backend == "native"
    sys.setswitchinterval(1e-5)
    print(json.dumps(Run(int(sys.argv[1]), int(sys.argv[2])).all("".join(sys.argv[3:]))))
