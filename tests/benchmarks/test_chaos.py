"""The chaos benchmark in its short form: a job under blows loses and doubles no row, and changes no text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos import parser
from benchmarks.storms.blows import drawn
from benchmarks.storms.experiments import faults, kills
from benchmarks.storms.fields import ROLES

ROWS = 240


def test_a_seed_draws_the_same_blows_again_over_all_roles_and_rows() -> None:
    roles = ROLES["local-processes"]
    blows = drawn(7, 200, 10_000, roles, 60.0)
    assert blows == drawn(7, 200, 10_000, roles, 60.0) != drawn(8, 200, 10_000, roles, 60.0)
    assert {blow.kind for blow in blows} == {f"{role} {how}" for role in roles for how in ("killed", "stopped")}
    assert [blow.after_rows for blow in blows] == sorted(blow.after_rows for blow in blows)
    assert all(blow.pause == 0 or 1 <= blow.pause <= 60 for blow in blows)


def is_whole(figures: dict[str, Any]) -> None:
    """Nothing is lost, doubled, changed or left behind."""
    assert [figures[name] for name in ("lost", "doubled", "texts_changed", "left_behind")] == [0, 0, 0, []], figures


@pytest.mark.slow
def test_a_job_under_blows_has_the_rows_and_texts_of_an_undisturbed_one(tmp_path: Path) -> None:
    flags = f"--rows {ROWS} --kills 6 --seed 4 --longest_pause 3 --hang_timeout 5"
    figures = kills(parser().parse_args(flags.split()), tmp_path)
    is_whole(figures)
    assert figures["dead_letters"] == 0
    assert figures["statuses"][-1] == 0
    assert sum(figures["struck"].values()) >= 4


@pytest.mark.slow
def test_a_job_with_a_full_disk_or_a_devices_errors_is_whole_in_the_end(tmp_path: Path) -> None:
    flags = ["--rows", str(ROWS // 2), "--fault", "full-disk", "gpu-error"]
    for figures in faults(parser().parse_args(flags), tmp_path)["faults"]:
        is_whole(figures)
