"""The benchmark of long queues keeps what it measures, each length's memory apart."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.queue import Queue, main, memory


def test_a_queue_is_kept_full() -> None:
    queue = Queue(70, 0)
    assert queue.run(20) > 0
    assert queue._engine.stats().waiting == 70


def test_memory_is_that_before_filled_and_after() -> None:
    found = memory(5, 0, 3)
    assert list(found) == ["before", "filled", "after"]
    assert all(mb > 0 for mb in found.values())


@pytest.mark.slow
def test_the_last_line_is_json_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "queue.json"
    flags = ["--waiting", "2,5", "--steps", "3", "--rounds", "1", "--results", str(kept)]
    monkeypatch.setattr(sys, "argv", ["queue", *flags])
    main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures == json.loads(kept.read_text())
    assert list(figures["tokens_per_s"]) == list(figures["rss_mb"]) == ["2", "5"]
