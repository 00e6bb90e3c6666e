"""Two jobs of different weights share a model: at one moment each has its share of the tokens."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
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
FULL = 2 * HELD
"""Requests that each of two jobs may have sent and not answered."""
AT_ONCE, COUNTED = 8, 60
"""Rows for which the engine goes on between two looks, and rows of the heavy job that are enough to tell its share."""


def job(prompts: Path, output: Path, *flags: str) -> AbstractContextManager[subprocess.Popen[str]]:
    command = job_command("run", prompts, output)
    same = ["--backend=fake", "--max_num_seqs=4", f"--max_tokens={TOKENS}", "--ignore_eos", "--no-report", "--quiet"]
    return started([*command, *same, "--hang_timeout=120", "--orphan_grace=0.1", *flags])


def weights(runtime: Path) -> dict[float, int]:
    """The weights of the jobs that have sent requests, with the tokens that each has been given."""
    status = status_of(runtime)
    return {each.weight: each.generated_tokens for each in status.jobs} if status else {}


def both_wait(runtime: Path) -> bool:
    """Whether both jobs have sent all that they may, which is more than the engine holds."""
    status = status_of(runtime)
    return status is not None and len(status.jobs) == 2 and status.models[0].outstanding >= 2 * FULL


def has_given(runtime: Path, tokens: int) -> bool:
    """Whether both jobs together have been given so many."""
    return sum(weights(runtime).values()) >= tokens


def given_while_both_wait(runtime: Path, engine: int) -> Iterator[dict[float, int]]:
    """The tokens of each job by its weight, from one time that both wait to the next; the engine stands still before
    and after. Left out is where a job may have been given all that it had sent: it did not wait then.
    """
    while True:
        eventually(lambda: both_wait(runtime), "both jobs wait")
        before = weights(runtime)
        go_on(engine)
        eventually(partial(has_given, runtime, sum(before.values()) + AT_ONCE * TOKENS))
        os.kill(engine, signal.SIGSTOP)
        eventually(lambda: both_wait(runtime), "both jobs wait again")
        after = weights(runtime)
        given = {weight: after[weight] - before[weight] for weight in after}
        if max(given.values()) < FULL * TOKENS:
            yield given


def test_tokens_are_shared_by_weight_not_by_workers(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of weight 1 has two workers, the job of weight 3 has one."""
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")
    rows = write_rows(tmp_path / "rows.jsonl", ({"id": str(n), "prompt": f"question {n}"} for n in range(ROWS)))
    two = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    with job(rows, tmp_path / "heavy", "--weight=3"):
        eventually(lambda: weights(runtime))
        (engine,) = engines_of(runtime)
        with stopped(engine), job(rows, tmp_path / "light", *two):
            total = Counter[float]()
            for given in given_while_both_wait(runtime, engine):
                total.update(given)
                if total[3.0] >= COUNTED * TOKENS:
                    break
    assert total[1.0] > 0
    assert total[3.0] / total[1.0] > 2.4, "3 : 1"
