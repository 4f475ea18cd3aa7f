"""Functions that hold a token while they run: `guard`, `run` and `run_async`, and their retries.

What a pool runs for a caller that leaves is in test_pool_work.py.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Loops, turns

from relay.errors import AcquireTimeout, Closed, Overloaded, TooLarge

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]

PLACE: ContextVar[str] = ContextVar("place", default="nowhere")


class Model:
    """Everything that can be guarded, all doing the same."""

    def __init__(self, pool: Any, **options: Any) -> None:
        guard = pool.guard(**options) if options else pool.guard
        self.pool = pool

        @guard
        def plain(*args: Any, **kwargs: Any) -> Any:
            """What it does."""
            return self.seen(args, kwargs)

        @guard
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            """What it does."""
            await turns(2)
            return self.seen(args, kwargs)

        class Methods:
            @guard
            def method(me, *args: Any, **kwargs: Any) -> Any:
                assert isinstance(me, Methods)
                return self.seen(args, kwargs)

            @guard
            async def async_method(me, *args: Any, **kwargs: Any) -> Any:
                assert isinstance(me, Methods)
                await turns(1)
                return self.seen(args, kwargs)

            @guard
            @staticmethod
            def static(*args: Any, **kwargs: Any) -> Any:
                return self.seen(args, kwargs)

            @staticmethod
            @guard
            async def async_static(*args: Any, **kwargs: Any) -> Any:
                return self.seen(args, kwargs)

            @guard
            @classmethod
            async def of_class(cls, *args: Any, **kwargs: Any) -> Any:
                assert cls is Methods
                return self.seen(args, kwargs)

        class Call:
            def __call__(me, *args: Any, **kwargs: Any) -> Any:
                return self.seen(args, kwargs)

        class AsyncCall:
            async def __call__(me, *args: Any, **kwargs: Any) -> Any:
                await turns(1)
                return self.seen(args, kwargs)

        async def first(one: int, *args: Any, **kwargs: Any) -> Any:
            return self.seen(args, kwargs)

        methods = Methods()
        self.forms: dict[str, Callable[..., Any]] = {
            "def": plain,
            "async def": coroutine,
            "method": methods.method,
            "async method": methods.async_method,
            "static method": methods.static,
            "async static method": Methods.async_static,
            "class method": Methods.of_class,
            "bound method": guard(self.seen_here),
            "object": guard(Call()),
            "async object": guard(AsyncCall()),
            "partial": guard(partial(self.seen_here, key=0)),
            "async partial": guard(partial(partial(first, 1), key=0)),
            "builtin": guard(lambda *args, **kwargs: self.seen(args, kwargs)),
        }

    def seen(self, args: Any, kwargs: Any) -> Any:
        (token,) = self.pool.tokens()
        return args, kwargs, token.priority, token.cost, token.tenant, self.pool.held

    def seen_here(self, *args: Any, **kwargs: Any) -> Any:
        return self.seen(args, kwargs)


FORMS = [
    "def", "async def", "method", "async method", "static method", "async static method", "class method",
    "bound method", "object", "async object", "partial", "async partial", "builtin",
]  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"priority": "batch", "cost": 2, "tenant": "acme", "timeout": 9}])
@pytest.mark.parametrize("form", FORMS)
def test_every_call_holds_a_token(lab: Lab, loops: Loops, form: str, options: dict[str, Any]) -> None:
    pool = lab.pool(3)
    call = Model(pool, **options).forms[form]
    expected = ((1, 2), {"key": 3}, 2, 2, "acme", 2) if options else ((1, 2), {"key": 3}, 1, 1, None, 1)

    async def main() -> None:
        for count in range(1, 4):
            result = call(1, 2, key=3)
            assert inspect.iscoroutine(result) == form.startswith(("async", "class"))
            assert (await result if inspect.iscoroutine(result) else result) == expected
            assert pool.held == 0 and pool.granted == count

    lab.run(loops, main())


def test_what_a_function_says_of_itself_is_kept(lab: Lab) -> None:
    forms = Model(lab.pool(1)).forms
    for form, name in {"def": "plain", "async def": "coroutine", "method": "method"}.items():
        assert forms[form].__name__ == name and "Model.__init__" in forms[form].__qualname__
        assert forms[form].__module__ == __name__
        assert inspect.signature(forms[form]).parameters.keys() == {"args", "kwargs"}
    assert forms["def"].__doc__ == "What it does." and inspect.isfunction(inspect.unwrap(forms["def"]))
    assert inspect.iscoroutinefunction(forms["async def"]) and not inspect.iscoroutinefunction(forms["def"])
    assert inspect.iscoroutinefunction(forms["async object"])  # so that a web framework awaits it


def items() -> Iterator[int]:
    yield 1


async def async_items() -> Any:
    yield 1


class Items:
    def __call__(self) -> Iterator[int]:
        yield 1


async def value() -> int:
    return 1


@pytest.mark.parametrize("function", [items, async_items, partial(items), partial(partial(async_items)), Items()])
def test_generators_are_refused(lab: Lab, loops: Loops, function: Any) -> None:
    """Their call does nothing yet: the token would be back before the work began."""
    pool = lab.pool(1)
    for use in (pool.guard, pool.guard(timeout=1), pool.run):
        with pytest.raises(TypeError, match=r"is a generator function.*with pool\.lease\(\)"):
            use(function)
    with pytest.raises(TypeError, match="is a generator function"):
        lab.run(loops, pool.run_async(function))
    assert pool.granted == 0


def test_coroutines_that_would_outlive_their_token_are_refused(lab: Lab, loops: Loops) -> None:
    pool = lab.pool(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that nobody awaited
        with pytest.raises(TypeError, match=r"is a coroutine function.*use run_async\(\)"):
            pool.run(value)
        assert pool.granted == 0
        for use in (pool.run, pool.guard(lambda: value())):
            with pytest.raises(TypeError, match="returned a coroutine, which does its work after"):
                use(*[lambda: value()] * (use == pool.run))
        with pytest.raises(TypeError, match="returned a coroutine"):
            lab.run(loops, pool.run_async(lambda: value()))
        gc.collect()
    assert pool.held == 0


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((0,), {}, r"a function is needed, got 0; options go by name: guard\(priority=relay.REALTIME\)"),
        (("realtime",), {}, "a function is needed, got 'realtime'"),
        ((), {"priority": "urgent"}, "unknown priority"),
        ((), {"priority": 256}, "priority must be from 0 to 255"),
        ((), {"timeout": -1}, "timeout must be None or a number of seconds of at least 0"),
        ((), {"timeout": "1"}, "timeout must be None or a number of seconds"),
        ((), {"heartbeat": 1}, "heartbeat"),
    ],
)
def test_a_wrong_guard_is_refused_where_it_is_written(lab: Lab, arguments: Any, options: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        lab.pool(1).guard(*arguments, **options)


@pytest.mark.parametrize("form", ["def", "async def"])
def test_a_guarded_call_may_be_refused(lab: Lab, loops: Loops, form: str) -> None:
    clock = lab.clock()
    pool = lab.pool(2, clock=clock, tenant_caps=1)

    def call(**options: Any) -> Any:
        result = Model(pool, **options).forms[form]()
        return lab.run(loops, result) if inspect.iscoroutine(result) else result

    with pytest.raises(TooLarge, match="cost 3"):
        call(cost=3)
    with pytest.raises(Overloaded, match="cost 2 .* tenant 'acme'"):
        call(cost=2, tenant="acme")
    with pool.acquire(tenant="acme"), pytest.raises(AcquireTimeout, match="timeout=0"):
        call(tenant="acme", timeout=0)
    pool.close()
    with pytest.raises(Closed):
        call()
    assert pool.held == 0


class Own(BaseException):
    """No `Exception`."""


ERRORS = [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, StopIteration, Own]


@pytest.mark.parametrize("kind", ERRORS)
def test_whatever_work_raises_gives_its_token_back(lab: Lab, loops: Loops, kind: type[BaseException]) -> None:
    pool = lab.pool(1)
    error = kind("mine")

    def fails(*, how: str) -> None:
        assert pool.held == 1 and how == "badly"
        raise error

    async def fails_async(*, how: str) -> None:
        await turns(1)
        fails(how=how)

    for call in (pool.guard(fails), lambda how: pool.run(partial(fails, how=how))):
        with pytest.raises(kind) as raised:
            call(how="badly")
        assert raised.value is error and pool.held == 0

    async def threaded() -> None:
        try:
            await pool.run_async(partial(fails, how="badly"))
        except BaseException as raised:
            assert pool.held == 0
            assert (raised.__cause__ if kind is StopIteration else type(raised)) in (error, kind)
        else:
            pytest.fail("it did not raise")

    lab.run(loops, threaded())

    async def on_the_loop() -> None:
        try:
            await pool.guard(fails_async)(how="badly")
        finally:
            assert pool.held == 0

    with pytest.raises(RuntimeError if kind is StopIteration else kind):
        lab.run(loops, on_the_loop())
    assert pool.held == 0


# Who runs it, and when the token returns.


def test_plain_functions_run_on_the_pools_own_threads(lab: Lab, loops: Loops) -> None:
    pool = lab.pool(2, name="gpu")
    names, together = set[str](), threading.Barrier(2)

    def work() -> None:
        together.wait(30)
        names.add(threading.current_thread().name)

    async def main() -> None:
        await asyncio.gather(*(pool.run_async(work) for _ in range(20)))

    lab.run(loops, main())
    assert names == {"gpu-worker-0", "gpu-worker-1"}, "as many as there are tokens, and no more"
    pool.guard(lambda: names.add(threading.current_thread().name))()
    assert threading.current_thread().name in names, "a plain guard runs on its caller's"


@pytest.mark.parametrize("form", ["def", "async def"])
def test_who_is_cancelled_in_line_leaves_it_and_nothing_runs(lab: Lab, loops: Loops, form: str) -> None:
    pool = lab.pool(1)
    ran: list[int] = []

    async def coroutine() -> None:
        ran.append(1)

    async def main() -> None:
        token = pool.try_acquire()
        work = partial(ran.append, 1) if form == "def" else coroutine
        calls = [asyncio.create_task(pool.run_async(work)) for _ in range(3)]
        await turns()
        assert pool.waiting == 3
        calls[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[1]
        assert pool.waiting == 2 and not ran
        token.release()
        await asyncio.gather(calls[0], calls[2])

    lab.run(loops, main())
    assert ran == [1, 1]


@pytest.mark.parametrize("end", ["run", "close"])
def test_a_loop_that_closes_while_a_function_runs(
    lab: Lab, loops: Loops, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The token is the work's: it returns when the function is through, and nobody complains."""
    pool = lab.pool(1)
    started, go = threading.Event(), threading.Event()

    def work() -> int:
        started.set()
        go.wait(30)
        return 1

    async def main() -> None:
        call = asyncio.create_task(pool.run_async(work))
        while not started.is_set():
            await asyncio.sleep(0)
        if end == "close":
            call._log_destroy_pending = False  # type: ignore[attr-defined]

    if end == "run":
        lab.run(loops, main())  # which cancels what is left
    else:
        loop = loops()
        loop.run_until_complete(main())
        loop.close()
    assert pool.held == 1
    waiter = lab.call(pool.acquire)
    lab.in_line(pool, 1)
    with caplog.at_level(logging.DEBUG):
        go.set()
        waiter.result().release()
        pool.close()
        for thread in pool._workers._threads.copy():
            thread.join(30)
        gc.collect()
    assert not caplog.records


