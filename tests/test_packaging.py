"""What is shipped: the same files from a tree and from its sdist, a pure wheel only where compiling fails, and no less.

The builds use the build tools of the running environment, so that they need no network; only the long tests, which make
new environments, do. Builds run on copies: what lies in a developer's tree beside the sources must not reach a wheel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from relay._backend import PARTS

ROOT = Path(__file__).parents[1]
MANIFEST = Path(__file__).parent / "data" / "manifest.txt"
JUNK = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "*.so")

BUILD_LIMIT_S = 400
TESTS_LIMIT_S = 1500
SPOILT = "def spoilt(:\n"

pytestmark = pytest.mark.timeout(2 * BUILD_LIMIT_S)


def _run(
    command: Sequence[str | Path], cwd: Path, limit_s: float = BUILD_LIMIT_S, **env: str
) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "RELAY_REQUIRE_NATIVE")}
    to = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, cwd=cwd, env=environ | env, text=True, timeout=limit_s, **to)


def _build(tree: Path, out: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out]
    # Only the names of the files matter here, and a debug build of them takes half the time.
    return _run([*command, *options, "-Ccmake.build-type=Debug", tree], tree, **env)


def _copy(tree: Path) -> Path:
    shutil.copytree(ROOT, tree, ignore=JUNK)
    return tree


def _only(folder: Path, pattern: str) -> Path:
    (file,) = folder.glob(pattern)
    return file


def _names(wheel: Path) -> list[str]:
    """The files of a wheel, with the interpreter's suffix and our version left open."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    suffix = re.escape(EXTENSION_SUFFIXES[0])
    return sorted(re.sub(r"-[^-/]+\.dist-info/", "-VERSION.dist-info/", re.sub(f"{suffix}$", ".EXT", n)) for n in names)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, with extensions in it such as a developer's in-place build leaves."""
    tree = _copy(tmp_path_factory.mktemp("package") / "tree")
    for part in ("heap", "left_over"):
        for suffix in (EXTENSION_SUFFIXES[0], ".cpython-39-x86_64-linux-gnu.so"):
            (tree / "src" / "relay" / "_core" / f"{part}{suffix}").write_bytes(b"stale")
    return tree


@pytest.fixture(scope="module")
def dist(tree: Path) -> Path:
    """The sdist of the tree, and the wheel made from that sdist."""
    out = tree.parent / "dist"
    done = _build(tree, out, RELAY_REQUIRE_NATIVE="1")
    assert done.returncode == 0, done.stdout
    return out


def test_wheel_from_sdist_holds_what_the_manifest_says(dist: Path) -> None:
    names = _names(_only(dist, "*.whl"))
    if os.environ.get("RELAY_WRITE_MANIFEST"):
        MANIFEST.write_text("\n".join(names) + "\n")
    assert names == MANIFEST.read_text().split(), "RELAY_WRITE_MANIFEST=1 rewrites tests/data/manifest.txt"


def test_wheel_from_tree_is_the_same(tree: Path, dist: Path, tmp_path: Path) -> None:
    done = _build(tree, tmp_path, "--wheel", RELAY_REQUIRE_NATIVE="1")
    assert done.returncode == 0, done.stdout
    from_tree, from_sdist = _only(tmp_path, "*.whl"), _only(dist, "*.whl")
    assert from_tree.name == from_sdist.name
    assert _names(from_tree) == _names(from_sdist)


def test_manifest_has_what_must_be_there() -> None:
    names = MANIFEST.read_text().split()
    assert "relay/py.typed" in names
    assert "relay_inference-VERSION.dist-info/licenses/LICENSE" in names
    assert [name for name in names if name.endswith(".EXT")] == sorted(f"relay/_core/{part}.EXT" for part in PARTS)
    assert not [name for name in names if name.endswith((".pyx", ".pxd", ".hpp", ".cxx", ".so", ".pyd", ".pyc"))]


