"""The types that users' checkers see: mypy --strict over tests/typing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parent / "typing").glob("*.py"))


def test_types(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = Path(__file__).parents[1]
    arguments = ["--strict", "--warn-unused-ignores", "--cache-dir", os.environ.get("MYPY_CACHE_DIR", ".mypy_cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments, *map(str, FILES)],
        cwd=root, capture_output=True, text=True, timeout=55,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"no issues found in {len(FILES)} source files" in done.stdout
