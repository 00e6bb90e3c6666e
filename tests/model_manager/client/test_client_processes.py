"""Clients of one machine: the processes that they start, share, fork and leave behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from millrace.model_manager.client import observing, status
from millrace.model_manager.client.election import Election
from millrace.model_manager.client.status import end_manager, read_status, stop_models
from millrace.model_manager.wire.errors import ConfigError, ManagerUnavailable, ModelNotFound
from millrace.model_manager.wire.job_progress import JobFile, JobProgress, born
from millrace.model_manager.wire.runtime import RuntimeDir
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.pipelines.commands.processes import ps, stop
from tests.model_manager.manager.machine import MANAGER, PATIENCE, SETTINGS, Machine, kill, results
from tests.model_manager.manager.stand_in_engine import ANSWER
from tests.waiting import eventually

SHORT = SamplingParams(max_tokens=5)


def test_three_clients_in_turn_use_the_engine_that_the_first_one_started(machine: Machine) -> None:
    for index in range(3):
        client = machine.open(SETTINGS.parse({"linger": 60.0, "orphan_grace": 0.5}))
        assert client.submit([ANSWER, 3, index], SHORT, request_id=str(index)).result(PATIENCE)
        client.close()
    assert machine.starts() == 1
    stop_models(machine.runtime)


@pytest.mark.slow
def test_of_twenty_processes_at_once_one_starts_the_manager_and_one_engine_serves_all(machine: Machine) -> None:
    workers = [machine.worker(2, 5, prefix=f"{number}-") for number in range(20)]
    assert all(len(results(worker)) == 2 for worker in workers)
    assert machine.starts() == 1
    assert len(machine.processes()) == 2
    for worker in workers:
        worker.communicate()


def test_an_idle_model_is_unloaded_and_loaded_again_by_the_next_request(machine: Machine) -> None:
    client = machine.open(SETTINGS.parse({"idle_timeout": 0.2, "linger": 0.5}))
    eventually(lambda: machine.model_status().state == "idle", "unloading")
    assert client.submit([ANSWER, 3], SHORT, request_id="a").result(PATIENCE)
    assert machine.starts() == 2


def test_status_shows_processes_models_and_is_none_without_a_manager(machine: Machine) -> None:
    assert read_status(machine.runtime) is None
    assert not machine.runtime.exists()
    machine.open()
    found = machine.status()
    roles = {process.role: process.pid for process in found.processes}
    assert roles == {"manager": found.pid, "engine": machine.engine_pid(), "client": os.getpid()}
    assert machine.model_status().state == "ready"


@pytest.fixture
def stands_still(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> int:
    """The process id of a manager that is stopped, and whose answer nobody waits long for."""
    machine.open(SETTINGS.parse({"linger": 600.0})).close()
    manager = machine.status().pid
    kill(manager, signal.SIGSTOP)
    monkeypatch.setattr(observing, "ANSWER_WITHIN", 0.5)
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(machine.runtime))
    return manager


@pytest.mark.usefixtures("stands_still")
def test_stop_kills_a_manager_that_stands_still_and_says_so(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stop([]) == 0
    assert capsys.readouterr().out == "stopped everything; the manager did not answer and was killed\n"
    assert not machine.runtime.exists()
    machine.wait_until_gone()
    assert stop([]) == 0
    assert capsys.readouterr().out == "nothing is running\n"


def test_stop_fences_a_manager_that_stands_still_in_another_container_and_says_so(
    machine: Machine, stands_still: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(status, "peer_pid_uid", lambda _sock: (0, os.getuid()))
        assert stop([]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"the manager in {machine.runtime} does not answer and cannot be killed from here, so it is")
    assert not machine.runtime.exists(), "the next job starts another"
    assert stands_still in [each.pid for each in machine.processes()]
    with machine.open(SETTINGS.parse({"linger": 600.0})):
        successor = machine.status().pid
        kill(stands_still, signal.SIGCONT)
        eventually(lambda: stands_still not in [each.pid for each in machine.processes()], "the end of the fenced one")
        assert machine.status().pid == successor
    stop_models(machine.runtime)


def test_a_fenced_manager_without_a_successor_ends_too_when_it_goes_on(
    machine: Machine, stands_still: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(status, "peer_pid_uid", lambda _sock: (0, os.getuid()))
        assert end_manager(RuntimeDir(machine.runtime)) == (None, "fence")
    kill(stands_still, signal.SIGCONT)
    machine.wait_until_gone()


def test_stop_fences_a_manager_that_does_not_listen(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status, "_END_WITHIN", 0.2)
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(machine.runtime))
    runtime = RuntimeDir(machine.runtime)
    runtime.prepare()
    lock = runtime.try_lock()
    assert lock is not None
    assert ps([]) == 0
    assert capsys.readouterr().out == "a manager is starting\n"
    assert end_manager(runtime) == (None, "fence")
    assert not runtime.path.exists()
    assert runtime.is_fenced(lock), "it ends before it listens"
    os.close(lock)


def test_stop_names_the_job_that_replaces_its_manager_meanwhile(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(machine.runtime))
    runtime, asked = RuntimeDir(machine.runtime), status._status
    runtime.prepare()
    job = JobProgress(
        job="run to out/c",
        command="run",
        pid=os.getpid(),
        born=born(os.getpid()),
        started=1.0,
        model="tiny",
        input="a.jsonl",
        output="out/c",
    )
    JobFile(machine.runtime).write(job)
    lock = runtime.try_lock()
    assert lock is not None

    def fenced_first(*asked_for: Any) -> Any:
        runtime.fence(runtime.holder())
        return asked(*asked_for)

    monkeypatch.setattr(status, "_status", fenced_first)
    said = f"no manager is running. 1 job may start one: run to out/c (pid {os.getpid()})\n"
    for command in (stop, ps):
        assert command([]) == 0
        assert capsys.readouterr().out == said
    os.close(lock)
    JobFile(machine.runtime).remove()
    runtime.leave()
    assert stop([]) == 0
    assert capsys.readouterr().out == "nothing is running\n"


def test_ps_tells_a_manager_that_ends_from_one_that_starts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(machine.runtime))
    runtime = RuntimeDir(machine.runtime)
    runtime.prepare()
    lock = runtime.try_lock()
    assert lock is not None
    sock = runtime.listen(lock)
    assert sock is not None
    with sock, ThreadPoolExecutor(1) as beside:
        asking = beside.submit(ps, [])
        sock.accept()[0].close()
        assert asking.result(PATIENCE) == 0
    assert capsys.readouterr().out == "a manager is ending\n", "it closes its connections"
    for arguments, said in (([], "a manager is ending\n"), (["--json"], "null\n")):
        assert ps(arguments) == 0
        assert capsys.readouterr().out == said, "it has closed its socket"
    os.close(lock)
    assert ps([]) == 0
    assert capsys.readouterr().out == "nothing is running\n"


def test_stop_waits_for_a_manager_that_starts_and_many_may_stop_it_at_once(machine: Machine) -> None:
    runtime = RuntimeDir(machine.runtime)
    with ThreadPoolExecutor(5) as beside:
        starting = beside.submit(Election(runtime, SETTINGS.parse({"linger": 600.0}), MANAGER).connect, Event())
        eventually(runtime.lock.exists, "a manager that starts")
        stops = [beside.submit(end_manager, runtime) for _ in range(4)]
        ended = [stop.result(PATIENCE) for stop in stops]
        with contextlib.suppress(ManagerUnavailable):  # it ended before this client saw it
            starting.result(PATIENCE).close()
    assert {each.by for each in ended} == {"itself"}
    assert any(each.status for each in ended)
    end_manager(runtime)


def test_stop_leaves_the_manager_that_a_job_starts_meanwhile(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.open(SETTINGS.parse({"linger": 600.0})).close()
    runtime, asked = RuntimeDir(machine.runtime), status._status
    first = runtime.holder()

    def succeeded(*asked_for: Any) -> Any:
        answer = asked(*asked_for)
        machine.wait_until_gone()
        machine.open(SETTINGS.parse({"linger": 600.0})).close()
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(status, "_status", succeeded)
        assert end_manager(runtime).by == "itself"
    assert runtime.holder() not in (first, None)
    end_manager(runtime)


def test_a_model_that_is_not_there_fails_before_anything_is_started(machine: Machine) -> None:
    with pytest.raises(ModelNotFound):
        machine.open(model=str(machine.folder / "nowhere"))
    assert not machine.runtime.exists()


def test_a_folder_that_others_can_enter_is_refused(machine: Machine) -> None:
    machine.runtime.mkdir(mode=0o755)
    machine.runtime.chmod(0o755)
    with pytest.raises(ConfigError, match="755"):
        machine.open()
    machine.runtime.rmdir()


def test_a_folder_whose_path_is_too_long_for_a_socket_works(machine: Machine) -> None:
    deep = machine.folder / ("long" * 20) / ("path" * 20)
    deep.mkdir(parents=True)
    machine.runtime = deep / "run"
    client = machine.open()
    assert client.submit([ANSWER, 3], SHORT, request_id="a").result(PATIENCE)
    assert machine.status().models


def run_script(machine: Machine, script: str) -> subprocess.CompletedProcess[str]:
    setting_up = f"""
