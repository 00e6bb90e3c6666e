"""A job on Flink whose task managers are in pods, as deploy/kubernetes has them: kernel namespaces stand for pods.

No pod shares a process table, a Unix socket or /tmp with another; they share a folder of input, output, checkpoints.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.json_lines import rows_of, write_rows
from tests.model_manager.manager.containers import skip_without_namespaces
from tests.servers.flink_pods import FlinkPods, Node, TaskManager, flink_pods
from tests.servers.pods import PodContainer, commands
from tests.waiting import eventually

pytestmark = [pytest.mark.runners, pytest.mark.timeout(1800)]

FILES = 160
ROWS = 4
"""Rows in each file. A bundle is a file, and a checkpoint waits for bundles."""
TOKENS = 8
"""Tokens in each completion."""
PACE = 0.1
"""Seconds of a step: all rows would take two minutes, two at a time on each node."""
ENGINE, WORKER = "model_manager.engine.process", "sdk_worker"
"""What is in the command lines of these processes."""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all pods have: their /tmp is their own."""
    skip_without_namespaces("java")
    folder = Path(tempfile.mkdtemp(prefix="millrace-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


def test_a_job_over_pods_outlives_two_containers_a_whole_pod_and_a_cut_cable(shared: Path, tmp_path: Path) -> None:
    ask(shared)
    with flink_pods(shared, tmp_path) as (cluster, pods):
        one, two = cluster.nodes
        for node in cluster.nodes:
            node.start_manager(PACE)
        first, second = (cluster.start_task_manager(node) for node in cluster.nodes)
        eventually(lambda: cluster.takes_jobs() and known(cluster, first, second), "a cluster that takes jobs")
        job = run(cluster, shared)
        answers_more(job, one)
        answers_more(job, two)
        has_checkpoint(job, shared)

        one.manager.kill()
        one.start_manager(PACE)
        answers_more(job, one)
        eventually(lambda: len(running(ENGINE, [one.manager.namespace])) == 1, "the end of the killed manager's engine")

        first.workers.kill()
        workers = one.start_workers(first.pod)
        eventually(lambda: running(WORKER, [workers.namespace]), "a worker of the container that is there again")
        answers_more(job, one)

        lost = [second.flink.namespace, second.workers.namespace]
        second.pod.end()
        eventually(lambda: not commands(*lost), "the end of all processes of the pod")
        third = cluster.start_task_manager(two)
        eventually(lambda: known(cluster, first, third), "another pod in its place")
        answers_more(job, two)

        pods.cut(first.pod)
        eventually(lambda: known(cluster, third), "a task manager that is out of reach")
        pods.mend(first.pod)
        eventually(lambda: known(cluster, first, third), "all task managers")
        answers_more(job, one)

        assert job.poll() is None, "it ended too soon for this test"
        for node in cluster.nodes:  # as an update of the DaemonSet does; the rest need not last
            node.manager.kill(signal.SIGTERM)
            node.start_manager(pace=0)
        eventually(lambda: job.poll() is not None, "the end of the job")
        assert job.poll() == 0, job.said[-5000:]
        are_complete(shared / "out")
        places = [each.namespace for each in (first.flink, workers, third.flink, third.workers)]
        places += [node.manager.namespace for node in cluster.nodes]
        nothing_is_left_of_the_job(cluster, places)
    eventually(lambda: not commands(*places), "the end of all processes of all pods")


def ask(shared: Path) -> None:
    """Write the input."""
    for file in range(FILES):
        rows = ({"id": f"{file}-{row}", "prompt": f"What is {file} + {row}?"} for row in range(ROWS))
        write_rows(shared / f"prompts-{file}.jsonl", rows)


def run(cluster: FlinkPods, shared: Path) -> PodContainer:
    """The job, with checkpoints, and engines of two sequences."""
    return cluster.run(
        f"--input={shared}/prompts-*.jsonl",
        f"--output={shared}/out/c",
        "--backend=fake",
        "--max_num_seqs=2",
        f"--max_tokens={TOKENS}",
        f"--min_tokens={TOKENS}",
        "--streaming",
        "--max_bundle_size=1",
        "--unaligned_checkpoint_enabled",  # else the first one waits for all files, which are queued before it
        "--checkpointing_interval=1000",
        "--checkpointing_mode=EXACTLY_ONCE",
        "--shutdown_sources_after_idle_ms=1000",  # else a job with checkpoints waits for ever at its end
    )


def known(cluster: FlinkPods, *task_managers: TaskManager) -> bool:
    """Whether the job manager counts on these task managers, and on no other."""
    return cluster.task_managers() == {each.pod.name for each in task_managers}


def answers_more(job: PodContainer, node: Node) -> None:
    """Wait until the node's manager has answered more of the job's rows."""
    before = node.finished()
    goes_on(job, lambda: node.finished() > before + 1, f"rows of node {node.number}")


def has_checkpoint(job: PodContainer, shared: Path) -> None:
    """Wait until the job has a checkpoint that is complete: what is struck from then on goes on from one."""
    goes_on(job, lambda: any(shared.glob("checkpoints/*/chk-*/_metadata")), "a checkpoint")


def goes_on(job: PodContainer, condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, which comes about while the job runs."""
    eventually(lambda: job.poll() is not None or condition(), what)
    assert job.poll() is None, f"it ended too soon for this test: {job.said[-5000:]}"


def are_complete(output: Path) -> None:
    """Each row is answered once."""
    rows = rows_of(output, "c-*.jsonl")
    assert sorted(row["id"] for row in rows) == sorted(f"{file}-{row}" for file in range(FILES) for row in range(ROWS))
    assert all(row["usage"]["completion_tokens"] == TOKENS for row in rows)
    assert not list(output.glob("*dead_letters*"))
    assert not (output / "c.tmp").exists()


def nothing_is_left_of_the_job(cluster: FlinkPods, places: list[str]) -> None:
    """At most one worker is left: Flink forgets one whose start it cancels, until the task manager ends."""
    for node in cluster.nodes:
        node.stop_models()
    eventually(lambda: not running(ENGINE, places), "the end of the engines")
    eventually(lambda: len(running(WORKER, places)) <= 1, "the end of the workers")


def running(mark: str, places: list[str]) -> list[str]:
    return [command for command in commands(*places) if mark in command]
