"""Starts are measured in turn, in processes of their own, after one that is not counted."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.managed_start import SERVE, load
from benchmarks.results import Match
from benchmarks.sides import Unsupported
from benchmarks.start import measure
from benchmarks.workload import write_checkpoints

FLOAT, INT8 = Match("tiny", "uniform", "float32"), Match("tiny", "uniform", "int8")


def test_medians_are_of_the_rounds_but_the_first_and_rounds_take_turns() -> None:
    times = iter([90.0, 91.0, 3.0, 30.0, 1.0, 10.0, 2.0, 20.0])
    asked: list[str] = []

    def start(name: str, _match: Match) -> Any:
        asked.append(name)
        seconds = next(times)
        return SimpleNamespace(first_token_s=seconds, load_s=seconds / 2, peak_rss_mb=5.0, memory={"kv_mb": 1.0})

    first, second = measure([("a", FLOAT), ("b", INT8)], 3, start)
    assert asked == ["a", "b"] * 4
    assert (first.engine, first.first_token_s, first.load_s, first.rounds) == ("a", 2.0, 1.0, [3.0, 1.0, 2.0])
    assert (second.dtype, second.first_token_s, second.memory) == ("int8", 20.0, {"kv_mb": 1.0})


def test_what_a_side_cannot_do_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def start(_name: str, _match: Match) -> Any:
        raise Unsupported("no int8")

    assert measure([("a", INT8)], 2, start) == []
    assert "tiny uniform int8: a is left out" in capsys.readouterr().out


def test_the_start_of_a_server_ends_with_its_first_token(tmp_path: Path) -> None:
    """And with the server's end, and its manager's: else the next start would find the model loaded."""
    write_checkpoints(tmp_path, ("tiny",))
    started = load(SERVE, tmp_path / "tiny", "float32")
    assert 0 < started.load_s < started.first_token_s
    assert started.peak_rss_mb > 100
