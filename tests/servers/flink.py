"""Flink, brought up and down by deploy/flink/cluster.py: embedded in the job server, or a standalone cluster."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]

from tests.waiting import eventually

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "flink" / "cluster.py"


@dataclass(frozen=True)
class Flink:
    """What runs, and how to bring back what was killed."""

    folder: Path
    env: Mapping[str, str]

    @property
    def job_endpoint(self) -> str:
        """The job server's endpoint."""
        return f"localhost:{self._state['ports']['job']}"

    @property
    def workers(self) -> str:
        """The address of the worker pool, for an EXTERNAL environment."""
        host = "localhost" if self._state["embedded"] else "workers"
        return f"{host}:{self._state['ports']['workers']}"

    def pid(self, name: str) -> int:
        """The process id of one process."""
        return int(self._state["processes"][name]["pid"])

    def pids(self) -> list[int]:
        """The process ids of all processes."""
        return [int(known["pid"]) for known in self._state["processes"].values()]

    def kill(self, name: str) -> None:
        """End one of the processes as if its machine had failed, and wait until it is gone."""
        process = psutil.Process(self.pid(name))
        process.kill()
        with contextlib.suppress(psutil.NoSuchProcess):
            eventually(lambda: process.status() == psutil.STATUS_ZOMBIE, f"{name} ends")

    def up(self, *flags: str) -> None:
        """Start what does not run."""
        self._call("up", *flags)

    def cancel(self) -> None:
        """End the jobs that run, on a cluster, and wait until they have ended."""
        self._call("cancel")

    def down(self) -> None:
        """End everything."""
        self._call("down")

    @property
    def _state(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "state.json").read_text()))

    def _call(self, *arguments: str) -> None:
        command = [sys.executable, str(SCRIPT), *arguments, "--within=600", "--folder", str(self.folder)]
        subprocess.run(command, check=True, env={**os.environ, **self.env})


@contextlib.contextmanager
def flink(folder: Path, env: Mapping[str, str] | None = None, *, embedded: bool = False) -> Iterator[Flink]:
    """Flink on free ports, its files in `folder`; `env` is what its workers get too."""
    running = Flink(folder, env or {})
    try:
        running.up("--free_ports", *(["--embedded"] if embedded else []))
        yield running
    finally:
        running.down()
