"""The command line of a job, as a test starts it in a process of its own."""

from __future__ import annotations

import sys


def job_command(command: str, source: object, output: object) -> list[str]:
    """`millrace COMMAND`, such as `run`, with this Python."""
    return [sys.executable, "-m", "millrace", command, "--input", str(source), "--output", str(output)]
