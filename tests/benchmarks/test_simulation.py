"""The simulation's command keeps each part, the same for the same seed, and each part has its table."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.draw import draw
from benchmarks.fleet.parts import PARTS
from benchmarks.simulation import main
from benchmarks.small_tables import small_table

TINY = ["--workers", "1,3", "--rows_per_worker", "2", "--job_rows", "200"]


def simulate(folder: Path, monkeypatch: pytest.MonkeyPatch, *parts: str) -> None:
    flags = [*TINY, "--parts", ",".join(parts)]
    monkeypatch.setattr(sys, "argv", ["simulation", *flags, "--results", str(folder)])
    folder.mkdir()
    main()


def test_the_last_line_is_json_of_all_parts_and_each_is_kept_drawn_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(tmp_path / "first", monkeypatch, *PARTS)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(figures) == list(PARTS)
    for part in PARTS:
        kept = tmp_path / f"first/simulation-{part}.json"
        assert json.loads(kept.read_text()) == figures[part]
        assert small_table(figures[part]).count("\n|") > 1
    drawn = [path.name for file in sorted((tmp_path / "first").glob("*.json")) for path in draw(file, tmp_path)]
    assert drawn == [f"simulation-{part}.png" for part in ("job", "scaling", "spot", "streams")]

    simulate(tmp_path / "again", monkeypatch, "spot")
    name = "simulation-spot.json"
    assert (tmp_path / "again" / name).read_text() == (tmp_path / "first" / name).read_text()
