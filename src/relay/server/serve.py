"""`relay serve`: one model behind the HTTP API, as a process that starts, says where it is, and stops cleanly.

Owned by the main thread. The invariant: a signal stops accepting at once, answers what was accepted (for at most the
drain time), and ends with exit code 0.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from relay import Relay
from relay.cli_common import CommandFailed, count, load_embedder, positive
from relay.server.app import build_app
from relay.server.receipt import receipt_protocol
from relay.tuning import cores

KEEP_ALIVE_S = 75
"""Longer than clients and balancers keep an idle connection, so that it is not closed under their next request."""

EXAMPLES = """\
examples:
  relay serve
  relay serve --model ./my-model --name support-embeddings --port 9000
  curl http://127.0.0.1:8000/v1/embeddings -H 'content-type: application/json' -d '{"input": ["hello", "world"]}'

The API is OpenAI's: POST /v1/embeddings, GET /v1/models; GET /healthz and /readyz for orchestrators. There are no
keys: whoever can reach the port can use it. Ctrl-C or SIGTERM stops accepting, answers what was accepted, and exits
with 0.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's own arguments."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="port to listen on; 0 takes a free one (default: %(default)s)")
    add("--model", default="minilm", help="a model's name, or the folder it lies in (default: %(default)s)")
    add("--name", help="the name clients give as `model` (default: the model's own)")
    add(
        "--max-batch-size",
        type=positive,
        default=64,
        metavar="N",
        help="texts in one model call (default: %(default)s)",
    )
    add("--max-queue", type=positive, default=8192, metavar="N", help="texts admitted at once (default: %(default)s)")
    add(
        "--cache-mib",
        type=count,
        default=0,
        metavar="N",
        help="keep vectors for texts that come again, so many MiB of them; 0 keeps none (default: %(default)s)",
    )
    add("--max-body-mib", type=positive, default=16, metavar="N", help="largest request body (default: %(default)s)")
    add("--threads", type=positive, metavar="N", help="threads for the model (default: the cores there are, less one)")
    add(
        "--receipt-timeout",
        type=positive,
        default=30,
        metavar="S",
        help="seconds to receive a request (default: %(default)s)",
    )
    add(
        "--drain-timeout",
        type=positive,
        default=10,
        metavar="S",
        help="seconds to answer after a stop (default: %(default)s)",
    )
    add("--unready-when-full", action="store_true", help="let /readyz say 503 while the queue is full")
    add("--access-log", action="store_true", help="log each request to standard error")


class Server(uvicorn.Server):
    """uvicorn's server; tells when it listens.

    Args:
        config: uvicorn's.
        on_started: Called then, from the loop.
    """

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen."""
        await super().startup(sockets=sockets)
        if self.started:
            self._on_started()


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not yet listening.

    Raises:
        CommandFailed: It cannot be bound.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise CommandFailed(f"{host} is no address to listen on ({error.strerror}); choose one with --host") from error
    try:
        if sys.platform != "win32":  # where it would allow two servers on one port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise CommandFailed(
            f"cannot listen on {host} port {port} ({error.strerror}); stop what holds it, or choose another with --port"
        ) from error
    return sock


def make_server(
    app: Any,
    on_started: Callable[[], object],
    *,
    receipt_timeout: float = 30,
    drain_timeout: int = 10,
    access_log: bool = False,
) -> Server:
    """The uvicorn server for an application of `build_app`.

    Args:
        app: The application.
        on_started: Called, from the loop, when the server listens.
        receipt_timeout: Seconds to receive a request.
        drain_timeout: Seconds to answer what was accepted, once stopped.
        access_log: Whether to log each request.
    """
    config = uvicorn.Config(
        app,
        http=receipt_protocol(receipt_timeout),
        ws="none",
        lifespan="on",
        log_level=None if access_log else "warning",
        access_log=access_log,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=drain_timeout,
    )
    return Server(config, on_started)


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Returns:
        The exit code.

    Raises:
        CommandFailed: The address cannot be listened on.
    """
    with listen(args.host, args.port) as sock:  # before the model is loaded, which takes its time
        model, dimensions = load_embedder(args.model, args.threads or max(1, cores() - 1))
        name = args.name or Path(model.name).resolve().name
        url = _url(sock)
        relay: Relay[Any, Any] = Relay(
            model,
            name=name,
            max_batch_size=args.max_batch_size,
            max_queue=args.max_queue,
            cache_bytes=args.cache_mib << 20,
        )
        try:
            app = build_app(
                relay,
                model=name,
                dimensions=dimensions,
                max_body_bytes=args.max_body_mib << 20,
                unready_when_full=args.unready_when_full,
            )
            greeting = (
                f"relay serves {name} at {url}/v1 (Ctrl-C stops); try: curl {url}/v1/embeddings "
                """-H 'content-type: application/json' -d '{"input": "hello"}'"""
            )
            server = make_server(
                app,
                lambda: print(greeting, flush=True),
                receipt_timeout=args.receipt_timeout,
                drain_timeout=args.drain_timeout,
                access_log=args.access_log,
            )
            # uvicorn stops cleanly on these, then puts our handlers back and raises the signal once more: that one is
            # done with.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: None)
            server.run(sockets=[sock])
        finally:
            relay.close()
    return 0


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
