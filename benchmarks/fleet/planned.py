"""`millrace plan`'s formula on simulated jobs: what it says, and what the fleet takes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from benchmarks.fleet.costs import StepCost
from benchmarks.fleet.designs import MILLRACE, simulate
from benchmarks.fleet.machines import FleetConfig
from benchmarks.fleet.rows import Rows
from millrace.pipelines.plan.estimate import Terms, Work, WorkerSpeed, with_workers, work_hours

_TRIAL_ROWS = 400
"""Rows of the trial run that gives a worker's speed (docs/tutorials/dataflow.md: a few hundred)."""
_CASES = (
    ("as they are", 1, 0.02, 1, 0.0),
    ("as they are", 10, 0.2, 1, 0.0),
    ("as they are", 100, 0.3, 1, 0.0),
    ("outputs 8 times as long", 10, 0.03, 8, 0.0),
    ("outputs 8 times as long", 100, 0.1, 8, 0.0),
    ("machines taken back every 100 hours", 5, 1.0, 1, 0.01),
    ("machines taken back every 10 hours", 5, 1.0, 1, 0.1),
    ("machines taken back every hour", 5, 1.0, 1, 1.0),
)
"""What, workers, share of the job's rows, how many times as long outputs are, deaths an hour (told to the plan)."""


def planned(cost: StepCost, workload: str, fleet: FleetConfig, bundle_rows: int, job_rows: int) -> list[dict[str, Any]]:
    """Hours by the plan, with and without its margin of a tenth, beside the simulated ones."""
    found = []
    for name, workers, share, longer, deaths in _CASES:
        count = int(share * job_rows)
        rows = _longer(Rows.drawn(count, workload, fleet.seed), longer)
        config = replace(fleet, workers=workers, deaths_per_hour=deaths)
        outcome = simulate(MILLRACE, rows, config, cost, bundle_rows=bundle_rows)
        trial = _longer(Rows.drawn(_TRIAL_ROWS, workload, fleet.seed + 1), longer)
        speed = simulate(MILLRACE, trial, FleetConfig(1, 1e-9), cost, bundle_rows=bundle_rows).tokens_per_s
        told: dict[str, Any] = {
            "case": name,
            "workers": workers,
            "rows": count,
            "simulated_hours": outcome.seconds / 3600,
        }
        for key, margin in (("plan_hours", Fraction(1, 10)), ("plan_hours_without_margin", Fraction(0))):
            terms = Terms(Fraction(fleet.startup_s) / 3600, margin, preemptions=Fraction(str(deaths)))
            told[key] = _plan(rows, speed, workers, terms)
        found.append(told | {"off": told["plan_hours"] / told["simulated_hours"] - 1})
    return found


def _longer(rows: Rows, times: int) -> Rows:
    return replace(rows, outputs=[times * output for output in rows.outputs])


def _plan(rows: Rows, speed: float, workers: int, terms: Terms) -> float:
    work = Work(Fraction(sum(rows.prompts)), Fraction(sum(rows.outputs)))
    hours = work_hours(work, WorkerSpeed(Fraction(speed)), terms)
    return float(with_workers(hours, workers, terms).hours)
