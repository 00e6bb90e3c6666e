"""The benchmark of growing jobs says what processes hold and use, and what a resumed job passes over."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.growth import Resumed, Watch, as_killed, main, write_input
from benchmarks.small_tables import small_table
from benchmarks.storms.job import Job
from millrace.transforms.writing.output_files import OutputFiles


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
    line = watch.line()
    assert (line["manager"], line["engine"][1], len(line["engine"])) == ([(0.0, 1.0), (1.0, 5.0)], (2.0, 1000.0), 100)


def test_what_is_left_as_killed_is_in_one_shard_that_ends_in_half_a_row(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for number, row in enumerate(("one", "two")):
        (tmp_path / "out" / f"c-0000{number}-of-00002.jsonl").write_text(f'{{"id":"{row}"}}\n')
    as_killed(tmp_path)
    (shard,) = (path for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert OutputFiles(str(tmp_path / "out" / "c")).interrupted("completions") == [str(shard)]
    assert shard.read_text() == '{"id":"one"}\n{"id":"two"}\n{"id":"r'


def test_the_table_of_resumed_jobs_says_where_the_rows_were() -> None:
    found = [asdict(Resumed(1000, 500, killed, 12.34, 9.87, 195.6)) for killed in (False, True)]
    lines = small_table({"sizes": [], "resumed": found, "machine": "M", "taken": "D"}).splitlines()
    assert lines[2] == "| 1,000 | 500, in finished files | 12.3 | 9.9 | 196 |"
    assert lines[3] == "| 1,000 | 500, in the shard of a killed job | 12.3 | 9.9 | 196 |"


def test_a_job_with_more_files_than_rows_has_empty_ones(tmp_path: Path) -> None:
    write_input(tmp_path, range(2), 3)
    assert [path.read_text().count("\n") for path in sorted(tmp_path.iterdir())] == [1, 1, 0]


@pytest.mark.slow
def test_a_job_is_measured_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "growth.json"
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.05")  # the job must not end between two looks
    monkeypatch.setattr(sys, "argv", ["growth", "--rows", "640", "--files", "50", "--results", str(kept)])
    main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures == json.loads(kept.read_text())
    assert figures["files"] == 50
    (size,) = figures["sizes"]
    assert size["rows"] == 640
    assert size["shards"] == 1
    assert all(size[figure][role] > 0 for figure in ("cpu_s", "peak_mb") for role in ("launcher", "manager", "engine"))
    assert [(each["answered_before"], each["killed"]) for each in figures["resumed"]] == [(320, False), (320, True)]
    assert all(each["launcher_mb"] > 0 for each in figures["resumed"])
