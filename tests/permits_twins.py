"""Some sides of `Permits` and the model of it, which are asked the same and compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conftest import Core
from hypothesis.stateful import RuleBasedStateMachine, invariant
from permits_cases import COUNTERS
from permits_kit import Clock, Waiter, pool
from permits_model import Model
from permits_units import Lease, Request


def seen(view: Any) -> tuple[Any, ...]:
    return view.handle, view.priority, view.cost, view.tenant, view.epoch, view.state


class Twins(RuleBasedStateMachine):
    """What any of them answers, refuses or counts, the others must."""

    sides: tuple[str, ...]

    def begin(self, configuration: dict[str, Any], keyed: bool, clocked: bool) -> None:
        self.clock, self.keyed, self.clocked = Clock(), keyed, clocked
        self.model = Model(self.clock, **configuration)
        self.model.keyed = keyed
        self.pools = [pool(Core(side), **configuration, now_ns=self.clock) for side in self.sides]
        for one in self.pools:
            one.keyed, one.watched, one.clocked = keyed, clocked, clocked
        self.tokens: list[tuple[Lease, list[Any]]] = []  # every token ever given, on each side
        self.waiters: list[tuple[Request, list[Waiter]]] = []
        self.leaks: list[tuple[int, str | None, int]] = []

    def step(self, real: Callable[[int], Any], model: Callable[[], Any] | None = None) -> tuple[list[Any], Any]:
        """What each side answers, and the model. Without a model: whatever it is, all sides agree."""
        errors, values, answer = [], [], None
        for index in range(len(self.pools)):
            try:
                values.append(real(index))
                errors.append(("", ""))
            except Exception as error:
                errors.append((type(error).__name__, str(error)))
        expected = errors[0][0] if model is None else ""
        try:
            answer = model() if model is not None else None
        except Exception as error:
            expected = type(error).__name__
        assert {kind for kind, _ in errors} == {expected}, (errors, expected)
        assert len(set(errors)) == 1, errors
        return values, answer

    def remember(self, lease: Lease | None, tokens: list[Any]) -> None:
        if lease is None:
            assert tokens in ([None] * len(self.pools), [])
        elif not any(lease is other for other, _ in self.tokens):
            assert len({token.handle for token in tokens}) == 1
            for token in tokens:
                facts = (token.priority, token.cost, token.tenant, token.epoch)
                assert facts == (lease.priority, lease.cost, lease.tenant, lease.epoch)
            self.tokens.append((lease, tokens))

    def token(self, which: int) -> tuple[Lease, list[Any]] | None:
        return self.tokens[-1 - which % len(self.tokens)] if self.tokens else None  # often one whose lease has ended

    def waiter(self, which: int) -> tuple[Request, list[Waiter]] | None:
        return self.waiters[-1 - which % len(self.waiters)] if self.waiters else None

    def fails(self, real: Callable[[int], Any]) -> None:
        values, _ = self.step(real)
        assert not values

    def note_grants(self) -> None:
        for request, waiters in self.waiters:
            if request.lease is not None:
                self.remember(request.lease, [waiter.token for waiter in waiters])

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "pools"):
            return
        model = self.model
        self.note_grants()
        for request, waiters in self.waiters:
            assert {waiter.index >= 0 for waiter in waiters} == {request in model.line}
            assert {waiter.token is None for waiter in waiters} == {request.lease is None}
        for lease, pair in self.tokens:
            for token in pair:
                assert token.held == (lease in model.leases)
                assert token.state == (lease.state if token.held else "released")
        views = sorted(
            (pair[0].handle, lease.level, lease.cost, lease.tenant, lease.epoch, lease.state)
            for lease, pair in self.tokens
            if lease in model.leases
        )
        assert len({view[0] for view in views}) == len(views) == len(model.leases), "a token has one owner"
        for side, one in zip(self.sides, self.pools, strict=True):
            one.check()
            for name in COUNTERS:
                assert getattr(one, name) == getattr(model, name), name
            assert one.held_ns == (model.held_ns if self.clocked else 0)
            assert len(one) == len(model.leases) == one.owned(Core(side).permits.owner())
            assert one.told == model.told and [leak[1:4] for leak in one.leaks] == self.leaks
            assert one.by_tier() == model.by_tier() and list(one.by_tier()) == sorted(model.by_tier())
            assert one.by_tenant() == model.by_tenant()
            assert one.most_urgent() == min((request.level for request in model.line), default=-1)
            looks = [lease.look_ns for lease in model.leases if lease.look_ns is not None]
            assert one.next_lease_ns() == min(looks, default=None)
            assert sorted(map(seen, one.tokens())) == views
        answers = [
            [one.predict_ns(1), one.predict_ns("batch", 3), one.waits.count, one.waits.total_ns, one.freed]
            for one in self.pools
        ]
        assert all(answer == answers[0] for answer in answers)