@pytest.mark.parametrize("end", ["run", "close"])
def test_a_loop_that_closes_while_a_coroutine_runs(lab: Lab, loops: Loops, end: str) -> None:
    pool = lab.pool(1)

    async def work() -> None:
        await asyncio.Event().wait()

    async def main() -> asyncio.Task[Any]:
        call = asyncio.create_task(pool.run_async(work))
        await turns()
        assert pool.held == 1
        if end == "close":
            for task in asyncio.all_tasks():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        return call

    if end == "run":
        lab.run(loops, main())
    else:
        loop = loops()
        call = loop.run_until_complete(main())
        loop.close()
        assert pool.held == 1
        del call, loop
        gc.collect()
    assert pool.held == 0


def test_a_pool_that_closes_as_the_token_is_given(lab: Lab, loops: Loops) -> None:
    pool = lab.pool(1)
    ran: list[int] = []

    async def main() -> None:
        token = pool.try_acquire()
        call = asyncio.create_task(pool.run_async(ran.append, 1))
        await turns()
        token.release()
        pool.close()
        assert pool.held == 1, "it has been given already"
        with pytest.raises(Closed, match="take no more work"):
            await call
        assert pool.held == 0 and not ran

    lab.run(loops, main())


def test_closing_lets_work_come_to_its_end(lab: Lab, loops: Loops) -> None:
    pool = lab.pool(2)
    started, go = threading.Barrier(2), threading.Event()

    def work() -> str:
        started.wait(30)
        go.wait(30)
        return "done"

    async def main() -> None:
        call = asyncio.create_task(pool.run_async(work))
        await asyncio.to_thread(started.wait, 30)
        pool.close()
        assert pool.held == 1
        go.set()
        assert await call == "done" and pool.held == 0

    lab.run(loops, main())


