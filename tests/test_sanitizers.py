"""The native core under the thread and the address sanitizer: built anew for each, and run by many threads.

The parts that need no interpreter are run by plain C++ threads: those of the queue by `tests/native/stress.pyx`, those
of the pool by `stress_pool.pyx`. The pool as a whole, which never lets go of the GIL in the middle of a change, is run
by Python's threads and event loops: `parked.py`. That the sanitizers see is shown by planting faults.

The modules are loaded into an ordinary interpreter, with the sanitizer's runtime loaded before it. Only the core is
instrumented, not the interpreter; but the mutex and the condition of its GIL are calls that the runtime replaces, so
the thread sanitizer knows what the GIL puts in order, and reports what the core does without it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

REPO = Path(__file__).parents[1]
COMPILER = os.environ.get("CXX", "g++")
FLAGS = {"thread": "thread", "address": "address,undefined"}
RUNTIME = {"thread": "libtsan.so", "address": "libasan.so"}
REPORTS = ("WARNING: ThreadSanitizer", "ERROR: AddressSanitizer", "runtime error:")
# The unit tests of the core, and those of the package whose waits and leases are the core's. Left out are those that
# search schedules, `test_pool_schedules` and `test_pool_mutants`, which take minutes, most of it on the pure side; and
# `test_pool_machine`, whose examples take longer here than one test may, and are of the kind of `test_permits_machine`.
PARTS = {
    "queue": ("state", "arena", "heap", "timers", "dedup", "dedup_hash", "idcache", "batch", "histogram", "queue",
              "tickets"),
    "permits": ("permits", *(f"permits_{what}" for what in ("async", "leases", "lines", "lost", "machine", "turns"))),
    "habits": ("costmodel", "linger"),
    "cache": ("cache", "cache_threads"),
    "lanes": ("lanes", "gates", "asking", "relay", "engine_running"),
    "threads": ("core_threads",),
    "pool": ("pool", *(f"pool_{what}" for what in ("counts", "fairness", "faults", "late_holders", "limits", "loops",
                                                   "numbers", "policies", "races", "rows", "times", "work"))),
}  # fmt: skip
SIDES = "native or twins or both or made_by_no_pool"


def environment(**more: str) -> dict[str, str]:
    tools = Path(sys.executable).parent  # of a virtual environment that is not activated
    return {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}", **more}


def runtime(kind: str) -> str:
    """The sanitizer's own library."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no {COMPILER}")
    asked = [COMPILER, f"-print-file-name={RUNTIME[kind]}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_file():
        pytest.skip(f"{COMPILER} comes without {RUNTIME[kind]}")
    return found


@cache
def built(kind: str) -> Path:
    """The folder with the modules, built with the sanitizer; what is up to date is not built again."""
    spec = importlib.util.find_spec("cython_cmake")
    assert spec is not None and spec.origin is not None, "the tests need the package cython-cmake"
    folder = REPO / "build" / f"native-{kind}"
    folder.mkdir(parents=True, exist_ok=True)
    configure = [
        "cmake", "-S", str(REPO / "tests/native"), "-B", str(folder),
        *(["-G", "Ninja"] if shutil.which("ninja", path=environment()["PATH"]) else []),
        f"-DRELAY_SANITIZE={FLAGS[kind]}", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-g -O1",
        f"-DCMAKE_CXX_COMPILER={COMPILER}", f"-DPython_EXECUTABLE={sys.executable}",
        f"-DCMAKE_MODULE_PATH={Path(spec.origin).parent / 'cmake'}",
    ]  # fmt: skip
    for command in (configure, ["cmake", "--build", str(folder), "--target", "stress", "stress_pool", "broken"]):
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return folder


@cache
def fixed_addresses() -> tuple[str, ...]:
    """Turns address randomisation off where that is allowed: an older thread sanitizer stumbles over it."""
    prefix = ("setarch", "-R")
    try:
        return prefix if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0 else ()
    except FileNotFoundError:
        return ()


def sanitized(kind: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with the instrumented modules. Ends with status 66 where the sanitizer has reported anything."""
    options = environment(
        PYTHONPATH=str(built(kind)),
        PYTEST_ADDOPTS="",  # may name a plugin that PYTHONPATH no longer finds
        LD_PRELOAD=runtime(kind),
        TSAN_OPTIONS="exitcode=66",
        # The interpreter itself leaves memory to the system when it ends.
        ASAN_OPTIONS="exitcode=66:detect_leaks=0",
        UBSAN_OPTIONS="exitcode=66:halt_on_error=1:print_stacktrace=1",
        PYTHONMALLOC="malloc",  # so that the address sanitizer sees the bounds of Python's objects too
    )
    command = [*fixed_addresses(), sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=options, cwd=REPO / "tests")


def reported(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in (done.stdout + done.stderr).splitlines() if any(report in line for report in REPORTS)]


@pytest.mark.parametrize("kind", ["thread", "address"])
def test_stress(kind: str, seed: int) -> None:
    runtime(kind)
    done = sanitized(kind, "-c", f"import json, stress; print(json.dumps(stress.run(50_000, {seed})))")
    assert done.returncode == 0 and not reported(done), done.stdout + done.stderr
    served, merged, deferred, duels = json.loads(done.stdout)
    assert min(served, merged, duels) > 1000 and deferred >= 100  # everything met everything


@pytest.mark.parametrize(
    ("kind", "plant", "report"),
    [
        ("thread", "race", "WARNING: ThreadSanitizer: data race"),
        ("address", "overrun", "ERROR: AddressSanitizer"),
    ],
)
def test_the_sanitizer_sees_a_planted_fault(kind: str, plant: str, report: str) -> None:
    runtime(kind)
    done = sanitized(kind, "-c", f"import stress; stress.run(2000, 1, {plant!r})")
    assert done.returncode == 66 and report in done.stderr, done.stdout + done.stderr


def test_dedup_check_finds_what_is_broken() -> None:
    runtime("address")
    done = sanitized("address", "-c", "import json, broken; print(json.dumps(broken.dedup_checks()))")
    assert (done.stdout.strip(), done.returncode) == ("[0, 1, 2, 3, 4, 4]", 0), done.stderr


def test_shelf_check_finds_what_is_broken() -> None:
    runtime("address")
    done = sanitized("address", "-c", "import json, broken; print(json.dumps(broken.shelf_checks()))")
    assert (done.stdout.strip(), done.returncode) == ("[0, 1, 1, 1, 1, 2, 3, 4, 4]", 0), done.stderr


@pytest.mark.parametrize("parts", PARTS)
def test_unit_tests_under_the_address_sanitizer(parts: str) -> None:
    runtime("address")
    files = [f"test_{part}.py" for part in PARTS[parts]]
    options = ["-q", "-x", "--timeout=400", "-k", SIDES, "-m", "not long", "-p", "no:cacheprovider"]
    done = sanitized("address", "-m", "pytest", *options, *files)
    assert done.returncode == 0 and not reported(done), done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["thread", "address"])
@pytest.mark.parametrize("shared", [False, True], ids=["by-tier", "by-tenant"])
def test_a8_parked_waiters_without_python(kind: str, shared: bool, seed: int) -> None:
    runtime(kind)
    done = sanitized(
        kind, "-c", f"import json, stress_pool; print(json.dumps(stress_pool.run(2000, {seed}, {shared})))"
    )
    assert done.returncode == 0 and not reported(done), done.stdout + done.stderr
    seen = json.loads(done.stdout)
    assert min(seen["granted"], seen["timed_out"], seen["late"]) >= 100, seen  # how often depends on the other load


@pytest.mark.parametrize("kind", ["thread", "address"])
def test_a8_parked_waiters_of_the_whole_pool(kind: str, seed: int) -> None:
    """Threads and coroutines. `Permits` holds the GIL whenever it touches its memory, or the thread sanitizer would
    report it, and no wait object is touched after its end."""
    runtime(kind)
    done = sanitized(kind, "native/parked.py", "1000", str(seed))
    assert done.returncode == 0 and not reported(done), done.stdout + done.stderr
    seen = json.loads(done.stdout)
    assert min(seen["granted"], seen["timed out"], seen["cancelled"]) >= 100, seen
    assert min(seen["granted as its time ended"], seen["granted as it was cancelled"]) >= 20, seen


@pytest.mark.parametrize(
    ("kind", "plant", "report"),
    [
        ("thread", "race", "WARNING: ThreadSanitizer: data race"),
        ("thread", "early", "WARNING: ThreadSanitizer: heap-use-after-free"),
        ("address", "early", "ERROR: AddressSanitizer: heap-use-after-free"),
    ],
)
def test_a8_a_planted_fault_is_seen(kind: str, plant: str, report: str) -> None:
    runtime(kind)
    done = sanitized(kind, "-c", f"import stress_pool; stress_pool.run(500, 1, plant={plant!r})")
    assert done.returncode == 66 and report in done.stderr, done.stdout + done.stderr


def test_a8_what_is_done_without_the_gil_is_seen() -> None:
    runtime("thread")
    done = sanitized("thread", "native/parked.py", "200", "1", "race")
    assert done.returncode == 66 and "WARNING: ThreadSanitizer: data race" in done.stderr, done.stdout + done.stderr
    assert "hist_record" in done.stderr and "permits" in done.stderr
