"""What the tests of models share: batches as a lane would make them, and small models with random weights."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relay.batch import Batch
from relay.modelfolder import find
from relay.models import Encoder
from relay.tokenizer import Item, Tokenizer

BERT: dict[str, Any] = {"vocab_size": 30_522, "max_position_embeddings": 160}


def batch_of(tokenizer: Tokenizer, items: Sequence[Item]) -> Batch[Item]:
    """What a lane would make of the items."""
    encoded = []
    for result in tokenizer.encode(items):
        assert not isinstance(result, Exception), result
        encoded.append(result)
    lengths = np.array([len(ids) for ids, _ in encoded])
    shape = (len(items), int(lengths.max()))
    input_ids = np.full(shape, tokenizer.pad_id, np.int64)
    mask, types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, (ids, split) in enumerate(encoded):
        input_ids[row, : len(ids)] = ids
        mask[row, : len(ids)] = 1
        if split >= 0:
            types[row, split : len(ids)] = 1
    return Batch(list(items), input_ids, mask, types if tokenizer.has_segments else None, lengths)


def run(model: Encoder, items: Sequence[Item], size: int = 16) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.concatenate([model(batch_of(model.tokenizer, items[i : i + size])) for i in range(0, len(items), size)])


def save_small(folder: Path, kind: type[Any], config: Any, **settings: Any) -> Any:
    """Saves a small model with random weights beside MiniLM's tokenizer, and returns the model."""
    import torch

    torch.manual_seed(7)
    network = kind(config(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, **settings))
    for parameter in network.parameters():  # as initialised, all outputs would be nearly the same
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.2)
    network.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(find("minilm") / name, folder)
    return network.eval()
