"""The state word: who holds a slot, in one 64-bit word, and the one table of edges by which it may change.

Owns the layout of words and handles, the edges, and the atomic words themselves. Any thread may call anything here:
the functions are arithmetic on ints, and each word of a `StateWords` changes only by compare-and-swap. Invariant: a
generation names exactly one lease, for every edge that ends a lease (to IDLE, or a hand-over to the next owner) takes
the next one.

    word     bits 0-1 state, 2 PINNED, 3 DROPPED, 8-48 generation
    handle   bits 0-21 slot, 22-62 generation: a positive int64
"""

from __future__ import annotations

import threading
from operator import index

__all__ = [
    "BUSY",
    "DROPPED",
    "EDGES",
    "GEN_BITS",
    "IDLE",
    "MAX_GENERATION",
    "MAX_SLOTS",
    "NAMES",
    "NO_HANDLE",
    "PINNED",
    "QUEUED",
    "REVOKE",
    "SLOT_BITS",
    "StateWords",
    "edge",
    "flags_of",
    "generation_of",
    "handle_generation",
    "handle_of",
    "legal",
    "next_generation",
    "slot_of",
    "state_of",
    "whole",
    "word",
]

IDLE, QUEUED, BUSY, REVOKE = 0, 1, 2, 3
PINNED = 4
DROPPED = 8
SLOT_BITS = 22
GEN_BITS = 41
MAX_SLOTS = 1 << SLOT_BITS
MAX_GENERATION = (1 << GEN_BITS) - 1
NO_HANDLE = -1

NAMES = ("IDLE", "QUEUED", "BUSY", "REVOKE")

# (old, new): True where the edge hands the slot to another owner, and so needs hand_over=True.
_TABLE = {
    (IDLE, QUEUED): False,  # admitted
    (IDLE, BUSY): False,  # granted at once
    (QUEUED, BUSY): False,  # committed to a batch
    (QUEUED, IDLE): False,  # cancelled, expired, displaced
    (BUSY, IDLE): False,  # released
    (BUSY, QUEUED): False,  # retry, pause
    (BUSY, REVOKE): False,  # the holder stopped beating
    (REVOKE, IDLE): False,  # confirmed, or fenced after the grace time
    (BUSY, BUSY): True,
    (REVOKE, BUSY): True,
}
EDGES: frozenset[tuple[int, int]] = frozenset(_TABLE)

_GEN_SHIFT = 8
_MAX_WORD = (1 << (_GEN_SHIFT + GEN_BITS)) - 1


def whole(value: object) -> int | None:
    """The int that an argument is, or stands for by its ``__index__`` (as numpy's do); None for none. A bool is one."""
    if type(value) is int:
        return value
    try:
        return int(index(value))  # type: ignore[arg-type]
    except TypeError:
        return None


def as_int64(name: str, value: int) -> int:
    """Checks that an argument is an int of 64 bits; the core's one convention for it.

    Args:
        name: What the caller calls the argument; it opens the error text.
        value: The argument. A bool counts as an int.

    Returns:
        The value.

    Raises:
        TypeError: It is not an int.
        OverflowError: It does not fit in 64 bits.
    """
    number = value if type(value) is int else whole(value)
    if number is None:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not -0x8000000000000000 <= number <= 0x7FFFFFFFFFFFFFFF:
        raise OverflowError(f"{name} {number} does not fit in 64 bits")
    return number


def as_int32(name: str, value: int) -> int:
    """Checks that an argument is an int of 32 bits; see `as_int64`."""
    number = value if type(value) is int else whole(value)
    if number is None:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not -0x80000000 <= number <= 0x7FFFFFFF:
        raise OverflowError(f"{name} {number} does not fit in 32 bits")
    return number


def as_range(name: str, value: int, low: int, high: int) -> int:
    """Checks that an argument is an int from `low` to `high`, both included.

    Raises:
        TypeError: It is not an int.
        OverflowError: It does not fit in 64 bits.
        ValueError: It is outside the range.
    """
    if type(value) is not int or not low <= value <= high:
        value = as_int64(name, value)
    if not low <= value <= high:
        raise ValueError(f"{name} {value} is outside {low}..{high}")
    return value


def word(generation: int, state: int, flags: int = 0) -> int:
    """Builds a word.

    Args:
        generation: 1 to `MAX_GENERATION`.
        state: IDLE, QUEUED, BUSY or REVOKE.
        flags: Any of PINNED | DROPPED.

    Raises:
        ValueError: A part is out of its range.
    """
    generation = as_range("generation", generation, 1, MAX_GENERATION)
    state = as_range("state", state, IDLE, REVOKE)
    flags = as_int64("flags", flags)
    if flags & ~(PINNED | DROPPED):
        raise ValueError(f"flags {flags} holds bits other than PINNED {PINNED} and DROPPED {DROPPED}")
    return generation << _GEN_SHIFT | flags | state


