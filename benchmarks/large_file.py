"""One file of 50 GB, read in ranges: what the launcher holds, and whether each row is there.

    python -m benchmarks.large_file --gigabytes 50

The file of JSONL is sparse: 30 short rows, then a line of 15 MiB of zeros, again and again. It takes some MB of disk,
and the output some GB: lines of zeros are not JSON, and become dead letters. The engine computes no model. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.command_line import command_line
from benchmarks.growth import watched
from benchmarks.results import conclude
from benchmarks.storms.job import Job
from millrace.model_manager.client.status import stop_models

_ROWS = 30
"""Rows before a line of zeros."""
_ZEROS = 15 * 2**20
_WITHIN = 7200.0


@dataclass(frozen=True)
class Figures:
    """A job on one file."""

    gigabytes: float
    rows: int
    answered: int
    lines_of_zeros: int
    dead_letters: int
    seconds: float
    launcher_cpu_s: float
    peak_mb: dict[str, float]
    """Most memory, in MB of 2^20, by role."""


def write_large(path: Path, size: int, zeros: int = _ZEROS) -> tuple[int, int]:
    """A file of at least so many bytes; how many rows it has, and how many lines of zeros."""
    rows = lines = 0
    with path.open("wb") as file:
        while file.tell() < size:
            for number in range(rows, rows + _ROWS):
                file.write(json.dumps({"id": f"r{number}", "prompt": f"What is {number % 97}?"}).encode() + b"\n")
            file.seek(zeros, 1)
            file.write(b"\n")
            rows, lines = rows + _ROWS, lines + 1
    return rows, lines


def measure(folder: Path, size: int) -> Figures:
    """One job on one file of so many bytes."""
    job = Job(folder, ["--backend=fake", "--max_tokens=8", "--no-report", "--quiet"])
    path = folder / "in" / "rows-large.jsonl"
    rows, lines = write_large(path, size)
    started = time.monotonic()
    with watched(job) as watch:
        job.start()
        assert job.wait(_WITHIN) == 0, job.said()[-3000:]
        seconds = time.monotonic() - started
        watch.look()
    stop_models(job.runtime)
    times = job.times_each()
    return Figures(
        gigabytes=round(path.stat().st_size / 1e9, 2),
        rows=rows,
        answered=sum(times[f"r{number}"] == 1 for number in range(rows)),
        lines_of_zeros=lines,
        dead_letters=sum(count for name, count in times.items() if not name.startswith("r")),
        seconds=round(seconds, 1),
        launcher_cpu_s=watch.cpu_s()["launcher"],
        peak_mb=watch.peak_mb(),
    )


def _arguments() -> argparse.Namespace:
    parser = command_line("large_file", __doc__)
    parser.add_argument("--gigabytes", type=float, default=50.0, help="of the file, in 10^9 bytes")
    parser.add_argument("--results", type=Path, help="file for the figures")
    return parser.parse_args()


def main() -> None:
    """Measure, and print."""
    options = _arguments()
    with tempfile.TemporaryDirectory(prefix="large-file-") as place:
        figures = measure(Path(place), int(options.gigabytes * 1e9))
    conclude(asdict(figures), options.results)


if __name__ == "__main__":
    main()
