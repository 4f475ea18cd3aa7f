"""Chooses the side of the core that runs: the compiled parts in `_core`, or their plain twins in `_pure`.

Owns the choice. It is made once, when this module is first imported, and only read afterwards, from any thread.
The invariant: all parts come from one side. Native parts that are all absent mean the pure side; native parts that
are there but incomplete or unloadable are an error, never a silent fallback. No other file knows that there are two
sides; they say ``from relay._backend import heap``.

The environment variable ``RELAY_BACKEND`` forces a side: ``native`` or ``pure``.
"""

from __future__ import annotations

import logging
import os
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    # Type checkers read the pure side: it carries the types of both.
    from relay._pure import (
        arena,
        batch,
        cache,
        cost,
        dedup,
        fit,
        heap,
        histogram,
        idcache,
        lanes,
        linger,
        permits,
        queue,
        state,
        tickets,
        timers,
    )

PARTS = (
    "state", "arena", "heap", "timers", "dedup", "idcache", "cache", "batch", "permits", "queue", "tickets", "lanes",
    "histogram", "fit", "cost", "linger",
)  # fmt: skip

__all__ = [
    "PARTS",
    "PureBackendWarning",
    "arena",
    "backend",
    "batch",
    "cache",
    "cost",
    "dedup",
    "fit",
    "heap",
    "histogram",
    "idcache",
    "lanes",
    "linger",
    "permits",
    "queue",
    "state",
    "tickets",
    "timers",
]

_WAY_OUT = "reinstall relay-inference, or set RELAY_BACKEND=pure to run without native code"


class PureBackendWarning(RuntimeWarning):
    """The installed wheel is a native one, but its extensions are gone, so the slower pure-Python side runs."""


def _native_files() -> dict[str, Path]:
    """Finds the extension files of the native parts, loadable or not, built for this interpreter or another.

    Returns:
        The file of each part that has one.
    """
    found: dict[str, Path] = {}
    core = find_spec("relay._core")
    for folder in (core.submodule_search_locations or ()) if core is not None else ():
        for file in Path(folder).glob("*"):
            if file.suffix in (".so", ".pyd"):
                found.setdefault(file.name.partition(".")[0], file)
    for part in PARTS:
        # Asked as well: an editable install keeps its extensions elsewhere, and this is the file that would load.
        spec = find_spec(f"relay._core.{part}") if core is not None else None
        if spec is not None and spec.origin is not None:
            found[part] = Path(spec.origin)
    return {part: found[part] for part in PARTS if part in found}


def _load_native(files: dict[str, Path]) -> dict[str, ModuleType]:
    missing = [part for part in PARTS if part not in files]
    if missing:
        raise ImportError(
            f"relay's native core is incomplete: {', '.join(files)} are there, {', '.join(missing)} are not; {_WAY_OUT}"
        )
    parts: dict[str, ModuleType] = {}
    for part, file in files.items():
        name = f"relay._core.{part}"
        try:
            parts[part] = import_module(name)
        except Exception as error:  # an extension may raise anything while it loads
            another = isinstance(error, ModuleNotFoundError) and error.name == name
            why = "it was built for another Python" if another else error
            raise ImportError(
                f"relay's native part {part!r} is there but cannot be loaded ({file}: {why}); {_WAY_OUT}",
                name=name,
                path=str(file),
            ) from error
    return parts


def _expected_native() -> bool:
    """Whether the wheel this file was installed from held native code, as its own record says."""
    records = Path(__file__).parents[1].glob("relay_inference-*.dist-info/WHEEL")
    return any("Root-Is-Purelib: false" in record.read_text(encoding="utf-8") for record in records)


def _choose() -> tuple[Literal["native", "pure"], dict[str, ModuleType]]:
    forced = os.environ.get("RELAY_BACKEND", "")
    if forced not in ("", "native", "pure"):
        raise ValueError(f"RELAY_BACKEND is {forced!r}; it can be 'native', 'pure', or unset to take what is installed")
    if forced != "pure":
        files = _native_files()
        if files:
            return "native", _load_native(files)
        if forced == "native":
            raise ImportError(
                "RELAY_BACKEND=native, but this install of relay has no native parts; reinstall relay-inference where "
                "a C++ compiler is (with RELAY_REQUIRE_NATIVE=1 the install shows what fails), or unset RELAY_BACKEND"
            )
        if _expected_native():
            warnings.warn(
                f"relay was installed with native parts, but they are gone; the pure-Python side runs: {_WAY_OUT}",
                PureBackendWarning,
                stacklevel=2,
            )
        else:
            logging.getLogger("relay").info("relay has no native parts here; its pure-Python side runs")
    return "pure", {part: import_module(f"relay._pure.{part}") for part in PARTS}


backend: Literal["native", "pure"]
backend, _parts = _choose()
if not TYPE_CHECKING:
    globals().update(_parts)
