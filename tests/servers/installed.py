"""Servers that tests start are installed once, each into a folder of its own, for all processes and runs.

<MILLRACE_SERVERS, else ~/.cache/millrace/servers>/<name>-<version>/
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

_TRIES = 3
"""Registries and the way to them fail at times."""


def installed(name: str, version: str, install: Callable[[Path], None]) -> Path:
    """The folder of that server; `install` fills one that is not there yet, while other processes wait."""
    with alone(name) as home:
        folder = home / f"{name}-{version}"
        if not folder.is_dir():
            _fill(folder, install)
    return folder


@contextlib.contextmanager
def alone(name: str) -> Iterator[Path]:
    """The folder of all servers, while no other process is here for that name."""
    home = Path(os.environ.get("MILLRACE_SERVERS") or Path.home() / ".cache" / "millrace" / "servers")
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{name}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield home


def _fill(folder: Path, install: Callable[[Path], None]) -> None:
    partial = folder.with_name(folder.name + ".partial")
    for tries_left in reversed(range(_TRIES)):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            install(partial)
            break
        except (RuntimeError, subprocess.CalledProcessError):
            if not tries_left:
                raise
    partial.rename(folder)


def run(*command: str, cwd: Path | None = None, **environment: str) -> None:
    """Run a builder; what it said is in the error where it fails."""
    built = subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False)
    if built.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {built.stdout[-2000:]}{built.stderr[-2000:]}")
