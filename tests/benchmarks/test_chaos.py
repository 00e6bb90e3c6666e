"""The chaos benchmark in its short form: a job under blows loses and doubles no row, and changes no text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos import parser
from benchmarks.storms import experiments
from benchmarks.storms.blows import drawn
from benchmarks.storms.experiments import faults, kills
from benchmarks.storms.fields import ROLES
from benchmarks.storms.sums import added_up

ROWS = 240


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a job leaves is what never goes, on a machine that may be very busy."""
    monkeypatch.setattr(experiments, "_GONE_WITHIN", 300.0)


def test_a_seed_draws_the_same_blows_again_over_all_roles_and_rows() -> None:
    roles = ROLES["local-processes"]
    blows = drawn(7, 200, 10_000, roles, 60.0)
    assert blows == drawn(7, 200, 10_000, roles, 60.0) != drawn(8, 200, 10_000, roles, 60.0)
    assert {blow.kind for blow in blows} == {f"{role} {how}" for role in roles for how in ("killed", "stopped")}
    assert [blow.after_rows for blow in blows] == sorted(blow.after_rows for blow in blows)
    assert all(blow.pause == 0 or 1 <= blow.pause <= 60 for blow in blows)
    assert not any(blow.pause for blow in drawn(7, 200, 10_000, roles, 60.0, share_of_stops=0))


def is_whole(figures: dict[str, Any]) -> None:
    """Nothing is lost, doubled, changed or left behind."""
    assert [figures[name] for name in ("lost", "doubled", "texts_changed", "left_behind")] == [0, 0, 0, []], figures


@pytest.mark.slow
def test_a_job_under_blows_has_the_rows_and_texts_of_an_undisturbed_one(tmp_path: Path) -> None:
    flags = f"--rows {ROWS} --kills 6 --seed 4 --longest_pause 3 --hang_timeout 60"

    def number_of_blows(turn: int) -> int:
        (figures,) = kills(parser().parse_args(flags.split()), tmp_path / str(turn))
        is_whole(figures)
        assert figures["dead_letters"] == 0
        assert figures["statuses"][-1] == 0
        tokens = figures["tokens"]
        assert tokens["undisturbed_generated"] >= ROWS * 16, "each row has so many tokens at least"
        assert tokens["generated"] >= tokens["undisturbed_generated"], "killed engines are counted too"
        return sum(figures["struck"].values())

    assert any(number_of_blows(turn) >= 4 for turn in range(3)), "else the job was over before they fell"


@pytest.mark.slow
def test_a_job_with_a_full_disk_or_a_devices_errors_is_whole_in_the_end(tmp_path: Path) -> None:
    flags = ["--rows", str(ROWS // 2), "--fault", "full-disk", "gpu-error", "clock-libc"]
    for figures in faults(parser().parse_args(flags), tmp_path)["faults"]:
        is_whole(figures)


@pytest.mark.runners
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("runner", "seed", "role"), [("prism", 44, "launcher"), ("flink", 49, "task manager")])
def test_a_job_on_a_runner_with_servers_is_whole_under_blows_too(
    tmp_path: Path, runner: str, seed: int, role: str
) -> None:
    flags = f"--runner {runner} --rows {ROWS} --kills 6 --seed {seed} --longest_pause 5 --hang_timeout 60"
    options = parser().parse_args(flags.split())
    blows = drawn(seed, 6, ROWS, ROLES[runner], 5.0)
    assert sum(blow.kind == f"{role} killed" for blow in blows) >= 2
    assert any(blow.pause for blow in blows)
    (figures,) = kills(options, tmp_path)
    is_whole(figures)
    assert figures["struck"].get(f"{role} killed"), figures["struck"]
    assert figures["statuses"][-1] == 0


def part(**figures: Any) -> dict[str, Any]:
    """One part's figures, as a job under two blows has them."""
    counted = dict.fromkeys(("missed", "lost", "doubled", "dead_letters", "texts_changed"), 0)
    of_time = {"seconds": 30.0, "undisturbed_seconds": 10.0, "processor_seconds": 8.0}
    rest = {"rows": 100, "launchers": 2, "statuses": [1, 0], "left_behind": [], "undisturbed_processor_seconds": 5.0}
    struck = {"struck": {"engine killed": 1, "manager stopped": 1}}
    stalls = {"stalls": {"engine killed": [1.0], "manager stopped": [4.0]}}
    return counted | of_time | rest | struck | stalls | {"tokens": {"computed": 50, "undisturbed": 40}} | figures


def test_parts_add_up() -> None:
    other = part(lost=1, statuses=[2], left_behind=["rt"], seconds=50.0, stalls={"engine killed": [2.0, 6.0]})
    both = added_up([part(), other])
    assert {name: both[name] for name in ("parts", "struck_in_all", "rows", "lost", "doubled", "left_behind")} == {
        "parts": 2,
        "struck_in_all": 4,
        "rows": 200,
        "lost": 1,
        "doubled": 0,
        "left_behind": 1,
    }
    assert both["struck"] == {"engine killed": 2, "manager stopped": 2}
    assert both["ended_with"] == [0, 2]
    assert both["seconds_per_blow"] == 15.0
    assert both["processor_seconds_per_blow"] == 1.5
    assert both["tokens"] == {"computed": 100, "undisturbed": 80}
    assert both["stalls"] == {"engine killed": [3, 2.0, 3.0, 6.0], "manager stopped": [1, 4.0, 4.0, 4.0]}
    assert added_up([part(processor_seconds=None)])["processor_seconds_per_blow"] is None
