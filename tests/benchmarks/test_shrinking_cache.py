"""The benchmark of shrinking KV caches answers every row in both ways, and its table has the ratio."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.shrinking_cache import Run, main, told
from benchmarks.small_tables import small_table

SETTINGS = {"rows": 10, "prompt": 5, "tokens": 3, "max_num_seqs": 64, "backend": "fake", "num_threads": 1}


def test_the_table_has_rates_seconds_memory_and_loads() -> None:
    rounds = [
        {
            "turns": Run("turns", 4.0, 20.0 + number, (900, 0), [2, 1]),
            "shrinks": Run("shrinks", 6.0 + number, 2.0, (900, 400), [1, 1]),
        }
        for number in range(3)
    ]
    figures = {"settings": SETTINGS, **told(rounds), "machine": "M", "taken": "D"}
    lines = small_table(figures).splitlines()
    assert "10 rows of 5 + 3 tokens for each of two models" in lines[0]
    assert lines[2:5] == [
        "| turns | 4.0 (4.0–4.0) | 21.0 | 900 → – | 3 |",
        "| shrinks | 7.0 (6.0–8.0) | 2.0 | 900 → 400 | 2 |",
        "| shrinks / turns | 1.75 |  |  |  |",
    ]


@pytest.mark.slow
def test_each_way_of_each_round_is_answered_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "figures.json"
    flags = ["--rows=20", "--prompt=4", "--tokens=2", "--rounds=1", "--backend=fake"]
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(sys, "argv", ["shrinking_cache", *flags, f"--results={kept}"])
    main()
    found = json.loads(kept.read_text())
    assert [made["way"] for made in found["runs"]] == ["turns", "shrinks"]
    assert found["runs"][1]["loads"] == [1, 1]
