"""The soak in a short form, and its slopes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.soak import added_up, main


def held(level: float, mb_per_hour: float, noise: float = 0.0) -> list[list[float]]:
    """A process whose memory jumps in its first minute, and grows evenly then."""
    rising = [[at, level + mb_per_hour * at / 3600 + noise * (-1) ** (at // 5)] for at in range(60, 600, 5)]
    return [[at, level / 2] for at in range(0, 60, 5)] + rising


def test_a_slope_is_one_over_all_parts_whatever_level_a_process_has() -> None:
    figures = {"minutes": 10.0, "rows": 100, "answered": 98, "dead_letters": 1, "unanswered": 1}
    parts = [
        figures | {"held": {"engine 7": held(300, 12), "manager 8": held(50, 0, noise=1), "worker 9": [[70, 9.0]]}},
        figures | {"held": {"engine 17": held(350, 12), "engine 18": held(100, 12)}},
    ]
    found = added_up(parts, warm_up=60)
    assert {name: found[name] for name in ("parts", "minutes", "rows", "unanswered")} == {
        "parts": 2,
        "minutes": 20.0,
        "rows": 200,
        "unanswered": 2,
    }
    engine, manager = found["memory"]["engine"], found["memory"]["manager"]
    assert (engine["mb_per_hour"], engine["plus_minus"], engine["processes"]) == (12.0, 0.0, 3)
    assert engine["longest_minutes"] == 8.9
    assert engine["highest_mb"] == pytest.approx(352, abs=0.1)
    assert abs(manager["mb_per_hour"]) < manager["plus_minus"]
    assert "worker" not in found["memory"], "one look says nothing"


@pytest.mark.runners
def test_a_short_soak_answers_its_rows_and_a_second_call_adds_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "soak.json"
    flags = ["--part_minutes", "0.5", "--warm_up_minutes", "0", "--backend", "fake", "--results", str(kept)]
    monkeypatch.setattr(sys, "argv", ["soak", *flags])
    for parts in (1, 2):
        main()
        figures = json.loads(kept.read_text())
        assert figures["parts"] == parts
        last = figures["each"][-1]
        assert last["rows"] >= 30 * 5 * 0.8
        assert 0 < last["answered"] == last["rows"] - last["unanswered"]
        assert last["dead_letters"] == 0
        assert {"launcher", "prism", "manager", "engine"} <= figures["memory"].keys()
