"""Temporary folders, and what killed processes left of them."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from millrace.transforms.files.temporary_folders import temporary_files, temporary_folder

HOLDER = f"""
import time
from {temporary_folder.__module__} import temporary_folder
with temporary_folder("test") as folder:
    (folder / "a file").touch()
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_folder_is_gone_after_its_block(folder: Path) -> None:
    with temporary_folder("test") as mine:
        (mine / "a file").touch()
        assert list(folder.iterdir()) == [mine]
    assert list(folder.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_nothing_else(folder: Path) -> None:
    for other in ("millrace-other-1", "beam-pipeline-temp1"):
        (folder / other).mkdir()
    (folder / "millrace-test-link").symlink_to(folder / "millrace-other-1")
    kept = set(folder.iterdir())
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        with temporary_folder("test") as mine:
            assert set(folder.iterdir()) == {*kept, left, mine}, "its process is alive"
        process.send_signal(signal.SIGKILL)
    assert (left / "a file").exists()
    with temporary_folder("test") as mine:
        assert set(folder.iterdir()) == {*kept, mine}


def test_what_others_make_in_the_temporary_folder_is_gone_after_the_block(folder: Path) -> None:
    with temporary_files("test"):
        (Path(tempfile.mkdtemp()) / "a file").touch()
    assert list(folder.iterdir()) == []
    assert tempfile.gettempdir() == str(folder)
