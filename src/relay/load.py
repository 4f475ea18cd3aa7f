"""Load: how busy a device, the host and a relay's own lanes are, from 0 to 1, or None where that is unknown.

A reading never raises, and degrades alone: what cannot be read is None, which is not the same as idle, and is said once
in the log. Any thread may read; one asks, and the others take what was read last instead of waiting for a driver.
Nothing is loaded or opened before the first reading, and nothing here ever initialises CUDA.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from relay import nvml
from relay._backend import state
from relay.clock import MONOTONIC, NS, Clock
from relay.fork import survivors

log = logging.getLogger("relay")
T = TypeVar("T")

_FRESH_NS = NS // 20
"""For how long a reading is good: a driver measures no more often than six times a second."""

_HOST_FRESH_NS = NS // 5
"""The system counts in ticks of 10 ms, so of a shorter time a machine of few cores would tell little."""

_AGAIN_NS = 10 * NS
"""When what could not be read is tried again: a driver that looks for a lost device may take long to answer."""

_STAT = "/proc/stat"


class Memory(NamedTuple):
    """Memory of a device.

    Attributes:
        used: Bytes that are taken, by whomever.
        total: Bytes there are.
    """

    used: int
    total: int


def device(which: int | str = 0, *, clock: Clock | None = None) -> Device:
    """The load of a GPU, read through NVML; needs ``pip install 'relay-inference[gpu]'``.

    Args:
        which: Its number, counted as CUDA counts: of those that ``CUDA_VISIBLE_DEVICES`` shows, in bus order. Or its
            UUID, ``"GPU-..."`` or ``"MIG-..."``. Or ``"busiest"``: each reading is the highest among the visible ones.
        clock: What tells how old a reading is.

    Raises:
        ValueError: `which` is none of these. That there is no such device is no error: its load is unknown.
    """
    return Device(which, clock)


def host(*, clock: Clock | None = None) -> Host:
    """The use of the machine's processors since the reading before."""
    return Host(clock)


def busy(seconds: Callable[[], float], *, lanes: int = 1, clock: Clock | None = None) -> Busy:
    """The share of the time since the reading before in which lanes were busy.

    Args:
        seconds: Says how long the lanes have been busy so far, all together, with what is running now.
        lanes: How many there are.
        clock: The clock that `seconds` goes by.
    """
    return Busy(seconds, lanes, clock)


class Device:
    """The load of a GPU; made by `device`.

    Utilisation is the driver's word for the share of the last sixth of a second to second in which any kernel ran, not
    for how much of the device it used. A slice of a device (MIG) has none; its memory is known. The first reading
    loads the driver's library, which may take a second: make it before anyone waits.
    """

    def __init__(self, which: int | str = 0, clock: Clock | None = None) -> None:
        number = None if isinstance(which, bool) else state.whole(which)
        if number is not None and number >= 0:
            which = number
        elif not (isinstance(which, str) and (which == "busiest" or which.startswith(("GPU-", "MIG-")))):
            raise ValueError(f"a device is a number from 0 on, a UUID ('GPU-...') or 'busiest', got {which!r}")
        self._which = which
        self._opened: nvml.Devices | None = None  # its handles are good in this process only
        self._utilisation = _Reading(f"utilisation of device {which}", self._ask_utilisation, _FRESH_NS, clock)
        self._memory = _Reading(f"memory of device {which}", self._ask_memory, _FRESH_NS, clock)
        survivors.add(self)

    def __call__(self) -> float | None:
        """The utilisation, 0 to 1; None is unknown."""
        return self._utilisation()

    def memory(self) -> Memory | None:
        """The memory, of the fullest device for ``"busiest"``; None is unknown."""
        return self._memory()

    def __repr__(self) -> str:
        return f"<load of device {self._which}>"

    def _ask_utilisation(self) -> float:
        percent = max(rates.gpu for rates in self._ask("nvmlDeviceGetUtilizationRates"))
        if not 0 <= percent <= 100:
            raise ValueError(f"{percent} % is no utilisation")
        return float(percent) / 100

    def _ask_memory(self) -> Memory:
        found = [Memory(int(info.used), int(info.total)) for info in self._ask("nvmlDeviceGetMemoryInfo")]
        return max(found, key=lambda memory: memory.used / memory.total)

    def _ask(self, question: str) -> list[Any]:
        with nvml.entered():
            opened = self._opened or self._open()
            try:
                return opened.ask(question)
            except Exception as error:
                if opened.unknown(error):
                    raise
                self._opened = None  # lost, reset or shut down: the handles are worth nothing any more
                if not opened.shut(error):
                    raise
            return self._open().ask(question)

    def _open(self) -> nvml.Devices:
        opened = self._opened = nvml.find(self._which)
        return opened

    def _after_fork_in_child(self) -> None:
        self._opened = None


