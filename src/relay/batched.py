"""`@relay.batched`: a function over a list becomes a function over one item, whose calls share batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload

from relay.relay import Relay

In = TypeVar("In")
Out = TypeVar("Out")


class Batched(Generic[In, Out]):
    """A batched function. Calling it with one item blocks for that item's answer.

    Attributes:
        function: The function itself.
        relay: The relay behind it.
        submit: `Relay.submit`: one item, a ticket, never blocks.
        submit_many: `Relay.submit_many`.
    """

    def __init__(self, function: Callable[..., Sequence[Out]], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        options.setdefault("name", getattr(function, "__name__", "batched"))
        self.relay: Relay[In, Out] = Relay(function, **options)
        self.submit = self.relay.submit
        self.submit_many = self.relay.submit_many

    def __call__(self, item: In, **params: Any) -> Out:
        """Ask for one item's answer and wait for it.

        Args:
            item: One item.
            **params: Keyword arguments for the function; only calls with equal ones share a batch.
        """
        return self.relay(item, params=params or None)

    def __set_name__(self, owner: type, name: str) -> None:
        raise TypeError(
            f"@relay.batched works on functions, not yet on methods; in {owner.__name__}.__init__ "
            f"write self.{name} = relay.Relay(self._{name})"
        )

    def __repr__(self) -> str:
        return f"<batched {self.relay!r}>"


@overload
def batched(function: Callable[[list[In]], Sequence[Out]], /) -> Batched[In, Out]: ...
@overload
def batched(**options: Any) -> Callable[[Callable[[list[In]], Sequence[Out]]], Batched[In, Out]]: ...
def batched(function: Any = None, /, **options: Any) -> Any:
    """Turn ``def f(items: list) -> list`` into a function of one item whose concurrent calls are run together.

    Args:
        function: Gets the items of a batch and returns one row for each, in order. A row may be an exception.
        **options: As for `Relay`: ``max_batch_size``, ``max_queue``, ``name`` and so on.

    Returns:
        The batched function, or a decorator where only options were given.

    Example:
        ```python
        @relay.batched(max_batch_size=32)
        def embed(texts: list[str]) -> list[Vector]: ...

        vector = embed("one text")      # blocks
        ticket = embed.submit("text")   # await it, or ticket.result()
        ```
    """
    if function is None:
        return lambda function: Batched(function, dict(options))
    return Batched(function, dict(options))
