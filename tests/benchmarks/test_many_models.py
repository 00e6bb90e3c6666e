"""The benchmark of many models answers every row in both orders, and its table says what each load was for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.many_models import Job, main, told
from benchmarks.small_tables import small_table

SETTINGS = {"models": 2, "room": 1, "rows": 10, "tokens": 3, "backend": "fake", "num_threads": 1}


def test_the_table_has_rates_loads_and_their_ratio() -> None:
    rounds = [
        {
            "sorted": Job("sorted", 1.0, 10.0 + number, {"a": 1, "b": 1}, 10),
            "shuffled": Job("shuffled", 2.0, 8.0, {"a": 3 + number, "b": 2}, 10),
        }
        for number in range(3)
    ]
    figures = {"settings": SETTINGS, **told(rounds), "machine": "M", "taken": "D"}
    lines = small_table(figures).splitlines()
    assert "2 models, room for 1, 10 rows of 3 tokens, back end `fake`" in lines[0]
    assert lines[2:5] == [
        "| sorted | 11 (10–12) | 2, 2, 2 | 1 |",
        "| shuffled | 8 (8–8) | 5, 6, 7 | 5 |",
        "| shuffled / sorted | 0.73 |  |  |",
    ]


@pytest.mark.slow
def test_each_order_of_each_round_is_answered_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "many.json"
    flags = ["--models=2", "--room=1", "--rows=20", "--tokens=2", "--rounds=1", "--backend=fake"]
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(sys, "argv", ["many_models", *flags, f"--results={kept}"])
    main()
    found = json.loads(kept.read_text())
    assert [(job["order"], job["answered"]) for job in found["jobs"]] == [("sorted", 20), ("shuffled", 20)]
    assert found["loads"]["sorted"] == [2]
