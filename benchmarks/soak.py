"""A stream that goes on for hours, in parts: does the memory of any of its processes grow?

    python -m benchmarks.soak --part_minutes 10 --parts 12 --results soak.json
    python -m benchmarks.soak --part_minutes 10 --results soak.json    # later: one part more

`millrace run` on watched files, on Prism, with the embedded model; `--rows_per_s` new rows come, in a file each
second, so that other work can run beside it. Each part is a job of its own, from its start to Ctrl-C, and is kept in
`--results` as it ends, with the resident memory of each process every few seconds; a later call adds its parts.
`mb_per_hour` is, by role, the slope of memory over time that fits all processes of all parts best where each process
has a level of its own, without the first minutes of a part (`--warm_up_minutes`); `plus_minus` is twice its standard
error. A growth that begins later than a part lasts is not seen. `unanswered` rows were sent, and neither answered nor
dead letters as the job ended: --resume would answer them. Memory is in MB of 2^20. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.command_line import command_line
from benchmarks.results import conclude
from benchmarks.storms.job import Job
from millrace.model_manager.client.status import stop_models
from tests.json_lines import rows_of
from tests.servers.prism import prism

_ROLES = ("launcher", "prism", "worker", "manager", "engine")
_LOOK_EVERY = 5.0
_FILE_EVERY = 1.0
_STARTS_WITHIN = 600.0
_ENDS_WITHIN = 300.0
_FEWEST = 5
"""Looks at a process from which on it counts for a slope."""

Series = dict[str, list[tuple[float, float]]]
"""Seconds since the part's first answer and MB, by `role pid`."""


