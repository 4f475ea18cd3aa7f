"""Functions that hold a token while they run: what can be guarded, and that its token always comes back."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import Loops, turns

from relay.errors import AcquireTimeout, Closed, Overloaded, TooLarge

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["pools"]


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
