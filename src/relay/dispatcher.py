"""The lane's loop: wait, take, assemble, run, answer.

One thread, which runs one batch at a time: the lane is the permit to run. Members are chosen when the lane is free and
committed in the same step; until then they are queued and can be cancelled, expire, or be joined. A lane that finds
nothing parks on a lock and uses no processor.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from relay._backend import tickets
from relay.assemble import Assembler
from relay.clock import NS, Clock, release_once
from relay.desk import Desk
from relay.limits import Limits
from relay.outputs import member_error, rows_of
from relay.policy import Policy
from relay.runs import all_of
from relay.ticket import Replies, Run, Ticket, settle
from relay.tokenizer import Tokenizer

log = logging.getLogger("relay")


class Dispatcher:
    """One model, the desk where its requests come in, and the lane that runs it.

    Args:
        model: Called with a list of items, or with a `Batch` where there is a tokenizer.
        tokenizer: Turns items into input ids, or None.
        name: For threads, logs and notes.
        limits: Sizes.
        policy: Orders the queue.
        clock: What all time is read from.
        generation: The first generation of the handles.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        tokenizer: Tokenizer | None,
        name: str,
        limits: Limits,
        policy: Policy,
        clock: Clock,
        generation: int = 1,
    ) -> None:
        self._model = model
        self._name = name
        self._limits = limits
        self._clock = clock
        self._gate = threading.Lock()
        self._gate.acquire()
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.desk = Desk(tokenizer, name, limits, policy, clock, self._gate.release, self._start, generation)
        self._assembler = Assembler(self.desk.queue, tokenizer) if tokenizer is not None else None
        _living.add(self)

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None:
                # Entered when it runs, here and by itself, whoever is first: `alive` is not to see it half started, and
                # if it cannot be started the next request tries again.
                thread = threading.Thread(target=self._serve, name=f"{self._name}-lane", daemon=True)
                thread.start()
                self._thread = thread

    @property
    def alive(self) -> bool:
        """True if the lane runs, or has not been needed yet."""
        return self._thread is None or self._thread.is_alive()

    def close(self) -> None:
        """Take no more, send away what is queued, and end the lane after its present batch. Does not wait; see
        `join`."""
        self.desk.close()
        if self.desk.queue.unpark():
            self._gate.release()

    def retire(self) -> None:
        """Answer what has been admitted, then close: for a relay that nobody holds any more."""
        self.desk.stop_admitting()
        self.desk.when_idle(self.close)

    def drain(self, limit_ns: int | None) -> int:
        """Take no more, and wait until no request is open. Returns how many are left when the limit is over."""
        self.desk.stop_admitting()
        gate = threading.Lock()
        gate.acquire()
        watcher = partial(release_once, gate)
        self.desk.when_idle(watcher)
        try:
            self._clock.park(gate, None if limit_ns is None else self._clock.now_ns() + limit_ns)
        finally:
            self.desk.unwatch(watcher)
        return len(self.desk.open)

    async def drain_async(self, limit_ns: int | None) -> int:
        """As `drain`, for coroutines."""
        self.desk.stop_admitting()
        idle = asyncio.Event()
        watcher = partial(asyncio.get_running_loop().call_soon_threadsafe, idle.set)
        self.desk.when_idle(watcher)
        try:
            async with asyncio.timeout(None if limit_ns is None else limit_ns / NS):
                await idle.wait()
        except TimeoutError:
            pass
        finally:
            self.desk.unwatch(watcher)
        return len(self.desk.open)

    def _after_fork_in_child(self) -> None:
        """The lane, and whatever is under way, are the parent's: nothing of it runs or is answered here."""
        _living.discard(self)
        self.desk.forsake()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the lane to end. True if it has."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def _serve(self) -> None:
        self._thread = self.desk.lane = threading.current_thread()
        desk, requests, now_ns, limits = self.desk, self.desk.queue, self._clock.now_ns, self._limits
        most, most_cost = limits.max_batch_size, limits.max_batch_tokens or 0
        while not desk.forked:  # as it is in a child that the model forked
            now = now_ns()
            handles, owners, late = requests.take(most, most_cost, now)
            if late:
                desk.dropped_late(late, now)
                desk.made_room()
            if handles:
                try:
                    self._run(handles, owners, now)
                except BaseException:
                    log.exception(
                        "relay: the lane of %r failed outside the model, which is a bug in relay; it goes on",
                        self._name,
                    )
            elif desk.closed:
                return
            elif requests.park() and not (desk.closed and requests.unpark()):
                del handles, owners, late  # keep nothing alive while asleep
                self._gate.acquire()

    def _run(self, handles: list[int], owners: list[Ticket[Any]], now_ns: int) -> None:
        run = Run(now_ns, len(handles))
        rows: Any = ()
        error: BaseException | None = None
        try:
            items = [owner._item for owner in owners]
            shared = owners[0]._params
            params = shared.keywords if shared is not None else {}
            batch: Any = items if self._assembler is None else self._assembler.batch(handles, items, params)
            if (torch := sys.modules.get("torch")) is not None:
                torch.set_grad_enabled(False)  # holds for this thread, which may have met torch only now
            run.started_ns = self._clock.now_ns()
            rows = rows_of(contextvars.Context().run(self._model, batch, **params), len(handles))
        except BaseException as raised:
            error = raised
        run.ended_ns = self._clock.now_ns()
        try:
            self._answer(handles, owners, rows, error, run)
        finally:
            del error  # whose traceback holds this frame, and so the batch

    def _answer(
        self, handles: list[int], owners: list[Ticket[Any]], rows: Any, error: BaseException | None, run: Run
    ) -> None:
        desk = self.desk
        if desk.forked:
            return
        desk.queue.finish(handles)  # closes the runs to joiners: nobody enters a list behind the loop below
        replies = Replies()
        left = range(len(owners)) if error is not None else tickets.answer_all(owners, rows, run, replies)
        failed = 0
        for index in left:
            failed += self._answer_shared(owners[index], rows[index] if error is None else error, run, replies)
        desk.counts.batch(run.size, run.ended_ns - run.started_ns, failed, error is not None)
        desk.flush(replies)
        desk.made_room()

    def _answer_shared(self, owner: Ticket[Any], row: Any, run: Run, replies: Replies) -> bool:
        """Answer one member and those who share its run, each with an error of its own. True if it failed."""
        failed = issubclass(type(row), BaseException)  # isinstance() would run a row's own __class__
        size = owner.size
        owner._item = owner._content = None
        for ticket in all_of(owner):
            ticket.size = size
            if failed:
                settle(ticket, None, member_error(row, run.size, self._name), replies, run)
            else:
                settle(ticket, row, None, replies, run)
        return failed


_living: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """At the interpreter's exit: let running batches end, for a while."""
    dispatchers = list(_living)
    for dispatcher in dispatchers:
        dispatcher.close()
    for dispatcher in dispatchers:
        dispatcher.join(dispatcher._limits.exit_grace_s)
