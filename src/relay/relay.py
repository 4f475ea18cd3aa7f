"""Relay: a model behind a queue. Read top to bottom it is the flow: submit, wait for room, many at once, the end.

A relay may be used from any thread and any number of event loops. It starts nothing before its first request.
Everything it holds hangs on the dispatcher; a relay that is dropped answers what it has taken, then ends its threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack, cast

from relay._backend import tickets
from relay.answering import wait_for, wait_for_async
from relay.building import Building
from relay.clock import MONOTONIC, Clock, limit_ns
from relay.dispatcher import Dispatcher
from relay.identity import Groups
from relay.intake import Intake
from relay.limits import Limits
from relay.mapping import map_in_order, map_in_order_async
from relay.policy import BATCH, Facts, Policy, Priority, as_policy
from relay.pool import TokenPool
from relay.samples import Controller
from relay.setup import as_deadlines, as_limits, as_linger, as_models, as_ways, check_options, check_pool, new_steering
from relay.sharing import as_sharing
from relay.ticket import Ticket
from relay.tokenizer import Tokenizer
from relay.wrapping import mark_coroutine_function

asking = tickets.asking
In = TypeVar("In")
Out = TypeVar("Out")


class Request(TypedDict, total=False):
    """Keywords of a request that are handed through; see `Relay.submit`."""

    deadline: float | None
    tenant: str | None
    params: Mapping[str, Any] | None


class Relay(Building[In, Out], Generic[In, Out]):
    """Puts a model behind a queue that batches, merges, orders and expires its requests.

    After a fork the relay is empty in the child: the same model and settings, nothing queued, counters at 0, no thread
    before the first request; closed if it was closed. What was under way goes on in the parent alone: the tickets of
    requests made before the fork end in the child with `Closed`, reason ``forked``, their callbacks are not called.

    Args:
        model: Any callable. Without a tokenizer it is called with a list of items, with one as ``model(batch)`` with a
            `Batch`; the parameters of a request come as keyword arguments. It returns a list, array or tensor of one
            row an item; a row may be an exception. One batch runs at a time: of a plain function on a thread of the
            relay's own, of a coroutine function as a task on the event loop of the first request. A list of models has
            a lane each; put the fastest first.
        tokenizer: Turns items into input ids on helper threads. None takes the model's attribute ``tokenizer`` if it
            has one.
        prepare: ``prepare(item)`` makes what the model gets (or the tokenizer, where there is one), on helper threads
            and in the request's own context, while a batch runs.
        name: For threads, logs and error texts.
        max_batch_size: Members of a batch at most.
        max_batch_tokens: Padded size of a batch at most, which is its members times the largest size among them; None
            for no limit. A size is the number of input ids, or without a tokenizer the length of a str or bytes, the
            bytes of an array, else 1.
        max_queue: Requests admitted at once, running ones included. When it is full, a request takes the place of the
            newest of the least urgent ones in the queue, if that is less urgent than itself and no other shares its
            run: whoever waits for that one (calls, `run_async`, `map`) waits for room again, what was submitted ends
            in `Overloaded`, reason ``displaced``. With one priority in use nobody is displaced.
        linger: Seconds for which a free lane holds its oldest request back for a full batch. 0 takes at once what is
            there, and waits only, for a learned time of at most 2 ms, when callers just answered usually come straight
            back.
        lanes: How many batches may run at once, where there is one model.
        pool: A `TokenPool` that a lane takes a token of for each batch: several relays may share a device.
        size: ``size(item)`` is what the item counts for in `max_batch_tokens` and in the prediction of run times; see
            there for what it is otherwise.
        group: Only requests with equal ``group(item)`` share a batch, such as ``np.shape``.
        mixed: Names of parameters that may differ within a batch; the model gets a list of them, None where not given.
        merge: Let identical requests that are under way together share one run. None: if the model says ``deterministic
            = True``, or `key` or `cache_bytes` is given.
        key: ``key(item)`` stands for an item when requests are compared; it must return a str, bytes, int, or a tuple
            of these.
        share_ignore: Parameters that may differ between requests that are the same, such as ``("user",)``.
        share_across_tenants: Let requests of different tenants be the same.
        cache_bytes: Keep answers for later requests that are the same, up to so many bytes; arrays among them are
            read-only. 0 keeps none.
        cache_ttl: Seconds for which an answer is kept at most; None for no limit.
        isolate: Split a batch that has failed, so that only the items at fault fail.
        idempotent: Items may be run again when others of their batch have failed.
        check_finite: Rows with NaN or infinity fail their items. None: if the model says ``check_finite = True``, as
            all of `relay.models` do.
        admit: ``"queue"`` takes all requests there is room for; ``"predict"`` refuses those at once that could not be
            answered by their deadline, and does not begin what could not end by it.
        deadlines: For each tier, the deadline in seconds of requests that name none; a tier that is not named takes
            that of the nearest more urgent one. A request's own counts, ``inf`` for none.
        timeout_run: Seconds that a model call may take before its requests fail with `RunTimeout`. The lane stays taken
            until the call returns.
        reserved: For each tier, places of every batch that less urgent requests do not get.
        controller: Sets the size of batches from what is seen; None leaves it to the prediction of run times.
        utilisation: Load from 0 to 1 for the controller, as `relay.load` measures it; None takes the lanes' own.
        limits: The other sizes; see `Limits`.
        policy: Orders the queue.
        clock: What all time is read from; for tests.

    Raises:
        TypeError: The model cannot be called, or is a generator function.
        ValueError: A size is out of range.
    """

    def __init__(
        self,
        model: Callable[..., Any] | Sequence[Callable[..., Any]],
        *,
        tokenizer: Tokenizer | None = None,
        prepare: Callable[[In], Any] | None = None,
        name: str = "relay",
        max_batch_size: int = 64,
        max_batch_tokens: int | None = None,
        max_queue: int = 8192,
        linger: float = 0.0,
        lanes: int = 1,
        pool: TokenPool | None = None,
        size: Callable[[In], int] | None = None,
        group: Callable[[In], Any] | None = None,
        mixed: Sequence[str] = (),
        merge: bool | None = None,
        key: Callable[[In], Any] | None = None,
        share_ignore: Sequence[str] = (),
        share_across_tenants: bool = False,
        cache_bytes: int = 0,
        cache_ttl: float | None = None,
        isolate: bool = True,
        idempotent: bool = True,
        check_finite: bool | None = None,
        admit: Literal["queue", "predict"] = "queue",
        deadlines: Mapping[Priority, float] | None = None,
        timeout_run: float | None = None,
        reserved: Mapping[Priority, int] | None = None,
        controller: Controller | None = None,
        utilisation: Callable[[], float | None] | None = None,
        limits: Limits | None = None,
        policy: Policy | Callable[[Facts], int] | None = None,
        clock: Clock | None = None,
    ) -> None:
        models = as_models(model, lanes)
        order = as_policy(policy)
        if order.weights is not None:
            raise ValueError(f"{type(order).__name__} shares by tenant, which a relay does not; use it in a TokenPool")
        self.name = name
        self.limits = as_limits(
            limits, max_batch_size=max_batch_size, max_batch_tokens=max_batch_tokens, max_queue=max_queue
        )
        max_batch_size = self.limits.max_batch_size
        check_pool(pool)
        first = models[0]
        tokenizer = tokenizer if tokenizer is not None else getattr(first, "tokenizer", None)
        check_options(
            {
                "isolate": isolate,
                "idempotent": idempotent,
                "check_finite": check_finite,
                "merge": merge,
                "share_across_tenants": share_across_tenants,
            },
            {"prepare": prepare, "size": size, "group": group, "key": key},
            tokenizer,
            utilisation,
            clock,
        )
        if tokenizer is not None and size is not None:
            raise ValueError("size= is for items without a tokenizer; with one, an item's size is its input ids")
        ways = as_ways(
            isolate=isolate,
            idempotent=idempotent,
            check_finite=check_finite if check_finite is not None else getattr(first, "check_finite", False) is True,
            mixed=mixed,
            reserved=reserved,
            max_batch_size=max_batch_size,
            timeout_run=timeout_run,
            admit=admit,
            prepared=prepare is not None,
            grouped=group is not None,
        )
        self._new_dispatcher = partial(
            Dispatcher,
            models,
            tokenizer,
            prepare,
            name,
            self.limits,
            order,
            clock or MONOTONIC,
            ways,
            partial(new_steering, controller, max_batch_size, utilisation, len(models), name),
            as_linger(linger),
            pool,
        )
        self._sharing = as_sharing(
            first,
            merge=merge,
            key=key,
            share_ignore=share_ignore,
            share_across_tenants=share_across_tenants,
            cache_bytes=cache_bytes,
            cache_ttl=cache_ttl,
            limits=self.limits,
        )
        self._predicts = ways.finish
        groups = Groups(ways.mixed, group) if group is not None or ways.mixed else None
        self._new_intake = partial(Intake, size=size, groups=groups, deadlines_ns=as_deadlines(deadlines))
        self._build(1)

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
            deadline: Seconds from now until its run must have started; None for that of its tier, inf for any time.
            tenant: Whoever it is for; requests of different tenants never share a run.
            params: Keyword arguments for the model; only requests with equal ones share a batch.

        Returns:
            The ticket its answer comes through.

        Raises:
            ValueError, TypeError: The item or an argument is not valid.
            TooLarge: The item can never fit a batch.
            Overloaded: The queue is full, or by prediction the answer would come too late; the ticket ends so if it
                must make room for a more urgent one.
            Closed: The relay is closed.
        """
        if tenant is None and params is None:
            entered: Ticket[Out] | None = self._desk.enter(item, priority, deadline)
            if entered is not None:
                return entered
        ticket = self._ticket(item, priority, deadline, tenant, params)
        if not self._place(ticket):
            raise self._desk.refusal()
        return ticket

    def __call__(
        self, item: In, *, priority: Priority | None = None, timeout: float | None = None, **request: Unpack[Request]
    ) -> Out:
        """Ask for one item's answer and wait for it, for room in the queue too. One that has to make room for a more
        urgent request waits for room again, as old as it is and with the deadline it has.

        Args:
            item: One item.
            priority: As for `submit`.
            timeout: Seconds to wait for room at most, each time.
            **request: As for `submit`.

        Raises:
            Overloaded: There was no room within `timeout`, or by prediction the answer would come too late.
            DeadlineExceeded: The deadline came first, while it waited for room or in the queue.
            Exception: As `submit`, and whatever the request ends with.
        """
        if timeout is None and not request.keys() - {"deadline"}:
            return cast("Out", tickets.ask(self, item, priority, request.get("deadline")))
        intake, asked = self._intake, {"priority": priority, **request}
        return wait_for(intake, intake.submit_waiting(item, timeout, **asked), item, timeout, asked)

    def _call(self, item: In, ticket: Ticket[Out] | None, priority: Priority | None, deadline: float | None) -> Out:
        """What goes on in place of `ask`, once there is a ticket or none was to be had."""
        if ticket is None:
            ticket = self._intake.submit_waiting(item, None, priority=priority, deadline=deadline)
        return wait_for(self._intake, ticket, item, None, {"priority": priority})

    def run_async(
        self,
        item: In,
        *,
        priority: Priority | None = None,
        deadline: float | None = None,
        tenant: str | None = None,
        params: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, Out]:
        """As calling the relay, for coroutines: ``await r.run_async(item)``. Cancelling it cancels the request."""
        if tenant is None and params is None and timeout is None:
            return asking(self, item, priority, deadline)
        return self._answer(item, priority, deadline, tenant, params, timeout)

    mark_coroutine_function(run_async)

    async def _answer(
        self,
        item: In,
        priority: Priority | None = None,
        deadline: float | None = None,
        tenant: str | None = None,
        params: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Out:
        """What `run_async` returns, where `Asking` is not enough."""
        if timeout is not None:
            limit_ns(timeout, "timeout")  # a wrong one is refused whether it is needed or not
        ticket = self._ticket(item, priority, deadline, tenant, params)
        if not self._place(ticket):
            await self._intake.wait_for_place_async(ticket, timeout)
        request = {"priority": priority, "tenant": tenant, "params": params}
        return await wait_for_async(self._intake, ticket, item, timeout, request)

    _answer.__qualname__ = run_async.__qualname__  # as it is known

    def _persist(self, ticket: Ticket[Out], item: In, priority: Priority | None) -> Coroutine[Any, Any, Out]:
        """What goes on in place of `Asking` once there is a ticket, whose place may be lost."""
        return wait_for_async(self._intake, ticket, item, None, {"priority": priority})

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
        return self._intake.submit_group(
            [self._ticket(item, priority, deadline, tenant, params) for item in items], return_exceptions
        )

    def map(
        self,
        items: Iterable[In],
        *,
        return_exceptions: bool = False,
        priority: Priority | None = None,
        timeout: float | None = None,
        **request: Unpack[Request],
    ) -> Iterator[Out]:
        """Answers of any number of items, in order, as they come. Lazy: holds at most half the places of the queue.

        Args:
            items: Read as room comes.
            return_exceptions: Yield errors in their places instead of raising the first.
            priority: As for `submit`; None means BATCH.
            timeout: Seconds to wait for room at most, for each item, each time.
            **request: As for `submit`.
        """
        asked = {"priority": BATCH if priority is None else priority, **request}
        return map_in_order(self._intake, items, return_exceptions, timeout, asked)

    def map_async(
        self,
        items: Iterable[In],
        *,
        return_exceptions: bool = False,
        priority: Priority | None = None,
        timeout: float | None = None,
        **request: Unpack[Request],
    ) -> AsyncIterator[Out]:
        """As `map`, for coroutines: ``async for y in r.map_async(items)``."""
        asked = {"priority": BATCH if priority is None else priority, **request}
        return map_in_order_async(self._intake, items, return_exceptions, timeout, asked)

    def warmup(self, samples: Sequence[In], *, params: Mapping[str, Any] | None = None) -> None:
        """Run batches of several sizes, so that the first callers do not pay for a cold model and run times are known.

        Blocks until they have run. Whatever the model raises is raised here.

        Args:
            samples: Items like those to come, in their usual sizes; a few are enough. They are run in batches of 1, 2,
                4 and so on to `max_batch_size`, on all lanes at once.
            params: As for `submit`.

        Raises:
            ValueError: There are no samples.
        """
        self._intake.warm_up(samples, len(self._dispatcher.lanes), params)
