"""Whole jobs, as a user starts them, while the processes under them are killed or stopped.

Whatever dies, the output is complete and has no row twice, and at the end no process, socket or file is left.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from millrace.model_manager.client.status import sweep
from tests.job_commands import job_command, started
from tests.json_lines import write_rows
from tests.pipelines.job.job_processes import (
    all_at_once,
    caught,
    clients_of,
    engines_of,
    go_on,
    ids,
    nothing_is_left,
)
from tests.processes import is_gone
from tests.runtime_folders import processes_of
from tests.waiting import eventually

PROMPTS = 400
WITHIN = 300.0
TWO_WORKERS = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]

pytestmark = pytest.mark.slow


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """More prompts than the engine holds at once, each of some steps that take their time.

    Answers are of several lengths: else all that the engine holds would begin together, and have no token yet.
    """
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")
    rows = ({"id": f"p{n}", "prompt": f"question {n}", "max_tokens": 10 + n % 20} for n in range(PROMPTS))
    return write_rows(tmp_path / "prompts.jsonl", rows)


def job(prompts: Path, output: Path, *flags: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """`millrace run` in a process of its own. No process counts as dead because this machine is busy."""
    quick = ["--hang_timeout=120", "--linger=0.5", "--orphan_grace=0.5", "--backend=fake", "--max_tokens=20"]
    command = job_command("run", prompts, output / "c")
    return started([*command, *quick, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def complete(process: subprocess.Popen[str], output: Path) -> tuple[str, str]:
    """The job ends well, with each prompt's completion once; its summary, and what else it showed."""
    summary, shown = process.communicate(timeout=WITHIN)
    assert process.returncode == 0, shown
    assert ids(output) == sorted(f"p{n}" for n in range(PROMPTS))
    assert not list(output.glob("*dead_letters*"))
    return summary, shown


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Its worker processes, also those that only start."""
    found = psutil.process_iter(["ppid", "cmdline"])
    return [
        each
        for each in found
        if each.info["ppid"] == process.pid and "--provision_endpoint" in str(each.info["cmdline"])
    ]


@pytest.mark.parametrize("role", ["engine", "manager"])
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_job_outlives_its_engine_and_its_manager(
    runtime: Path, prompts: Path, tmp_path: Path, role: str, blow: signal.Signals
) -> None:
    output, soon = tmp_path / "out", ["--hang_timeout=4"] if blow == signal.SIGSTOP else []
    with caught(lambda: job(prompts, output, *soon), runtime, output, PROMPTS) as (process, pids):
        victim = psutil.Process(pids[role])
        victim.send_signal(blow)
        go_on(*{process.pid, pids["engine"]} - {pids[role]})
        summary, _ = complete(process, output)
    again = re.search(r"generated; [\d,]+ computed again \((\d+) %\)\n", summary)
    assert role == "manager" or (again is not None and 0 < int(again[1]) < 40), "what the engine held, at most"
    eventually(lambda: is_gone(victim), "whoever has its exit status to take may take it later")
    nothing_is_left(runtime)


def test_a_job_outlives_its_workers_while_they_start_and_later(runtime: Path, prompts: Path, tmp_path: Path) -> None:
    killed: list[psutil.Process] = []

    @contextlib.contextmanager
    def without_its_first_worker() -> Iterator[subprocess.Popen[str]]:
        with job(prompts, tmp_path / "out", *TWO_WORKERS) as process:
            killed[:] = eventually(lambda: workers_of(process))[:1]
            killed[0].kill()
            yield process

    with caught(without_its_first_worker, runtime, tmp_path / "out", PROMPTS) as (process, pids):
        before = {each.pid for each in workers_of(process)}
        killed += workers_of(process)[-1:]
        killed[1].kill()
        go_on(process.pid, pids["engine"])

        def others_go_on() -> bool:
            return bool({each.pid for each in workers_of(process)} & {*clients_of(runtime)} - before)

        eventually(lambda: others_go_on() or process.poll() is not None, "others go on, or answered the last rows")
        assert engines_of(runtime) <= {pids["engine"]}, "the model stays loaded while workers start"
        _, shown = complete(process, tmp_path / "out")
    for worker in killed:  # rows were written between their deaths
        told = rf"worker [12] of 2 \(process {worker.pid}\) was killed by SIGKILL: continuing from .* \(1 of 3\)"
        assert re.search(told, shown)
    nothing_is_left(runtime)


@pytest.mark.parametrize("workers", [[], TWO_WORKERS], ids=["in full swing", "while workers start"])
def test_a_job_that_is_killed_leaves_nothing_and_is_resumed(
    runtime: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    output, started = tmp_path / "out", list[psutil.Process]()
    if workers:
        with job(prompts, output, *workers) as process:
            started = eventually(lambda: workers_of(process))
            process.kill()
    else:
        with caught(lambda: job(prompts, output), runtime, output, PROMPTS) as (process, _):
            process.kill()
    assert psutil.wait_procs(started, timeout=WITHIN)[1] == []
    eventually(lambda: not [*processes_of(runtime)])
    sweep(runtime)
    assert not runtime.exists()
    with job(prompts, output, "--resume") as process:
        complete(process, output)
    nothing_is_left(runtime)
    assert list(temporary.iterdir()) == []


def test_a_job_that_loses_its_engine_for_good_says_how_to_go_on(runtime: Path, prompts: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with caught(lambda: job(prompts, output, "--max_restarts=0"), runtime, output, PROMPTS) as (process, pids):
        os.kill(pids["engine"], signal.SIGKILL)
        go_on(process.pid)
        _, shown = process.communicate(timeout=WITHIN)
    assert process.returncode == 1
    last = shown.splitlines()[-1]
    assert last.startswith("millrace: the job failed: ")
    assert f"; --resume goes on from what is in {tmp_path}/out/" in last


def test_three_jobs_at_once_share_one_engine(runtime: Path, prompts: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(job(prompts, tmp_path / name)) for name in ("a", "b", "c")]
        assert len(all_at_once(runtime, jobs)) == 1
        for process, name in zip(jobs, ("a", "b", "c"), strict=True):
            complete(process, tmp_path / name)
    nothing_is_left(runtime)