class Host:
    """The use of the machine's processors, by all that run there; made by `host`.

    It is that of the machine, in a container too. It is unknown where the system has no ``/proc/stat``: this process's
    own time would be less than the truth, and the first reading, which has none before it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._then: tuple[int, int] | None = None
        self._reading = _Reading("use of the host", self._ask, _HOST_FRESH_NS, clock)

    def __call__(self) -> float | None:
        """The use since the reading before, 0 to 1; None is unknown."""
        return self._reading()

    def _ask(self) -> float | None:
        with open(_STAT, "rb") as file:
            name, *numbers = file.readline().split()
        if name != b"cpu" or len(numbers) < 5:
            raise ValueError(f"{_STAT} does not begin with the processors' times")
        # user, nice, system, idle, waiting for a disk, interrupts (2), taken by other machines; guests are in user
        ticks = [int(number) for number in numbers[:8]]
        total, idle = sum(ticks), ticks[3] + ticks[4]
        then, self._then = self._then, (total, idle)
        if then is None or total <= then[0]:
            return None
        return min(max(1 - (idle - then[1]) / (total - then[0]), 0.0), 1.0)


class Busy:
    """The busy share of a relay's own lanes; made by `busy`."""

    def __init__(self, seconds: Callable[[], float], lanes: int = 1, clock: Clock | None = None) -> None:
        self._seconds = seconds
        self._clock = clock or MONOTONIC
        self._share = Share(lanes)
        self._reading = _Reading("busy share of the lanes", self._ask, _FRESH_NS, clock)

    def __call__(self) -> float | None:
        """The share since the reading before, 0 to 1; None is unknown, as the first is."""
        return self._reading()

    def _ask(self) -> float | None:
        seconds = self._seconds()
        return self._share.since(self._clock.now_ns(), int(seconds * NS))


class Share:
    """By what share of the time that has passed a counter of busy time has grown. One thread at a time.

    Args:
        lanes: How many lanes count into it.
    """

    def __init__(self, lanes: int = 1) -> None:
        self._lanes = lanes
        self._then: tuple[int, int] | None = None

    def since(self, now_ns: int, busy_ns: int) -> float | None:
        """The share since the last call, 0 to 1; None if there was none, no time has passed, or the counter is new."""
        then, self._then = self._then, (now_ns, busy_ns)
        if then is None or now_ns <= then[0] or busy_ns < then[1]:
            return None
        return min((busy_ns - then[1]) / ((now_ns - then[0]) * self._lanes), 1.0)


class _Reading(Generic[T]):
    """A value that is asked for only when the last answer is old. Whatever asking raises makes it unknown."""

    def __init__(self, what: str, ask: Callable[[], T | None], fresh_ns: int, clock: Clock | None) -> None:
        self._what = what
        self._ask = ask
        self._fresh_ns = fresh_ns
        self._now_ns = (clock or MONOTONIC).now_ns
        self._asking = threading.Lock()
        self._last: tuple[T | None, int] = (None, -1)  # and until when it is good
        survivors.add(self)

    def __call__(self) -> T | None:
        now_ns = self._now_ns()
        last, until_ns = self._last
        if now_ns < until_ns:
            return last
        if not self._asking.acquire(False):  # by another thread; if it hangs, what was is soon not true any more
            return last if now_ns < until_ns + NS else None
        try:
            if now_ns < self._last[1]:  # it has just been
                return self._last[0]
            value, good_ns = self._asked()
            self._last = value, self._now_ns() + good_ns
            return value
        finally:
            self._asking.release()

    def _asked(self) -> tuple[T | None, int]:
        try:
            return self._ask(), self._fresh_ns
        except Exception as error:
            _tell(self._what, error)
            return None, _AGAIN_NS

    def _after_fork_in_child(self) -> None:
        self._asking = threading.Lock()
        self._last = None, -1


_told: set[tuple[object, ...]] = set()


def _tell(what: str, error: Exception) -> None:
    """Warn of one kind of trouble once in this process."""
    unavailable = isinstance(error, nvml.Unavailable)
    kind = (str(error),) if unavailable else (what, type(error), getattr(error, "value", None))
    if kind not in _told:
        _told.add(kind)
        log.warning(
            "relay: the %s is unknown: %s", "load of a device" if unavailable else what, str(error) or repr(error)
        )
