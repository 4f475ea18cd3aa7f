"""NVML: finds the devices of NVIDIA's monitoring library and asks each of them a question.

The only file that knows the binding (`pynvml`, of the extra `gpu`), which is loaded when devices are first looked for.
Any thread may call; NVML has locks of its own. It never initialises CUDA. A forked child may go on where its parent
began, from new handles, unless some thread was inside the library as it was forked.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

_WHOLE_UUID = 40  # characters, with the "GPU-"

_inside: dict[int, int] = {}
"""The threads that are in NVML now, each with its process. A child that was forked meanwhile finds entries of its
parent: a lock of the library may be held for ever by a thread that is gone, so no thread enters it there any more."""


class Unavailable(Exception):
    """There is no such device, or nothing to ask it with; the text says which, and what helps."""


@contextmanager
def entered() -> Iterator[None]:
    """Around every use of this module.

    Raises:
        Unavailable: The library must not be used in this process.
    """
    thread, process = threading.get_ident(), os.getpid()
    if any(other != process for other in list(_inside.values())):
        raise Unavailable("this process was forked while its parent was using NVML")
    _inside[thread] = process
    try:
        yield
    finally:
        _inside.pop(thread, None)


class Devices:
    """Devices that were found; made by `find`."""

    def __init__(self, binding: Any, handles: list[Any]) -> None:
        self._binding = binding
        self._handles = handles

    def ask(self, question: str) -> list[Any]:
        """Call a function of NVML for each. One of several that cannot answer this question at all is left out.

        Raises:
            Exception: Whatever the binding raises; an answer about some only would hide what the others do.
        """
        function, answers, unknown = getattr(self._binding, question), [], None
        for handle in self._handles:
            try:
                answers.append(function(handle))
            except Exception as error:
                if not self.unknown(error):
                    raise
                unknown = error
        if unknown is not None and not answers:
            raise unknown
        return answers

    def unknown(self, error: Exception) -> bool:
        """True if a device does not know what it was asked, now or ever."""
        return bool(self._code(error) == self._binding.NVML_ERROR_NOT_SUPPORTED)

    def shut(self, error: Exception) -> bool:
        """True if somebody in this process has shut NVML down."""
        return bool(self._code(error) == self._binding.NVML_ERROR_UNINITIALIZED)

    def _code(self, error: Exception) -> object:
        return error.value if isinstance(error, self._binding.NVMLError) else None


def find(which: int | str) -> Devices:
    """Start NVML and find the device of that number among the visible ones, of that UUID, or, for ``"busiest"``, all.

    NVML is never shut down: it counts its users, and starting and ending it again and again wears drivers out.

    Raises:
        Unavailable: It is not there, or not to be had.
    """
    try:
        binding = import_module("pynvml")
    except ModuleNotFoundError as error:
        if error.name != "pynvml":
            raise
        raise Unavailable("pynvml is not installed: pip install 'relay-inference[gpu]'") from None
    try:
        binding.nvmlInit()
    except Exception as error:
        raise Unavailable(f"NVML does not start: {error}") from error
    names: list[int | str] = [which] if isinstance(which, str) and which != "busiest" else _visible(binding)
    if not names or isinstance(which, int) and which >= len(names):
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        limit = "" if hidden is None else f", for CUDA_VISIBLE_DEVICES is {hidden!r}"
        raise Unavailable(f"there is no device {which}: {len(names)} are visible{limit}")
    if isinstance(which, int):
        names = [names[which]]  # the others may be lost
    try:
        return Devices(binding, [_handle(binding, name) for name in names])
    except Exception as error:
        raise Unavailable(f"device {which} cannot be found: {error}") from error


def _visible(binding: Any) -> list[int | str]:
    """The devices that CUDA would show, in its order, each as NVML's number or as a UUID."""
    count = binding.nvmlDeviceGetCount()
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return list(range(count))
    names: list[int | str] = []
    for word in map(str.strip, shown.split(",")):
        if word.startswith(("GPU-", "MIG-")):
            names.append(word)
        elif word.isdecimal() and int(word) < count:
            names.append(int(word))
        else:
            break  # what follows one that is not there is hidden too
    return names


def _handle(binding: Any, name: int | str) -> Any:
    if isinstance(name, int):
        return binding.nvmlDeviceGetHandleByIndex(name)
    if name.startswith("GPU-") and len(name) < _WHOLE_UUID:  # CUDA takes the beginning of one, NVML only all of it
        for index in range(binding.nvmlDeviceGetCount()):
            handle = binding.nvmlDeviceGetHandleByIndex(index)
            if binding.nvmlDeviceGetUUID(handle).startswith(name):
                return handle
    return binding.nvmlDeviceGetHandleByUUID(name)
