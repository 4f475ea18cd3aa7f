"""@relay.batched on methods: one relay for each instance, dropped with it."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import pickle
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


def adder(lab: Lab, **options: Any) -> Any:
    """A class with a batched method, whose instances add their number."""

    class Adder:
        def __init__(self, n: int, model: Any = None) -> None:
            self.n = n
            self.model = model

        @lab.batched(**options)  # type: ignore[untyped-decorator]
        def add(self, items: list[int], *, times: int = 1) -> list[int]:
            """Adds."""
            if self.model is not None:
                self.model(items)
            return [(x + self.n) * times for x in items]

    return Adder


def test_each_instance_has_its_own(lab: Lab) -> None:
    Adder = adder(lab, max_batch_size=4)
    one, two = Adder(1), Adder(2)
    assert (one.add(10), two.add(10), one.add(10, times=2)) == (11, 12, 22)
    assert one.add.relay is one.add.relay and one.add.relay is not two.add.relay
    assert one.add.submit(1).result(30) == 2 and one.add.submit_many([1, 2]).result(30) == [2, 3]
    assert list(two.add.map(range(10))) == list(range(2, 12))
    assert one.add.relay.limits.max_batch_size == 4 and one.add.relay.name.endswith("Adder.add")
    assert (one.add.__name__, one.add.__doc__, Adder.add.__doc__) == ("add", "Adds.", "Adds.")
    one.add.close()
    with pytest.raises(lab.Closed):
        one.add(1)
    assert two.add(1) == 3
    two.add.close()


def test_dropped_with_the_instance(lab: Lab) -> None:
    one = adder(lab)(1)
    assert one.add(1) == 2
    r, gone, threads = weakref.ref(one.add.relay), weakref.ref(one), one.add.relay._dispatcher
    del one
    gc.collect()
    assert gone() is None and r() is None
    assert threads.join(30)


def test_held_until_the_answer(lab: Lab) -> None:
    Adder, model = adder(lab), lab.model(held=True)
    one = Adder(1, model)
    gone = weakref.ref(one)
    first = one.add.submit(1)
    model.wait_until_running()
    rest = one.add.submit_many([2, 3])
    answers = lab.call(one.add, 4)
    del one
    gc.collect()
    assert gone() is not None
    model.free()
    assert (first.result(30), rest.result(30), answers.result()) == (2, [3, 4], 5)
    del answers
    lab.wait_until(lambda: gc.collect() >= 0 and gone() is None)


def test_asked_through_the_relay_alone(lab: Lab) -> None:
    one = adder(lab)(1)
    r = one.add.relay
    del one
    gc.collect()
    with pytest.raises(ReferenceError, match="the instance that .*Adder.add was asked on is gone; hold it until"):
        r(1)
    r.close()


def test_instances_of_every_kind(lab: Lab) -> None:
    class Base:
        @lab.batched  # type: ignore[untyped-decorator]
        def who(self, items: list[int]) -> list[int]:
            return [id(self) for _ in items]

    class Equal(Base):
        def __eq__(self, other: object) -> bool:
            return True

    class Slots:
        __slots__ = ("__weakref__",)

        @lab.batched  # type: ignore[untyped-decorator]
        def who(self, items: list[int]) -> list[int]:
            return [id(self) for _ in items]

    class Alone:
        __slots__ = ()

        @lab.batched  # type: ignore[untyped-decorator]
        def who(self, items: list[int]) -> list[int]:
            return items

    for kind in (Equal, Slots):
        one, two = kind(), kind()
        assert (one.who(0), two.who(0)) == (id(one), id(two))
        one.who.close()
        two.who.close()
    with pytest.raises(
        TypeError, match="no weak reference can be made to a Alone, .* add '__weakref__' to its __slots__"
    ):
        Alone().who(0)


def test_copies_have_their_own(lab: Lab) -> None:
    one = adder(lab)(1)
    assert one.add(1) == 2
    twin = copy.deepcopy(one)
    twin.n = 5
    assert (one.add(1), twin.add(1)) == (2, 6)
    assert vars(one) == {"n": 1, "model": None}
    one.add.close()
    twin.add.close()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(one.add)


def test_two_threads_at_first_use(lab: Lab) -> None:
    Adder = adder(lab)
    for _ in range(20):
        one, barrier = Adder(1), threading.Barrier(4)

        def first(one: Any = one, barrier: Any = barrier) -> Any:
            barrier.wait(30)
            return one.add.relay

        assert len({call.result() for call in [lab.call(first) for _ in range(4)]}) == 1


def test_coroutine_methods(lab: Lab) -> None:
    class Service:
        def __init__(self, n: int) -> None:
            self.n = n

        @lab.batched  # type: ignore[untyped-decorator]
        async def ask(self, items: list[int], *, k: int = 0) -> list[int]:
            await asyncio.sleep(0)
            return [x + self.n + k for x in items]

    async def main() -> None:
        one, two = Service(1), Service(2)
        assert inspect.iscoroutinefunction(Service.ask) and inspect.iscoroutinefunction(one.ask)
        assert await asyncio.gather(*(each.ask(i) for i in range(3) for each in (one, two))) == [1, 2, 2, 3, 3, 4]
        assert await one.ask(1, k=3) == 5 and await two.ask.submit(1) == 3
        assert [y async for y in one.ask.map_async([1, 2])] == [2, 3]
        assert await Service(7).ask(1) == 8  # nothing but the call holds it
        await one.ask.aclose()
        await two.ask.aclose()

    asyncio.run(main())


def test_static_and_class_methods(lab: Lab) -> None:
    class Base:
        n = 1

        @staticmethod
        @lab.batched  # type: ignore[untyped-decorator]
        def above(items: list[int]) -> list[int]:
            return items

        @lab.batched  # type: ignore[untyped-decorator]
        @staticmethod
        def below(items: list[int]) -> list[int]:
            return items

        @lab.batched  # type: ignore[untyped-decorator]
        @classmethod
        def add(cls, items: list[int]) -> list[int]:
            return [x + cls.n for x in items]

    class Child(Base):
        n = 2

    assert (Base.above(1), Base().above(1), Base.below(1), Child().below(1)) == (1, 1, 1, 1)
    assert (Base.add(1), Base().add(1), Child.add(1), Child().add(1)) == (2, 2, 3, 3)
    assert Base.add.relay is Base().add.relay and Base.add.relay is not Child.add.relay
    for face in (Base.above, Base.below, Base.add, Child.add):
        face.close()


def test_a_class_method_the_wrong_way_round(lab: Lab) -> None:
    class Wrong:
        @classmethod
        @lab.batched  # type: ignore[untyped-decorator]
        def add(cls, items: list[int]) -> list[int]:
            return items

    with pytest.raises(TypeError, match="@relay.batched must stand above @classmethod"):
        Wrong.add(1)


def test_a_method_without_an_instance(lab: Lab) -> None:
    Adder = adder(lab)
    with pytest.raises(TypeError, match="Adder.add is a batched method, .* and was not called on an instance"):
        Adder.add(1)
    with pytest.raises(AttributeError, match="each instance has a 'submit' of its own"):
        Adder.add.submit(1)
    assert not hasattr(Adder.add, "something")
    assert repr(Adder.add).endswith("Adder.add>")


def test_a_function_without_self_in_a_class(lab: Lab) -> None:
    """The error is the cause of a RuntimeError before Python 3.12."""
    with pytest.raises((TypeError, RuntimeError)) as caught:

        class Wrong:
            @lab.batched  # type: ignore[untyped-decorator]
            def add(items: list[int]) -> list[int]:  # noqa: N805
                return items

    error = caught.value if isinstance(caught.value, TypeError) else caught.value.__cause__
    assert "Wrong.add must take self and a list of items" in str(error) and "@staticmethod" in str(error)


def test_self_by_another_name(lab: Lab) -> None:
    class Named:
        @lab.batched  # type: ignore[untyped-decorator]
        def who(this, items: list[int]) -> list[bool]:  # noqa: N805
            return [isinstance(this, Named) for _ in items]

    one = Named()
    assert one.who(1) is True
    one.who.close()
