"""A pool of each side and the model of it take the same steps: whoever gets a token, waits or is refused is the same.

Coroutines are stepped by hand, in any order: each stands in line, is woken, goes on or is cancelled when the machine
says so. Nothing runs besides: the clock is a fake, and the alarm is rung by the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from both import package
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from pool_model import NS, Lease, Model, Request

INFINITY = float("inf")
ALLOWANCE = {0: 0.05, 1: 0.2, 2: 0.6}


REQUESTS = st.tuples(
    st.integers(0, 2),
    st.sampled_from([1, 1, 1, 1, 1, 1, 2, 3]),  # cost
    st.sampled_from([None, None, "a", "b"]),
    st.sampled_from([None, None, None, None, None, None, 1, 4, 0]),  # time limit
    st.sampled_from([None, None, None, 2, INFINITY]),  # heartbeat
    st.integers(0, 15),  # 0 for one that only tries, from a thread
)


class NoAlarm:
    """Takes the place of a pool's alarm, and never rings."""

    def arm(self, when_ns: int) -> None: ...
    def start(self) -> None: ...
    def poke(self) -> None: ...
    def stop(self) -> None: ...


def configurations() -> Any:
    return st.fixed_dictionaries(
        {
            "capacity": st.sampled_from([1, 2, 2, 3, 5]),
            "more": st.integers(0, 3),
            "floor_tier": st.integers(0, 2),
            "floor_units": st.sampled_from([0, 0, 1, 2]),
            "cap": st.sampled_from([None, None, None, None, 1, 3]),
            "max_waiting": st.sampled_from([3, 50, 50, 50]),
            "heartbeat": st.sampled_from([0, 0, 3]),
            "grace": st.sampled_from([0, 2]),
            "every": st.sampled_from([0, 2, 3, 8]),
        }
    )


