"""A Flink cluster in pods on two nodes, with a model manager a node: deploy/kubernetes as namespaces of the kernel.

    node 1: the manager's pod, the pod of a task manager and its worker pool ─┐
    node 2: the same                                                          ├─ switch
    the pod of the job manager, the job server and `millrace run` ────────────┘

Arguments and variables of millrace's containers are those of the files; Flink's settings are those of deploy/flink.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millrace.model_manager.client.observing import ask
from millrace.model_manager.client.status import stop_models
from millrace.model_manager.wire.address import TcpAddress
from millrace.model_manager.wire.errors import MillraceError
from millrace.model_manager.wire.manager_key import make_key
from millrace.model_manager.wire.manager_place import KEY_VARIABLE
from millrace.model_manager.wire.messages import GetStatus, Status
from millrace.model_manager.wire.tcp import TcpManager
from tests.deploy.manifests import ROOT, container, objects, pod, variables
from tests.job_commands import NO_PIP_FREEZE
from tests.servers.flink import SCRIPT
from tests.servers.pods import Pod, PodContainer, Pods, pods

_FLINK = "flink"
_FLINK_HOST = "10.77.0.2"
_PORTS = {"rest": 8081, "rpc": 6123, "job": 8099, "artifact": 8098, "expansion": 8097}
_ALL_ADDRESSES = "0.0.0.0"


@dataclass(frozen=True)
class TaskManager:
    """A pod with Flink's task manager and the pool of its workers."""

    pod: Pod
    flink: PodContainer
    workers: PodContainer


class Node:
    """A machine of the cluster: the pod of its manager, and one of a task manager at a time."""

    def __init__(self, number: int, pods: Pods, key: Path) -> None:
        self.number = number
        self._service = objects()["Service"]
        self._pods = pods
        self._place = TcpManager(TcpAddress(f"10.77.{number}.1", self._service["spec"]["ports"][0]["port"]), key)
        self._key = key
        self._manager_pod = pods.pod(f"manager-{number}", self._place.address.host, {})
        self._task_managers = 0

    def start_manager(self, pace: float) -> None:
        """Start the manager's container; `pace`: seconds that a step of its fake engine takes."""
        environment = self._environment("DaemonSet") | {"MILLRACE_FAKE_STEP_SECONDS": str(pace)}
        shared = pod("DaemonSet")["shareProcessNamespace"]
        command = _millrace(*container("DaemonSet")["args"])
        self.manager = self._manager_pod.start("manager", command, environment, share_processes=shared)

    def task_manager_pod(self) -> Pod:
        """A new pod, with a name and an address that no earlier one had."""
        self._task_managers += 1
        name = f"taskmanager-{self.number}-{self._task_managers}"
        hosts = {_FLINK: _FLINK_HOST, self._service["metadata"]["name"]: self._place.address.host}
        return self._pods.pod(name, f"10.77.{self.number}.{self._task_managers + 1}", hosts)

    def start_workers(self, its_pod: Pod) -> PodContainer:
        """Start the worker pool beside a task manager."""
        return its_pod.start("workers", worker_pool(), self._environment("FlinkDeployment"))

    def finished(self) -> int:
        """How many requests the node's manager has finished since it was started; 0 if it does not answer."""
        with contextlib.suppress(MillraceError):
            status = self._manager_pod.call(lambda: ask(self._place, GetStatus(), Status))
            return sum(job.finished for job in status.jobs) if status else 0
        return 0

    def stop_models(self) -> None:
        """What `millrace stop` does."""
        self._manager_pod.call(lambda: stop_models(self._place))

    def _environment(self, kind: str) -> dict[str, str]:
        return {**_environment(), **variables(kind), KEY_VARIABLE: str(self._key)}


