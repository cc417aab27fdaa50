"""How many processors this process may use."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Of a container, under Linux's cgroups of version 2: `<microseconds or max> <of so many>`."""


def cores(quota: Path = QUOTA) -> int:
    """Those that it may run on, or a container's share of them, as the JVM counts them."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        share, period = quota.read_text().split()
        return min(count, math.ceil(int(share) / int(period)))
    return count
