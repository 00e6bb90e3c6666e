"""The benchmark of one large file answers its rows, and has a dead letter for each line of zeros."""

import json
import sys

import pytest

from benchmarks.large_file import main


@pytest.mark.slow
def test_rows_between_long_lines_are_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["large_file", "--gigabytes", "0.1"])
    main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["rows"], figures["answered"]) == (210, 210)
    assert (figures["lines_of_zeros"], figures["dead_letters"]) == (7, 7)
    assert figures["peak_mb"]["launcher"] > 0
