"""Jobs that grow by powers of ten: processor time of a row, memory of each process, and what --resume passes over.

    python -m benchmarks.growth --rows 100,1000,10000,100000,1000000 --backend fake
    python -m benchmarks.growth --rows 100,1000,10000 --backend torch    # the embedded model
    python -m benchmarks.growth --rows 100000 --files 1000
    python -m benchmarks.growth --rows 1000000 --resumed_alone

`millrace run` on files, on the local runner; between two sizes only the number of rows differs, and each size starts
with no manager running. Processes are looked at four times a second: resident memory, and the processor time that they
have used. Then the largest job runs once more with half of its output there: in finished files, and in the shard of a
job that was killed while it wrote a row. `ms_a_row` is the processor time of all processes; `next_ms_a_row` is the time
of the rows by which a size exceeds the one before, so starts do not count.
`mb_per_100000_rows` is the slope of a line through a process's memory in the job's second half. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.command_line import command_line
from benchmarks.results import conclude
from benchmarks.storms.job import Job
from millrace.model_manager.client.status import stop_models
from tests.runners.watching import repeatedly

_ROLES = ("launcher", "manager", "engine")
_LOOK = 0.25
"""Seconds between two looks at the processes of a job."""
_POINTS = 120
"""Most points of a process's memory over time in the results, about."""
_STEADY = 40
"""Looks in a job's second half from which on a slope means something."""
_WITHIN = 3600.0


@dataclass(frozen=True)
class Size:
    """A job of so many rows. Memory in MB of 2^20, by role."""

    rows: int
    seconds: float
    rows_per_s: float
    cpu_s: dict[str, float]
    ms_a_row: float
    next_ms_a_row: float | None
    """None for the first size."""
    peak_mb: dict[str, float]
    mb_per_100000_rows: dict[str, float]
    held_mb: dict[str, list[tuple[float, float]]]
    """Seconds since the first look at a process, and what the role held then."""
    shards: int
    largest_shard_mb: float


@dataclass(frozen=True)
class Resumed:
    """The job with half of its output there: until the first new row is answered."""

    rows: int
    answered_before: int
    killed: bool
    """Whether the rows are in the shard that a killed job left; else in finished files."""
    seconds: float
    launcher_cpu_s: float
    launcher_mb: float


