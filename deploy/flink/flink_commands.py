"""The parts of a Flink cluster: the command lines of its processes, in their order, and the settings that they read.

A process's settings are written when its command is asked for; nothing is started here.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from cluster_processes import Cluster

OPENED = ("java.lang", "java.lang.invoke", "java.lang.reflect", "java.net", "java.io", "java.nio", "java.text")
OPENED += ("java.time", "java.util", "java.util.concurrent", "java.util.concurrent.atomic")
OPENED += ("java.util.concurrent.locks", "sun.nio.ch", "sun.net.util")
"""Packages of java.base that Flink and Beam reach into; Java 17 asks for their names."""


def processes(cluster: Cluster, home: Path) -> Iterator[tuple[str, list[str]]]:
    """Names and commands, in the order in which they start."""
    if cluster.state["embedded"]:
        yield "workers-1", worker_pool(f"localhost:{cluster.ports['workers']}")
        yield "job-server", job_server(cluster, home, "[local]")
        return
    yield "job-manager", job_manager(cluster, home)
    for number in range(1, cluster.state["task_managers"] + 1):
        yield f"workers-{number}", worker_pool(f"{loopback(number)}:{cluster.ports['workers']}")
        yield f"task-manager-{number}", task_manager(cluster, home, number)
    yield "job-server", job_server(cluster, home, f"localhost:{cluster.ports['rest']}")


def java(cluster: Cluster, jars: Path, memory: str, *properties: str) -> list[str]:
    """A JVM, up to its main class. Jobs here are short: the second compiler costs more than it gains."""
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    temporary = f"-Djava.io.tmpdir={cluster.folder / 'tmp'}"
    jvm = ["java", memory, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [*jvm, *opened, temporary, *properties, "-cp", f"{jars}/*"]


def job_manager(cluster: Cluster, home: Path) -> list[str]:
    """Flink's, which takes jobs by its REST interface."""
    conf = configure(cluster, "job-manager", job_manager_settings(cluster))
    log = f"-Dlog4j.configurationFile={conf / 'log4j2.properties'}"
    main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
    jvm = java(cluster, home / "flink", "-Xmx384m", log)
    return [*jvm, main, "--configDir", str(conf), "--executionMode", "cluster"]


def task_manager(cluster: Cluster, home: Path, number: int) -> list[str]:
    """Flink's, for which the name `workers` is the address of its own pool, as in a pod of its own."""
    name = f"task-manager-{number}"
    conf = configure(cluster, name, task_manager_settings(cluster, name))
    names = f"127.0.0.1 localhost {socket.gethostname()}\n{loopback(number)} workers\n"
    (conf / "hosts").write_text(names)
    properties = (f"-Djdk.net.hosts.file={conf / 'hosts'}", f"-Dlog4j.configurationFile={conf / 'log4j2.properties'}")
    jvm = java(cluster, home / "flink", "-Xmx320m", "-XX:MaxDirectMemorySize=448m", *properties)
    return [*jvm, "org.apache.flink.runtime.taskexecutor.TaskManagerRunner", "--configDir", str(conf)]


def worker_pool(address: str) -> list[str]:
    """What starts a task manager's workers in an EXTERNAL environment."""
    return [sys.executable, "-P", "-m", "millrace.pipelines.runners.worker_pool", "--address", address]


def job_server(cluster: Cluster, home: Path, master: str) -> list[str]:
    """Beam's, which turns pipelines into Flink's jobs."""
    ports = [f"--{name}-port={cluster.ports[name]}" for name in ("job", "artifact", "expansion")]
    artifacts = f"--artifacts-dir={cluster.folder / 'artifacts'}"
    jvm = java(cluster, home / "job-server", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
    main = "org.apache.beam.runners.flink.FlinkJobServerDriver"
    return [*jvm, main, f"--flink-master={master}", "--job-host=localhost", *ports, artifacts]


# ── Flink's settings ─────────────────────────────────────────────────────────────────────────────────────────────────


def common_settings(cluster: Cluster) -> dict[str, str]:
    """A dead task manager is noticed within ten seconds; a job starts again from its last checkpoint.

    While a task manager is missing each try fails at once, so the tries wait, up to ten seconds. A job fails after 20
    in a row, which take three minutes. A minute without a failure sets the count back: a long job may have more.
    """
    return {
        "jobmanager.rpc.address": "localhost",
        "jobmanager.rpc.port": str(cluster.ports["rpc"]),
        "jobmanager.bind-host": "127.0.0.1",
        "rest.address": "localhost",
        "rest.bind-address": "127.0.0.1",
        "rest.port": str(cluster.ports["rest"]),
        "io.tmp.dirs": str(cluster.folder / "tmp"),
        "state.backend.type": "hashmap",
        "state.checkpoints.dir": (cluster.folder / "checkpoints").as_uri(),
        "heartbeat.interval": "1000",
        "heartbeat.timeout": "10000",
        "restart-strategy.type": "exponential-delay",
        "restart-strategy.exponential-delay.initial-backoff": "1 s",
        "restart-strategy.exponential-delay.backoff-multiplier": "1.5",
        "restart-strategy.exponential-delay.max-backoff": "10 s",
        "restart-strategy.exponential-delay.reset-backoff-threshold": "60 s",
        "restart-strategy.exponential-delay.attempts-before-reset-backoff": "20",
    }


def job_manager_settings(cluster: Cluster) -> dict[str, str]:
    """The job manager's settings."""
    return {**common_settings(cluster), "jobmanager.memory.process.size": "768m"}


def task_manager_settings(cluster: Cluster, name: str) -> dict[str, str]:
    """All sizes, since no script of Flink's computes them: of heap, network and sorting, for a few small jobs.

    Each start has a working folder of its own: in the folder of a killed start it would first check all jars there.
    """
    return {
        **common_settings(cluster),
        "process.taskmanager.working-dir": str(cluster.folder / "tmp" / f"{name}-{time.time_ns()}"),
        "taskmanager.resource-id": name,
        "taskmanager.host": "localhost",
        "taskmanager.bind-host": "127.0.0.1",
        "taskmanager.numberOfTaskSlots": str(cluster.state["slots"]),
        "taskmanager.cpu.cores": str(cluster.state["slots"]),
        "taskmanager.memory.framework.heap.size": "128m",
        "taskmanager.memory.task.heap.size": "192m",
        "taskmanager.memory.framework.off-heap.size": "128m",
        "taskmanager.memory.task.off-heap.size": "0m",
        "taskmanager.memory.managed.size": "128m",
        "taskmanager.memory.network.min": "256m",
        "taskmanager.memory.network.max": "256m",
        "taskmanager.memory.segment-size": "16kb",  # more buffers in less memory than with 32
        "taskmanager.memory.jvm-metaspace.size": "256m",
        "taskmanager.memory.jvm-overhead.min": "128m",
        "taskmanager.memory.jvm-overhead.max": "128m",
    }


def configure(cluster: Cluster, name: str, settings: dict[str, str]) -> Path:
    """A folder with a process's flink-conf.yaml."""
    conf = cluster.folder / "conf" / name
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "flink-conf.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    (conf / "log4j2.properties").write_text(
        "rootLogger.level = INFO\n"
        "rootLogger.appenderRef.console.ref = Console\n"
        "appender.console.name = Console\n"
        "appender.console.type = CONSOLE\n"
        "appender.console.layout.type = PatternLayout\n"
        "appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} - %m%n\n"
    )
    return conf


def loopback(number: int) -> str:
    """A loopback address of its own for each task manager's pool: 127.0.0.2 and up."""
    return f"127.0.0.{number + 1}"
