"""The benchmark of constraints runs, on a model that shows nothing of an engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import constrained


@pytest.mark.slow
def test_it_measures_constrained_mixed_and_free_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ["--shape", "tiny", "--dtype", "float32", "--constraint", "regex", "--batch_size", "2", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["constrained", *told, "--peers", "none", "--checkpoints", str(tmp_path)])
    constrained.main()
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    side = last["sides"]["millrace"]
    assert side["tokens_per_s"].keys() == {"free", "mixed", "constrained"}
    assert side["relative"]["free"] == 1
    assert all(len(rounds) == 1 and rounds[0] > 0 for rounds in side["rounds"].values())
