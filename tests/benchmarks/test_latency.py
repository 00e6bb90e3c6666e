"""The benchmark of latency counts every element once on either side, from when it was due."""

import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks.latency import SIDES, main, measure, summary
from benchmarks.workload import Item
from millrace.model_manager.wire.config import ModelConfig
from millrace.transforms.models.stand_in import StandInClient

ITEMS = [Item([1, 2, 3], 4), Item([5, 6, 7, 8], 2), Item([9], 1)]
MODEL = ModelConfig(model="stand-in")


@pytest.mark.parametrize("side", SIDES)
def test_each_element_has_its_time(side: str) -> None:
    waited = measure(side, ITEMS, [0.0, 0.0, 0.0], MODEL, 2, StandInClient)
    assert len(waited) == len(ITEMS)
    assert all(seconds > 0 for seconds in waited)


@pytest.mark.parametrize("side", SIDES)
def test_time_is_from_when_an_element_was_due_not_from_when_it_came(side: str) -> None:
    waited = measure(side, ITEMS, [-100.0, -100.0, -100.0], MODEL, 2, StandInClient)
    assert min(waited) > 100


def test_a_batch_leaves_when_all_of_it_is_answered() -> None:
    early, late = measure("barrier", ITEMS[:2], [0.0, 0.5], MODEL, 2, StandInClient)
    assert max(early, late) >= 0.5 - 0.01  # the first waited for the second to come


def test_the_summary_has_the_percentiles() -> None:
    assert summary([3.0, 1.0, 2.0]) == {"p50_s": 2.0, "p99_s": 3.0, "mean_s": 2.0}


@pytest.mark.slow
def test_the_last_line_is_json_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(tmp_path / "rt"))
    os.makedirs(tmp_path / "rt", mode=0o700)  # noqa: PTH103
    kept = tmp_path / "latency.json"
    flags = ["--shape", "tiny", "--workload", "tiny", "--dtype", "float32", "--rate", "100", "--batch", "2"]
    flags += ["--rounds", "1", "--results", str(kept), "--checkpoints", str(tmp_path / "checkpoints")]
    monkeypatch.setattr(sys, "argv", ["latency", *flags])
    main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures == json.loads(kept.read_text())
    assert {"asynchronous", "barrier", "p50_ratio", "load_before", "machine"} <= figures.keys()