def state_of(word: int) -> int:
    """The state in a word."""
    return as_range("word", word, 0, _MAX_WORD) & 3


def flags_of(word: int) -> int:
    """The flags in a word: any of PINNED | DROPPED."""
    return as_range("word", word, 0, _MAX_WORD) & (PINNED | DROPPED)


def generation_of(word: int) -> int:
    """The generation in a word."""
    return as_range("word", word, 0, _MAX_WORD) >> _GEN_SHIFT


def handle_of(generation: int, slot: int) -> int:
    """The handle that names one lease of one slot."""
    generation = as_range("generation", generation, 1, MAX_GENERATION)
    return generation << SLOT_BITS | as_range("slot", slot, 0, MAX_SLOTS - 1)


def slot_of(handle: int) -> int:
    """The slot a handle names."""
    return as_range("handle", handle, 0, (1 << 63) - 1) & (MAX_SLOTS - 1)


def handle_generation(handle: int) -> int:
    """The generation a handle was given for."""
    return as_range("handle", handle, 0, (1 << 63) - 1) >> SLOT_BITS


def next_generation(generation: int) -> int:
    """The generation after this one; after the last comes 1, for 0 names no lease."""
    generation = as_range("generation", generation, 1, MAX_GENERATION)
    return generation + 1 if generation < MAX_GENERATION else 1


def legal(old_state: int, new_state: int) -> bool:
    """Whether the table holds the edge, as an ordinary one or as a hand-over."""
    return (as_int64("old_state", old_state), as_int64("new_state", new_state)) in EDGES


def edge(word: int, new_state: int, *, hand_over: bool = False) -> int:
    """Takes an edge of the table.

    An edge that ends a lease takes the next generation and clears the flags; any other keeps both.

    Args:
        word: The word as it is.
        new_state: The state to go to.
        hand_over: The slot goes to another owner (BUSY or REVOKE to BUSY).

    Returns:
        The word to swap in.

    Raises:
        ValueError: The table does not hold the edge.
    """
    word = as_range("word", word, 0, _MAX_WORD)
    new_state = as_range("new_state", new_state, IDLE, REVOKE)
    old_state = word & 3
    kind = _TABLE.get((old_state, new_state))
    if kind is None or kind != bool(hand_over):
        how = "hand-over" if hand_over else "edge"
        raise ValueError(f"there is no {how} {NAMES[old_state]} -> {NAMES[new_state]}; see relay's table of edges")
    if new_state == IDLE or kind:
        generation = word >> _GEN_SHIFT
        return (generation + 1 if generation < MAX_GENERATION else 1) << _GEN_SHIFT | new_state
    return word & ~3 | new_state


class StateWords:
    """A row of atomic words.

    Args:
        n: How many, 1 to `MAX_SLOTS`. Each starts at generation 1, IDLE.
    """

    def __init__(self, n: int) -> None:
        n = as_range("n", n, 1, MAX_SLOTS)
        self._words = [1 << _GEN_SHIFT] * n
        self._lock = threading.Lock()  # makes compare and store one step, as the native instruction does

    def __len__(self) -> int:
        """How many words are not IDLE."""
        return sum(1 for value in self._words if value & 3)

    @property
    def capacity(self) -> int:
        """How many words there are."""
        return len(self._words)

    def load(self, i: int) -> int:
        """Reads a word.

        Raises:
            ValueError: `i` is out of range.
        """
        return self._words[as_range("index", i, 0, len(self._words) - 1)]

    def cas(self, i: int, old: int, new: int) -> bool:
        """Swaps a word if it still is what the caller saw.

        Args:
            i: Which word.
            old: What it was when the caller looked.
            new: What it shall be.

        Returns:
            False if it has changed meanwhile; the word is then left as it is.

        Raises:
            ValueError: `i` or a word is out of range.
        """
        i = as_range("index", i, 0, len(self._words) - 1)
        old = as_range("old", old, 0, _MAX_WORD)
        new = as_range("new", new, 0, _MAX_WORD)
        with self._lock:
            if self._words[i] != old:
                return False
            self._words[i] = new
            return True

    def check(self) -> None:
        """Recounts everything.

        Raises:
            AssertionError: A word breaks the layout; a bug in relay.
        """
        for i, value in enumerate(self._words):
            dangling = value & DROPPED and not value & PINNED
            if value < 1 << _GEN_SHIFT or value & 0xF0 or dangling or (not value & 3 and value & (PINNED | DROPPED)):
                raise AssertionError(f"word {i} is {value:#x}; this is a bug in relay")
