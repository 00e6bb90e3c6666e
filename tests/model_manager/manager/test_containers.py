"""Jobs and managers in several containers: what is killed, cut and done on the way costs no row and doubles none."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.client.status import stop_models
from millrace.model_manager.wire.manager_key import make_key
from tests.model_manager.manager.container_jobs import ROWS, ask, job, undisturbed, written
from tests.model_manager.manager.containers import Container, containers, containers_with_someone_between
from tests.model_manager.manager.staying_manager import StayingManager
from tests.waiting import eventually


@pytest.mark.slow
def test_a_job_goes_on_over_a_killed_manager_and_a_cut_cable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = undisturbed(tmp_path / "run")
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.06")
    with containers() as (here, there):
        share_key(here, there)
        ask(here)
        key = Path("/tmp/manager.pem")
        with StayingManager(key, there.host, MANAGER_COMMAND, there.inside) as manager, job(here, manager) as running:
            eventually(lambda: len(written(here)) > 20, "rows")
            manager.kill()
            before = len(written(here))
            manager.start()
            eventually(lambda: len(written(here)) > before + 20, "rows of the next manager")
            there.run("ip", "link", "set", "cable", "down")
            assert len(written(here)) < ROWS, "it ended too soon for this test"
            for each in (here, there):
                eventually(lambda end=each: connections(end) == 0, "the end of a connection that nobody answers")  # type: ignore[misc]
            there.run("ip", "link", "set", "cable", "up")
            cut = len(written(here))
            eventually(lambda: len(written(here)) > cut, "rows over the cable")
            monkeypatch.delenv("MILLRACE_FAKE_STEP_SECONDS")  # the rest need not last
            manager.kill()
            manager.start()
            assert running.wait() == 0
        assert written(here) == {name: [text] for name, text in expected.items()}


def share_key(here: Container, there: Container) -> None:
    make_key(there.tmp / "manager.pem")
    (here.tmp / "manager.pem").write_bytes((there.tmp / "manager.pem").read_bytes())
    (here.tmp / "manager.pem").chmod(0o600)


@pytest.mark.slow
def test_whoever_sits_on_the_cable_loses_and_doubles_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = undisturbed(tmp_path / "run")
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.06")
    with containers_with_someone_between() as (here, there, man):
        share_key(here, there)
        ask(here)
        key = Path("/tmp/manager.pem")
        with StayingManager(key, there.host, MANAGER_COMMAND, there.inside) as manager, job(here, manager) as running:
            eventually(lambda: len(written(here)) > 10, "rows")
            for what, frames in (("delay 0.3", "delayed"), ("replay", "replayed"), ("garble 3", "garbled")):
                before = len(written(here))
                man.now(what)
                eventually(lambda counted=frames: man.now("counts").get(counted, 0) >= 3, what)  # type: ignore[misc]
                eventually(lambda rows=before: len(written(here)) > rows + 20, f"rows in spite of it: {what}")  # type: ignore[misc]
            assert len(written(here)) < ROWS, "it ended too soon for this test"
            man.now("cut")
            eventually(lambda: man.now("counts").get("dropped", 0) >= 3, "frames that are dropped")
            for each in (here, there):
                eventually(lambda end=each: connections(end) == 0, "the end of a connection that nobody answers")  # type: ignore[misc]
            assert man.now("pass")["garbled"] == 3
            monkeypatch.delenv("MILLRACE_FAKE_STEP_SECONDS")  # the rest need not last
            manager.kill()
            manager.start()
            assert running.wait() == 0
        assert written(here) == {name: [text] for name, text in expected.items()}


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all containers have: their /tmp is their own."""
    folder = Path(tempfile.mkdtemp(prefix="millrace-", dir="/var/tmp"))
    yield folder
    stop_models(folder / "rt")
    shutil.rmtree(folder)


def managers(folder: Path) -> list[int]:
    """Process ids of the managers that have this runtime folder, as the tests see them."""
    place = ["--runtime", str(folder)]
    commands = {process.pid: process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])}
    return [pid for pid, command in commands.items() if place in [command[at : at + 2] for at in range(len(command))]]


def holds(container: Container, pid: int) -> bool:
    """Whether a process is one of the container's."""
    first, other = (Path(f"/proc/{each}/ns/pid").readlink() for each in (container.pid, pid))
    return first == other


@pytest.mark.slow
@pytest.mark.parametrize("end", ["its container is killed", "it stands still"])
def test_containers_with_one_folder_elect_one_manager_and_another_when(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    rows = 400  # it ends in the pace it began: the next manager has the environment of a job
    expected = undisturbed(tmp_path / "run", rows)
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.06")
    runtime = shared / "rt"
    with containers() as both, ExitStack() as running:
        for each in both:
            ask(each, rows)
        jobs = {each: job(each, runtime=runtime) for each in both}
        for process in jobs.values():
            running.callback(process.wait)
            running.callback(process.kill)
        for each in both:
            eventually(lambda container=each: len(written(container)) > 20, "rows in both containers")  # type: ignore[misc]
        (manager,) = managers(runtime)
        elected, other = both if holds(both[0], manager) else both[::-1]
        assert holds(elected, manager)
        if end == "it stands still":
            os.kill(manager, signal.SIGSTOP)
            for client in psutil.process_iter(["cmdline"]):  # they would kill the manager, which they see
                if "--output=/tmp/out" in (client.info["cmdline"] or []) and holds(elected, client.pid):
                    client.kill()
        else:
            elected.end()
            eventually(lambda: manager not in managers(runtime), "the end of the first manager")
        before = len(written(other))
        eventually(lambda: len(written(other)) > before + 20, "rows of the next manager")
        (successor,) = (each for each in managers(runtime) if each != manager)
        assert holds(other, successor)
        if end == "it stands still":
            os.kill(manager, signal.SIGCONT)
            eventually(lambda: managers(runtime) == [successor], "the end of the fenced manager")
        assert before < rows, "it ended too soon for this test"
        assert jobs[other].wait() == 0
        jobs[elected].wait()
        assert written(other) == {name: [text] for name, text in expected.items()}


def connections(container: Container) -> int:
    """Established to the manager's network, as the container's kernel has it."""
    lines = Path(f"/proc/{container.pid}/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[3] == "01" for line in lines)
