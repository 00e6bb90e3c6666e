"""The processes of one folder: started in sessions of their own, known again by a later call, ended.

It does not know what they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

END_WITHIN = 20.0


class Cluster:
    """The processes of one folder, and what they were started with; `state.json` there says both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.path = self.folder / "state.json"
        self.state: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}

    @property
    def ports(self) -> dict[str, int]:
        """The cluster's ports, by the name of the process that listens on each."""
        return dict(self.state["ports"])

    def save(self) -> None:
        """Save the state in one step: a reader sees the old one or the new one."""
        unfinished = self.path.with_suffix(".new")
        unfinished.write_text(json.dumps(self.state, indent=2) + "\n")
        unfinished.rename(self.path)

    def running(self, name: str) -> bool:
        """Whether the process lives; a number may have gone to another since, its start time tells."""
        known = self.state["processes"].get(name)
        return known is not None and started_at(known["pid"]) == known["started_at"]

    def start(self, name: str, command: list[str]) -> bool:
        """Start a process unless it runs; its output goes to logs/. Returns whether it had to be started."""
        if self.running(name):
            return False
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        self.state["processes"][name] = {"pid": process.pid, "started_at": started_at(process.pid)}
        self.save()
        return True

    def end(self, name: str) -> None:
        """End a process, and what is left of its session."""
        pid = self.state["processes"][name]["pid"]
        if self.running(name):
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not self.running(name), END_WITHIN)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        del self.state["processes"][name]
        self.save()


def started_at(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None if there is none, or only its exit status is left."""
    with contextlib.suppress(OSError):
        state, *_, started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:20]
        return None if state == "Z" else started
    return None


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; returns whether it came about."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
