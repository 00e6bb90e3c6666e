"""A discrete-event simulation of 1 to 10,000 worker machines: what no one machine can measure.

    python -m benchmarks.simulation --results benchmarks/results
    python -m benchmarks.simulation --parts streams --workers 10 --workload uniform

Three designs get the same rows on the same machines: `millrace`, which has one engine a machine, batches continuously
and pulls rows; `static batches`, where a batch ends when its longest row ends; and `server pool`, the same engines as
servers behind one load balancer. Nothing runs: steps cost what was fitted to benchmarks/results/timeline.json. The
same seed gives the same figures. Each part is kept in a file of its own; the last line is JSON and has them all.
docs/explanation/scale.md says what is measured and what is assumed.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.command_line import command_line
from benchmarks.fleet.designs import MACHINE, hourly_price
from benchmarks.fleet.parts import PARTS, Given
from benchmarks.fleet.validation import calibrated


def main() -> None:
    """Simulate; the last line is JSON."""
    options = _options()
    workers = tuple(int(each) for each in options.workers.split(","))
    given = Given(calibrated(), options.workload, workers, options.rows_per_worker, options.job_rows, options.seed)
    figures: dict[str, Any] = {}
    for name in options.parts.split(","):
        started = time.perf_counter()
        figures[name] = simulated(name, given)
        print(f"{name}: {len(figures[name]['simulated'])} figures in {time.perf_counter() - started:.0f} s", flush=True)
        if options.results:
            path = options.results / f"simulation-{name}.json"
            path.write_text(json.dumps(figures[name], indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures))


def simulated(name: str, given: Given) -> dict[str, Any]:
    """A part's figures, and the settings they were simulated with."""
    settings = {"part": name, "workload": given.workload, "seed": given.seed, "step_cost": asdict(given.cost)}
    return settings | {"worker": MACHINE, "hourly": hourly_price(), "simulated": PARTS[name](given)}


def _options() -> argparse.Namespace:
    parser = command_line("simulation", __doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="what to simulate")
    parser.add_argument("--workload", choices=("skewed", "uniform"), default="skewed", help="lengths of rows")
    parser.add_argument("--workers", default="1,10,100,1000,10000", help="sizes of fleets")
    parser.add_argument("--rows_per_worker", type=int, default=300, help="rows of a machine, where fleets grow")
    parser.add_argument("--job_rows", type=int, default=1_000_000, help="rows of a job, where they stay as many")
    parser.add_argument("--seed", type=int, default=0, help="of lengths, arrivals, speeds and deaths")
    parser.add_argument("--results", type=Path, metavar="DIR", help="folder to keep each part in")
    return parser.parse_args()


if __name__ == "__main__":
    main()
