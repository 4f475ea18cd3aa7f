"""The public face: the names, the tree of errors, and what importing relay does not do."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from typing import Any

import pytest

import relay
from relay import errors

NAMES = """
BATCH INTERACTIVE REALTIME
Batch CurrentBatch Limits Relay RelaySnapshot SharingSnapshot Spread Ticket Timing batched current_batch
Token TokenPool PoolSnapshot TierSnapshot TenantSnapshot HeldToken Left
Policy DynamicPriority StrictPriority Weighted RoundRobin Facts Retry RetryBudget
PureBackendWarning backend preprocess
RelayError
Refused Overloaded TooLarge Closed
Expired AcquireTimeout DeadlineExceeded RunTimeout
TokenError TokenRevoked StaleToken
ModelError BadOutput NonFiniteOutput LoadFailed CircuitOpen
RequestCancelled
"""


def test_public_names() -> None:
    assert set(relay.__all__) == set(NAMES.split())
    assert len(set(relay.__all__)) == len(relay.__all__)
    assert all(hasattr(relay, name) for name in relay.__all__)
    exported = {name for name, value in vars(relay).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert exported == set(relay.__all__)


def test_the_list_is_in_order() -> None:
    def rank(name: str) -> tuple[int, str]:
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert relay.__all__ == sorted(relay.__all__, key=rank)


def test_everything_public_is_documented() -> None:
    for name in relay.__all__:
        value: Any = getattr(relay, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name
    for kind in (relay.Relay, relay.Ticket, relay.TokenPool, relay.Batch, relay.Token):
        for name, member in vars(kind).items():
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert inspect.getdoc(getattr(kind, name)), f"{kind.__name__}.{name}"


def drawn() -> dict[str, tuple[str, int | None]]:
    """The tree in the docstring of `relay.errors`: each error's parent, and its status where one is given."""
    tree: dict[str, tuple[str, int | None]] = {}
    above: list[tuple[int, str]] = []
    assert errors.__doc__ is not None
    for indent, name, status in re.findall(r"^( +)([A-Z]\w+)\b *(\d{3})?", errors.__doc__, re.M):
        while above and above[-1][0] >= len(indent):
            above.pop()
        tree[name] = (above[-1][1] if above else "Exception", int(status) if status else None)
        above.append((len(indent), name))
    return tree


def test_the_errors_are_as_drawn() -> None:
    tree = drawn()
    defined = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, BaseException)
    }
    assert set(tree) == defined
    for name, (parent, status) in tree.items():
        kind = getattr(errors, name)
        assert kind.__bases__[0].__name__ == parent, name
        assert status in (None, kind.http_status), name
        assert getattr(relay, name) is kind
        made = kind("text", reason="why", retry_after=2.0)
        assert (str(made), made.reason, made.retry_after) == ("text", "why", 2.0)
        assert (kind().reason, kind().retry_after) == ("", None)
    assert issubclass(errors.TooLarge, ValueError) and issubclass(errors.Expired, TimeoutError)


IMPORT = """
import gc, os, sys, threading
environ, threads = dict(os.environ), threading.enumerate()
import relay, relay.testing
heavy = {"torch", "transformers", "tokenizers", "starlette", "uvicorn", "uvloop", "prometheus_client"}
print(sorted(heavy & set(sys.modules)), threading.enumerate() == threads, dict(os.environ) == environ, relay.backend)
r = relay.Relay(len)
p = relay.TokenPool(1)
print(threading.enumerate() == threads, sys.getswitchinterval())
"""


@pytest.mark.parametrize("side", ["pure", "native"])
def test_importing_starts_nothing(side: str) -> None:
    environ = {**os.environ, "RELAY_BACKEND": side}
    done = subprocess.run([sys.executable, "-c", IMPORT], env=environ, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == [f"[] True True {side}", "True 0.005"]


EXIT = """
import sys, threading, relay
entered = threading.Event()
def model(items):
    entered.set()
    threading.Event().wait(0.2 if sys.argv[1] == "short" else None)
    print("answered", flush=True)
    return items
r = relay.Relay(model, limits=relay.Limits(exit_grace_s=20 if sys.argv[1] == "short" else 0.1))
r.submit(1)
entered.wait()
r.submit(2)
"""


@pytest.mark.parametrize("how", ["short", "endless"])
def test_exit_waits_for_the_running_batch_but_not_for_ever(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", EXIT, how], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout == ("answered\n" if how == "short" else "")
