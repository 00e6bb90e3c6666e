"""The simulation's costs come from measured steps, and what it says of other measurements is kept as it is."""

import json

import pytest

from benchmarks.fleet.costs import RESULTS, StepCost, load_seconds
from benchmarks.fleet.validation import calibrated, comparisons, one_machine


def test_a_steps_cost_is_that_of_the_measured_steps() -> None:
    fitted = StepCost.fitted()
    assert fitted.fit > 0.98
    assert min(fitted.base, fitted.per_row, fitted.per_prompt_token) > 0
    assert load_seconds() > 0


def test_the_workload_that_scales_it_comes_out_as_measured() -> None:
    engine = json.loads((RESULTS / "engine.json").read_text())["rows"]
    wanted = {"shape": "opt-125m", "workload": "uniform", "dtype": "bfloat16"}
    measured = next(row["tokens_per_s"] for row in engine if (row["match"], row["engine"]) == (wanted, "millrace"))
    assert abs(one_machine("uniform", calibrated()).tokens_per_s / measured - 1) < 1e-6


def test_what_is_kept_is_what_is_simulated() -> None:
    kept = json.loads((RESULTS / "simulation-validation.json").read_text())
    simulated = [each.as_json() for each in comparisons()]
    assert len(simulated) == len(kept["simulated"])
    for one, other in zip(kept["simulated"], simulated, strict=True):
        assert one.pop("of") == other.pop("of")
        assert one == pytest.approx(other, rel=1e-9), "python -m benchmarks.simulation --results"


def test_throughput_is_within_an_eighth_of_what_was_measured() -> None:
    assert all(abs(each.off) < 1 / 8 for each in comparisons() if "tokens/s" in each.of)
