"""A BERT encoder that computes no padding: all but attention sees one run of the real ids of a batch.

Built from the modules of a loaded transformers model and called by `relay.models` alone, from one lane at a time. The
invariant: a row's result does not depend on the rows beside it, but for the rounding of sums taken in another order.
Nearly all the work of a small encoder lies in its linear layers, which cost the same for a padding id as for a real
one; only attention, a few per cent, is computed in the padded shape.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from relay.batch import Batch


class PackedBert:
    """The encoder of a ``BertModel``, with its pooling.

    Args:
        model: A loaded ``BertModel`` in evaluation mode. Its weights are shared; those of query, key and value are
            joined in place.
    """

    def __init__(self, model: Any) -> None:
        self._embeddings = model.embeddings
        self._heads = int(model.config.num_attention_heads)
        self._layers: list[tuple[Tensor, Tensor, Any, Any, Any]] = []
        for layer in model.encoder.layer:
            attention = layer.attention.self
            parts = (attention.query, attention.key, attention.value)
            weight = torch.cat([part.weight.detach() for part in parts])
            bias = torch.cat([part.bias.detach() for part in parts])
            rows = weight.shape[0] // 3
            for i, part in enumerate(parts):  # the model keeps views of the joined weights, not a second copy
                part.weight.data = weight[i * rows : (i + 1) * rows]
                part.bias.data = bias[i * rows : (i + 1) * rows]
            self._layers.append((weight, bias, layer.attention.output, layer.intermediate, layer.output))

    @staticmethod
    def fits(model: Any) -> bool:
        """Whether ``model`` computes what this class computes."""
        config = model.config
        return (
            type(model).__name__ == "BertModel"
            and getattr(config, "position_embedding_type", "absolute") == "absolute"
            and not getattr(config, "is_decoder", False)
            and not getattr(config, "chunk_size_feed_forward", 0)
        )

    def __call__(self, batch: Batch[Any], device: torch.device, pooling: str) -> Tensor:
        """One row per item: the mean of its last hidden states, or with ``pooling="cls"`` the first of them."""
        rows, width = batch.input_ids.shape
        lengths = torch.from_numpy(batch.lengths).to(device)
        types = batch.token_type_ids
        places: Tensor | None = None
        mask: Tensor | None = None
        if int(batch.lengths.sum()) == rows * width:
            ids = torch.from_numpy(batch.input_ids).to(device).reshape(-1)
            positions = torch.arange(width, device=device).repeat(rows)
            segments = None if types is None else torch.from_numpy(types).to(device).reshape(-1)
        else:
            real = np.flatnonzero(batch.attention_mask)
            places = torch.from_numpy(real).to(device)
            ids = torch.from_numpy(batch.input_ids.ravel()[real]).to(device)
            positions = places % width
            segments = None if types is None else torch.from_numpy(types.ravel()[real]).to(device)
            mask = torch.from_numpy(batch.attention_mask).to(device).bool().view(rows, 1, 1, width)
        hidden = self._encode(ids, positions, segments, places, mask, rows, width)
        if pooling == "cls":
            return hidden[lengths.cumsum(0) - lengths]
        if places is None:
            return hidden.view(rows, width, -1).mean(1)
        sums = hidden.new_zeros(rows, hidden.shape[1], dtype=torch.float32)
        return sums.index_add_(0, places // width, hidden.float()) / lengths.unsqueeze(1)

    def _encode(
        self,
        ids: Tensor,
        positions: Tensor,
        segments: Tensor | None,
        places: Tensor | None,
        mask: Tensor | None,
        rows: int,
        width: int,
    ) -> Tensor:
        """The last hidden states of the real ids, ``(ids, size)``; ``places`` is where they lie in the padded batch."""
        table = self._embeddings
        hidden = table.word_embeddings(ids)
        kinds = table.token_type_embeddings
        hidden = hidden + (kinds.weight[0] if segments is None else kinds(segments))
        hidden = table.LayerNorm(hidden + table.position_embeddings(positions))
        size = hidden.shape[1]
        for weight, bias, after, inner, outer in self._layers:
            joined = F.linear(hidden, weight, bias)
            if places is not None:
                joined = joined.new_zeros(rows * width, 3 * size).index_copy_(0, places, joined)
            query, key, value = joined.view(rows, width, 3, self._heads, size // self._heads).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            mixed = mixed.transpose(1, 2).reshape(rows * width, size)
            if places is not None:
                mixed = mixed[places]
            hidden = after.LayerNorm(after.dense(mixed) + hidden)
            hidden = outer.LayerNorm(outer.dense(inner.intermediate_act_fn(inner.dense(hidden))) + hidden)
        return cast(Tensor, hidden)
