"""The doctor: every finding is there, and nothing that is missing stops the others."""

from __future__ import annotations

import json
import sys
from importlib import util
from typing import Any

import pytest

import relay
from relay import doctor, models
from relay.cli import main

NAMES = {
    "relay", "python", "platform", "backend", "cores", "switch interval", "cuda", "nvml", "model",
    "torch", "transformers", "tokenizers", "safetensors", "starlette", "uvicorn", "msgspec", "uvloop",
    "prometheus_client",
}  # fmt: skip


class Toy:
    name, task, dimensions, max_length = "toy", "embed", 3, 100


@pytest.fixture(autouse=True)
def no_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "load", lambda name: Toy())


def found() -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in doctor.examine()}


def test_report_holds_every_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in NAMES) and relay.__version__ in text
    assert main(["doctor", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == NAMES
    assert all(set(row) == {"name", "value", "advice"} for row in rows)


def test_backend_and_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELAY_BACKEND", raising=False)
    assert found()["backend"].value.startswith(f"{relay.backend}, because")
    monkeypatch.setenv("RELAY_BACKEND", relay.backend)
    assert found()["backend"].value == f"{relay.backend}, forced by RELAY_BACKEND={relay.backend}"
    monkeypatch.delenv("RELAY_BACKEND")
    monkeypatch.setattr(doctor, "backend", "pure")
    assert "RELAY_REQUIRE_NATIVE" in found()["backend"].advice


def test_switch_interval_gets_advice_only_where_it_is_long() -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        assert found()["switch interval"].value == "5 ms" and "0.0002" in found()["switch interval"].advice
        sys.setswitchinterval(0.0002)
        assert found()["switch interval"].advice == ""
    finally:
        sys.setswitchinterval(before)


def test_missing_packages_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = util.find_spec
    monkeypatch.setattr(
        doctor, "find_spec", lambda name: None if name in ("torch", "uvicorn", "pynvml") else real(name)
    )
    seen = found()
    assert seen["torch"].advice == "pip install 'relay-inference[hf]'"
    assert seen["uvicorn"].advice == "pip install 'relay-inference[serve]'"
    assert "relay-inference[gpu]" in seen["nvml"].advice
    assert seen["cuda"].value == "unknown without torch"
    assert seen["model"].value.startswith("toy: to embed, rows of 3")


def test_what_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> Any:
        raise relay.LoadFailed(f"no model {name}")

    monkeypatch.setattr(models, "load", load)
    assert found()["model"].value == "failed: LoadFailed: no model minilm"
    assert main(["doctor"]) == 0
