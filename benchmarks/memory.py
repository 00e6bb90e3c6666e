"""Peak resident memory and processor time of a process and all that it started, read from outside, the same way for
every contestant.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil


def peak_rss_mb(pid: int, mark: str) -> float:
    """Sum of the peaks (VmHWM, MB of 2^20) of a process, its descendants, and those with `mark` in their environment.

    `mark` (NAME=value) finds processes that have left the tree, as millrace's manager has. Pages that several
    processes share count once for each, and peaks at different times add up: never less than what was really held.
    """
    return sum(_kb(process.pid, "VmHWM:") for process in _family(pid, mark)) / 1024


def rss_mb(pid: int, mark: str) -> float:
    """As peak_rss_mb, of what is resident now."""
    return sum(_kb(process.pid, "VmRSS:") for process in _family(pid, mark)) / 1024


def processor_seconds(pid: int, mark: str) -> float:
    """User and system time of the same processes, and of their children that have ended and were waited for."""
    return sum(_processor_seconds(process) for process in _family(pid, mark))


def _family(pid: int, mark: str) -> Iterator[psutil.Process]:
    name, _, value = mark.partition("=")
    descendants = set(psutil.Process(pid).children(recursive=True)) | {psutil.Process(pid)}
    for process in psutil.process_iter(["environ"]):
        if process in descendants or (process.info["environ"] or {}).get(name) == value:
            yield process


def _processor_seconds(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def _kb(pid: int, name: str) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0
