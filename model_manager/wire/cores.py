"""How many cores there are to compute with."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """Cores that this process may use, ≥ 1: by its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    share, _, period = (quota.read_text() if quota.is_file() else "max").partition(" ")
    return max(1, min(cores, round(int(share) / int(period)))) if share.isdigit() else cores


def cores_of_engines() -> int:
    """Cores that engines on the CPU divide: as many as OMP_NUM_THREADS says, where it is set, else all usable ones.

    Of a list, as OpenMP takes it for regions in each other, the first number.
    """
    told = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(told) if told.isdecimal() and int(told) else usable_cores()
