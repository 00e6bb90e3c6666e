"""Runs contestants against each other: one process each, rounds interleaved, medians taken.

    A round 1, B round 1, …, A round 2, B round 2, …

Knows no engine by name; speaks one JSON object a line with `python -m benchmarks.contestant`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.workload import SHAPES, WORKLOADS, write_checkpoints


@dataclass(frozen=True)
class Row:
    """One engine's figures: medians over the rounds."""

    shape: str
    workload: str
    engine: str
    dtype: str
    tokens_per_s: float
    peak_rss_mb: float
    load_s: float


class Contestant:
    """A side in its own process, loaded and waiting."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self._process = process
        self.load_s = float(self._answer()["load_s"])
        self.rates: list[float] = []
        self.peak_rss_mb = 0.0

    def warm_up(self) -> None:
        """Run a bit of the workload, not counted: what is compiled or allocated at first use is so afterwards."""
        self._ask("warm-up")

    def round(self) -> None:
        """Run the workload once."""
        answer = self._ask("run")
        self.rates.append(answer["tokens"] / answer["seconds"])
        self.peak_rss_mb = answer["peak_rss_mb"]

    def _ask(self, what: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def parse_arguments(description: str, engines: tuple[str, ...], default: str) -> argparse.Namespace:
    """The flags that every throughput benchmark takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="opt-125m", help="random weights in the shape of this model")
    parser.add_argument("--workload", choices=WORKLOADS, default="skewed", help="lengths of prompts and outputs")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="of weights and activations"
    )
    parser.add_argument("--engines", default=default, help=f"comma-separated, of: {', '.join(engines)}")
    parser.add_argument("--rounds", type=int, default=3, help="timed runs of each side, after a short one that is not")
    parser.add_argument("--checkpoints", type=Path, default=None, help="folder to keep the made checkpoints in")
    arguments = parser.parse_args()
    arguments.engines = arguments.engines.split(",")
    if unknown := set(arguments.engines) - set(engines):
        parser.error(f"--engines: no {', '.join(sorted(unknown))}; there are {', '.join(engines)}")
    return arguments


def run(arguments: argparse.Namespace) -> list[Row]:
    """Interleave the rounds of all engines, print as they come, and return the medians."""
    with ExitStack() as stack:
        folder = arguments.checkpoints or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_checkpoints(folder, (arguments.shape,))
        sides = [
            stack.enter_context(_contestant(name, folder / arguments.shape, arguments)) for name in arguments.engines
        ]
        for side in sides:
            side.warm_up()
        for number in range(arguments.rounds):
            for side in sides:
                side.round()
                print(f"round {number + 1}: {side.name} {side.rates[-1]:.1f} tokens/s", flush=True)
        return [_row(side, arguments) for side in sides]


def report(rows: list[Row], baseline: str) -> None:
    """Print a table with ratios against `baseline`'s row, then the rows as one line of JSON."""
    base = next((row.tokens_per_s for row in rows if row.engine == baseline), None)
    for row in rows:
        ratio = f"{row.tokens_per_s / base:6.2f}x" if base else ""
        print(f"{row.engine:24} {row.dtype:9} {row.tokens_per_s:8.1f} tokens/s {ratio}  {row.peak_rss_mb:6.0f} MB")
    print(json.dumps({"rows": [asdict(row) for row in rows]}))


def _row(side: Contestant, arguments: argparse.Namespace) -> Row:
    rate = round(statistics.median(side.rates), 1)
    where = (arguments.shape, arguments.workload, side.name, arguments.dtype)
    return Row(*where, tokens_per_s=rate, peak_rss_mb=round(side.peak_rss_mb), load_s=round(side.load_s, 2))


@contextmanager
def _contestant(name: str, folder: Path, arguments: argparse.Namespace) -> Iterator[Contestant]:
    command = [sys.executable, "-m", "benchmarks.contestant", name, str(folder), arguments.workload, arguments.dtype]
    with tempfile.TemporaryDirectory(prefix="millrace-") as runtime:
        environment = os.environ | {"MILLRACE_RUNTIME_DIR": f"{runtime}/run", "TOKENIZERS_PARALLELISM": "false"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, env=environment, **pipes) as process:  # type: ignore[call-overload]
            try:
                yield Contestant(name, process)
            finally:
                process.stdin.close()
                process.wait(timeout=60)
