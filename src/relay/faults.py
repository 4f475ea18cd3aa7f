"""Faults: what an error that came out of a model says of the model, the device and the items.

Pure functions of the error alone; none ever raises. Frameworks are known by the names and texts of their errors, so
that none has to be imported.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final, cast

from relay.errors import CircuitOpen, LoadFailed, Refused, TooLarge

_TRANSIENT_STATUS: Final = frozenset((408, 425, 429, 502, 503, 504))
"""Answers of an HTTP service that say nothing of what it was sent."""

_UNREACHABLE: Final = frozenset(("httpx.TransportError", "openai.APIConnectionError"))
"""Clients' errors for a service that cannot be reached, which are no OSError."""

_FRAMEWORKS: Final = ("torch", "cupy", "cupy_backends", "jax", "jaxlib", "onnxruntime", "tensorflow")
"""Whose errors are read although they are no RuntimeError. A ValueError is not read: it likes to quote the item."""

# "CUDA out of memory", "CUDA error: out of memory", "HIP out of memory", "MPS backend out of memory", in jax "Out of
# memory allocating"; "DefaultCPUAllocator: can't allocate memory", on Windows "not enough memory"; the arenas of
# onnxruntime and TensorFlow; libraries of CUDA and Level Zero that pass a status on.
_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|(?:can't|cannot|failed to) allocate memory|allocator: not enough memory|bad allocation|bad_alloc"
    r"|oom when allocating|failed to allocate request for|cudaerrormemoryallocation|cuda_error_out_of_memory"
    r"|cu[a-z]+_status_alloc_failed|out_of_(?:device|host)_memory",
    re.IGNORECASE,
)

# After these the process cannot use the device any more: the driver answers every later call with the same error. HIP
# uses most of the texts too. Torch ends all its CUDA errors with a hint at "device-side assertions".
_LOST_DEVICE: Final = re.compile(
    r"device-side assert triggered|illegal memory access|misaligned address|an illegal instruction was encountered"
    r"|invalid program counter|hardware stack error|unspecified launch failure|launch timed out and was terminated"
    r"|operation not supported on global/shared address space|uncorrectable (?:ecc|nvlink) error"
    r"|(?:gpu|device) (?:is |has been |was )?lost|device_lost|fallen off the bus|no cuda-capable device is detected"
    r"|cuda-capable device\S* \S+ busy or unavailable"
    r"|(?:cuda|hip|driver) error: (?:unknown error|initialization error|driver shutting down|context is destroyed"
    r"|invalid device context)"
    r"|(?:cuda|hip)error(?:assert|illegaladdress|illegalinstruction|misalignedaddress|invalidpc|invalidaddressspace"
    r"|hardwarestackerror|launchfailure|launchtimeout|contextisdestroyed|deviceuninitialized|eccuncorrectable"
    r"|nvlinkuncorrectable|initializationerror|cudartunloading|nodevice|devicesunavailable|unknown)"
    r"|cuda_error_(?:assert|illegal_address|illegal_instruction|misaligned_address|invalid_pc|invalid_address_space"
    r"|hardware_stack_error|launch_failed|launch_timeout|context_is_destroyed|invalid_context|ecc_uncorrectable"
    r"|nvlink_uncorrectable|not_initialized|deinitialized|no_device|device_unavailable|unknown)",
    re.IGNORECASE,
)

_LONGEST: Final = 4096
"""Characters of a text that are read; what a framework says first is what happened."""


def splittable(error: BaseException) -> bool:
    """True if running the members in smaller parts may help some of them: the error may be one item's.

    False for what says that nothing is wrong with the items, so that a split would only knock once more at a door that
    is shut: OSError and TimeoutError; a relay, a pool or a service that is full, closed or at rest (`Overloaded`,
    `Closed`, `CircuitOpen`, whatever has a `retry_after`, or an HTTP status such as 429 or 503); a lost device; and
    what asks the program or the task to stop. Running out of memory is splittable.

    A group of errors is splittable if any in it is, and none tells of a lost device.
    """
    leaves = _leaves(error)
    return any(map(_splittable, leaves)) and not any(map(_lost_device, leaves))


def out_of_memory(error: BaseException) -> bool:
    """True if the device or the host had too little memory for what was asked: less may fit."""
    return any(map(_out_of_memory, _leaves(error)))


def lost_device(error: BaseException) -> bool:
    """True if the device cannot be used any more by this process, whatever it is asked."""
    return any(map(_lost_device, _leaves(error)))


def _splittable(error: BaseException) -> bool:
    kind = type(error)  # not isinstance(), which would run the error's own __class__
    if issubclass(kind, KeyboardInterrupt | SystemExit | GeneratorExit | asyncio.CancelledError):
        return False
    if issubclass(kind, TooLarge):  # refused for what it is, by a relay that the model calls
        return True
    if issubclass(kind, OSError | Refused | CircuitOpen | LoadFailed):  # an OSError: TimeoutError, and so `Expired`
        return False
    return not _says_later(error) and _UNREACHABLE.isdisjoint(_names(error))


def _out_of_memory(error: BaseException) -> bool:
    if issubclass(type(error), MemoryError):
        return True
    return any(name.endswith(".OutOfMemoryError") for name in _names(error)) or bool(
        _OUT_OF_MEMORY.search(_text(error))
    )


def _lost_device(error: BaseException) -> bool:
    return bool(_LOST_DEVICE.search(_text(error)))


def _leaves(error: BaseException) -> list[BaseException]:
    """The error itself, or all errors in a group, those of the groups in it included, however deep."""
    todo, leaves = [error], []
    while todo:
        error = todo.pop()
        if issubclass(type(error), BaseExceptionGroup):
            todo.extend(cast("BaseExceptionGroup[BaseException]", error).exceptions)
        else:
            leaves.append(error)
    return leaves


def _names(error: BaseException) -> list[str]:
    """The error's classes, each as the package it comes from and its name."""
    modules = [(kind, vars(kind).get("__module__")) for kind in type(error).__mro__]
    return [f"{module.partition('.')[0]}.{kind.__name__}" for kind, module in modules if type(module) is str]


def _says_later(error: BaseException) -> bool:
    """True if the error says by an attribute that the same may be asked again later."""
    after = _attribute(error, "retry_after")
    if isinstance(after, int | float) and after >= 0:
        return True
    answer = _attribute(error, "response")
    return any(
        type(status) is int and status in _TRANSIENT_STATUS
        for status in (
            _attribute(error, "status_code"),
            _attribute(error, "status"),
            _attribute(error, "http_status"),
            _attribute(answer, "status_code"),
        )
    )


def _attribute(thing: object, name: str) -> object:
    try:
        return getattr(thing, name, None)
    except BaseException:
        return None


def _text(error: BaseException) -> str:
    """What a framework says; "" of errors whose text may be anything."""
    if not issubclass(type(error), RuntimeError) and not any(
        name.partition(".")[0] in _FRAMEWORKS for name in _names(error)
    ):
        return ""
    try:
        return str(error)[:_LONGEST]
    except BaseException:
        return ""
