"""Beam's runners, ready for a job under blows: the job's flags, the roles that are struck, servers started again."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

from millrace.model_manager.client.status import stop_models
from tests.servers.flink import Flink, flink
from tests.servers.prism import prism

from .job import Job

_ENGINE = ("engine", "manager")
_PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
_CHECKPOINTS = ["--streaming", "--checkpointing_interval=1000", "--checkpointing_mode=EXACTLY_ONCE"]
_CHECKPOINTS += ["--shutdown_sources_after_idle_ms=1000"]
_SERVERS = {"task manager": ("task-manager-1", "task-manager-2"), "job manager": ("job-manager",)}
"""Names of Flink's processes by role. The job manager is struck where `--roles` names it: its jobs die with it."""
ROLES = {
    "local": (*_ENGINE, "launcher"),
    "local-processes": (*_ENGINE, "worker", "launcher"),
    "prism": (*_ENGINE, "launcher", "prism"),
    "flink": (*_ENGINE, "worker", "task manager"),
}
"""Roles that are struck, by runner. A launcher of Flink's is not: its job goes on without it."""


@dataclass
class Field:
    """A runner that is ready for a job."""

    flags: list[str]
    revive: Callable[[str], None] | None = None


@contextlib.contextmanager
def prepared(runner: str, job: Job) -> Iterator[Field]:
    """The runner for the job, until the end of the block."""
    if runner == "flink":
        with flink(job.folder / "flink", job.surroundings) as cluster:
            for role, names in _SERVERS.items():
                job.servers[role] = partial(_processes, cluster, names)
            yield Field(_flink_flags(job.folder, cluster), lambda role: _revive(cluster, role))
            stop_models(job.runtime)  # they would stay for --linger, 120 s on Flink
    elif runner == "prism":
        yield Field(["--runner=PrismRunner", f"--prism_location={prism()}"])
    else:
        yield Field(_PROCESSES if runner == "local-processes" else [])


def _flink_flags(folder: Path, cluster: Flink) -> list[str]:
    worker = folder / "worker"
    worker.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m millrace.pipelines.runners.sdk_worker "$@"\n')
    worker.chmod(0o755)
    flags = ["--runner=PortableRunner", f"--job_endpoint={cluster.job_endpoint}", "--parallelism=4"]
    return [
        *flags,
        "--environment_type=PROCESS",
        f"--environment_config={json.dumps({'command': str(worker)})}",
        *_CHECKPOINTS,
    ]


def _processes(cluster: Flink, names: Sequence[str]) -> list[psutil.Process]:
    return [psutil.Process(pid) for name in names if psutil.pid_exists(pid := cluster.pid(name))]


def _revive(cluster: Flink, role: str) -> None:
    if role in _SERVERS:
        cluster.up()
