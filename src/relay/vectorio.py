"""Writing one vector a record to a file, in bounded memory: .npy, JSON lines or CSV.

Owned by one thread. The invariant: what lies on disk up to the last `flush` is a complete file of its format, and the
file asked for appears, whole, only at `commit`; until then, and after a stop, the rows so far lie beside it under the
name `partial_path` gives.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

FORMATS = ("npy", "jsonl", "csv")

Vector = npt.NDArray[np.float32]

_NPY_HEADER_BYTES = 128


def output_format(path: str, asked: str | None = None) -> str:
    """Decides how the file is written.

    Args:
        path: The file, or ``-``.
        asked: What the caller asked for, or None to go by the name.

    Raises:
        ValueError: The name says nothing, or the two do not go together.
    """
    suffix = os.path.splitext(path.lower())[1].lstrip(".")
    chosen = asked or ("jsonl" if path == "-" else {"ndjson": "jsonl"}.get(suffix, suffix))
    if chosen not in FORMATS:
        raise ValueError(f"cannot tell the format of {path} from its name; say --format npy, jsonl or csv")
    if path == "-" and chosen == "npy":
        raise ValueError(
            "npy cannot go to standard output (its row count is written last); use jsonl or csv, or a file"
        )
    return chosen


def partial_path(path: str, number: int = 1) -> str:
    """Where the rows lie until they are all there: ``out.npy`` → ``out.partial.npy``, then ``out.partial-2.npy``."""
    stem, suffix = os.path.splitext(path)
    return f"{stem}.partial{f'-{number}' if number > 1 else ''}{suffix}"


def npy_header(rows: int, dimensions: int) -> bytes:
    """The 128 bytes before the rows of a float32 .npy file; as long for any count, so that it can be corrected."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {dimensions}), }}"
    return b"\x93NUMPY\x01\x00" + (_NPY_HEADER_BYTES - 10).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"


class VectorWriter:
    """One output file.

    Args:
        path: The file to make, or ``-`` for standard output. What is there and no regular file is written to directly.
        format: One of `FORMATS`.
        force: Whether a file that is there may be replaced, at `commit`.

    Attributes:
        rows: Rows written so far.
        path: Where they lie now.

    Raises:
        FileExistsError: The file is there, and `force` is not given.
        OSError: It cannot be opened.
    """

    def __init__(self, path: str, format: str, force: bool = False) -> None:
        # Through a symbolic link, so that the link stays and its target is replaced.
        self._target = path if path == "-" else os.path.realpath(path)
        self._direct = path == "-" or (os.path.exists(self._target) and not os.path.isfile(self._target))
        self._force = force
        self._format = format
        self.rows = 0
        if not self._direct:
            self._refuse_existing()
        self.path = "standard output" if path == "-" else path
        self._file: BinaryIO = sys.stdout.buffer if path == "-" else self._open()
        if format == "npy" and not self._file.seekable():
            self._file.close()
            raise OSError(f"npy needs a file that can be rewound, and {path} cannot; use --format jsonl or csv")
        self._dimensions = 0
        self._good = 0  # bytes of whole rows, and of what comes before them

    def start(self, dimensions: int) -> None:
        """Writes what comes before the rows.

        Args:
            dimensions: Numbers in a vector.
        """
        self._dimensions = dimensions
        self._numbers = ",".join(["%.9g"] * dimensions)  # 9 digits give back the same float32
        self._put(self._header(), 0)
        self._file.flush()

    def _open(self) -> BinaryIO:
        """Opens where the rows go: under a name of this run's own, for another may have left rows or still write."""
        if self._direct:
            return open(self.path, "wb")
        number = 1
        while True:
            self.path = partial_path(self._target, number)
            try:
                return open(self.path, "xb")
            except FileExistsError:
                number += 1

    def _refuse_existing(self) -> None:
        if os.path.exists(self._target) and not self._force:
            raise FileExistsError(f"{self._target} is there already; choose another name, or replace it with --force")

    def _header(self) -> bytes:
        if self._format == "npy":
            return npy_header(0, self._dimensions)
        if self._format == "csv":
            return ("line," + ",".join(f"e{i}" for i in range(self._dimensions)) + "\n").encode()
        return b""

    def _put(self, data: bytes, rows: int) -> None:
        self._file.write(data)
        # One statement, so that an interrupt finds both counts before the row or both after it.
        self._good, self.rows = self._good + len(data), self.rows + rows

    def write(self, line: int, vector: Vector | None, problem: str = "") -> None:
        """Adds a row.

        Args:
            line: The line of the input that it stands for; .npy has no room for it.
            vector: The vector, or None for a row without one (NaN in .npy, null in JSON, empty cells in CSV).
            problem: Why there is none.

        Raises:
            ValueError: The vector is of another size.
        """
        if vector is not None:
            vector = np.asarray(vector, "<f4")
            if vector.shape != (self._dimensions,):
                raise ValueError(f"the model gave a vector of shape {vector.shape} instead of ({self._dimensions},)")
        self._put(self._encoded(line, vector, problem), 1)

    def _encoded(self, line: int, vector: Vector | None, problem: str) -> bytes:
        if self._format == "npy":
            return (np.full(self._dimensions, np.nan, "<f4") if vector is None else vector).tobytes()
        numbers = None if vector is None else self._numbers % tuple(vector.tolist())
        if self._format == "csv":
            text = f"{line},{numbers if numbers is not None else ',' * (self._dimensions - 1)}"
        elif numbers is None:
            text = f'{{"line":{line},"embedding":null,"error":{json.dumps(problem)}}}'
        else:
            text = f'{{"line":{line},"embedding":[{numbers}]}}'
        return text.encode() + b"\n"

    def flush(self) -> None:
        """Makes what is on disk a complete file of the rows so far."""
        if self._format == "npy" and self._dimensions:
            self._file.seek(0)
            self._file.write(npy_header(self.rows, self._dimensions))
            self._file.seek(self._good)
        self._file.flush()

    def stop(self) -> str:
        """Ends early, at any point: what was written stays, less a row cut in the middle.

        Returns:
            Where the rows lie, or "" if there are none and the file was removed.
        """
        if self._file.closed:  # `commit` came to its last step
            return self.path
        if not self._direct:
            self._file.flush()
            self._file.truncate(self._good)
        self.flush()
        self._close()
        if self.rows == 0 and not self._direct:
            with suppress(FileNotFoundError):
                os.remove(self.path)
            return ""
        return self.path

    def commit(self) -> str:
        """Ends well: the file asked for appears.

        Returns:
            Where the rows lie.

        Raises:
            FileExistsError: The file has come into being since, and `force` is not given; the rows stay where they are.
        """
        self.flush()
        self._close()
        if not self._direct:
            self._refuse_existing()
            os.replace(self.path, self._target)
            self.path = self._target
        return self.path

    def _close(self) -> None:
        if self._file is not cast(BinaryIO, sys.stdout.buffer):
            self._file.close()
