"""What a model is called with: the members of one batch.

Owned by the lane that made it, for the length of one model call; nothing in it may be kept afterwards (copy what must
live longer), for the arrays are views of buffers that the lane fills again.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

In = TypeVar("In")

Ids = npt.NDArray[np.int64]


class Batch(Generic[In]):
    """The members of one batch, padded to the longest.

    Attributes:
        items: The callers' items, in batch order.
        input_ids: ``(n, width)`` int64, padded on the right with the tokenizer's pad id.
        attention_mask: ``(n, width)`` int64, 1 over real ids and 0 over padding.
        token_type_ids: ``(n, width)`` int64, 1 over the second segment of a pair; None where the tokenizer has no
            segments.
        lengths: ``(n,)`` int64, the real ids of each row.
        params: The keyword arguments all members share.
    """

    __slots__ = ("attention_mask", "input_ids", "items", "lengths", "params", "token_type_ids")

    def __init__(
        self,
        items: list[In],
        input_ids: Ids,
        attention_mask: Ids,
        token_type_ids: Ids | None,
        lengths: Ids,
        params: dict[str, Any] | None = None,
    ) -> None:
        self.items = items
        self.input_ids = input_ids
        self.attention_mask = attention_mask
        self.token_type_ids = token_type_ids
        self.lengths = lengths
        self.params = params if params is not None else {}

    def __len__(self) -> int:
        return len(self.items)