def test_work_sees_its_callers_context(lab: Lab, loops: Loops) -> None:
    pool = lab.pool(1)

    def work() -> str:
        seen = PLACE.get()
        PLACE.set("inside")
        return seen

    async def work_async() -> str:
        await turns(1)
        return work()

    async def main() -> None:
        PLACE.set("outside")
        for call in (partial(pool.run_async, work), pool.guard(work_async), partial(pool.run_async, work_async)):
            assert await call() == "outside"
            assert PLACE.get() == "outside", "a copy of it"

    lab.run(loops, main())

    def here() -> None:
        PLACE.set("outside")
        assert pool.guard(work)() == "outside" and PLACE.get() == "inside", "a plain call is a plain call"

    copy_context().run(here)


def test_two_may_not_share_a_lease(lab: Lab, loops: Loops) -> None:
    pool = lab.pool(1)
    lease = pool.lease()

    async def use() -> None:
        async with lease:
            await turns(1)

    async def main() -> None:
        token = pool.try_acquire()
        first = asyncio.create_task(use())
        await turns()
        with pytest.raises(RuntimeError, match="this lease is in use"):
            await use()  # while the first still waits for its token
        assert pool.waiting == 1
        token.release()
        await first
        first = asyncio.create_task(use())
        first.cancel()
        await turns()
        await use()  # whoever is done with it may use it again
        with pytest.raises(RuntimeError, match="this lease is in use"):
            async with lease:
                with lease:
                    pass
        assert pool.held == 0

    lab.run(loops, main())


