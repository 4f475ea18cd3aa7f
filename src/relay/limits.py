"""Every knob of a `Relay` that has a number, in one place, checked once."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from relay._backend import cache, idcache, state


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and times of one relay.

    Attributes:
        max_batch_size: Members of a batch at most.
        max_batch_tokens: Padded size of a batch at most (members times the longest), or None for no limit.
        max_queue: Requests admitted at once, running ones included.
        max_ids: Input ids kept for all admitted requests together; None gives 64 a request, and at least four of the
            longest rows.
        max_followers: Requests that may share one run at most.
        cache_entries: Answers kept at most, where any are; None gives one for each 512 of their bytes.
        helper_threads: Threads that tokenise; None gives a quarter of the cores, from 1 to 4.
        encode_chunk: Texts tokenised together at most; four times as many while very many wait, and fewer if they are
            long.
        ids_cache_bytes: Memory for the input ids of texts that were tokenised before, so that they need not be
            tokenised again; 0 for none.
        exit_grace_s: How long the interpreter's exit waits for running batches.
        bulk_step_s: How long a batch may be predicted to run that has members less urgent than its first, or is of
            BATCH alone, once anything more urgent has been submitted: what is urgent then waits for no more than this
            and its own run. 0 for no limit.
        look_past: Requests looked at for companions of a similar size at most.

    Raises:
        ValueError: A value is out of range.
    """

    max_batch_size: int = 64
    max_batch_tokens: int | None = None
    max_queue: int = 8192
    max_ids: int | None = None
    max_followers: int = 100_000
    cache_entries: int | None = None
    helper_threads: int | None = None
    encode_chunk: int = 64
    ids_cache_bytes: int = 16 << 20
    exit_grace_s: float = 1.0
    bulk_step_s: float = 0.25
    look_past: int = 256

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            seconds = field.name.endswith("_s")
            least = 0 if seconds or field.name in ("max_followers", "ids_cache_bytes") else 1
            given: float | None
            try:
                given = None if isinstance(value, bool | str) else float(value) if seconds else state.whole(value)
            except TypeError:
                given = None
            if given is None:
                what = "a number of seconds" if seconds else "a whole number"
                raise ValueError(f"{field.name} must be {what}, got {value!r}")
            object.__setattr__(self, field.name, given)  # numpy's numbers become Python's
            if not given >= least:
                raise ValueError(f"{field.name} must be at least {least}, got {value!r}")
        if self.bulk_step_s == float("inf"):
            raise ValueError("bulk_step_s must be finite; 0 means no limit")
        if 0 < self.ids_cache_bytes < idcache.MIN_BYTES or self.ids_cache_bytes > idcache.MAX_BYTES:
            raise ValueError(
                f"ids_cache_bytes must be 0, or from {idcache.MIN_BYTES} to {idcache.MAX_BYTES}, got "
                f"{self.ids_cache_bytes}"
            )
        if self.max_queue > state.MAX_SLOTS:
            raise ValueError(f"max_queue must be at most {state.MAX_SLOTS}, got {self.max_queue}")
        if (self.cache_entries or 0) > cache.MAX_ENTRIES:
            raise ValueError(f"cache_entries must be at most {cache.MAX_ENTRIES}, got {self.cache_entries}")

    def ids_capacity(self, max_length: int) -> int:
        """Room for input ids, given the longest row.

        Raises:
            ValueError: `max_ids` is less than one such row.
        """
        if self.max_ids is not None and self.max_ids < max_length:
            raise ValueError(f"max_ids must be at least {max_length}, one row of max_length ids, got {self.max_ids}")
        return self.max_ids if self.max_ids is not None else max(self.max_queue * 64, 4 * max_length)

    @property
    def helpers(self) -> int:
        """Helper threads to start."""
        return self.helper_threads or min(4, max(1, (os.cpu_count() or 1) // 4))
