"""One look at this machine: what its manager says, what its jobs say, and what its processes hold.

Everything that shows the machine is made of it: metrics for Prometheus, the page and `millrace top`. It looks as an
observer: a manager ends as if nobody asked.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field

import psutil  # type: ignore[import-untyped, unused-ignore]

from millrace.model_manager.client.status import ReadStatus, read_status
from millrace.model_manager.wire.config import runtime_dir
from millrace.model_manager.wire.errors import MillraceError
from millrace.model_manager.wire.job_progress import JobProgress, running_jobs
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.runtime import RuntimeDir

_MIB = 2**20
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """The machine at one moment."""

    at: float
    """Seconds by the wall clock."""
    status: Status | None
    """What the manager says; None if none answers."""
    error: str = ""
    """Why the manager does not answer, where one runs."""
    jobs: list[JobProgress] = field(default_factory=list)
    """Jobs that run."""
    memory: dict[str, int] = field(default_factory=dict)
    """Resident bytes of the manager, all engines and all clients."""


def snapshot(read: ReadStatus = read_status) -> Snapshot:
    """Look now; takes as long as the manager does."""
    status, error = _status(read)
    return Snapshot(time.time(), status, error, _jobs(RuntimeDir(runtime_dir())), _memory(status))


def _status(read: ReadStatus) -> tuple[Status | None, str]:
    try:
        return read(), ""
    except (MillraceError, OSError) as error:
        _log.warning("no status: %s", error)
        return None, str(error)


def _jobs(folder: RuntimeDir) -> list[JobProgress]:
    """None of a folder in which others may write."""
    try:
        return running_jobs(folder.path) if folder.check() else []
    except (MillraceError, OSError) as error:
        _log.warning("no jobs: %s", error)
        return []


def _memory(status: Status | None) -> dict[str, int]:
    """Engines tell theirs; other processes' memory is read here, except in other containers."""
    sizes = Counter[str]()
    for process in [each for each in status.processes if not each.host] if status else ():
        sizes[process.role] += 0 if process.role == "engine" else _resident(process.pid)
    for model in status.models if status else ():
        sizes["engine"] += int(model.stats.rss_mb * _MIB)
    return dict(sizes)


def _resident(pid: int) -> int:
    """Bytes; 0 for a process that has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
