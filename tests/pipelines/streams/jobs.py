"""Whole jobs on streams, as a user starts them, with real brokers, Beam's Prism and an engine without a model."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from tests.job_commands import job_command
from tests.servers.kafka import until
from tests.servers.prism import prism

WITHIN = 300.0


@contextlib.contextmanager
def stream(source: str, output: str, *flags: str, command: str = "run") -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own; killed with -9 at the end, if it is still there."""
    arguments = job_command(command, source, output)
    quick = ["--backend=fake", "--linger=0.5", "--orphan_grace=0.5", f"--prism_location={prism()}"]
    short = ["--max_tokens=4"] if command == "run" else []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*arguments, *quick, *short, *flags], **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def interrupted(job: subprocess.Popen[str], by: signal.Signals = signal.SIGINT) -> str:
    """What a job says when it is told to end, by Ctrl-C."""
    job.send_signal(by)
    shown, told = job.communicate(timeout=WITHIN)
    assert job.returncode == 130, told
    assert not shown
    return told


def nothing_is_left(runtime: Path) -> None:
    until(lambda: not runtime.exists() and not processes_of(runtime))


def processes_of(runtime: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["environ", "cmdline"]):
        mine = (process.info["environ"] or {}).get("MILLRACE_RUNTIME_DIR") == str(runtime)
        if mine and process.pid != os.getpid():
            found.append(" ".join(process.info["cmdline"] or ["?"]))
    return found


def rows(numbers: Iterable[int]) -> list[bytes]:
    return [json.dumps({"id": f"p{number}", "prompt": f"question {number}"}).encode() for number in numbers]
