"""What an error says of the model, the device and the items: known by kind, by name and by text, whoever raised it.

None of it has a side.
"""

from __future__ import annotations

import asyncio
import urllib.error
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import relay
from relay.faults import lost_device, out_of_memory, splittable


def made(
    module: str, name: str, text: str = "", base: type[BaseException] = RuntimeError, **values: Any
) -> BaseException:
    """An error of a package that is not installed here."""
    error = type(name, (base,), {"__module__": module})(text)
    error.__dict__.update(values)
    return error


CUDA_END = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)

OUT_OF_MEMORY = [
    MemoryError(),
    made("numpy._core._exceptions", "_ArrayMemoryError", "Unable to allocate 8.00 PiB", MemoryError),
    made("torch", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB."),
    made("torch.cuda", "OutOfMemoryError"),
    made("cupy.cuda.memory", "OutOfMemoryError", "Out of memory allocating 512 bytes", MemoryError),
    RuntimeError("CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 22.20 GiB total capacity)"),
    RuntimeError("CUDA error: out of memory" + CUDA_END),
    made("torch", "AcceleratorError", "CUDA error: out of memory" + CUDA_END),
    RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 7.64 GiB, max allowed: 88.13 GiB)"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("UR error: UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
    made("jaxlib.xla_extension", "XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 137438953472 bytes."),
    made(
        "onnxruntime.capi.onnxruntime_pybind11_state",
        "RuntimeException",
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : bfc_arena.cc:376 Failed to allocate memory for requested buffer",
        Exception,
    ),
    made(
        "tensorflow.python.framework.errors_impl",
        "ResourceExhaustedError",
        "OOM when allocating tensor with shape[64,512]",
        Exception,
    ),
    ExceptionGroup("two", [ValueError(1), ExceptionGroup("deeper", [MemoryError()])]),
]

LOST = [
    RuntimeError("CUDA error: device-side assert triggered" + CUDA_END),
    made("torch", "AcceleratorError", "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in"),
    made("torch", "AcceleratorError", "CUDA error: uncorrectable ECC error encountered" + CUDA_END),
    made("torch", "AcceleratorError", "CUDA error: unknown error" + CUDA_END),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA error: misaligned address"),
    RuntimeError("CUDA error: an illegal instruction was encountered"),
    RuntimeError("CUDA error: the launch timed out and was terminated"),
    RuntimeError("CUDA error: initialization error"),
    RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable"),
    RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    RuntimeError("HIP error: unspecified launch failure"),
    RuntimeError("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"),
    RuntimeError("The GPU is lost. Reboot the system to recover this GPU"),
    made("cupy_backends.cuda.api.runtime", "CUDARuntimeError", "cudaErrorDeviceUninitialized: invalid device context"),
    made("jaxlib.xla_extension", "XlaRuntimeError", "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS"),
    made(
        "onnxruntime.capi.onnxruntime_pybind11_state",
        "Fail",
        "CUDA failure 700: an illegal memory access was encountered",
        Exception,
    ),
    ExceptionGroup("two", [ValueError(1), RuntimeError("device lost")]),
]

LATER = [
    OSError(5, "no"),
    ConnectionResetError(),
    OSError(12, "Cannot allocate memory"),
    TimeoutError(),
    urllib.error.URLError("no"),
    relay.Overloaded("full"),
    relay.Closed("closed"),
    relay.AcquireTimeout("no token"),
    relay.RunTimeout("too long"),
    relay.CircuitOpen("rest"),
    relay.LoadFailed("no weights"),
    made("http_client", "Status", status_code=429),
    made("http_client", "Status", status=503),
    made("http_client", "Status", http_status=504),
    made("http_client", "Status", response=SimpleNamespace(status_code=502)),
    made("anywhere", "Busy", retry_after=2.0),
    made("httpx", "ConnectError", base=type("TransportError", (Exception,), {"__module__": "httpx"})),
    made("openai", "APITimeoutError", base=type("APIConnectionError", (Exception,), {"__module__": "openai"})),
    KeyboardInterrupt(),
    SystemExit(1),
    GeneratorExit(),
    asyncio.CancelledError(),
    ExceptionGroup("two", [OSError(), TimeoutError()]),
]

ITEMS = [
    ValueError("CUDA error: device-side assert triggered, said the user; out of memory"),
    KeyError("device lost"),
    RuntimeError("weight initialization error"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
    RuntimeError("CUDA error: invalid configuration argument"),
    made("torch", "AcceleratorError", "CUDA error: invalid configuration argument" + CUDA_END),
    made("http_client", "Status", status_code=413),
    made("http_client", "Status", status_code=422, retry_after=None),
    made("http_client", "Status", status_code="429", retry_after=float("nan")),
    relay.TooLarge("9,000 ids"),
    relay.BadOutput("2 rows for 3"),
    relay.NonFiniteOutput(),
    BaseException(),
    made("pyo3_runtime", "PanicException", "index out of range", BaseException),
    StopIteration(),
    RecursionError(),
    ExceptionGroup("two", [OSError(), ValueError(1)]),
]


def label(error: BaseException) -> str:
    return f"{type(error).__name__} {error}"[:50]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=label)
def test_out_of_memory(error: BaseException) -> None:
    assert out_of_memory(error) and splittable(error) and not lost_device(error)


@pytest.mark.parametrize("error", LOST, ids=label)
def test_lost_device(error: BaseException) -> None:
    assert lost_device(error) and not splittable(error) and not out_of_memory(error)


@pytest.mark.parametrize("error", LATER, ids=label)
def test_nothing_is_wrong_with_the_items(error: BaseException) -> None:
    assert not splittable(error) and not lost_device(error) and not out_of_memory(error)


@pytest.mark.parametrize("error", ITEMS, ids=label)
def test_it_may_be_one_items(error: BaseException) -> None:
    assert splittable(error) and not lost_device(error) and not out_of_memory(error)


def test_what_relay_would_try_again_is_not_split() -> None:
    from relay.retry import RETRYABLE

    assert not any(splittable(kind()) for kind in RETRYABLE)


class Broken(RuntimeError):
    """Everything about it raises."""

    @property
    def __class__(self) -> Any:
        raise KeyboardInterrupt

    @__class__.setter
    def __class__(self, value: Any) -> None: ...

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit

    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_an_error_whose_own_code_raises() -> None:
    error = Broken()
    assert splittable(error) and not lost_device(error) and not out_of_memory(error)
    odd = type("Odd", (RuntimeError,), {"__module__": 3})()
    assert splittable(odd) and not lost_device(odd) and not out_of_memory(odd)


def test_numpys_own() -> None:
    with pytest.raises(MemoryError) as caught:
        np.empty(1 << 50)
    assert out_of_memory(caught.value)


@pytest.mark.hf
def test_torchs_own() -> None:
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert out_of_memory(caught.value) and splittable(caught.value)
    assert out_of_memory(torch.cuda.OutOfMemoryError())


def test_clients_own() -> None:
    httpx = pytest.importorskip("httpx", reason="needs the extra test")
    openai = pytest.importorskip("openai", reason="needs the extra test")
    request = httpx.Request("POST", "http://127.0.0.1/")
    for error in (
        httpx.ConnectError("no"),
        httpx.ReadTimeout("late"),
        httpx.HTTPStatusError("429", request=request, response=httpx.Response(429)),
        openai.APITimeoutError(request),
        openai.RateLimitError("429", response=httpx.Response(429, request=request), body=None),
    ):
        assert not splittable(error), error
    assert splittable(openai.BadRequestError("400", response=httpx.Response(400, request=request), body=None))
