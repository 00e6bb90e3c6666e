"""What the kernel says of a process in /proc/PID/stat (proc_pid_stat(5)). Linux alone."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class ProcessStat(NamedTuple):
    """One reading. Times are in clock ticks."""

    state: str
    """R, S, D, T, Z and so on."""
    cpu: int
    """CPU time so far, in user and kernel mode."""
    started: int
    """When the process started, since boot."""

    @property
    def has_ended(self) -> bool:
        """True for a zombie, and for a process that is being removed."""
        return self.state in "ZX"


def process_stat(pid: int) -> ProcessStat | None:
    """None if there is no such process."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = line.rpartition(")")[2].split()  # the command's name, in brackets, may hold anything
    return ProcessStat(state=fields[0], cpu=int(fields[11]) + int(fields[12]), started=int(fields[19]))
