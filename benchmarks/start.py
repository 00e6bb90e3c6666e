"""The start of an engine: seconds from the start of its process to its first token, and its peak memory until then.

    python -m benchmarks.start --shape opt-125m --dtype all --rounds 5 --results benchmarks/results/start.json

Each round starts a fresh process for each engine and dtype in turn, which loads the checkpoint and answers a request of
128 tokens with one. Medians of the rounds; `peak_rss_mb` is VmHWM, beside what the weights and the touched part of the
KV cache come to, where the side can name them. A round before the first, which is not counted, brings the files into
the system's cache. The last line is JSON. `millrace-first-load` and `millrace-second-load` are started by a manager;
`millrace-serve` is `millrace serve`, from the command to the first token of a stream.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.command_line import command_line
from benchmarks.contenders import DTYPES, ENGINES
from benchmarks.contest import Contestant, started
from benchmarks.environments import cache_folder
from benchmarks.managed_start import FIRST, SECOND, SERVE, ManagedStart, load
from benchmarks.results import Match, conclude
from benchmarks.sides import Unsupported
from benchmarks.workload import SHAPES, write_checkpoints

Started = Contestant | ManagedStart
_NAMES = (*ENGINES, FIRST, SECOND, SERVE)


@dataclass(frozen=True)
class Start:
    """One engine's start in one dtype: medians, and the rounds themselves."""

    engine: str
    shape: str
    dtype: str
    first_token_s: float
    load_s: float
    """Part of it: loading, imports included."""
    peak_rss_mb: float
    memory: dict[str, float]
    """`weights_mb`, `kv_mb`, where the side knows them."""
    rounds: list[float] = field(default_factory=list)
    """first_token_s of each."""

    def __str__(self) -> str:
        known = ", ".join(f"{name} {mb:,.0f}" for name, mb in self.memory.items())
        return (
            f"{self.shape} {self.dtype:9} {self.engine:16} first token after {self.first_token_s:6.2f} s "
            f"(loading {self.load_s:.2f} s), peak {self.peak_rss_mb:,.0f} MB" + (f" ({known})" if known else "")
        )


def measure(matches: list[tuple[str, Match]], rounds: int, start: Callable[[str, Match], Started]) -> list[Start]:
    """The starts of (engine, match), rounds interleaved; one that a side cannot do is left out, with a printed line."""
    seen: dict[tuple[str, Match], list[Started]] = {}
    for number, (name, match) in itertools.product(range(rounds + 1), matches):
        with suppress(Unsupported):
            side = start(name, match)
            if number:  # the first one warms the system's cache
                seen.setdefault((name, match), []).append(side)
    for name, match in matches:
        if (name, match) not in seen:
            print(f"{match}: {name} is left out")
    return [_median(name, match, sides) for (name, match), sides in seen.items()]


def _median(name: str, match: Match, sides: list[Started]) -> Start:
    return Start(
        engine=name,
        shape=match.shape,
        dtype=match.dtype,
        first_token_s=round(statistics.median(side.first_token_s for side in sides), 2),
        load_s=round(statistics.median(side.load_s for side in sides), 2),
        peak_rss_mb=round(statistics.median(side.peak_rss_mb for side in sides)),
        memory={key: round(mb, 1) for key, mb in sides[0].memory.items()},
        rounds=[round(side.first_token_s, 2) for side in sides],
    )


def _arguments() -> argparse.Namespace:
    parser = command_line("start", __doc__)
    shapes, dtypes = ", ".join(SHAPES), ", ".join(DTYPES)
    parser.add_argument("--shape", default="opt-125m", help=f"random weights in these shapes, commas between: {shapes}")
    parser.add_argument("--dtype", default="all", help=f"comma-separated of {dtypes}, or all of them")
    parser.add_argument("--engines", default="millrace,openvino-genai", help=f"comma-separated of {', '.join(_NAMES)}")
    parser.add_argument("--rounds", type=int, default=5, help="starts of each, after one that is not counted")
    parser.add_argument(
        "--checkpoints", type=Path, default=cache_folder() / "checkpoints", help="folder of checkpoints"
    )
    parser.add_argument("--results", type=Path, help="file to keep the last line in")
    arguments = parser.parse_args()
    known = {"shape": SHAPES, "dtype": DTYPES, "engines": _NAMES}
    for name, choices in known.items():
        given = getattr(arguments, name)
        chosen = list(DTYPES) if (name, given) == ("dtype", "all") else given.split(",")
        if unknown := set(chosen) - set(choices):
            parser.error(f"--{name}: no {', '.join(sorted(unknown))}; there are {', '.join(choices)}")
        setattr(arguments, name, chosen)
    return arguments


def _matches(arguments: argparse.Namespace) -> Iterator[tuple[str, Match]]:
    for shape, dtype, name in itertools.product(arguments.shape, arguments.dtype, arguments.engines):
        if name not in ENGINES or dtype in ENGINES[name].dtypes:
            yield name, Match(shape, "uniform", dtype)


def main() -> None:
    """Measure what the command line names; the last line is JSON."""
    arguments = _arguments()
    write_checkpoints(arguments.checkpoints, tuple(arguments.shape))

    def start(name: str, match: Match) -> Started:
        if name in (FIRST, SECOND, SERVE):
            return load(name, arguments.checkpoints / match.shape, match.dtype)
        with started(name, match, arguments.checkpoints) as side:
            return side

    starts = measure(list(_matches(arguments)), arguments.rounds, start)
    print(*starts, sep="\n")
    conclude({"starts": [asdict(each) for each in starts]}, arguments.results)


if __name__ == "__main__":
    main()
