"""What `install` gives a Starlette or FastAPI application: errors as answers, health, closing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket

from relay import errors
from relay.integrations.asgi import install, until_disconnect

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]


# Errors.


class Odd(errors.Overloaded):
    """A user's own error."""


ERRORS = [
    (errors.Overloaded("full", reason="queue_full", retry_after=0.2), 429, "queue_full", "1"),
    (Odd("odd", retry_after=1.01), 429, "", "2"),
    (errors.Closed("closed", retry_after=3), 503, "", "3"),
    (errors.Closed("closed", retry_after=float("inf")), 503, "", "86400"),
    (errors.Closed("closed", retry_after=-1), 503, "", "1"),
    (errors.TooLarge("large"), 413, "", None),
    (errors.AcquireTimeout("late"), 503, "", None),
    (errors.DeadlineExceeded("late"), 504, "", None),
    (errors.BadOutput("bad"), 500, "", None),
    (errors.RequestCancelled("gone"), 499, "", None),
]


@pytest.mark.parametrize(("error", "status", "reason", "retry_after"), ERRORS)
def test_errors_are_answers(
    error: errors.RelayError, status: int, reason: str, retry_after: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    def threaded(request: Request) -> PlainTextResponse:
        raise error

    async def looped(request: Request) -> PlainTextResponse:
        raise error

    app = Starlette(routes=[Route("/threaded", threaded), Route("/looped", looped)])
    install(app)
    with TestClient(app) as client, caplog.at_level(logging.ERROR):
        for path in ("/threaded", "/looped"):
            answer = client.get(path)
            assert answer.status_code == status
            expected = {"message": str(error), "type": type(error).__name__, "reason": reason}
            assert answer.json() == {"error": expected}
            assert answer.headers.get("retry-after") == retry_after
    assert len(caplog.records) == (2 if status == 500 else 0)


def test_h3_an_error_text_with_a_lone_surrogate() -> None:
    async def handler(request: Request) -> PlainTextResponse:
        raise errors.TooLarge("no \ud800, but \U0001f600\0")

    app = Starlette(routes=[Route("/", handler)])
    install(app)
    answer = TestClient(app).get("/")
    assert (answer.status_code, answer.json()["error"]["message"]) == (413, "no ?, but \U0001f600\0")


def test_a_websocket_that_is_refused() -> None:
    async def endpoint(socket: WebSocket) -> None:
        raise errors.Overloaded("full", retry_after=2)

    app = Starlette(routes=[WebSocketRoute("/ws", endpoint)])
    install(app)
    with (
        TestClient(app) as client,
        pytest.raises(WebSocketDenialResponse) as refused,
        client.websocket_connect("/ws"),
    ):
        pass
    assert (refused.value.status_code, refused.value.headers["retry-after"]) == (429, "2")


def test_an_app_keeps_its_own_handlers() -> None:
    async def handler(request: Request) -> PlainTextResponse:
        raise errors.Closed("closed") if request.query_params else ValueError("own")

    app = Starlette(
        routes=[Route("/", handler)],
        exception_handlers={
            errors.RelayError: lambda request, error: PlainTextResponse("mine", 418),
            ValueError: lambda request, error: PlainTextResponse("mine too", 419),
        },
    )
    install(app)
    assert TestClient(app).get("/?x=1").status_code == 418
    assert TestClient(app).get("/").status_code == 419


def test_def_handlers_wait_on_threads(lab: Lab) -> None:
    pool = lab.TokenPool(1)

    def handler(request: Request) -> PlainTextResponse:
        with pool.lease(timeout=0):
            return PlainTextResponse("served")

    app = Starlette(routes=[Route("/", handler)])
    install(app, pools=[pool])
    with TestClient(app) as client:
        assert client.get("/").text == "served"
        with pool.lease():
            answer = client.get("/")
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "AcquireTimeout")


# Health.


def healths(client: TestClient) -> tuple[int, int]:
    return client.get("/healthz").status_code, client.get("/readyz").status_code


@pytest.mark.parametrize("unready_when_full", [False, True])
def test_g2_a_full_queue(lab: Lab, unready_when_full: bool) -> None:
    model = lab.model(held=True)
    r, pool = lab.start(model, max_queue=2), lab.TokenPool(1, max_waiting=1, name="gpu")
    app = Starlette()
    install(app, [r], [pool], unready_when_full=unready_when_full)
    full = (200, 503) if unready_when_full else (200, 200)
    client = TestClient(app)
    assert healths(client) == (200, 200)
    tickets = lab.fill(r)
    assert healths(client) == full
    if unready_when_full:
        assert client.get("/readyz").json() == {"status": "not ready", "why": {"relay": "full"}}
    model.free()
    for ticket in tickets:
        ticket.result(30)
    assert healths(client) == (200, 200)
    with pool.lease():
        assert healths(client) == (200, 200)  # the next one may wait
        call = lab.call(pool.run, int)
        lab.in_line(pool, 1)
        assert healths(client) == full
        if unready_when_full:
            assert client.get("/readyz").json()["why"] == {"gpu": "full"}
    call.result()
    assert healths(client) == (200, 200)
    pool.close()
    lab.idle(r)


