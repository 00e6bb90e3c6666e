"""One simulated machine against measured ones.

The cost of a step is fitted to one run's steps, in which at most 16 rows ran at once, and is then multiplied so that
`uniform` comes out as it was measured. What the simulation says of `skewed`, and of waits, is compared.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.fleet.costs import RESULTS, StepCost
from benchmarks.fleet.designs import MILLRACE, Outcome, simulate
from benchmarks.fleet.machines import FleetConfig
from benchmarks.fleet.rows import Rows
from benchmarks.results import read
from benchmarks.timeline import arrivals
from benchmarks.workload import VOCAB, make

_AT_ONCE = 1e-9
"""Seconds of a start that counts for nothing."""
_CASES = (
    ("engine", "millrace", "uniform", "skewed", "opt-125m", "float32"),
    ("engine", "millrace", "uniform", "skewed", "opt-125m", "bfloat16"),
    ("engine", "millrace", "uniform", "skewed", "opt-125m", "int8"),
    ("engine", "millrace", "uniform", "skewed", "qwen-0.5b", "float32"),
    ("engine", "millrace", "uniform", "skewed", "qwen-0.5b", "bfloat16"),
    ("engine", "millrace", "uniform", "skewed", "qwen-0.5b", "int8"),
    ("engines", "torch", "uniform-x4", "skewed-x4", "opt-125m", "bfloat16"),
)
"""File, engine, workload that scales, workload that is predicted, shape, dtype."""


@dataclass(frozen=True)
class Comparison:
    """A figure as it was measured and as it is simulated."""

    of: str
    measured: float
    simulated: float

    @property
    def off(self) -> float:
        """How far the simulation is above (or below) what was measured, as a part of it."""
        return self.simulated / self.measured - 1

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"off": self.off}


def one_machine(workload: str, cost: StepCost, due: list[float] | None = None) -> Outcome:
    """A workload exactly as the benchmarks have it, on a machine that is up."""
    rows = Rows.of(make(workload, VOCAB["opt-125m"]), due)
    return simulate(MILLRACE, rows, FleetConfig(1, _AT_ONCE), cost)


def scaled(fitted: StepCost, file: str, engine: str, workload: str, shape: str, dtype: str) -> StepCost:
    """`fitted` for the machine and model on which a workload was measured."""
    return fitted.times(one_machine(workload, fitted).tokens_per_s / _measured(file, engine, workload, shape, dtype))


def calibrated() -> StepCost:
    """Figures of the benchmarks' machine (AMD EPYC, 2 cores) in opt-125m's shape and bfloat16."""
    return scaled(StepCost.fitted(), "engine", "millrace", "uniform", "opt-125m", "bfloat16")


def comparisons() -> list[Comparison]:
    """Throughput of each case, then waits of rows that come at random."""
    fitted = StepCost.fitted()
    found = []
    for file, engine, uniform, skewed, shape, dtype in _CASES:
        cost = scaled(fitted, file, engine, uniform, shape, dtype)
        measured = _measured(file, engine, skewed, shape, dtype)
        name = f"{shape}, {skewed}, {dtype}: tokens/s"
        found.append(Comparison(name, measured, one_machine(skewed, cost).tokens_per_s))
    pipeline = _measured("pipeline", "millrace-pipeline", "skewed", "opt-125m", "bfloat16")
    ours = calibrated()
    found.append(Comparison("the same in a pipeline, bfloat16", pipeline, one_machine("skewed", ours).tokens_per_s))
    return found + _waits(fitted, ours)


def _waits(fitted: StepCost, ours: StepCost) -> list[Comparison]:
    timeline = json.loads((RESULTS / "timeline.json").read_text(encoding="utf-8"))["latency"]
    latency = json.loads((RESULTS / "latency.json").read_text(encoding="utf-8"))
    alone = one_machine("skewed", fitted, arrivals(96, 6))
    rounds = [one_machine("skewed", ours, arrivals(96, latency["rate"], seed)) for seed in range(latency["rounds"])]
    found = []
    for percent in (50, 99):
        simulated = getattr(alone, f"p{percent}_s")
        found.append(Comparison(f"wait at 6 rows/s, p{percent}, s", float(np.percentile(timeline, percent)), simulated))
    for percent in (50, 99):
        simulated = float(np.mean([getattr(each, f"p{percent}_s") for each in rounds]))
        measured = latency["asynchronous"][f"p{percent}_s"]
        found.append(Comparison(f"wait in a pipeline at 1.5 rows/s, p{percent}, s", measured, simulated))
    return found


def _measured(file: str, engine: str, workload: str, shape: str, dtype: str) -> float:
    wanted = (engine, workload, shape, dtype)
    rows = read(RESULTS / f"{file}.json")
    return next(
        row.tokens_per_s for row in rows if (row.engine, row.match.workload, row.match.shape, row.match.dtype) == wanted
    )
