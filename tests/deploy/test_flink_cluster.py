"""deploy/flink/cluster.py says what it did, with processes and a REST interface that are not Flink's."""

import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.servers.http_threads import JsonHandler, running

FOLDER = Path(__file__).parents[2] / "deploy" / "flink"


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    """Its module, found as a script finds what stands beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("cluster")


class Rest(ThreadingHTTPServer):
    """Jobs, by their ids, and their states."""

    def __init__(self, jobs: dict[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.jobs = jobs


class _Handler(JsonHandler):
    server: Rest

    def _list(self) -> None:
        self.send_json({"jobs": [{"id": job, "status": state} for job, state in self.server.jobs.items()]})

    def _cancel(self) -> None:
        self.server.jobs[self.path.rsplit("/", 1)[-1]] = "CANCELED"
        self.send_json({}, status=202)

    do_GET, do_PATCH = _list, _cancel  # noqa: N815


@pytest.fixture
def rest() -> Iterator[Rest]:
    with running(Rest({"a1": "RUNNING", "b2": "FINISHED", "c3": "RESTARTING"})) as server:
        yield server


def call(script: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["cluster.py", *arguments])
    script.main()


def test_down_says_what_was_stopped(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sleepers = {
        name: subprocess.Popen(["sleep", "60"], start_new_session=True) for name in ("job-manager", "job-server")
    }
    started_at = importlib.import_module("cluster_processes").started_at
    known = {name: {"pid": each.pid, "started_at": started_at(each.pid)} for name, each in sleepers.items()}
    (tmp_path / "state.json").write_text(json.dumps({"ports": {}, "processes": known}))
    call(script, monkeypatch, "down", "--folder", str(tmp_path))
    assert [each.wait() for each in sleepers.values()] == [-signal.SIGTERM] * 2
    assert capsys.readouterr().out == "stopped: job-server, job-manager\n"
    call(script, monkeypatch, "down", "--folder", str(tmp_path))
    assert capsys.readouterr().out == f"nothing was running that {tmp_path} knows of\n"


def test_cancel_says_what_was_cancelled(
    script: Any, rest: Rest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"ports": {"rest": rest.server_address[1]}, "processes": {}, "embedded": False}
    (tmp_path / "state.json").write_text(json.dumps(state))
    call(script, monkeypatch, "cancel", "--folder", str(tmp_path))
    assert rest.jobs == {"a1": "CANCELED", "b2": "FINISHED", "c3": "CANCELED"}
    assert capsys.readouterr().out == "cancelled: a1, c3\n"
    call(script, monkeypatch, "cancel", "--folder", str(tmp_path))
    assert capsys.readouterr().out == "no job was running\n"
