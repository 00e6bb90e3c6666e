"""Control groups of a job's processes: a limit of their memory, and a count of the processor time of all of them.

By cgroups of version 1, where this user may make some. The count also has the processes that were killed.
"""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_numbers = count()


def made(controller: str) -> Path:
    """A new group below this process's own. Raises OSError where this user may make none."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((path for _, what, path in (line.split(":", 2) for line in lines) if what == controller), None)
    if own is None:
        raise OSError(f"this machine has no control groups of version 1 for {controller}")
    group = _ROOT / controller / own.lstrip("/") / f"millrace-chaos-{os.getpid()}-{next(_numbers)}"
    group.mkdir()
    return group


def processor_seconds(group: Path) -> float:
    """What the group's processes have used, of the controller cpuacct."""
    return int((group / "cpuacct.usage").read_text()) / 1e9


def remove(group: Path, within: float) -> None:
    """Remove the group once no process is left in it; after so many seconds raises OSError."""
    deadline = time.monotonic() + within
    while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.2)
    group.rmdir()
