"""What a job that was killed and resumed cost in all its launches: a note beside its output, while it is unfinished.

.millrace/<name>.launches.json      {"identity": "3f…", "launches": 2, "computed": 4711, …}

Engines count the tokens that they compute, and the manager keeps these counts over their deaths; this process looks
once a second and adds what is new. So a kill of the launcher loses nothing while the manager lives: the next launcher
goes on from the counts in the note. With a manager are lost the tokens since the last look. Tokens of other jobs that
use the same models meanwhile are counted too. A preempted request's second prefill is not, nor is a model that
`--model_updates` brings.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from millrace.model_manager.client.status import ReadStatus
from millrace.model_manager.wire.decoding import json_decoder
from millrace.model_manager.wire.errors import MillraceError, counted
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.status import EndedModel, EngineTotals, ModelStatus
from millrace.transforms.files.file_systems import exists, remove
from millrace.transforms.files.object_reads import open_file
from millrace.transforms.files.object_stores import is_local
from millrace.transforms.writing.output_files import OutputFiles

from ..flags.job_options import JobOptions
from ..places.provenance import write_note
from ..places.sources_and_sinks import files_of
from .polling import beside, job_status

_LOOK = 1.0
"""Seconds between two looks at the manager, and between two notes on a disk."""
_NOTE_IN_A_STORE = 30.0
"""Seconds between two notes in an object store."""
_ENDS_WITHIN = 5.0
"""Seconds for which the job's end waits for the looks to end, and again for a note that is being written: a store that
is away is tried for minutes.
"""
_LARGEST = 2**20
"""Bytes of a note."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_log = logging.getLogger(__name__)


class Launches(msgspec.Struct):
    """A job in all its launches so far."""

    identity: str
    """`JobOptions.identity`: a note of another job counts for nothing."""
    launches: _Count = 0
    managers: _Count = 0
    """Managers that it has had."""
    restarts: _Count = 0
    """Times that an engine of its models was started again."""
    computed: _Count = 0
    """Tokens that engines have computed: of prompts, less those from the cache, and generated ones."""
    answered: _Count = 0
    """Tokens that its answered requests took: computed tokens of their prompts, and output tokens."""
    manager: str = ""
    """`Status.instance` of the last manager."""
    seen: dict[str, _Count] = {}
    """What this manager had counted at the last look."""

    def look(self, status: Status, models: set[str], job: str, *, begins: bool = False) -> None:
        """Add what the manager has counted since the last look.

        `begins`: the launch begins, so what a manager has counted that the job did not know is not the job's.
        """
        is_others = self._meet(status.instance) and begins
        found: list[ModelStatus | EndedModel] = [*status.models, *status.ended]
        for model in found:
            if model.model in models:
                self.computed += self._new(f"computed {model.key}", _computed(model.stats), is_others)
                self.restarts += self._new(f"restarts {model.key}", model.restarts, is_others)
        if (ours := job_status(status, job)) is not None:
            tokens = ours.prompt_tokens - ours.cached_tokens + ours.generated_tokens
            self.answered += self._new("answered", tokens, is_others)

    def _meet(self, manager: str) -> bool:
        """Whether this is another manager than before."""
        if self.manager == manager:
            return False
        self.managers += 1
        self.manager, self.seen = manager, {}
        return True

    def _new(self, name: str, count: int, is_others: bool) -> int:
        before = count if is_others else self.seen.get(name, 0)
        self.seen[name] = count
        return max(0, count - before)

    def __str__(self) -> str:
        ends = [counted(self.managers, "manager"), counted(self.restarts, "restart") + " of engines"]
        told = f"{counted(self.computed, 'token')} computed, {self.answered:,} of them for answers"
        return f"{self.launches:,}, with {' and '.join(ends)}: {told}"


def _computed(stats: EngineTotals) -> int:
    return stats.prompt_tokens - stats.cached_tokens + stats.generated_tokens


class _Noted:
    """The note of a running job."""

    def __init__(self, options: JobOptions, files: OutputFiles, read: ReadStatus) -> None:
        self.is_there = options.if_exists == "resume" and exists(files.launches)
        self.launches = _noted(files, options.identity) if self.is_there else Launches(options.identity)
        self.launches.launches += 1
        self._files, self._read, self._job = files, read, options.job
        self._models = {model.name for model in (options.model, *options.models)}
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        """Held while the note is written or removed."""
        self._is_forgotten = False

    def run(self, every: float, stop: threading.Event) -> None:
        """Look each second until the job's end, and note it so often. A note that cannot be written fails no job."""
        due = time.monotonic()
        while not stop.wait(_LOOK):
            if self.look() and not stop.is_set() and time.monotonic() >= due:  # the manager may answer late
                if not self._write():
                    return
                due = time.monotonic() + every

    def look(self, *, begins: bool = False) -> bool:
        """Look at the manager; False if it does not answer."""
        with self._lock:  # so that no status is counted after a newer one
            status = self._read()
            if status is not None:
                self.launches.look(status, self._models, self._job, begins=begins)
        return status is not None

    def _write(self) -> bool:
        with self._writing:
            if self._is_forgotten:
                return False
            try:
                write_note(self._files.launches, msgspec.json.encode(self.launches))
            except (OSError, MillraceError) as error:
                _log.warning("%s: the job's launches are not counted: %s", self._files.launches, error)
                return False
            self.is_there = True
            return True

    def forget(self) -> None:
        """Remove the note of a job that is done. A note that is being written is waited for, but not for long."""
        self._is_forgotten = True
        if not self._writing.acquire(timeout=_ENDS_WITHIN):
            _log.warning("%s: may stay: it is still being written", self._files.launches)
            return
        try:
            if self.is_there and not self._files.has_unfinished_rows():
                remove([self._files.launches])
        except (OSError, MillraceError) as error:
            _log.warning("%s: cannot be removed: %s", self._files.launches, error)
        finally:
            self._writing.release()


@contextmanager
def noted_launches(options: JobOptions, read: ReadStatus) -> Iterator[Launches | None]:
    """While the block runs, count and note what the job's launches come to; None for a job without files."""
    files = files_of(options)
    if files is None:
        yield None
        return
    noted = _Noted(options, files, read)
    noted.look(begins=True)
    every = _LOOK if is_local(files.launches) else _NOTE_IN_A_STORE
    with beside(partial(noted.run, every), "millrace-launches", ends_within=_ENDS_WITHIN):
        yield noted.launches
    noted.look()
    noted.forget()


def _noted(files: OutputFiles, identity: str) -> Launches:
    """What earlier launches of the same job have noted."""
    try:
        found = _read(files.launches)
    except (OSError, ValueError, RecursionError, MillraceError) as error:
        _log.warning("%s is damaged, so earlier launches are not counted: %s", files.launches, error)
        return Launches(identity)
    return found if found.identity == identity else Launches(identity)


def _read(path: str) -> Launches:
    """Raises OSError, StorageError, ValueError, RecursionError."""
    if is_local(path) and not Path(path).is_file():
        raise OSError("it is no file")
    with open_file(path) as stream:
        content = stream.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST:,} bytes")
    return json_decoder(Launches).decode(content)
