"""A job under blows, or with a fault, against the same job undisturbed: what both came to, as figures."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import control_groups
from .blows import Blow, drawn
from .faults import endured, model_of, whole_model
from .fields import ROLES, prepared
from .job import Job, prompts
from .storm import Course, Storm

_SETTINGS = ("runner", "kills", "max_tokens", "longest_pause", "stops", "hang_timeout")
_SHOWN = 20
"""Ids of changed rows that are kept, at most."""
_GONE_WITHIN = 10.0
_SECONDS_A_ROW = 1.0
_SECONDS_A_BLOW = 60.0


@dataclass
class Run:
    """One job, at its end."""

    job: Job
    course: Course
    processor_seconds: float | None
    """All processes count, killed ones too; None on a cluster, and where there are no control groups."""
    tokens: dict[str, int]
    left_behind: list[str]


def run(
    folder: Path, options: argparse.Namespace, rows: Sequence[dict[str, Any]], blows: Sequence[Blow], seed: int = 0
) -> Run:
    """The job of these rows under these blows, whose victims the seed draws; its runner has ended when this returns."""
    job = Job(folder, [])
    job.ask(rows)
    within = 600 + len(rows) * _SECONDS_A_ROW + len(blows) * _SECONDS_A_BLOW
    with _processor_time(job) as seconds:
        with prepared(options.runner, job) as field:
            job.flags = [*_flags(options), f"--hang_timeout={options.hang_timeout:g}", *field.flags]
            course = Storm(job, seed, field.revive).run(blows, within)
        left = _left_behind(job)
    return Run(job, course, sum(seconds) if seconds and field.revive is None else None, job.tokens(), left)


@contextlib.contextmanager
def _processor_time(job: Job) -> Iterator[list[float]]:
    """The processor seconds of the job's processes, once the block has ended; empty where they cannot be counted."""
    found: list[float] = []
    try:
        group = control_groups.made("cpuacct")
    except OSError:
        yield found
        return
    job.groups.append(group)
    try:
        yield found
    finally:
        found.append(round(control_groups.processor_seconds(group), 1))
        with contextlib.suppress(OSError):  # a process was left behind
            control_groups.remove(group, _GONE_WITHIN)


def _left_behind(job: Job) -> list[str]:
    deadline = time.monotonic() + _GONE_WITHIN
    while (left := job.left_behind()) and time.monotonic() < deadline:
        time.sleep(0.5)  # a look takes a tenth of that
    return left


def compared(calm: Run, stormy: Run, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of the disturbed run against the other's."""
    times, texts, expected = stormy.job.times_each(), stormy.job.texts(), calm.job.texts()
    changed = sorted(identity for identity, text in texts.items() if text != expected.get(identity))
    course = stormy.course
    return {
        "rows": len(rows),
        "struck": dict(sorted(course.struck.items())),
        "missed": course.missed,
        "lost": sum(row["id"] not in times for row in rows),
        "doubled": sum(count - 1 for count in times.values()),
        "dead_letters": len(times) - len(texts),
        "texts_changed": len(changed),
        "changed": changed[:_SHOWN],
        "statuses": course.statuses,
        "launchers": course.launchers,
        "seconds": course.seconds,
        "undisturbed_seconds": calm.course.seconds,
        "processor_seconds": stormy.processor_seconds,
        "undisturbed_processor_seconds": calm.processor_seconds,
        "stalls": dict(sorted(course.stalls.items())),
        "tokens": {
            **stormy.tokens,
            **{f"undisturbed_{name}": count for name, count in calm.tokens.items()},
            "last_summary_computed_again": stormy.job.counted_again(),
            "last_summary_computed": stormy.job.told_of_launches() or 0,
        },
        "left_behind": stormy.left_behind,
    }


def kills(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """The figures of each part: a job under blows of its own. All parts have the same rows, which are asked
    undisturbed once before.
    """
    rows = prompts(options.rows, options.seed)
    roles = options.roles.split(",") if options.roles else ROLES[options.runner]
    print(f"seed {options.seed}: {options.rows:,} rows on {options.runner}, {options.kills} blows", flush=True)
    calm = run(folder / "calm", options, rows, [])
    took = f"{calm.course.seconds} s, {calm.processor_seconds} s of processor time"
    print(f"undisturbed: {took}, left behind: {calm.left_behind}", flush=True)
    for seed in range(options.seed, options.seed + options.parts):
        print(f"part with seed {seed}", flush=True)
        blows = drawn(seed, options.kills, options.rows, roles, options.longest_pause, options.stops)
        stormy = run(folder / f"storm-{seed}", options, rows, blows, seed)
        settings = {name: getattr(options, name) for name in _SETTINGS}
        yield {"seed": seed, **settings, **compared(calm, stormy, rows)}


def faults(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A job for each of the faults, which `options.fault` names; the same rows without one come first."""
    rows = prompts(options.rows, options.seed)
    print(f"seed {options.seed}: {options.rows:,} rows, {', '.join(options.fault)}", flush=True)
    calm = _with_own_model(folder / "calm", rows, options)
    Storm(calm, options.seed).run([], _SECONDS_A_ROW * len(rows) + 600)
    found = []
    for fault in options.fault:
        job = _with_own_model(folder / fault, rows, options)
        job.seed = options.seed
        found.append(endured(job, fault, calm.texts()) | {"left_behind": _left_behind(job)})
        print(f"  {found[-1]}", flush=True)
    return {"seed": options.seed, "rows": options.rows, "faults": found}


def _flags(options: argparse.Namespace) -> list[str]:
    return ["--dtype=float32", f"--max_tokens={options.max_tokens}", f"--min_tokens={options.max_tokens // 2}"]


def _with_own_model(folder: Path, rows: Sequence[dict[str, Any]], options: argparse.Namespace) -> Job:
    job = Job(folder, [])
    job.flags = [*_flags(options), f"--model={model_of(job)}"]
    job.ask(rows)
    whole_model(job)
    return job
