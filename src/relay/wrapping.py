"""What a batched function shows of the function inside: its names, its signature, and that it is a coroutine function.

Pure functions, and `Extras`, which is made once and only read.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Extras:
    """The parameters of a function after its items, so that what is wrong with a call is raised by the call.

    Args:
        function: The function.
        skip: How many parameters come first: the items, and ``self`` before them.
        mixed: Those that need not be given, since the function gets a list with None in those places.

    Attributes:
        needs: Those that must be given.

    Raises:
        TypeError: It does not take so many, or has others that cannot be given by name.
    """

    __slots__ = ("_allowed", "_name", "_names", "needs")

    def __init__(self, function: Callable[..., Any], skip: int, mixed: Sequence[str] = ()) -> None:
        self._name = name_of(function)
        self._names: tuple[str, ...] = ()  # those that may be given by position
        self._allowed: frozenset[str] | None = None  # None for any
        self.needs: frozenset[str] = frozenset()
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            return  # as of functions written in C
        kinds = {parameter.kind for parameter in parameters}
        by_place = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        if len(by_place) < skip and inspect.Parameter.VAR_POSITIONAL not in kinds:
            takes, way = (
                ("self and ", "; a function without self stands below @staticmethod") if skip == 2 else ("", "")
            )
            raise TypeError(
                f"{self._name} must take {takes}a list of items, for it gets those of a batch all at once{way}"
            )
        by_place = by_place[skip:]
        if any(each.kind is each.POSITIONAL_ONLY for each in by_place):
            raise TypeError(
                f"{self._name} has positional-only parameters after its items, but a batch gets all others by name; "
                "move the / forward to the items"
            )
        by_name = [each for each in parameters if each.kind is each.KEYWORD_ONLY]
        self._names = tuple(each.name for each in by_place)
        self.needs = frozenset(each.name for each in by_place + by_name if each.default is each.empty)
        self.needs -= frozenset(mixed)
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            self._allowed = frozenset(each.name for each in by_place + by_name)

    def bind(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any] | None:
        """The arguments of one call after its item, by name; None if there are none.

        Raises:
            TypeError: There are too many or too few, or one is unknown.
        """
        names = self._names
        if len(args) > len(names):
            takes = f"one item, and {', '.join(names)}" if names else "one item"
            raise TypeError(
                f"{self._name}() takes {takes}, but got {1 + len(args)} arguments; for several items use map() or "
                "submit_many()"
            )
        given = dict(zip(names, args, strict=False))
        if twice := given.keys() & keywords.keys():
            raise TypeError(f"{self._name}() got multiple values for argument {min(twice)!r}")
        given.update(keywords)
        if self._allowed is not None and (unknown := given.keys() - self._allowed):
            raise TypeError(f"{self._name}() got an unexpected keyword argument {min(unknown)!r}")
        if missing := self.needs - given.keys():
            raise TypeError(f"{self._name}() misses the argument {min(missing)!r}")
        return given or None


def first_name(function: Callable[..., Any]) -> str:
    """The name of the first parameter, or ""."""
    try:
        return next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):
        return ""


def name_of(function: Callable[..., Any]) -> str:
    """The qualified name of a function, or of the kind of another callable."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def dress(wrapper: Any, function: Callable[..., Any], is_async: bool) -> None:
    """Give `wrapper` the names of `function`, and have it taken for a coroutine function if that is one."""
    functools.update_wrapper(wrapper, function)
    wrapper.function = function
    if not is_async:
        return
    mark_coroutine_function(wrapper)
    if sys.version_info >= (3, 12):
        return
    # Before `inspect` had a mark, it took whatever had all that a function has for one.
    wrapper.__code__ = getattr(function, "__code__", _coroutine.__code__)
    wrapper.__defaults__ = getattr(function, "__defaults__", None)
    wrapper.__kwdefaults__ = getattr(function, "__kwdefaults__", None)
    wrapper.__name__ = name_of(function).rpartition(".")[2]


def mark_coroutine_function(function: Any) -> None:
    """Have a function that returns a coroutine taken for a coroutine function: by asyncio, and from Python 3.12 on by
    `inspect`."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
    else:
        function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]


async def _coroutine() -> None:
    """Lends its code to callables that have none."""


def on_instance(function: Callable[..., Any], reference: weakref.ref[Any], is_async: bool) -> Callable[..., Any]:
    """A method as the model of one instance, which it does not keep alive."""

    def alive() -> Any:
        instance = reference()
        if instance is None:
            raise ReferenceError(
                f"the instance that {name_of(function)} was asked on is gone; hold it until the answers are there, or "
                "ask through the method and not through its relay"
            )
        return instance

    if is_async:

        @functools.wraps(function)
        async def model(items: Any, /, **params: Any) -> Any:
            return await function(alive(), items, **params)

    else:

        @functools.wraps(function)
        def model(items: Any, /, **params: Any) -> Any:
            return function(alive(), items, **params)

    return model


def no_pickle(function: Callable[..., Any]) -> str:
    """Why a batched function cannot be pickled."""
    return (
        f"the batched {name_of(function)} cannot be pickled, for its queue and its threads belong to this process; "
        "import it in the other process, or pickle the function inside, which is its attribute 'function'"
    )