class Machine(RuleBasedStateMachine):
    side = ""

    @initialize(chosen=configurations())
    def make(self, chosen: dict[str, Any]) -> None:
        relay = package(self.side)
        self.clock = relay.testing.FakeClock()
        capacity, floor_units = chosen["capacity"], min(chosen["floor_units"], chosen["capacity"])
        policy = (relay.DynamicPriority if chosen["every"] else relay.policy.StrictPriority)(ALLOWANCE)
        policy.overdue_every = chosen["every"]
        self.pool = relay.TokenPool(
            capacity,
            max_capacity=capacity + chosen["more"],
            policy=policy,
            reserved={chosen["floor_tier"]: floor_units},
            tenant_caps=chosen["cap"],
            max_waiting=chosen["max_waiting"],
            heartbeat=chosen["heartbeat"] or None,
            grace=chosen["grace"],
            clock=self.clock,
        )
        self.pool._alarm = NoAlarm()
        self.model = Model(
            self.clock, capacity, capacity + chosen["more"], chosen["floor_tier"], floor_units, chosen["cap"],
            chosen["max_waiting"], chosen["heartbeat"] * NS, chosen["grace"] * NS,
            [int(seconds * NS) for seconds in ALLOWANCE.values()], chosen["every"],
        )  # fmt: skip
        self.loop = asyncio.new_event_loop()
        self.serial = 0
        self.waits: list[tuple[Request, Any, Any]] = []
        self.tokens: list[tuple[Lease, Any]] = []

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for request, wait, _ in self.waits:
                self.both(wait.close, partial(self.model.cancel, request))
            for lease, token in self.tokens:
                if lease in self.model.leases:
                    self.both(token.release, partial(self.model.release, lease))
            self.waits.clear()
            self.same()
            assert (self.pool.held, self.pool.waiting) == (0, 0)
            self.pool.close()
            self.loop.close()

    @contextmanager
    def on_loop(self) -> Iterator[None]:
        asyncio._set_running_loop(self.loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    def both(self, real: Callable[[], Any], model: Callable[[], Any]) -> tuple[Any, Any]:
        """What both answer; an error must be the same kind of error."""
        answers, errors = [], []
        for call in (real, model):
            try:
                with self.on_loop():
                    answers.append(call())
                    errors.append("")
            except Exception as error:
                answers.append(None)
                errors.append(type(error).__name__)
        assert errors[0] == errors[1], errors
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()  # a wake-up may have come as if from another thread
        return answers[0], answers[1]

    def step(self, wait: Any) -> tuple[str, Any]:
        """Let a coroutine go on: to the future it waits for, or to its token."""
        try:
            return "waits", wait.send(None)
        except StopIteration as end:
            return "has", end.value

    def keep(self, lease: Lease, token: Any) -> None:
        assert (token.priority, token.cost, token.tenant, token.epoch) == (
            lease.tier, lease.cost, lease.tenant, lease.epoch,
        )  # fmt: skip
        assert all(token.handle != other.handle for _, other in self.tokens), "each lease has a handle of its own"
        self.tokens.append((lease, token))

    def token(self, which: int) -> tuple[Lease, Any] | None:
        return self.tokens[-1 - which % len(self.tokens)] if self.tokens else None

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=5))
    def acquire(self, requests: list[Any]) -> None:
        for request in requests:
            self.come(*request)

    def come(
        self, tier: int, cost: int, tenant: str | None, timeout: int | None, heartbeat: float | None, tries: int
    ) -> None:
        self.serial += 1
        beats_ns = self.model.heartbeat_ns if heartbeat is None or tries == 0 else {2: 2 * NS}.get(heartbeat, 0)
        request = Request(tier, cost, tenant, beats_ns, self.clock.now_ns(), None, self.serial)
        if tries == 0:
            token, _ = self.both(
                lambda: self.pool.acquire(tier, cost=cost, tenant=tenant, timeout=0),
                lambda: self.model.ask(request, 0),
            )
            if token is not None:
                assert request.lease is not None
                self.keep(request.lease, token)
            return
        options = {"cost": cost, "tenant": tenant, "timeout": timeout, "heartbeat": heartbeat}
        wait = self.pool.acquire_async(tier, **options)
        limit_ns = None if timeout is None else timeout * NS
        found, _ = self.both(lambda: self.step(wait), lambda: self.model.ask(request, limit_ns))
        if found is None:
            return
        assert found[0] == ("waits" if request.lease is None else "has")
        if request.lease is not None:
            self.keep(request.lease, found[1])
        else:
            self.waits.append((request, wait, found[1]))

    @rule(which=st.integers(0, 20))
    def resume(self, which: int) -> None:
        """One that has been woken goes on."""
        woken = [entry for entry in self.waits if entry[0].woken]
        if woken:
            entry = request, wait, _ = woken[which % len(woken)]
            self.waits.remove(entry)
            found, lease = self.both(lambda: self.step(wait), lambda: self.model.resume(request))
            if lease is not None:
                assert found[0] == "has"
                self.keep(lease, found[1])

    @rule(which=st.integers(0, 20), how=st.sampled_from(["throw", "throw", "close"]))
    def cancel(self, which: int, how: str) -> None:
        """One that waits, or has been woken and has not gone on yet, is cancelled or closed."""
        if not self.waits:
            return
        request, wait, _ = self.waits.pop(which % len(self.waits))

        def throw() -> None:
            with pytest.raises(asyncio.CancelledError):
                wait.throw(asyncio.CancelledError())

        self.both(throw if how == "throw" else wait.close, lambda: self.model.cancel(request))

    @rule(which=st.integers(0, 20))
    def release(self, which: int) -> None:
        """Often one whose lease has ended."""
        if (found := self.token(which)) is not None:
            self.both(found[1].release, lambda: self.model.release(found[0]))

    @rule(which=st.lists(st.integers(0, 20), min_size=1, max_size=4))
    def release_some_that_are_held(self, which: list[int]) -> None:
        for number in which:
            held = [(lease, token) for lease, token in self.tokens if lease in self.model.leases]
            if held:
                lease, token = held[number % len(held)]
                self.both(partial(self.pool.release, token), partial(self.model.release, lease))

    @rule(which=st.integers(0, 20), how=st.sampled_from(["heartbeat", "heartbeat", "revoke"]))
    def beat(self, which: int, how: str) -> None:
        if (found := self.token(which)) is not None:
            lease, token = found
            if how == "revoke":
                answers = self.both(lambda: self.pool.revoke(token), lambda: self.model.revoke(lease))
                assert answers[0] == answers[1]
            else:
                self.both(token.heartbeat, lambda: self.model.beat(lease))

    @rule(seconds=st.sampled_from([0.1, 0.1, 0.3, 1, 3]), rings=st.booleans())
    def time_passes(self, seconds: float, rings: bool) -> None:
        """The alarm may be late."""
        self.clock.advance(seconds)
        if rings:
            self.both(lambda: self.pool._ring(self.clock.now_ns()), self.model.ring)

    @rule(capacity=st.integers(0, 9), really=st.integers(0, 2))
    def resize(self, capacity: int, really: int) -> None:
        if really == 0:
            self.both(lambda: self.pool.resize(capacity), lambda: self.model.resize(capacity))

    @rule()
    def advance(self) -> None:
        self.model.epoch += 1
        assert self.pool.advance() == self.model.epoch

    @rule(really=st.integers(0, 60))
    def close(self, really: int) -> None:
        if really == 0:
            self.both(self.pool.close, self.model.close)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool, model = self.pool, self.model
        pool.check()
        state = pool.snapshot()
        held = model.held()
        assert (state.held, state.free, state.tokens) == (held, max(0, model.capacity - held), len(model.leases))
        assert (state.capacity, state.waiting, state.epoch) == (model.capacity, len(model.line), model.epoch)
        for name in ("granted", "timed_out", "cancelled", "revoked"):
            assert getattr(state, name) == model.counts[name], name
        assert state.refused_by.get("queue_full", 0) == model.counts["queue_full"] and state.leaked == 0
        assert pool.waits.count == model.counts["waited"] and pool.waits.total_ns == model.waited_ns
        for request, _, future in self.waits:
            assert future.done() == request.woken
        for lease, token in self.tokens:
            assert token.state == (lease.state if lease in model.leases else "released")
        for tier, counts in state.tiers.items():
            waiting = sum(request.tier == tier for request in model.line)
            floor = model.floor() if tier == model.floor_tier else 0
            assert (counts.held, counts.waiting, counts.reserved) == (model.held(tier=tier), waiting, floor)
        for tenant, counts in state.tenants.items():
            waiting = sum(request.tenant == tenant for request in model.line)
            assert (counts.held, counts.waiting, counts.cap) == (model.held(tenant=tenant), waiting, model.cap)
        assert sum(counts.held for counts in state.tiers.values()) == held
        assert sum(counts.waiting for counts in state.tiers.values()) == len(model.line)


@pytest.mark.parametrize("examples", [200, pytest.param(4_000, marks=pytest.mark.long)], ids=["short", "long"])
@pytest.mark.parametrize("side", ["pure", "native"])
def test_a_pool_does_as_the_model_does(side: str, examples: int) -> None:
    machine = type("Machine", (Machine,), {"side": side})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=60))
