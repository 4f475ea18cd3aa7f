"""What goes out over HTTP: embeddings as JSON, in the OpenAI shape.

Stateless; any thread may call it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np


def embeddings_json(vectors: Iterable[Any], *, model: str, tokens: int, base64: bool) -> bytes:
    """The body of an answer.

    Row by row, so that a large answer lets other threads run in between.

    Args:
        vectors: One vector an input, in order.
        model: The name the model goes by.
        tokens: Input ids the request came to.
        base64: Vectors as base64 of little-endian float32 instead of as lists.
    """
    encode = msgspec.json.encode
    rows = []
    for index, vector in enumerate(vectors):
        row = np.asarray(vector, "<f4")
        body = b'"%b"' % b64encode(row.tobytes()) if base64 else encode(row.tolist())
        rows.append(b'{"object":"embedding","index":%d,"embedding":%b}' % (index, body))
    tail = encode({"model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
    return b'{"object":"list","data":[%b],%b' % (b",".join(rows), tail[1:])
