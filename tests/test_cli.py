"""The command line: embed end to end, what it says when something is wrong, and what an interrupt leaves behind."""

from __future__ import annotations

import csv
import gc
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relay
from relay import cli, cli_embed, models, tuning
from relay.cli import main


def vector(text: str) -> list[float]:
    return [len(text), sum(map(ord, text)) % 1000, ord(text[0]) if text else -1]


class Toy:
    """A model for the command line."""

    name, task, dimensions, deterministic = "toy", "embed", 3, True

    def __init__(self) -> None:
        self.calls = 0
        self.interrupt_at = 0

    def __call__(self, items: list[str]) -> Any:
        self.calls += 1
        if self.calls == self.interrupt_at:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return [ValueError("bad item") if item == "bad" else np.array(vector(item), "f4") for item in items]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    model = Toy()
    monkeypatch.setattr(models, "load", lambda name, threads: model)
    gc.disable()  # a Ctrl-C that comes inside a callback of the collector, such as hypothesis has, is swallowed
    yield model
    gc.enable()


@pytest.fixture(autouse=True)
def switch_interval() -> Iterator[None]:
    """The process is the tests', not the command line's."""
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_bytes("".join(f"text {i} {'x' * (i * 37 % 200)}\n" for i in range(3000)).encode())
    return path


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def embed(*words: object) -> int:
    return main(["embed", *map(str, words)])


# From file to file.


def test_lines_to_npy_in_order(toy: Toy, lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert embed(lines, "-o", tmp_path / "out.npy") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), [vector(text) for text in read_lines(lines)])
    seen = capsys.readouterr()
    assert seen.out == "" and "3,000 rows in" in seen.err and "rows/s" in seen.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.npy"]


def test_more_rows_and_characters_than_the_window(
    toy: Toy, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_embed, "WINDOW_ROWS", 50)
    monkeypatch.setattr(cli_embed, "WINDOW_CHARS", 2000)
    monkeypatch.setattr(cli_embed, "FLUSH_S", 0.0)
    assert embed(lines, "-o", tmp_path / "out.npy", "--batch-size", 16) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), [vector(text) for text in read_lines(lines)])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_structured_inputs(toy: Toy, tmp_path: Path, kind: str, packed: bool) -> None:
    texts = ["plain", "with, comma\tand tab", 'quote " and\nnewline', "u\u0085v\u2028w", "\U0001f600", ""]
    buffer = io.StringIO(newline="")
    if kind == "jsonl":
        buffer.writelines(
            json.dumps({"id": i, "body": text}, ensure_ascii=i % 2 == 0) + "\n" for i, text in enumerate(texts)
        )
    else:
        csv.writer(buffer, delimiter="\t" if kind == "tsv" else ",").writerows([("id", "body"), *enumerate(texts)])
    path = tmp_path / (f"in.{kind}" + ".gz" * packed)
    data = buffer.getvalue().encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    assert embed(path, "-o", tmp_path / "out.jsonl", "--field", "body") == 0
    assert [json.loads(line)["embedding"] for line in read_lines(tmp_path / "out.jsonl")] == [
        vector(text) for text in texts
    ]


