"""Figures that a running job publishes for whoever watches the machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from millrace.model_manager.wire.job_progress import JobFile, JobProgress, running_jobs
from millrace.pipelines.cli import dispatch
from millrace.pipelines.job.published import RowTally, counts_of
from tests.job_commands import job_command, started
from tests.waiting import eventually

ROWS = 80
SECRET = "the secret of the prompt"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Rows, and one that is none, one with a bad parameter."""
    rows: list[object] = [{"id": f"p{number}", "prompt": f"{SECRET} {number}"} for number in range(ROWS)]
    rows.insert(3, {"id": "bad", "prompt": SECRET, "max_tokens": -1})
    rows.insert(4, {"id": "none", "question": SECRET})
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@contextlib.contextmanager
def job(prompts: Path, *flags: str, step: float = 0.02) -> Iterator[subprocess.Popen[str]]:
    command = [*job_command("run", prompts, prompts.parent / "out/c"), "--backend=fake", "--max_num_seqs=4"]
    environment = os.environ | {"MILLRACE_FAKE_STEP_SECONDS": str(step)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment}
    with started([*command, "--max_tokens=10", "--linger=0.2", "--orphan_grace=0.1", *flags], **pipes) as process:
        yield process


@contextlib.contextmanager
def seen_job(
    runtime: Path, prompts: Path, *flags: str, step: float = 0.02
) -> Iterator[tuple[subprocess.Popen[str], JobProgress]]:
    """A job, and what it says once some rows are answered. One that was over before this process looked starts anew."""
    for _ in range(20):
        with job(prompts, "--overwrite", *flags, step=step) as process:
            if said := in_the_middle(runtime, process):
                yield process, said
                return
            assert process.returncode == 0
    raise AssertionError("each time the job was over before anybody had looked")


def in_the_middle(runtime: Path, process: subprocess.Popen[str]) -> JobProgress | None:
    """What the job says once some rows are answered; None if it ended before that was seen."""
    said = eventually(lambda: middle_of(runtime) or process.poll() is not None)
    return said if isinstance(said, JobProgress) else None


def middle_of(runtime: Path) -> JobProgress | None:
    return next((each for each in running_jobs(runtime) if 4 <= each.done < ROWS and each.rows_per_s), None)


def test_a_job_says_how_far_it_is_and_nothing_once_it_has_ended(runtime: Path, prompts: Path) -> None:
    with seen_job(runtime, prompts) as (process, said):
        assert process.wait(300) == 0
    assert (said.command, said.pid, said.total, said.exact) == ("run", process.pid, ROWS + 2, True)
    assert said.failed == 2
    assert said.failures == {"InvalidRequest": 2}
    assert said.counted_here
    assert said.at > said.started
    assert said.read >= said.done + said.failed
    assert said.output.endswith("out/c")
    assert said.generated_tokens >= 10 * (said.done - 1), "the tokens of the last row are counted after it"
    assert said.seconds_left is not None
    assert said.seconds_left > 0
    assert running_jobs(runtime) == []
    eventually(lambda: not runtime.exists())


def test_dead_letters_have_reasons_rows_have_times_and_a_kill_leaves_nothing(runtime: Path, prompts: Path) -> None:
    prompts.write_text(prompts.read_text().replace('"prompt"', f'"note": "{"x" * 40_000}", "prompt"'))
    with seen_job(runtime, prompts, "--quiet", step=0.1) as (process, said):
        process.kill()
        process.wait()
        assert running_jobs(runtime) == []
    eventually(lambda: not runtime.exists())
    assert {letter.source.rpartition("/")[2].split("@")[0] for letter in said.dead_letters} == {"prompts.jsonl"}
    assert any("max_tokens=-1" in letter.reason for letter in said.dead_letters)
    assert all(row.decode > 0 and row.generated_tokens for row in said.rows)
    assert {row.id for row in said.rows} <= {f"p{number}" for number in range(ROWS)}
    assert not said.exact, "of a quiet job's input a part is read to estimate its rows"
    assert SECRET not in str(said)


@pytest.mark.slow
def test_workers_that_are_other_processes_are_counted_by_the_manager(runtime: Path, prompts: Path) -> None:
    workers = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    with seen_job(runtime, prompts, *workers) as (process, said):
        assert process.wait(300) == 0
    assert said.read == 0
    assert said.rows == []
    assert not said.counted_here


def test_a_folder_that_cannot_be_written_is_no_failure_of_the_job(
    runtime: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuses = mock.Mock(side_effect=OSError(28, "no space"))
    monkeypatch.setattr(JobFile, "write", refuses)
    flags = ["--backend=fake", "--linger=0.1", "--max_tokens=2"]
    assert dispatch(["run", "--input", str(prompts), "--output", f"{prompts.parent}/out/c", *flags]) == 0
    assert refuses.called
    assert "no space" not in capsys.readouterr().err
    assert running_jobs(runtime) == []


def test_counts_are_made_of_beams_counters() -> None:
    tally = {"prompts": 10, "unreadable_rows": 2, "requests": 7, "failures": 3, "prompt_tokens": 5, "other": 1}
    tally |= {"failure:UnreadableRow": 2, "failure:InvalidRequest": 3}
    failures = {"UnreadableRow": 2, "InvalidRequest": 3}
    expected = RowTally(read=12, done=4, failed=5, failures=failures, prompt_tokens=5, generated_tokens=0)
    assert counts_of(tally) == expected
