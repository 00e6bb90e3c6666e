"""The pool of an EXTERNAL environment: what a runner asks for over gRPC, with a stand-in for the workers."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc, endpoints_pb2

from millrace.pipelines.runners.sdk_worker import _end_with
from millrace.pipelines.runners.worker_pool import WorkerProcesses, main, serving
from tests.servers.processes import free_port
from tests.waiting import eventually

IDLE = (sys.executable, "-c", "import sys, time; open(sys.argv[-1], 'x').write(' '.join(sys.argv)); time.sleep(600)")


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerProcesses]:
    monkeypatch.chdir(tmp_path)
    found = WorkerProcesses(IDLE)
    yield found
    found.stop_all()


def test_a_worker_is_started_with_the_runners_endpoints_and_stopped(workers: WorkerProcesses, tmp_path: Path) -> None:
    address = f"localhost:{free_port()}"
    endpoints = dict.fromkeys(
        ("provision_endpoint", "control_endpoint"), endpoints_pb2.ApiServiceDescriptor(url="localhost:1")
    )
    with serving(address, workers), grpc.insecure_channel(address) as channel:
        pool = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
        asked = beam_fn_api_pb2.StartWorkerRequest(worker_id="1-1", **endpoints)
        assert pool.StartWorker(asked).error == ""
        (pid,) = workers.pids()
        eventually(lambda: any(file.read_text() for file in tmp_path.iterdir()))
        (said,) = tmp_path.iterdir()
        assert "--id=1-1 " in said.read_text()
        assert "--provision_endpoint=localhost:1" in said.read_text()
        stop = beam_fn_api_pb2.StopWorkerRequest(worker_id="1-1")
        assert [pool.StopWorker(stop).error for _ in range(2)] == ["", ""]
    assert workers.pids() == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_worker_of_a_runner_that_was_killed_makes_room_for_its_successor(workers: WorkerProcesses) -> None:
    workers.start("1-1", {"control": "a"})
    (before,) = workers.pids()
    workers.start("1-1", {"control": "b"})
    (after,) = workers.pids()
    assert before != after
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_of_two_calls_that_start_one_worker_one_process_is_left(
    workers: WorkerProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = workers.stop

    def before_another_call(worker_id: str) -> None:
        real(worker_id)
        monkeypatch.setattr(workers, "stop", real)
        workers.start(worker_id, {"control": "other"})
        others.extend(workers.pids())

    others: list[int] = []
    workers.start("1-1", {"control": "first"})
    monkeypatch.setattr(workers, "stop", before_another_call)
    workers.start("1-1", {"control": "a"})
    (other,) = others
    assert workers.pids() != [other]
    with pytest.raises(ProcessLookupError):
        os.kill(other, 0)


def test_after_the_end_no_worker_is_started(workers: WorkerProcesses) -> None:
    workers.stop_all()
    with pytest.raises(OSError, match="the pool is stopped"):
        workers.start("1-1", {})
    assert workers.pids() == []


def test_a_worker_that_cannot_be_started_is_told_to_the_runner() -> None:
    address = f"localhost:{free_port()}"
    with serving(address, WorkerProcesses(["/no/such/program"])), grpc.insecure_channel(address) as channel:
        pool = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
        assert "/no/such/program" in pool.StartWorker(beam_fn_api_pb2.StartWorkerRequest(worker_id="1")).error


def test_an_address_that_is_taken_is_one_sentence_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["--address", f"127.0.0.1:{taken.getsockname()[1]}"]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "--address" in shown


def test_a_worker_ends_when_who_started_it_was_killed(tmp_path: Path) -> None:
    worker = f"import os, time; from {_end_with.__module__} import _end_with; _end_with(os.getppid())"
    worker += f"; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {worker!r}]); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        eventually(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
        process.send_signal(signal.SIGKILL)
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_reads_which_libraries_beam_is_imported_without_before_it_imports_beam() -> None:
    code = "import sys; import millrace.pipelines.runners.sdk_worker; print('apache_beam' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
