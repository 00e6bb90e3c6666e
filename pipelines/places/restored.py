"""A job that wrote no row leaves beside its output what was there before it, and no more.

Knows the files by which an output is prepared: its settings, its temporary folder, the mark of what is replaced. The
folders that are made go with the claim (claims.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from millrace.model_manager.wire.errors import ConfigError, ModelError
from millrace.transforms.addresses import Files
from millrace.transforms.files.file_systems import create, exists, remove
from millrace.transforms.files.object_reads import open_file
from millrace.transforms.runners import runs_here
from millrace.transforms.writing.output_files import OutputFiles

from ..edge import unwrapped
from ..flags.job_options import JobOptions
from .lost_stores import is_store_lost
from .sources_and_sinks import files_at, letters_apart


@contextlib.contextmanager
def restored_if_nothing_written(options: JobOptions) -> Iterator[None]:
    """Restore what is beside the job's files if the block ends the job, in whatever way, before it wrote a row.

    A job that may go on without this process is over only where it was refused while it started.
    """
    addresses = (options.output, letters_apart(options))
    before = [_Before(files_at(each)) for each in addresses if isinstance(each, Files)]
    try:
        yield
    except BaseException as error:
        is_over = _ends_here(options) or isinstance(unwrapped(error), ConfigError | ModelError)
        if is_over and not is_store_lost(error):
            for each in before:
                each.restore()
        raise
    if _ends_here(options):
        for each in before:
            each.forget_settings_of_nothing()


def _ends_here(options: JobOptions) -> bool:
    """Whether the job ends with this process."""
    return runs_here(options.beam, options.runner) and options.runner.is_on_this_machine


class _Before:
    """An output as a job found it."""

    def __init__(self, files: OutputFiles) -> None:
        self._files = files
        self._finished = files.fingerprints()
        self._settings = self._noted()
        self._was_marked = files.is_marked()

    def restore(self) -> None:
        """Restore the files, unless rows were written."""
        if self._files.has_unfinished_rows() or self._files.fingerprints() != self._finished:
            return
        self._note_again()
        self._files.clear(keep_mark=self._was_marked)

    def forget_settings_of_nothing(self) -> None:
        """Settings of an output without a file would be a file of nothing."""
        if not self._files.fingerprints() and not self._files.has_unfinished_rows():
            remove([self._files.settings])

    def _noted(self) -> bytes | None:
        if not exists(self._files.settings):
            return None
        with open_file(self._files.settings) as stream:
            return stream.read()

    def _note_again(self) -> None:
        if self._settings is None:
            remove([self._files.settings])
        elif self._settings != self._noted():
            with create(self._files.settings) as stream:
                stream.write(self._settings)
