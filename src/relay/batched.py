"""`@relay.batched`: a function over a list becomes a function over one item, whose calls share batches."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from relay.batch import Batch
from relay.dispatcher import is_coroutine_model
from relay.faces import AsyncBatched, Batched, BatchedMethod
from relay.relay import Relay
from relay.setup import check_model
from relay.wrapping import Extras, dress, first_name, name_of

__all__ = ["AsyncBatched", "Batched", "BatchedMethod", "batched"]

In = TypeVar("In")
Out = TypeVar("Out")
Owner = TypeVar("Owner")
P = ParamSpec("P")

Row = TypeVar("Row", covariant=True)


class _Some(Protocol[Row]):
    # A list, an array or a tensor.
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Row: ...


# A row may be an error, which its caller gets raised.
_Rows = _Some[Out | BaseException]
_Function = Callable[Concatenate[list[In], P], _Rows[Out]]
_BatchFunction = Callable[Concatenate[Batch[In], P], _Rows[Out]]  # with a tokenizer
_AsyncFunction = Callable[Concatenate[list[In], P], Coroutine[Any, Any, _Rows[Out]]]
_Method = Callable[Concatenate[Owner, list[In], P], _Rows[Out]]
_AsyncMethod = Callable[Concatenate[Owner, list[In], P], Coroutine[Any, Any, _Rows[Out]]]


class _Decorator(Protocol):
    @overload
    def __call__(self, function: _BatchFunction[In, P, Out], /) -> Batched[In, P, Out]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: _AsyncFunction[In, P, Out], /) -> AsyncBatched[In, P, Out]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: _Function[In, P, Out], /) -> Batched[In, P, Out]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: _AsyncMethod[Owner, In, P, Out], /) -> BatchedMethod[AsyncBatched[In, P, Out]]: ...
    @overload
    def __call__(self, function: _Method[Owner, In, P, Out], /) -> BatchedMethod[Batched[In, P, Out]]: ...


class _Mixing(Protocol):
    # A parameter that is mixed has one type in the call and is a list of these in the function.
    @overload
    def __call__(self, function: _AsyncFunction[In, P, Out], /) -> AsyncBatched[In, ..., Out]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: _Function[In, P, Out], /) -> Batched[In, ..., Out]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: _AsyncMethod[Owner, In, P, Out], /) -> BatchedMethod[AsyncBatched[In, ..., Out]]: ...
    @overload
    def __call__(self, function: _Method[Owner, In, P, Out], /) -> BatchedMethod[Batched[In, ..., Out]]: ...


@overload
def batched(function: _AsyncFunction[In, P, Out], /) -> AsyncBatched[In, P, Out]: ...  # type: ignore[overload-overlap]
@overload
def batched(function: _Function[In, P, Out], /) -> Batched[In, P, Out]: ...  # type: ignore[overload-overlap]
@overload
def batched(function: _AsyncMethod[Owner, In, P, Out], /) -> BatchedMethod[AsyncBatched[In, P, Out]]: ...
@overload
def batched(function: _Method[Owner, In, P, Out], /) -> BatchedMethod[Batched[In, P, Out]]: ...
@overload
def batched(*, mixed: Sequence[str], **options: Any) -> _Mixing: ...
@overload
def batched(**options: Any) -> _Decorator: ...
def batched(function: Any = None, /, **options: Any) -> Any:
    """Turn ``def f(items: list) -> list`` into a function of one item whose concurrent calls are run together.

    A call of a plain function blocks until its answer is there; one of a coroutine function is awaited. Both have
    `submit`, `submit_many`, `map` and `map_async`, as a `Relay` has them, their `relay`, and `close`. The function's
    other arguments are given to each call; only calls with equal ones share a batch. In a class it makes a method: each
    instance has a relay of its own, which is dropped with it. A static or class method stands below it::

        @relay.batched
        @classmethod
        def embed(cls, texts): ...

    Args:
        function: Gets the items of a batch and returns one row for each, in order. A row may be an exception, which is
            raised to the caller of that item alone.
        **options: As for `Relay`: ``max_batch_size``, ``mixed``, ``key`` and so on. The `name` is that of the function.

    Returns:
        The batched function, or a decorator where only options were given.

    Raises:
        TypeError: The function cannot be batched.

    Example:
        ```python
        @relay.batched(max_batch_size=32)
        def embed(texts: list[str], *, dimensions: int = 384) -> list[Vector]: ...

        vector = embed("one text", dimensions=64)   # blocks
        ticket = embed.submit("text")               # await it, or ticket.result()

        @relay.batched
        async def generate(prompts: list[str]) -> list[str]: ...

        answer = await generate("Say hello")
        ```
    """
    if function is None:
        return lambda function: _make(function, dict(options))
    return _make(function, options)


def _make(function: Any, options: dict[str, Any]) -> Any:
    """What becomes of a function, or of what stands there in its place.

    Raises:
        TypeError: It cannot be batched.
    """
    if isinstance(function, classmethod):
        options.setdefault("name", name_of(function.__func__))
        return BatchedMethod(function.__func__, options, per_class=True)
    static = isinstance(function, staticmethod)
    if static:
        function = function.__func__
    check_model(function)
    options.setdefault("name", name_of(function))
    if not static and first_name(function) in ("self", "cls"):
        return BatchedMethod(function, options)
    is_async = is_coroutine_model(function)
    face: Any = object.__new__(AsyncBatched if is_async else Batched)
    face._extras = Extras(function, 1, options.get("mixed", ()))
    dress(face, function, is_async)
    face.relay = own = Relay[Any, Any](function, **options)
    face.submit, face.submit_many, face.map, face.map_async = own.submit, own.submit_many, own.map, own.map_async
    if not static:
        face._options = options
    return face