def test_sdist_holds_what_building_and_testing_need(tree: Path, dist: Path) -> None:
    with tarfile.open(_only(dist, "*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not [name for name in names if name.endswith((".so", ".pyd", ".pyc"))]
    wanted = ["pyproject.toml", "CMakeLists.txt", "constraints.txt", "README.md", "CONTRIBUTING.md", ".ci/run"]
    for folder in ("src", "tests", "bench", "docs"):
        assert (tree / folder).is_dir(), f"{folder}/ is gone"
        wanted += [file.relative_to(tree).as_posix() for file in (tree / folder).rglob("*") if file.is_file()]
    missing = [name for name in wanted if name not in names and not name.endswith((".so", ".pyd"))]
    assert missing == []


def _spoil_sources(tree: Path) -> dict[str, str]:
    for file in (tree / "src" / "relay" / "_core").glob("*.pyx"):  # all, so that whichever comes first fails
        file.write_text(SPOILT)
    return {}


def _take_compiler(tree: Path) -> dict[str, str]:
    return {"CC": "/nowhere/cc", "CXX": "/nowhere/c++"}


def _remove_part(tree: Path) -> dict[str, str]:
    (tree / "src" / "relay" / "_core" / "heap.pyx").unlink()
    return {}


@pytest.mark.parametrize("spoil", [_spoil_sources, _take_compiler, _remove_part])
def test_where_compiling_fails_the_wheel_is_pure(tmp_path: Path, spoil: Callable[[Path], dict[str, str]]) -> None:
    tree = _copy(tmp_path / "tree")
    env = spoil(tree)

    done = _build(tree, tmp_path / "required", "--wheel", **env, RELAY_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert "RELAY_REQUIRE_NATIVE asks for it" in done.stdout
    assert not list(tmp_path.glob("required/*.whl"))

    done = _build(tree, tmp_path / "optional", "--wheel", **env)
    assert done.returncode == 0, done.stdout
    assert "this wheel holds the pure-Python side only" in done.stdout
    wheel = _only(tmp_path / "optional", "*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert _names(wheel) == [name for name in MANIFEST.read_text().split() if not name.endswith(".EXT")]

    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    code = "import relay; print(relay.backend, relay.__file__)"
    done = _run([sys.executable, "-W", "error", "-c", code], tmp_path, PYTHONPATH=str(target), RELAY_BACKEND="")
    assert done.stdout.split() == ["pure", str(target / "relay" / "__init__.py")]


def _interpreters() -> list[str]:
    """This interpreter, and of each other supported version the one that is installed here, if any."""
    found = [sys.executable]
    for version in ("3.11", "3.12", "3.13"):
        if sys.version.startswith(f"{version}."):
            continue
        candidates = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
        for candidate in filter(None, candidates):
            done = _run([candidate, "-c", "import ensurepip, sys; print(sys.version)"], Path.home())
            if done.returncode == 0 and done.stdout.startswith(f"{version}."):
                found.append(str(candidate))
                break
    return found


@pytest.mark.long
@pytest.mark.timeout(TESTS_LIMIT_S + 2 * BUILD_LIMIT_S)
@pytest.mark.parametrize("python", _interpreters())
def test_wheel_of_sdist_passes_the_sdists_tests_in_a_new_environment(python: str, dist: Path, tmp_path: Path) -> None:
    with tarfile.open(_only(dist, "*.tar.gz")) as archive:
        # Python before 3.11.4 has no filters; the archive is our own.
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    source = _only(tmp_path, "relay_inference-*")
    done = _run([python, "-m", "venv", tmp_path / "venv"], tmp_path)
    assert done.returncode == 0, done.stdout
    inside = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    pip = [inside, "-m", "pip", "--disable-pip-version-check"]

    wheels = tmp_path / "wheels"
    done = _run([*pip, "wheel", "--no-deps", "-w", wheels, source], tmp_path, RELAY_REQUIRE_NATIVE="1")
    assert done.returncode == 0, done.stdout
    wheel = f"{_only(wheels, '*.whl')}[serve,test]"
    done = _run([*pip, "install", "-c", source / "constraints.txt", wheel], tmp_path)
    assert done.returncode == 0, done.stdout

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shared = os.environ.get("RELAY_SHARED") or str(ROOT.parent / "shared")
    # Without torch, and without building again.
    options = ["-q", "-m", "not hf and not long and not gpu", "--ignore", str(source / "tests" / "test_packaging.py")]
    tests = [inside, "-m", "pytest", *options, source / "tests"]
    done = _run(tests, elsewhere, TESTS_LIMIT_S, RELAY_SHARED=shared, PYTEST_ADDOPTS="")
    print(done.stdout[-2000:])
    assert done.returncode == 0
    assert " passed" in done.stdout.splitlines()[-1]