# Tries.

DOORS = ["acquire", "lease", "run", "guard"]


def door(pool: Any, name: str, priority: int, **options: Any) -> Any:
    """Calls with a token, on this thread, in one of the ways there are; says which priority it held."""

    def work() -> Any:
        (token,) = pool.tokens()
        return token.priority, token.cost

    if name == "acquire":
        with pool.acquire(priority, **options):
            return work()
    if name == "lease":
        with pool.lease(priority, **options):
            return work()
    if name == "run":
        return pool.run(work, priority=priority, **options)
    return pool.guard(priority=priority, **options)(work)()


async def async_door(pool: Any, name: str, priority: int, **options: Any) -> Any:
    """The same for coroutines."""

    async def work() -> Any:
        (token,) = pool.tokens()
        return token.priority, token.cost

    if name == "acquire":
        with await pool.acquire_async(priority, **options):
            return await work()
    if name == "lease":
        async with pool.lease(priority, **options):
            return await work()
    if name == "run":
        return await pool.run_async(work, priority=priority, **options)
    return await pool.guard(priority=priority, **options)(work)()


def any_door(lab: Lab, loops: Loops, where: str) -> Callable[..., Any]:
    """Either of them, in a thread of its own."""
    if where == "thread":
        return lambda *args, **options: lab.call(door, *args, **options)
    return lambda *args, **options: lab.call(lambda: lab.run(loops, async_door(*args, **options)))


@pytest.fixture(params=["thread", "coroutine"])
def enter(request: pytest.FixtureRequest, lab: Lab) -> Callable[..., Any]:
    """Starts a call through a door, of a thread's or of a coroutine's kind."""
    return any_door(lab, asyncio.new_event_loop, request.param)


@pytest.mark.parametrize("name", DOORS)
def test_the_next_try_keeps_the_first_ones_place(lab: Lab, enter: Callable[..., Any], name: str) -> None:
    """Who has come first is served first, even if it stood in no line meanwhile."""
    clock = lab.clock()
    pool = lab.pool(2, clock=clock)
    token = pool.acquire(cost=2)
    retry = lab.Retry(max_retries=1, base=4.0, jitter="none", cap=9)
    go = threading.Event()

    early = enter(pool, name, 2, timeout=1, cost=2, retry=retry)
    lab.in_line(pool, 1)
    clock.wait_for_sleepers(1)
    clock.advance(0.5)

    def stand() -> None:
        with pool.acquire(2, cost=2):
            go.wait(30)

    late = lab.call(stand)
    lab.in_line(pool, 2)
    clock.wait_for_sleepers(2)
    clock.advance(0.5)
    lab.wait_until(lambda: pool.snapshot().timed_out == 1)
    clock.wait_for_sleepers(2)
    assert pool.waiting == 1
    clock.advance(4.0)
    lab.in_line(pool, 2)
    token.release()
    assert early.result() == (2, 2)
    assert not go.is_set() and late.thread.is_alive(), "it came later, and is served later"
    go.set()
    late.result()
    assert pool.snapshot().p99_wait == pytest.approx(clock.now_ns() / 1e9 - 1000, rel=0.04), "counted from its arrival"