class Watch:
    """What the processes of a job hold and have used, looked at while they run."""

    def __init__(self, job: Job, roles: Sequence[str] = _ROLES) -> None:
        self._job = job
        self._roles = roles
        self._used: dict[tuple[str, int], float] = {}
        self._held: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def look(self) -> None:
        """Take in what is there now."""
        for role in self._roles:
            for process in self._job.victims(role):
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    times = process.cpu_times()
                    self._used[role, process.pid] = times.user + times.system
                    if (held := process.memory_info().rss / 2**20) > 0:  # it has not ended meanwhile
                        self._held[role].append((time.monotonic(), held))

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds by role, of processes that are gone too."""
        return {role: round(sum(s for (of, _), s in self._used.items() if of == role), 2) for role in self._roles}

    def peak_mb(self) -> dict[str, float]:
        """The most that a look found, by role."""
        return {role: round(max(mb for _, mb in held), 1) for role, held in self._held.items()}

    def line(self) -> dict[str, list[tuple[float, float]]]:
        """Seconds since the first look, and MB, by role; not every look."""
        begun = min((held[0][0] for held in self._held.values()), default=0.0)
        return {
            role: [(round(at - begun, 1), round(mb, 1)) for at, mb in held[:: math.ceil(len(held) / _POINTS)]]
            for role, held in self._held.items()
        }

    def slopes(self, rows_per_s: float) -> dict[str, float]:
        """MB that each 100,000 rows add, by role: in the second half of the job."""
        found = {}
        for role, held in self._held.items():
            times, mbs = np.array(held[len(held) // 2 :]).T
            if len(times) >= _STEADY:
                found[role] = round(float(np.polyfit(times - times[0], mbs, 1)[0]) / rows_per_s * 100_000, 2)
        return found


@contextmanager
def watched(job: Job, roles: Sequence[str] = _ROLES) -> Iterator[Watch]:
    """Looks while the block runs."""
    watch = Watch(job, roles)
    with repeatedly(watch.look, every=_LOOK):
        yield watch


def write_input(folder: Path, rows: range, files: int) -> None:
    """Prompts of these numbers, in so many files."""
    for file in range(files):
        with (folder / f"rows-{rows.start:09}-{file:04}.jsonl").open("w") as stream:
            for number in rows[file::files]:
                row = {"id": f"r{number}", "prompt": f"What is {number % 97} + {number % 89}?"}
                stream.write(json.dumps(row) + "\n")


def _ended(job: Job) -> None:
    assert job.wait(_WITHIN) == 0, job.said()[-3000:]


def grown(folder: Path, rows: int, options: argparse.Namespace, before: Size | None) -> Size:
    """One job, from its start to the end of its last process."""
    job = Job(folder, _flags(options))
    write_input(folder / "in", range(rows), options.files)
    started = time.monotonic()
    with watched(job) as watch:
        job.start()
        _ended(job)
        seconds = time.monotonic() - started
        watch.look()
        stop_models(job.runtime)
    shards = [path.stat().st_size for path in folder.glob("out/c-*.jsonl")]
    answered = _lines(folder)
    assert answered == rows, f"{answered:,} of {rows:,} rows are answered"
    used = watch.cpu_s()
    total = sum(used.values())
    beyond = None if before is None else (total - sum(before.cpu_s.values())) / (rows - before.rows)
    return Size(
        rows=rows,
        seconds=round(seconds, 2),
        rows_per_s=round(rows / seconds, 1),
        cpu_s=used,
        ms_a_row=round(1000 * total / rows, 3),
        next_ms_a_row=None if beyond is None else round(1000 * beyond, 3),
        peak_mb=watch.peak_mb(),
        mb_per_100000_rows=watch.slopes(rows / seconds),
        held_mb=watch.line(),
        shards=len(shards),
        largest_shard_mb=round(max(shards) / 2**20, 1),
    )


def _lines(folder: Path) -> int:
    found = 0
    for path in folder.glob("out/c-*.jsonl"):
        with path.open("rb") as stream:
            found += sum(1 for _ in stream)
    return found


def half_answered(folder: Path, rows: int, options: argparse.Namespace) -> Job:
    """A job of all rows, of which half are answered, in finished files."""
    job = Job(folder, _flags(options))
    write_input(folder / "in", range(rows // 2), options.files)
    job.start()
    _ended(job)
    stop_models(job.runtime)
    write_input(folder / "in", range(rows // 2, rows), options.files)
    return job


def as_killed(folder: Path) -> None:
    """Turn finished files into what a job leaves that is killed while it writes a row."""
    shard = folder / "out" / "c.tmp" / "killed" / "completions-half.jsonl"
    shard.parent.mkdir(parents=True)
    with shard.open("wb") as all_of_them:
        for path in sorted(folder.glob("out/c-*.jsonl")):
            with path.open("rb") as stream:
                shutil.copyfileobj(stream, all_of_them)
            path.unlink()
        all_of_them.write(b'{"id":"r')


def resumed(job: Job, rows: int, *, killed: bool) -> Resumed:
    """`--resume` until it has an answer that was not there."""
    there = set(_shards(job))
    started = time.monotonic()
    with watched(job) as watch:
        job.start("--resume")
        while not set(_shards(job)) - there and job.status() is None:
            time.sleep(0.05)
        seconds = time.monotonic() - started
        assert set(_shards(job)) - there, f"no new answer was seen before the job ended\n{job.said()[-3000:]}"
        watch.look()
        used, held = watch.cpu_s()["launcher"], watch.peak_mb()["launcher"]
    job.kill()
    stop_models(job.runtime)
    return Resumed(rows, rows // 2, killed, round(seconds, 2), used, held)


def _shards(job: Job) -> list[Path]:
    """Temporary shards."""
    return list(job.folder.glob("out/c.tmp/*/completions-*.jsonl"))


def _flags(options: argparse.Namespace) -> Sequence[str]:
    return [f"--backend={options.backend}", f"--max_tokens={options.tokens}", "--no-report", "--quiet"]


def _arguments() -> argparse.Namespace:
    parser = command_line("growth", __doc__)
    parser.add_argument("--rows", default="100,1000,10000,100000", help="sizes of jobs, with commas between them")
    parser.add_argument("--backend", default="fake", help="fake: no model is computed; torch: the embedded model")
    parser.add_argument("--tokens", type=int, default=8, help="most tokens of an answer")
    parser.add_argument("--files", type=int, default=4, help="of input")
    parser.add_argument("--resumed_alone", action="store_true", help="measure --resume alone, of the largest job")
    parser.add_argument("--results", type=Path, help="file for the figures")
    return parser.parse_args()


def main() -> None:
    """Measure, and print."""
    options = _arguments()
    found: list[Size] = []
    sizes = sorted(int(rows) for rows in options.rows.split(","))
    with tempfile.TemporaryDirectory(prefix="growth-") as place:
        for rows in () if options.resumed_alone else sizes:
            found.append(grown(Path(place) / f"rows-{rows}", rows, options, found[-1] if found else None))
            print(found[-1].rows, found[-1].next_ms_a_row, found[-1].peak_mb, flush=True)
        job = half_answered(Path(place) / "resumed", sizes[-1], options)
        again = []
        for killed in (False, True):
            if killed:
                shutil.rmtree(job.folder / "out" / "c.tmp")
                as_killed(job.folder)
            again.append(resumed(job, sizes[-1], killed=killed))
            print(again[-1], flush=True)
    settings = {name: getattr(options, name) for name in ("backend", "tokens", "files")}
    conclude(settings | {"sizes": [*map(asdict, found)], "resumed": [*map(asdict, again)]}, options.results)


if __name__ == "__main__":
    main()
