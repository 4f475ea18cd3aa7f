"""Assembling: the members' input ids, gathered from their rows into one padded batch.

Used by one lane's thread only. The buffers grow to the largest batch seen and are filled again for every batch, so a
model must not keep them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relay._backend import batch as core_batch
from relay._backend import queue
from relay.batch import Batch
from relay.tokenizer import Tokenizer


class Assembler:
    """The buffers of one lane.

    Args:
        requests: Whose arena holds the rows.
        tokenizer: Names the padding id, and says whether pairs have segments.
    """

    def __init__(self, requests: queue.RequestQueue, tokenizer: Tokenizer) -> None:
        self._requests = requests
        self._pad_id = tokenizer.pad_id
        self._buffers = [np.empty(0, np.int64) for _ in range(3 if tokenizer.has_segments else 2)]

    def batch(self, handles: list[int], items: list[Any], params: dict[str, Any]) -> Batch[Any]:
        """Gather the rows of `handles`, which must be committed."""
        lengths = np.array(self._requests.lengths(handles), np.int64)
        shape = (len(handles), int(lengths.max()))
        size = shape[0] * shape[1]
        if size > self._buffers[0].size:
            self._buffers = [np.empty(max(size, 2 * old.size), np.int64) for old in self._buffers]
        views = [buffer[:size].reshape(shape) for buffer in self._buffers]
        segments = views[2] if len(views) > 2 else None
        core_batch.gather(self._requests.arena, handles, views[0], views[1], segments, self._pad_id)
        return Batch(items, views[0], views[1], segments, lengths, params)