class FlinkPods:
    """The cluster: its pods, and what is asked of Flink."""

    def __init__(self, pods: Pods, shared: Path) -> None:
        """`shared`: a folder that all pods have."""
        self._commands = importlib.import_module("flink_commands")
        self._jars = importlib.import_module("flink_jars").install()
        self._cluster = importlib.import_module("cluster_processes").Cluster(shared)
        slots = objects()["FlinkDeployment"]["spec"]["flinkConfiguration"]["taskmanager.numberOfTaskSlots"]
        self._cluster.state = {"ports": _PORTS, "slots": slots}
        self._flink = pods.pod(_FLINK, _FLINK_HOST, {})
        self._flink.start("job-manager", self._job_manager(), _environment())
        server = self._commands.job_server(self._cluster, self._jars, f"localhost:{_PORTS['rest']}")
        self._flink.start("job-server", server, _environment())
        make_key(shared / "manager.pem")
        self.nodes = [Node(number, pods, shared / "manager.pem") for number in (1, 2)]

    def start_task_manager(self, node: Node) -> TaskManager:
        """Start another one on this node, in a pod of its own."""
        its_pod = node.task_manager_pod()
        flink = its_pod.start("task-manager", self._task_manager(its_pod), _environment())
        return TaskManager(its_pod, flink, node.start_workers(its_pod))

    def run(self, *flags: str) -> PodContainer:
        """Start `millrace run` over both nodes."""
        where = ["--runner=PortableRunner", f"--job_endpoint=localhost:{_PORTS['job']}", "--parallelism=4"]
        where += ["--environment_type=EXTERNAL", f"--environment_config={worker_pool()[-1]}", NO_PIP_FREEZE]
        return self._flink.start("job", _millrace("run", *where, *flags), _environment())

    def task_managers(self) -> set[str]:
        """The names of those that the job manager counts on."""
        with contextlib.suppress(OSError, ValueError):
            return {each["id"] for each in self._flink.call(_rest_task_managers)}
        return set()

    def takes_jobs(self) -> bool:
        """Whether the job server listens."""
        return f":{_PORTS['job']:04X} " in Path(f"/proc/{self._flink.pid}/net/tcp6").read_text()

    def _job_manager(self) -> list[str]:
        conf = self._configured(_FLINK, self._commands.job_manager_settings(self._cluster))
        main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        return [*self._java("-Xmx384m", conf), main, "--configDir", str(conf), "--executionMode", "cluster"]

    def _task_manager(self, its_pod: Pod) -> list[str]:
        settings = self._commands.task_manager_settings(self._cluster, its_pod.name)
        settings |= {"taskmanager.host": its_pod.host, "taskmanager.bind-host": _ALL_ADDRESSES}
        conf = self._configured(its_pod.name, settings | {"process.taskmanager.working-dir": "/tmp/task-manager"})
        main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        return [*self._java("-Xmx320m", conf, "-XX:MaxDirectMemorySize=448m"), main, "--configDir", str(conf)]

    def _configured(self, name: str, settings: dict[str, str]) -> Path:
        """A lost pod is noticed within five seconds."""
        settings |= {"jobmanager.rpc.address": _FLINK, "rest.address": _FLINK, "io.tmp.dirs": "/tmp"}
        settings |= {"jobmanager.bind-host": _ALL_ADDRESSES, "rest.bind-address": _ALL_ADDRESSES}
        conf: Path = self._commands.configure(self._cluster, name, settings | {"heartbeat.timeout": "5000"})
        return conf

    def _java(self, memory: str, conf: Path, *more: str) -> list[str]:
        properties = (f"-Dlog4j.configurationFile={conf / 'log4j2.properties'}", "-Djava.io.tmpdir=/tmp", *more)
        command: list[str] = self._commands.java(self._cluster, self._jars / "flink", memory, *properties)
        return command


@contextmanager
def flink_pods(shared: Path, logs: Path) -> Iterator[tuple[FlinkPods, Pods]]:
    """The cluster without managers and task managers yet. Nothing of it is left after the block."""
    with pytest.MonkeyPatch.context() as patch, pods(logs) as its_pods:
        patch.syspath_prepend(SCRIPT.parent)
        yield FlinkPods(its_pods, shared), its_pods


def worker_pool() -> list[str]:
    """The pool's command; its address comes last."""
    return _millrace(*container("FlinkDeployment")["args"])


def _millrace(*arguments: str) -> list[str]:
    """What the image runs."""
    return [sys.executable, "-m", "millrace", *arguments]


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JDK_JAVA_OPTIONS") if name in os.environ}
    return kept | {"PYTHONPATH": str(ROOT)}


def _rest_task_managers() -> list[Any]:
    with urllib.request.urlopen(f"http://{_FLINK_HOST}:{_PORTS['rest']}/taskmanagers", timeout=30) as answer:
        found: list[Any] = json.load(answer)["taskmanagers"]
        return found
