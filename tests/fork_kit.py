"""Children of this process, and locks that are held as it forks."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

LIMIT_S = 2


def in_child(function: Callable[..., object], *args: Any) -> None:
    """Fork, and run a function in the child, which has 2 s to come to its end."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_child(write, function, args)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child {'hung' if os.WIFSIGNALED(status) else 'failed'}:\n{said}"


def _be_child(write: int, function: Callable[..., object], args: Sequence[Any]) -> NoReturn:
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, file=write, chain=True)  # says where it hangs, and ends it
        signal.alarm(LIMIT_S)
        function(*args)
        os._exit(0)
    except BaseException:
        os.write(write, traceback.format_exc().encode())
    finally:
        os._exit(1)


@contextmanager
def held_elsewhere(*locks: Any) -> Iterator[None]:
    """All locks are held by another thread for the length of the block."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            taken.set()
            done.wait()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert taken.wait(30)
    try:
        yield
    finally:
        done.set()
        thread.join(30)
