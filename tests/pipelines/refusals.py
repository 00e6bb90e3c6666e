"""What a command says that is refused before anything runs."""

from __future__ import annotations

import pytest

from millrace.pipelines.cli import dispatch


class Refused:
    """Runs commands that end with status 2, one sentence on stderr and nothing else."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, command: str, *flags: str) -> str:
        """That sentence."""
        self._capsys.readouterr()  # what the test's other commands said
        assert dispatch([command, *flags]) == 2
        captured = self._capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1, captured.err
        return captured.err

    def run(self, *flags: str) -> str:
        return self("run", *flags)
