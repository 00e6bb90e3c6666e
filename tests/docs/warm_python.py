"""Runs snippets as `python -c` would, each in a process of its own that has imported Beam and millrace before.

`python -m tests.docs.warm_python` forks one for each line on its standard input, and answers with its exit status.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from millrace.model_manager.wire.imports import importing


class WarmPython:
    """The process that forks others."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run code in a folder, which is on the path."""
        told = {"code": code, "folder": str(folder)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(told), file=self._process.stdin, flush=True)
        status = int(self._process.stdout.readline())
        shown = [(folder / name).read_text() for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess(code, status, *shown)


@contextlib.contextmanager
def warm_python() -> Iterator[WarmPython]:
    """It ends with the block."""
    command = [sys.executable, "-m", "tests.docs.warm_python"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield WarmPython(process)
        process.communicate()


def main() -> None:
    """Until standard input ends; in a forked process, until its code has run."""
    with importing():
        import apache_beam  # noqa: F401

        from millrace import Classify, Embed, Extract, Generate, Score  # noqa: F401
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            _execute(**json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _execute(code: str, folder: str) -> None:
    os.chdir(folder)
    for descriptor, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
        opened = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ["PYTHONPATH"]])
    sys.modules["__main__"] = main_module = ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), main_module.__dict__)


if __name__ == "__main__":
    main()
