"""A job under blows, or with a fault, against the same job undisturbed: what both came to, as figures."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .blows import Blow, drawn
from .faults import endured, model_of, whole_model
from .fields import ROLES, prepared
from .job import Job, prompts
from .storm import Course, Storm
from .tokens import computed

_FLAGS = ["--dtype=float32", "--max_tokens=32", "--min_tokens=16"]
_GONE_WITHIN = 10.0
_SECONDS_A_ROW = 1.0
_SECONDS_A_BLOW = 60.0


@dataclass
class Run:
    """One job, at its end."""

    job: Job
    course: Course
    computed: int
    left_behind: list[str]


def run(folder: Path, options: argparse.Namespace, rows: Sequence[dict[str, Any]], blows: Sequence[Blow]) -> Run:
    """The job of these rows under these blows; its runner has ended when this returns."""
    job = Job(folder, [])
    job.ask(rows)
    within = 600 + len(rows) * _SECONDS_A_ROW + len(blows) * _SECONDS_A_BLOW
    with prepared(options.runner, job) as field, computed(job.runtime) as tokens:
        job.flags = [*_FLAGS, f"--hang_timeout={options.hang_timeout:g}", *field.flags]
        course = Storm(job, options.seed, field.revive).run(blows, within)
    return Run(job, course, tokens.total, _left_behind(job))


def _left_behind(job: Job) -> list[str]:
    deadline = time.monotonic() + _GONE_WITHIN
    while (left := job.left_behind()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def compared(calm: Run, stormy: Run, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of the disturbed run against the other's."""
    times, texts, expected = stormy.job.times_each(), stormy.job.texts(), calm.job.texts()
    course, struck = stormy.course, sum(stormy.course.struck.values())
    return {
        "rows": len(rows),
        "struck": dict(sorted(course.struck.items())),
        "missed": course.missed,
        "lost": sum(row["id"] not in times for row in rows),
        "doubled": sum(count - 1 for count in times.values()),
        "dead_letters": len(times) - len(texts),
        "texts_changed": sum(text != expected.get(identity) for identity, text in texts.items()),
        "statuses": course.statuses,
        "launchers": course.launchers,
        "seconds": course.seconds,
        "undisturbed_seconds": calm.course.seconds,
        "seconds_per_blow": round((course.seconds - calm.course.seconds) / max(1, struck), 2),
        "stalls": {kind: _median_and_longest(found) for kind, found in sorted(course.stalls.items())},
        "tokens": {
            "computed": stormy.computed,
            "undisturbed": calm.computed,
            "last_summary_computed_again": stormy.job.counted_again(),
        },
        "left_behind": stormy.left_behind,
    }


def _median_and_longest(seconds: Sequence[float]) -> list[float]:
    return [round(statistics.median(seconds), 2), max(seconds)]


def kills(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both runs, and what they say together."""
    rows = prompts(options.rows, options.seed)
    roles = options.roles.split(",") if options.roles else ROLES[options.runner]
    blows = drawn(options.seed, options.kills, options.rows, roles, options.longest_pause)
    print(f"seed {options.seed}: {options.rows:,} rows on {options.runner}, {len(blows)} blows", flush=True)
    calm = run(folder / "calm", options, rows, [])
    print(f"undisturbed: {calm.course.seconds} s", flush=True)
    stormy = run(folder / "storm", options, rows, blows)
    settings = {name: getattr(options, name) for name in ("runner", "seed", "kills", "longest_pause", "hang_timeout")}
    return settings | compared(calm, stormy, rows)


def faults(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A job for each of the faults, which `options.fault` names; the same rows without one come first."""
    rows = prompts(options.rows, options.seed)
    print(f"seed {options.seed}: {options.rows:,} rows, {', '.join(options.fault)}", flush=True)
    calm = _with_own_model(folder / "calm", rows)
    Storm(calm, options.seed).run([], _SECONDS_A_ROW * len(rows) + 600)
    found = []
    for fault in options.fault:
        job = _with_own_model(folder / fault, rows)
        job.seed = options.seed
        found.append(endured(job, fault, calm.texts()) | {"left_behind": _left_behind(job)})
        print(f"  {found[-1]}", flush=True)
    return {"seed": options.seed, "rows": options.rows, "faults": found}


def _with_own_model(folder: Path, rows: Sequence[dict[str, Any]]) -> Job:
    job = Job(folder, [*_FLAGS])
    job.flags = [*_FLAGS, f"--model={model_of(job)}"]
    job.ask(rows)
    whole_model(job)
    return job
