"""Looking at the books: what is held, who waits, how long a newcomer would wait, and whether all of it adds up.

Any thread may call any method, and every answer is that of one moment.
"""

from __future__ import annotations

from relay._pure._budget import FITS, SHORT
from relay._pure._leases import Leases
from relay._pure._ledger import FOREVER_NS
from relay._pure._token import Token, check_priority, check_size
from relay._pure.state import slot_of

_BUG = "; this is a bug in relay"


class Looking(Leases):
    """What `Permits` is built on: what may be asked of it."""

    __slots__ = ()

    @property
    def capacity(self) -> int:
        """Units in all."""
        return self._budget.capacity

    @property
    def held(self) -> int:
        """Units held now."""
        return self._budget.held

    @property
    def free(self) -> int:
        """Units free now, reserved ones included; 0 while more are held than there are after a cut."""
        return max(0, self._budget.free)

    def __len__(self) -> int:
        """Tokens held now."""
        return len(self._arena)

    def tokens(self) -> list[Token]:
        """Views of all tokens held now; to drop them means nothing."""
        with self._guard:
            return [self._view(handle) for handle in self._handles()]

    def owned(self, who: int) -> int:
        """How many tokens somebody, named by `owner()`, has acquired and still holds."""
        with self._guard:
            return sum(self._arena.key[slot_of(handle)] == who for handle in self._handles())

    def most_urgent(self) -> int:
        """The most urgent tier that waits, or -1."""
        with self._guard:
            return min((line.level for line in self._lines), default=-1)

    def by_tier(self) -> dict[int, tuple[int, int, int]]:
        """For each tier with any of these: units held, requests waiting, units reserved."""
        with self._guard:
            found: dict[int, list[int]] = {}
            for tier, _ in self._floors:
                found[tier] = [0, 0, self._budget.floor[self._budget.group[tier]]]
            for handle in self._handles():
                slot = slot_of(handle)
                found.setdefault(self._arena.group[slot], [0, 0, 0])[0] += self._arena.cost[slot]
            for line in self._lines:
                found.setdefault(line.level, [0, 0, 0])[1] += len(line.waiters)
            return {level: (held, waiting, kept) for level, (held, waiting, kept) in sorted(found.items())}

    def by_tenant(self) -> dict[str, tuple[int, int, int]]:
        """For each tenant that holds or waits: units held, requests waiting, its cap or -1."""
        with self._guard:
            tenants = self._budget.tenants.items()
            return {name: (one.held, one.waiting, one.cap) for name, one in tenants if name is not None}

    def predict_ns(self, priority: int | str = 1, cost: int = 1) -> int:
        """How long a newcomer would wait, by the rate at which units came back lately, or -1 if that is not known."""
        level, cost = check_priority(priority), check_size("cost", cost, 1)
        with self._guard:
            if self._rate_units <= 0 or self._rate_ns <= 0:
                return -1
            ahead = sum(self._lines.units[: level + 1]) + cost - self._budget.free
            return int(min(max(0, ahead) / self._rate_units * self._rate_ns, FOREVER_NS))

    def check(self) -> None:
        """Recount everything.

        Raises:
            AssertionError: An invariant is broken, which is a bug in relay.
        """
        with self._guard:
            self._recount()

    def _recount(self) -> None:
        self._arena.check()
        self._leases.check()
        self.waits.check()
        places = [place for place in self._places if place is not None]
        if not self._budget.check():
            raise AssertionError("units miscounted" + _BUG)
        if sum(self._arena.cost[slot_of(handle)] for handle in self._handles()) != self._budget.held:
            raise AssertionError("held tokens miscounted" + _BUG)
        if not self._lines.check(places) or len(places) != self.waiting:
            raise AssertionError("waiters miscounted" + _BUG)
        if self.waiting + len(self._idle) != self.max_waiting:
            raise AssertionError("waiter places miscounted" + _BUG)
        fits = [self._budget.fits(line.level, line.head.tenant, line.cost) for line in self._lines]
        if FITS in fits and SHORT not in fits:  # one who lacks enough may bar the way
            raise AssertionError("a waiter who could be served waits" + _BUG)
