"""Nothing that a constraint says hangs or ends the process that compiles and follows it."""

import os
import subprocess
import sys

import pytest


def fuzzed(seconds: int, seed: int) -> str:
    """What fuzz.py says at its end; it is another process, so that an abort is seen."""
    command = [sys.executable, "-m", "tests.model_manager.engine.constraints.fuzz", str(seconds), str(seed)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200, env=os.environ)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def test_what_has_been_thought_of_does_neither() -> None:
    assert fuzzed(0, seed=1).startswith("refused ")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_constraint_hangs_or_crashes() -> None:
    said = fuzzed(12, seed=1)
    assert said.startswith("refused ")
    assert "compiled 0" not in said
