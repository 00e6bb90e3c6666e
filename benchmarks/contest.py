"""Runs contestants against each other: one process each, rounds interleaved, medians taken.

    for each shape, workload and dtype:    A round 1, B round 1, …, A round 2, B round 2, …

Knows no engine by name; speaks one JSON object a line with `python -m benchmarks.contestant`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.contenders import CONTENDERS, DTYPES, GEMM_BOUND
from benchmarks.environments import cache_folder
from benchmarks.memory import peak_rss_mb, processor_seconds
from benchmarks.results import Match, Row, as_json, describe_machine, keep, read
from benchmarks.side_process import SideProcess, side_process
from benchmarks.sides import Unsupported
from benchmarks.workload import BY_NAME_ONLY, SHAPES, WORKLOADS, write_checkpoints


class Contestant:
    """A side in its own process, loaded and waiting; raises Unsupported."""

    def __init__(self, process: SideProcess) -> None:
        self.name = process.name
        self._process = process
        began = time.perf_counter()
        loaded = process.answer()
        if "unsupported" in loaded:
            raise Unsupported(loaded["unsupported"])
        self.load_s, self.versions = loaded["load_s"], loaded["versions"]
        self.memory: dict[str, float] = self._process.ask("first token")["memory"]
        self.first_token_s = time.perf_counter() - began
        self.rates: list[float] = []
        self.processor_s: list[float] = []
        self.peak_rss_mb = peak_rss_mb(self._process.pid, self._process.mark)

    def warm_up(self) -> None:
        """Run a bit of the workload, not counted: what is compiled or allocated at first use is so afterwards."""
        self._process.ask("warm-up")

    def round(self) -> None:
        """Run the workload once."""
        before = self._processor_seconds()
        answer = self._process.ask("run")
        self.processor_s.append(self._processor_seconds() - before)
        self.rates.append(answer["tokens"] / answer["seconds"])
        self.memory = answer["memory"]
        self.peak_rss_mb = max(self.peak_rss_mb, peak_rss_mb(self._process.pid, self._process.mark))

    def _processor_seconds(self) -> float:
        return processor_seconds(self._process.pid, self._process.mark)

    def row(self, match: Match) -> Row:
        """The figures so far."""
        return Row(
            match,
            self.name,
            tokens_per_s=round(statistics.median(self.rates), 1),
            rounds=[round(rate, 1) for rate in self.rates],
            peak_rss_mb=round(self.peak_rss_mb),
            load_s=round(self.load_s, 2),
            first_token_s=round(self.first_token_s, 2),
            processor_s=round(statistics.median(self.processor_s), 1),
            memory={name: round(size) for name, size in self.memory.items()},
            versions=self.versions,
            machine=describe_machine(),
            taken=f"{datetime.now(UTC):%Y-%m-%d}",
        )


def parse_arguments(
    parser: argparse.ArgumentParser,
    engines: tuple[str, ...],
    default: str,
    shape: str = "opt-125m",
    workload: str = "skewed",
    dtype: str = "bfloat16",
) -> argparse.Namespace:
    """The flags that every throughput benchmark takes, and what they are by default; what takes several is a list."""
    several = (
        ("shape", SHAPES, shape, "random weights in the shape of this model"),
        ("workload", WORKLOADS, workload, "lengths of prompts and outputs"),
        ("dtype", DTYPES, dtype, "of weights and activations; int8 holds for weights and KV cache"),
        ("engines", engines, default, "who takes part"),
    )
    for name, choices, given, text in several:
        choice = f"{text}; comma-separated of {', '.join(choices)}, or all of them"
        parser.add_argument(f"--{name}", default=given, help=choice)
    parser.add_argument("--rounds", type=int, default=3, help="timed runs of each side, after a short one that is not")
    checkpoints = cache_folder() / "checkpoints"
    parser.add_argument(
        "--checkpoints", type=Path, default=checkpoints, help="folder of made and converted checkpoints"
    )
    parser.add_argument("--results", type=Path, default=None, help="file to keep the rows in, with what it holds")
    parser.add_argument(
        "--keep_since",
        metavar="DAY",
        help="leave alone the matches that --results holds whole from this machine, taken on this day (2026-11-21) or "
        "later: to go on where a run was interrupted",
    )
    arguments = parser.parse_args()
    if arguments.keep_since and not arguments.results:
        parser.error("--keep_since: takes --results beside it")
    for name, choices, _, _ in several:
        given = getattr(arguments, name)
        chosen = [choice for choice in choices if choice not in BY_NAME_ONLY] if given == "all" else given.split(",")
        if unknown := set(chosen) - set(choices):
            parser.error(f"--{name}: no {', '.join(sorted(unknown))}; there are {', '.join(choices)}")
        setattr(arguments, name, chosen)
    return arguments


def run(arguments: argparse.Namespace, keep: Callable[[Path, list[Row]], None] = keep) -> list[Row]:
    """All matches, one after the other; each is kept, if `--results` says where, as soon as it is over.

    A match in which a side fails is given up and the others go on; raises SystemExit at the end, if there was any.
    """
    write_checkpoints(arguments.checkpoints, tuple(arguments.shape))
    rows: list[Row] = []
    given_up = []
    for match in itertools.starmap(Match, itertools.product(arguments.shape, arguments.workload, arguments.dtype)):
        try:
            rows += _kept(match, arguments) or _played(match, arguments, keep)
        except SystemExit as failure:
            print(f"{match} is given up: {failure}", flush=True)
            given_up.append(str(match))
    if given_up:
        raise SystemExit(f"given up: {', '.join(given_up)}")
    return rows


def _kept(match: Match, arguments: argparse.Namespace) -> list[Row]:
    """The rows of a match that is not to be played again; empty for one that is."""
    if not arguments.keep_since or not arguments.results.exists():
        return []
    machine, rows = (
        describe_machine(),
        [row for row in read(arguments.results) if row.match == match and row.engine in arguments.engines],
    )
    fresh = [
        row
        for row in rows
        if row.taken >= arguments.keep_since and row.machine == machine and len(row.rounds) >= arguments.rounds
    ]
    able = {name for name in arguments.engines if CONTENDERS[name].lack(match.shape, match.dtype) is None}
    return fresh if able <= {row.engine for row in fresh} else []


def _played(match: Match, arguments: argparse.Namespace, keep: Callable[[Path, list[Row]], None]) -> list[Row]:
    rows = _play(match, arguments)
    if arguments.results:
        keep(arguments.results, rows)
    return rows


def report(rows: list[Row], baseline: str) -> None:
    """Print a table with ratios against `baseline`'s row of each match, then the rows as one line of JSON."""
    rates = {(row.match, row.engine): row.tokens_per_s for row in rows}
    for row in rows:
        base = rates.get((row.match, baseline))
        ratio = f"{row.tokens_per_s / base:6.2f}x" if base else " " * 7
        where = f"{row.match.shape:9} {row.match.workload:8} {row.match.dtype:9}"
        print(f"{where} {row.engine:24} {row.tokens_per_s:8.1f} tokens/s {ratio}  {row.peak_rss_mb or 0:6.0f} MB")
    for match in dict.fromkeys(row.match for row in rows):
        ours, bound = rates.get((match, "millrace")), rates.get((match, GEMM_BOUND))
        if ours and bound:
            print(f"{match}: millrace reaches {ours / bound:.2f} of what its products alone would allow")
    print(json.dumps({"rows": as_json(rows)}))


