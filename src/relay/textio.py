"""Reading texts from a file, a record at a time, in bounded memory: plain lines, CSV, TSV, JSON lines, gzipped or not.

Owned by one thread. The invariant: whatever the file holds, every record comes out once, in order, with the number of
the line it starts on, and is either a text that can be encoded as UTF-8 or a problem in words. Lines end at ``\\n``
alone: texts may hold U+0085 or U+2028. What makes the rest of the file unreadable (a cut-off gzip file, say) raises
`BadInput` after the last record that could be read.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, cast

MAX_LINE_BYTES = 16 << 20
FORMATS = ("lines", "jsonl", "csv", "tsv")
DEFAULT_FIELD = "text"

_SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
_BOM = b"\xef\xbb\xbf"
_BAD_UTF8 = "is not UTF-8"


class Record(NamedTuple):
    """One record of the input.

    Attributes:
        line: The line it starts on, from 1.
        text: The text, or "" where there is a problem.
        problem: Why there is no text, or None.
    """

    line: int
    text: str
    problem: str | None = None


class BadInput(Exception):
    """The rest of the input cannot be read; the text names the file and, where known, the line."""


def input_format(path: str, asked: str | None = None, field: str | None = None) -> str:
    """Decides how the file is read.

    Args:
        path: The file, or ``-``.
        asked: What the caller asked for, or None to go by the name.
        field: The field asked for, which only structured files have.

    Raises:
        ValueError: A field of a file that has none.
    """
    name = path.lower().removesuffix(".gz")
    chosen = asked or _SUFFIXES.get(os.path.splitext(name)[1], "lines")
    if chosen == "lines" and field is not None:
        raise ValueError(
            f"--field {field} needs a file with fields, and {path} is read as plain lines; "
            "say --input-format jsonl, csv or tsv if it is one of these"
        )
    return chosen


class TextReader:
    """The records of one file; iterate over it once.

    Args:
        path: The file, or ``-`` for standard input.
        format: One of `FORMATS`.
        field: The column or key that holds the text.

    Attributes:
        size: Bytes of the file as it lies on disk, or None where it is no regular file.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: str, format: str, field: str | None = None) -> None:
        self.name = "standard input" if path == "-" else path
        self._format = format
        self._bare = field is None  # then a JSON line may also be the string itself
        self._field = DEFAULT_FIELD if field is None else field
        self._file: BinaryIO = sys.stdin.buffer if path == "-" else open(path, "rb")
        found = os.fstat(self._file.fileno()) if path != "-" else None
        self.size = found.st_size if found is not None and found.st_size else None
        self._line = 0

    def consumed(self) -> int:
        """Bytes of the file read so far."""
        return self._file.tell()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not sys.stdin.buffer:
            self._file.close()

    def __iter__(self) -> Iterator[Record]:
        """Reads on.

        Raises:
            BadInput: The rest of the file cannot be read.
            ValueError: There is no such column.
        """
        if self._format == "lines":
            return self._plain()
        if self._format == "jsonl":
            return self._jsonl()
        return self._csv("\t" if self._format == "tsv" else ",")

    def _lines(self) -> Iterator[bytes | None]:
        """Lines with their ends; None for one that is too long. `_line` is the number of the line just given."""
        try:
            # peek, because a pipe cannot be rewound; what stands in for standard input may lack it.
            head = self._file.peek(2)[:2] if isinstance(self._file, io.BufferedReader) else b""
            packed = head == b"\x1f\x8b" or self.name.lower().endswith(".gz")
            stream = cast(BinaryIO, gzip.open(self._file, "rb")) if packed else self._file
            while line := stream.readline(MAX_LINE_BYTES + 1):
                self._line += 1
                if self._line == 1:
                    line = line.removeprefix(_BOM)
                    if not line:
                        return
                if len(line) <= MAX_LINE_BYTES:
                    yield line
                    continue
                while line and not line.endswith(b"\n"):
                    line = stream.readline(MAX_LINE_BYTES)
                yield None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise BadInput(f"{self.name}: the gzip data is broken after line {self._line} ({error})") from error
        except OSError as error:
            raise BadInput(f"{self.name}: reading failed after line {self._line} ({error})") from error

    def _plain(self) -> Iterator[Record]:
        for line in self._lines():
            if line is None:
                yield Record(self._line, "", _TOO_LONG)
                continue
            try:
                text = line.removesuffix(b"\n").removesuffix(b"\r").decode()
            except UnicodeDecodeError as error:
                yield Record(self._line, "", _not_utf8(line, error))
            else:
                yield Record(self._line, text)

    def _jsonl(self) -> Iterator[Record]:
        for line in self._lines():
            if line is None:
                yield Record(self._line, "", _TOO_LONG)
            elif not line.isspace():
                yield self._json_record(line)

    def _json_record(self, line: bytes) -> Record:
        try:
            value = json.loads(line.decode())
        except UnicodeDecodeError as error:
            return Record(self._line, "", _not_utf8(line, error))
        except json.JSONDecodeError as error:
            hint = "; a JSON array is not JSON lines: write one value a line" if line.lstrip()[:1] == b"[" else ""
            return Record(self._line, "", f"is not valid JSON ({error.msg} at column {error.colno}){hint}")
        except (RecursionError, ValueError) as error:
            return Record(self._line, "", f"is not usable JSON ({error})")
        if isinstance(value, str) and self._bare:
            return self._checked(value)
        if not isinstance(value, dict):
            return Record(self._line, "", f"is JSON, but {_kind(value)} where an object was expected")
        if self._field not in value:
            keys = ", ".join(map(repr, list(value)[:8])) or "nothing"
            return Record(self._line, "", f"has no field {self._field!r}; it has {keys} (choose one with --field)")
        text = value[self._field]
        if not isinstance(text, str):
            return Record(self._line, "", f"has {_kind(text)} in field {self._field!r} where a text was expected")
        return self._checked(text)

    def _checked(self, text: str) -> Record:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return Record(self._line, "", f"holds a lone surrogate (U+{ord(text[error.start]):04X}), which is no text")
        return Record(self._line, text)

    def _csv(self, delimiter: str) -> Iterator[Record]:
        csv.field_size_limit(MAX_LINE_BYTES)
        rows = csv.reader(self._csv_lines(), delimiter=delimiter, strict=True)
        column = -1
        while True:
            start = self._line + 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                if column < 0:
                    raise ValueError(f"{self.name}:{start}: the header is not valid CSV ({error})") from error
                yield Record(start, "", f"is not valid CSV ({error})")
                continue
            if column < 0:
                column = self._column(row, start)
            elif row:  # csv gives [] for an empty line
                yield self._csv_record(row, column, start)

    def _csv_lines(self) -> Iterator[str]:
        for line in self._lines():
            if line is None:
                raise BadInput(f"{self.name}:{self._line}: {_TOO_LONG}")
            # Bad bytes become lone surrogates, which no UTF-8 holds; the row that has them is named when it is
            # complete.
            yield line.decode("utf-8", "surrogateescape")

    def _column(self, header: list[str], line: int) -> int:
        if self._field not in header:
            names = ", ".join(map(ascii, header[:20])) or "nothing"
            raise ValueError(
                f"{self.name}:{line}: no column {self._field!r}; there is {names} (choose one with --field)"
            )
        return header.index(self._field)

    def _csv_record(self, row: list[str], column: int, line: int) -> Record:
        if column >= len(row):
            return Record(line, "", f"has {len(row)} columns; {self._field!r} is column {column + 1}")
        try:
            row[column].encode()
        except UnicodeEncodeError:
            return Record(line, "", _BAD_UTF8)
        return Record(line, row[column])


_TOO_LONG = f"is longer than {MAX_LINE_BYTES >> 20} MiB"


def _not_utf8(line: bytes, error: UnicodeDecodeError) -> str:
    if line[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return f"{_BAD_UTF8} but UTF-16; convert the file first: iconv -f UTF-16 -t UTF-8"
    return f"{_BAD_UTF8} (byte 0x{error.object[error.start]:02x} at position {error.start + 1})"


def _kind(value: object) -> str:
    if value is None:
        return "null"
    return {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}.get(
        type(value), "an object"
    )
