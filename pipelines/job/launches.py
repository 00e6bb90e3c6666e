"""What a job that was killed and resumed cost in all its launches: a note beside its output, while it is unfinished.

.millrace/<name>.launches.json      {"identity": "3f…", "launches": 2, "computed": 4711, …}

Engines count the tokens that they compute, and the manager keeps these counts over their deaths; this process looks
once a second and adds what is new. So a kill of the launcher loses nothing while the manager lives: the next launcher
goes on from the counts in the note. With a manager are lost the tokens since the last look. Tokens of other jobs that
use the same models meanwhile are counted too. A preempted request's second prefill is not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgspec

from millrace.model_manager.wire.errors import counted
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.status import EndedModel, EngineTotals, ModelStatus
from millrace.transforms.files.file_systems import exists, remove
from millrace.transforms.files.object_reads import open_file
from millrace.transforms.files.object_stores import is_local
from millrace.transforms.writing.output_files import OutputFiles

from ..flags.job_options import JobOptions
from ..places.provenance import write_whole
from ..places.sources_and_sinks import files_of
from .polling import ReadStatus, beside, job_status

_EVERY, _EVERY_IN_A_STORE = 1.0, 30.0
"""Seconds between two notes, on a disk and in an object store."""
_SAME_START = 5.0
"""Seconds by which the start of one manager may be reckoned differently."""
_log = logging.getLogger(__name__)


class Launches(msgspec.Struct):
    """A job in all its launches so far."""

    identity: str
    """`JobOptions.identity`: a note of another job counts for nothing."""
    launches: int = 0
    managers: int = 0
    """Managers that it has had."""
    restarts: int = 0
    """Times that an engine of its models was started again."""
    computed: int = 0
    """Tokens that engines have computed: of prompts, less those from the cache, and generated ones."""
    answered: int = 0
    """Tokens that answers to its requests took: those of their prompts that were computed, and of outputs."""
    manager: tuple[int, float] = (0, 0.0)
    """The last manager: its process id, and when it started by the wall clock."""
    seen: dict[str, int] = {}
    """What this manager had counted at the last look."""

    def look(self, status: Status, models: set[str], job: str, now: float) -> None:
        """Add what the manager has counted since the last look."""
        begins = not self.managers
        self._meet((status.pid, now - status.uptime))
        found: list[ModelStatus | EndedModel] = [*status.models, *status.ended]
        for model in found:
            if model.model in models:
                self.computed += self._new(f"computed {model.key}", _computed(model.stats), begins)
                self.restarts += self._new(f"restarts {model.key}", model.restarts, begins)
        if (ours := job_status(status, job)) is not None:
            tokens = ours.prompt_tokens - ours.cached_tokens + ours.generated_tokens
            self.answered += self._new("answered", tokens, begins)

    def _meet(self, manager: tuple[int, float]) -> None:
        pid, started = self.manager
        if pid != manager[0] or abs(started - manager[1]) > _SAME_START:
            self.managers += 1
            self.manager, self.seen = manager, {}

    def _new(self, name: str, count: int, begins: bool) -> int:
        """What is new of a counter. `begins`: what was counted before this job's first look is not its."""
        before = self.seen.get(name, count if begins else 0)
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

    def run(self, every: float, stop: threading.Event) -> None:
        """Look and note until the job's end. A note that cannot be written is no failure of the job."""
        while not stop.wait(every):
            if self.look():
                try:
                    write_whole(self._files.launches, msgspec.json.encode(self.launches))
                except OSError as error:
                    _log.warning("%s: the job's launches are not counted: %s", self._files.launches, error)
                    return
                self.is_there = True

    def look(self) -> bool:
        """Look at the manager; False if it does not answer."""
        status = self._read()
        if status is not None:
            self.launches.look(status, self._models, self._job, time.time())
        return status is not None

    def forget(self) -> None:
        """Remove the note of a job that is done."""
        if self.is_there and not self._files.has_unfinished_rows():
            remove([self._files.launches])


@contextmanager
def noted_launches(options: JobOptions, read: ReadStatus) -> Iterator[Launches | None]:
    """While the block runs, count and note what the job's launches come to; None for a job without files."""
    files = files_of(options)
    if files is None:
        yield None
        return
    noted = _Noted(options, files, read)
    every = _EVERY if is_local(files.launches) else _EVERY_IN_A_STORE
    with beside(partial(noted.run, every), "millrace-launches"):
        yield noted.launches
    noted.look()
    noted.forget()


def _noted(files: OutputFiles, identity: str) -> Launches:
    """What earlier launches of the same job have noted."""
    with open_file(files.launches) as stream:
        content = stream.read()
    try:
        found = msgspec.json.decode(content, type=Launches)
    except msgspec.MsgspecError as error:
        _log.warning("%s is damaged, so earlier launches are not counted: %s", files.launches, error)
        return Launches(identity)
    return found if found.identity == identity else Launches(identity)
