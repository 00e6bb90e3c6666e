"""What all processes of a side took, wherever they are: its own, those that left it, and those that have ended."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.memory import processor_seconds

BUSY = "import subprocess, sys, time\nwhile time.process_time() < 0.5: pass\n"
WAITS = "sys.stdin.read()\n"
SAYS_SO = f"print(flush=True)\n{WAITS}"


def _child(code: str, function: str) -> str:
    return f"import subprocess, sys\nsubprocess.{function}([sys.executable, '-c', {code!r}])\n"


CASES = {
    "its own": BUSY + SAYS_SO,
    "of a child": _child(BUSY + SAYS_SO, "Popen") + WAITS,
    "of a child that has ended": _child(BUSY, "run") + SAYS_SO,
    "of one that has left it": _child(_child(BUSY + SAYS_SO, "Popen"), "run") + WAITS,
}


@pytest.mark.parametrize("code", CASES.values(), ids=CASES)
def test_processor_time_of_each_process_of_a_side_counts_once(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIDE", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        assert 0.48 < processor_seconds(process.pid, f"SIDE={tmp_path}") < 0.96
        process.stdin.close()
