"""Targets of the suite: a Beam runner, and the environment of its workers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from millrace.pipelines.runners.local_runner import FnApiRunner
from millrace.transforms.runners import runner_of
from tests.job_commands import NO_PIP_FREEZE
from tests.servers.flink import Flink, flink
from tests.servers.prism import prism_server
from tests.servers.processes import free_port, listens, serving


class Servers:
    """The servers that targets need, each started by the first that asks for it; they end together."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.command = folder / "worker"
        """Starts a worker, in a PROCESS environment; `millrace-worker` where millrace is installed."""

    @cached_property
    def prism(self) -> str:
        """Endpoint of a Prism."""
        return self._stack.enter_context(prism_server(self._folder))

    @cached_property
    def pool(self) -> str:
        """Address of a worker pool."""
        port = free_port()
        command = [sys.executable, "-m", "millrace.pipelines.runners.worker_pool", "--address", f"localhost:{port}"]
        self._stack.enter_context(serving(command, lambda: listens(port), log=self._folder / "pool.log"))
        return f"localhost:{port}"

    @cached_property
    def embedded(self) -> Flink:
        """A job server with Flink inside of it."""
        return self._stack.enter_context(flink(self._folder / "embedded", embedded=True))

    @cached_property
    def cluster(self) -> Flink:
        """A standalone Flink cluster."""
        return self._stack.enter_context(flink(self._folder / "cluster"))


def _portable(endpoint: str, environment: str, config: str | None = None) -> list[str]:
    flags = ["--runner=PortableRunner", f"--job_endpoint={endpoint}", f"--environment_type={environment}"]
    flags.append(NO_PIP_FREEZE)
    return flags if config is None else [*flags, f"--environment_config={config}"]


def _process(servers: Servers) -> str:
    return json.dumps({"command": str(servers.command)})


@dataclass(frozen=True)
class Target:
    """A runner with its environment; `flags` of a job on it."""

    name: str
    flags: Callable[[Servers], list[str]]
    several_workers: bool = False
    """Whether it runs several worker processes at a time."""
    exact_counts: bool = True
    """Whether it loses no metrics; Prism does where bundles of a stage end together."""
    more: list[str] = field(default_factory=list)

    def job_flags(self, servers: Servers) -> list[str]:
        """Flags of Beam's."""
        return [*self.flags(servers), *self.more]

    @staticmethod
    def runner(options: PipelineOptions) -> Any:
        """What a pipeline is given as its runner, as `millrace run` does; None is what the flags say."""
        return FnApiRunner() if runner_of(options).is_local else None


_STREAMING = ["--parallelism=4", "--streaming"]

_TARGETS = [
    Target("direct", lambda _: []),
    Target(
        "direct-processes",
        lambda _: ["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
        several_workers=True,
    ),
    Target("prism-loopback", lambda s: _portable(s.prism, "LOOPBACK"), exact_counts=False),
    Target("prism-process", lambda s: _portable(s.prism, "PROCESS", _process(s)), exact_counts=False),
    Target("prism-external", lambda s: _portable(s.prism, "EXTERNAL", s.pool), exact_counts=False),
    Target("flink-embedded-batch", lambda s: _portable(s.embedded.job_endpoint, "PROCESS", _process(s))),
    Target(
        "flink-streaming-external",
        lambda s: _portable(s.cluster.job_endpoint, "EXTERNAL", s.cluster.workers),
        several_workers=True,
        more=_STREAMING,
    ),
    Target(
        "flink-streaming-process",
        lambda s: _portable(s.cluster.job_endpoint, "PROCESS", _process(s)),
        several_workers=True,
        more=_STREAMING,
    ),
]


def targets() -> list[Target]:
    """All, or those whose names begin with RUNNER."""
    wanted = os.environ.get("RUNNER", "")
    found = [target for target in _TARGETS if target.name.startswith(wanted)]
    if not found:
        raise ValueError(f"RUNNER={wanted}: takes the beginning of {', '.join(target.name for target in _TARGETS)}")
    return found


EVERY_ENVIRONMENT = ["direct", "direct-processes", "prism-loopback", "prism-process", "prism-external"]
EVERY_ENVIRONMENT += ["flink-embedded-batch", "flink-streaming-external"]
"""Each runner in each of its environments; of Flink, both of its kinds, modes and environments in two targets."""
ONE_OF_EACH = ("direct", "direct-processes", "prism-external", "flink-embedded-batch", "flink-streaming-external")
"""Each runner and mode in one environment, where every environment is too many."""
OTHER_PROCESSES = ("direct-processes", "prism-external", "flink-embedded-batch")
"""Each runner whose rows pass Beam's coder between processes."""


def only_on(names: Sequence[str]) -> Any:
    """Parametrizes a test with some targets."""
    found = [target for target in targets() if target.name in names]
    return pytest.mark.parametrize("target", found, ids=lambda target: target.name)


@contextmanager
def servers_in(folder: Path) -> Iterator[Servers]:
    """Servers whose files are in `folder`."""
    with ExitStack() as stack:
        yield Servers(folder, stack)
