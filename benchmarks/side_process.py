"""Sides in processes of their own, spoken to in lines: one in says what to do, one of JSON out is the answer.

Imports the standard library alone: a side's process runs in the peer's environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


class SideProcess:
    """A side that runs; raises SystemExit where it has ended."""

    def __init__(self, name: str, process: subprocess.Popen[str], runtime_dir: str) -> None:
        """`runtime_dir`: where millrace keeps its sockets, if that is what runs."""
        self.name = name
        self.pid = process.pid
        self.mark = f"MILLRACE_RUNTIME_DIR={runtime_dir}"
        """Variable in the environment of the process and of all processes that it starts."""
        self._process = process

    def ask(self, what: str) -> dict[str, Any]:
        """Send one line; returns the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """What it says next; first of all that it is loaded."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def side_process(name: str, python: Path, *arguments: str) -> Iterator[SideProcess]:
    """A side's process, `python -m` these arguments, which ends with the block; this repository is first on its path,
    as a peer's environment does not hold it.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-") as runtime:
        runtime_dir = f"{runtime}/run"
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
        ours = {"PYTHONPATH": path, "MILLRACE_RUNTIME_DIR": runtime_dir}
        process = subprocess.Popen(
            [str(python), "-m", *arguments],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ours | {"TOKENIZERS_PARALLELISM": "false"},
        )
        with process:
            try:
                yield SideProcess(name, process, runtime_dir)
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(timeout=60)


def private_stdout() -> IO[str]:
    """The real standard output, for answers; what libraries print goes to standard error instead."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers
