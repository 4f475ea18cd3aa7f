"""Load: every reading alone is known or unknown, whatever is missing, lost or forked; none raises, none is a false 0.

NVML is a fake here, but for one test. Nothing of the core is used, so there is no side to choose.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fork_kit import in_child

from relay import load, nvml
from relay.clock import NS
from relay.load import Memory, Share, busy, device, host
from relay.testing import FakeClock

NOT_SUPPORTED, UNINITIALIZED, NOT_FOUND, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, GPU_IS_LOST = 3, 1, 6, 9, 12, 15
GIB = 1 << 30

Handle = tuple[int, int, int]


class NVMLError(Exception):
    """As the binding has it: the code is in `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakeNvml:
    """A binding with devices that can fail, each as a whole or for one reading."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = NOT_SUPPORTED
    NVML_ERROR_UNINITIALIZED = UNINITIALIZED

    def __init__(self, *percent: int) -> None:
        self.percent = list(percent)
        self.used = [GIB * (i + 1) for i in range(len(percent))]
        self.failing: dict[tuple[str, int | None], int] = {}
        self.started = 0
        self.resets = 0  # handles from before one are worth nothing
        self.calls: list[str] = []
        self.gate: threading.Event | None = None
        self.entered = threading.Event()

    def nvmlInit(self) -> None:
        self._fail("init", None)
        self.started += 1

    def nvmlDeviceGetCount(self) -> int:
        self._check("count", None)
        return len(self.percent)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        self._check("handle", index)
        return os.getpid(), self.resets, index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle:
        for index in range(len(self.percent)):
            if uuid in (self.uuid(index), f"MIG-{index}"):
                return os.getpid(), self.resets, index
        raise NVMLError(NOT_FOUND)

    def nvmlDeviceGetUUID(self, handle: Handle) -> str:
        return self.uuid(self._device("uuid", handle))

    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> Any:
        index = self._device("utilisation", handle)
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(30)
        return SimpleNamespace(gpu=self.percent[index], memory=1)

    def nvmlDeviceGetMemoryInfo(self, handle: Handle) -> Any:
        index = self._device("memory", handle)
        return SimpleNamespace(used=self.used[index], total=8 * GIB, free=0)

    @staticmethod
    def uuid(index: int) -> str:
        return f"GPU-{index}a0b1c2d-0000-1111-2222-333344445555"

    def _device(self, what: str, handle: Handle) -> int:
        pid, resets, index = handle
        assert pid == os.getpid(), "the handle is of another process"
        if resets != self.resets:
            raise NVMLError(GPU_IS_LOST)
        self._check(what, index)
        return index

    def _check(self, what: str, index: int | None) -> None:
        if not self.started:
            raise NVMLError(UNINITIALIZED)
        self._fail(what, index)

    def _fail(self, what: str, index: int | None) -> None:
        self.calls.append(what)
        code = self.failing.get((what, index), self.failing.get(("all", index)) if index is not None else None)
        if code is not None:
            raise NVMLError(code)


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_told", set())
    monkeypatch.setattr(nvml, "_inside", {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml(40, 90, 10)
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    return fake


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the log says, as it grows."""

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    lines: list[str] = []
    handler = Kept(logging.WARNING)
    logging.getLogger("relay").addHandler(handler)
    yield lines
    logging.getLogger("relay").removeHandler(handler)


# The device


def test_a_device_has_a_load_and_memory(gpus: FakeNvml, said: list[str]) -> None:
    gpu = device(1)
    assert gpus.calls == [] and repr(gpu) == "<load of device 1>"  # nothing is opened before it is needed
    assert gpu() == 0.9
    assert gpu.memory() == Memory(used=2 * GIB, total=8 * GIB)
    assert gpus.started == 1 and said == []


@pytest.mark.parametrize(("which", "share"), [(0, 0.4), (2, 0.1), (FakeNvml.uuid(1), 0.9), ("busiest", 0.9)])
def test_which_device(gpus: FakeNvml, which: int | str, share: float) -> None:
    assert device(which)() == share


@pytest.mark.parametrize("which", [-1, True, 1.0, "", "0", "gpu", None])
def test_no_device_at_all(which: Any) -> None:
    with pytest.raises(ValueError, match=r"^a device is a number from 0 on, a UUID \('GPU-...'\) or 'busiest', got "):
        device(which)


@pytest.mark.parametrize(
    ("shown", "shares"),
    [
        ("2,0", [0.1, 0.4, None]),
        (" 1 ", [0.9, None, None]),
        ("", [None, None, None]),
        ("-1", [None, None, None]),
        ("0,7,1", [0.4, None, None]),  # what follows one that is not there is hidden, too
        ("GPU-2a,GPU-0a0b1c2d-0000-1111-2222-333344445555", [0.1, 0.4, None]),
        ("GPU-9", [None, None, None]),
    ],
)
def test_devices_are_counted_as_cuda_counts_them(
    gpus: FakeNvml, monkeypatch: pytest.MonkeyPatch, shown: str, shares: list[float | None]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert [device(n)() for n in range(3)] == shares
    known = [share for share in shares if share is not None]
    assert device("busiest")() == (max(known) if known else None)
    assert device(FakeNvml.uuid(1))() == 0.9  # named in full, it need not be visible


def test_a_reading_is_kept_for_a_moment(gpus: FakeNvml, clock: FakeClock) -> None:
    gpu = device(clock=clock)
    assert gpu() == 0.4
    gpus.percent[0] = 50
    clock.advance(0.049)
    assert gpu() == 0.4 and gpus.calls.count("utilisation") == 1
    clock.advance(0.001)
    assert gpu() == 0.5 and gpus.calls.count("utilisation") == 2


def test_the_fullest_of_all(gpus: FakeNvml) -> None:
    assert device("busiest").memory() == Memory(3 * GIB, 8 * GIB)


@pytest.mark.parametrize("percent", [-1, 101, 2**32 - 1])
def test_what_cannot_be_a_percentage_is_unknown(gpus: FakeNvml, percent: int) -> None:
    gpus.percent[0] = percent
    assert device()() is None


# What may be missing (I3). A reading that is unknown is None, every time, and is said once


def unknown(gpu: load.Device, clock: FakeClock, times: int = 50) -> None:
    for _ in range(times):
        assert gpu() is None and gpu.memory() is None
        clock.advance(1)


def test_no_binding(monkeypatch: pytest.MonkeyPatch, clock: FakeClock, said: list[str]) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for which in (0, 1, "busiest"):
        unknown(device(which, clock=clock), clock)
    want = "relay: the load of a device is unknown: pynvml is not installed: pip install 'relay-inference[gpu]'"
    assert said == [want]


@pytest.mark.parametrize("code", [LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED])
def test_no_library_or_no_driver(gpus: FakeNvml, clock: FakeClock, said: list[str], code: int) -> None:
    gpus.failing["init", None] = code
    gpu = device(clock=clock)
    unknown(gpu, clock)
    assert said == [f"relay: the load of a device is unknown: NVML does not start: error {code}"]
    assert gpus.calls.count("init") == 2 * 5  # tried again now and then: drivers may come later
    gpus.failing.clear()
    clock.advance(10)
    assert gpu() == 0.4


def test_no_library_really(clock: FakeClock, said: list[str]) -> None:
    binding = pytest.importorskip("pynvml", reason="needs the extra gpu")
    try:
        binding.nvmlInit()
    except binding.NVMLError:
        unknown(device(clock=clock), clock, 2)
        assert len(said) == 1 and "NVML does not start: " in said[0]
    else:
        reading, memory = device(clock=clock)(), device(clock=clock).memory()
        assert (reading is None or 0 <= reading <= 1) and (memory is None or memory.used <= memory.total)


@pytest.mark.parametrize("which", [0, "busiest"])
def test_no_devices(monkeypatch: pytest.MonkeyPatch, clock: FakeClock, said: list[str], which: int | str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())  # type: ignore[arg-type]
    unknown(device(which, clock=clock), clock)
    assert said == [f"relay: the load of a device is unknown: there is no device {which}: 0 are visible"]


def test_hidden_devices(gpus: FakeNvml, monkeypatch: pytest.MonkeyPatch, clock: FakeClock, said: list[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    unknown(device(1, clock=clock), clock, 2)
    assert said[0].endswith("there is no device 1: 1 are visible, for CUDA_VISIBLE_DEVICES is '1'")


def test_an_unknown_uuid(gpus: FakeNvml, clock: FakeClock, said: list[str]) -> None:
    unknown(device("GPU-of-somebody-else", clock=clock), clock, 2)
    assert len(said) == 1 and "device GPU-of-somebody-else cannot be found" in said[0]


@pytest.mark.parametrize(("failing", "works"), [("utilisation", "memory"), ("memory", "utilisation")])
def test_one_reading_that_is_not_supported(
    gpus: FakeNvml, clock: FakeClock, said: list[str], failing: str, works: str
) -> None:
    gpus.failing[failing, 0] = NOT_SUPPORTED
    gpu = device(clock=clock)
    for _ in range(30):
        assert {"utilisation": gpu(), "memory": gpu.memory()} == {
            failing: None,
            works: 0.4 if works == "utilisation" else Memory(GIB, 8 * GIB),
        }
        clock.advance(1)
    assert said == [f"relay: the {failing} of device 0 is unknown: error {NOT_SUPPORTED}"]
    assert gpus.started == 1 and gpus.calls.count(failing) == 3


def test_a_slice_of_a_device_has_memory_only(gpus: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.failing["utilisation", 1] = NOT_SUPPORTED
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    for gpu in (device(0), device("MIG-1"), device("busiest")):
        assert gpu() is None and gpu.memory() == Memory(2 * GIB, 8 * GIB)


def test_an_old_binding_without_a_function(gpus: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetUtilizationRates")
    gpu = device()
    assert gpu() is None and gpu.memory() is not None


def test_a_device_that_is_lost_and_found(gpus: FakeNvml, clock: FakeClock, said: list[str]) -> None:
    gpu = device(clock=clock)
    assert gpu() == 0.4
    gpus.failing["all", 0] = GPU_IS_LOST
    clock.advance(1)
    assert device(1, clock=clock)() == 0.9  # the others are not concerned
    unknown(gpu, clock)
    assert 1 <= len(said) <= 3 and f"error {GPU_IS_LOST}" in said[0]
    gpus.failing.clear()
    gpus.resets += 1
    clock.advance(10)
    assert gpu() == 0.4 and gpu.memory() is not None


def test_the_busiest_is_unknown_while_one_of_them_is(gpus: FakeNvml, clock: FakeClock) -> None:
    gpu = device("busiest", clock=clock)
    gpus.failing["utilisation", 1] = NOT_SUPPORTED  # never to be known: left out
    assert gpu() == 0.4
    gpus.failing["utilisation", 2] = GPU_IS_LOST
    clock.advance(1)
    assert gpu() is None  # it may have been the busiest
    assert gpu.memory() == Memory(3 * GIB, 8 * GIB)


def test_somebody_else_shuts_nvml_down(gpus: FakeNvml, clock: FakeClock, said: list[str]) -> None:
    gpu = device(clock=clock)
    assert gpu() == 0.4
    gpus.started = 0
    clock.advance(1)
    assert gpu() == 0.4 and gpus.started == 1 and said == []


# Threads and forks


def test_nobody_waits_for_a_driver_that_somebody_waits_for(gpus: FakeNvml, clock: FakeClock) -> None:
    gpu = device(clock=clock)
    assert gpu() == 0.4
    gpus.gate, gpus.percent[0] = threading.Event(), 70
    gpus.entered.clear()
    clock.advance(0.1)
    found: list[float | None] = []
    thread = threading.Thread(target=lambda: found.append(gpu()))
    thread.start()
    assert gpus.entered.wait(30)
    assert gpu() == 0.4  # the last one
    assert gpu.memory() == Memory(GIB, 8 * GIB)
    clock.advance(1.5)
    assert gpu() is None  # which is not true for ever
    gpus.gate.set()
    thread.join(30)
    assert found == [0.7] and gpu() == 0.7


def test_what_another_thread_has_just_asked_is_not_asked_again(gpus: FakeNvml, clock: FakeClock) -> None:
    class Late:
        """A lock that is found free only when another thread has come and gone."""

        def acquire(self, blocking: bool) -> bool:
            reading._asking = lock
            assert gpu() == 0.4
            return lock.acquire(blocking)

        def release(self) -> None:
            lock.release()

    gpu, lock = device(clock=clock), threading.Lock()
    reading: Any = gpu._utilisation
    reading._asking = Late()
    assert gpu() == 0.4 and gpus.calls.count("utilisation") == 1


def test_many_threads(gpus: FakeNvml) -> None:
    clock = FakeClock()
    gpu, start, found = device(clock=clock), threading.Barrier(8), []

    def read() -> None:
        start.wait(30)
        for _ in range(500):
            clock.advance(0.02)
            found.append(gpu())

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4000 and set(found) <= {0.4, None} and 0.4 in found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_begins_anew(gpus: FakeNvml) -> None:
    gpu = device()
    assert gpu() == 0.4  # the handle is the parent's

    def child() -> None:
        assert gpu() == 0.4 and gpu.memory() is not None
        assert gpus.started == 2

    in_child(child)
    assert gpu() == 0.4 and gpus.started == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_parent_inside_nvml_leaves_it_alone(gpus: FakeNvml, said: list[str]) -> None:
    gpu, gpus.gate = device(), threading.Event()
    thread = threading.Thread(target=gpu)
    thread.start()
    assert gpus.entered.wait(30)

    def child() -> None:
        before = len(gpus.calls)
        for which in (gpu, device(1)):
            assert which() is None and which.memory() is None
        assert len(gpus.calls) == before
        assert said == [
            "relay: the load of a device is unknown: this process was forked while its parent was using NVML"
        ]

    in_child(child)
    gpus.gate.set()
    thread.join(30)
    assert gpu() == 0.4 and said == []


IMPORT = """
import os, sys
import relay, relay.load
gpu, host = relay.load.device(), relay.load.host()
print(sorted({"pynvml", "torch", "ctypes"} & set(sys.modules)))
gpu(), gpu.memory(), host()
print("torch" in sys.modules, any("libcuda." in line for line in open("/proc/self/maps")))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no /proc/self/maps on this system")
def test_importing_loads_nothing_and_reading_leaves_cuda_alone() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[1] == "False False"
    assert "pynvml" not in done.stdout.split("\n")[0] and "torch" not in done.stdout.split("\n")[0]


# The host


class Stat:
    """A file in the manner of /proc/stat."""

    def __init__(self, path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        monkeypatch.setattr(load, "_STAT", str(path))

    def write(self, *ticks: int) -> None:
        self.path.write_text(f"cpu  {' '.join(map(str, ticks))}\ncpu0 1 2 3 4\n")


@pytest.fixture
def stat(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Stat:
    return Stat(tmp_path / "stat", monkeypatch)


def test_the_host_is_as_busy_as_since_the_last_reading(stat: Stat, clock: FakeClock) -> None:
    cpu = host(clock=clock)
    seen = []
    for ticks in (
        (100, 0, 0, 900, 0, 0, 0, 0, 50, 0),
        (130, 0, 0, 970, 0, 0, 0, 0, 50, 0),  # 30 of 100
        (130, 10, 10, 1000, 20, 10, 10, 10, 90, 0),  # 50 of 100: waiting for a disk is idle, guests are counted once
        (140, 10, 10, 1000, 20, 10, 10, 10, 90, 0),
        (140, 10, 10, 1010, 20, 10, 10, 10, 90, 0),
        (150, 10, 10, 1010, 10, 10, 10, 10, 90, 0),  # waiting for a disk may be counted back: no time at all has passed
        (160, 10, 10, 1020, 10, 10, 10, 10, 90, 0),
    ):
        stat.write(*ticks)
        seen.append(cpu())
        clock.advance(0.2)
    assert seen == [None, pytest.approx(0.3), pytest.approx(0.5), 1.0, 0.0, None, pytest.approx(0.5)]


def test_two_readings_of_the_host_at_once_are_one(stat: Stat, clock: FakeClock) -> None:
    cpu = host(clock=clock)
    stat.write(0, 0, 0, 0, 0)
    assert cpu() is None
    clock.advance(0.2)
    stat.write(60, 0, 0, 40, 0)
    assert cpu() == pytest.approx(0.6)
    stat.write(61, 0, 0, 40, 0)
    clock.advance(0.1)
    assert cpu() == pytest.approx(0.6)


@pytest.mark.parametrize("text", [None, "", "intr 1 2 3\n", "cpu 1 2\n", "cpu a b c d e\n"])
def test_a_host_that_does_not_tell(stat: Stat, clock: FakeClock, said: list[str], text: str | None) -> None:
    if text is not None:
        stat.path.write_text(text)
    cpu = host(clock=clock)
    for _ in range(30):
        assert cpu() is None
        clock.advance(1)
    assert len(said) == 1 and said[0].startswith("relay: the use of the host is unknown: ")


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="no /proc/stat on this system")
def test_the_host_really(clock: FakeClock) -> None:
    cpu = host(clock=clock)
    assert cpu() is None
    deadline, share = os.times().elapsed + 30, None
    while share is None and os.times().elapsed < deadline:
        sum(range(100_000))
        clock.advance(0.2)
        share = cpu()
    assert share is not None and 0 <= share <= 1


# The lanes


def test_share() -> None:
    share = Share()
    assert share.since(1 * NS, 0) is None
    assert share.since(2 * NS, NS // 4) == 0.25
    assert share.since(2 * NS, NS // 4) is None  # no time has passed
    assert share.since(3 * NS, 0) is None  # a new counter
    assert share.since(4 * NS, 2 * NS) == 1.0  # what began long ago ends now
    two = Share(lanes=2)
    two.since(0, 0)
    assert two.since(NS, NS) == 0.5


def test_busy(clock: FakeClock) -> None:
    counter = 3.0
    lanes = busy(lambda: counter, lanes=2, clock=clock)
    assert lanes() is None
    clock.advance(1)
    counter += 1.5
    assert lanes() == pytest.approx(0.75)
    clock.advance(0.01)
    assert lanes() == pytest.approx(0.75)  # too soon for another
    clock.advance(1)
    assert lanes() == 0.0


@pytest.mark.parametrize("counter", [lambda: 1 / 0, lambda: None, lambda: float("nan")])
def test_a_counter_that_fails(clock: FakeClock, said: list[str], counter: Any) -> None:
    lanes = busy(counter, clock=clock)
    for _ in range(30):
        assert lanes() is None
        clock.advance(1)
    assert len(said) == 1 and said[0].startswith("relay: the busy share of the lanes is unknown: ")
