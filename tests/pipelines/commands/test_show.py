"""`millrace show` prints rows by their places."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.pipelines.cli import dispatch
from tests.pipelines.refusals import Refused
from tests.terminals import on_terminal


def test_rows_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('"one"\n{"prompt": 3 }\n{"prompt":  "two"}\n')
    (tmp_path / "b.txt").write_text("some text\n")
    (tmp_path / "c.csv").write_text("id,prompt\n7,hello\n")
    places = [f"{tmp_path}/{place}" for place in ("a.jsonl@21", "a.jsonl@6", "b.txt@0", "c.csv#1")]
    assert dispatch(["show", *places]) == 0
    printed = ['{"prompt":  "two"}', '{"prompt":3}', "some text", '{"id":"7","prompt":"hello"}']
    assert capsys.readouterr().out.splitlines() == printed


def test_a_row_steers_no_terminal(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\x1b[2J\x9b2J\ttwo\n")
    command = [sys.executable, "-m", "millrace", "show", f"{tmp_path}/a.txt@0"]
    with on_terminal(command, whole=True, term="dumb") as running:
        assert running.ended(120).splitlines() == ["one\u241b[2J\ufffd2J\ttwo"]
    assert subprocess.check_output(command, text=True) == "one\x1b[2J\x9b2J\ttwo\n"


def test_a_place_without_a_row_is_one_sentence_and_status_2(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "a.jsonl").write_text('"one"\n')
    told = f"millrace: no row begins at {tmp_path}/a.jsonl@1: takes what an id or a dead letter names\n"
    assert refused("show", f"{tmp_path}/a.jsonl@1") == told


def test_a_reader_that_has_had_enough_ends_it_without_a_word(tmp_path: Path) -> None:
    """What reads its output is gone before it writes."""
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n')
    theirs, ours = os.pipe()
    os.close(theirs)
    program = "from millrace.pipelines.cli import main; main()"
    command = [sys.executable, "-c", program, "show", f"{tmp_path}/a.jsonl@0"]
    ended = subprocess.run(command, stdout=ours, stderr=subprocess.PIPE, text=True, check=False)
    os.close(ours)
    assert (ended.returncode, ended.stderr) == (141, "")
