"""What a killed server leaves in /dev/shm and /tmp goes, and nothing else does."""

from __future__ import annotations

import contextlib
import mmap
import random
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.model_manager.backends.server.leftovers import Leftovers
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SHARES = """
import mmap, sys, time
kept = []
for path in sys.argv[2:]:
    with open(path, "r+b") as file:
        kept.append(mmap.mmap(file.fileno(), 4096, access=int(sys.argv[1])))
print("ready", flush=True)
time.sleep(600)
"""
"""A program that maps files for as long as it runs."""
READ, WRITE = mmap.ACCESS_READ, mmap.ACCESS_WRITE
IDLE = "import time; print('ready', flush=True); time.sleep(600)"
GUARD = ("-P", "-m", "millrace.model_manager.backends.server.guard")


def letters() -> str:
    return "".join(random.SystemRandom().choices(string.ascii_letters, k=6))


@pytest.fixture
def shared() -> Iterator[list[Path]]:
    """Files in shared memory that a test makes with `made`; they are gone afterwards."""
    found: list[Path] = []
    yield found
    for path in found:
        path.unlink(missing_ok=True)


def made(shared: list[Path]) -> Path:
    path = Path("/dev/shm") / f"millrace-test-{letters()}"
    path.write_bytes(bytes(4096))
    shared.append(path)
    return path


@contextlib.contextmanager
def running(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it is ready."""
    command = [sys.executable, *map(str, words)]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_shared_memory_of_a_killed_server_goes_and_what_others_have_or_had_before_stays(shared: list[Path]) -> None:
    before = made(shared)
    leftovers = Leftovers()
    own, others, model, unknown = (made(shared) for _ in range(4))
    with (
        running("-c", SHARES, str(WRITE), others),
        running("-c", SHARES, str(WRITE), before, own, others) as server,
        running("-c", SHARES, str(READ), model) as reader,
    ):
        leftovers.look(lambda: [server.pid, reader.pid])
        for process in (server, reader):
            process.kill()
            process.wait()
        leftovers.remove()
        assert {path for path in shared if path.exists()} == {before, others, model, unknown}


def test_a_file_that_has_taken_the_name_of_another_stays(shared: list[Path]) -> None:
    leftovers = Leftovers()
    own = made(shared)
    with running("-c", SHARES, str(WRITE), own) as server:
        leftovers.look(lambda: [server.pid])
    made(shared).rename(own)
    leftovers.remove()
    assert own.exists()


def test_a_folder_that_triton_ran_a_model_from_goes_and_one_that_was_there_before_stays() -> None:
    folders = [Path(f"/tmp/folder{letters()}") for _ in range(3)]
    before, own, unused = folders
    try:
        before.mkdir()
        leftovers = Leftovers()
        own.mkdir()
        unused.mkdir()
        (own / "model.py").touch()
        with running("-c", IDLE, before / "model.py", own / "1" / "model.py") as stub:
            leftovers.look(lambda: [stub.pid])
        leftovers.remove()
        assert [folder.exists() for folder in folders] == [True, False, True]
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def test_a_guard_removes_what_its_server_has_shared(shared: list[Path], tmp_path: Path) -> None:
    makes = f"open(__import__('sys').argv[2], 'wb').write(bytes(4096))\n{SHARES}"
    own = Path("/dev/shm") / f"millrace-test-{letters()}"
    shared.append(own)
    with running(*GUARD, tmp_path / "folder", sys.executable, "-c", makes, str(WRITE), own) as guard:
        assert own.exists()
        assert guard.stdin is not None
        guard.stdin.close()
        eventually(lambda: guard.poll() is not None, "the end of the guard")
    assert not own.exists()
