"""A job, as a test starts it in a process of its own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tests.forked_commands import Popen

NO_PIP_FREEZE = "--experiments=disable_logging_submission_environment"
"""A flag of Beam's: else `pip freeze` takes a second of each job on a runner elsewhere."""


def job_command(command: str, source: object, output: object) -> list[str]:
    """`millrace COMMAND`, such as `run`, with this Python."""
    return [sys.executable, "-m", "millrace", command, "--input", str(source), "--output", str(output)]


@contextlib.contextmanager
def started(command: Sequence[str], **pipes: Any) -> Iterator[Popen]:
    """The process of a command; killed with -9 at the end, if it is still there."""
    with Popen(command, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()
