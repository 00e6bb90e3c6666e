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
