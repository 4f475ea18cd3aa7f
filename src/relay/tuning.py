"""What a process that runs a model beside Python threads does well to set, and what it has to share out.

The library itself sets nothing; the commands do. One busy Python thread makes a model call several times slower at the
interpreter's own switch interval of 5 ms, and torch's threads suffer most.
"""

from __future__ import annotations

import os
from math import ceil
from pathlib import Path

SWITCH_INTERVAL_S = 0.0002


def cores() -> int:
    """Cores this process may use: the machine's, less what its affinity mask or its container's quota takes away."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        count = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            count = min(count, max(1, ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        pass  # no container, or one of the older kind
    return count
