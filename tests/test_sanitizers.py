"""The native core under the thread and the address sanitizer: built anew for each, and run by plain C++ threads.

What runs is `tests/native/stress.pyx`; that the sanitizers see is shown by planting a race and an overrun. The modules
are loaded into an ordinary interpreter, with the sanitizer's runtime loaded before it. Only the loops that run without
the interpreter are instrumented, and only they need be: that they stay free of it is a rule of the core.
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
PARTS = ("state", "arena", "heap", "timers", "dedup", "dedup_hash", "batch")


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
    for command in (configure, ["cmake", "--build", str(folder), "--target", "stress", "broken"]):
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


def test_unit_tests_under_the_address_sanitizer() -> None:
    runtime("address")
    files = [f"test_{part}.py" for part in PARTS]
    options = ["-q", "-x", "-k", "native or twins", "-m", "not long", "-p", "no:cacheprovider"]
    done = sanitized("address", "-m", "pytest", *options, *(file for file in files if (REPO / "tests" / file).exists()))
    assert done.returncode == 0 and not reported(done), done.stdout + done.stderr
