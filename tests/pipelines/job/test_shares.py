"""Two jobs of different weights share a model: at one moment each has its share of the tokens."""

from __future__ import annotations

import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.job_commands import job_command, started
from tests.json_lines import write_rows
from tests.pipelines.job.job_processes import engines_of, go_on
from tests.processes import stopped
from tests.runtime_folders import status_of
from tests.waiting import eventually

ROWS, TOKENS, HELD = 1200, 8, 2 * 4
"""Rows of each job; output tokens of each row; requests that the engine holds, half of them waiting."""


def job(prompts: Path, output: Path, *flags: str) -> AbstractContextManager[subprocess.Popen[str]]:
    command = job_command("run", prompts, output)
    same = ["--backend=fake", "--max_num_seqs=4", f"--max_tokens={TOKENS}", "--ignore_eos", "--no-report", "--quiet"]
    return started([*command, *same, "--hang_timeout=120", "--orphan_grace=0.1", *flags])


def weights(runtime: Path) -> dict[float, int]:
    """The weights of the jobs that have sent requests, with the tokens that each has been given."""
    status = status_of(runtime)
    return {each.weight: each.generated_tokens for each in status.jobs} if status else {}


def waits(runtime: Path) -> bool:
    """Whether requests of both jobs wait: they fill what each may send, which is more than the engine holds."""
    status = status_of(runtime)
    if status is None or len(status.jobs) < 2:
        return False
    (model,) = status.models
    return model.outstanding >= 3 * HELD


def test_tokens_are_shared_by_weight_not_by_workers(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of weight 1 has two workers, the job of weight 3 has one. The engine stands still until both have
    filled their credits.
    """
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.006")
    rows = write_rows(tmp_path / "rows.jsonl", ({"id": str(n), "prompt": f"question {n}"} for n in range(ROWS)))
    two = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    with job(rows, tmp_path / "heavy", "--weight=3") as heavy:
        eventually(lambda: weights(runtime))
        (engine,) = engines_of(runtime)
        with stopped(engine), job(rows, tmp_path / "light", *two) as light:
            eventually(lambda: waits(runtime) or heavy.poll() is not None or light.poll() is not None)
            before = weights(runtime)
            go_on(engine)
            half = eventually(lambda: (seen := weights(runtime)).get(3.0, 0) >= ROWS * TOKENS / 2 and seen)
            assert light.poll() is None
    given = {weight: half[weight] - before.get(weight, 0) for weight in half}
    assert given[1.0] > 0
    assert given[3.0] / given[1.0] > 2.4, "3 : 1; the light job may be slow to send"
