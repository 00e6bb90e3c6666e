"""`python -m millrace run` and its like by a fork: a second of processor time less for each, which is Beam's import.

A process beside each test process has imported what these commands import, and forks one process for each: with the
environment, the folder, the standard streams and the arguments that it was asked for, and with the test process as its
parent. Only /proc/PID/environ stays that of the process that forks. Commands whose flags change what is imported, and
all others, are started as ever.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from millrace.model_manager.engine import fork_server
from millrace.model_manager.manager.fork_server_client import _adopting_orphans
from millrace.model_manager.wire.imports import importing
from millrace.pipelines.cli import COMMANDS
from millrace.pipelines.runners.beam_import import unused_clients, without_unused_clients

_ROOT = Path(__file__).parents[1]
_MILLRACE = [sys.executable, "-m", "millrace"]
_JOBS = {name for name, function in COMMANDS.items() if function.startswith("commands.job_commands:")}
_LARGEST = 1 << 17
"""Bytes of a command with its environment."""
_PARAMETERS = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_NEVER_GIVEN = ("preexec_fn", "pass_fds", "executable", "shell", "gids")
_STREAMS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("stdin", "r", {}),
    ("stdout", "w", {}),
    ("stderr", "w", {"buffering": 1, "errors": "backslashreplace"}),
)


class Popen(subprocess.Popen[str]):
    """A process, forked where it can be."""

    def _execute_child(self, *given: Any) -> None:
        asked = _PARAMETERS.bind(self, *given).arguments
        words = [os.fspath(word) for word in asked["args"]]
        if not _can_be_forked(words) or any(asked[name] for name in _NEVER_GIVEN):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        told = {
            "arguments": words[3:],
            "environment": {**(os.environ if asked["env"] is None else asked["env"])},
            "folder": os.fspath(asked["cwd"] or Path.cwd()),
            "session": asked["start_new_session"],
            "group": asked["process_group"],
        }
        ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self.pid = _forking()(told, [own if end == -1 else end for own, end in enumerate(ends)])
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]


def run(command: Sequence[Any], *, timeout: float | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    """The ended process and what it printed, as `subprocess.run` has them."""
    with Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more) as process:
        try:
            shown = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, *shown)


def _can_be_forked(words: Sequence[str]) -> bool:
    is_job = [*words[:3]] == _MILLRACE and _JOBS.issuperset(words[3:4])
    return is_job and unused_clients(words) == unused_clients([])


@cache
def _forking() -> Any:
    """Asks the process that forks, which is started with the first command."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.forked_commands", str(theirs.fileno())]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # else numpy has several threads once it is imported
    environment.pop("MILLRACE_RUNTIME_DIR", None)  # it is no process of the first test's jobs
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=_ROOT, env=environment)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)

    def fork(told: dict[str, Any], streams: Sequence[int]) -> int:
        with _adopting_orphans():
            socket.send_fds(ours, [json.dumps(told).encode()], streams)
            pid = int(ours.recv(32))
        assert pid > 0, process.poll()
        return pid

    return fork


def main() -> None:
    """Fork until the test process is gone; in a forked process, run its command."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    with importing(), without_unused_clients([]):
        import millrace.pipelines.commands.job_commands  # noqa: F401
    assert threading.active_count() == 1
    while True:
        content, streams, _, _ = socket.recv_fds(connection, _LARGEST, 3)
        if not content:
            return
        pid = fork_server._fork()
        if not pid:
            connection.close()
            _execute(json.loads(content), streams)
            return
        for descriptor in streams:
            os.close(descriptor)
        connection.send(str(pid).encode())


def _execute(told: dict[str, Any], streams: Sequence[int]) -> None:
    if told["session"]:
        os.setsid()
    if told["group"] not in (None, -1):
        os.setpgid(0, told["group"])
    for own, (descriptor, (name, mode, more)) in enumerate(zip(streams, _STREAMS, strict=True)):
        os.dup2(descriptor, own)
        os.close(descriptor)
        stream = open(own, mode, closefd=False, **more)  # noqa: SIM115 - the process's
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.argv[1:] = told["arguments"]
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [told["folder"], *(entry for entry in entries if entry and entry not in sys.path)]
    fork_server._show([*_MILLRACE, *told["arguments"]])
    runpy.run_module("millrace", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
