"""The figures of one look at the machine, as the page, `millrace top` and `millrace top --json` have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from statistics import median

import msgspec

from millrace.model_manager.wire.job_progress import FailedRow, JobProgress, RowLife
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.status import JobStatus

from ..metrics.snapshot import Snapshot

_MOST_ROWS = 20
_LATELY = 60.0
"""Seconds in which a row ended whose first token counts."""


class ServerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The server that shows the page."""

    model: str
    """Name of the model in requests."""
    version: str
    """The server's."""
    is_ready: bool
    """Whether the model is loaded."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What runs now on this machine."""

    at: float
    """Seconds by the wall clock."""
    status: Status | None
    """What the manager says, as `millrace ps --json` has it; null if no manager answers."""
    error: str = ""
    """Why the manager does not answer, where one runs."""
    jobs: list[JobProgress] = []
    """Jobs that run here, without their rows."""
    other_jobs: list[JobStatus] = []
    """Further jobs of the manager: those that ended, servers, and jobs whose command runs elsewhere."""
    rows: list[RowLife] = []
    """The latest rows and requests, the latest last."""
    dead_letters: list[FailedRow] = []
    """The latest dead letters, the latest last."""
    memory: dict[str, int] = {}
    """Resident bytes of the manager, all engines and all clients."""
    tokens_per_s: float = 0.0
    """Generated tokens a second of all models."""
    running: int = 0
    """Requests of a step, on average over the seconds of `tokens_per_s`, and rounded up."""
    waiting: int = 0
    """Requests that wait."""
    ttft: float | None = None
    """Median seconds to the first token, of the latest rows that ended within a minute; null if there are none."""
    server: ServerFigures | None = None
    """The server that shows the page; null for `millrace top`."""


def figures(seen: Snapshot, requests: Iterable[RowLife] = (), server: ServerFigures | None = None) -> Figures:
    """Figures of a look at the machine. `requests`: the server's own."""
    stats = [model.stats for model in seen.status.models] if seen.status else []
    named = {job.job for job in seen.jobs}
    rows = sorted([*requests, *(row for job in seen.jobs for row in job.rows)], key=lambda row: row.at)
    letters = sorted((letter for job in seen.jobs for letter in job.dead_letters), key=lambda letter: letter.at)
    return Figures(
        at=seen.at,
        status=seen.status,
        error=seen.error,
        jobs=[msgspec.structs.replace(job, rows=[], dead_letters=[]) for job in seen.jobs],
        other_jobs=[job for job in seen.status.jobs if job.job not in named] if seen.status else [],
        rows=rows[-_MOST_ROWS:],
        dead_letters=letters,
        memory=seen.memory,
        tokens_per_s=sum(each.tokens_per_s for each in stats),
        running=ceil(sum(each.batch for each in stats)),
        waiting=sum(each.waiting for each in stats),
        ttft=_ttft(rows, seen.at),
        server=server,
    )


def _ttft(rows: Sequence[RowLife], now: float) -> float | None:
    """A row that generated one token or none has a first token all the same, or none."""
    found = [row.queued + row.prefill for row in rows if _has_first_token(row) and now - row.at < _LATELY]
    return median(found) if found else None


def _has_first_token(row: RowLife) -> bool:
    return row.state == "done" and row.generated_tokens > 0
