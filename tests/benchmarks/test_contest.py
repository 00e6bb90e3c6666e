"""Contests with a fake peer: real processes, an environment of its own, a made checkpoint's folder."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import contest
from benchmarks.command_line import command_line
from benchmarks.contenders import CONTENDERS
from benchmarks.contest import Contestant, parse_arguments, run
from benchmarks.environments import FAKE
from benchmarks.results import Match, read
from benchmarks.side_process import side_process
from benchmarks.workload import TINY


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "cache"))


def _arguments(monkeypatch: pytest.MonkeyPatch, *flags: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["benchmark", *flags])
    return parse_arguments(command_line("contest", "A contest."), tuple(CONTENDERS), "fake")


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """A folder that passes for made checkpoints: the fake does not read them."""
    (tmp_path / TINY).mkdir()
    (tmp_path / TINY / "tokenizer.json").touch()
    return tmp_path


def test_a_peer_runs_in_an_environment_that_holds_none_of_our_packages() -> None:
    python = FAKE.python()

    assert python.is_relative_to(FAKE.folder)
    for module in ("torch", "msgspec", "psutil"):
        assert subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 1


def test_an_interrupted_run_goes_on_with_the_matches_that_its_results_lack(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = str(checkpoints / "results.json")
    flags = ("--shape", TINY, "--workload", TINY, "--rounds", "1", "--checkpoints", str(checkpoints))
    first = run(_arguments(monkeypatch, *flags, "--results", results, "--dtype", "float32"))
    capsys.readouterr()
    again = ("--results", results, "--dtype", "float32,bfloat16", "--keep_since")
    both = run(_arguments(monkeypatch, *flags, *again, first[0].taken))
    assert both[:1] == first
    assert [row.match.dtype for row in both] == ["float32", "bfloat16"]
    assert "float32, round" not in capsys.readouterr().out
    run(_arguments(monkeypatch, *flags, *again, "9999-01-01"))
    assert "float32, round" in capsys.readouterr().out


def test_a_match_in_which_a_side_fails_is_given_up_and_the_others_are_kept(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = str(checkpoints / "results.json")
    flags = ("--shape", TINY, "--workload", TINY, "--rounds", "1", "--checkpoints", str(checkpoints))
    played = contest._play

    def failing(match: Match, arguments: Any) -> Any:
        if match.dtype == "float32":
            raise SystemExit("fake ended with status 1")
        return played(match, arguments)

    monkeypatch.setattr(contest, "_play", failing)
    with pytest.raises(SystemExit, match="given up: tiny tiny float32"):
        run(_arguments(monkeypatch, *flags, "--results", results, "--dtype", "float32,bfloat16"))
    assert [row.match.dtype for row in read(Path(results))] == ["bfloat16"]


def test_each_match_has_a_row_for_each_side_that_can_take_part(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--shape", TINY, "--workload", TINY, "--dtype", "all", "--rounds", "2", "--checkpoints", str(checkpoints))
    rows = run(_arguments(monkeypatch, *flags))

    assert [(row.engine, row.match.dtype, len(row.rounds)) for row in rows] == [
        ("fake", "float32", 2),
        ("fake", "bfloat16", 2),
    ]
    assert all((row.peak_rss_mb or 0) > 1 and row.first_token_s and row.load_s is not None for row in rows)
    assert all(row.processor_s is not None and row.processor_s >= 0 for row in rows)
    assert "tiny tiny int8: fake is left out: a fake has no int8" in capsys.readouterr().out


def test_a_dtype_that_a_side_never_takes_is_left_out_before_anything_is_built(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--shape", TINY, "--workload", TINY, "--dtype", "int8", "--engines", "static-8")

    assert run(_arguments(monkeypatch, *flags, "--checkpoints", str(checkpoints))) == []
    assert "static-8 is left out: takes float32, bfloat16" in capsys.readouterr().out


def test_an_unknown_choice_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        _arguments(monkeypatch, "--dtype", "float32,float64")
    assert "--dtype: no float64; there are float32, bfloat16, int8" in capsys.readouterr().err


def test_a_contestant_that_dies_ends_the_contest_with_its_name() -> None:
    missing = pytest.raises(SystemExit, match="someone ended with status 1")
    with side_process("someone", Path(sys.executable), "benchmarks.nowhere") as process, missing:
        Contestant(process)
