"""The command line of a job, as a test starts it in a process of its own."""

from __future__ import annotations

import sys


def job_command(name: str, source: object, output: object) -> list[str]:
    """Runs the module `name` of millrace.pipelines.commands, such as `generate`, with this Python."""
    module = f"millrace.pipelines.commands.{name}"
    return [sys.executable, "-m", module, "--input", str(source), "--output", str(output)]
