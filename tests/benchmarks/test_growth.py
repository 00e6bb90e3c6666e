"""The benchmark of growing jobs says what processes hold and use, and what a resumed job passes over."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.growth import Watch, main, write_input
from benchmarks.storms.job import Job


def test_rows_are_spread_over_files(tmp_path: Path) -> None:
    write_input(tmp_path, range(10, 15), 2)
    found = [path.read_text().splitlines() for path in sorted(tmp_path.iterdir())]
    assert [[json.loads(line)["id"] for line in lines] for lines in found] == [["r10", "r12", "r14"], ["r11", "r13"]]


def test_a_slope_is_of_the_second_half_and_in_rows(tmp_path: Path) -> None:
    watch = Watch(Job(tmp_path, []))
    first = [(float(second), 1000.0) for second in range(100)]
    watch._held["engine"] = [*first, *((100.0 + second, 50 + 0.5 * second) for second in range(100))]
    watch._held["manager"] = [(0.0, 1.0), (1.0, 5.0)]  # too short to say
    assert watch.slopes(rows_per_s=1000) == {"engine": 50.0}
    assert watch.peak_mb() == {"engine": 1000.0, "manager": 5.0}


@pytest.mark.slow
def test_a_job_is_measured_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "growth.json"
    monkeypatch.setattr(sys, "argv", ["growth", "--rows", "40", "--files", "3", "--results", str(kept)])
    main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures == json.loads(kept.read_text())
    (size,) = figures["sizes"]
    assert size["rows"] == 40
    assert size["shards"] == 1
    assert all(size[figure][role] > 0 for figure in ("cpu_s", "peak_mb") for role in ("launcher", "manager", "engine"))
    assert figures["resumed"]["answered_before"] == 20
    assert figures["resumed"]["launcher_mb"] > 0
