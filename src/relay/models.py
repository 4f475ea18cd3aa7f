"""Models that relay can load by name or from a folder: embedders, classifiers and rerankers of the BERT family.

A loaded model is called by one lane at a time with a `Batch` and returns one float32 row per item. The invariant:
nothing is downloaded, no environment variable is changed, and importing this module loads neither torch nor
transformers.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from relay.batch import Batch
from relay.errors import LoadFailed
from relay.modelfolder import Task, find, longest, own_task, pooling_of
from relay.tokenizer import FastTokenizer, Tokenizer

if TYPE_CHECKING:
    import torch

Rows: TypeAlias = npt.NDArray[np.float32]


class Model(Protocol):
    """What relay calls. Any callable will do; a model may also have these attributes, which `Relay` reads.

    * ``tokenizer``: the model is called with a `Batch`, else with a list of items.
    * ``deterministic``: equal items have equal results, so that identical requests may be merged.
    * ``check_finite``: rows with NaN or infinity are errors.
    * ``name``, ``dimensions`` (None for scores), ``max_length``: shown to users.
    """

    def __call__(self, batch: Batch[Any], /) -> Any:
        """Returns one row per member of the batch."""


class Encoder:
    """A transformer encoder with a head, made by `load`.

    Attributes:
        name: The name or path it was loaded by.
        task: ``"embed"``, ``"classify"`` or ``"rerank"``.
        tokenizer: Its tokenizer.
        dimensions: The length of a row; None for a reranker, whose rows are single scores.
        max_length: The most ids an item may have.
        labels: The names of a classifier's columns, else empty.
        deterministic: True.
        check_finite: True.
    """

    deterministic = True
    check_finite = True

    def __init__(
        self,
        name: str,
        task: Task,
        network: Any,
        tokenizer: Tokenizer,
        pooling: str,
        normalize: bool,
        threads: int | None,
    ) -> None:
        import torch

        from relay.packed import PackedBert

        self._torch = torch
        self._network = network
        self._device = next(network.parameters()).device
        self._pooling = pooling
        self._normalize = normalize
        self._threads = threads
        config = network.config
        base = network.bert if type(network).__name__ == "BertForSequenceClassification" else network
        self._packed = PackedBert(base) if PackedBert.fits(base) else None
        self._segments = "token_type_ids" in inspect.signature(network.forward).parameters
        self._sigmoid = getattr(config, "problem_type", None) == "multi_label_classification"
        self.name = name
        self.task = task
        self.tokenizer = tokenizer
        self.max_length = tokenizer.max_length
        columns = int(config.hidden_size if task == "embed" else config.num_labels)
        self.dimensions = None if task == "rerank" else columns
        self.labels = tuple(config.id2label[i] for i in range(columns)) if task == "classify" else ()

    def __repr__(self) -> str:
        return f"Encoder(name={self.name!r}, task={self.task!r}, device='{self._device}', max_length={self.max_length})"

    def __call__(self, batch: Batch[Any], /) -> Rows:
        """One row per item: its embedding, its classes' probabilities, or its score."""
        torch = self._torch
        # The setting is the calling thread's own, so it is made where the model runs.
        if self._threads is not None and torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        with torch.inference_mode():
            out = self._embed(batch) if self.task == "embed" else self._classify(batch)
            return cast(Rows, out.float().cpu().numpy())

    def _embed(self, batch: Batch[Any]) -> torch.Tensor:
        torch = self._torch
        if self._packed is not None:
            rows = self._packed(batch, self._device, self._pooling)
        else:
            hidden = self._network(**self._inputs(batch)).last_hidden_state
            if self._pooling == "cls":
                rows = hidden[:, 0]
            else:
                mask = torch.from_numpy(batch.attention_mask).to(self._device).unsqueeze(-1).float()
                rows = (hidden.float() * mask).sum(1) / mask.sum(1)
        rows = rows.float()
        return torch.nn.functional.normalize(rows, dim=1) if self._normalize else rows

    def _classify(self, batch: Batch[Any]) -> torch.Tensor:
        if self._packed is not None:
            pooler = self._network.bert.pooler
            first = self._packed(batch, self._device, "cls")
            logits = self._network.classifier(pooler.activation(pooler.dense(first)))
        else:
            logits = self._network(**self._inputs(batch)).logits
        logits = logits.float()
        if self.task == "rerank":
            return cast("torch.Tensor", logits[:, 0])
        if self._sigmoid:
            return cast("torch.Tensor", logits.sigmoid())
        return cast("torch.Tensor", logits.softmax(dim=1) if logits.shape[1] > 1 else logits)

    def _inputs(self, batch: Batch[Any]) -> dict[str, torch.Tensor]:
        arrays = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        if self._segments and batch.token_type_ids is not None:
            arrays["token_type_ids"] = batch.token_type_ids
        return {name: self._torch.from_numpy(array).to(self._device) for name, array in arrays.items()}


