"""A job that is killed and resumed finds its requests again, in the manager and the engine that outlive it."""

from __future__ import annotations

import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.job_commands import job_command, started
from tests.json_lines import rows_of, write_rows
from tests.pipelines.job.job_processes import caught, engines_of, ids
from tests.runtime_folders import status_of

PROMPTS = 200
TOKENS = 20
"""Tokens of each answer."""

pytestmark = pytest.mark.slow


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """More prompts than the engine holds at once, each of some steps that take their time."""
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")
    rows = ({"id": f"p{n}", "prompt": f"question {n}", "temperature": n % 2} for n in range(PROMPTS))
    return write_rows(tmp_path / "prompts.jsonl", rows)


def job(prompts: Path, output: Path, *flags: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """`millrace run` in a process of its own."""
    command = job_command("run", prompts, output / "c")
    quick = ["--backend=fake", f"--max_tokens={TOKENS}", "--ignore_eos", "--no-report"]
    quick += ["--linger=300", "--hang_timeout=120"]
    return started([*command, *quick, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def killed(runtime: Path, prompts: Path, output: Path, *flags: str) -> set[int]:
    """Kill a job in its midst; the pid of its engine."""
    with caught(lambda: job(prompts, output, *flags), runtime, output, PROMPTS) as (process, _):
        process.kill()
    assert rows_of(output, "c.tmp/*/completions-*.jsonl"), "some rows are written"
    return engines_of(runtime)


def completed(prompts: Path, output: Path, *flags: str) -> dict[str, Any]:
    """Complete a job; its rows by id, which are there once."""
    with job(prompts, output, *flags) as process:
        _, shown = process.communicate(timeout=300)
    assert process.returncode == 0, shown
    assert ids(output) == sorted(f"p{n}" for n in range(PROMPTS))
    return {row["id"]: row for row in rows_of(output, "c-*.jsonl")}


def test_no_row_is_computed_twice(runtime: Path, prompts: Path, tmp_path: Path) -> None:
    engine = killed(runtime, prompts, tmp_path / "out")
    rows = completed(prompts, tmp_path / "out", "--resume")
    status = status_of(runtime)
    assert status is not None
    assert engines_of(runtime) == engine, "nobody has started another one"
    assert status.models[0].stats.generated_tokens == PROMPTS * TOKENS
    assert "identity" not in (tmp_path / "out/.millrace/c.settings.json").read_text(), "the job is over"
    again = completed(prompts, tmp_path / "out", "--overwrite")
    assert {name: row["text"] for name, row in rows.items()} == {name: row["text"] for name, row in again.items()}
    status = status_of(runtime)
    assert status is not None
    assert status.models[0].stats.generated_tokens == 2 * PROMPTS * TOKENS, "--overwrite asks anew"


def test_other_settings_get_other_answers(runtime: Path, prompts: Path, tmp_path: Path) -> None:
    killed(runtime, prompts, tmp_path / "out", "--chat=never")
    before = {row["id"] for row in rows_of(tmp_path / "out", "c.tmp/*/completions-*.jsonl")}
    rows = completed(prompts, tmp_path / "out", "--resume", "--chat=always", "--max_tokens=10")
    fresh = completed(prompts, tmp_path / "other", "--chat=always", "--max_tokens=10")
    answers = {name: (row["text"], row["usage"]) for name, row in rows.items() if name not in before}
    assert answers == {name: (fresh[name]["text"], fresh[name]["usage"]) for name in answers}
