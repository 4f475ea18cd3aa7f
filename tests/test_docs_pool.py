"""What docs/pool.md shows runs, as it stands there, on either side of the core."""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pool_kit import turns

import relay.integrations.asgi  # noqa: F401  # loaded before the page's `import relay` means another side

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

_pages = itertools.count()
PAGE = (Path(__file__).parents[1] / "docs" / "pool.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FIRST, FASTAPI, THREADS, CELERY = "with gpu.lease(relay.REALTIME", "FastAPI()", "ThreadPoolExecutor", "Celery("

Names = dict[str, Any]


@pytest.fixture
def page(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Names]]:
    """Runs the block that holds a word; its pool must be idle in the end."""
    ran: list[Names] = []

    def run(word: str) -> Names:
        (block,) = [block for block in BLOCKS if word in block]
        names: Names = {"__name__": f"page{next(_pages)}"}  # celery knows tasks by their module's name
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "relay", lab.package)
            exec(compile(block, "docs/pool.md", "exec"), names)  # noqa: S102
        assert type(names["gpu"]) is lab.TokenPool
        ran.append({"gpu": names["gpu"]})
        return names

    yield run
    for names in ran:
        lab.testing.assert_idle(names["gpu"])
        names["gpu"].close()


class Client:
    """One request, played by hand so that it is known when the client leaves."""

    def __init__(self, app: Any, path: str, text: str = "token") -> None:
        self.sent: list[Any] = []
        self._gone = asyncio.Event()
        self._read = False
        scope = {
            "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path, "root_path": "",
            "raw_path": path.encode(), "query_string": f"text={text}".encode(), "headers": [],
            "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
        }  # fmt: skip
        self.call = asyncio.ensure_future(app(scope, self._receive, self._send))

    def leave(self) -> None:
        self._gone.set()

    async def answer(self) -> tuple[int, bytes]:
        await self.call
        return self.sent[0]["status"], b"".join(part.get("body", b"") for part in self.sent[1:])

    async def _receive(self) -> dict[str, Any]:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop go round until other threads have brought something about."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError("it did not come about")


class Held:
    """Work that goes on until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.texts: list[str] = []

    def __call__(self, text: str) -> list[float]:
        self.texts.append(text)
        assert self.go.wait(30)
        return [1.0]


# The page.


def test_five_minutes() -> None:
    assert len(PAGE.splitlines()) <= 150 and len(PAGE.split()) <= 1200
    assert len(BLOCKS) == 4 and all(sum(word in b for b in BLOCKS) == 1 for word in (FIRST, FASTAPI, THREADS, CELERY))


def test_what_the_page_names_is_there(lab: Lab) -> None:
    """Methods, arguments and errors that stand in the table and the text."""
    pool = lab.pool(1)
    table = "\n".join(line for line in PAGE.splitlines() if line.startswith("| "))
    for name in re.findall(r"`@?(\w+)(?:\([^`]*\))?`", table):
        assert name[0].isupper() or hasattr(pool, name) or name in ("grace", "timeout"), name
    for name in re.findall(r"relay\.([A-Z]\w+)", PAGE) + re.findall(r"`([A-Z]\w+)(?:\(.*?\))?`", PAGE):
        assert hasattr(lab.package, name) or name == "ResourceWarning", name
    for tier, allowance in (("REALTIME", 0.05), ("INTERACTIVE", 0.5), ("BATCH", 10)):
        level = getattr(lab, tier)
        assert f"`{tier}` ({level})" in PAGE and lab.DynamicPriority().allowance_ns[level] == allowance * 1e9
    assert "0.05, 0.5 and 10 s" in PAGE and lab.DynamicPriority().overdue_every == 8


def test_the_first_block(page: Callable[[str], Names]) -> None:
    assert page(FIRST)["gpu"].granted == 1


# FastAPI.


def test_fastapi_answers(page: Callable[[str], Names]) -> None:
    from fastapi.testclient import TestClient

    names = page(FASTAPI)
    gpu = names["gpu"]
    with TestClient(names["app"]) as client:
        for path in ("/embed", "/bulk"):
            answer = client.get(path, params={"text": "token"})
            assert (answer.status_code, answer.json()) == (200, [5.0])
        assert gpu.granted == 2 and gpu.held == 0
        for path in ("/healthz", "/readyz"):
            assert (client.get(path).status_code, client.get(path).json()["status"]) == (200, "ok")
        tokens = [gpu.acquire(0), gpu.acquire(0)]
        answer = client.get("/embed", params={"text": "token"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "AcquireTimeout")
        for token in tokens:
            token.release()
        assert client.get("/embed").status_code == 422 and gpu.held == 0
    assert gpu.closed
    assert TestClient(names["app"]).get("/readyz").status_code == 503
    answer = TestClient(names["app"]).get("/embed", params={"text": "token"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Closed")


@pytest.mark.parametrize("path", ["/embed", "/bulk"])
def test_fastapi_refuses(lab: Lab, page: Callable[[str], Names], path: str) -> None:
    """429, and when to come back, by the rate at which tokens came back lately."""
    clock = lab.clock()
    names = page(FASTAPI)
    names["gpu"] = gpu = lab.pool(1, max_waiting=1, clock=clock)

    async def main() -> None:
        token = gpu.acquire()
        for _ in range(3):
            line = asyncio.ensure_future(gpu.acquire_async())
            await turns()
            clock.advance(2.5)
            token.release()
            token = await line
        line = asyncio.ensure_future(gpu.acquire_async())
        await turns()
        client = Client(names["app"], path)
        status, body = await client.answer()
        assert status == 429 and b"queue_full" in body
        after = int(dict(client.sent[0]["headers"])[b"retry-after"])
        assert after == {"/embed": 3, "/bulk": 5}[path], "bulk would wait for the one in line as well"
        token.release()
        (await line).release()

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/embed", "/bulk"])
def test_fastapi_clients_that_leave_while_they_wait(lab: Lab, page: Callable[[str], Names], path: str) -> None:
    names = page(FASTAPI)
    names["gpu"] = gpu = lab.pool(1, clock=lab.clock())
    app = names["app"]

    async def main() -> None:
        token = gpu.acquire(0)
        clients = []
        for index in range(3):
            clients.append(Client(app, path, "x" * (index + 1)))
            await until(lambda: gpu.waiting == len(clients))  # noqa: B023
        clients[0].leave()
        clients[1].leave()
        if path == "/embed":
            await until(lambda: gpu.waiting == 1)
            assert [(await client.answer())[0] for client in clients[:2]] == [499, 499]
        else:
            await turns(10)
            assert gpu.waiting == 3, "a def handler is not told"
        token.release()
        assert await clients[2].answer() == (200, b"[3.0]")
        await asyncio.gather(*(client.call for client in clients))
        assert (gpu.held, gpu.waiting) == (0, 0) and gpu.granted == (2 if path == "/embed" else 4)
        assert await Client(app, path).answer() == (200, b"[5.0]")

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/embed", "/bulk"])
def test_fastapi_clients_that_leave_while_they_are_served(lab: Lab, page: Callable[[str], Names], path: str) -> None:
    names = page(FASTAPI)
    names["embed"] = held = Held()
    names["gpu"] = gpu = lab.pool(1, clock=lab.clock())
    app = names["app"]

    async def main() -> None:
        first = Client(app, path, "first")
        await until(lambda: held.texts == ["first"])
        second = Client(app, path, "second")
        await until(lambda: gpu.waiting == 1)
        first.leave()
        if path == "/embed":
            assert (await first.answer())[0] == 499
        await turns(10)
        assert held.texts == ["first"] and (gpu.held, gpu.waiting) == (1, 1), "it is still computing"
        held.go.set()
        assert await second.answer() == (200, b"[1.0]")
        await first.call
        assert held.texts == ["first", "second"] and gpu.held == 0

    asyncio.run(main())


# Threads.


def test_threads(page: Callable[[str], Names]) -> None:
    names = page(THREADS)
    gpu = names["gpu"]
    assert names["squares"] == [n * n for n in range(100)] and gpu.granted == 100

    class Number:
        def __mul__(self, other: object) -> int:
            together.wait(30)  # two are let in
            return gpu.held

    together = threading.Barrier(2)
    with names["concurrent"].futures.ThreadPoolExecutor(16) as threads:
        assert set(threads.map(names["work"], [Number() for _ in range(20)])) <= {1, 2}


# Celery.


@pytest.fixture
def worker() -> Iterator[Callable[[Any], Any]]:
    """Runs celery's own worker for an app, on threads of this process."""
    from celery import signals
    from celery.contrib.testing.worker import start_worker

    def leave_logging_alone(**_: object) -> None:
        pass

    @contextmanager
    def working(app: Any) -> Iterator[None]:
        with start_worker(app, pool="threads", concurrency=4, perform_ping_check=False) as running:
            yield
        running.pool.executor.shutdown()

    signals.setup_logging.connect(leave_logging_alone)
    yield working
    signals.setup_logging.disconnect(leave_logging_alone)


def test_celery(lab: Lab, page: Callable[[str], Names], worker: Callable[[Any], Any]) -> None:
    clock = lab.clock()
    names = page(CELERY)
    gpu, embed = names["gpu"], names["embed"]
    with worker(names["app"]):
        assert embed.delay("token").get(timeout=30) == 5
        tokens = [gpu.acquire(), gpu.acquire()]
        results = [embed.delay("x" * length) for length in range(3)]
        lab.in_line(gpu, 3)
        assert gpu.snapshot().tenants["celery"].waiting == 3
        for token in tokens:
            token.release()
        assert [result.get(timeout=30) for result in results] == [0, 1, 2]
        assert gpu.granted == 6

        # One that finds too many in line, and one that waits for too long, come back later.
        names["gpu"] = gpu = lab.pool(1, max_waiting=1, clock=clock)
        token = gpu.acquire()
        late = embed.delay("late")
        lab.in_line(gpu, 1)
        clock.wait_for_sleepers(1)
        refused = embed.delay("refused")
        lab.wait_until(lambda: gpu.snapshot().refused == 1)
        clock.advance(30)
        lab.wait_until(lambda: gpu.snapshot().timed_out == 1)
        lab.in_line(gpu, 1)
        token.release()
        assert (late.get(timeout=30), refused.get(timeout=30)) == (4, 7)
        assert gpu.held == 0
