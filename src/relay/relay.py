"""Relay: a model behind a queue. Read top to bottom it is the flow: submit, wait for room, many at once, the end.

A relay may be used from any thread and any number of event loops. It starts nothing before its first request.
Everything it holds hangs on the dispatcher; a relay that is dropped answers what it has taken, then ends its threads.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from relay._backend import backend
from relay.clock import MONOTONIC, Clock, limit_ns
from relay.dispatcher import Dispatcher
from relay.errors import TooLarge
from relay.fork import survivors
from relay.intake import Intake, check_model
from relay.limits import Limits
from relay.mapping import map_in_order, map_in_order_async
from relay.merging import Merger
from relay.policy import BATCH, Facts, Policy, Priority, as_policy
from relay.stats import RelaySnapshot
from relay.ticket import Group, Member, Ticket, refuse_own_thread, warn_if_on_loop
from relay.tokenizer import Tokenizer

In = TypeVar("In")
Out = TypeVar("Out")


class Relay(Generic[In, Out]):
    """Puts a model behind a queue that batches, merges, orders and expires its requests.

    After a fork the relay is empty in the child: the same model and settings, nothing queued, counters at 0, no thread
    before the first request; closed if it was closed. What was under way goes on in the parent alone: the tickets of
    requests made before the fork end in the child with `Closed`, reason ``forked``, their callbacks are not called.

    Args:
        model: Any callable. Without a tokenizer it is called with a list of items, with one as ``model(batch)`` with a
            `Batch`; the parameters of a request come as keyword arguments. It returns a list, array or tensor of one
            row an item; a row may be an exception. One batch runs at a time, on a thread of the relay's own.
        tokenizer: Turns items into input ids on helper threads. None takes the model's attribute ``tokenizer`` if it
            has one.
        name: For threads, logs and error texts.
        max_batch_size: Members of a batch at most.
        max_batch_tokens: Padded size of a batch at most, which is its members times the largest size among them; None
            for no limit. A size is the number of input ids, or without a tokenizer the length of a str or bytes, the
            bytes of an array, else 1.
        max_queue: Requests admitted at once, running ones included.
        merge: Let identical requests that are under way together share one run. None: if the model says ``deterministic
            = True`` or `key` is given.
        key: ``key(item)`` stands for an item when requests are compared; it must return a str, bytes, int, or a tuple
            of these.
        limits: The other sizes; see `Limits`.
        policy: Orders the queue.
        clock: What all time is read from; for tests.

    Raises:
        TypeError: The model cannot be called, or is a coroutine or generator function.
        ValueError: A size is out of range.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        tokenizer: Tokenizer | None = None,
        name: str = "relay",
        max_batch_size: int = 64,
        max_batch_tokens: int | None = None,
        max_queue: int = 8192,
        merge: bool | None = None,
        key: Callable[[In], Any] | None = None,
        limits: Limits | None = None,
        policy: Policy | Callable[[Facts], int] | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_model(model)
        order = as_policy(policy)
        if order.weights is not None:
            raise ValueError(f"{type(order).__name__} shares by tenant, which a relay does not; use it in a TokenPool")
        self.name = name
        self.limits = replace(
            limits or Limits(), max_batch_size=max_batch_size, max_batch_tokens=max_batch_tokens, max_queue=max_queue
        )
        tokenizer = tokenizer if tokenizer is not None else getattr(model, "tokenizer", None)
        self._new_dispatcher = partial(Dispatcher, model, tokenizer, name, self.limits, order, clock or MONOTONIC)
        self._merge = merge if merge is not None else key is not None or getattr(model, "deterministic", False) is True
        self._key = key
        self._build(1)

    def _build(self, generation: int) -> None:
        """Make all that requests pass through, empty."""
        self._dispatcher = dispatcher = self._new_dispatcher(generation)
        self._desk = desk = dispatcher.desk
        self._intake: Intake[In, Out] = Intake(desk, Merger(desk, self._key) if self._merge else None)
        self._ticket, self._place = self._intake.ticket, self._intake.place
        self._retire = weakref.finalize(self, dispatcher.retire)
        self._retire.atexit = False
        survivors.add(self)  # before the dispatcher, which then lets go of everything
        survivors.add(dispatcher)  # by itself, for it outlives a relay that is dropped

    def _after_fork_in_child(self) -> None:
        """Start anew with the same model and settings; closed if it was."""
        old = self._desk
        self._retire.detach()  # it would take locks
        self._build(old.queue.next_generation)
        if old.closed:
            self._dispatcher.close()
        elif old.refusing:
            self._desk.stop_admitting()

    # One request.

    def submit(
        self,
        item: In,
        *,
        priority: Priority | None = None,
        deadline: float | None = None,
        tenant: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Ticket[Out]:
        """Ask for one item's answer. Never blocks.

        Args:
            item: Always one item, also when it is a list.
            priority: A name or 0 (most urgent) to 255; None means INTERACTIVE.
            deadline: Seconds from now until its run must have started; None for any time.
            tenant: Whoever it is for; requests of different tenants never share a run.
            params: Keyword arguments for the model; only requests with equal ones share a batch.

        Returns:
            The ticket its answer comes through.

        Raises:
            ValueError, TypeError: The item or an argument is not valid.
            TooLarge: The item can never fit a batch.
            Overloaded: The queue is full.
            Closed: The relay is closed.
        """
        ticket = self._ticket(item, priority, deadline, tenant, params)
        if not self._place(ticket):
            raise self._desk.refusal()
        return ticket

    def __call__(self, item: In, *, timeout: float | None = None, **request: Any) -> Out:
        """Ask for one item's answer and wait for it, for room in the queue too.

        Args:
            item: One item.
            timeout: Seconds to wait for room at most.
            **request: As for `submit`.

        Raises:
            Overloaded: There was no room within `timeout`.
            Exception: As `submit`, and whatever the request ends with.
        """
        ticket = self._intake.submit_waiting(item, timeout, **request)
        try:
            return ticket.result()
        except BaseException:
            ticket.cancel()  # without effect unless the wait itself was interrupted
            raise

    async def run_async(
        self,
        item: In,
        *,
        priority: Priority | None = None,
        deadline: float | None = None,
        tenant: str | None = None,
        params: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Out:
        """As calling the relay, for coroutines. Cancelling it cancels the request."""
        if timeout is not None:
            limit_ns(timeout, "timeout")  # a wrong one is refused whether it is needed or not
        ticket = self._ticket(item, priority, deadline, tenant, params)
        if not self._place(ticket):
            await self._intake.wait_for_place_async(ticket, timeout)
        try:
            return await ticket
        except asyncio.CancelledError:
            ticket.cancel()
            raise

    # Many requests.

    def submit_many(
        self,
        items: Iterable[In],
        *,
        return_exceptions: bool = False,
        priority: Priority | None = None,
        deadline: float | None = None,
        tenant: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Ticket[list[Out]]:
        """Ask for many items' answers under one ticket. Never blocks; all are admitted, or none is.

        Args:
            items: The items.
            return_exceptions: Put errors in their places of the result; else the ticket fails with the first of them
                when all have ended.
            priority, deadline, tenant, params: As for `submit`, for each of them.

        Returns:
            A ticket for the list of answers, in the items' order. It wakes its waiter once.

        Raises:
            Exception: As `submit`.
        """
        tickets = [self._ticket(item, priority, deadline, tenant, params) for item in items]
        if len(tickets) > self.limits.max_queue:
            raise TooLarge(
                f"{len(tickets)} items are more than max_queue={self.limits.max_queue}; "
                "use map(), which takes any number"
            )
        group = Group(self._desk, tickets, return_exceptions)
        if not tickets:
            group.settle_empty()
            return group
        for ticket in tickets:
            ticket._arrival_ns = tickets[0]._arrival_ns
            ticket._deadline_ns = tickets[0]._deadline_ns
            ticket._waiters.append(Member(group))
        try:
            admitted = self._intake.place_all(tickets)
        except BaseException:
            self._desk.withdraw((group,))
            raise
        if not admitted:
            self._desk.withdraw((group,))
            raise self._desk.refusal(len(tickets))
        return group

    def map(
        self,
        items: Iterable[In],
        *,
        return_exceptions: bool = False,
        priority: Priority | None = None,
        timeout: float | None = None,
        **request: Any,
    ) -> Iterator[Out]:
        """Answers of any number of items, in order, as they come. Lazy: holds at most half the places of the queue.

        Args:
            items: Read as room comes.
            return_exceptions: Yield errors in their places instead of raising the first.
            priority: As for `submit`; None means BATCH.
            timeout: Seconds to wait for room at most, for each item.
            **request: As for `submit`.
        """
        request["priority"] = BATCH if priority is None else priority
        return map_in_order(self._intake, items, return_exceptions, timeout, request)

    def map_async(
        self,
        items: Iterable[In],
        *,
        return_exceptions: bool = False,
        priority: Priority | None = None,
        timeout: float | None = None,
        **request: Any,
    ) -> AsyncIterator[Out]:
        """As `map`, for coroutines: ``async for y in r.map_async(items)``."""
        request["priority"] = BATCH if priority is None else priority
        return map_in_order_async(self._intake, items, return_exceptions, timeout, request)

    # Looking on, and the end.

    @property
    def backend(self) -> str:
        """``"native"`` or ``"pure"``: the side of the core that runs."""
        return backend

    @property
    def ready(self) -> bool:
        """True while new requests are taken."""
        return not self._desk.refusing

    @property
    def healthy(self) -> bool:
        """False once closed, or if a thread that should run has died."""
        return not self._desk.closed and self._dispatcher.alive and self._desk.healthy

    def snapshot(self) -> RelaySnapshot:
        """Counters and gauges of this moment; cheap enough to poll."""
        desk = self._desk
        values, mean_run, busy = desk.counts.read()
        return RelaySnapshot(
            name=self.name,
            backend=backend,
            capacity=self.limits.max_queue,
            admitted=len(desk.queue),
            queued=desk.queue.queued,
            waiting=desk.room.waiting,
            open=len(desk.open),
            mean_batch_size=values["items"] / values["batches"] if values["batches"] else 0.0,
            mean_run=mean_run,
            busy=busy,
            **values,
        )

    def check(self) -> None:
        """Recount everything; for tests.

        Raises:
            AssertionError: An invariant is broken, which is a bug in relay.
        """
        self._desk.queue.check()

    def drain(self, timeout: float | None = None) -> int:
        """Take no more requests and wait until all taken ones have ended.

        Returns:
            How many are left when `timeout` seconds are over; 0 if none.
        """
        limit = limit_ns(timeout, "timeout")
        refuse_own_thread(self._desk, "Relay.drain()")
        warn_if_on_loop("Relay.drain()", "use drain_async()")
        return self._dispatcher.drain(limit)

    async def drain_async(self, timeout: float | None = None) -> int:
        """As `drain`, for coroutines."""
        return await self._dispatcher.drain_async(limit_ns(timeout, "timeout"))

    def close(self) -> None:
        """Take no more, send away all who wait or are queued (`Closed`), and wait for the running batch. May be called
        again."""
        self._dispatcher.close()
        self._dispatcher.join()

    async def aclose(self) -> None:
        """As `close`, for coroutines."""
        self._dispatcher.close()
        await asyncio.to_thread(self._dispatcher.join)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Answer what was taken, then close; after an error, close at once."""
        try:
            if kind is None:
                self.drain()
        finally:
            self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.drain_async()
        finally:
            await self.aclose()

    def __repr__(self) -> str:
        return f"<Relay {self.name!r} {backend} {len(self._desk.open)} open>"
