"""Kills: a real job of files, whose processes are killed and stopped at random, against the same job undisturbed.

    python -m benchmarks.chaos --rows 10000 --kills 100 --seed 1 --parts 10 --results kills.json
    python -m benchmarks.chaos --rows 500 --fault full-disk gpu-error

`millrace run` with the embedded model in float32; half of the rows are greedy, half have seeds, so that texts can be
compared. Inference process, manager, workers and launcher are killed with -9, or stopped for a while; a launcher is
started again with --resume. The seed draws rows and blows: the same seed repeats a run, as far as the machine does.
`--parts` runs the rows so many times, each time under other blows; with `--results` each part is kept as it ends, a
later call adds its own, and the figures cover all parts in the file.
`lost` and `doubled` are rows; `changed` are the ids of rows with another text (a sampled token may differ in other
company where its random number lies within a rounding error of the next token's: docs/reference/sampling.md). `stalls`
are the longest seconds without a new row from a blow to the next one, by kind (how many, median, mean, highest).
`tokens` has what the engines of both runs computed (of prompts and answers) and generated, counted in the engines, and
what the last summary says: tokens computed again in its launch, and computed in all launches (0 if there was one; it
counts the last token of an answer too, which no step computes). `processor_seconds` cover all processes of the job.
`left_behind` is what is there ten seconds after the end: processes, files, ports, shared memory. The last line is JSON.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.command_line import command_line
from benchmarks.results import conclude
from benchmarks.storms.blows import STOPS
from benchmarks.storms.experiments import faults, kills
from benchmarks.storms.faults import FAULTS
from benchmarks.storms.fields import ROLES
from benchmarks.storms.sums import added_up, parts_in


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = command_line("chaos", __doc__)
    made.add_argument("--rows", type=int, default=2000, help="rows of the job")
    made.add_argument("--kills", type=int, default=20, help="blows, spread over the rows")
    made.add_argument("--seed", type=int, default=1, help="draws rows and blows")
    made.add_argument("--parts", type=int, default=1, help="jobs under blows; each has the next seed")
    made.add_argument("--runner", choices=ROLES, default="local-processes", help="where the job runs")
    made.add_argument("--roles", default="", help="roles to strike, as engine,manager; by default all of the runner's")
    made.add_argument("--max_tokens", type=int, default=32, help="tokens of a row, at most; half of them at least")
    made.add_argument("--stops", type=float, default=STOPS, help="share of blows that stop a process for a while")
    made.add_argument("--longest_pause", type=float, default=60.0, help="seconds between SIGSTOP and SIGCONT, at most")
    made.add_argument("--hang_timeout", type=float, default=10.0, help="the job's flag")
    made.add_argument("--fault", nargs="+", choices=FAULTS, default=[], help="jobs with these faults, without blows")
    made.add_argument("--folder", type=Path, help="keep everything there; by default in a temporary folder that goes")
    made.add_argument("--results", type=Path, help="file to keep the last line in; parts add up there")
    return made


def main() -> None:
    """Measure; the last line is JSON."""
    options = parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        folder = options.folder.absolute() if options.folder else Path(temporary)
        if options.fault:
            conclude(faults(options, folder), options.results)
        else:
            each = parts_in(options.results)
            for part in kills(options, folder):
                each.append(part)
                conclude(added_up(each) | {"each": each}, options.results)


if __name__ == "__main__":
    main()