import os, sys
from pathlib import Path
from millrace.model_manager.client import EngineClient
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.manager.machine import MANAGER, SETTINGS
client = EngineClient.open(ModelConfig(model={str(machine.model)!r}, backend="fake"), manager=SETTINGS,
                           runtime=Path({str(machine.runtime)!r}), manager_command=MANAGER)
"""
    return subprocess.run(
        [sys.executable, "-c", setting_up + script],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_a_process_that_ends_without_closing_its_client_just_ends(machine: Machine) -> None:
    ended = run_script(machine, "client.submit([1, 3000], SamplingParams(), request_id='a')")
    assert (ended.returncode, ended.stderr) == (0, "")
    machine.wait_until_gone()


def test_a_forked_process_cannot_use_its_parents_client_nor_keep_its_connection(machine: Machine) -> None:
    script = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork beside threads
if (child := os.fork()) == 0:
    try:
        client.submit([1, 3], SamplingParams(), request_id='a')
    except RuntimeError as error:
        assert "forked" in str(error), error
        client.close()
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert client.submit([1, 3], SamplingParams(), request_id='a').result(300).token_ids
if (child := os.fork()) == 0:
    import time
    os.close(0), os.close(1), os.close(2)
    time.sleep(600)
print(child)
"""
    ended = run_script(machine, script)
    assert (ended.returncode, ended.stderr) == (0, "")
    try:
        machine.wait_until_gone()
    finally:
        kill(int(ended.stdout))  # the second child: it lived all the time
