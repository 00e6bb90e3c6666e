"""Kills in the middle of a job on a Flink cluster: each row is answered once, and no token is generated twice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from millrace.model_manager.client.status import stop_models
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.status import ModelStatus
from tests.job_commands import job_command, started
from tests.json_lines import rows_of
from tests.runners.targets import Servers, Target, targets
from tests.runners.watching import no_manager_is_left
from tests.runtime_folders import status_of
from tests.servers.kafka import until

pytestmark = [pytest.mark.runners, pytest.mark.timeout(1800)]

FILES = 16
ROWS = 10
"""Rows in each file."""
TOKENS = 32
"""Tokens in each completion."""
_TARGET = [target for target in targets() if target.name == "flink-streaming-external"]
_CHECKPOINTS = ["--checkpointing_interval=1000", "--checkpointing_mode=EXACTLY_ONCE"]
_CHECKPOINTS += ["--shutdown_sources_after_idle_ms=1000"]  # else a job with checkpoints waits for ever at its end


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    for number in range(FILES):
        lines = [json.dumps({"id": f"{number}-{n}", "prompt": f"What is {number} + {n}?"}) for n in range(ROWS)]
        (tmp_path / f"prompts-{number}.jsonl").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "prompts-*.jsonl")


def job(
    target: Target, servers: Servers, prompts: str, output: Path, *more: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    """`millrace run` in a process of its own, with an engine that takes its time: steps that last, of two sequences."""
    command = job_command("run", prompts, output / "c")
    command += [
        f"--max_tokens={TOKENS}",
        f"--min_tokens={TOKENS}",
        "--backend=fake",
        "--max_num_seqs=2",
        "--log_level=info",
        "--linger=120",
        "--hang_timeout=120",  # no process counts as dead because this machine is busy
    ]
    command += [*target.job_flags(servers), *_CHECKPOINTS, *more]
    return started(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def once_finished(runtime: Path, share: float) -> Status:
    """Wait until this share of the requests is finished, more are not, and a worker is there to be killed."""
    seen: list[Status] = []

    def are_finished() -> bool:
        status = status_of(runtime)
        if status is None or not status.jobs or status.jobs[0].finished < FILES * ROWS * share:
            return False
        seen.append(status)
        return any(process.role == "client" for process in status.processes)

    until(are_finished, f"{share} of the requests are finished")
    assert seen[-1].jobs[0].finished < FILES * ROWS, "the job is too fast for this test"
    return seen[-1]


def complete(process: subprocess.Popen[str], output: Path) -> None:
    """The job ends well, with each row's completion once."""
    shown, _ = process.communicate(timeout=400)
    assert process.returncode == 0, shown[-5000:]
    rows = rows_of(output, "c-*.jsonl")
    assert sorted(row["id"] for row in rows) == sorted(f"{f}-{n}" for f in range(FILES) for n in range(ROWS))
    assert all(row["usage"]["completion_tokens"] == TOKENS for row in rows)
    assert not list(output.glob("*dead_letters*"))
    assert not (output / "c.tmp").exists()


def engine_of(status: Status) -> ModelStatus:
    (model,) = status.models
    return model


def kill_engine(_servers: Servers, status: Status) -> None:
    (pid,) = engine_of(status).pids
    os.kill(pid, signal.SIGKILL)


def kill_sdk_worker(_servers: Servers, status: Status) -> None:
    os.kill(next(process.pid for process in status.processes if process.role == "client"), signal.SIGKILL)


def kill_task_manager(servers: Servers, _status: Status) -> None:
    servers.cluster.kill("task-manager-1")
    servers.cluster.up()  # as a cluster's supervisor would


@pytest.mark.skipif(not _TARGET, reason="RUNNER names others")
def test_a_job_outlives_what_is_killed_and_pays_for_no_token_twice(
    servers: Servers, runtime: Path, prompts: str, tmp_path: Path
) -> None:
    with job(_TARGET[0], servers, prompts, tmp_path / "out") as process:
        for number, kill in enumerate((kill_sdk_worker, kill_engine, kill_task_manager), start=1):
            before = once_finished(runtime, number / 10)
            kill(servers, before)
        complete(process, tmp_path / "out")
    status = status_of(runtime)
    assert status is not None
    assert status.pid == before.pid, "the manager was there all the time, with what had been answered"
    counted, engine = status.jobs[0], engine_of(status)
    assert counted.finished == FILES * ROWS
    assert counted.generated_tokens == FILES * ROWS * TOKENS
    assert engine.restarts == 1
    assert engine.stats.generated_tokens <= FILES * ROWS * TOKENS, "the new one went on from what there was"
    stop_models(runtime)
    no_manager_is_left(runtime)  # Flink forgets a worker whose start it cancels, until the task manager ends


@pytest.mark.skipif(not _TARGET, reason="RUNNER names others")
@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("job-manager", r"Flink's job manager is lost, and job \S+ with it; --resume goes on"),
        ("job-server", r"the job server at \S+ is lost, and job \S+ may still run: .*; --resume goes on"),
    ],
)
def test_a_job_whose_server_is_lost_says_so_and_a_resumed_one_completes_it(
    servers: Servers, runtime: Path, prompts: str, tmp_path: Path, lost: str, said: str
) -> None:
    with job(_TARGET[0], servers, prompts, tmp_path / "out") as process:
        once_finished(runtime, 0.2)
        servers.cluster.kill(lost)
        shown, _ = process.communicate(timeout=400)
    assert process.returncode == 1, shown[-5000:]
    assert re.search(rf"^millrace: the job failed: {said}", shown, re.MULTILINE), shown[-5000:]
    servers.cluster.up()
    servers.cluster.cancel()  # without its job server a job goes on
    stop_models(runtime)
    with job(_TARGET[0], servers, prompts, tmp_path / "out", "--resume") as process:
        complete(process, tmp_path / "out")
    stop_models(runtime)
    no_manager_is_left(runtime)
