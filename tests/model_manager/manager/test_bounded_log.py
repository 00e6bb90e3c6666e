"""The manager's log, on a real file as the manager has it."""

import logging
import sys
from pathlib import Path

import pytest

from millrace.model_manager.manager import bounded_log
from millrace.model_manager.manager.bounded_log import BoundedLog, OneLine


def _log(path: Path, count: int) -> None:
    handler = BoundedLog(path)
    for number in range(count):
        handler.emit(logging.LogRecord("any", logging.WARNING, "", 0, "line %d ends", (number,), None))


def test_the_log_keeps_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    monkeypatch.setattr(bounded_log, "MOST_BYTES", 4000)
    with path.open("a") as file:
        monkeypatch.setattr(sys, "stderr", file)
        _log(path, 10_000)
    lines = path.read_text().splitlines()
    assert 1000 < path.stat().st_size <= 4000
    assert lines == [f"line {number} ends" for number in range(10_000 - len(lines), 10_000)]


def test_a_stream_that_is_not_the_log_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "log", tmp_path / "other"
    path.touch()
    monkeypatch.setattr(bounded_log, "MOST_BYTES", 100)
    with other.open("a") as file:
        monkeypatch.setattr(sys, "stderr", file)
        _log(path, 1000)
    assert len(other.read_text().splitlines()) == 1000


def test_what_others_say_is_one_line_without_control_characters() -> None:
    said = "name\nINJECTED \x1b]0;title\x07 \x9b31m \u202e é" + "z" * 10**6
    line = OneLine().format(logging.LogRecord("any", logging.WARNING, "", 0, "closed: %s", (said,), None))
    assert r"closed: name\nINJECTED \x1b]0;title\x07 \x9b31m \u202e éz" in line
    assert line.isprintable()
    assert len(line) < 2100
