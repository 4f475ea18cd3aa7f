"""Both sides of `Permits` and the model of it take every step: what one answers, refuses or counts, the others must."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from permits_cases import LEVELS, ODD, configurations
from permits_kit import NO_PLACE, Waiter
from permits_model import FAILED, UNUSED, WORKED
from permits_twins import Twins

# How a block ends, by what it raises.
ENDINGS: dict[str, type[BaseException] | None] = {WORKED: None, FAILED: KeyError, UNUSED: KeyboardInterrupt}


class Machine(Twins):
    sides = ("pure", "native")
    oldest = 0

    @initialize(configuration=configurations(), keyed=st.booleans(), clocked=st.booleans())
    def make(self, configuration: dict[str, Any], keyed: bool, clocked: bool) -> None:
        self.serial = 0
        self.begin(configuration, keyed, clocked)

    facts = {
        "priority": st.sampled_from(LEVELS), "cost": st.sampled_from([1, 1, 1, 2, 3, 5]),
        "tenant": st.sampled_from([None, "a", "b", "c"]), "heartbeat_ns": st.sampled_from([-1, -1, 0, 250]),
    }  # fmt: skip

    @rule(**facts)
    def try_acquire(self, priority: int, cost: int, tenant: str | None, heartbeat_ns: int) -> None:
        facts = (priority, cost, tenant, heartbeat_ns)
        tokens, request = self.step(
            lambda i: self.pools[i].try_acquire(*facts), lambda: self.model.ask("tries", *facts)
        )
        if request is not None:
            self.remember(request.lease, tokens)

    @rule(**facts, key=st.integers(-2, 2), ago=st.sampled_from([-1, -1, 0, 70, 5_000, -60]), dead=st.integers(0, 9))
    def join(
        self, priority: int, cost: int, tenant: str | None, heartbeat_ns: int, key: int | None, ago: int, dead: int
    ) -> None:
        facts = (cost, tenant, heartbeat_ns)
        key = key if self.keyed else None
        arrival_ns = -1 if ago == -1 else self.clock.now_ns - ago
        self.serial += 1
        name = self.serial
        pair = [Waiter(name, dead == 0) for _ in self.pools]
        tokens, request = self.step(
            lambda i: self.pools[i].acquire_or_join(priority, key, pair[i], *facts, arrival_ns),
            lambda: self.model.ask(name, priority, *facts, key, arrival_ns, dead == 0, tries=False),
        )
        if request is None:
            return
        assert all(token is waiter.token or token is None for token, waiter in zip(tokens, pair, strict=True))
        if request.lease is None and request not in self.model.line:
            assert all(waiter.index == NO_PLACE for waiter in pair)
        self.waiters.append((request, pair))

    @rule(priorities=st.lists(st.integers(0, 2), min_size=2, max_size=6), costs=st.sampled_from([[1], [1, 2], [3, 1]]))
    def crowd(self, priorities: list[int], costs: list[int]) -> None:
        for number, priority in enumerate(priorities):
            self.join(priority, costs[number % len(costs)], [None, "a", "b"][number % 3], -1, 0, -1, 1)

    @rule(times=st.integers(2, 8), by=st.sampled_from([0, 50, 500]))
    def flow(self, times: int, by: int) -> None:
        for _ in range(times):
            self.clock.now_ns += by
            self.note_grants()
            held = [lease for lease, _ in self.tokens if lease in self.model.leases]
            if held:
                self.release([lease for lease, _ in reversed(self.tokens)].index(held[0]), "release")

    @rule(which=st.integers(0, 30), how=st.sampled_from(["leave", "leave", "abandon"]))
    def leave(self, which: int, how: str) -> None:
        if (found := self.waiter(which)) is not None:
            request, pair = found
            tokens, _ = self.step(
                lambda i: getattr(self.pools[i], how)(pair[i]), lambda: getattr(self.model, how)(request)
            )
            if how == "leave":
                assert all(token is waiter.token for token, waiter in zip(tokens, pair, strict=True))

    @rule(which=st.integers(0, 30), level=st.sampled_from(LEVELS), key=st.sampled_from([None, -3, 1]))
    def lift(self, which: int, level: int, key: int | None) -> None:
        if (found := self.waiter(which)) is not None:
            request, pair = found
            key = key if self.keyed else None
            answers, expected = self.step(
                lambda i: self.pools[i].lift(pair[i], level, key), lambda: self.model.lift(request, level, key)
            )
            assert set(answers) == {expected}

    @rule(which=st.integers(0, 30), how=st.sampled_from(["release", "release", "pool", *ENDINGS]))
    def release(self, which: int, how: str) -> None:
        if (found := self.token(which)) is not None:
            lease, pair = found
            if how in ENDINGS:
                of_before = pair[0].handle >> 22 < self.oldest  # the fork: let go silently
                self.step(
                    lambda i: pair[i].__exit__(ENDINGS[how], None, None),
                    lambda: of_before or self.model.release(lease, how),
                )
            else:
                self.step(
                    lambda i: pair[i].release() if how == "release" else self.pools[i].release(pair[i]),
                    lambda: self.model.release(lease),
                )

    @rule(which=st.integers(0, 30))
    def throw_away(self, which: int) -> None:
        if (found := self.token(which)) is not None:
            lease, pair = found
            self.tokens.remove(found)
            for request, waiters in self.waiters:
                if request.lease is lease:
                    request.lease = None
                    for waiter in waiters:
                        waiter.token = None
            nudged = [one.nudged for one in self.pools]
            del found
            pair.clear()  # the last reference
            held = lease in self.model.leases
            assert [one.nudged for one in self.pools] == [count + held for count in nudged]
            if held:
                self.leaks.append((lease.cost, lease.tenant, lease.epoch))
            self.step(lambda i: self.pools[i].collect(), lambda: self.model.throw_away(lease))

    @rule(which=st.integers(0, 30), how=st.sampled_from(["beat", "beat", "revoke"]))
    def beat(self, which: int, how: str) -> None:
        if (found := self.token(which)) is not None:
            lease, pair = found
            answers, expected = self.step(
                lambda i: getattr(self.pools[i], how)(pair[i]), lambda: getattr(self.model, how)(lease)
            )
            assert set(answers) <= {expected}

    @rule(stretch=st.sampled_from([1.0, 1.0, 1.3, 2.5, float("inf")]))
    def expire(self, stretch: float) -> None:
        answers, (revoked, ended) = self.step(
            lambda i: self.pools[i].expire(stretch), lambda: self.model.expire(stretch)
        )
        leases = {pair[0].handle: lease for lease, pair in self.tokens}
        for some, others in answers:
            assert [leases[token.handle] for token in some] == revoked
            assert [leases[token.handle] for token in others] == ended
            assert {token.state for token in some} <= {"revoked"} and {token.state for token in others} <= {"released"}

    @rule(by=st.sampled_from([1, 63, 100, 250, 1_000, 10_000]))
    def time_passes(self, by: int) -> None:
        self.clock.now_ns += by

    @rule(capacity=st.integers(0, 12))
    def resize(self, capacity: int) -> None:
        self.step(lambda i: self.pools[i].resize(capacity), lambda: self.model.resize(capacity))

    @rule()
    def advance(self) -> None:
        self.model.epoch += 1
        answers, _ = self.step(lambda i: self.pools[i].advance())
        assert set(answers) == {self.model.epoch}

    @rule(really=st.integers(0, 40))
    def end(self, really: int) -> None:
        if really == 0:
            self.model.closed = True
            self.step(lambda i: self.pools[i].seal(), lambda: None)
        elif really == 1:
            told = len(self.model.told)
            self.step(lambda i: self.pools[i].shut(), self.model.shut)
            for names in [self.model.told, *(one.told for one in self.pools)]:
                names[told:] = sorted(names[told:])  # in whatever order
        elif really < 6:
            self.oldest = max([token.handle >> 22 for _, pair in self.tokens for token in pair], default=0) + 1
            told = self.model.told
            self.model.start_over()
            self.model.told = told
            self.step(lambda i: self.pools[i].start_over(), lambda: None)

    @rule(odd=st.sampled_from(ODD), which=st.integers(0, 9))
    def refused(self, odd: tuple[str, Any], which: int) -> None:
        """What is out of range or of the wrong type, anywhere, changes nothing."""
        name, value = odd
        found = self.waiter(which)
        if name == "token":
            for method in ("release", "beat", "revoke", "adopt", "holds", "state_of"):
                self.fails(lambda i, method=method: getattr(self.pools[i], method)(value))  # type: ignore[misc]
        elif name == "capacity":
            self.fails(lambda i: self.pools[i].resize(value))
        else:
            keywords = {"priority": 1, "key": 0, name: value}
            self.fails(lambda i: self.pools[i].acquire_or_join(waiter=Waiter(), **keywords))
            if name in ("priority", "key") and found is not None:
                self.fails(lambda i: self.pools[i].lift(found[1][i], keywords["priority"], keywords["key"]))
            if name == "priority":
                self.fails(lambda i: self.pools[i].predict_ns(value))
            if name not in ("key", "arrival_ns"):
                self.fails(lambda i: self.pools[i].try_acquire(**{name: value}))


class PureMachine(Machine):
    sides = ("pure",)


@pytest.mark.timeout(300)  # to find the shortest failing one may take long
@pytest.mark.parametrize("machine", [pytest.param(PureMachine, id="pure"), pytest.param(Machine, id="both")])
def test_does_as_the_model_does(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=50))


@pytest.mark.long
def test_does_as_the_model_does_long() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=1000, stateful_step_count=50))
