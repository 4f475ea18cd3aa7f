"""A crowd: many threads that call one thing in rounds, between which nobody calls and everything is recounted.

Every thread draws its own calls from the test's seed.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

THREADS = 24
KEYS = 8192


@contextmanager
def switching_every(seconds: float) -> Iterator[None]:
    """The interpreter switches threads as often as this."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    yield
    sys.setswitchinterval(interval)


class Crowd:
    """The threads.

    Args:
        seed: Of all that they draw.
        seconds: For so long rounds begin; there are three at least.

    Attributes:
        weights: Of the keys: some are asked for far more often than others.
        rounds: How many are over.
    """

    def __init__(self, seed: int, seconds: float) -> None:
        self.weights = [1 / (rank + 1) for rank in range(KEYS)]
        self.rounds = 0
        self._seed = seed
        self._errors: list[BaseException] = []
        self._over = False
        self._until = time.monotonic() + seconds
        self._barrier = threading.Barrier(THREADS, self._between)

    def work(self, me: int, rng: random.Random) -> None:
        """What a thread does in one round."""
        raise NotImplementedError

    def recount(self) -> None:
        """What one thread does while all others wait."""
        raise NotImplementedError

    def go(self) -> None:
        """All rounds. Raises the first error of a thread."""
        threads = [threading.Thread(target=self._run, args=(me,), daemon=True) for me in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _between(self) -> None:
        self.recount()
        self.rounds += 1
        self._over = time.monotonic() > self._until and self.rounds > 2

    def _run(self, me: int) -> None:
        rng = random.Random(f"{self._seed} {me}")
        try:
            while not self._over:
                self.work(me, rng)
                self._barrier.wait()
        except threading.BrokenBarrierError:
            pass  # another thread has failed
        except BaseException as error:
            self._errors.append(error)
            self._barrier.abort()
