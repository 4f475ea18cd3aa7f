"""What the README shows runs, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def _block(word: str) -> str:
    (found,) = [block for block in BLOCKS if word in block]
    return str(found)


def test_line_one_says_what_a_token_is() -> None:
    assert "token" in README.splitlines()[0] and "permit" in README.splitlines()[0]


def test_first_60_seconds() -> None:
    run = subprocess.run([sys.executable, "-c", _block("@relay.batched")], capture_output=True, text=True, timeout=50)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("64 answers:") and "Timing(" in run.stdout
    (shown,) = [text for text in re.findall(r"```text\n(.*?)```", README, re.DOTALL) if "Timing(" in text]
    assert _form(shown) == _form(run.stdout)


def _form(output: str) -> str:
    """An output without what differs from run to run: its numbers, and which side runs."""
    return re.sub(r"\((native|pure)\)", "(side)", re.sub(r"\d+(\.\d+)?(e-\d+)?", "0", output))


def test_first_60_seconds_need_no_torch() -> None:
    code = 'import sys\nfor name in ("torch", "transformers", "tokenizers"): sys.modules[name] = None\n'
    run = subprocess.run(
        [sys.executable, "-c", code + _block("@relay.batched")], capture_output=True, text=True, timeout=50
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.hf
def test_the_service_answers() -> None:
    from fastapi.testclient import TestClient

    names: dict[str, Any] = {}
    exec(compile(_block("FastAPI"), "README.md", "exec"), names)  # noqa: S102
    with TestClient(names["app"]) as client:
        vector = client.get("/embed", params={"text": "a token is a permit"}).json()
    assert len(vector) == 384 and abs(sum(x * x for x in vector) - 1) < 1e-3


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