def test_standard_input_to_standard_output(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a"}\n{"text": "bc"}\n')))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(os.fdopen(os.dup(1), "wb"), write_through=True))
    assert embed("-", "--input-format", "jsonl", "-o", "-", "--format", "csv") == 0
    rows = list(csv.reader(io.StringIO(capfdbinary.readouterr().out.decode())))
    assert rows == [["line", "e0", "e1", "e2"], ["1", "1", "97", "97"], ["2", "2", "197", "98"]]


def test_empty_input_gives_an_empty_array(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"")
    assert embed(tmp_path / "in.txt", "-o", tmp_path / "out.npy") == 0
    assert np.load(tmp_path / "out.npy").shape == (0, 3)


def test_progress_bar_tells_rows_rate_and_time_left(
    toy: Toy, lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tqdm", reason="needs the extra hf")
    assert embed(lines, "-o", tmp_path / "out.npy", "--progress") == 0
    error = capsys.readouterr().err
    assert "100%|" in error and "3,000 rows, " in error and "rows/s [" in error


# What can be wrong.


BROKEN = b'{"text": "a"}\n{"text": "b"\n{"text": "bad"}\n{"text": "\\ud800"}\n{"id": 5}\n{"text": "c"}\n'


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    (tmp_path / "in.jsonl").write_bytes(BROKEN)
    return tmp_path / "in.jsonl"


def test_errors_stop_names_file_line_and_way_out(
    toy: Toy, broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert embed(broken, "-o", tmp_path / "out.npy") == 1
    error = capsys.readouterr().err
    assert "in.jsonl:2: is not valid JSON" in error and "--errors skip" in error and "1 rows written to" in error
    assert not (tmp_path / "out.npy").exists()
    np.testing.assert_array_equal(np.load(tmp_path / "out.partial.npy"), [vector("a")])


def test_errors_stop_at_a_bad_item_keeps_the_rows_before_it(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_bytes(b"a\nb\nbad\nc\n")
    assert embed(tmp_path / "in.txt", "-o", tmp_path / "out.npy") == 1
    assert "in.txt:3: could not be embedded (ValueError: bad item" in capsys.readouterr().err
    assert len(np.load(tmp_path / "out.partial.npy")) == 2


def test_errors_skip_leaves_rows_out_and_null_keeps_their_places(
    toy: Toy, broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert embed(broken, "-o", tmp_path / "skip.jsonl", "--errors", "skip") == 0
    error = capsys.readouterr().err
    assert [f"in.jsonl:{n}: " in error for n in range(1, 7)] == [False, True, True, True, True, False]
    assert "4 bad records" in error
    assert [json.loads(line)["line"] for line in read_lines(tmp_path / "skip.jsonl")] == [1, 6]
    assert embed(broken, "-o", tmp_path / "null.npy", "--errors", "null") == 0
    found = np.load(tmp_path / "null.npy")
    assert np.isnan(found).all(1).tolist() == [False, True, True, True, True, False]


def test_many_bad_records_are_counted_not_shown(toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"{\n" * 1000)
    assert embed(tmp_path / "in.jsonl", "-o", tmp_path / "out.npy", "--errors", "skip") == 0
    error = capsys.readouterr().err
    assert error.count("\n") < 30 and "1,000 bad records" in error


def test_truncated_gzip(toy: Toy, lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.txt.gz"
    path.write_bytes(gzip.compress(lines.read_bytes())[:-2000])
    assert embed(path, "-o", tmp_path / "out.npy") == 1
    error = capsys.readouterr().err
    assert "in.txt.gz: the gzip data is broken after line" in error and "--errors skip" in error
    kept = np.load(tmp_path / "out.partial.npy")
    assert 0 < len(kept) < 3000
    assert embed(path, "-o", tmp_path / "out.npy", "--errors", "skip") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), kept)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.txt", "-o", "out.npy"], "nowhere.txt is not there"),
        (["in.txt", "-o", "nowhere/out.npy"], "is not there"),
        (["in.txt", "-o", "out.dat"], "--format"),
        (["in.txt", "-o", "-", "--format", "npy"], "standard output"),
        (["in.txt", "-o", "out.npy", "--field", "x"], "--input-format"),
        (["in.csv", "-o", "out.npy"], "no column 'text'; there is 'id', 'body'"),
        (["in.txt", "-o", "in.csv"], "--force"),
        ([".", "-o", "out.npy"], "directory"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_written(
    toy: Toy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_bytes(b"a\n")
    Path("in.csv").write_bytes(b"id,body\n1,x\n")
    assert main(["embed", *words]) in (1, 2)
    seen = capsys.readouterr()
    assert seen.err.startswith("relay embed: ") and said in seen.err.lower() and "Traceback" not in seen.err
    assert sorted(os.listdir()) == ["in.csv", "in.txt"] and toy.calls == 0


def test_force_replaces_at_the_end(toy: Toy, lines: Path, tmp_path: Path) -> None:
    (tmp_path / "out.npy").write_bytes(b"old")
    assert embed(lines, "-o", tmp_path / "out.npy", "--force") == 0
    assert len(np.load(tmp_path / "out.npy")) == 3000


def test_rows_of_an_earlier_run_are_not_overwritten(
    toy: Toy, lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out.partial.npy").write_bytes(b"rescued")
    assert embed(lines, "-o", tmp_path / "out.npy") == 0
    assert (tmp_path / "out.partial.npy").read_bytes() == b"rescued" and len(np.load(tmp_path / "out.npy")) == 3000
    (tmp_path / "out.npy").unlink()
    toy.interrupt_at = toy.calls + 20
    assert embed(lines, "-o", tmp_path / "out.npy") == 130
    assert "rows written to" in capsys.readouterr().err and (tmp_path / "out.partial-2.npy").exists()


def test_the_input_is_never_the_output(
    toy: Toy, lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = lines.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(lines)
    assert embed(lines, "-o", tmp_path / "link.jsonl", "--force") == 2
    assert "is the input itself" in capsys.readouterr().err and lines.read_bytes() == before


def test_model_that_is_not_there_leaves_nothing(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(name: str, threads: int) -> Any:
        raise relay.LoadFailed(f"no model {name}")

    monkeypatch.setattr(models, "load", load)
    assert embed(lines, "-o", tmp_path / "out.npy", "--model", "nope") == 1
    assert "no model nope" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


def test_model_that_does_not_embed_is_refused(
    toy: Toy, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toy, "task", "rerank", raising=False)
    assert embed(lines, "-o", tmp_path / "out.npy", "--model", "judge") == 1
    assert "judge is a model to rerank, not to embed" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


# Interrupts.


def test_interrupt_leaves_a_usable_file_and_says_so(
    toy: Toy, lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.interrupt_at = 20
    assert embed(lines, "-o", tmp_path / "out.npy") == 130
    found = np.load(tmp_path / "out.partial.npy")
    np.testing.assert_array_equal(found, [vector(text) for text in read_lines(lines)[: len(found)]])
    assert f"interrupted; {len(found):,} rows written to" in capsys.readouterr().err
    assert not (tmp_path / "out.npy").exists()


PROCESS = """
import sys, numpy
from relay import models
class Toy:
    name, task, dimensions, max_length = "toy", "embed", 2, 8
    def __call__(self, items):
        return numpy.ones((len(items), 2), "f4")
models.load = lambda name, **_: Toy()
from relay.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_process_interrupted_while_it_waits_for_input(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROCESS, "embed", "-", "-o", str(tmp_path / "out.jsonl")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"text\n" * 20_000)
        process.stdin.flush()
        while not list(tmp_path.glob("out.partial.jsonl")) or not (tmp_path / "out.partial.jsonl").stat().st_size:
            os.sched_yield()
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=30)[1].decode()
    assert process.returncode == 130
    rows = read_lines(tmp_path / "out.partial.jsonl")
    assert f"interrupted; {len(rows):,} rows written to" in error and "Traceback" not in error
    assert all(json.loads(row)["embedding"] == [1, 1] for row in rows)


def test_process_whose_reader_goes_away_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"text\n" * 50_000)
    words = [sys.executable, "-c", PROCESS, "embed", str(tmp_path / "in.txt"), "-o", "-"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        error = process.stderr.read().decode()
    assert (
        process.returncode == 1
        and "has gone away" in error
        and "Traceback" not in error
        and "Exception ignored" not in error
    )


# The rest.


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--version"], relay.__version__),
        (["--help"], "doctor"),
        (["embed", "--help"], "relay embed questions.txt"),
        (["serve", "--help"], "curl http"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0 and said in capsys.readouterr().out
    assert main([]) == 2 and "COMMAND" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["fly"])
    assert ended.value.code == 2 and "'embed', 'serve', 'doctor'" in capsys.readouterr().err.replace('"', "'")


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.startswith("relay.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve"]) == 1
    assert "pip install 'relay-inference[serve]'" in capsys.readouterr().err


def test_backend_option_starts_over_with_it() -> None:
    source = str(Path(relay.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))}
    env.pop("RELAY_BACKEND", None)
    words = [sys.executable, "-m", "relay.cli", "doctor", "--json", "--backend", "pure"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    values = {finding["name"]: finding["value"] for finding in json.loads(done.stdout)}
    assert values["backend"] == "pure, forced by RELAY_BACKEND=pure"


def test_backend_option_that_runs_already_changes_nothing(capsys: pytest.CaptureFixture[str], toy: Toy) -> None:
    assert main(["embed", "nowhere.txt", "-o", "out.npy", "--backend", relay.backend]) == 2
    assert "nowhere.txt is not there" in capsys.readouterr().err


def test_tuning_is_the_command_lines_and_not_the_librarys() -> None:
    script = (
        "import sys; before = sys.getswitchinterval(); import relay, relay.cli, relay.cli_embed;"
        "assert sys.getswitchinterval() == before; assert 'torch' not in sys.modules;"
        "from types import SimpleNamespace as Model; from relay import cli_common, models;"
        "models.load = lambda name, threads: Model(task='embed', dimensions=1);"
        "cli_common.load_embedder('x', 1); assert abs(sys.getswitchinterval() - 0.0002) < 1e-5"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50)


def test_cores_are_those_the_process_may_use() -> None:
    assert 1 <= tuning.cores() <= (os.cpu_count() or 1)


def test_every_command_has_arguments_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in cli.COMMANDS:
        if command == "serve":
            pytest.importorskip("uvicorn", reason="needs the extra serve")
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert "--backend" in capsys.readouterr().out


@pytest.mark.hf
def test_real_model_matches_its_reference(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the extra hf")
    folder = shared / "data" / "reference"
    assert embed(folder / "embeddings_texts.jsonl", "-o", tmp_path / "out.npy") == 0
    np.testing.assert_allclose(
        np.load(tmp_path / "out.npy"), np.load(folder / "embeddings_minilm.npz")["vec"], atol=1e-4
    )
