"""Every example pipeline runs in an empty folder, and gives the answers that its reader expects."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

Run = Callable[[str], set[str]]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pipelines"
PRINTED = {
    "chat_and_row_parameters": {"capital: Rome (stop)", "short: Mex (length)"},
    "classify_reviews": {"positive: What an excellent guest house!", "negative: This is the worst dinner I know."},
    "dead_letters": {"answer: Lima", "answer: 77", "failed: the prompt is empty"},
    "embed_and_search": {"nearest: 3 wool lamps for Bergen"},
    "extract_to_parquet": set(),
    "generate_then_judge": {"peru: Lima -0.0", "sum: 77 -0.0"},
    "majority_vote": {"Rome (5 of 5)"},
    "read_and_write_files": set(),
    "run_inference": {"What is the capital of Mexico? Mexico City", "40+60 = ? 100"},
    "score_choices": {"Lima", "Rome"},
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a program in an empty folder, and here: this process has imported Beam, and the engine stays loaded."""

    def ran(name: str) -> set[str]:
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return set(capsys.readouterr().out.splitlines())

    return ran


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize(
    "name", sorted(name for name, lines in PRINTED.items() if lines and name != "chat_and_row_parameters")
)
def test_an_example_prints_what_its_reader_expects(name: str, run: Run) -> None:
    assert run(name) == PRINTED[name]


def test_an_example_runs_as_a_program(tmp_path: Path) -> None:
    program: list[str | Path] = [sys.executable, EXAMPLES / "chat_and_row_parameters.py"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == PRINTED["chat_and_row_parameters"]


def test_files_are_read_and_written(tmp_path: Path, run: Run) -> None:
    run("read_and_write_files")
    rows = [json.loads(line) for line in (tmp_path / "out/answers-00000-of-00001.jsonl").read_text().splitlines()]
    assert {row["id"]: row["text"] for row in rows} == {"prompts.txt@0": "Lima", "prompts.txt@29": "77"}


def test_documents_become_rows_of_a_type_in_parquet(tmp_path: Path, run: Run) -> None:
    run("extract_to_parquet")
    table = pq.read_table(tmp_path / "out/orders-00000-of-00001.parquet")
    assert table.to_pylist() == [{"customer": "Anna Larsen", "item": "lamps", "quantity": 2}]
