"""A job that ends while the bucket of its output does not answer: it asks the bucket for nothing more, and says so.

Clients try on for minutes what a store does not answer, and a job that ends looks at its output several times.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from millrace.transforms.files.file_systems import exists
from millrace.transforms.files.object_stores import is_local
from millrace.transforms.writing.output_files import OutputFiles

_ANSWERS_WITHIN = 5.0
"""Seconds."""
_LOST = "does not answer; when it does again"
"""A part of the note by which an error is known to have come with the loss of the store."""


@contextlib.contextmanager
def store_looked_at(files: OutputFiles | None) -> Iterator[None]:
    """What ends the block gets a note if the store of the files does not answer: `is_store_lost` of it is then true."""
    try:
        yield
    except BaseException as error:
        if files is not None and not _answers(files):
            error.add_note(what_is_kept_there(files))
        raise


def is_store_lost(error: BaseException | None) -> bool:
    """Whether a block of `store_looked_at` was left by this, or by what it was raised from."""
    while error is not None:
        if any(_LOST in note for note in getattr(error, "__notes__", [])):
            return True
        error = error.__cause__ or error.__context__
    return False


def what_is_kept_there(files: OutputFiles) -> str:
    """What a user is told to do."""
    bucket = "/".join(files.prefix.split("/")[:3])
    return f"{bucket} {_LOST}, --resume goes on from what is written there"


def _answers(files: OutputFiles) -> bool:
    """Whether the store says within some seconds if a file is there; True for a disk."""
    if is_local(files.prefix):
        return True
    answers: list[bool] = []

    def ask() -> None:
        with contextlib.suppress(Exception):  # a store that refuses this refuses all that would be asked
            answers.append(exists(files.settings))

    thread = threading.Thread(target=ask, name="millrace-ask-store", daemon=True)
    thread.start()
    thread.join(_ANSWERS_WITHIN)
    return bool(answers)
