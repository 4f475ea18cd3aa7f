"""Section E of the scenarios: what identical requests share, and what nobody else ever gets.

E6 belongs to the result cache, and E7 to Redis, which nothing here speaks to yet.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from near_values import any_value, near
from sharing_kit import Asked, Echo, answer_to, two_sample_p

import relay

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

Loops = Callable[[], asyncio.AbstractEventLoop]
CACHES = pytest.mark.parametrize("cache_bytes", [0, 1 << 20], ids=["merging", "cache"])


# E1: a hash that says nothing.


def near_requests(rng: random.Random, count: int) -> list[Asked]:
    """Requests that are easily taken for each other, and some that are equal."""
    first = rng.choice(["a", "ab", b"a", 1, ("a", "b"), [1, 2]])
    asked: list[Asked] = [(first, None, None), (first, None, "a"), (first, {"k": "a"}, None), ("a", {"k": "b"}, "a")]
    while len(asked) < count:
        item, params, tenant = rng.choice(asked)
        how = rng.randrange(6)
        if how == 0:
            item = near(rng, item)
        elif how == 1:
            tenant = rng.choice([None, "", "a", "\u0430", "b"])
        elif how == 2:
            params = {rng.choice("kj"): any_value(rng, 1, hashable=True)}
        elif how == 3 and params:
            params = {name: near(rng, value, hashable=True) for name, value in params.items()}
        elif how == 4 and isinstance(item, str):  # swapped between the fields
            item, tenant = tenant or "", item
        elif how == 5 and params and isinstance(item, str):
            name = next(iter(params))
            item, params = params[name], {name: item}
        asked.append((item, params, tenant))
    return asked


@pytest.mark.parametrize("bits", [0, 2, 128])
@CACHES
def test_e1_hashes_that_collide(lab: Lab, rng: random.Random, bits: int, cache_bytes: int) -> None:
    echo = Echo(lab, merge=True, cache_bytes=cache_bytes)
    echo.relay._desk.queue.hash_bits = bits
    for _ in range(12):
        requests = near_requests(rng, 60)
        with echo.paused():
            tickets = [echo.submit(asked) for asked in requests]
            items = [item for item, _, _ in requests]
            group = echo.relay.submit_many(items, tenant="a")
            assert echo.relay.submit_many(items[:3] * 2, params={"k": 1})
        for asked, ticket in zip(requests, tickets, strict=True):
            assert ticket.result(30) == answer_to(asked)
        assert group.result(30) == [answer_to((item, None, "a")) for item in items]
        for asked in rng.choices(requests, k=20):  # and one after the other
            assert echo.ask(asked) == answer_to(asked)
    assert echo.relay.snapshot().merged > 0
    lab.idle(echo.relay)


# E2: another tenant's requests.


def test_the_two_sample_test_itself(rng: random.Random) -> None:
    one, two = ([rng.gauss(0, 1) for _ in range(200)] for _ in range(2))
    assert two_sample_p(one, two) > 1e-6 > two_sample_p(one, [value + 1 for value in two])
    assert two_sample_p([1, 1, 1], [1, 1, 1]) == two_sample_p([1, 2, 3, 4], [1, 2, 3, 4]) == 1
    assert two_sample_p([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(0.00902, abs=1e-5)


def texts(rng: random.Random, count: int) -> list[str]:
    return ["".join(rng.choices("abcdefgh ", k=200)) for _ in range(count)]


@CACHES
@pytest.mark.parametrize("tenant", ["a", None])
def test_e2_nothing_is_shared_with_another_tenant(
    lab: Lab, rng: random.Random, cache_bytes: int, tenant: str | None
) -> None:
    echo = Echo(lab, merge=True, cache_bytes=cache_bytes)
    prompts = texts(rng, 200)
    for prompt in prompts[:100]:
        assert echo.ask((prompt, None, tenant)) == answer_to((prompt, None, tenant))
    with echo.paused():
        warmed = [echo.submit((prompt, None, tenant)) for prompt in prompts[100:]]
        runs = echo.runs
        other = [echo.submit((prompt, None, "b")) for prompt in prompts]
        assert echo.relay.snapshot().merged == 0
    assert [ticket.result(30) for ticket in other] == [answer_to((prompt, None, "b")) for prompt in prompts]
    assert {ticket.result(30)[2] for ticket in warmed} == {tenant} and echo.runs == runs + 300
    lab.idle(echo.relay)


def test_e2_unless_sharing_is_switched_on(lab: Lab, rng: random.Random) -> None:
    echo = Echo(lab, merge=True, share_across_tenants=True)
    prompts = texts(rng, 20)
    with echo.paused():
        first = [echo.submit((prompt, None, "a")) for prompt in prompts]
        other = [echo.submit((prompt, None, tenant)) for prompt in prompts for tenant in ("b", None)]
        apart = [echo.submit((prompt, {"k": 1}, "b")) for prompt in prompts]
        assert echo.relay.snapshot().merged == 40
    assert [ticket.result(30) for ticket in first] == [answer_to((prompt, None, "a")) for prompt in prompts]
    assert all(other[2 * i].result(30) == first[i].result(30) for i in range(20))
    assert [ticket.result(30) for ticket in apart] == [answer_to((prompt, {"k": 1}, "b")) for prompt in prompts]
    lab.idle(echo.relay)


MOST_ROUNDS = 12


@pytest.mark.parametrize("how", ["in flight", "answered", "cached"])
def test_e2_no_time_tells_what_another_tenant_has_asked(lab: Lab, rng: random.Random, how: str) -> None:
    """200 prompts that A has asked against 200 fresh ones, in random order. A leak would show in every round, a noisy
    machine will not be noisy in all of them in the same way."""
    seen: list[tuple[float, float]] = []
    for _ in range(MOST_ROUNDS):
        model = lab.model()
        r = lab.start(model, merge=True, cache_bytes=(64 << 20) if how == "cached" else 0)
        known, fresh = texts(rng, 200), texts(rng, 200)
        turns = [(text, True) for text in known] + [(text, False) for text in fresh]
        rng.shuffle(turns)
        times: dict[bool, list[int]] = {True: [], False: []}

        def ask(text: str, wait: bool, r: Any = r) -> int:
            text = "".join([text])  # made anew: an object that was hashed before would be quicker by that
            began = time.perf_counter_ns()
            ticket = r.submit(text, tenant="b")
            if wait:
                ticket.result(30)
            return time.perf_counter_ns() - began

        if how == "in flight":
            with lab.testing.paused(r, model, "plug"):
                waiting = [r.submit(text, tenant="a") for text in known]
                for text, was_asked in turns:
                    times[was_asked].append(ask(text, False))
                assert r.snapshot().merged == 0
            assert [ticket.result(30) for ticket in waiting] == known
        else:
            for text in known:
                r(text, tenant="a")
            for text, was_asked in turns:
                times[was_asked].append(ask(text, True))
        lab.idle(r)
        assert sum(map(len, model.batches)) == 600 + (how == "in flight"), "everything was run"
        seen.append((two_sample_p(times[True], times[False]), abs(median(times[True]) - median(times[False]))))
        if seen[-1][0] > 1e-6 and seen[-1][1] <= 2_000:
            return
    raise AssertionError(f"p and the difference of the medians in ns, round by round: {seen}")


# E3: one field at a time.

FULL: dict[str, Any] = {
    "adapter": "base", "temperature": 0.7, "top_p": 1.0, "top_k": 5, "min_p": 0.0, "n": 1, "seed": 1,
    "max_tokens": 100,
    "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": ((50256, -100),),
    "logprobs": False, "stop": ("\n", "END"), "tools": (("search", ("query", "string")), ("add", ("x", "int"))),
    "tool_choice": "auto", "response_format": "text", "system": "You are kind.", "dimensions": 384,
    "encoding_format": "float", "user": "salt 1",
}  # fmt: skip
CHANGES: list[tuple[str, Any]] = [
    ("adapter", "base2"), ("temperature", 0.70000000001), ("top_p", 1), ("top_k", 5.0), ("top_k", "5"),
    ("min_p", -0.0),
    ("min_p", 0), ("n", 2), ("n", True), ("seed", None), ("seed", 1 + 2**64), ("max_tokens", 101),
    ("frequency_penalty", 0.1),
    ("presence_penalty", 0.1), ("repetition_penalty", 1.1), ("logit_bias", ((50256, -99),)),
    ("logit_bias", ((50256, -100.0),)),
    ("logit_bias", (50256, -100)), ("logprobs", 0), ("logprobs", True), ("stop", ("END", "\n")), ("stop", ("\nEND",)),
    ("stop", "\nEND"), ("stop", frozenset(("\n", "END"))), ("tools", ()), ("tools", (("add", ("x", "int")),)),
    ("tools", (("search", ("query", "string")), ("add", ("x", "float")))),
    ("tools", (("add", ("x", "int")), ("search", ("query", "string")))), ("tool_choice", "none"),
    ("tool_choice", None),
    ("response_format", "json"), ("system", "You are kind. "), ("system", "You are k\u0456nd."), ("dimensions", 256),
    ("encoding_format", "base64"), ("user", "salt 2"), ("user", None),
]  # fmt: skip


def one_field_changed() -> list[dict[str, Any]]:
    changed = [{**FULL, name: value} for name, value in CHANGES]
    assert {name for name, _ in CHANGES} == set(FULL)
    left_out = [{name: value for name, value in FULL.items() if name != gone} for gone in FULL]
    unknown: list[dict[str, Any]] = [{**FULL, "unheard_of": value} for value in (None, 0, False, "")]
    return changed + left_out + unknown


@CACHES
def test_e3_every_field_counts(lab: Lab, cache_bytes: int) -> None:
    echo = Echo(lab, merge=True, cache_bytes=cache_bytes)
    base: Asked = ("a prompt", FULL, "a")
    others: list[Asked] = [("a prompt", params, "a") for params in one_field_changed()]
    others += [("a prompt ", FULL, "a"), (b"a prompt", FULL, "a"), ("a prompt", FULL, "A"), ("a prompt", FULL, None)]
    with echo.paused():
        leader = echo.submit(base)
        tickets = [echo.submit(asked) for asked in others]
        assert echo.relay.snapshot().merged == 0
        again = echo.submit(("".join("a prompt"), dict(reversed(FULL.items())), "a"))
        assert echo.relay.snapshot().merged == 1
    assert leader.result(30) == again.result(30) == answer_to(base)
    for asked, ticket in zip(others, tickets, strict=True):
        assert ticket.result(30) == answer_to(asked), asked
    before = echo.runs
    assert echo.ask(base) == answer_to(base) and echo.runs == before + (not cache_bytes)
    lab.idle(echo.relay)


def test_e3_answers_that_are_kept_are_of_that_request_alone(lab: Lab) -> None:
    echo = Echo(lab, merge=True, cache_bytes=1 << 20)
    assert echo.ask(("a prompt", FULL, "a")) == answer_to(("a prompt", FULL, "a"))
    for i, params in enumerate(one_field_changed()):
        asked: Asked = ("a prompt", params, "a")
        assert echo.ask(asked) == answer_to(asked) and echo.runs == i + 2
        assert echo.ask(asked) == answer_to(asked) and echo.runs == i + 2
    lab.idle(echo.relay)


def test_e3_only_what_is_named_may_differ(lab: Lab) -> None:
    echo = Echo(lab, merge=True, share_ignore=("user", "trace_id"))
    with echo.paused():
        leader = echo.submit(("a prompt", FULL, "a"))
        for more in ({"user": "salt 2"}, {"user": None}, {"trace_id": 1}, {"user": 1, "trace_id": "x"}):
            assert echo.submit(("a prompt", {**FULL, **more}, "a"))
        assert echo.submit(("a prompt", {name: value for name, value in FULL.items() if name != "user"}, "a"))
        assert echo.relay.snapshot().merged == 5
        others = [{**params, "user": "salt 3"} for params in one_field_changed() if params.get("user") == "salt 1"]
        tickets = [(params, echo.submit(("a prompt", params, "a"))) for params in others]
        assert echo.relay.snapshot().merged == 5 and len(tickets) > 50
    assert leader.result(30) == answer_to(("a prompt", FULL, "a"))
    assert all(ticket.result(30) == answer_to(("a prompt", params, "a")) for params, ticket in tickets)
    lab.idle(echo.relay)


def test_e3_models_share_nothing(lab: Lab) -> None:
    relays = [lab.start(lambda items, v=v: [(v, item) for item in items], merge=True) for v in ("model 1", "model 2")]
    tickets = [(v, r.submit("x")) for _ in range(3) for v, r in enumerate(relays, 1)]
    assert all(ticket.result(30) == (f"model {v}", "x") for v, ticket in tickets)
    lab.idle(*relays)


@pytest.mark.parametrize(("wrong", "text"), [("user", "'user'"), (None, "None"), ([1], "1 in it")])
def test_e3_what_is_ignored_is_a_list_of_names(lab: Lab, wrong: Any, text: str) -> None:
    with pytest.raises(TypeError, match=rf"share_ignore must be a sequence of names, such as \('user',\), got {text}"):
        lab.start(lab.model(), merge=True, share_ignore=wrong)


# E4: the leader is cancelled.


@CACHES
def test_e4_the_leader_goes_and_the_work_goes_on(lab: Lab, cache_bytes: int) -> None:
    model = lab.model(held=True)
    r = lab.start(model, merge=True, cache_bytes=cache_bytes)
    leader = r.submit("x")
    model.wait_until_running()
    follower = r.submit("x")
    assert leader.cancel()
    before = r.submit("x")
    assert r.snapshot().admitted == 1
    model.free()
    assert follower.result(30) == before.result(30) == "x"
    assert type(leader.exception(30)) is relay.RequestCancelled
    assert r("x") == "x", "neither the cancel nor an error is kept"
    assert model.batches == [["x"]] * (1 if cache_bytes else 2)
    lab.idle(r)


@CACHES
@pytest.mark.parametrize("running", [False, True])
def test_e4_on_a_loop(lab: Lab, loops: Loops, cache_bytes: int, running: bool) -> None:
    model = lab.model(held=True)
    r = lab.start(model, merge=True, cache_bytes=cache_bytes)

    async def main() -> None:
        if not running:
            plug = asyncio.ensure_future(r.run_async("plug"))
            await asyncio.to_thread(model.wait_until_running)
        leader = asyncio.ensure_future(r.run_async("x"))
        await asyncio.sleep(0)
        if running:
            await asyncio.to_thread(model.wait_until_running)
        follower = asyncio.ensure_future(r.run_async("x"))
        await asyncio.sleep(0)
        leader.cancel()
        await asyncio.wait([leader])
        before = asyncio.ensure_future(r.run_async("x"))
        await asyncio.sleep(0)
        model.free()
        assert leader.cancelled() and await follower == await before == "x"
        assert await r.run_async("x") == "x"
        assert running or await plug == "plug"

    lab.run(loops, main())
    assert [batch for batch in model.batches if batch != ["plug"]] == [["x"]] * (1 if cache_bytes else 2)
    lab.idle(r)


def test_e4_when_nobody_waits_any_more_the_newcomer_starts_fresh(lab: Lab) -> None:
    model = lab.model(held=True)
    r = lab.start(model, merge=True, cache_bytes=1 << 20)
    leader = r.submit("x")
    model.wait_until_running()
    follower = r.submit("x")
    leader.cancel(), follower.cancel()
    fresh = r.submit("x")
    model.free()
    assert fresh.result(30) == "x"
    assert [type(ticket.exception(30)) for ticket in (leader, follower)] == [relay.RequestCancelled] * 2
    lab.idle(r)


# E5: the work fails.


class Killed(BaseException):
    """What a thread is ended by from outside."""


class Failing:
    """A model whose first call waits to be told, and then ends as it is told."""

    def __init__(self, how: str) -> None:
        self._how = how
        self.entered, self.go = threading.Event(), threading.Event()
        self.thread = 0
        self.calls = 0

    def __call__(self, items: list[Any]) -> list[Any]:
        self.calls += 1
        if self.calls > 1:
            return items
        self.thread = threading.get_ident()
        self.entered.set()
        while not self.go.wait(0.001):
            pass
        if self._how == "raises":
            raise ValueError("no")
        if self._how == "exits":
            raise SystemExit
        while True:  # until it is killed
            self.entered.wait(0.001)


@CACHES
@pytest.mark.parametrize(
    ("how", "cause"), [("raises", ValueError), ("exits", SystemExit), ("is killed", Killed)], ids=lambda how: str(how)
)
def test_e5_an_error_goes_to_all_who_wait_and_frees_the_key(
    lab: Lab, cache_bytes: int, how: str, cause: type[BaseException]
) -> None:
    model = Failing(how)
    r = lab.start(model, merge=True, cache_bytes=cache_bytes, isolate=False)
    tickets = [r.submit("x")]
    assert model.entered.wait(30)
    tickets += [r.submit("x") for _ in range(3)]
    assert r.snapshot().merged == 3
    model.go.set()
    if how == "is killed":
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(model.thread), ctypes.py_object(Killed))
    errors = [ticket.exception(30) for ticket in tickets]
    assert len(set(map(id, errors))) == 4
    assert {type(error.__cause__ if cause is not ValueError else error) for error in errors} == {cause}
    depths = [depth(error) for error in errors]
    for _ in range(3):
        with pytest.raises((ValueError, relay.ModelError)):
            tickets[0].result()
    assert [depth(error) for error in errors[1:]] == depths[1:], "each has a traceback of its own"
    assert r("x") == "x" and model.calls == 2 and r.healthy
    lab.idle(r)


def depth(error: BaseException) -> int:
    found, place = 0, error.__traceback__
    while place is not None:
        found, place = found + 1, place.tb_next
    return found


@CACHES
def test_e5_a_coroutine_that_never_ends(lab: Lab, loops: Loops, cache_bytes: int) -> None:
    clock = lab.clock()
    calls: list[list[Any]] = []

    async def main() -> None:
        entered, end = asyncio.Event(), asyncio.Event()

        async def model(items: list[Any]) -> list[Any]:
            calls.append(items)
            if len(calls) == 1:
                entered.set()
                await end.wait()
            return items

        r = lab.start(model, merge=True, cache_bytes=cache_bytes, clock=clock, timeout_run=1.0, lanes=2)
        tasks = [asyncio.ensure_future(r.run_async("x")) for _ in range(4)]
        await entered.wait()
        assert r.snapshot().merged == 3
        clock.advance(1.5)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in errors} == {relay.RunTimeout} and len(set(map(id, errors))) == 4
        assert await r.run_async("x") == "x", "the other lane has it"
        end.set()
        assert await r.drain_async() == 0
        await r.aclose()

    lab.run(loops, main())
    assert calls == [["x"], ["x"]]


# E8: the client's request id is not ours.


@pytest.mark.parametrize("texts", [("one", "three"), ("same", "same")])
def test_e8_one_request_id_for_two_requests(lab: Lab, texts: tuple[str, str]) -> None:
    pytest.importorskip("starlette", reason="needs the extra serve")
    from relay.server.app import build_app

    model = lab.model(lambda item: [float(len(item)), 1.0], held=True)
    r = lab.start(model, merge=True)
    app = build_app(r, model="toy", dimensions=2)

    async def ask(text: str, user: str, gone: asyncio.Event) -> list[dict[str, Any]]:
        body = b'{"input": "%b", "user": "%b"}' % (text.encode(), user.encode())
        came = [{"type": "http.request", "body": body}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if came:
                return came.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        headers = [(b"x-request-id", b"same id"), (b"authorization", b"Bearer " + user.encode())]
        scope = {
            "type": "http", "method": "POST", "path": "/v1/embeddings", "raw_path": b"/v1/embeddings",
            "headers": headers,
            "query_string": b"", "root_path": "", "http_version": "1.1", "scheme": "http", "asgi": {"version": "3.0"},
        }  # fmt: skip
        await app(scope, receive, send)
        return sent

    async def main() -> None:
        gone = [asyncio.Event() for _ in range(4)]
        plug = asyncio.ensure_future(r.run_async("plug"))
        await asyncio.to_thread(model.wait_until_running)
        tasks = [asyncio.ensure_future(ask(texts[i % 2], "ab"[i % 2], gone[i])) for i in range(4)]
        while r.snapshot().open < 5:
            await asyncio.sleep(0)
        gone[0].set()
        assert await tasks[0] == [], "the one who has gone is not answered"
        assert not any(task.done() for task in tasks[1:])
        model.free()
        for i in (1, 2, 3):
            start, end = await tasks[i]
            assert start["status"] == 200 and (b"x-request-id", b"same id") in start["headers"]
            assert b'"embedding":[%d.0,1.0]' % len(texts[i % 2]) in end["body"].replace(b" ", b"")
        assert await plug == [4.0, 1.0]

    asyncio.run(main())
    assert model.batches[0] == ["plug"] and sorted(model.batches[1]) == sorted(set(texts))
    lab.idle(r)
