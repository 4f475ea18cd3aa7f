"""Clients that leave while a handler waits, in Starlette and FastAPI applications.

Clients are played by hand (`receive` and `send`), so that it is known in which turn of the loop one leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

from pool_kit import Loops, turns
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from relay import errors
from relay.integrations.asgi import install, until_disconnect

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


class Client:
    """One request, its body in parts; the client leaves when told."""

    def __init__(self, path: str = "/", *parts: bytes, whole: bool = True) -> None:
        self.sent: list[Any] = []
        self._parts = list(parts) or [b""]
        self._whole = whole
        self._gone = asyncio.Event()
        self.scope: dict[str, Any] = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
            "raw_path": path.encode(), "root_path": "", "query_string": b"", "server": ("127.0.0.1", 80),
            "headers": [(b"content-type", b"application/json")],
        }  # fmt: skip

    def request(self) -> Request:
        return Request(self.scope, self.receive)

    def leave(self) -> None:
        self._gone.set()

    async def receive(self) -> dict[str, Any]:
        if self._parts:
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts) or not self._whole}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])


async def ends_as(coroutine: Awaitable[Any]) -> Any:
    """What it returns, or the class of what it raises. The task must come out of it as if nobody had cancelled it."""
    task = asyncio.current_task()
    assert task is not None
    try:
        outcome = await coroutine
    except Exception as error:
        outcome = type(error)
    assert task.cancelling() == 0
    await turns(3)  # a cancel that was left over would be felt here
    return outcome


@pytest.fixture
def run(lab: Lab, loops: Loops) -> Iterator[Callable[[Any], Any]]:
    """Runs a coroutine; no task may be left, and none may have gone unheard."""
    heard: list[Any] = []

    async def main(coroutine: Any) -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
        result = await coroutine
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    def runner(coroutine: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a coroutine that nobody awaited
            result = lab.run(loops, main(coroutine))
            gc.collect()
        return result

    yield runner
    assert not heard


@pytest.fixture
def pool(lab: Lab) -> Iterator[Any]:
    pool = lab.TokenPool(1, clock=lab.clock())
    yield pool
    lab.package.testing.assert_idle(pool)
    pool.close()


# A client that leaves.


def test_who_leaves_is_out_of_the_line_at_once(pool: Any, run: Any) -> None:
    async def main() -> None:
        held = pool.acquire()
        clients = [Client() for _ in range(3)]
        waits = [asyncio.ensure_future(until_disconnect(c.request(), pool.acquire_async())) for c in clients]
        await turns(5)
        assert pool.snapshot().waiting == 3
        clients[0].leave()
        await turns(5)
        assert pool.snapshot().waiting == 2
        assert await ends_as(waits[0]) is errors.RequestCancelled
        held.release()
        (await waits[1]).release()
        (await waits[2]).release()

    run(main())


@pytest.mark.parametrize("what", ["leaves", "is cancelled"])
def test_no_token_is_lost_in_whatever_turn_its_waiter_goes(pool: Any, run: Any, what: str) -> None:
    async def handler(client: Client) -> str:
        token = await until_disconnect(client.request(), pool.acquire_async())
        with token:
            await turns(20)
        return "served"

    async def goes(offset: int) -> Any:
        """The first in line goes `offset` turns after the token is released."""
        held = pool.acquire()
        first, second = Client(), Client()
        tasks = [asyncio.ensure_future(handler(first)), asyncio.ensure_future(handler(second))]
        await turns(5)
        for turn in range(-8, 8):
            if turn == 0:
                held.release()
            if turn == offset and what == "leaves":
                first.leave()
            elif turn == offset:
                tasks[0].cancel()
            await turns(1)
        outcome, other = await asyncio.gather(*tasks, return_exceptions=True)
        assert other == "served"
        pool.check()
        assert (pool.snapshot().held, pool.snapshot().waiting) == (0, 0)
        return outcome if outcome == "served" else type(outcome)

    async def main() -> None:
        outcomes = [await goes(offset) for offset in range(-7, 8)]
        if what == "leaves":
            assert outcomes[0] is errors.RequestCancelled and outcomes[-1] == "served"
            assert set(outcomes) == {errors.RequestCancelled, "served"}
        else:
            assert set(outcomes) == {asyncio.CancelledError}

    run(main())


def test_a_result_and_a_leaving_client_in_any_order(run: Any) -> None:
    async def leaves(offset: int) -> Any:
        """The client leaves `offset` turns after the result is there."""
        client, future = Client(), asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(ends_as(until_disconnect(client.request(), future)))
        await turns(5)
        for turn in range(-7, 7):
            if turn == 0 and not future.done():
                future.set_result("result")
            if turn == offset:
                client.leave()
            await turns(1)
        return await task

    async def main() -> None:
        outcomes = {offset: await leaves(offset) for offset in range(-6, 7)}
        assert {outcomes[offset] for offset in range(7)} == {"result"}
        assert set(outcomes.values()) == {"result", errors.RequestCancelled}

    run(main())


def test_a_time_limit_around_it_is_still_one(pool: Any, run: Any) -> None:
    """Whoever cancels the handler, in the same turn as a token comes, has its cancel."""

    async def handler(limit: asyncio.Timeout) -> None:
        async with limit:
            with await until_disconnect(Client().request(), pool.acquire_async()):
                await turns(20)

    async def main() -> None:
        for offset in range(8):
            held, limit = pool.acquire(), asyncio.timeout(None)
            task = asyncio.ensure_future(ends_as(handler(limit)))
            await turns(5)
            held.release()
            await turns(offset)
            limit.reschedule(0)
            assert await task is TimeoutError

    run(main())


def test_what_it_waits_for_has_ended_before_it_raises(run: Any) -> None:
    events: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await turns(10)
            events.append("cleaned up")

    async def handler(client: Client, awaitable: Awaitable[Any]) -> None:
        try:
            await until_disconnect(client.request(), awaitable)
        finally:
            events.append("raised")

    async def main() -> None:
        for make in (work, lambda: asyncio.ensure_future(work()), lambda: asyncio.gather(work())):
            for end in ("leave", "cancel", "cancel twice"):
                client = Client()
                task = asyncio.ensure_future(handler(client, make()))
                await turns(5)
                if end == "leave":
                    client.leave()
                else:
                    task.cancel()
                expected = errors.RequestCancelled if end == "leave" else asyncio.CancelledError
                if end == "cancel twice":
                    events.append("cleaned up")  # the second one cuts that short
                    await turns(3)
                    task.cancel()
                with pytest.raises(expected):
                    await task
                assert events == ["cleaned up", "raised"]
                events.clear()

    run(main())


def test_results_and_errors_come_through_as_they_are(run: Any) -> None:
    error = KeyError("own")

    async def work(outcome: Any) -> Any:
        await turns(2)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "all the same"

    async def main() -> None:
        outcome = object()
        assert await until_disconnect(Client().request(), work(outcome)) is outcome
        with pytest.raises(KeyError) as caught:
            await until_disconnect(Client().request(), work(error))
        assert caught.value is error
        with pytest.raises(errors.AcquireTimeout):
            await until_disconnect(Client().request(), work(errors.AcquireTimeout("late")))
        with pytest.raises(asyncio.CancelledError):
            await until_disconnect(Client().request(), work(asyncio.CancelledError()))
        client = Client()
        asyncio.get_running_loop().call_soon(client.leave)
        assert await ends_as(until_disconnect(client.request(), stubborn())) == "all the same"
        with pytest.raises(TypeError):
            await until_disconnect(Client().request(), 3)  # type: ignore[arg-type]

    run(main())


def test_a_client_that_has_left_before(run: Any, pool: Any) -> None:
    async def main() -> None:
        client = Client()
        client.leave()
        with pool.acquire():
            assert await ends_as(until_disconnect(client.request(), pool.acquire_async())) is errors.RequestCancelled

    run(main())


def test_a_broken_receive_leaves_the_work_alone(lab: Lab, loops: Loops) -> None:
    async def receive() -> Any:
        raise OSError("broken")

    async def work() -> str:
        await turns(5)
        return "done"

    async def main() -> str:
        heard: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["exception"]))
        request = Request(Client().scope, receive)
        request._body = b"read before"
        assert await until_disconnect(request, work()) == "done"
        gc.collect()
        assert [str(error) for error in heard] == ["broken"]  # it is not hidden either
        return "done"

    assert lab.run(loops, main()) == "done"


def test_a_receive_that_tells_of_the_client_when_it_is_cancelled(run: Any) -> None:
    async def receive() -> Any:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def work() -> str:
        await turns(5)
        return "done"

    async def main() -> None:
        request = Request(Client().scope, receive)
        request._body = b"read before"
        assert await ends_as(until_disconnect(request, work())) == "done"

    run(main())


# The body.


@pytest.mark.parametrize("before", ["unread", "read", "streamed"])
def test_the_body_is_not_swallowed(run: Any, before: str) -> None:
    async def main() -> None:
        client = Client("/", b"one ", b"two ", b"three")
        request = client.request()
        if before == "read":
            await request.body()
        elif before == "streamed":
            assert [part async for part in request.stream()] == [b"one ", b"two ", b"three", b""]

        async def work() -> bytes:
            await turns(5)
            return b"" if before == "streamed" else await request.body()

        body = await until_disconnect(request, work())
        assert body == (b"" if before == "streamed" else b"one two three")
        if before != "streamed":
            assert await request.body() == b"one two three"
        client.leave()
        assert await ends_as(until_disconnect(request, asyncio.Event().wait())) is errors.RequestCancelled

    run(main())


@pytest.mark.parametrize("kind", ["coroutine", "task", "ticket"])
@pytest.mark.parametrize("what", ["leaves", "is cancelled"])
def test_an_end_while_the_body_is_received(lab: Lab, run: Any, kind: str, what: str) -> None:
    model = lab.model(held=True)
    r = lab.start(model)

    async def main() -> None:
        plug = r.submit("plug")
        model.wait_until_running()
        client = Client("/", b"the first part", whole=False)
        ticket = r.submit("item")
        work = {"coroutine": r.run_async("item"), "ticket": ticket}
        work["task"] = asyncio.ensure_future(asyncio.Event().wait())
        task = asyncio.ensure_future(until_disconnect(client.request(), work[kind]))
        await turns(5)
        if what == "leaves":
            client.leave()
        else:
            task.cancel()
        with pytest.raises(errors.RequestCancelled if what == "leaves" else asyncio.CancelledError):
            await task
        assert ticket.done() is (kind == "ticket")
        if kind == "coroutine":
            with pytest.raises(RuntimeError, match="already awaited"):
                work["coroutine"].send(None)
        work["coroutine"].close()
        await turns(2)
        assert work["task"].cancelled() is (kind == "task")
        work["task"].cancel()
        await turns(2)
        ticket.cancel()
        model.free()
        await plug

    run(main())
    lab.idle(r)
    assert model.batches == [["plug"]]


def test_a_ticket_is_cancelled_too(lab: Lab, run: Any) -> None:
    model = lab.model(held=True)
    r = lab.start(model)

    async def main() -> None:
        plug = r.submit("plug")
        model.wait_until_running()
        client = Client()
        for make in (r.submit, r.run_async, lambda item: r.submit_many([item])):
            task = asyncio.ensure_future(ends_as(until_disconnect(client.request(), make("item"))))
            await turns(5)
            assert r.snapshot().open > 1
            client.leave()
            assert await task is errors.RequestCancelled
            assert r.snapshot().open == 1
            client = Client()
        model.free()
        assert await until_disconnect(client.request(), r.submit("other")) == "other"
        assert await plug == "plug"

    run(main())
    lab.idle(r)
    assert ["item"] not in model.batches


# In applications.


async def wait_for_token(request: Request) -> PlainTextResponse:
    with await until_disconnect(request, request.app.state.pool.acquire_async()):
        return PlainTextResponse("served")


def starlette_app() -> Starlette:
    return Starlette(routes=[Route("/wait", wait_for_token, methods=["POST"])])


def app_behind_middleware() -> Starlette:
    async def passing(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    app = starlette_app()
    app.add_middleware(BaseHTTPMiddleware, dispatch=passing)
    return app


def fastapi_app() -> Starlette:
    fastapi = pytest.importorskip("fastapi", reason="needs the extra test")
    app: Starlette = fastapi.FastAPI()

    async def wait(request: Request, body: dict[str, Any]) -> str:
        assert body == {}
        with await until_disconnect(request, app.state.pool.acquire_async()):
            return "served"

    app.post("/wait")(wait)  # type: ignore[attr-defined]
    return app


APPS = [starlette_app, app_behind_middleware, fastapi_app]


@pytest.mark.parametrize("make", APPS)
def test_a5_five_leave_and_the_sixth_is_served(lab: Lab, run: Any, make: Callable[[], Starlette]) -> None:
    pool = lab.TokenPool(1, max_waiting=5)
    app = make()
    app.state.pool = pool
    install(app, pools=[pool])

    async def main() -> None:
        held = pool.acquire()
        clients = [Client("/wait", b"{}") for _ in range(6)]
        calls = [asyncio.ensure_future(app(c.scope, c.receive, c.send)) for c in clients]
        await calls[5]
        assert clients[5].status == 429  # one too many
        assert pool.snapshot().waiting == 5
        for client in clients:
            client.leave()
        await asyncio.gather(*calls[:5])
        assert pool.snapshot().waiting == 0
        assert {client.status for client in clients[:5] if client.sent} <= {499}
        held.release()
        last = Client("/wait", b"{}")
        await app(last.scope, last.receive, last.send)
        assert last.status == 200

    run(main())
    lab.package.testing.assert_idle(pool)
    pool.close()


@pytest.mark.parametrize("make", APPS)
def test_over_a_socket(lab: Lab, make: Callable[[], Starlette]) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    pytest.importorskip("msgspec", reason="needs the extra serve")
    from relay.server.serve import listen, make_server

    pool = lab.TokenPool(1)
    app = make()
    app.state.pool = pool
    install(app, pools=[pool])
    listening = threading.Event()
    server = make_server(app, listening.set)
    with listen("127.0.0.1", 0) as sock:
        thread = lab.run_thread(lambda: server.run(sockets=[sock]))
        assert listening.wait(30)
        held = pool.acquire()
        connections = [http.client.HTTPConnection("127.0.0.1", sock.getsockname()[1], timeout=30) for _ in range(3)]
        for connection in connections:
            connection.request("POST", "/wait", b"{}", {"content-type": "application/json"})
        lab.in_line(pool, 3)
        connections[0].close()
        connections[1].close()
        lab.in_line(pool, 1)
        held.release()
        assert connections[2].getresponse().status == 200
        connections[2].close()
        server.should_exit = True
        thread.join(30)
    assert pool.closed
    lab.package.testing.assert_idle(pool)