def load(
    name_or_path: str | os.PathLike[str],
    *,
    task: Task | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    max_length: int | None = None,
    threads: int | None = None,
) -> Encoder:
    """Loads a model from this computer; never from the network.

    Args:
        name_or_path: ``"minilm"`` for the packaged all-MiniLM-L6-v2, or the folder of a Hugging Face encoder.
        task: ``"embed"``, ``"classify"`` (rows of probabilities: softmax over the labels, sigmoids where the model is
            multi-label, the bare value where it has one label) or ``"rerank"`` (one raw logit per pair). None takes
            what the folder's architecture is made for.
        device: A torch device; "cpu" by default.
        dtype: The type of the weights, as a torch dtype or its name; float32 by default. Rows are float32 always.
        max_length: The most ids an item may have; by default the model's own limit.
        threads: Torch's threads for calls of this model; by default torch's own setting.

    Raises:
        LoadFailed: Something the model needs is missing or does not fit; the message says what and what to do.
        ValueError: An argument is out of range.
        ImportError: The packages of the extra ``hf`` are missing.
    """
    if task not in (None, "embed", "classify", "rerank"):
        raise ValueError(f"task is {task!r}; allowed: 'embed', 'classify', 'rerank', or None for the model's own")
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}; it must be at least 1, or None for torch's own setting")
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ImportError("models need torch and transformers: pip install 'relay-inference[hf]'") from error
    folder = find(name_or_path)
    kind = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype or "float32", None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise ValueError(f"dtype is {dtype!r}; allowed: 'float32', 'bfloat16', 'float16', or None for float32")
    place = torch.device(device or "cpu")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise LoadFailed(f"device {device!r} was asked for, but torch sees no CUDA device; use device='cpu'")
    with _quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        except Exception as error:
            raise LoadFailed(f"{folder / 'config.json'} could not be read: {error}") from error
        if task is None:
            task = own_task(config)
        if task == "rerank" and config.num_labels != 1:
            raise LoadFailed(
                f"a reranker has one label, {folder} has {config.num_labels}; load it with task='classify' instead"
            )
        pooling, normalize = pooling_of(folder) if task == "embed" else ("cls", False)
        limit = longest(folder, config, max_length)
        try:
            tokenizer = FastTokenizer(folder / "tokenizer.json", limit, config.pad_token_id)
        except ImportError:
            raise
        except Exception as error:
            raise LoadFailed(f"{folder / 'tokenizer.json'} could not be read: {error}") from error
        auto = transformers.AutoModel if task == "embed" else transformers.AutoModelForSequenceClassification
        try:
            network, report = auto.from_pretrained(folder, local_files_only=True, output_loading_info=True)
        except Exception as error:
            raise LoadFailed(f"{folder} could not be loaded for task {task!r}: {error}") from error
    # An embedder's pooler is never used, so it need not be there.
    missing = sorted(key for key in report["missing_keys"] if task != "embed" or not key.startswith("pooler."))
    if missing:
        raise LoadFailed(
            f"{folder} lacks {len(missing)} weights that task {task!r} needs, {missing[0]} first; "
            "choose the task the model was trained for"
        )
    if task == "embed" and getattr(network, "pooler", None) is not None:
        network.pooler = None
    network = network.to(device=place, dtype=kind).eval()
    return Encoder(os.fspath(name_or_path), task, network, tokenizer, pooling, normalize, threads)


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keeps transformers from drawing progress bars and tables while a model is loaded."""
    logging = transformers.utils.logging
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
