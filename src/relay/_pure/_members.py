"""How the members of a batch are found and committed: one walk down the line, and a choice where sizes differ.

Owns how many members have joined since an overdue request was given a place. Any thread may call `take`; it is atomic.
The invariants: a request that is passed over keeps its key and its arrival; the first in line, or an overdue request
that is given its place, always joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from relay._pure._admission import Admission
from relay._pure._choosing import (
    CLOSED_IDLE,
    CLOSED_PARAMS,
    CLOSED_SIZE,
    CLOSED_STEP,
    CLOSED_TOKENS,
    OWN_DEADLINE,
    Filling,
)
from relay._pure.arena import DROP_FREED
from relay._pure.state import as_int32

ROUNDS = 3  # times that a choice is made anew at most
LOOK_PAST = 256
"""How far down the line `take` looks, unless told otherwise."""


class Members(Admission):
    """What `RequestQueue` is built on: those who run together."""

    __slots__ = ()

    def take(
        self,
        most: int,
        most_cost: int,
        now_ns: int,
        costs: Sequence[float] | None = None,
        step_ns: int = 0,
        look: int = LOOK_PAST,
        places: Sequence[tuple[int, int]] = (),
        finish: bool = False,
    ) -> tuple[list[int], list[Any], list[Any], int, int, int]:
        """Chooses the members of a batch and commits them.

        1. The first in line joins; but once ``overdue_every - 1`` members have joined since the last time, the next
           place is that of the request which is overdue for longest, whatever its priority. If that is of another group
           or does not fit, it comes first in the next batch. (Where sizes cost, one of the first one's own priority is
           left to 3: it is the first of all, soon enough.)
        2. While those that follow are of the first one's size, or size costs nothing or nobody knows what it costs,
           they join in order, until one does not fit. Those of another group are passed over.
        3. From the first of another size on, those down to `look` are chosen among. Of the first one's priority those
           join that keep base and padding for each member lowest: see `_choosing`. Before them come those that are
           overdue, in order, unless they are more than would be chosen so: under lasting overload all are overdue, and
           batches in order of arrival, which are padded most, would only make it last. The first in line is the oldest
           of its priority then, too, so each is at some time the first. And whose deadline is nearer than twice the
           time of the batch that would come of this, and would be left out, joins in order.
        4. What places are left then go to riders, of less urgent priorities, in order.

        Nobody joins a batch whose base is next to nothing beside what its members take: see `Filling.worth`. Nor
        anybody who would make the batch end, by the upper line, after the deadline of a member that could be kept
        if that one ran alone. A batch with riders, or of bulk alone (priority 2 and less urgent), is kept within one
        step, so that an urgent arrival waits no longer than that; but one member there always is.

        Args:
            most: Members at most.
            most_cost: Members times the largest cost among them at most; 0 for no limit.
            now_ns: Requests whose deadline has come are not chosen but dropped.
            costs: How long a batch runs at most, by its shape: see `_choosing`. None: not known yet, and then neither
                deadlines to come nor steps play a part.
            step_ns: How long a step is; 0 for no limit.
            look: How far down the line to look, or as far as `most`, if that is farther. 0: strictly in order, and the
                batch ends before the first that is of another group or does not fit.
            places: (priority, how many of this priority or less urgent may join), for each priority that keeps places.
            finish: A request whose deadline cannot be met if it ran now is dropped too; see `_choosing.Filling`.

        Returns:
            The members' handles, their owners, the owners of the dropped, why no more have joined (the first reason
            that kept a ready request out), the largest cost among the members and the sum of their costs.

        Raises:
            TypeError, OverflowError: As for `admit`.
            ValueError: There are not four costs, or one is negative or not finite; a priority of `places` is none, or
                there are more than 16.
        """
        with self._lock:
            batch = Filling(most, most_cost, now_ns, costs, step_ns, places, finish, len(self._heap))
            look = as_int32("look", look)
            self._walk(batch, look)
            if len(batch.handles) >= batch.most:
                batch.why = CLOSED_SIZE if batch.handles and len(self._heap) else CLOSED_IDLE
            return batch.handles, batch.owners, batch.late, batch.why, batch.width, batch.real

    def _walk(self, batch: Filling, look: int) -> None:
        arena = self.arena
        farthest, seen = max(look, batch.most), 0
        others: list[int] = []
        for slot in self._line() if batch.most > 0 else ():
            if len(batch.handles) >= batch.most or seen >= farthest:
                break
            if slot not in self._heap._entries or (arena.deadline_ns[slot] >= 0 and self._late(batch, slot)):
                continue
            level, cost = self._level[slot], arena.cost[slot]
            if not others:
                if not batch.handles:
                    batch.top = level
                if self._mixed and self._grant(batch, 1):
                    if slot not in self._heap:
                        continue
                    if len(batch.handles) >= batch.most:
                        break
                if not batch.handles:
                    self._join(batch, slot)
                    continue
            seen += 1
            if arena.group[slot] != batch.group:
                batch.note(CLOSED_PARAMS)
                if look <= 0:
                    break
            elif others or (batch.sized and look > 0 and cost != batch.width):
                others.append(slot)
            else:
                reason = self._try(batch, slot)
                if reason and (reason != OWN_DEADLINE or look <= 0):
                    break
        if others and len(batch.handles) < batch.most:
            self._choose(batch, others)

    def _choose(self, batch: Filling, others: list[int]) -> None:
        """Chooses among requests of the batch's group that follow one another in line, of sizes that differ."""
        arena = self.arena
        riders = [slot for slot in others if self._level[slot] > batch.top]
        waiting = [slot for slot in others if self._level[slot] <= batch.top]
        overdue = {slot: None for slot in waiting if 0 <= self._due_ns[slot] <= batch.now_ns}
        if overdue and len(overdue) <= max(len(batch.fill([arena.cost[slot] for slot in waiting])), 1):
            for slot in overdue:
                self._grant(batch, 1)
                if slot in self._heap:
                    self._try(batch, slot)
            waiting = [slot for slot in waiting if slot not in overdue]
        # Of the places to come some are for overdue ones, whose width is to be known before the others are chosen.
        while waiting and self._grant(batch, len(batch.fill([arena.cost[slot] for slot in waiting]))):
            waiting = [slot for slot in waiting if slot in self._heap]
        for _ in range(ROUNDS):
            waiting = [slot for slot in waiting if slot in self._heap]
            chosen = set(batch.fill([arena.cost[slot] for slot in waiting]))
            width = max([batch.width, *(arena.cost[waiting[i]] for i in chosen)])
            near_ns = 2.0 * batch.time(len(batch.handles) + len(chosen), width)
            near = {
                slot
                for i, slot in enumerate(waiting)
                if i not in chosen and batch.left(arena.deadline_ns[slot]) < near_ns
            }
            if not near or len(batch.handles) >= batch.most:
                break
            # This batch and another one like it may make them late: they join first, and the others are chosen anew.
            for slot in waiting:
                if slot in near:
                    self._try(batch, slot)
            waiting = [slot for slot in waiting if slot not in near]
            chosen = set()
        else:
            chosen = set(batch.fill([arena.cost[slot] for slot in waiting]))
        for i, slot in enumerate(waiting):
            if i in chosen:
                self._try(batch, slot)
        for i, slot in enumerate(waiting):
            if i not in chosen:
                batch.note(batch.refusal(self._level[slot], arena.cost[slot], inf) or CLOSED_TOKENS)
        for slot in riders:
            if len(batch.handles) >= batch.most:
                break
            self._grant(batch, 1)
            if slot in self._heap:
                self._try(batch, slot)

    def _grant(self, batch: Filling, to_come: int) -> bool:
        """Gives the longest overdue request one of the next places, if among so many there is one for it."""
        if batch.blocked or not self._mixed or to_come <= 0 or self._since + to_come < self._every:
            return False
        while (slot := self._by_due.peek()) >= 0 and self._due_ns[slot] <= batch.now_ns:
            if self._late(batch, slot):
                continue
            if batch.handles:
                if batch.sized and self._level[slot] == batch.top:
                    return False  # its turn comes as the first in line; here it would only be padding
                if self.arena.group[slot] != batch.group:
                    reason = CLOSED_PARAMS
                else:
                    left_ns = batch.left(self.arena.deadline_ns[slot])
                    reason = batch.refusal(self._level[slot], self.arena.cost[slot], left_ns)
                if reason and not (reason == CLOSED_STEP and batch.may_widen):
                    batch.note(reason)
                    batch.blocked = True
                    return False
            if self._join(batch, slot):
                self._since -= self._every
                return True
        return False

    def _try(self, batch: Filling, slot: int) -> int:
        """Lets a request join if it may; the reason if it may not."""
        left_ns = batch.left(self.arena.deadline_ns[slot])
        reason = batch.refusal(self._level[slot], self.arena.cost[slot], left_ns)
        if reason:
            batch.note(reason)
        else:
            self._join(batch, slot)
        return reason

    def _join(self, batch: Filling, slot: int) -> bool:
        arena = self.arena
        handle, owner = arena.handle(slot), self._owners[slot]
        if not arena.commit(handle):
            return False  # a finaliser has come in between, and has taken it away
        if not batch.handles:
            batch.group = arena.group[slot]
        self._leave(slot)
        self._timers.disarm(slot)
        arena.commit_ns[slot] = batch.now_ns
        batch.add(handle, owner, self._level[slot], arena.cost[slot], batch.left(arena.deadline_ns[slot]))
        self._since = min(self._since, self._every - 1) + 1
        return True

    def _late(self, batch: Filling, slot: int) -> bool:
        """Drops a request that is not to be started any more."""
        arena = self.arena
        if not batch.too_late(arena.deadline_ns[slot], arena.cost[slot]):
            return False
        handle = arena.handle(slot)
        if arena.drop(handle) == DROP_FREED:
            batch.late.append(self._forget(slot, handle))
        return True
