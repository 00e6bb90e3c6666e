"""Whole jobs on streams, as a user starts them, with real brokers, Beam's Prism and an engine without a model."""

import json
import signal
import subprocess
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.job_commands import job_command, started
from tests.runtime_folders import processes_of
from tests.servers.kafka import until
from tests.servers.prism import prism

WITHIN = 300.0


def stream(
    source: str, output: str, *flags: str, command: str = "run"
) -> AbstractContextManager[subprocess.Popen[str]]:
    """A command in a process of its own; killed with -9 at the end, if it is still there."""
    arguments = job_command(command, source, output)
    short = ["--max_tokens=4"] if command == "run" else []
    return started([*arguments, *quick_flags(), *short, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def quick_flags() -> list[str]:
    """An engine without a model, which ends with its job, on a Prism that is built already."""
    return ["--backend=fake", "--linger=0.5", "--orphan_grace=0.5", f"--prism_location={prism()}"]


def interrupted(job: subprocess.Popen[str], by: signal.Signals = signal.SIGINT) -> str:
    """What a job says when it is told to end, by Ctrl-C."""
    job.send_signal(by)
    shown, told = job.communicate(timeout=WITHIN)
    assert job.returncode == 130, told
    assert not shown
    return told


def nothing_is_left(runtime: Path) -> None:
    until(lambda: not runtime.exists() and not [*processes_of(runtime)])


def rows(numbers: Iterable[int]) -> list[bytes]:
    return [json.dumps({"id": f"p{number}", "prompt": f"question {number}"}).encode() for number in numbers]
