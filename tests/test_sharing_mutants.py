"""Six ways to break the sharing of one run, on the pure side, each found by a schedule of `test_sharing_interleavings`.

A mutant is put in place by patching, the test's own function is called, and must fail; without the mutant it passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import test_sharing_interleavings as schedules
from both import package
from schedule import Failed

from relay._pure._running import RunningBase

Patch = pytest.MonkeyPatch


def looks_before_it_enters(patch: Patch) -> None:
    """A follower looks whether the run is open first, and enters the list second."""

    def join(self: Any, leader: Any, handle: int, digest: int, follower: Any) -> bool:
        followers = leader._followers
        if followers is None or self.queue.find(digest)[0] != handle:
            return False
        follower._handle = handle
        self.open.add(follower)
        followers.append(follower)
        self.queue.share(handle)
        self.counts.add("merged")
        return True

    patch.setattr(package("pure").desk.Desk, "join", join)


def reads_before_it_closes(patch: Patch) -> None:
    """The lane answers first, and closes the run second."""
    close = RunningBase._close
    answer = RunningBase._answer

    def answer_then_close(self: Any, handles: list[int], *rest: Any) -> None:
        patch.setattr(RunningBase, "_close", lambda self, handles: len(handles))
        try:
            answer(self, handles, *rest)
        finally:
            patch.setattr(RunningBase, "_close", close)
            close(self, handles)

    patch.setattr(RunningBase, "_answer", answer_then_close)


def keeps_after_it_closes(patch: Patch) -> None:
    """The lane closes the run first, and keeps its answer second."""
    keep = RunningBase._keep

    def close_then_keep(self: Any, owners: list[Any], rows: Any, now_ns: int) -> Any:
        self._close(self._handles)
        return keep(self, owners, rows, now_ns)

    patch.setattr(RunningBase, "_keep", close_then_keep)


def looks_for_the_answer_first(patch: Patch) -> None:
    """Who asks looks for the answer first, and for the run second."""
    merging = package("pure").merging
    place, share = merging.Merger.place, merging.Merger._share

    def place_by_answer(self: Any, ticket: Any) -> Any:
        content = self._compared(ticket)
        self._know(ticket, content)
        found = self._desk.find_result(ticket._digest, content, None, ticket._arrival_ns)
        if found is not None:
            self._answer([(ticket, *found)])
            return True
        if share(self, ticket):
            return True
        ticket._followers = []
        if not self._desk.admit(ticket, digest=ticket._digest):
            return place(self, ticket)
        self._desk.led()
        return True

    patch.setattr(merging.Merger, "place", place_by_answer)


def answers_the_leader_first(patch: Patch) -> None:
    """The leader has his row before the others have their copies."""
    running = package("pure").running
    patch.setattr(running, "islice", lambda tickets, start, stop: tickets)


def keeps_for_the_next_epoch(patch: Patch) -> None:
    """What is under way at an `invalidate` is kept."""
    keep = RunningBase._keep

    def keep_anyway(self: Any, owners: list[Any], rows: Any, now_ns: int) -> Any:
        desk = self._station.desk
        for owner in owners:
            if owner._content is not None:
                owner._epoch = desk.epoch
                owner._digest = desk.queue.digest(owner._content, 0, desk.epoch)
        return keep(self, owners, rows, now_ns)

    patch.setattr(RunningBase, "_keep", keep_anyway)


MERGING = {"cache_bytes": 0}
CACHE = {"cache_bytes": 1 << 20}
SOME = {"cache_bytes": 1 << 20, "all_orders": False}

MUTANTS: list[tuple[Callable[[Patch], None], Callable[..., None], dict[str, Any], str]] = [
    (looks_before_it_enters, schedules.test_a_submitter_v_the_end, {**MERGING, "short": False}, "is left"),
    (reads_before_it_closes, schedules.test_a_submitter_v_the_end, {**MERGING, "short": False}, "two runs of one"),
    (keeps_after_it_closes, schedules.test_a_submitter_v_the_end, {**CACHE, "short": False}, "it was run twice"),
    (looks_for_the_answer_first, schedules.test_a_submitter_v_the_end, {**CACHE, "short": False}, "it was run twice"),
    (
        answers_the_leader_first,
        schedules.test_an_answer_is_changed_by_the_first_who_has_it,
        SOME,
        "another has changed what",
    ),
    (keeps_for_the_next_epoch, schedules.test_a_submitter_v_an_invalidate_v_the_end, SOME, "from before it is kept"),
]


@pytest.mark.parametrize(("mutant", "test", "options", "says"), MUTANTS, ids=[each[0].__name__ for each in MUTANTS])
def test_killed(mutant: Callable[[Patch], None], test: Callable[..., None], options: dict[str, Any], says: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        with pytest.raises(Failed, match=says) as found:
            test("pure", **options)
        print(f"{mutant.__name__} is killed by {test.__name__}:\n{found.value}")
    test("pure", **options)  # and passes without
