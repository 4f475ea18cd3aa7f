"""`relay doctor`: what is installed, which backend runs and why, and what to do about what is missing.

Runs once, in the main thread. The invariant: no finding stops the others; what cannot be asked is a finding too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from importlib.util import find_spec

from relay import __version__, backend
from relay.tuning import SWITCH_INTERVAL_S, cores

EXTRAS = {
    "hf": ("torch", "transformers", "tokenizers", "safetensors"),
    "serve": ("starlette", "uvicorn", "msgspec", "uvloop"),
    "prometheus": ("prometheus_client",),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        name: What was looked at.
        value: What was found.
        advice: What to do about it; "" where nothing need be done.
    """

    name: str
    value: str
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's own arguments."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--model", default="minilm", help="the model to look for (default: %(default)s)")


def examine(model: str = "minilm") -> list[Finding]:
    """Looks at everything.

    Args:
        model: The model to look for; it is loaded.
    """
    found = [
        Finding("relay", __version__),
        Finding("python", f"{platform.python_version()} ({platform.python_implementation()}, {_gil()})"),
        Finding("platform", platform.platform()),
        _backend(),
        *_cpu(),
    ]
    for extra, packages in EXTRAS.items():
        found += [_package(name, extra) for name in packages]
    found += [_guarded("cuda", _cuda), _guarded("nvml", _nvml), _guarded("model", lambda: _model(model))]
    return found


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Returns:
        The exit code.
    """
    found = examine(args.model)
    if args.json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
        return 0
    width = max(len(finding.name) for finding in found)
    for finding in found:
        print(f"{finding.name:<{width}}  {finding.value}")
        if finding.advice:
            print(f"{'':<{width}}  -> {finding.advice}")
    return 0


def _gil() -> str:
    return "with the GIL" if getattr(sys, "_is_gil_enabled", lambda: True)() else "free-threaded"


def _backend() -> Finding:
    forced = os.environ.get("RELAY_BACKEND")
    if forced:
        return Finding("backend", f"{backend}, forced by RELAY_BACKEND={forced}")
    if backend == "native":
        return Finding("backend", "native, because its compiled parts are installed")
    return Finding(
        "backend",
        "pure, because this install has no compiled parts",
        "it behaves the same and is slower; reinstall with a C++ compiler (RELAY_REQUIRE_NATIVE=1 shows what fails)",
    )


def _cpu() -> list[Finding]:
    interval = sys.getswitchinterval()
    advice = ""
    if interval > 2 * SWITCH_INTERVAL_S:
        advice = (
            f"relay serve and embed set {SWITCH_INTERVAL_S * 1e3:g} ms; do the same in a program whose Python threads "
            f"are busy beside a model: sys.setswitchinterval({SWITCH_INTERVAL_S})"
        )
    usable, there = cores(), os.cpu_count() or 1
    limited = f" (of {there}; the rest is out of reach by affinity or quota)" if usable < there else ""
    return [Finding("cores", f"{usable}{limited}"), Finding("switch interval", f"{interval * 1e3:g} ms", advice)]


def _package(name: str, extra: str) -> Finding:
    if find_spec(name) is None:
        return Finding(name, "missing", f"pip install 'relay-inference[{extra}]'")
    try:
        return Finding(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "there, of unknown version")


def _guarded(name: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except Exception as error:  # drivers and models fail in every way there is
        return Finding(
            name, f"failed: {type(error).__name__}: {error}", "the text above is its own; nothing else depends on it"
        )


def _cuda() -> Finding:
    if find_spec("torch") is None:
        return Finding("cuda", "unknown without torch")
    torch = import_module("torch")
    threads = f"torch uses {torch.get_num_threads()} threads (serve takes the cores less one, embed all)"
    if torch.version.cuda is None:
        return Finding("cuda", f"this torch is built without it; {threads}")
    if not torch.cuda.is_available():
        return Finding(
            "cuda",
            f"torch is built for {torch.version.cuda} and sees no device; {threads}",
            "if there is one, look at nvidia-smi and CUDA_VISIBLE_DEVICES",
        )
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return Finding("cuda", f"{torch.version.cuda}: {names}; {threads}")


def _nvml() -> Finding:
    if find_spec("pynvml") is None:
        return Finding(
            "nvml", "missing; the load of a GPU is unknown", "pip install 'relay-inference[gpu]' where there is one"
        )
    pynvml = import_module("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Finding("nvml", f"no driver here ({error}); the load of a GPU is unknown")
    try:
        return Finding("nvml", f"driver {pynvml.nvmlSystemGetDriverVersion()}, {pynvml.nvmlDeviceGetCount()} devices")
    finally:
        pynvml.nvmlShutdown()


def _model(name: str) -> Finding:
    from relay import models

    model = models.load(name)
    rows = f"rows of {model.dimensions}" if model.dimensions else "single scores"
    return Finding("model", f"{model.name}: to {model.task}, {rows}, at most {model.max_length} ids")
