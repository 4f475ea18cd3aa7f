"""Gathering: the rows of a batch's members, widened and padded into the buffers a model is called with.

Owns nothing. One thread at a time may call it for one arena, under the arena's rules; the buffers are the caller's,
and nobody else touches them meanwhile. Invariant: it checks all before it writes, so a refused call leaves them as
they were.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relay._pure.arena import Arena
from relay._pure.state import MAX_SLOTS, as_int32, as_int64

__all__ = ["gather"]

_Buffer = npt.NDArray[np.int32] | npt.NDArray[np.int64]


def _buffer(name: str, buffer: Any) -> _Buffer:
    try:
        view = memoryview(buffer)
    except TypeError:
        raise TypeError(f"{name} must be a 2-D int32 or int64 array, got {type(buffer).__name__}") from None
    if view.ndim != 2:
        raise ValueError(f"{name} has {view.ndim} dimensions; pass a 2-D int32 or int64 array")
    if view.format not in ("i", "l", "q"):
        raise ValueError(f"{name} holds items of format {view.format!r}; pass a 2-D int32 or int64 array")
    if view.readonly:
        raise ValueError(f"{name} is read-only; pass a writable array")
    if not view.c_contiguous:
        raise ValueError(f"{name} is not C-contiguous; pass a whole array, not a slice of its columns")
    return np.asarray(view)


def gather(
    arena: Arena,
    handles: list[int],
    input_ids: Any,
    attention_mask: Any,
    token_type_ids: Any = None,
    pad_id: int = 0,
) -> int:
    """Fills one row of each buffer for each handle, to the buffers' full width; further rows stay as they are.

    The rows must be ready: nobody is writing them. Where the loop is long enough to run without the GIL, rows that
    are not pinned yet are pinned while it runs, so a member dropped or released meanwhile is gathered whole and freed
    afterwards.

    Args:
        arena: Where the rows are.
        handles: A list or tuple of handles, in the order of the batch.
        input_ids: C-contiguous, writable, 2-D, int32 or int64; gets the ids, then `pad_id`.
        attention_mask: The same shape and type; gets 1 over ids, 0 over padding.
        token_type_ids: The same shape and type, or None; gets 1 over the second segment, 0 elsewhere.
        pad_id: The id of padding; fits in 32 bits.

    Returns:
        The length of the longest row.

    Raises:
        StaleToken: A lease has ended.
        TypeError: An argument has the wrong type.
        ValueError: The buffers differ, have the wrong layout, or are too small.
        OverflowError: `pad_id` or a handle does not fit.
    """
    if not isinstance(arena, Arena):
        raise TypeError(f"arena must be an Arena, got {type(arena).__name__}")
    if not isinstance(handles, (list, tuple)):
        raise TypeError(f"handles must be a list or tuple of ints, got {type(handles).__name__}")
    pad_id = as_int32("pad_id", pad_id)
    ids = _buffer("input_ids", input_ids)
    mask = _buffer("attention_mask", attention_mask)
    types = None if token_type_ids is None else _buffer("token_type_ids", token_type_ids)
    for name, buffer in (("attention_mask", mask), ("token_type_ids", types)):
        if buffer is not None and buffer.shape != ids.shape:
            raise ValueError(f"{name} has shape {buffer.shape} and input_ids has {ids.shape}; pass equal shapes")
        if buffer is not None and buffer.itemsize != ids.itemsize:
            size = buffer.itemsize
            raise ValueError(f"{name} has {size} bytes an item and input_ids {ids.itemsize}; pass equal types")
    rows, width = ids.shape
    if len(handles) > rows:
        raise ValueError(f"{len(handles)} handles need as many rows, and the buffers have {rows}")
    longest = 0
    for handle in handles:
        if not arena.live(as_int64("handle", handle)):
            raise arena._stale(handle)
        longest = max(longest, arena.length[handle & (MAX_SLOTS - 1)])
    if longest > width:
        raise ValueError(f"the longest row has {longest} ids, and the buffers are {width} wide")
    for i, handle in enumerate(handles):
        slot = handle & (MAX_SLOTS - 1)
        n, split = arena.length[slot], arena.split[slot]
        ids[i, :n] = arena.blocks.read(arena.first_block[slot], n)
        ids[i, n:] = pad_id
        mask[i, :n] = 1
        mask[i, n:] = 0
        if types is not None:
            types[i] = 0
            if split >= 0:
                types[i, split:n] = 1
    return longest
