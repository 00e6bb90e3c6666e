"""/proc/PID/stat of this process, of a zombie, and of one whose name looks like fields."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from millrace.model_manager.wire.process_stat import process_stat
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


def test_this_process_runs_computes_and_has_started() -> None:
    found = process_stat(os.getpid())
    assert found is not None
    assert not found.has_ended
    ticks = os.sysconf("SC_CLK_TCK")
    assert found.started / ticks == pytest.approx(psutil.Process().create_time() - psutil.boot_time(), abs=2.0)
    assert 0 < found.cpu / ticks <= time.process_time() + 1 / ticks


def test_a_process_without_an_entry_is_none_and_a_zombie_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    eventually(lambda: (found := process_stat(process.pid)) is not None and found.has_ended, "a zombie")
    process.wait()
    assert process_stat(process.pid) is None


def test_a_name_with_brackets_and_bytes_that_are_no_text_is_skipped(tmp_path: Path) -> None:
    program = shutil.copy(os.fsencode("/bin/sleep"), os.fsencode(tmp_path / ") Z 1 (") + b"\xff")
    with subprocess.Popen([program, "600"]) as process:
        found = eventually(lambda: process_stat(process.pid), "the program")
        process.kill()
    assert found.state in "RSD"
    assert found.started > 0
