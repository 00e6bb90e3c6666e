"""Figures of a machine with a little work."""

from __future__ import annotations

import msgspec

from millrace.model_manager.wire.job_progress import FailedRow, JobProgress, RowLife
from millrace.serving.metrics.snapshot import Snapshot
from millrace.serving.window.figures import Figures, figures
from tests.serving.metrics.scrapes import STATUS

NAME = STATUS.jobs[0].job
LETTER = FailedRow(at=99.0, job="out/c", error="PromptTooLong", reason="the prompt has 9 tokens", source="/in/a.txt@12")
ROW = RowLife(
    at=99.0, of="out/c", id="/in/a.txt@40", queued=0.1, prefill=0.2, decode=1.0, prompt_tokens=5, generated_tokens=7
)
JOB = JobProgress(
    job=NAME,
    command="run",
    pid=7,
    born=1,
    started=50.0,
    model="tiny",
    input="/in/a.txt",
    output="out/c",
    total=20,
    read=12,
    done=10,
    failed=1,
    generated_tokens=70,
    rows_per_s=2.0,
    tokens_per_s=14.0,
    seconds_left=4.5,
    dead_letters=[LETTER],
    rows=[ROW],
)


def look(*jobs: JobProgress, at: float = 100.0, has_manager: bool = True, error: str = "") -> Figures:
    """What is made of one look."""
    return figures(Snapshot(at, STATUS if has_manager else None, error, list(jobs), {"manager": 10**7}))


def at(letter_at: float) -> JobProgress:
    """The job with its one dead letter at that time."""
    return msgspec.structs.replace(JOB, dead_letters=[msgspec.structs.replace(LETTER, at=letter_at)])
