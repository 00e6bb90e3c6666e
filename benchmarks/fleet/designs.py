"""Three designs on the same machines and rows, and what a run of one of them comes to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.fleet.bundles import Bundles
from benchmarks.fleet.costs import StepCost
from benchmarks.fleet.engine import MAX_NUM_SEQS
from benchmarks.fleet.machines import Fleet, FleetConfig
from benchmarks.fleet.messages import Balancer, Broker
from benchmarks.fleet.rows import Rows
from millrace.pipelines.flags.machines import disk_needed
from millrace.pipelines.plan.prices import Prices

MILLRACE, STATIC, POOL = "millrace", "static batches", "server pool"
DESIGNS = (MILLRACE, STATIC, POOL)
MACHINE = "n2-standard-2"
"""The machine of Google Cloud with as many processors as the measured one."""
_PRICES = Path(__file__).parents[2] / "deploy/dataflow/prices.example.toml"


@dataclass(frozen=True)
class Outcome:
    """One run. Seconds are from the request for the machines on."""

    design: str
    workers: int
    rows: int
    seconds: float
    rows_per_s: float
    tokens_per_s: float
    """Generated."""
    paid_hours: float
    per_million_rows: float
    """The price."""
    efficiency: float
    """The machine seconds that engines need whose batches are always full, over those that were paid; at most 1."""
    efficiency_up: float
    """The same over the seconds in which machines were up, their starts left out."""
    twice: float
    """The share of all computed tokens that a death made worthless."""
    prefix_tokens: int
    """Tokens of system prompts that were computed."""
    deaths: int
    refused: int
    p50_s: float | None
    p99_s: float | None


def simulate(
    design: str, rows: Rows, config: FleetConfig, cost: StepCost, *, bundle_rows: int = 1000, splitting: bool = True
) -> Outcome:
    """All rows through a fleet; raises AssertionError if one was lost or doubled."""
    config = replace(config, static=design == STATIC)
    if design == POOL:
        source: Bundles | Broker = Balancer()
    else:
        source = Broker() if rows.arrivals else Bundles(bundle_rows, splitting=splitting)
    fleet = Fleet(config, rows, cost, source)
    fleet.run()
    assert set(fleet.times_answered) == {1}, "each row is answered exactly once"
    return _outcome(design, fleet, cost, source)


def _outcome(design: str, fleet: Fleet, cost: StepCost, source: Bundles | Broker) -> Outcome:
    rows, paid_s = fleet.rows, fleet.paid_s()
    prompts, outputs = sum(rows.prompts), sum(rows.outputs)
    least_s = cost.least(prompts - len(rows), outputs, MAX_NUM_SEQS)
    prefixes = fleet.prefix_tokens + sum(machine.engine.prefix_tokens for machine in fleet.machines)
    computed = prompts + outputs + prefixes + source.lost_tokens
    p50, p99 = (float(each) for each in np.percentile(fleet.latencies, (50, 99))) if fleet.latencies else (None, None)
    return Outcome(
        design=design,
        workers=fleet.config.workers,
        rows=len(rows),
        seconds=fleet.now,
        rows_per_s=len(rows) / fleet.now,
        tokens_per_s=outputs / fleet.now,
        paid_hours=paid_s / 3600,
        per_million_rows=paid_s / 3600 * hourly_price() / len(rows) * 1e6,
        efficiency=least_s / paid_s,
        efficiency_up=least_s / fleet.up_s(),
        twice=source.lost_tokens / computed,
        prefix_tokens=prefixes,
        deaths=fleet.deaths,
        refused=source.refused if isinstance(source, Broker) else 0,
        p50_s=p50,
        p99_s=p99,
    )


@lru_cache
def hourly_price() -> float:
    """The price of MACHINE, as `millrace plan` reckons it, by the example's prices."""
    return float(sum(Prices.read(_PRICES).parts(MACHINE, None, disk_needed(0.25)).values()))
