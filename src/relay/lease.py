"""A token for the length of a block, of a call, or of every call of a function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from relay._backend import permits as core
from relay.policy import Priority

if TYPE_CHECKING:
    from relay.pool import TokenPool

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Token = core.Token


class Lease:
    """A token for the length of a ``with`` or ``async with`` block; see `TokenPool.lease`."""

    __slots__ = ("_ask", "_entered", "_options", "_pool", "_token")

    def __init__(self, pool: TokenPool, priority: Priority, options: dict[str, Any]) -> None:
        self._pool = pool
        self._ask = priority
        self._options = options
        self._token: Token | None = None
        self._entered = False

    def __enter__(self) -> Token:
        self._enter()
        try:
            self._token = token = self._pool.acquire(self._ask, **self._options)
        except BaseException:
            self._entered = False
            raise
        return token

    def __exit__(self, *error: object) -> None:
        token, self._token = self._token, None
        self._entered = False
        if token is not None:
            token.__exit__(*error)

    async def __aenter__(self) -> Token:
        self._enter()
        try:
            self._token = token = await self._pool.acquire_async(self._ask, **self._options)
        except BaseException:
            self._entered = False
            raise
        return token

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)

    def _enter(self) -> None:
        if self._entered:
            raise RuntimeError("this lease is in use; call lease() again for each block")
        self._entered = True


def is_async(function: Callable[..., Any]) -> bool:
    """True for a coroutine function, an object whose call is one, and a `functools.partial` of either."""
    function = _innermost(function)
    return asyncio.iscoroutinefunction(function) or asyncio.iscoroutinefunction(type(function).__call__)


def check_work(function: Callable[..., Any], *, on_loop: bool = True) -> None:
    """Refuse what does no work yet when it is called, so that its token would come back too early.

    Raises:
        TypeError: It is a generator function, a coroutine function that is not run on a loop, or cannot be called.
    """
    if not callable(function):
        raise TypeError(f"a function is needed, got {function!r}; options go by name: guard(priority=relay.REALTIME)")
    inner = _innermost(function)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    flags = getattr(code, "co_flags", 0)  # what `inspect` looks at, and ten times slower
    if flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        raise TypeError(
            f"{function!r} is a generator function, whose call does no work yet; "
            "hold a token inside it: with pool.lease(): ..."
        )
    if flags & inspect.CO_COROUTINE and not on_loop:
        raise TypeError(f"{function!r} is a coroutine function, whose call does no work yet; use run_async()")


def _innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, partial):
        function = function.func
    return function


def guarded(pool: TokenPool, function: F, priority: Priority, options: dict[str, Any]) -> F:
    """`function`, each call of which holds a token."""
    if isinstance(function, staticmethod | classmethod):
        return type(function)(guarded(pool, function.__func__, priority, options))
    check_work(function)
    guard: Callable[..., Any]
    if is_async(function):

        @wraps(function)
        async def guard(*args: Any, **kwargs: Any) -> Any:
            return await pool.run_async(partial(function, *args, **kwargs), priority=priority, **options)

    else:

        @wraps(function)
        def guard(*args: Any, **kwargs: Any) -> Any:
            return pool.run(partial(function, *args, **kwargs), priority=priority, **options)

    return guard  # type: ignore[return-value]


async def hold(
    pool: TokenPool, token: Token, function: Callable[..., Coroutine[Any, Any, T]], args: tuple[Any, ...]
) -> T:
    """Await ``function(*args)``, and give the token back."""
    with token:
        pool.adopt(token)
        return await function(*args)


def call_holding(token: Token, function: Callable[..., T], args: tuple[Any, ...]) -> T:
    """Call ``function(*args)``, and give the token back.

    Raises:
        TypeError: It returned a coroutine, which has done no work yet.
    """
    with token:
        value = function(*args)
        if isinstance(value, Coroutine):
            value.close()
            raise TypeError(
                f"{function!r} returned a coroutine, which does its work after the token has come back; "
                "make it an async def, and await it with run_async()"
            )
        return value
