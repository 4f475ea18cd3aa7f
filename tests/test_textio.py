"""Reading texts and writing vectors: every format, and every way in which a file can be broken."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from relay.textio import MAX_LINE_BYTES, BadInput, Record, TextReader, input_format
from relay.vectorio import VectorWriter, npy_header, output_format, partial_path


def read(path: Path, format: str | None = None, field: str | None = None) -> list[Record]:
    reader = TextReader(str(path), format or input_format(str(path), None, field), field)
    try:
        return list(reader)
    finally:
        reader.close()


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def texts(records: list[Record]) -> list[str]:
    assert all(record.problem is None for record in records), records
    return [record.text for record in records]


# Which format.


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.txt", "lines"), ("a", "lines"), ("-", "lines"), ("a.csv", "csv"), ("a.CSV.GZ", "csv"), ("a.tsv", "tsv"),
        ("a.jsonl", "jsonl"), ("a.ndjson.gz", "jsonl"), ("a.json", "jsonl"), ("a.txt.gz", "lines"),
    ],
)  # fmt: skip
def test_input_format_goes_by_name(name: str, format: str) -> None:
    assert input_format(name) == format


def test_input_format_asked_for_wins() -> None:
    assert input_format("-", "jsonl", "body") == "jsonl"


def test_field_of_plain_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="--input-format"):
        input_format("a.txt", None, "body")


# Lines.


def test_lines_end_at_newline_alone(tmp_path: Path) -> None:
    lines = ["a\u0085b", "c\u2028d\u2029", "e\x0bf\x0cg\x1ch", "i\rj", "", "\U0001f600", "k\x00l"]
    path = write(tmp_path / "a.txt", "\n".join(lines).encode())
    assert texts(read(path)) == lines
    assert [record.line for record in read(path)] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n", ["a"]), (b"a\n\n", ["a", ""]), (b"a\r\nb\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", ["a", "\ufeffb"]), (b"\xef\xbb\xbf", []),
    ],
)  # fmt: skip
def test_line_ends_and_byte_order_mark(tmp_path: Path, data: bytes, expected: list[str]) -> None:
    assert texts(read(write(tmp_path / "a.txt", data))) == expected


def test_bad_utf8_names_the_line_and_reading_goes_on(tmp_path: Path) -> None:
    records = read(write(tmp_path / "a.txt", b"good\nb\xffd\nfine\n"))
    assert [record.problem is None for record in records] == [True, False, True]
    assert records[1].line == 2 and "0xff at position 2" in str(records[1].problem)


def test_utf16_is_recognised(tmp_path: Path) -> None:
    records = read(write(tmp_path / "a.txt", "hello\n".encode("utf-16")))
    assert "iconv -f UTF-16" in str(records[0].problem)


def test_overlong_line_is_one_problem(tmp_path: Path) -> None:
    records = read(write(tmp_path / "a.txt", b"x" * (2 * MAX_LINE_BYTES + 7) + b"\nnext\n"))
    assert records == [Record(1, "", "is longer than 16 MiB"), Record(2, "next")]


# gzip.


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt"])
def test_gzip_is_known_by_name_or_content(tmp_path: Path, name: str) -> None:
    data = gzip.compress(b"a\nb\n") + gzip.compress(b"c\n")
    assert texts(read(write(tmp_path / name, data))) == ["a", "b", "c"]


def test_truncated_gzip_gives_what_it_has_then_names_file_and_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lines = ["".join(map(chr, rng.integers(97, 123, 60))) for _ in range(5000)]
    path = write(tmp_path / "a.txt.gz", gzip.compress("\n".join(lines).encode())[:-5000])
    reader = TextReader(str(path), "lines")
    seen = []
    with pytest.raises(BadInput, match=r"a\.txt\.gz: the gzip data is broken after line \d+") as caught:
        seen.extend(record.text for record in reader)
    assert seen == [] or seen == lines[: len(seen)]
    got = []
    again = iter(TextReader(str(path), "lines"))
    try:
        while True:
            got.append(next(again).text)
    except BadInput:
        pass
    assert 1000 < len(got) < 5000 and got == lines[: len(got)]
    assert f"line {len(got)}" in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"plain text", b"\x1f\x8bgarbage", gzip.compress(b"abc\n" * 1000)[:20] + b"\xff" * 40]
)
def test_broken_gzip_is_bad_input(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(BadInput, match="gzip data is broken"):
        read(write(tmp_path / "a.txt.gz", data))


# JSON lines.


def test_jsonl_fields_strings_and_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"text": "a", "n": 1}\n\n"bare"\r\n{"text": "\\ud83d\\ude00\\u2028"}\n  \n')
    assert read(path) == [Record(1, "a"), Record(3, "bare"), Record(4, "\U0001f600\u2028")]
    path = write(tmp_path / "b.jsonl", b'{"body": "b"}')
    assert read(path, field="body") == [Record(1, "b")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"text": "a"', "not valid JSON"),
        (b'[{"text": "a"},', "a JSON array is not JSON lines"),
        (b'{"txt": "a", "id": 4}', "has no field 'text'; it has 'txt', 'id' (choose one with --field)"),
        (b"{}", "it has nothing"),
        (b'{"text": 3}', "has a number in field 'text'"),
        (b'{"text": null}', "has null in field"),
        (b'{"text": ["a"]}', "has an array in field"),
        (b"17", "a number where an object was expected"),
        (b'{"text": "\\ud800"}', "holds a lone surrogate (U+D800)"),
        (b'"x\\udc00"', "holds a lone surrogate (U+DC00)"),
        (b'{"text": "\xff"}', "is not UTF-8"),
        (b"[" * 200_000, "JSON"),
        (b'{"text": ' + b"9" * 5000 + b"}", "is not usable JSON"),
    ],
    ids=range(13),
)
def test_jsonl_bad_line_is_named_and_reading_goes_on(tmp_path: Path, line: bytes, problem: str) -> None:
    records = read(write(tmp_path / "a.jsonl", b'"before"\n' + line + b'\n"after"\n'))
    assert [record.text for record in records] == ["before", "", "after"]
    assert records[1].line == 2 and problem in str(records[1].problem)


def test_bare_string_is_refused_where_a_field_was_asked_for(tmp_path: Path) -> None:
    records = read(write(tmp_path / "a.jsonl", b'"bare"'), field="text")
    assert "a string where an object was expected" in str(records[0].problem)


# CSV.


def test_csv_quotes_newlines_and_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [("1", 'say "hi", twice\nor not'), ("2", "u\u0085v\u2028w"), ("3", ""), ("4", "end")]
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *rows])
    assert texts(read(path)) == [text for _, text in rows]
    assert [record.line for record in read(path)] == [2, 4, 5, 6]


def test_tsv_and_field(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv.gz", gzip.compress("id\tquery\n1\ta,b\n2\tcafé\n".encode()))
    assert texts(read(path, field="query")) == ["a,b", "café"]


def test_csv_without_the_column_lists_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"a\.csv:1: no column 'text'; there is 'id', 'body' \(choose one with --field\)"
    ):
        read(write(tmp_path / "a.csv", b"id,body\n1,x\n"))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (b"1", "has 1 columns; 'text' is column 2"),
        (b'1,"a"b', "is not valid CSV"),
        (b"1,b\xffd", "is not UTF-8"),
        (b"1,a\rb", "is not valid CSV"),
    ],
)
def test_csv_bad_row_is_named_and_reading_goes_on(tmp_path: Path, row: bytes, problem: str) -> None:
    records = read(write(tmp_path / "a.csv", b"id,text\n0,before\n" + row + b"\n\n2,after\n"))
    assert [record.text for record in records] == ["before", "", "after"]
    assert records[1].line == 3 and problem in str(records[1].problem)


def test_csv_open_quote_names_the_row_it_starts_in(tmp_path: Path) -> None:
    records = read(write(tmp_path / "a.csv", b'text\nfine\n"never closed\nmore\n'))
    assert records[0] == Record(2, "fine")
    assert records[1].line == 3 and "unexpected end of data" in str(records[1].problem)


def test_empty_csv_has_no_rows(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.csv", b"")) == []


# Writing.


@pytest.mark.parametrize(("rows", "dimensions"), [(0, 1), (7, 384), (10**12, 10**6)])
def test_npy_header_is_what_numpy_reads(tmp_path: Path, rows: int, dimensions: int) -> None:
    header = npy_header(rows, dimensions)
    assert len(header) == 128
    with write(tmp_path / "a.npy", header).open("rb") as file:
        assert np.lib.format.read_magic(file) == (1, 0)
        assert np.lib.format.read_array_header_1_0(file) == ((rows, dimensions), False, np.dtype("<f4"))


def test_output_format() -> None:
    assert [output_format(name) for name in ("a.npy", "b.JSONL", "c.ndjson", "d.csv", "-")] == [
        "npy",
        "jsonl",
        "jsonl",
        "csv",
        "jsonl",
    ]
    assert output_format("a.dat", "npy") == "npy"
    with pytest.raises(ValueError, match="--format npy, jsonl or csv"):
        output_format("a.dat")
    with pytest.raises(ValueError, match="standard output"):
        output_format("-", "npy")


VECTORS = np.random.default_rng(2).standard_normal((5, 3)).astype("f4")


def written(path: Path, format: str, force: bool = False) -> VectorWriter:
    writer = VectorWriter(str(path), format, force)
    writer.start(3)
    for line, vector in enumerate(VECTORS, 1):
        writer.write(line, None if line == 2 else vector, "was bad")
    return writer


def test_npy_holds_rows_and_nan(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    written(path, "npy").commit()
    found = np.load(path)
    assert found.dtype == np.float32 and np.isnan(found[1]).all()
    np.testing.assert_array_equal(np.delete(found, 1, 0), np.delete(VECTORS, 1, 0))
    assert list(tmp_path.iterdir()) == [path]


def test_jsonl_and_csv_give_back_the_same_floats(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", "jsonl").commit()
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().split("\n")[:-1]]
    assert rows[1] == {"line": 2, "embedding": None, "error": "was bad"}
    assert [row["line"] for row in rows] == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(np.asarray(rows[4]["embedding"], "f4"), VECTORS[4])
    written(tmp_path / "a.csv", "csv").commit()
    with (tmp_path / "a.csv").open(newline="") as file:
        table = list(csv.reader(file))
    assert table[0] == ["line", "e0", "e1", "e2"] and table[2] == ["2", "", "", ""]
    np.testing.assert_array_equal(np.asarray(table[3][1:], "f4"), VECTORS[2])


@pytest.mark.parametrize("format", ["npy", "jsonl", "csv"])
def test_stopped_file_is_whole_up_to_the_last_row(tmp_path: Path, format: str) -> None:
    target = tmp_path / f"a.{format}"
    writer = written(target, format)
    writer._file.write(b"half a r")  # as an interrupt in the middle of a row leaves it
    partial = Path(writer.stop())
    assert partial == tmp_path / f"a.partial.{format}" and not target.exists()
    assert writer.rows == 5
    if format == "npy":
        np.testing.assert_array_equal(np.load(partial)[2:], VECTORS[2:])
    else:
        assert partial.read_bytes().count(b"\n") == 5 + (format == "csv") and partial.read_bytes().endswith(b"\n")


def test_flushed_npy_can_be_read_while_it_grows(tmp_path: Path) -> None:
    writer = written(tmp_path / "a.npy", "npy")
    writer.flush()
    assert np.load(writer.path).shape == (5, 3)
    writer.write(6, VECTORS[0])
    writer.commit()
    assert np.load(tmp_path / "a.npy").shape == (6, 3)


def test_stop_before_the_first_row_leaves_nothing(tmp_path: Path) -> None:
    assert VectorWriter(str(tmp_path / "a.npy"), "npy").stop() == ""
    assert list(tmp_path.iterdir()) == []


def test_existing_file_needs_force_and_is_replaced_only_at_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"old")
    with pytest.raises(FileExistsError, match="--force"):
        VectorWriter(str(path), "csv")
    writer = written(path, "csv", force=True)
    assert path.read_bytes() == b"old"
    writer.commit()
    assert path.read_bytes().startswith(b"line,e0")


def test_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    writer = written(tmp_path / "a.csv", "csv")
    write(tmp_path / "a.csv", b"someone else's")
    with pytest.raises(FileExistsError):
        writer.commit()
    assert Path(writer.stop()).read_bytes().count(b"\n") == 6
    assert (tmp_path / "a.csv").read_bytes() == b"someone else's"


def test_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    written(tmp_path / "link.csv", "csv").commit()
    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "real.csv").is_file()


def test_device_is_written_to_and_never_replaced() -> None:
    written(Path("/dev/null"), "csv").commit()
    assert Path("/dev/null").is_char_device()


def test_wrong_shape_from_the_model_is_said(tmp_path: Path) -> None:
    writer = written(tmp_path / "a.npy", "npy")
    with pytest.raises(ValueError, match=r"shape \(4,\) instead of \(3,\)"):
        writer.write(6, np.zeros(4, "f4"))


def test_partial_path() -> None:
    assert partial_path("d.x/out.npy") == "d.x/out.partial.npy" and partial_path("out") == "out.partial"