@pytest.mark.parametrize("name", DOORS)
def test_tries_end_with_the_total(lab: Lab, enter: Callable[..., Any], name: str) -> None:
    clock = lab.clock()
    pool = lab.pool(1, clock=clock)
    retry = lab.Retry(max_retries=9, base=1.0, factor=1, jitter="none", total=4.0)
    with pool.acquire():
        call = enter(pool, name, 1, timeout=2, retry=retry)
        lab.in_line(pool, 1)
        clock.wait_for_sleepers(1)
        clock.advance(2)
        lab.wait_until(lambda: pool.snapshot().timed_out == 1)
        clock.wait_for_sleepers(1)
        clock.advance(1)
        lab.in_line(pool, 1)
        clock.wait_for_sleepers(1)
        clock.advance(1)
        with pytest.raises(AcquireTimeout, match="no token") as raised:
            call.result()
    assert clock.now_ns() == 1004e9, "the second try had what was left"
    assert "relay gave up after 2 tries in 4.000 s: the next would be 1.000 s later, past total=4.0 s" in str(
        raised.value.__notes__
    )


@pytest.mark.parametrize("name", DOORS)
def test_tries_end_with_the_budget(lab: Lab, enter: Callable[..., Any], name: str) -> None:
    clock = lab.clock()
    pool = lab.pool(1, clock=clock, max_waiting=0)
    budget = lab.RetryBudget(ratio=0, min_per_second=0.2, window=10, clock=clock)
    retry = lab.Retry(max_retries=9, base=0, jitter="none", budget=budget)
    with pool.acquire():
        with pytest.raises(Overloaded, match="max_waiting") as refused:
            enter(pool, name, 0, retry=retry).result()
        assert (
            "after 3 tries" in refused.value.__notes__[0] and "the retry budget is spent" in refused.value.__notes__[0]
        )
        with pytest.raises(AcquireTimeout) as raised:
            enter(pool, name, 0, timeout=0, retry=retry).result()
        assert "after 1 try" in raised.value.__notes__[0]
    assert budget.balance == 0 and pool.snapshot().refused == 3
    assert enter(pool, name, 0, retry=retry).result() == (0, 1), "a first try costs nothing"


@pytest.mark.parametrize("name", DOORS)
def test_what_no_later_try_gets_over(lab: Lab, enter: Callable[..., Any], name: str) -> None:
    clock = lab.clock()
    pool = lab.pool(1, clock=clock)
    retry = lab.Retry(max_retries=9, base=100)
    with pytest.raises(TooLarge):
        enter(pool, name, 1, cost=2, retry=retry).result()
    with pytest.raises(TypeError, match=r"retry must be a relay.Retry"):
        enter(pool, name, 1, retry=3).result()
    pool.close()
    with pytest.raises(Closed):
        enter(pool, name, 1, retry=retry).result()


def test_work_is_not_tried_again(lab: Lab, loops: Loops) -> None:
    """A retry is for the token: what the work raises is its own, even if it looks like the pool's."""
    pool = lab.pool(1)
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        raise AcquireTimeout("of another pool")

    retry = lab.Retry(base=0)
    with pytest.raises(AcquireTimeout, match="of another pool"):
        pool.run(work, retry=retry)
    with pytest.raises(AcquireTimeout, match="of another pool"):
        lab.run(loops, pool.run_async(work, retry=retry))
    assert calls == [1, 1]


def test_who_is_cancelled_between_tries_leaves_nothing(lab: Lab, loops: Loops) -> None:
    clock = lab.clock()
    pool = lab.pool(1, clock=clock)

    async def main() -> None:
        with pool.acquire():
            retry = lab.Retry(base=5.0, jitter="none", cap=5)
            call = asyncio.create_task(pool.run_async(int, timeout=0, retry=retry))
            await turns()
            clock.wait_for_sleepers(1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert (pool.held, pool.waiting) == (0, 0)

    lab.run(loops, main())
    clock.advance(5)
