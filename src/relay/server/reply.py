"""What goes out over HTTP: embeddings as JSON, in the OpenAI shape.

Stateless; any thread may call it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from relay.errors import BadOutput, NonFiniteOutput


def embeddings_json(vectors: Iterable[Any], *, model: str, tokens: int, base64: bool) -> bytes:
    """The body of an answer.

    Row by row, so that a large answer lets other threads run in between.

    Args:
        vectors: One vector an input, in order.
        model: The name the model goes by.
        tokens: Input ids the request came to.
        base64: Vectors as base64 of little-endian float32 instead of as lists.

    Raises:
        BadOutput: A vector is none.
        NonFiniteOutput: One holds NaN or infinity, which JSON cannot, or a number too large for float32.
    """
    encode = msgspec.json.encode
    rows = []
    for index, vector in enumerate(vectors):
        with np.errstate(over="ignore"):
            row = np.asarray(vector, "<f4")
        if row.ndim != 1:
            raise BadOutput(f"the model returned {type(vector).__name__} for input {index}, which is no vector")
        if not np.isfinite(row).all():
            raise NonFiniteOutput(
                f"the model returned NaN or infinity for input {index}, or a number too large for float32; look at "
                "the input, or run the model in a wider float type"
            )
        body = b'"%b"' % b64encode(row.tobytes()) if base64 else encode(row.tolist())
        rows.append(b'{"object":"embedding","index":%d,"embedding":%b}' % (index, body))
    tail = encode({"model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
    return b'{"object":"list","data":[%b],%b' % (b",".join(rows), tail[1:])
