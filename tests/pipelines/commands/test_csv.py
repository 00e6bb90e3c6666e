"""`--output r.csv` writes CSV, with real processes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from millrace.pipelines.cli import dispatch
from millrace.transforms.writing.output_files import OutputFiles

FLAGS = ["--backend", "fake", "--linger", "30"]


def rows(folder: Path, name: str = "r") -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for path in OutputFiles(f"{folder}/{name}").current("completions"):
        assert path.endswith(".csv")
        with Path(path).open(newline="", encoding="utf-8") as stream:
            found |= {row["id"]: row for row in csv.DictReader(stream)}
    return found


@pytest.mark.usefixtures("shared_runtime")
def test_results_are_csv_in_shards_that_a_resumed_job_adds_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"id": str(n), "prompt": f"question {n}", "note": "a,\nb"}) for n in range(8)]
    lines[3] = "not json"
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    flags = ["--input", f"{tmp_path}/p.jsonl", "--output", f"{tmp_path}/r.csv", "--max_tokens", "4", *FLAGS]
    workers = ["--direct_running_mode=multi_threading", "--direct_num_workers=2", "--num_shards=2"]
    assert dispatch(["run", *flags, "--limit", "5", *workers]) == 0
    assert f"{tmp_path}/r-00000-of-0000" in (said := capsys.readouterr().out)
    first = rows(tmp_path)
    assert first.keys() == {"0", "1", "2", "4"}
    assert json.loads(first["0"]["columns"]) == {"note": "a,\nb"}
    assert json.loads(first["0"]["usage"])["completion_tokens"] == 4
    assert any(f"\n  {identity}: " in said for identity in first)
    (letters,) = tmp_path.glob("r.dead_letters-*")
    assert letters.suffix == ".jsonl"
    assert dispatch(["run", *flags, "--resume", "--quiet"]) == 0
    assert {**rows(tmp_path), **first} == rows(tmp_path)  # what was there stays
    assert len(rows(tmp_path)) == 7
    again = ["--input", f"{tmp_path}/r-*.csv", "--prompt_column", "text", "--output", f"{tmp_path}/a.csv", *FLAGS]
    assert dispatch(["run", *again, "--quiet"]) == 0
    assert rows(tmp_path, "a").keys() == rows(tmp_path).keys()


@pytest.mark.usefixtures("shared_runtime")
@pytest.mark.parametrize(
    ("command", "flags", "column"),
    [
        ("embed", [], "embedding"),
        ("score", [], "scores"),
        ("classify", ["--labels", "good,bad"], "probabilities"),
    ],
)
def test_every_tasks_results_have_a_header_of_their_own(
    command: str, flags: list[str], column: str, tmp_path: Path
) -> None:
    document = "text" if command == "classify" else "prompt"
    (tmp_path / "p.jsonl").write_text(json.dumps({"id": "a", document: "x", "continuations": ["y"]}))
    flags = ["--input", f"{tmp_path}/p.jsonl", "--output", f"{tmp_path}/r.csv", *FLAGS, *flags]
    assert dispatch([command, *flags]) == 0
    assert json.loads(rows(tmp_path)["a"][column])