def _play(match: Match, arguments: argparse.Namespace) -> list[Row]:
    """Load everybody who can, then interleave their rounds, printing as they come."""
    with ExitStack() as stack:
        sides = [side for name in arguments.engines if (side := _enter(stack, name, match, arguments.checkpoints))]
        for side in sides:
            side.warm_up()
        for number in range(arguments.rounds):
            for side in sides:
                side.round()
                print(f"{match}, round {number + 1}: {side.name} {side.rates[-1]:.1f} tokens/s", flush=True)
        return [side.row(match) for side in sides]


def _enter(stack: ExitStack, name: str, match: Match, checkpoints: Path) -> Contestant | None:
    """The side, loaded; None, with a printed line, if it cannot take part in this match."""
    try:
        if lack := CONTENDERS[name].lack(match.shape, match.dtype):
            raise Unsupported(lack)
        return stack.enter_context(started(name, match, checkpoints))
    except Unsupported as reason:
        print(f"{match}: {name} is left out: {reason}", flush=True)
        return None


@contextmanager
def started(name: str, match: Match, checkpoints: Path) -> Iterator[Contestant]:
    """A contestant in a new process, which ends with the block; raises Unsupported."""
    contender, folder = CONTENDERS[name], checkpoints / match.shape
    if contender.conversion:
        folder = contender.conversion.convert(folder, match.dtype)
    python = contender.environment.python() if contender.environment else Path(sys.executable)
    what = [name, str(folder), match.shape, match.workload, match.dtype]
    with side_process(name, python, "benchmarks.contestant", *what) as process:
        yield Contestant(process)
