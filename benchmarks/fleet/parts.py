"""The questions to the simulated fleet, one part each. A part returns the figures of its runs as plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.fleet.costs import StepCost, load_seconds
from benchmarks.fleet.designs import DESIGNS, MILLRACE, POOL, Outcome, simulate
from benchmarks.fleet.machines import FleetConfig
from benchmarks.fleet.planned import planned
from benchmarks.fleet.rows import Rows
from benchmarks.fleet.validation import comparisons

Figures = list[dict[str, Any]]
STARTUP_S = 600.0
"""A machine's start, as `millrace plan` has it by default; loading the model is added."""
SPREAD = 0.05
"""Rounds of one benchmark differ by about as much."""
BUNDLE_ROWS = 100
PREFIX_TOKENS = 256


@dataclass(frozen=True)
class Given:
    """What all parts have in common."""

    cost: StepCost
    workload: str
    workers: tuple[int, ...]
    rows_per_worker: int
    job_rows: int
    seed: int

    def rows(self, count: int, rate: float = 0.0) -> Rows:
        """The same for the same arguments."""
        return Rows.drawn(count, self.workload, self.seed, rate)

    def fleet(self, workers: int, **changes: Any) -> FleetConfig:
        """Machines that start as late as they do, unless `changes` says otherwise."""
        config = FleetConfig(workers, STARTUP_S + load_seconds(), spread=SPREAD, seed=self.seed)
        return replace(config, **changes)

    def run(self, rows: Rows, fleet: FleetConfig, design: str = MILLRACE, bundle_rows: int = BUNDLE_ROWS) -> Outcome:
        """One run."""
        return simulate(design, rows, fleet, self.cost, bundle_rows=bundle_rows)


def validation(_: Given) -> Figures:
    """One simulated machine against measured ones."""
    return [each.as_json() for each in comparisons()]


def scaling(given: Given) -> Figures:
    """Each design on more and more machines, with as many rows for each."""
    return [
        _told(given.run(rows, given.fleet(workers), design))
        for workers in given.workers
        for rows in [given.rows(given.rows_per_worker * workers)]
        for design in DESIGNS
    ]


def job(given: Given) -> Figures:
    """One job on more and more machines; then with an autoscaler that may have as many as there are."""
    rows = given.rows(given.job_rows)
    fixed = [_told(given.run(rows, given.fleet(workers)), initial_workers=None) for workers in given.workers]
    scaled = given.fleet(max(given.workers), initial_workers=min(10, max(given.workers)))
    return [*fixed, _told(given.run(rows, scaled), initial_workers=scaled.initial_workers)]


def bundles(given: Given) -> Figures:
    """Sizes of bundles, with and without Beam's splitting, on 100 machines."""
    rows = given.rows(100 * given.rows_per_worker)
    return [
        _told(
            simulate(MILLRACE, rows, given.fleet(100), given.cost, bundle_rows=size, splitting=splitting),
            bundle_rows=size,
            splitting=splitting,
        )
        for size in (10, 30, 100, 1000)
        for splitting in (True, False)
    ]


def spot(given: Given) -> Figures:
    """Machines that their provider takes back at random."""
    rows, found = given.rows(given.job_rows), []
    for deaths in (0.0, 0.3, 1.0, 3.0):
        fleet = given.fleet(10, deaths_per_hour=deaths)
        for design, size in ((MILLRACE, 100), (MILLRACE, 1000), (POOL, 1)):
            found.append(_told(given.run(rows, fleet, design, size), deaths_per_hour=deaths, bundle_rows=size))
    return found


def streams(given: Given) -> Figures:
    """Rows that come at random, at shares of what the machines of millrace can answer."""
    capacity = given.run(given.rows(1000), FleetConfig(1, 1e-9)).rows_per_s
    found = []
    for workers in (each for each in given.workers if each <= 100):
        for load in (0.2, 0.5, 0.8):
            rows = given.rows(5 * given.rows_per_worker * workers, load * capacity * workers)
            fleet = given.fleet(workers, startup_s=1e-9)
            found += [_told(given.run(rows, fleet, design), load=load) for design in DESIGNS]
    return found


def prefixes(given: Given) -> Figures:
    """System prompts; rows with the same one stand together in the input."""
    rows, fleet = given.rows(100 * given.rows_per_worker), given.fleet(100)
    return [
        _told(given.run(rows.with_prefixes(count, PREFIX_TOKENS), fleet, design), prefixes=count)
        for count in (1, 10, 100)
        for design in (MILLRACE, POOL)
    ]


def plan(given: Given) -> Figures:
    """What `millrace plan` says, and what the fleet takes."""
    found = planned(given.cost, given.workload, given.fleet(1), BUNDLE_ROWS, given.job_rows)
    return [{name: _rounded(value) for name, value in each.items()} for each in found]


PARTS: dict[str, Callable[[Given], Figures]] = {
    part.__name__: part for part in (validation, scaling, job, bundles, spot, streams, prefixes, plan)
}


def _told(outcome: Outcome, **settings: Any) -> dict[str, Any]:
    return {name: _rounded(value) for name, value in (settings | asdict(outcome)).items()}


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value
