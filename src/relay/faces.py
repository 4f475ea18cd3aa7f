"""Faces: what `@relay.batched` makes of functions and of methods.

Of a method each instance has a relay of its own, made when it is first used and dropped with the instance: the relay
knows its instance weakly, and whoever waits for an answer holds it.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Generic, Never, ParamSpec, TypeVar, overload

from relay.dispatcher import is_coroutine_model
from relay.policy import Priority
from relay.relay import Relay
from relay.setup import check_model
from relay.ticket import Ticket
from relay.wrapping import Extras, dress, name_of, no_pickle, on_instance

In = TypeVar("In")
Out = TypeVar("Out")
P = ParamSpec("P")
Face = TypeVar("Face", covariant=True)


class _Single:
    """What there is one of: a copy would share its relays, and a process it was pickled to would have none."""

    function: Callable[..., Any]

    def __reduce__(self) -> Never:
        raise TypeError(no_pickle(self.function))

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self


class _Face(_Single, Generic[In, Out]):
    """What batched functions of both kinds have. Those of functions have the relay's own `submit` and so on."""

    relay: Relay[In, Out]
    _extras: Extras
    _options: dict[str, Any] | None = None  # those of a function that may turn out to be a method
    _instance: object = None  # whose method it is

    def submit(
        self,
        item: In,
        *,
        priority: Priority | None = None,
        deadline: float | None = None,
        tenant: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Ticket[Out]:
        """Ask for one item's answer. Never blocks; see `Relay.submit`."""
        ticket = self.relay.submit(item, priority=priority, deadline=deadline, tenant=tenant, params=params)
        ticket._attach(_Holder(self._instance))
        return ticket

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
        """Ask for many items' answers under one ticket. Never blocks; see `Relay.submit_many`."""
        ticket = self.relay.submit_many(
            items,
            return_exceptions=return_exceptions,
            priority=priority,
            deadline=deadline,
            tenant=tenant,
            params=params,
        )
        ticket._attach(_Holder(self._instance))
        return ticket

    def map(
        self,
        items: Iterable[In],
        *,
        return_exceptions: bool = False,
        priority: Priority | None = None,
        timeout: float | None = None,
        **request: Any,
    ) -> Iterator[Out]:
        """Answers of any number of items, in order, as they come; see `Relay.map`."""
        yield from self.relay.map(
            items, return_exceptions=return_exceptions, priority=priority, timeout=timeout, **request
        )

    async def map_async(
        self,
        items: Iterable[In],
        *,
        return_exceptions: bool = False,
        priority: Priority | None = None,
        timeout: float | None = None,
        **request: Any,
    ) -> AsyncIterator[Out]:
        """As `map`, for coroutines."""
        answers: Any = self.relay.map_async(
            items, return_exceptions=return_exceptions, priority=priority, timeout=timeout, **request
        )
        async with aclosing(answers):
            async for answer in answers:
                yield answer

    def close(self) -> None:
        """Take no more calls, send away those that are queued, and wait for the running batch; see `Relay.close`."""
        self.relay.close()

    async def aclose(self) -> None:
        """As `close`, for coroutines."""
        await self.relay.aclose()

    def __set_name__(self, owner: type, name: str) -> None:
        """It stands in a class, and so it is a method."""
        if self._options is not None:
            setattr(owner, name, BatchedMethod(self.function, self._options))

    def __repr__(self) -> str:
        return f"<batched {self.relay!r}>"


class Batched(_Face[In, Out], Generic[In, P, Out]):
    """A batched plain function. Calling it with one item blocks for that item's answer.

    Attributes:
        function: The function itself.
        relay: The relay behind it.
    """

    def __call__(self, item: In, /, *args: P.args, **kwargs: P.kwargs) -> Out:
        """Ask for one item's answer and wait for it.

        Args:
            item: One item.
            *args, **kwargs: The function's other arguments; only calls with equal ones share a batch.
        """
        return self.relay(
            item, params=self._extras.bind(args, kwargs) if args or kwargs or self._extras.needs else None
        )


class AsyncBatched(_Face[In, Out], Generic[In, P, Out]):
    """A batched coroutine function: ``await f(item)``. To cancel that is to cancel the request.

    Attributes:
        function: The function itself.
        relay: The relay behind it.
    """

    def __call__(self, item: In, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Out]:
        """Ask for one item's answer.

        Args:
            item: One item.
            *args, **kwargs: The function's other arguments; only calls with equal ones share a batch.
        """
        params = self._extras.bind(args, kwargs) if args or kwargs or self._extras.needs else None
        return self.relay.run_async(item, params=params) if self._instance is None else self._ask(item, params)

    async def _ask(self, item: In, params: dict[str, Any] | None) -> Out:
        return await self.relay.run_async(item, params=params)  # and hold the instance meanwhile


class BatchedMethod(_Single, Generic[Face]):
    """A batched method as it stands in its class; what an instance has of it is a batched function of its own.

    Args:
        function: Takes ``self`` and the items.
        options: Those of a `Relay`.
        per_class: It is a class method: each class has its own.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], per_class: bool = False) -> None:
        check_model(function)
        self._options = options
        self._per_class = per_class
        self._is_async = is_coroutine_model(function)
        self._extras = Extras(function, 2, options.get("mixed", ()))
        self._relays: dict[int, tuple[weakref.ref[Any], Relay[Any, Any]]] = {}
        self.function = function
        dress(self, function, self._is_async)
        self._face: Any = AsyncBatched if self._is_async else Batched
        pattern = object.__new__(self._face)
        pattern._extras = self._extras
        dress(pattern, function, self._is_async)
        self._pattern = pattern.__dict__

    @overload
    def __get__(self, instance: None, owner: type, /) -> BatchedMethod[Face]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None, /) -> Face: ...
    def __get__(self, instance: object, owner: type | None = None, /) -> Any:
        if self._per_class:
            instance = owner if owner is not None else type(instance)
        elif instance is None:
            return self
        elif instance is owner:  # so calls a classmethod above this, where it calls this at all
            raise TypeError(self._misplaced())
        face = object.__new__(self._face)
        face.__dict__.update(self._pattern, relay=self._relay_of(instance), _instance=instance)
        return face

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # not Never: so checkers see class methods
        raise TypeError(self._misplaced())

    def __getattr__(self, name: str) -> Never:
        if not name.startswith("_") and hasattr(_Face, name) or name == "relay":
            raise AttributeError(f"each instance has a {name!r} of its own: x.{name_of(self.function)}.{name}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<batched method {name_of(self.function)}>"

    def _misplaced(self) -> str:
        return (
            f"{name_of(self.function)} is a batched method, for its first parameter is self or cls, and was not called "
            "on an instance. Where it is a class method, @relay.batched must stand above @classmethod"
        )

    def _relay_of(self, instance: Any) -> Relay[Any, Any]:
        # By identity: equal instances are not one, and not all of them can be hashed.
        relays, number = self._relays, id(instance)
        known = relays.get(number)
        if known is not None and known[0]() is instance:
            return known[1]
        try:
            reference = weakref.ref(instance, lambda _: relays.pop(number, None))
        except TypeError:
            raise TypeError(
                f"no weak reference can be made to a {type(instance).__name__}, so that the relay behind "
                f"{name_of(self.function)} could not be dropped with it; add '__weakref__' to its __slots__"
            ) from None
        made: Relay[Any, Any] = Relay(on_instance(self.function, reference, self._is_async), **self._options)
        # Where two threads come at once, both take what the first has entered.
        return relays.setdefault(number, (reference, made))[1]


class _Holder:
    """Waits for an answer, and does nothing but hold an instance until it is there."""

    __slots__ = ("instance",)

    def __init__(self, instance: object) -> None:
        self.instance = instance

    def __call__(self) -> None:
        pass
