"""The progress of a running job: a file of its process in the runtime folder, for whoever watches the machine.

Written whole each time, for its user alone; gone when the job ends. Files of dead processes are swept by whoever looks.
Containers may share a runtime folder, and do not see each other's processes: a file of another one counts while it is
young. Holds no prompt and no answer.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from .decoding import json_decoder
from .process_stat import process_stat
from .timings import Timings

_PATTERN = "job-*.json"
_YOUNG = 60.0
"""Seconds since the last write of a job in another container; a job writes every second."""


class RowLife(msgspec.Struct, frozen=True, kw_only=True):
    """One row or request and what it took, in seconds."""

    at: float
    """When it ended, or was looked at, by the wall clock."""
    of: str
    """Output of the job, or path of the server's route."""
    id: str = ""
    """The row's id, 200 characters at most; empty for a server's request."""
    queued: float = 0.0
    """Seconds from the manager's receipt (of a server's request, from its arrival) to the first step."""
    prefill: float = 0.0
    """Seconds from the first step (of a server's request that runs or failed, from its arrival) to the first token, or
    to the end if no token is generated.
    """
    decode: float = 0.0
    """Seconds from the first token to the last."""
    prompt_tokens: int = 0
    """Tokens of the prompt."""
    generated_tokens: int = 0
    """Generated tokens."""
    state: str = "done"
    """running, done or failed."""
    error: str = ""
    """Code of the error that ended it."""


def spans(timings: Timings, generated_tokens: int) -> tuple[float, float, float]:
    """Seconds queued, in prefill and in decode."""
    first = timings.first_token if generated_tokens else timings.finished
    return max(timings.queued, 0.0), max(first - timings.queued, 0.0), max(timings.finished - first, 0.0)


class FailedRow(msgspec.Struct, frozen=True, kw_only=True):
    """Why a row is a dead letter. The row itself is in the job's output."""

    at: float
    """When it failed, by the wall clock."""
    job: str
    """Output of the job."""
    error: str
    """Class of the error (docs/reference/errors.md)."""
    reason: str
    """One sentence, cut if it is long."""
    source: str = ""
    """Where the row was read: file and position."""


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a running job is."""

    job: str
    """The job's name, as `millrace ps` shows it."""
    command: str
    """run, score, embed, extract or classify."""
    pid: int
    """Process id."""
    born: int
    """When the process started, in the kernel's clock ticks since boot: process ids are used again."""
    started: float
    """When the job started, by the wall clock."""
    model: str
    """Name of the model, as it was given."""
    input: str
    """What is read."""
    output: str
    """Where results go."""
    total: int | None = None
    """Rows to read; null for a stream, and for a quiet job that goes on with `--resume`."""
    exact: bool = True
    """False if `total` is an estimate."""
    read: int = 0
    """Rows read; 0 if workers are other processes."""
    done: int = 0
    """Rows answered."""
    failed: int = 0
    """Dead letters; of workers that are other processes, failed requests alone."""
    counted_here: bool = True
    """False if workers are other processes: counts are the manager's, which does not know all dead letters."""
    failures: dict[str, int] = {}
    """Dead letters by the classes of their errors, as many as `failed`."""
    at: float = 0.0
    """When this was written, by the wall clock."""
    prompt_tokens: int = 0
    """Tokens of prompts; of scores and labels, of each continuation with its prompt."""
    generated_tokens: int = 0
    """Generated tokens."""
    rows_per_s: float = 0.0
    """Rows a second, lately."""
    tokens_per_s: float = 0.0
    """Generated tokens a second, lately."""
    seconds_left: float | None = None
    """Seconds left at this speed; null if not known."""
    space: str = ""
    """Namespace of processes that `pid` is one of; empty where it is not known."""
    dead_letters: list[FailedRow] = []
    """The latest; none if workers are other processes."""
    rows: list[RowLife] = []
    """The latest answered rows; none if workers are other processes."""


class JobFile:
    """The file of this process's job, in a runtime folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{_prefix()}{os.getpid()}.json"

    def write(self, progress: JobProgress) -> None:
        """Replace what was said before; raises OSError."""
        partial = self._path.with_suffix(".partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(progress))
        partial.replace(self._path)

    def remove(self) -> None:
        """Remove the job's file."""
        with contextlib.suppress(OSError):
            self._path.with_suffix(".partial").unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)


def running_jobs(folder: Path) -> list[JobProgress]:
    """The jobs that run now, the earliest first; files of dead processes are removed."""
    return sorted(_swept(folder), key=lambda job: job.started)


def sweep_jobs(folder: Path) -> None:
    """Remove the files of dead processes."""
    for _ in _swept(folder):
        pass


def _swept(folder: Path) -> Iterator[JobProgress]:
    for path in sorted(folder.glob(_PATTERN)):
        try:
            job = json_decoder(JobProgress).decode(_read(path))
        except (OSError, msgspec.MsgspecError):  # it ended meanwhile, or another version of millrace wrote it
            continue
        if _is_alive(job, path):
            yield job
        else:
            path.unlink(missing_ok=True)
    for path in folder.glob(f"{_prefix()}*.partial"):
        if not born(int(path.stem.removeprefix(_prefix()))):
            path.unlink(missing_ok=True)


def _is_alive(job: JobProgress, path: Path) -> bool:
    if job.space and job.space != process_space():
        with contextlib.suppress(FileNotFoundError):
            return time.time() - path.stat().st_mtime < _YOUNG
        return False
    return bool(job.born) and job.born == born(job.pid)


def _prefix() -> str:
    """How names of this container's files begin: another one has the same process ids."""
    return f"job-{process_space()}-"


@cache
def process_space() -> str:
    """The namespace of processes that this one is in, as the kernel numbers it; empty where that is not known."""
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    return ""


def _read(path: Path) -> bytes:
    """A regular file's bytes; raises OSError for anything else, such as a pipe, which nobody may ever write."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path}: is no regular file")
        return file.read()


def born(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is none, or it is a zombie."""
    found = process_stat(pid)
    return 0 if found is None or found.has_ended else found.started
