"""Invariants of a simulated fleet, whoever dies: each row is answered once, and nothing beats full batches."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fleet import messages
from benchmarks.fleet.bundles import Bundles
from benchmarks.fleet.costs import StepCost
from benchmarks.fleet.designs import DESIGNS, MILLRACE, POOL, STATIC, Outcome, simulate
from benchmarks.fleet.machines import Fleet, FleetConfig
from benchmarks.fleet.messages import Balancer, Broker
from benchmarks.fleet.rows import Rows

COST = StepCost(base=0.01, per_row=0.0005, per_prompt_token=0.0004)
STARTUP_S = 30.0
SOURCES = {"bundles": Bundles, "broker": Broker, "balancer": Balancer}


def run(rows: Rows, design: str = MILLRACE, workers: int = 3, bundle_rows: int = 50, **config: Any) -> Outcome:
    return simulate(design, rows, FleetConfig(workers, STARTUP_S, **config), COST, bundle_rows=bundle_rows)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Fleet, Bundles | Broker]:
    """Machines that die every minute or so, or never."""
    kind = draw(st.sampled_from(sorted(SOURCES)))
    rate = draw(st.sampled_from((5.0, 50.0))) if kind == "broker" or draw(st.booleans()) else 0.0
    rows = Rows.drawn(draw(st.integers(1, 400)), draw(st.sampled_from(("skewed", "uniform"))), 1, rate)
    if kind == "bundles":
        rows = replace(rows, arrivals=None)
    source: Bundles | Broker = (
        Bundles(draw(st.sampled_from((1, 20, 500))), splitting=draw(st.booleans()))
        if kind == "bundles"
        else SOURCES[kind]()
    )
    config = FleetConfig(
        draw(st.integers(1, 8)),
        draw(st.sampled_from((0.001, 20.0))),
        static=draw(st.booleans()),
        deaths_per_hour=draw(st.sampled_from((0.0, 60.0, 240.0))),
        spread=draw(st.sampled_from((0.0, 0.3))),
        initial_workers=draw(st.sampled_from((None, 1))),
        seed=draw(st.integers(0, 9)),
    )
    return Fleet(config, rows, COST, source), source


@settings(max_examples=60, deadline=None)
@given(fleets())
def test_no_row_is_lost_or_doubled_and_only_deaths_cost_tokens(drawn: tuple[Fleet, Bundles | Broker]) -> None:
    fleet, source = drawn
    fleet.run()
    assert set(fleet.times_answered) == {1}
    assert source.backlog() == 0
    assert source.lost_tokens == 0 or fleet.deaths > 0
    assert source.lost_tokens >= 0
    assert fleet.up_s() <= fleet.paid_s()


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(DESIGNS), st.integers(1, 300), st.integers(1, 9), st.integers(0, 9), st.booleans())
def test_no_fleet_is_more_efficient_than_full_batches(
    design: str, count: int, workers: int, seed: int, comes_at_random: bool
) -> None:
    rows = Rows.drawn(count, "skewed", seed, rate=20.0 if comes_at_random else 0.0)
    outcome = run(rows, design, workers, spread=0.1, seed=seed, deaths_per_hour=20.0)
    assert 0 < outcome.efficiency <= outcome.efficiency_up <= 1


@pytest.mark.parametrize("workload", ["skewed", "uniform"])
@pytest.mark.parametrize("workers", [1, 4])
def test_static_batches_are_never_faster(workload: str, workers: int) -> None:
    for seed in range(4):
        rows = Rows.drawn(500, workload, seed)
        assert run(rows, STATIC, workers).tokens_per_s <= run(rows, workers=workers).tokens_per_s


@pytest.mark.parametrize("design", DESIGNS)
def test_more_machines_are_never_slower_by_more_than_a_start(design: str) -> None:
    rows = Rows.drawn(1000, "skewed", 2)
    seconds = [run(rows, design, workers).seconds for workers in (1, 2, 3, 5, 10, 100, 2000)]
    assert all(more <= fewer + STARTUP_S for fewer, more in itertools.pairwise(seconds))
    assert seconds[-1] < seconds[0] / 2


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("rate", [0.0, 20.0])
def test_the_same_seed_gives_the_same_figures(design: str, rate: float) -> None:
    def outcome(seed: int) -> Outcome:
        return run(Rows.drawn(300, "skewed", seed, rate), design, spread=0.1, deaths_per_hour=30.0, seed=seed)

    assert outcome(1) == outcome(1)
    assert outcome(1) != outcome(2)


def test_a_death_costs_what_its_bundles_had_computed_and_a_server_only_what_was_in_flight() -> None:
    rows = Rows.drawn(3000, "skewed", 1)
    large, small, pool = (
        run(rows, design, 4, bundle_rows=size, deaths_per_hour=60.0)
        for design, size in ((MILLRACE, 1000), (MILLRACE, 50), (POOL, 1))
    )
    assert min(each.deaths for each in (large, small, pool)) > 0
    assert large.twice > small.twice > pool.twice > 0


def test_without_splitting_a_bundle_is_one_machines() -> None:
    rows = Rows.drawn(1000, "skewed", 1)
    alone, whole, split = (
        simulate(MILLRACE, rows, FleetConfig(workers, STARTUP_S), COST, bundle_rows=1000, splitting=splitting).seconds
        for workers, splitting in ((1, False), (4, False), (4, True))
    )
    assert split < whole == alone


def test_a_full_queue_refuses_rows_which_come_again() -> None:
    fleet = FleetConfig(1, startup_s=1e-9)
    busy, calm = (simulate(POOL, Rows.drawn(400, "skewed", 1, rate), fleet, COST) for rate in (500.0, 1.0))
    assert (busy.rows, calm.rows) == (400, 400)
    assert busy.refused > 0 == calm.refused


def test_rows_with_one_system_prompt_meet_where_bundles_are_and_not_behind_a_balancer() -> None:
    rows = Rows.drawn(4000, "skewed", 1).with_prefixes(40, 256)
    pulled, balanced = (run(rows, design, 4, bundle_rows=100).prefix_tokens for design in (MILLRACE, POOL))
    assert pulled < balanced / 2


def test_an_autoscaler_starts_machines_for_a_long_job_and_gives_idle_ones_back() -> None:
    rows = Rows.drawn(5000, "skewed", 1)
    scaled, fixed, few = (
        run(rows, workers=workers, initial_workers=initial) for workers, initial in ((50, 2), (50, None), (2, None))
    )
    assert fixed.seconds < scaled.seconds < few.seconds
    assert scaled.paid_hours < fixed.paid_hours


def test_a_row_on_its_way_to_a_server_that_dies_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "HOP_S", 5.0)
    assert run(Rows.drawn(300, "skewed", 1), POOL, deaths_per_hour=240.0).deaths > 0
