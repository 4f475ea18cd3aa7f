"""The choice of a side: what is installed, what RELAY_BACKEND forces; a broken extension is never an absent one.

Each case runs in an interpreter of its own, on a copy of the installed package with extensions taken away or spoilt.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import relay
from relay import _backend

REPORT = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s", stream=sys.stdout)
import relay._backend as b
print(b.backend, *sorted({getattr(b, part).__name__.rpartition(".")[0] for part in b.PARTS}))
"""


class Install:
    """A copy of the package to spoil, and an interpreter to import it in."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root / "relay"
        self.core = self.package / "_core"
        for side in ("_core", "_pure"):
            shutil.copytree(Path(_backend.__file__).parent / side, self.package / side)
        for name in ("_backend.py", "errors.py"):
            shutil.copy(Path(_backend.__file__).parent / name, self.package / name)
        # Only the choice is of interest here, not the modules above it.
        (self.package / "__init__.py").touch()

    def extensions(self) -> list[Path]:
        return sorted(file for file in self.core.iterdir() if file.suffix in (".so", ".pyd"))

    def extension(self, part: str) -> Path:
        return self.core / f"{part}{EXTENSION_SUFFIXES[0]}"

    def remove_extensions(self) -> None:
        for file in self.extensions():
            file.unlink()

    def run(self, forced: str = "", *flags: str, code: str = REPORT) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PYTHONPATH": str(self.root), "RELAY_BACKEND": forced}
        return subprocess.run(
            [sys.executable, *flags, "-c", code], env=environ, cwd=self.root, capture_output=True, text=True, timeout=50
        )

    def reports(self, forced: str = "", *flags: str) -> list[str]:
        done = self.run(forced, *flags)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def fails(self, forced: str = "") -> str:
        done = self.run(forced)
        assert done.returncode != 0, done.stdout
        assert "pure" not in done.stdout
        return done.stderr.splitlines()[-1]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    return Install(tmp_path)


@pytest.fixture
def native(install: Install) -> Install:
    if not install.extensions():
        pytest.skip("no native build")
    return install


def test_backend_names_the_side_all_parts_come_from() -> None:
    package = {"native": "relay._core", "pure": "relay._pure"}[_backend.backend]
    assert relay.backend == _backend.backend
    for part in _backend.PARTS:
        module = getattr(_backend, part)
        assert module.__name__ == f"{package}.{part}"
        assert module.__file__.endswith(tuple(EXTENSION_SUFFIXES) if _backend.backend == "native" else ".py")


def test_parts_are_the_files_of_the_pure_side() -> None:
    import relay._pure

    files = {file.stem for file in Path(relay._pure.__path__[0]).glob("[a-z]*.py")}
    assert set(_backend.PARTS) <= files
    assert set(_backend.__all__) == {*_backend.PARTS, "PARTS", "PureBackendWarning", "backend"}


def test_native_is_taken_where_it_is(native: Install) -> None:
    assert native.reports() == ["native relay._core"]


def test_each_side_can_be_forced(native: Install) -> None:
    assert native.reports("pure") == ["pure relay._pure"]
    assert native.reports("native") == ["native relay._core"]


def test_another_word_is_refused(install: Install) -> None:
    assert install.fails("Native") == (
        "ValueError: RELAY_BACKEND is 'Native'; it can be 'native', 'pure', or unset to take what is installed"
    )


def test_without_extensions_pure_runs_and_says_so_once(install: Install) -> None:
    install.remove_extensions()
    assert install.reports("", "-W", "error") == [
        "INFO relay relay has no native parts here; its pure-Python side runs",
        "pure relay._pure",
    ]


def test_without_the_folder_of_extensions_pure_runs(install: Install) -> None:
    shutil.rmtree(install.core)
    assert install.reports("", "-W", "error")[-1] == "pure relay._pure"


def test_a_forced_pure_side_says_nothing(install: Install) -> None:
    install.remove_extensions()
    assert install.reports("pure", "-W", "error") == ["pure relay._pure"]


def test_forcing_native_where_there_is_none_raises(install: Install) -> None:
    install.remove_extensions()
    last = install.fails("native")
    assert last.startswith("ImportError: RELAY_BACKEND=native, but this install of relay has no native parts")


@pytest.mark.parametrize(("purelib", "warned"), [("false", True), ("true", False)])
def test_extensions_gone_from_a_native_wheel_warn(install: Install, purelib: str, warned: bool) -> None:
    install.remove_extensions()
    record = install.root / "relay_inference-0.1.0.dist-info" / "WHEEL"
    record.parent.mkdir()
    record.write_text(f"Wheel-Version: 1.0\nRoot-Is-Purelib: {purelib}\n")
    done = install.run()
    assert done.stdout.splitlines()[-1] == "pure relay._pure"
    assert ("PureBackendWarning: relay was installed with native parts, but they are gone" in done.stderr) is warned


@pytest.mark.parametrize("forced", ["", "native"])
class TestBroken:
    """Whatever is wrong with an extension is an error that names the way out; only RELAY_BACKEND=pure passes it by."""

    def refused(self, install: Install, forced: str, *words: str) -> None:
        last = install.fails(forced)
        assert last.startswith("ImportError: relay's native ")
        assert last.endswith("; reinstall relay-inference, or set RELAY_BACKEND=pure to run without native code")
        for word in words:
            assert word in last
        assert install.reports("pure") == ["pure relay._pure"]

    def test_one_missing(self, native: Install, forced: str) -> None:
        native.extension("heap").unlink()
        self.refused(native, forced, "core is incomplete", "heap are not")

    def test_one_left(self, native: Install, forced: str) -> None:
        for file in native.extensions():
            if file != native.extension("heap"):
                file.unlink()
        self.refused(native, forced, "core is incomplete: heap are there")

    def test_not_a_library(self, native: Install, forced: str) -> None:
        native.extension("heap").write_bytes(b"not a library")
        self.refused(native, forced, "'heap'", str(native.extension("heap")))

    def test_not_this_module(self, native: Install, forced: str) -> None:
        shutil.copy(native.extension("state"), native.extension("heap"))
        self.refused(native, forced, "'heap'", "PyInit_heap")

    def test_all_built_for_another_python(self, native: Install, forced: str) -> None:
        for file in native.extensions():
            file.rename(file.with_name(file.name.partition(".")[0] + ".cpython-39-x86_64-linux-gnu.so"))
        self.refused(native, forced, "it was built for another Python", "cpython-39")

    def test_raises_while_loading(self, native: Install, forced: str) -> None:
        errors = native.package / "errors.py"
        errors.write_text("raise ValueError('spoilt')\n")
        last = native.fails(forced)
        assert last.startswith("ImportError: relay's native part ") and "spoilt" in last