def test_a_pool_in_which_nobody_may_wait_is_not_full_while_a_token_is_free(lab: Lab) -> None:
    pool = lab.TokenPool(1, max_waiting=0)
    app = Starlette()
    install(app, pools=[pool], unready_when_full=True)
    client = TestClient(app)
    assert healths(client) == (200, 200)
    with pool.lease():
        assert healths(client) == (200, 503)
    pool.close()


def test_what_is_closed_is_not_ready_and_what_is_dead_is_not_alive(lab: Lab) -> None:
    r, pool = lab.start(lab.model(), name="embedder"), lab.TokenPool(1, name="gpu")
    app = Starlette()
    install(app, [r], [pool])
    client = TestClient(app)
    assert client.get("/readyz").json() == {"status": "ok", "why": {}}
    pool.drain(0)
    assert healths(client) == (200, 503)
    r.drain(30)
    assert healths(client) == (200, 503)
    assert client.get("/readyz").json() == {"status": "not ready", "why": {"embedder": "not ready", "gpu": "closed"}}
    r.close()
    assert healths(client) == (503, 503)
    assert client.get("/healthz").json() == {"status": "unhealthy", "why": {"embedder": "unhealthy"}}
    pool.close()


def test_paths(lab: Lab) -> None:
    app = Starlette(routes=[Mount("/", Starlette())])  # which has every path
    install(app, healthz="/live", readyz="/internal/ready")
    client = TestClient(app)
    assert client.get("/live").status_code == client.get("/internal/ready").status_code == 200
    assert client.head("/live").status_code == 200
    assert client.get("/healthz").status_code == 404


# Closing.


class Part:
    """Stands for a relay or a pool."""

    def __init__(self, name: str, events: list[str], error: Exception | None = None) -> None:
        self.name = name
        self._events = events
        self._error = error

    def close(self) -> None:
        self._events.append(self.name)
        if self._error is not None:
            raise self._error

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.close()


def make_lifespan(events: list[str]) -> Any:
    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        events.append("start")
        yield {"weights": 3}
        events.append("stop")

    return lifespan


@pytest.mark.parametrize("kind", ["starlette", "fastapi"])
def test_closing_comes_after_the_apps_own_end(kind: str) -> None:
    events: list[str] = []
    if kind == "fastapi":
        app = pytest.importorskip("fastapi", reason="needs the extra test").FastAPI(lifespan=make_lifespan(events))
    else:
        app = Starlette(lifespan=make_lifespan(events))

    async def state(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(request.state.weights))

    app.add_route("/state", state)
    relays: list[Any] = [Part("r1", events), Part("r2", events)]
    pools: list[Any] = [Part("p1", events), Part("p2", events)]
    install(app, relays, pools)
    with TestClient(app) as client:
        assert events == ["start"]
        assert client.get("/state").text == "3"
    assert events == ["start", "stop", "r1", "r2", "p1", "p2"]


def test_all_are_closed_even_if_one_raises() -> None:
    events: list[str] = []
    first, second = RuntimeError("r1"), RuntimeError("p1")
    relays: list[Any] = [Part("r1", events, first), Part("r2", events)]
    pools: list[Any] = [Part("p1", events, second), Part("p2", events)]
    app = Starlette(lifespan=make_lifespan(events))
    install(app, relays, pools)
    with pytest.raises(RuntimeError) as caught, TestClient(app):
        pass
    assert caught.value is second
    assert events == ["start", "stop", "r1", "r2", "p1", "p2"]


def test_all_are_closed_if_the_app_does_not_start(lab: Lab) -> None:
    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        raise RuntimeError("no port")
        yield

    r, pool = lab.start(lab.model()), lab.TokenPool(1)
    app = Starlette(lifespan=lifespan)
    install(app, [r], [pool])
    with pytest.raises(RuntimeError, match="no port"), TestClient(app):
        pass
    assert pool.closed and not r.ready


def test_the_end_answers_what_runs_and_refuses_the_rest(lab: Lab) -> None:
    r, pool = lab.start(lab.model()), lab.TokenPool(1)

    async def handler(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await until_disconnect(request, r.run_async(request.query_params["x"])))

    app = Starlette(routes=[Route("/", handler)])
    install(app, [r], [pool])
    with TestClient(app) as client:
        assert client.get("/?x=hello").text == "hello"
    assert pool.closed and not r.ready
    answer = TestClient(app).get("/?x=late")
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Closed")


def test_installing_too_late() -> None:
    app = Starlette()
    TestClient(app).get("/")
    with pytest.raises(RuntimeError, match="where the app is made"):
        install(app)


def test_without_starlette(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Starlette()
    monkeypatch.setitem(sys.modules, "starlette.responses", None)
    with pytest.raises(ImportError, match=r"relay-inference\[serve\]"):
        install(app)
