"""`relay embed`: a file of texts in, a file of vectors out, in order and in bounded memory.

The main thread reads, submits and writes; the relay's own threads tokenise and run the model. The invariant: rows are
written in the order of the input, and whatever ends the run early (an interrupt, a bad line, a full disk) leaves a
readable file of the rows before it and says so.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import deque
from contextlib import closing
from typing import Any

from relay import BATCH, Overloaded, Relay, RelayError, Ticket, textio, vectorio
from relay.cli_common import CommandFailed, load_embedder, positive
from relay.textio import BadInput, Record, TextReader
from relay.tuning import cores
from relay.vectorio import VectorWriter

WINDOW_ROWS = 8192
"""Texts in the relay at once: enough that batches of equal lengths form."""
WINDOW_CHARS = 32 << 20
FLUSH_S = 2.0
SHOWN_PROBLEMS = 20

_WAY_OUT = "fix the line, or go on without it: --errors skip (leave it out) or --errors null (keep its place)"

EXAMPLES = """\
examples:
  relay embed questions.txt -o questions.npy
  relay embed tickets.jsonl.gz --field body -o tickets.npy --errors null
  relay embed queries.csv --field query -o queries.jsonl
  zcat log.gz | cut -f3 | relay embed - -o - > vectors.jsonl

Row i of the output stands for record i of the input; jsonl and csv also carry its line number. While it runs, rows
lie in OUTPUT's name with ".partial" in it; Ctrl-C leaves them there, readable. Exit codes: 0 done, 1 stopped by an
error, 2 wrong usage, 130 Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's own arguments."""
    add = parser.add_argument
    add("input", metavar="INPUT", help="text lines, .csv, .tsv or .jsonl, each also as .gz; - reads standard input")
    add("-o", "--output", required=True, metavar="OUTPUT", help=".npy, .jsonl or .csv; - writes standard output")
    add("--model", default="minilm", help="a model's name, or the folder it lies in (default: %(default)s)")
    add("--field", metavar="NAME", help="the CSV column or JSON key that holds the text (default: text)")
    add("--input-format", choices=textio.FORMATS, help="where INPUT's name does not tell")
    add("--format", choices=vectorio.FORMATS, help="the output's, where OUTPUT's name does not tell")
    add("--force", action="store_true", help="replace OUTPUT if it is there")
    add(
        "--errors",
        choices=("stop", "skip", "null"),
        default="stop",
        help="at a record that cannot be used: stop, skip it, or write a row of NaN/null (default: %(default)s)",
    )
    add("--batch-size", type=positive, default=64, metavar="N", help="texts in one model call (default: %(default)s)")
    add("--threads", type=positive, metavar="N", help="threads for the model (default: the cores there are)")
    add("--progress", action=argparse.BooleanOptionalAction, help="show a progress bar (default: on a terminal)")


class Progress:
    """A bar on standard error: rows, rate and time left.

    How far the input has been read says how much is left, corrected by the share of read rows that are done.
    """

    def __init__(self, reader: TextReader, asked: bool | None) -> None:
        self.read = self.done = 0
        self._reader = reader
        self._bar: Any = None
        if asked is False or (asked is None and not sys.stderr.isatty()):
            return
        try:
            from tqdm import tqdm
        except ImportError:
            if asked:
                raise CommandFailed("--progress needs tqdm: pip install 'relay-inference[hf]'") from None
            return
        if reader.size is None:
            self._bar = tqdm(unit=" rows", file=sys.stderr)
        else:
            form = "{percentage:3.0f}%|{bar}| {desc} [{elapsed}<{remaining}]"
            self._bar = tqdm(total=reader.size, bar_format=form, file=sys.stderr)
        self._start = self._next = time.monotonic()

    def step(self) -> None:
        """One more row is done."""
        self.done += 1
        if self._bar is not None and (now := time.monotonic()) >= self._next:
            self._next = now + 0.2
            self._show(now)

    def _show(self, now: float) -> None:
        if self._reader.size is None:
            self._bar.update(self.done - self._bar.n)
            return
        rate = self.done / max(now - self._start, 1e-3)
        self._bar.set_description_str(f"{self.done:,} rows, {rate:,.0f} rows/s", refresh=False)
        position = self._reader.consumed() * self.done // max(self.read, 1)
        self._bar.update(max(0, position - self._bar.n))

    def say(self, text: str) -> None:
        """Prints a line without breaking the bar."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr)

    def close(self) -> None:
        """Leaves the bar's last state on the screen."""
        if self._bar is not None:
            self._show(time.monotonic())
            self._bar.close()