def part(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One job, and what its processes held."""
    job = Job(folder, _flags(options), places=(f"watch:{folder}/in/*.jsonl", str(folder / "out" / "c")))
    sent, began = 0, time.monotonic()
    _write(job, sent, 1)
    job.start()
    try:
        _until_answered(job)
        started = time.monotonic()
        held: Series = defaultdict(list)
        for now in _ticks(options.part_minutes * 60):
            assert job.status() is None, f"the job ended\n{job.said()[-3000:]}"
            due = int(now * options.rows_per_s) + 1 - sent
            sent += _write(job, sent + 1, due)
            if not held or now - max(series[-1][0] for series in held.values()) >= _LOOK_EVERY:
                _look(job, now, held)
        seconds = time.monotonic() - started
        status = _interrupted(job)
    finally:
        if job.status() is None:
            job.kill()
        stop_models(job.runtime)
    answered, failed = (
        len({row["id"] for row in rows_of(folder, f"out/**/{which}*.jsonl")}) for which in ("c-", "c.dead")
    )
    return {
        "minutes": round(seconds / 60, 2),
        "start_s": round(started - began, 1),
        "status": status,
        "rows": sent + 1,
        "answered": answered,
        "dead_letters": failed,
        "unanswered": sent + 1 - answered - failed,
        "held": {name: [(round(at, 1), round(mb, 1)) for at, mb in series] for name, series in held.items()},
    }


def _flags(options: argparse.Namespace) -> Sequence[str]:
    flags = [f"--backend={options.backend}", f"--max_tokens={options.tokens}", "--window=10", "--no-report", "--quiet"]
    return [*flags, "--runner=PrismRunner", f"--prism_location={prism()}"]


def _write(job: Job, first: int, rows: int) -> int:
    """A new file of so many rows, if there are any; it appears whole."""
    if rows > 0:
        numbers = range(first, first + rows)
        lines = [json.dumps({"id": f"r{n}", "prompt": f"What is {n % 97} + {n % 89}?"}) + "\n" for n in numbers]
        partial = job.folder / "in" / f"rows-{first:09}.partial"
        partial.write_text("".join(lines))
        partial.rename(partial.with_suffix(".jsonl"))
    return max(rows, 0)


def _until_answered(job: Job) -> None:
    deadline = time.monotonic() + _STARTS_WITHIN
    while not job.victims("engine") or not list((job.folder / "out").rglob("*.jsonl")):
        assert job.status() is None, f"the job ended\n{job.said()[-3000:]}"
        assert time.monotonic() < deadline, f"no row is answered\n{job.said()[-3000:]}"
        time.sleep(0.2)


def _ticks(seconds: float) -> Iterator[float]:
    """Seconds since the first, about once each _FILE_EVERY, until so many are over."""
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        yield now
        time.sleep(max(0.0, min(_FILE_EVERY, seconds - now)))


def _look(job: Job, now: float, held: Series) -> None:
    for role in _ROLES:
        for process in job.victims(role):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                held[f"{role} {process.pid}"].append((now, process.memory_info().rss / 2**20))


def _interrupted(job: Job) -> int:
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    return job.wait(_ENDS_WITHIN)


def slopes(parts: Sequence[dict[str, Any]], warm_up: float) -> dict[str, dict[str, float]]:
    """MB an hour by role, over all parts, without their first `warm_up` seconds."""
    by_role: dict[str, list[np.ndarray[Any, Any]]] = defaultdict(list)
    for each in parts:
        for name, series in each["held"].items():
            late = np.array([look for look in series if look[0] >= warm_up])
            if len(late) >= _FEWEST:
                by_role[name.partition(" ")[0]].append(late)
    return {role: _slope(series) for role, series in by_role.items()}


def _slope(series: list[np.ndarray[Any, Any]]) -> dict[str, float]:
    """Least squares with one slope, and a level for each process."""
    centred = np.concatenate([each - each.mean(axis=0) for each in series])
    hours, mbs = centred[:, 0] / 3600, centred[:, 1]
    spread = float(hours @ hours)
    slope = float(hours @ mbs) / spread
    rest = mbs - slope * hours
    free = max(len(rest) - len(series) - 1, 1)
    error = (float(rest @ rest) / free / spread) ** 0.5
    highest = max(float(each[:, 1].max()) for each in series)
    lasts = max(float(each[-1, 0] - each[0, 0]) for each in series) / 60
    return {
        "mb_per_hour": round(slope, 2),
        "plus_minus": round(2 * error, 2),
        "processes": len(series),
        "longest_minutes": round(lasts, 1),
        "highest_mb": round(highest, 1),
    }


def added_up(parts: Sequence[dict[str, Any]], warm_up: float) -> dict[str, Any]:
    """The figures of all parts together."""
    sums = {name: sum(each[name] for each in parts) for name in ("rows", "answered", "dead_letters", "unanswered")}
    minutes = round(sum(each["minutes"] for each in parts), 1)
    return {"parts": len(parts), "minutes": minutes, **sums, "memory": slopes(parts, warm_up), "each": list(parts)}


def _kept(results: Path | None) -> list[dict[str, Any]]:
    return json.loads(results.read_text())["each"] if results is not None and results.exists() else []


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = command_line("soak", __doc__)
    made.add_argument("--part_minutes", type=float, default=10, help="minutes that a part lasts after its first answer")
    made.add_argument("--parts", type=int, default=1, help="jobs, one after the other")
    made.add_argument("--rows_per_s", type=float, default=5, help="rows that come a second")
    made.add_argument("--warm_up_minutes", type=float, default=2, help="of each part, that count for no slope")
    made.add_argument("--backend", default="torch", help="torch: the embedded model; fake: no model is computed")
    made.add_argument("--tokens", type=int, default=16, help="most tokens of an answer")
    made.add_argument("--results", type=Path, help="file to keep the last line in; parts add up there")
    return made


def main() -> None:
    """Measure; the last line is JSON."""
    options = parser().parse_args()
    each = _kept(options.results)
    settings = {name: getattr(options, name) for name in ("part_minutes", "rows_per_s", "backend", "tokens")}
    for _ in range(options.parts):
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            each.append(settings | part(Path(folder), options))
        conclude(added_up(each, options.warm_up_minutes * 60), options.results)


if __name__ == "__main__":
    main()
