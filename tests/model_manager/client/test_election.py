"""A manager that ends while it starts: a killed one is started again, one that fails is told of at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from millrace.model_manager.client import election
from millrace.model_manager.client.election import Election
from millrace.model_manager.client.status import stop_models
from millrace.model_manager.wire.config import ManagerConfig
from millrace.model_manager.wire.errors import ManagerUnavailable
from millrace.model_manager.wire.runtime import RuntimeDir
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.manager.machine import MANAGER, PATIENCE, SETTINGS, Machine, kill
from tests.model_manager.manager.stand_in_engine import ANSWER
from tests.model_manager.manager.staying_manager import ROOT
from tests.waiting import eventually

_WAITS_AT_FIRST = """
import pathlib, runpy, time
started = pathlib.Path({started!r})
if not started.exists():
    started.touch()
    time.sleep(3600)
runpy.run_module("tests.model_manager.manager.stand_in_manager", run_name="__main__")
"""
_STOPS_AT_FIRST = """
import os, pathlib, runpy, signal
started = pathlib.Path({started!r})
if not started.exists():
    started.touch()
    os.kill(os.getpid(), signal.SIGSTOP)
runpy.run_module("tests.model_manager.manager.stand_in_manager", run_name="__main__")
"""
_STARTS_ONE = """
import os, pathlib, sys, threading
from millrace.model_manager.client.election import Election
from millrace.model_manager.wire.runtime import RuntimeDir
from tests.model_manager.manager.machine import MANAGER, SETTINGS
runtime = RuntimeDir(pathlib.Path(os.environ["STARTED_HERE"]))
Election(runtime, SETTINGS.parse({"linger": 600.0}), MANAGER).connect(threading.Event()).close()
sys.stdin.read()
"""


@contextlib.contextmanager
def starter(machine: Machine) -> Iterator[subprocess.Popen[bytes]]:
    """A process that starts a manager, and does not say Hello to it."""
    env = os.environ | {"STARTED_HERE": str(machine.runtime)}
    with subprocess.Popen([sys.executable, "-c", _STARTS_ONE], stdin=subprocess.PIPE, cwd=ROOT, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_manager_that_is_killed_while_it_starts_is_started_again(machine: Machine) -> None:
    started = machine.folder / "started"

    def kill_the_first() -> int:
        eventually(started.exists, "a manager that does not listen yet")
        (first,) = machine.processes()
        kill(first.pid)
        return first.pid

    with ThreadPoolExecutor(1) as beside:
        killed = beside.submit(kill_the_first)
        machine.open(command=("-P", "-c", _WAITS_AT_FIRST.format(started=str(started))))
    assert machine.status().pid != killed.result()


@pytest.mark.parametrize(
    ("end", "told", "starts"),
    [
        ("raise SystemExit('linger=-1: takes a positive number')", "code 1 .*: linger=-1: takes a positive", 1),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL at each of 5 starts, .* memory", 5),
        ("raise SystemExit(0)", r"ended at its start, with code 0 \(start 5\)", 5),
    ],
    ids=["fails", "killed", "fenced"],
)
def test_a_manager_that_fails_is_told_of_at_once_and_one_that_is_killed_after_some_starts(
    tmp_path: Path, end: str, told: str, starts: int
) -> None:
    program = f"import os; open({str(tmp_path / 'starts')!r}, 'a').write('x'); {end}"
    starting = Election(RuntimeDir(tmp_path / "run"), ManagerConfig(), command=("-c", program))
    with pytest.raises(ManagerUnavailable, match=told):
        starting.connect(threading.Event(), within=PATIENCE)
    assert len((tmp_path / "starts").read_text()) == starts
    assert not (tmp_path / "run").exists(), "swept"


def stopped_at_its_start(machine: Machine) -> int:
    """The process id of a manager that stands still before it listens; it does so once."""

    def pids() -> list[int]:
        return [each.pid for each in machine.processes() if each.status() == psutil.STATUS_STOPPED]

    stopped: list[int] = eventually(pids, "a manager that has stopped")
    return stopped[0]


def test_a_manager_that_stands_still_before_it_listens_is_killed_and_another_is_started(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(election, "_STANDS_STILL", 5.0)
    command = ("-P", "-c", _STOPS_AT_FIRST.format(started=str(machine.folder / "started")))
    with ThreadPoolExecutor(1) as beside:
        opened = beside.submit(machine.open, command=command)
        first = stopped_at_its_start(machine)
        opened.result(PATIENCE)
    assert machine.status().pid != first
    assert not psutil.pid_exists(first)
    assert f"kills the manager {first}" in caplog.text


def test_managers_that_never_listen_are_all_killed_and_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "_STANDS_STILL", 0.1)
    program = "import time; print('waits for a disk', flush=True); time.sleep(3600)"
    runtime = RuntimeDir(tmp_path / "run")
    waiting = Election(runtime, ManagerConfig(), command=("-c", program))
    with pytest.raises(ManagerUnavailable, match="stood still at each of 5 starts, and was killed"):
        waiting.connect(threading.Event(), within=PATIENCE)
    assert not runtime.path.exists(), "swept"
    given_up = threading.Event()
    end_silent = waiting._end_silent

    def end_one(manager: subprocess.Popen[bytes]) -> int:
        given_up.set()
        return end_silent(manager)

    monkeypatch.setattr(waiting, "_end_silent", end_one)
    with pytest.raises(ManagerUnavailable, match=r"no manager answers in .*/run \(1 manager started and killed, as"):
        waiting.connect(given_up, within=PATIENCE)
    runtime.sweep()
    assert not runtime.path.exists(), "the lock is free"


def test_a_manager_that_stands_still_before_it_listens_is_fenced_if_its_starter_is_gone(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("-P", "-c", _STOPS_AT_FIRST.format(started=str(machine.folder / "started")))
    runtime, given_up = RuntimeDir(machine.runtime), threading.Event()
    patient = SETTINGS.parse({"linger": 600.0})
    with ThreadPoolExecutor(1) as beside:
        starting = beside.submit(Election(runtime, patient, command).connect, given_up)
        first = stopped_at_its_start(machine)
        given_up.set()
        with pytest.raises(ManagerUnavailable):
            starting.result(PATIENCE)
    monkeypatch.setattr(election, "_FENCED_AFTER", 0.5)
    with contextlib.closing(Election(runtime, patient, command).connect(threading.Event(), PATIENCE)):
        second = machine.status().pid
        kill(first, signal.SIGCONT)
        eventually(lambda: [each.pid for each in machine.processes()] == [second], "the end of the fenced manager")
        assert machine.status().pid == second, "its socket is where it was"
    stop_models(machine.runtime)


def test_a_manager_that_was_started_ahead_and_is_not_needed_is_ended_whether_it_listens_or_not(
    machine: Machine, tmp_path: Path
) -> None:
    started, runtime = tmp_path / "started", RuntimeDir(machine.runtime)
    never_listens = f"import pathlib, time; pathlib.Path({str(started)!r}).touch(); time.sleep(3600)"
    patient = SETTINGS.parse({"linger": 600.0})
    for command, is_there in ((("-c", never_listens), started.exists), (MANAGER, lambda: bool(machine.processes()))):
        ahead = Election(runtime, patient, command)
        ahead.prepare()
        eventually(is_there, "a manager")
        ahead.abandon()
        assert not machine.processes()
        assert not machine.runtime.exists()


def test_a_manager_that_was_started_ahead_and_has_a_model_of_another_client_stays(machine: Machine) -> None:
    ahead = Election(RuntimeDir(machine.runtime), SETTINGS.parse({"linger": 600.0}), MANAGER)
    ahead.prepare()
    eventually(RuntimeDir(machine.runtime).socket.exists, "a manager")
    client = machine.open()
    ahead.abandon()
    assert client.submit([ANSWER, 3, 1], SamplingParams(max_tokens=3), request_id="a").result(PATIENCE).token_ids
    stop_models(machine.runtime)


def test_a_manager_that_another_process_started_is_left_alone(machine: Machine) -> None:
    first, second = (Election(RuntimeDir(machine.runtime), SETTINGS.parse({"linger": 600.0}), MANAGER) for _ in "12")
    with contextlib.closing(first.connect(threading.Event())):
        second.prepare()
        second.abandon()
        assert machine.status().pid
    stop_models(machine.runtime)


def has_begun(machine: Machine) -> bool:
    return bool(machine.processes())


def has_been_asked(machine: Machine) -> bool:
    return RuntimeDir(machine.runtime).socket.exists() and bool(machine.status().pid)


@pytest.mark.parametrize("so_far", [has_begun, has_been_asked])
def test_a_manager_whose_starter_is_killed_before_a_client_connects_ends(
    machine: Machine, so_far: Callable[[Machine], bool]
) -> None:
    with starter(machine) as process:
        eventually(lambda: so_far(machine), "a manager")
        process.kill()
        machine.wait_until_gone()


def test_a_manager_that_another_client_has_used_outlives_its_starter(machine: Machine) -> None:
    with starter(machine) as process:
        eventually(lambda: has_been_asked(machine), "a manager")
        client, first = machine.open(), machine.status()
        process.kill()
        process.wait()

        def stays() -> None:
            begin = machine.status().uptime
            assert eventually(lambda: machine.status().uptime > begin + 1, "five looks at its starter")
            assert machine.status().pid == first.pid

        stays()
        assert client.submit([ANSWER, 3, 1], SamplingParams(max_tokens=3), request_id="a").result(PATIENCE).token_ids
        client.close()
        stays()
    stop_models(machine.runtime)