class Embedding:
    """One run: keeps a window of texts in the relay and settles them in order.

    Args:
        reader: Where the texts come from.
        writer: Where the vectors go.
        errors: What to do at a record without a vector: stop, skip or null.
        progress: Told of each row.

    Attributes:
        bad: Records without a vector so far.
    """

    def __init__(self, reader: TextReader, writer: VectorWriter, errors: str, progress: Progress) -> None:
        self.bad = 0
        self._reader = reader
        self._writer = writer
        self._errors = errors
        self._progress = progress
        self._window: deque[tuple[Record, Ticket[Any] | None]] = deque()
        self._chars = 0
        self._torn = False
        self._flush_at = time.monotonic() + FLUSH_S

    def run(self, relay: Relay[str, Any]) -> None:
        """Embeds the whole input.

        Raises:
            CommandFailed: A record could not be used, and `errors` is "stop". All before it are written.
        """
        try:
            for record in self._reader:
                self._progress.read += 1
                self._submit(relay, record)
                while self._first_done() or len(self._window) >= WINDOW_ROWS or self._chars > WINDOW_CHARS:
                    self._settle()
        except BadInput as error:
            self._settle_all()
            if self._errors == "stop":
                raise CommandFailed(f"{error}; mend the file, or keep what could be read with --errors skip") from error
            self._say(f"{error}; what comes after is left out")
        except KeyboardInterrupt:
            while not self._torn and self._first_done():
                self._settle()
            raise
        self._settle_all()

    def _submit(self, relay: Relay[str, Any], record: Record) -> None:
        ticket: Ticket[Any] | None = None
        while record.problem is None and ticket is None:
            try:
                ticket = relay.submit(record.text, priority=BATCH)
            except Overloaded:
                if not self._window:
                    raise
                self._settle()  # long texts fill the relay before there are many of them
            except ValueError as error:
                record = Record(record.line, "", f"was refused: {error}")
        self._window.append((record, ticket))
        self._chars += len(record.text)
        if ticket is None and self._errors == "stop":
            self._settle_all()

    def _first_done(self) -> bool:
        if not self._window:
            return False
        ticket = self._window[0][1]
        return ticket is None or ticket.done()

    def _settle_all(self) -> None:
        while self._window:
            self._settle()

    def _settle(self) -> None:
        """Waits for the oldest record and writes its row."""
        record, ticket = self._window[0]
        vector, problem = None, record.problem
        if ticket is not None:
            try:
                vector = ticket.result()
            except Exception as error:  # a model may raise anything
                problem = f"could not be embedded ({type(error).__name__}: {error})"
        self._torn = True  # an interrupt from here on may fall between taking the record and writing its row
        self._window.popleft()
        self._chars -= len(record.text)
        if problem is None:
            self._writer.write(record.line, vector)
        else:
            self._bad_record(record.line, problem)
        self._torn = False
        self._progress.step()
        if (now := time.monotonic()) >= self._flush_at:
            self._flush_at = now + FLUSH_S
            self._writer.flush()

    def _bad_record(self, line: int, problem: str) -> None:
        where = f"{self._reader.name}:{line}: {problem}"
        if self._errors == "stop":
            raise CommandFailed(f"{where}\n{_WAY_OUT}")
        self.bad += 1
        if self._errors == "null":
            self._writer.write(line, None, problem)
        if self.bad <= SHOWN_PROBLEMS:
            self._say(where)
        elif self.bad == SHOWN_PROBLEMS + 1:
            self._say("further bad records are counted, not shown")

    def _say(self, text: str) -> None:
        self._progress.say(f"relay embed: {text}")


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Returns:
        The exit code.

    Raises:
        CommandFailed: The run ended early; what was written is kept, and the text says where.
        ValueError: The arguments do not go together.
        OSError: A file cannot be opened.
    """
    in_format = textio.input_format(args.input, args.input_format, args.field)
    out_format = vectorio.output_format(args.output, args.format)
    if os.path.exists(args.input) and os.path.exists(args.output) and os.path.samefile(args.input, args.output):
        raise ValueError(f"{args.output} is the input itself; choose another name for the output")
    with closing(TextReader(args.input, in_format, args.field)) as reader:
        writer = VectorWriter(args.output, out_format, args.force)  # before the model is loaded, which takes its time
        progress = None
        try:
            model, dimensions = load_embedder(args.model, args.threads or cores())
            writer.start(dimensions)
            progress = Progress(reader, args.progress)
            embedding = Embedding(reader, writer, args.errors, progress)
            started = time.monotonic()
            relay: Relay[str, Any] = Relay(
                model, name="embed", max_batch_size=args.batch_size, max_queue=2 * WINDOW_ROWS
            )
            with relay:
                embedding.run(relay)
            seconds = max(time.monotonic() - started, 1e-3)
            path = writer.commit()
            progress.close()
        except BaseException as error:
            if progress is not None:
                progress.close()
            kept = _gone() if isinstance(error, BrokenPipeError) else _kept(writer)
            if isinstance(error, KeyboardInterrupt):
                print(f"\nrelay embed: interrupted; {kept}", file=sys.stderr)
                return 130
            if isinstance(error, (CommandFailed, RelayError, OSError, ValueError)):
                raise CommandFailed(f"{error}\n{kept}") from error
            error.add_note(kept)
            raise
    bad = f"; {embedding.bad:,} bad records" if embedding.bad else ""
    rate = f"{writer.rows / seconds:,.0f} rows/s"
    print(f"relay embed: {writer.rows:,} rows in {path}, {seconds:.1f} s, {rate}{bad}", file=sys.stderr)
    return 0


def _gone() -> str:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains once more at exit
    return "whoever read standard output has gone away"


def _kept(writer: VectorWriter) -> str:
    try:
        path = writer.stop()
    except OSError as error:  # a full disk
        return f"the rows so far may be incomplete in {writer.path} ({error})"
    return f"{writer.rows:,} rows written to {path}" if path else "no rows were written"
